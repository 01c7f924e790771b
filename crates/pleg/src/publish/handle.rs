//! The handle through which callers use the generator.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashSet;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::generator::ProbeQueue;
use crate::generator::requests::RelistRequests;
use crate::health::Health;
use crate::health::node_health::NodeHealth;
use crate::health::readiness::Readiness;
use crate::metrics::{Metrics, MetricsError};
use crate::model::cursor::InstanceId;
use crate::model::event::Source;
use crate::model::{ContainerId, PodUid};
use crate::publish::cache::{Cache, PodEntry, Token, WaitError};
use crate::publish::feed::{Feed, Overflow, Start, Subscriber};
use crate::recorder::Recording;

/// A running generator, as its callers use it: statuses, events, health. Cheap to clone; clones are the same generator. Started with
/// [`Pleg::spawn`].
#[derive(Debug, Clone)]
pub struct Pleg {
    pub(crate) cache: Cache,
    pub(crate) feed: Feed,
    pub(crate) health: Health,
    pub(crate) readiness: Readiness,
    pub(crate) requests: RelistRequests,
    pub(crate) stops: Stops,
    pub(crate) probes: ProbeQueue,
    pub(crate) metrics: Metrics,
    pub(crate) recordings: mpsc::Sender<oneshot::Sender<Recording>>,
    pub(crate) turns: Turns,
}

impl Pleg {
    /// The pod statuses.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Which generator this is. Another one, such as that of a restarted daemon, may use the same numbers for its events.
    pub fn instance(&self) -> InstanceId {
        self.feed.instance()
    }

    /// The events.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The health.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The Ready condition that a kubelet would post. False until the runtime monitor, which [`Pleg::spawn`] starts, has had an answer.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Everything there is to say about the node now: shorthand for [`Readiness::observe`].
    pub fn observe(&self) -> NodeHealth {
        self.readiness.observe()
    }

    /// What the flight recorder has, as of now. Waits for the generator to run; none once it has ended.
    pub async fn recording(&self) -> Option<Recording> {
        let (reply, recording) = oneshot::channel();
        self.recordings.send(reply).await.ok()?;
        recording.await.ok()
    }

    /// How many turns of its loop the generator has taken so far; asks it for another one. Between two calls that are seconds apart the
    /// number stays the same only if the generator's task hangs, which is a bug: a runtime that does not answer delays no turn. For watchdogs.
    pub fn progress(&self) -> u64 {
        self.requests.wake();
        self.turns.count()
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Subscribes to the events: shorthand for [`Feed::subscribe`].
    pub fn subscribe(&self, start: Start, overflow: Overflow) -> Subscriber {
        self.feed.subscribe(start, overflow)
    }

    /// Requests a relist of one pod now, which also inspects it, and does not wait: pass the token to [`Cache::newer_than`], or use
    /// [`Pleg::refresh`].
    pub fn request_relist(&self, uid: &PodUid) -> Token {
        self.requests.pod(uid, Source::OnDemand)
    }

    /// Requests a relist of all pods now, and does not wait: pass the token to [`Cache::synced`].
    pub fn request_all(&self) -> Token {
        self.requests.all(Source::OnDemand)
    }

    /// Lists and inspects one pod now, and waits for that for up to `within`: the whole entry, not only existence and states, is then newer
    /// than this call. So it finds changes that no list shows, such as new limits after `UpdateContainerResources` or another IP. Costs the
    /// runtime two lists and a status call for each sandbox and for each container that has not exited. `Duration::MAX` is no deadline.
    pub async fn refresh(&self, uid: &PodUid, within: Duration) -> Result<PodEntry, WaitError> {
        let token = self.request_relist(uid);
        self.cache.newer_than(uid, token, within).await
    }

    /// Announces that the caller is about to stop a container: its death will be preceded by `ContainerStopped`.
    pub fn will_stop(&self, id: &ContainerId) {
        self.stops.announce(id);
    }

    /// Reports that something is wrong with a pod, such as a stop that failed: its shim is probed before those of other pods.
    pub fn suspect(&self, uid: &PodUid) {
        self.probes.add(uid);
    }

    /// The metrics in Prometheus' text format, as of now.
    pub fn render_metrics(&self) -> Result<String, MetricsError> {
        self.metrics
            .waiters(self.cache.waits().iter().map(|wait| wait.waiters).sum());
        self.metrics.node_ready(self.readiness.ready().status);
        // With every cause: a gauge that stops at the length of a list would be wrong.
        self.metrics.troubles(&self.health.report_in_full());
        self.metrics.render(self.health.inflight())
    }
}

/// Turns of the generator's loop. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<AtomicU64>);

impl Turns {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// More announced stops than this at once: the oldest are forgotten, and their deaths are plain ones.
const MOST_STOPS: usize = 4096;

/// Containers whose death was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stops {
    shared: Arc<Mutex<(HashSet<ContainerId>, VecDeque<ContainerId>)>>,
}

impl Stops {
    fn announce(&self, id: &ContainerId) {
        let (set, order) = &mut *self.shared.lock();
        if set.insert(id.clone()) {
            order.push_back(id.clone());
        }
        while order.len() > MOST_STOPS {
            if let Some(oldest) = order.pop_front() {
                set.remove(&oldest);
            }
        }
    }

    /// Whether this death was announced. Holds for one death.
    pub(crate) fn announced(&self, id: &ContainerId) -> bool {
        self.forget(id)
    }

    pub(crate) fn forget(&self, id: &ContainerId) -> bool {
        let (set, order) = &mut *self.shared.lock();
        let known = set.remove(id);
        if known {
            order.retain(|other| other != id);
        }
        known
    }
}
