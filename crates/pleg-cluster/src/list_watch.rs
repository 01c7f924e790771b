//! Lists objects, then watches them, again and again: the one loop for pods, the Node object, and what pods refer to.
//!
//! | what happens | what follows |
//! |---|---|
//! | a watch ends, is cut, or is silent for too long | another one, from where it ended |
//! | an outage of the API server is over | the same: the connection may have died with it, without a word |
//! | the version is too old, an event cannot be read, a call fails | a list |
//!
//! Whatever happens, attempts are spaced ([`Pace`]): an API server that cuts each watch after a moment is not asked in a hot loop. A list is
//! read page by page. Where the objects go is up to a [`Follower`].

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use crate::api::{Api, ApiError, Cause, call};
use crate::pace::Pace;
use crate::retry::TroubleLog;

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Most pages of one list.
const MAX_PAGES: usize = 128;
/// How long the API server keeps a watch open, in seconds: from here to a quarter more.
const WATCH_SECONDS: u32 = 900;
/// A watch that is silent for longer is dead: bookmarks come every minute or so.
const SILENCE: Duration = Duration::from_secs(100);
/// Longest delay of those that are woken by the end of an outage, so that they do not come all at once.
const WAKE_SPREAD: Duration = Duration::from_millis(500);

/// Which objects are followed.
pub(crate) struct Selection<K> {
    /// For messages: "the pods of this node".
    what: String,
    fields: Option<String>,
    objects: Box<dyn Fn(Client) -> kube::Api<K> + Send + Sync>,
    /// Longest pause after failures.
    longest_pause: Duration,
    /// There may be hundreds of them: a watch that ends at once counts as a failure.
    is_one_of_many: bool,
}

impl<K: Resource<DynamicType = ()> + 'static> Selection<K> {
    /// All objects of the cluster.
    pub(crate) fn all(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            fields: None,
            objects: Box::new(kube::Api::all),
            longest_pause: Pace::LONGEST,
            is_one_of_many: false,
        }
    }

    /// One object of a namespace.
    pub(crate) fn one(what: impl Into<String>, namespace: &str, name: &str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let namespace = namespace.to_owned();
        Self {
            objects: Box::new(move |client| kube::Api::namespaced(client, &namespace)),
            ..Self::all(what)
        }
        .with_fields(format!("metadata.name={name}"))
    }

    /// Only those with these fields.
    pub(crate) fn with_fields(mut self, fields: String) -> Self {
        self.fields = Some(fields);
        self
    }

    /// One of hundreds, maybe: with another longest pause, also after watches that end at once.
    pub(crate) fn one_of_many(mut self, longest_pause: Duration) -> Self {
        (self.longest_pause, self.is_one_of_many) = (longest_pause, true);
        self
    }
}

/// Where followed objects go.
pub(crate) trait Follower<K>: Send {
    /// A list begins, which replaces everything.
    fn begin(&mut self);
    /// An object of a list, or one that is new or changed.
    fn set(&mut self, object: K);
    /// An object is gone.
    fn remove(&mut self, object: &K);
    /// A list of this version is complete: what is known is current.
    fn listed(&mut self, version: &str);
    /// What is known may be out of date from now on. A list that has begun is not completed.
    fn failed(&mut self, error: &ApiError);
    /// Nothing else is of interest.
    fn is_final(&self) -> bool {
        false
    }
}

/// How a watch ended.
enum End {
    /// It can go on where it ended.
    Cut,
    /// A list has to come first.
    Failed(ApiError),
}

/// Follows objects for ever, or until nothing else is of interest.
pub(crate) async fn follow<K>(api: Api, selection: Selection<K>, mut follower: impl Follower<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let mut pace = Pace::up_to(selection.longest_pause);
    let mut unreadable = TroubleLog::default();
    let mut version = None;
    loop {
        pace.begin();
        let ended = round(&api, &selection, &mut version, &mut follower, &mut unreadable).await;
        if follower.is_final() {
            return;
        }
        match ended {
            End::Cut if selection.is_one_of_many => sleep_until(pace.failed(None)).await,
            End::Cut => sleep_until(pace.went_well()).await,
            End::Failed(error) => {
                debug!("{error}");
                version = None;
                follower.failed(&error);
                pause(&api, pace.failed(error.retry_after()), &error).await;
            }
        }
    }
}

