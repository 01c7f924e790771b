//! The task that reports.
//!
//! Each second it takes in what is stuck. The condition of the node is written when it changes, but not more often than every
//! [`SPACING`], and otherwise every five minutes as a heartbeat. One call is in flight at a time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::api::{Patch, PatchParams};
use pleg_node::Activity;
use pleg_node::events::EventSink as _;
use pleg_node::manifest::NodeName;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::condition::{self, STUCK, Wanted};
use super::finding::Findings;
use super::pods::PodConditions;
use super::progress::ReportHandle;
use super::tracker::Tracker;
use crate::api::{Api, ApiError, call};
use crate::events::{Component, EventRecorder};
use crate::retry::{Backoff, TroubleLog};

/// How often the state is looked at.
const TICK: Duration = Duration::from_secs(1);
/// The condition is written at least this often, plus [`JITTER`]: never more than one request in five minutes at rest.
const HEARTBEAT: Duration = Duration::from_mins(5);
/// Spreads the heartbeats of a fleet.
const JITTER: Duration = Duration::from_secs(30);
/// The first report of a node where nothing is stuck comes within this time, so that a fleet that starts together does not call together.
const START_SPREAD: Duration = Duration::from_secs(30);
/// From one patch to the next.
const SPACING: Duration = Duration::from_secs(10);
/// Delays while the API server is away, and their maximum.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Delays while it refuses.
const REFUSED: (Duration, Duration) = (Duration::from_secs(15), Duration::from_mins(5));

/// What a reporter needs to know.
#[derive(Debug, Clone)]
pub struct ReporterConfig {
    /// The name of the node.
    pub node: NodeName,
    /// This machine's boot ID, to tell that the Node object is that of another machine; empty if it is not known.
    pub boot_id: String,
    /// Report a condition on stuck pods too.
    pub pod_conditions: bool,
    /// What was stuck before our start is found again within this long, if it still is.
    pub found_within: Duration,
}

/// The Node object, as far as we know it.
#[derive(Debug, Default)]
struct KnownNode {
    /// Our condition.
    posted: Option<NodeCondition>,
    /// What an earlier process of ours posted, which holds until it is found again or [`ReporterConfig::found_within`] has passed.
    restored: Option<Restored>,
}

#[derive(Debug)]
struct Restored {
    wanted: Wanted,
    since: Timestamp,
    /// Pods that it names; they are looked for once the node was looked at.
    pods: Vec<(String, String)>,
}

/// Reports until shutdown.
pub struct Reporter {
    api: Api,
    config: ReporterConfig,
    findings: Arc<dyn Findings>,
    events: EventRecorder,
    handle: ReportHandle,
    tracker: Tracker,
    pods: Option<PodConditions>,
    /// When everything was first looked at.
    looked: Option<Instant>,
    node: Option<KnownNode>,
    /// The API server does not permit to read it.
    may_not_get: bool,
    /// Nor to write its status.
    may_not_patch: bool,
    /// Since when the cluster knows that something is stuck.
    node_told: Option<Timestamp>,
    first_at: Instant,
    not_before: Instant,
    last_patch: Option<Instant>,
    heartbeat_at: Instant,
    backoff: Backoff,
    refused: Backoff,
    log: TroubleLog,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Reporter {
    /// Calls nobody yet.
    pub fn new(api: Api, config: ReporterConfig, findings: Arc<dyn Findings>) -> Self {
        let now = Instant::now();
        let handle = ReportHandle::default();
        handle.change(|progress| config.node.as_str().clone_into(&mut progress.node));
        Self {
            events: EventRecorder::of_component(Component::PLEG, config.node.as_str()),
            pods: config.pod_conditions.then(|| PodConditions::new(api.clone())),
            tracker: Tracker::default(),
            looked: None,
            node: None,
            may_not_get: false,
            may_not_patch: false,
            node_told: None,
            first_at: now + START_SPREAD.mul_f64(fastrand::f64()),
            not_before: now,
            last_patch: None,
            heartbeat_at: now,
            backoff: Backoff::new(RETRY.0, RETRY.1),
            refused: Backoff::new(REFUSED.0, REFUSED.1),
            log: TroubleLog::default(),
            api,
            config,
            findings,
            handle,
        }
    }

    /// Reads how reporting goes.
    pub fn handle(&self) -> ReportHandle {
        self.handle.clone()
    }

    /// Reports until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let events = self
            .events
            .clone()
            .run(self.api.clone(), Activity::default(), shutdown.clone());
        tokio::join!(events, shutdown.run_until_cancelled(self.follow()));
    }

