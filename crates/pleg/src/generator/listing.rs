//! The lists of a relist while they are in flight, and how long lists take on this node.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join, try_join_all};
use pleg_cri::{Error, ListFilter, ListSummary, Rpc};
use tokio::time::Instant;

use super::Config;
use super::event_stream::HintedPods;
use super::requests::PendingRequests;
use crate::model::PodUid;
use crate::publish::cache::Token;
use crate::records::snapshot::{ContainerList, SandboxList, Snapshot};
use crate::runtime::Runtime;

/// The lists in flight, of one relist at most, and what earlier lists leave for later ones.
#[derive(Debug)]
pub(super) struct Lists {
    in_flight: Option<Listing>,
    /// Buffers of the last full relist, for the next one.
    spare: Snapshot,
    times: ListTimes,
    /// A list is never given less time than this.
    least_patience: Duration,
    threshold: Duration,
    /// When the newest list of all sandboxes that was taken in had been sent.
    sandboxes_sent: Option<Instant>,
}

impl Lists {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            in_flight: None,
            spare: Snapshot::default(),
            times: ListTimes::default(),
            least_patience: config.list_patience,
            threshold: config.threshold,
            sandboxes_sent: None,
        }
    }

    pub(super) fn in_flight(&self) -> Option<&Listing> {
        self.in_flight.as_ref()
    }

    pub(super) fn in_flight_mut(&mut self) -> Option<&mut Listing> {
        self.in_flight.as_mut()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// When the lists in flight were sent.
    pub(super) fn sent(&self) -> Option<Instant> {
        self.in_flight.as_ref().map(|listing| listing.relist.started)
    }

    /// Lists were sent.
    pub(super) fn begin(&mut self, listing: Listing) {
        self.in_flight = Some(listing);
    }

    /// The next list that ends; never resolves while none is in flight.
    pub(super) async fn next(&mut self) -> Arrived {
        match &mut self.in_flight {
            Some(listing) => listing.next().await,
            None => std::future::pending().await,
        }
    }

    /// Takes in a list that ended. Returns the relist if that was its last one.
    pub(super) fn arrived(&mut self, arrived: Arrived) -> Option<Listing> {
        let patience = self.patience();
        let listing = self.in_flight.as_mut()?;
        if arrived.is_answer() && listing.is_full() {
            self.times.learn(listing.relist.started.elapsed(), patience);
        }
        let last = listing.arrived(arrived);
        self.in_flight.take_if(|_| last)
    }

    /// A list that has not answered for this long hangs.
    pub(super) fn patience(&self) -> Duration {
        self.times.patience(self.least_patience, self.threshold)
    }

    /// The buffers of the last full relist.
    pub(super) fn take_spare(&mut self) -> Snapshot {
        std::mem::take(&mut self.spare)
    }

    /// Keeps the buffers of a full relist for the next one.
    pub(super) fn recycle(&mut self, snapshot: Snapshot) {
        self.spare = snapshot;
    }

    /// A list of all sandboxes that was `sent` then was taken in.
    pub(super) fn sandboxes_listed(&mut self, sent: Instant) {
        self.sandboxes_sent = self.sandboxes_sent.max(Some(sent));
    }

    /// A list of all sandboxes was sent after this moment and taken in.
    pub(super) fn sandboxes_listed_since(&self, at: Instant) -> bool {
        self.sandboxes_sent.is_some_and(|sent| sent > at)
    }
}

/// A relist: which requests it serves and what it can vouch for.
#[derive(Debug)]
pub(super) struct Relist {
    pub(super) token: Token,
    pub(super) started: Instant,
    /// A full relist was due.
    pub(super) due: bool,
    /// What callers asked for.
    pub(super) requested: PendingRequests,
    /// What events were about.
    pub(super) hinted: HintedPods,
}

/// What a relist covers.
#[derive(Debug)]
pub(super) enum Scope {
    Full,
    Pods(Vec<PodUid>),
}

/// A relist whose lists are in flight.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) relist: Relist,
    pub(super) scope: Scope,
    /// The runtime was away and has not said yet what it is now.
    pub(super) unidentified: bool,
    pub(super) sandboxes: Part<SandboxList>,
    pub(super) containers: Part<ContainerList>,
    /// The lists of single pods.
    pub(super) pods: Option<Result<Vec<Snapshot>, Failed>>,
    calls: Calls,
}

