//! The task that owns the Node object: registers it, follows it, and patches its status.
//!
//! The status is computed every second and compared with what the API server has. A change of ours is patched at once; one that others
//! made (a controller that gave the node up, an operator) at most every ten seconds, so that two writers never chase each other; and
//! without any change the heartbeats every five minutes. There is one call in flight at a time, so changes meanwhile become one patch.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ContainerImage, Node};
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use pleg_node::events::{Event, EventSink, EventType};
use pleg_node::manifest::NodeName;
use pleg_node::{PressureCondition, host};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::conditions::{pressure, ready};
use super::follower::{NodeFollower, show};
use super::lease::NAMESPACE;
use super::object::{DesiredNode, rebooted};
use super::settings::{NodeSettings, Register};
use super::taken::{OtherMachine, Standing, is_ours};
use crate::api::{Api, ApiError, call};
use crate::list_watch::{Selection, follow};
use crate::retry::{Backoff, TroubleLog};

/// How often the status is computed.
const TICK: Duration = Duration::from_secs(1);
/// How often the address is looked up, and differences that others made are patched.
const RESYNC: Duration = Duration::from_secs(10);
/// How often heartbeats are patched without a change.
const HEARTBEAT: Duration = Duration::from_mins(5);
/// Pauses after failures, as a kubelet has them when it registers.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(7));
/// How long the first relist may take before the node registers without it, as not ready.
const FIRST_RELIST: Duration = Duration::from_secs(5);
/// How often the lease of another machine is checked.
const TAKEN_CHECK: Duration = Duration::from_secs(10);

/// What is observed of the node at one moment.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    /// Why it is not ready; empty if it is. Without ages.
    pub not_ready_because: Vec<String>,
    /// The pressure on its resources.
    pub pressure: Vec<PressureCondition>,
}

/// Observes the node.
pub type Observe = Box<dyn Fn() -> Observation + Send + Sync>;

/// Owns the Node object.
pub struct NodeManager {
    api: Api,
    name: NodeName,
    settings: NodeSettings,
    observe: Observe,
    images: watch::Receiver<Vec<ContainerImage>>,
    object: watch::Sender<Option<Arc<Node>>>,
    ips: Vec<IpAddr>,
    events: Option<Arc<dyn EventSink>>,
    /// What was last patched, and when.
    posted: Option<(DesiredNode, Instant)>,
    log: TroubleLog,
}

impl fmt::Debug for NodeManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeManager")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why the object is no longer followed.
enum Lost {
    /// It was deleted, or another one has its name.
    Deleted,
    /// It has to be read again.
    Outdated,
}

impl NodeManager {
    /// Nothing happens until [`NodeManager::run`]. `object` is where the object is shown to others.
    pub(crate) fn new(
        api: Api,
        name: NodeName,
        settings: NodeSettings,
        observe: Observe,
        images: watch::Receiver<Vec<ContainerImage>>,
        object: watch::Sender<Option<Arc<Node>>>,
    ) -> Self {
        Self {
            api,
            name,
            settings,
            observe,
            images,
            object,
            ips: Vec::new(),
            events: None,
            posted: None,
            log: TroubleLog::default(),
        }
    }

    /// With events about the node.
    pub(crate) fn with_events(mut self, events: Arc<dyn EventSink>) -> Self {
        self.events = Some(events);
        self
    }

    fn record(&self, event: Event) {
        if let Some(events) = &self.events {
            events.record(event);
        }
    }