    async fn follow(&mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.look();
            self.report().await;
            self.tell();
            if let Some(pods) = &mut self.pods {
                pods.follow(&self.tracker, Instant::now());
                pods.post().await;
            }
            self.publish();
        }
    }

    /// Takes in what is stuck now.
    fn look(&mut self) {
        let Some(found) = self.findings.now() else { return };
        let now = Instant::now();
        let looked = *self.looked.get_or_insert(now);
        self.tracker.observe(found, Timestamp::now(), now);
        self.follow_up_restored(looked, now);
    }

    /// Looks for the pods that an earlier process of ours reported, and forgets its report once there is a newer one.
    fn follow_up_restored(&mut self, looked: Instant, now: Instant) {
        let until = looked + self.config.found_within;
        let Some(known) = &mut self.node else { return };
        let Some(restored) = &mut known.restored else { return };
        for (namespace, name) in std::mem::take(&mut restored.pods) {
            if let Some(pod) = self.findings.pod(&namespace, &name) {
                self.tracker.restore(pod, restored.since, until);
            }
        }
        if now >= until || !self.tracker.stuck(now).is_empty() {
            known.restored = None;
        }
    }

    /// What the condition should be; none while that is not known.
    fn wanted(&self) -> Option<Wanted> {
        let restored = self.node.as_ref().and_then(|known| known.restored.as_ref());
        if let Some(restored) = restored {
            return Some(restored.wanted.clone());
        }
        self.looked?;
        let now = Instant::now();
        Some(Wanted::of(&self.tracker.stuck(now), self.tracker.untracked()))
    }

    /// Reads or writes the node, if that is due.
    async fn report(&mut self) {
        let now = Instant::now();
        if now < self.not_before {
            return;
        }
        let Some(known) = &self.node else {
            // A trouble does not wait for its turn.
            if now >= self.first_at || !self.tracker.stuck(now).is_empty() {
                self.find().await;
            }
            return;
        };
        let Some(wanted) = self.wanted() else { return };
        let is_news = known.posted.as_ref().map(Wanted::of_posted).as_ref() != Some(&wanted);
        let is_spaced = self.last_patch.is_none_or(|last| now >= last + SPACING);
        if (is_news && is_spaced) || now >= self.heartbeat_at {
            self.post(&wanted).await;
        }
    }

    /// Reads the node: what was posted before our start, and its UID.
    async fn find(&mut self) {
        let name = self.config.node.as_str().to_owned();
        let nodes = kube::Api::<Node>::all(self.api.client());
        match call(format!("get node {name}"), nodes.get(&name)).await {
            Ok(node) => {
                self.may_not_get = false;
                if let Some(problem) = other_machine(&node, &self.config.boot_id) {
                    let what = format!("cannot report as node {name}: {problem}");
                    return self.refused(what);
                }
                self.found(&node);
            }
            // Without it a restart of ours moves the transition; the rest works.
            Err(error) if error.is_forbidden() => {
                let advice = self.advice(&error, "get", "nodes");
                warn!(
                    "{error}. {advice}. Without it a restart of pleg moves the time of the condition's last transition"
                );
                self.may_not_get = true;
                self.node = Some(KnownNode::default());
            }
            Err(error) => self.failed(&error, "get", "nodes"),
        }
    }

    fn found(&mut self, node: &Node) {
        self.events
            .set_node_uid(node.metadata.uid.as_deref().unwrap_or_default());
        let posted = condition::of_node(node).cloned();
        let was_stuck = posted.as_ref().filter(|posted| posted.status == "True");
        let restored = was_stuck.map(|posted| Restored {
            wanted: Wanted::of_posted(posted),
            since: posted
                .last_transition_time
                .as_ref()
                .map_or_else(Timestamp::now, |time| time.0),
            pods: condition::pods_in(posted.message.as_deref().unwrap_or_default()),
        });
        self.node_told = restored.as_ref().map(|restored| restored.since);
        self.node = Some(KnownNode { posted, restored });
        // Before anything is told: what is found already may be known to the cluster.
        if let Some(looked) = self.looked {
            self.follow_up_restored(looked, Instant::now());
        }
        self.succeeded();
    }

    async fn post(&mut self, wanted: &Wanted) {
        let name = self.config.node.as_str().to_owned();
        let posted = self.node.as_ref().and_then(|known| known.posted.as_ref());
        let condition = wanted.at(Timestamp::now(), posted);
        let nodes = kube::Api::<Node>::all(self.api.client());
        let (params, patch) = (PatchParams::default(), Patch::Strategic(condition::patch(&condition)));
        let patching = nodes.patch_status(&name, &params, &patch);
        match call(format!("patch nodes/status of node {name}"), patching).await {
            Ok(node) => {
                self.may_not_patch = false;
                let now = Instant::now();
                self.last_patch = Some(now);
                self.heartbeat_at = now + HEARTBEAT + JITTER.mul_f64(fastrand::f64());
                self.events
                    .set_node_uid(node.metadata.uid.as_deref().unwrap_or_default());
                if let Some(known) = &mut self.node {
                    known.posted = Some(condition::of_node(&node).cloned().unwrap_or(condition));
                }
                let stuck = wanted.stuck;
                self.handle.change(|progress| {
                    progress.reported_at = Some(Timestamp::now());
                    progress.stuck = Some(stuck);
                });
                self.succeeded();
            }
            Err(error) => {
                if error.is_not_found() {
                    // It may come back as another object.
                    self.node = None;
                }
                self.may_not_patch = error.is_forbidden();
                self.failed(&error, "patch", "nodes/status");
            }
        }
    }

    /// Records events about what the cluster does not know, unless it cannot be reached: then later, of what is still so.
    fn tell(&mut self) {
        if self.node.is_none() || !self.api.reach().is_reachable() {
            return;
        }
        let (at, now) = (Timestamp::now(), Instant::now());
        for event in self.tracker.tell(at, now) {
            self.events.record(event);
        }
        let Some(wanted) = self.wanted() else { return };
        match (wanted.stuck, self.node_told) {
            (true, None) => {
                let stuck = self.tracker.stuck(now);
                let since = stuck.iter().map(|episode| episode.since).min().unwrap_or(at);
                self.events.record(wanted.event(since, at));
                self.node_told = Some(since);
            }
            (false, Some(since)) => {
                self.events.record(wanted.event(since, at));
                self.node_told = None;
            }
            _ => {}
        }
    }

    fn succeeded(&mut self) {
        self.backoff.reset();
        self.refused.reset();
        let node = &self.config.node;
        self.log
            .fine(format_args!("reporting to the cluster as node {node} again"));
        self.handle.change(|progress| {
            if progress.reported_at.is_none() && progress.stuck.is_none() {
                info!("reporting to {} as node {node}: condition {STUCK}", self.api.server());
            }
            (progress.error, progress.failing_since) = (None, None);
        });
    }

    fn failed(&mut self, error: &ApiError, verb: &str, resource: &str) {
        let is_refused = !error.is_transient() && !error.is_unauthorized();
        let backoff = if is_refused {
            &mut self.refused
        } else {
            &mut self.backoff
        };
        let delay = backoff.delay();
        let asked = error.retry_after().unwrap_or_default().min(REFUSED.1);
        self.not_before = Instant::now() + delay.max(asked);
        let advice = self.advice(error, verb, resource);
        self.log.failed(error, &advice);
        self.say(format!("{error}. {advice}"));
    }

    /// The Node object cannot be ours.
    fn refused(&mut self, what: String) {
        self.not_before = Instant::now() + self.refused.delay();
        self.log.say(what.clone());
        self.say(what);
    }

    fn say(&self, what: String) {
        self.handle.change(|progress| {
            progress.error = Some(what);
            progress.failing_since.get_or_insert_with(Timestamp::now);
        });
    }

    /// What to do about an error.
    fn advice(&self, error: &ApiError, verb: &str, resource: &str) -> String {
        if error.is_forbidden() {
            return format!("Grant the verb {verb} on {resource}: deploy/rbac.yaml has the rules");
        }
        if error.is_not_found() {
            let node = &self.config.node;
            return format!("There is no node {node}: give the name that the kubelet has with --node-name");
        }
        "It is tried again".to_owned()
    }

    /// What the rules lack, as far as it was tried.
    fn missing_rights(&self) -> Vec<String> {
        let may_not_patch_pods = self.pods.as_ref().is_some_and(PodConditions::is_forbidden);
        let tried = [
            (self.may_not_get, "get nodes"),
            (self.may_not_patch, "patch nodes/status"),
            (may_not_patch_pods, "patch pods/status"),
        ];
        let missing = tried.into_iter().filter(|(is_missing, _)| *is_missing);
        let missing = missing.map(|(_, right)| right.to_owned());
        let of_events = self.events.forbidden().map(|verb| format!("{} events", verb.name()));
        missing.chain(of_events).collect()
    }

    fn publish(&self) {
        let (server, lost) = (self.api.server(), self.events.dropped());
        let missing_rights = self.missing_rights();
        self.handle.change(|progress| {
            progress.missing_rights = missing_rights;
            progress.server = server;
            progress.events_lost = lost;
        });
    }
}

/// What is wrong if the node has booted otherwise than this machine.
fn other_machine(node: &Node, boot_id: &str) -> Option<String> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let differs = !info.boot_id.is_empty() && !boot_id.is_empty() && info.boot_id != boot_id;
    differs.then(|| {
        let theirs: String = info.boot_id.chars().filter(|c| !c.is_control()).take(64).collect();
        format!(
            "it has the boot ID {theirs}, and this machine {boot_id}; give this machine's own name with --node-name, or wait until its \
             kubelet has reported after a reboot"
        )
    })
}

#[cfg(test)]
mod tests;