/// The calls of a relist: its lists, and the question what the runtime is.
struct Calls([Option<BoxFuture<'static, Arrived>>; 3]);

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.0.iter().flatten().count();
        f.debug_tuple("Calls").field(&open).finish()
    }
}

/// Name and version of the runtime after an outage; true: not known yet.
type Renewed = Shared<BoxFuture<'static, bool>>;

/// One of the two lists of a full relist.
#[derive(Debug)]
pub(super) enum Part<L> {
    /// In flight.
    Open,
    /// Answered, with so many bytes.
    Answered(L, usize),
    /// Answered and taken in, before the other one was.
    TakenIn,
    /// Failed.
    Failed(Error),
}

impl<L> Part<L> {
    fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    fn of(list: L, answer: Result<ListSummary, Error>) -> Self {
        match answer {
            Ok(summary) => Self::Answered(list, summary.bytes),
            Err(error) => Self::Failed(error),
        }
    }

    /// The answer, if there is one that was not taken in.
    pub(super) fn take_answer(&mut self) -> Option<L> {
        match std::mem::replace(self, Self::TakenIn) {
            Self::Answered(list, _) => Some(list),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// A list that ended.
#[derive(Debug)]
pub(super) enum Arrived {
    Sandboxes(SandboxList, Result<ListSummary, Error>),
    Containers(ContainerList, Result<ListSummary, Error>),
    Pods(Result<Vec<Snapshot>, Failed>),
    /// The runtime was asked what it is now.
    Version {
        /// It did not say.
        unidentified: bool,
    },
}

impl Arrived {
    /// A list was answered.
    pub(super) fn is_answer(&self) -> bool {
        match self {
            Self::Sandboxes(_, answer) | Self::Containers(_, answer) => answer.is_ok(),
            Self::Pods(answer) => answer.is_ok(),
            Self::Version { .. } => false,
        }
    }
}

/// The content of one of the two lists.
#[derive(Debug)]
pub(super) enum SingleList {
    Sandboxes(SandboxList),
    Containers(ContainerList),
}

/// Which of the two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    Sandboxes,
    Containers,
}

/// Why there is no snapshot.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// The other of the two lists was answered.
    pub(super) other_list_ok: bool,
}

impl Listing {
    /// Sends the lists of a relist, all at the same time. Each has its own deadline, and the failure of one does not keep the other
    /// from answering: which of them does is what tells a locked container from a runtime that is stuck. `unidentified`: the runtime
    /// is asked first what it is, because it may be another one. `spare`: the buffers of a full relist.
    pub(super) fn send<R: Runtime>(
        runtime: &Arc<R>,
        relist: Relist,
        scope: Scope,
        unidentified: bool,
        spare: Snapshot,
    ) -> Self {
        let renewed = unidentified.then(|| {
            let runtime = Arc::clone(runtime);
            // If it cannot say yet it is asked again.
            async move { runtime.version().await.is_err() }.boxed().shared()
        });
        let version = renewed.clone().map(|renewed| {
            let asked = async {
                Arrived::Version {
                    unidentified: renewed.await,
                }
            };
            asked.boxed()
        });
        let calls = match &scope {
            Scope::Full => {
                let Snapshot { sandboxes, containers } = spare;
                let sandboxes = list_sandboxes(Arc::clone(runtime), renewed.clone(), sandboxes);
                let containers = list_containers(Arc::clone(runtime), renewed, containers);
                [version, Some(sandboxes.boxed()), Some(containers.boxed())]
            }
            Scope::Pods(pods) => {
                let lists = list_pods(Arc::clone(runtime), renewed, pods.clone());
                [version, Some(lists.boxed()), None]
            }
        };
        Self {
            relist,
            scope,
            unidentified,
            sandboxes: Part::Open,
            containers: Part::Open,
            pods: None,
            calls: Calls(calls),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self.scope, Scope::Full)
    }

