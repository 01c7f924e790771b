//! Lists objects, then watches them: again and again, until it is dropped.
//!
//! A watch that ends is continued where it ended; a version that the API server no longer knows, or an error, needs a new list. Whatever goes
//! wrong, the next attempt waits: a server that cuts each watch after a moment is not asked in a hot loop.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::api::{Api, ApiError, Cause, call};

/// How long a watch is kept open.
const WATCH: Duration = Duration::from_secs(290);
/// A watch without any sign of life, not even a bookmark, for this long is opened again: its connection may be dead.
const IDLE: Duration = Duration::from_secs(150);
/// A watch that ends sooner counts as failed.
const SHORT: Duration = Duration::from_secs(5);
/// Delay after a failure, and its maximum; doubles with each in a row.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Longest delay that the API server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);
/// How many objects are listed at once.
const PAGE: u32 = 500;

/// Which objects are followed.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// For messages.
    pub(super) what: String,
    /// The namespace and the name of one object; else all objects of the cluster.
    pub(super) one: Option<(String, String)>,
}

/// Where followed objects go.
pub(super) trait Follower<K>: Send {
    /// A list begins, which replaces everything.
    fn begin(&mut self) {}
    /// An object of a list, or one that is new or changed.
    fn set(&mut self, object: K);
    /// An object is gone.
    fn remove(&mut self, object: &K);
    /// A list is complete: what is known is current.
    fn listed(&mut self);
    /// What is known may be out of date from now on.
    fn failed(&mut self, error: &ApiError);
    /// Nothing can change any more.
    fn is_final(&self) -> bool {
        false
    }
}

/// Follows objects for ever, or until nothing can change any more.
pub(super) async fn follow<K>(api: Api, selection: Selection, mut follower: impl Follower<K>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let mut version = None;
    let mut failures = 0_u32;
    loop {
        let began = Instant::now();
        let ended = round(&api, &selection, &mut version, &mut follower).await;
        if follower.is_final() {
            return;
        }
        let mut delay = Duration::ZERO;
        if let Err(error) = &ended {
            // A list is cheap, and correct whatever went wrong.
            version = None;
            follower.failed(error);
            delay = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
        } else if began.elapsed() >= SHORT {
            failures = 0;
            continue;
        }
        sleep(delay.max(back_off(failures))).await;
        failures = failures.saturating_add(1);
    }
}

/// With a jitter, so that all watches of a node do not come back at once.
fn back_off(failures: u32) -> Duration {
    let delay = BACK_OFF.0.saturating_mul(1 << failures.min(16)).min(BACK_OFF.1);
    delay.mul_f64(0.75 + fastrand::f64() / 2.0)
}

/// Lists if needed, and watches until the watch ends.
async fn round<K>(
    api: &Api,
    selection: &Selection,
    version: &mut Option<String>,
    follower: &mut impl Follower<K>,
) -> Result<(), ApiError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let objects = match &selection.one {
        Some((namespace, _)) => kube::Api::<K>::namespaced(api.client(), namespace),
        None => kube::Api::<K>::all(api.client()),
    };
    let fields = selection.one.as_ref().map(|(_, name)| format!("metadata.name={name}"));
    let from = match version.take() {
        Some(version) => version,
        None => list(&objects, &selection.what, fields.as_deref(), follower).await?,
    };
    let from = version.insert(from);
    if follower.is_final() {
        return Ok(());
    }
    let params = WatchParams {
        field_selector: fields,
        timeout: u32::try_from(WATCH.as_secs()).ok(),
        ..WatchParams::default()
    };
    let what = format!("watch {}", selection.what);
    let events = call(&what, objects.watch(&params, from)).await?;
    let mut events = pin!(events);
    // A dead connection is no error: the next watch continues where this one was.
    while let Ok(Some(event)) = timeout(IDLE, events.next()).await {
        match event.map_err(|error| ApiError::new(&what, error))? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                continue_at(version, object.meta().resource_version.as_ref());
                follower.set(object);
            }
            WatchEvent::Deleted(object) => {
                continue_at(version, object.meta().resource_version.as_ref());
                follower.remove(&object);
            }
            WatchEvent::Bookmark(bookmark) => *version = Some(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => {
                return Err(ApiError {
                    what,
                    cause: Cause::Refused(status),
                });
            }
        }
        if follower.is_final() {
            break;
        }
    }
    Ok(())
}

fn continue_at(version: &mut Option<String>, newer: Option<&String>) {
    if let Some(newer) = newer {
        *version = Some(newer.clone());
    }
}

/// Lists page by page, and returns the version of the list.
async fn list<K>(
    objects: &kube::Api<K>,
    what: &str,
    fields: Option<&str>,
    follower: &mut impl Follower<K>,
) -> Result<String, ApiError>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE);
    params.field_selector = fields.map(str::to_owned);
    follower.begin();
    loop {
        let page = call(format!("list {what}"), objects.list(&params)).await?;
        page.items.into_iter().for_each(|object| follower.set(object));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            follower.listed();
            return Ok(page.metadata.resource_version.unwrap_or_default());
        }
    }
}
