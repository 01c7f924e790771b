//! Follows the Node object: reads it, then watches it, and starts again where the watch ended.
//!
//! A watch that ends, however often, costs at most one request a second; errors back off. A connection that dies silently is found by its
//! silence: the API server ends each watch after some minutes.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::api::{WatchEvent, WatchParams};
use pleg_node::manifest::NodeName;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::{Api, ApiError, Cause, call};
use crate::retry::{Backoff, TroubleLog};

/// How long one watch lasts, in seconds.
const WATCH_SECONDS: u32 = 290;
/// A watch that says nothing for this long is dead.
const WATCH_SILENCE: Duration = Duration::from_secs(330);
/// Watches start at least this far apart.
const SPACING: Duration = Duration::from_secs(1);
/// Pauses after failures.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// News of the object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum News {
    /// It was read, and is this now.
    Read(Box<Node>),
    /// It has changed.
    Changed(Box<Node>),
    /// There is none.
    Gone,
}

type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent<Node>, kube::Error>> + Send>>;

/// What comes next.
enum Step {
    Get,
    /// From this version on.
    Watch(String),
    Read(String, Events),
}

struct Follower {
    api: Api,
    name: NodeName,
    step: Step,
    not_before: Instant,
    backoff: Backoff,
    log: TroubleLog,
}

/// News of the Node of this name, without end.
pub(crate) fn follow(api: Api, name: NodeName) -> Pin<Box<dyn Stream<Item = News> + Send>> {
    let follower = Follower {
        api,
        name,
        step: Step::Get,
        not_before: Instant::now(),
        backoff: Backoff::new(RETRY.0, RETRY.1),
        log: TroubleLog::default(),
    };
    Box::pin(unfold(follower, async |mut follower| {
        loop {
            if let Some(news) = follower.step().await {
                return Some((news, follower));
            }
        }
    }))
}

impl Follower {
    async fn step(&mut self) -> Option<News> {
        match std::mem::replace(&mut self.step, Step::Get) {
            Step::Get => self.get().await,
            Step::Watch(version) => {
                self.watch(version).await;
                None
            }
            Step::Read(version, events) => self.read(version, events).await,
        }
    }

    async fn get(&mut self) -> Option<News> {
        sleep_until(self.not_before).await;
        self.not_before = Instant::now() + SPACING;
        let nodes: kube::Api<Node> = kube::Api::all(self.api.client());
        match call(format!("get node {}", self.name), nodes.get_opt(self.name.as_str())).await {
            Ok(Some(node)) => {
                self.step = Step::Watch(node.metadata.resource_version.clone().unwrap_or_default());
                Some(News::Read(Box::new(node)))
            }
            Ok(None) => Some(News::Gone),
            Err(error) => {
                self.failed(&error).await;
                None
            }
        }
    }

    async fn watch(&mut self, version: String) {
        sleep_until(self.not_before).await;
        self.not_before = Instant::now() + SPACING;
        let nodes: kube::Api<Node> = kube::Api::all(self.api.client());
        let params = WatchParams::default()
            .fields(&format!("metadata.name={}", self.name))
            .timeout(WATCH_SECONDS);
        match call(format!("watch node {}", self.name), nodes.watch(&params, &version)).await {
            Ok(events) => {
                self.log.fine(format_args!("watching node {}", self.name));
                self.backoff.reset();
                self.step = Step::Read(version, Box::pin(events));
            }
            // The version is too old, or newer than what the API server has: it is read again.
            Err(error) => {
                self.failed(&error).await;
                if error.code() != Some(410) && error.code() != Some(504) {
                    self.step = Step::Watch(version);
                }
            }
        }
    }

    async fn read(&mut self, mut version: String, mut events: Events) -> Option<News> {
        let event = match timeout(WATCH_SILENCE, events.next()).await {
            Ok(Some(Ok(event))) => event,
            // It has ended, or is dead.
            Ok(Some(Err(_)) | None) | Err(_) => {
                self.step = Step::Watch(version);
                return None;
            }
        };
        let news = match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                version = node.metadata.resource_version.clone().unwrap_or(version);
                Some(News::Changed(Box::new(node)))
            }
            WatchEvent::Bookmark(bookmark) => {
                version = bookmark.metadata.resource_version;
                None
            }
            // It is read again: it may have been created anew.
            WatchEvent::Deleted(_) => return None,
            WatchEvent::Error(status) => {
                let (what, cause) = (format!("watch node {}", self.name), Cause::Refused(status));
                let error = ApiError { what, cause };
                self.failed(&error).await;
                return None;
            }
        };
        self.step = Step::Read(version, events);
        news
    }

    async fn failed(&mut self, error: &ApiError) {
        // A version that has become too old is nobody's trouble.
        if error.code() != Some(410) {
            self.log.failed(error, "It is tried again");
        }
        self.backoff.pause(&self.api, error).await;
    }
}