    /// The next list that ends; never resolves once all have.
    async fn next(&mut self) -> Arrived {
        poll_fn(|context| {
            for slot in &mut self.calls.0 {
                if let Some(call) = slot
                    && let Poll::Ready(arrived) = call.poll_unpin(context)
                {
                    *slot = None;
                    return Poll::Ready(arrived);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Takes in a list that ended. Returns whether it was the last one.
    fn arrived(&mut self, arrived: Arrived) -> bool {
        match arrived {
            Arrived::Sandboxes(list, answer) => self.sandboxes = Part::of(list, answer),
            Arrived::Containers(list, answer) => self.containers = Part::of(list, answer),
            Arrived::Pods(answer) => self.pods = Some(answer),
            Arrived::Version { unidentified } => self.unidentified = unidentified,
        }
        match self.scope {
            Scope::Full => !self.sandboxes.is_open() && !self.containers.is_open(),
            Scope::Pods(_) => self.pods.is_some(),
        }
    }

    /// The list that has answered while the other one has not, unless it was taken already.
    pub(super) fn take_answered_list(&mut self) -> Option<SingleList> {
        if self.containers.is_open() {
            self.sandboxes.take_answer().map(SingleList::Sandboxes)
        } else if self.sandboxes.is_open() {
            self.containers.take_answer().map(SingleList::Containers)
        } else {
            None
        }
    }

    /// The list that is worth sending while this relist hangs: the one that has answered, or could.
    pub(super) fn answering_list(&self) -> Option<ListKind> {
        match (&self.scope, &self.sandboxes, &self.containers) {
            (Scope::Pods(_), ..) | (_, Part::TakenIn, _) => Some(ListKind::Sandboxes),
            (.., Part::TakenIn) => Some(ListKind::Containers),
            _ => None,
        }
    }

    /// The call that is waited for.
    pub(super) fn waits_for(&self) -> Rpc {
        match self.scope {
            Scope::Full if !self.containers.is_open() => Rpc::ListPodSandbox,
            _ => Rpc::ListContainers,
        }
    }
}

/// Durations of recent lists. They determine when a list counts as hung.
#[derive(Debug, Default)]
pub(super) struct ListTimes {
    last: VecDeque<Duration>,
}

impl ListTimes {
    /// So many are remembered.
    const LAST: usize = 4;
    /// A list that takes so many times as long as the slowest of those hangs.
    const OUTLIER: u32 = 3;

    /// A list has answered. One that was waited for beyond the `patience` counts for no more than twice that: it may have hung.
    fn learn(&mut self, took: Duration, patience: Duration) {
        let took = took.min(patience * 2);
        if self.last.len() == Self::LAST {
            self.last.pop_front();
        }
        self.last.push_back(took);
    }

    /// How long a list is waited for: never less than `least`, so that one that becomes slow at once is not taken for a hang for
    /// good, and never beyond what the threshold leaves time for.
    pub(super) fn patience(&self, least: Duration, threshold: Duration) -> Duration {
        let slowest = self.last.iter().max().copied().unwrap_or_default();
        (slowest * Self::OUTLIER).min(threshold / 3).max(least)
    }
}

/// All sandboxes.
pub(super) async fn list_sandboxes<R: Runtime>(
    runtime: Arc<R>,
    renewed: Option<Renewed>,
    mut list: SandboxList,
) -> Arrived {
    if let Some(renewed) = renewed {
        renewed.await;
    }
    let answer = runtime.list_sandboxes(&ListFilter::All, &mut list).await;
    Arrived::Sandboxes(list, answer)
}

/// All containers.
pub(super) async fn list_containers<R: Runtime>(
    runtime: Arc<R>,
    renewed: Option<Renewed>,
    mut list: ContainerList,
) -> Arrived {
    if let Some(renewed) = renewed {
        renewed.await;
    }
    let answer = runtime.list_containers(&ListFilter::All, &mut list).await;
    Arrived::Containers(list, answer)
}

/// What there is of each of these pods.
async fn list_pods<R: Runtime>(runtime: Arc<R>, renewed: Option<Renewed>, pods: Vec<PodUid>) -> Arrived {
    if let Some(renewed) = renewed {
        renewed.await;
    }
    let list = |uid: &PodUid| {
        let filter = ListFilter::PodUid(uid.as_str().to_owned());
        let runtime = &*runtime;
        async move { list_pod(runtime, &filter).await }
    };
    Arrived::Pods(try_join_all(pods.iter().map(list)).await)
}

/// What there is of one pod.
async fn list_pod<R: Runtime>(runtime: &R, filter: &ListFilter) -> Result<Snapshot, Failed> {
    let mut snapshot = Snapshot::default();
    let Snapshot { sandboxes, containers } = &mut snapshot;
    let lists = join(
        runtime.list_sandboxes(filter, sandboxes),
        runtime.list_containers(filter, containers),
    );
    match lists.await {
        (Ok(_), Ok(_)) => Ok(snapshot),
        (Err(error), other) => Err(Failed {
            error,
            other_list_ok: other.is_ok(),
        }),
        (Ok(_), Err(error)) => Err(Failed {
            error,
            other_list_ok: true,
        }),
    }
}