/// Waits, but not longer than until an API server that did not answer can be reached again.
async fn pause(api: &Api, until: Instant, error: &ApiError) {
    let woken = async {
        if error.code().is_some() {
            return std::future::pending().await;
        }
        api.reach().recovered().await;
        sleep(WAKE_SPREAD.mul_f64(fastrand::f64())).await;
    };
    tokio::select! {
        () = sleep_until(until) => {}
        () = woken => {}
    }
}

/// Lists if needed, and watches until the watch ends.
async fn round<K>(
    api: &Api,
    selection: &Selection<K>,
    version: &mut Option<String>,
    follower: &mut impl Follower<K>,
    unreadable: &mut TroubleLog,
) -> End
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let version = match version {
        Some(version) => version,
        None => match list(api, selection, follower).await {
            Ok(listed) => version.insert(listed),
            Err(error) => return End::Failed(error),
        },
    };
    if follower.is_final() {
        return End::Cut;
    }
    let params = WatchParams {
        field_selector: selection.fields.clone(),
        timeout: Some(WATCH_SECONDS + fastrand::u32(0..WATCH_SECONDS / 4)),
        ..WatchParams::default()
    };
    let what = format!("watch {}", selection.what);
    let objects = (selection.objects)(api.client());
    let events = match call(&what, objects.watch(&params, version)).await {
        Ok(events) => events,
        Err(error) => return End::Failed(error),
    };
    let mut events = pin!(events);
    loop {
        let next = tokio::select! {
            biased;
            next = timeout(SILENCE, events.next()) => next,
            () = api.reach().recovered() => return End::Cut,
        };
        match next {
            Ok(Some(Ok(event))) => {
                if let Err(status) = take_in(event, version, follower) {
                    let cause = Cause::Refused(status);
                    return End::Failed(ApiError { what, cause });
                }
                unreadable.fine(format_args!("events of {} can be read again", selection.what));
            }
            // It has ended, or its connection is dead.
            Ok(None | Some(Err(kube::Error::ReadEvents(_)))) | Err(_) => return End::Cut,
            // An event that cannot be read must not be skipped.
            Ok(Some(Err(error))) => {
                let error = ApiError::new(&what, error);
                unreadable.say(format!("{error}. They are listed again"));
                return End::Failed(error);
            }
        }
        if follower.is_final() {
            return End::Cut;
        }
    }
}

/// Takes in an event. It may be that the watch cannot go on.
fn take_in<K: Resource>(
    event: WatchEvent<K>,
    version: &mut String,
    follower: &mut impl Follower<K>,
) -> Result<(), Box<kube::core::Status>> {
    let seen = |version: &mut String, object: &K| {
        if let Some(newer) = &object.meta().resource_version {
            version.clone_from(newer);
        }
    };
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            seen(version, &object);
            follower.set(object);
        }
        WatchEvent::Deleted(object) => {
            seen(version, &object);
            follower.remove(&object);
        }
        WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
        WatchEvent::Error(status) => return Err(status),
    }
    Ok(())
}

/// Lists page by page, and returns the version of the list. One whose token expires on the way has failed.
async fn list<K>(api: &Api, selection: &Selection<K>, follower: &mut impl Follower<K>) -> Result<String, ApiError>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE);
    params.field_selector.clone_from(&selection.fields);
    let what = format!("list {}", selection.what);
    let mut version = None;
    follower.begin();
    for _ in 0..MAX_PAGES {
        let objects = (selection.objects)(api.client());
        let page = call(&what, objects.list(&params)).await?;
        page.items.into_iter().for_each(|object| follower.set(object));
        let version = version.get_or_insert(page.metadata.resource_version.unwrap_or_default());
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params.continue_token = Some(token),
            _ => {
                follower.listed(version);
                return Ok(std::mem::take(version));
            }
        }
    }
    let cause = Cause::Failed(format!("there are more than {MAX_PAGES} pages of {PAGE}"));
    Err(ApiError { what, cause })
}

#[cfg(test)]
mod tests;