    /// Keeps the node registered and its status up to date until shutdown.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let token = shutdown.clone();
        token.run_until_cancelled(Box::pin(self.work())).await;
    }

    async fn work(&mut self) {
        self.record(Event::node(EventType::Normal, "Starting", "Starting pleg node."));
        self.wait_for_first_relist().await;
        let mut register = self.settings.register;
        loop {
            let node = self.registered(register).await;
            self.object.send_replace(Some(Arc::new(node)));
            match self.keep().await {
                Lost::Outdated => {}
                Lost::Deleted => {
                    self.object.send_replace(None);
                    self.posted = None;
                    if register == Register::Always {
                        warn!("node {} was deleted; registering it again", self.name);
                    } else {
                        register = Register::Never;
                        warn!(
                            "node {} was deleted; staying away, as --register-node says. Restart pleg node to register it again",
                            self.name
                        );
                    }
                }
            }
        }
    }

    /// A node that registers before it has seen its runtime would be not ready for a moment, after each restart.
    async fn wait_for_first_relist(&self) {
        let observed = async {
            while !(self.observe)().not_ready_because.is_empty() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let _ = timeout(FIRST_RELIST, observed).await;
    }

    /// Waits until the node is registered.
    async fn registered(&mut self, register: Register) -> Node {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut other = OtherMachine::default();
        loop {
            match self.register(register, &mut other).await {
                Ok(Some(node)) => {
                    self.log.fine(format_args!("node {} is registered", self.name));
                    return node;
                }
                Ok(None) => sleep(TAKEN_CHECK).await,
                Err(error) => {
                    let next = self.advice(&error, register);
                    self.log.failed(&error, next);
                    backoff.pause(&self.api, &error).await;
                }
            }
        }
    }

    /// What to do about a call that failed.
    fn advice(&self, error: &ApiError, register: Register) -> String {
        let node = self.name.as_str();
        if error.is_not_found() && register == Register::Never {
            return format!("The node waits until somebody creates node {node}: --register-node says not to");
        }
        let whose = self.api.identity().and_then(|identity| identity.of_another_node(node));
        match whose {
            Some(whose) if error.is_forbidden() => format!("Note: {whose}"),
            _ if error.is_forbidden() => format!(
                "Node needs the rights of system:node:{node}: is the Node authorizer on, and is the user in the group system:nodes?"
            ),
            _ => "It is tried again".to_owned(),
        }
    }

    /// One attempt. None if another machine has the name.
    async fn register(&mut self, register: Register, other: &mut OtherMachine) -> Result<Option<Node>, ApiError> {
        let (nodes, name) = (self.nodes(), self.name.clone());
        let desired = self.desired(true);
        if register != Register::Never {
            let new = desired.initial(&self.settings, Timestamp::now());
            match call(
                format!("create node {name}"),
                nodes.create(&PostParams::default(), &new),
            )
            .await
            {
                Ok(node) => {
                    info!("registered node {name} with the API server at {}", self.api.server());
                    for event in desired.events(&[]) {
                        self.record(event);
                    }
                    self.posted = Some((desired, Instant::now()));
                    return Ok(Some(node));
                }
                // One that may not be created may exist nevertheless.
                Err(error) if error.already_exists() => {}
                Err(error) if error.is_forbidden() => {
                    let existing = self.existing(other).await;
                    return if existing.as_ref().is_err_and(ApiError::is_not_found) {
                        Err(error)
                    } else {
                        existing
                    };
                }
                Err(error) => return Err(error),
            }
        }
        self.existing(other).await
    }

    /// Takes over the object that exists.
    async fn existing(&mut self, other: &mut OtherMachine) -> Result<Option<Node>, ApiError> {
        let (nodes, name) = (self.nodes(), self.name.clone());
        let known = call(
            format!("get node {name}"),
            nodes.get_with(name.as_str(), &GetParams::default()),
        )
        .await?;
        if !is_ours(&known, &self.settings.machine) && self.is_taken(&known, other).await? {
            return Ok(None);
        }
        let desired = self.desired(true);
        let node = self.patch(&known, &desired).await?;
        let boot_id = &self.settings.machine.boot_id;
        if rebooted(&known, boot_id) {
            let message = format!("Node {name} has been rebooted, boot id: {boot_id}");
            self.record(Event::node(EventType::Warning, "Rebooted", &message));
        }
        info!(
            "node {name} exists at the API server at {}, and is ours",
            self.api.server()
        );
        Ok(Some(node))
    }

    /// Whether the machine of this object runs.
    async fn is_taken(&mut self, known: &Node, other: &mut OtherMachine) -> Result<bool, ApiError> {
        let leases: kube::Api<Lease> = kube::Api::namespaced(self.api.heartbeats(), NAMESPACE);
        let name = &self.name;
        let lease = call(format!("get lease {NAMESPACE}/{name}"), leases.get_opt(name.as_str())).await?;
        let info = known.status.as_ref().and_then(|status| status.node_info.as_ref());
        let machine = info.map_or("", |info| info.machine_id.as_str());
        match other.observe(lease.as_ref(), Instant::now()) {
            Standing::Gone => {
                warn!("node {name} was that of another machine (machineID {machine}), which is gone: taking it over");
                return Ok(false);
            }
            Standing::Unknown => self.log.say(format!(
                "node {name} is that of another machine (machineID {machine}): waiting until it is clear that it does not run any more"
            )),
            Standing::Alive => self.log.say(format!(
                "node {name} is taken by another machine (machineID {machine}), which runs: choose another name with --node-name, or stop \
                 pleg node or the kubelet there. No pods of the API server run here"
            )),
        }
        Ok(true)
    }

    /// Follows the object and keeps its status up to date, until it is lost.
    async fn keep(&mut self) -> Lost {
        let selection =
            Selection::all(format!("node {}", self.name)).with_fields(format!("metadata.name={}", self.name));
        let follower = NodeFollower::new(self.object.clone());
        let following = follow::<Node>(self.api.clone(), selection, follower);
        let mut following = std::pin::pin!(following);
        let mut changes = self.object.subscribe();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut backoff, mut not_before) = (Backoff::new(RETRY.0, RETRY.1), Instant::now());
        let mut ticks = 0_u64;
        loop {
            tokio::select! {
                biased;
                () = &mut following => return Lost::Deleted,
                Ok(()) = changes.changed() => {}
                _ = tick.tick() => ticks += 1,
            }
            if Instant::now() < not_before {
                continue;
            }
            match self.sync(ticks.is_multiple_of(RESYNC.as_secs())).await {
                Ok(()) => backoff.reset(),
                Err(error) if error.is_not_found() => return Lost::Deleted,
                // Another object has the name.
                Err(error) if error.is_conflict() => return Lost::Outdated,
                Err(error) => {
                    let next = self.advice(&error, Register::Always);
                    self.log.failed(&error, next);
                    not_before = Instant::now() + backoff.delay();
                }
            }
        }
    }

    /// Patches the status if that is due.
    async fn sync(&mut self, look_up_address: bool) -> Result<(), ApiError> {
        let Some(known) = self.object.borrow().clone() else {
            return Ok(());
        };
        let desired = self.desired(look_up_address);
        let patch = desired.patch(&known, Timestamp::now());
        let due = match &self.posted {
            None => true,
            Some((before, _)) if desired.differs_from(before) => true,
            Some((_, at)) if patch.is_change => at.elapsed() >= RESYNC,
            Some((_, at)) => at.elapsed() >= HEARTBEAT,
        };
        if !due {
            return Ok(());
        }
        let node = self.patch(&known, &desired).await?;
        self.log
            .fine(format_args!("the status of node {} is up to date", self.name));
        show(&self.object, node, false);
        Ok(())
    }

    async fn patch(&mut self, known: &Node, desired: &DesiredNode) -> Result<Node, ApiError> {
        let patch = desired.patch(known, Timestamp::now());
        let (nodes, name) = (self.nodes(), self.name.as_str());
        let (params, body) = (PatchParams::default(), Patch::Strategic(patch.body));
        let patching = nodes.patch_status(name, &params, &body);
        let node = call(format!("patch the status of node {name}"), patching).await?;
        let before = known.status.as_ref().and_then(|status| status.conditions.as_deref());
        for event in desired.events(before.unwrap_or_default()) {
            self.record(event);
        }
        self.posted = Some((desired.clone(), Instant::now()));
        Ok(node)
    }

    /// What the object should be now.
    fn desired(&mut self, look_up_address: bool) -> DesiredNode {
        if look_up_address || self.ips.is_empty() {
            let found = || {
                host::address()
                    .filter(|ip| !ip.is_loopback())
                    .into_iter()
                    .collect::<Vec<_>>()
            };
            let ips = if self.settings.ips.is_empty() {
                found()
            } else {
                self.settings.ips.clone()
            };
            // A machine that has lost its address for a moment keeps it.
            if !ips.is_empty() {
                self.ips = ips;
            }
        }
        let observed = (self.observe)();
        let mut conditions = pressure(&observed.pressure);
        conditions.push(ready(&observed.not_ready_because));
        let images = self.images.borrow().clone();
        DesiredNode::new(self.name.as_str(), &self.settings, &self.ips, &images, conditions)
    }

    fn nodes(&self) -> kube::Api<Node> {
        kube::Api::all(self.api.heartbeats())
    }
}

#[cfg(test)]
mod tests;
