//! What all pod workers of a node share. Nothing in it belongs to one pod.

use std::sync::Arc;

use parking_lot::Mutex;
use pleg::Pleg;
use pleg_cri::Client;
use tokio::sync::{Semaphore, watch};

use super::allocatable::RequestedResources;
use super::host_ports::HostPorts;
use super::preemption::Preemptions;
use crate::events::Events;
use crate::executor::RuntimeExecutor;
use crate::executor::requests::NodeConfig;
use crate::host;
use crate::host::clock::Clock;
use crate::metrics::{MetricsError, NodeMetrics};
use crate::probes::ProbeResults;
use crate::status::reports::PodReports;
use crate::status::{NodeInfo, Stale};
use crate::store::StoreWriter;

/// How many pods start at once, for each core. A runtime on two cores is not faster with more than four.
const STARTS_OF_A_CORE: usize = 2;
/// For how many more pods the objects of their volumes are fetched while they wait for a start slot: a token takes the API server some
/// milliseconds, and for a new pod now and then a tenth of a second.
const CONCURRENT_PREPARATIONS: usize = 10;

/// Permits to start pods. First come, first served, so that the first pods run soon. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct StartSlots {
    /// To fetch what its volumes contain; held until the pod has a start slot.
    pub(crate) preparations: Arc<Semaphore>,
    /// To have the runtime create its sandbox and containers.
    pub(crate) starts: Arc<Semaphore>,
}

impl Default for StartSlots {
    fn default() -> Self {
        Self {
            preparations: Arc::new(Semaphore::new(CONCURRENT_PREPARATIONS)),
            // One more: usually one of ours is being inspected.
            starts: Arc::new(Semaphore::new(host::for_each_core(STARTS_OF_A_CORE) + 1)),
        }
    }
}

/// What all pod workers of a node share. Clones share it too.
#[derive(Debug, Clone)]
pub(crate) struct NodeContext {
    pub(crate) pleg: Pleg,
    pub(crate) executor: RuntimeExecutor,
    pub(crate) clock: Clock,
    pub(crate) reports: PodReports,
    // Held for a lookup or a change; never across an await.
    pub(crate) probes: Arc<Mutex<ProbeResults>>,
    pub(crate) node: Arc<NodeInfo>,
    pub(crate) start_slots: StartSlots,
    /// Where state that has to survive a restart of `pleg node` goes; none without a state file.
    pub(crate) store: Option<StoreWriter>,
    pub(crate) host_ports: HostPorts,
    pub(crate) requested: RequestedResources,
    pub(crate) preemptions: Preemptions,
    pub(crate) metrics: NodeMetrics,
    /// Where it is told what happens.
    pub(crate) events: Events,
    /// Set while the runtime cannot be observed.
    pub(crate) stale: watch::Receiver<Option<Arc<Stale>>>,
}

impl NodeContext {
    pub(crate) fn new(
        client: Client,
        pleg: Pleg,
        node: NodeConfig,
        runtime: &str,
        stale: watch::Receiver<Option<Arc<Stale>>>,
    ) -> Result<Self, MetricsError> {
        let info = NodeInfo {
            ips: node.ips.clone(),
            runtime: runtime.to_owned(),
        };
        let metrics = NodeMetrics::new(pleg.metrics().registry())?;
        let executor = RuntimeExecutor::new(client, pleg.clone(), Arc::new(node));
        Ok(Self {
            host_ports: HostPorts::default(),
            requested: RequestedResources::default(),
            preemptions: Preemptions::default(),
            metrics,
            events: Events::default(),
            pleg,
            clock: Clock::default(),
            reports: PodReports::default().with_activity(executor.activity().clone()),
            executor,
            probes: Arc::default(),
            node: Arc::new(info),
            start_slots: StartSlots::default(),
            store: None,
            stale,
        })
    }

    /// Tells from now on what happens.
    pub(crate) fn set_events(&mut self, events: Events) {
        self.executor.set_events(events.clone());
        self.events = events;
    }
}
