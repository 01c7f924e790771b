//! Carries out decisions through CRI and on disk, without knowing their reasons.
//!
//! In: an [`Action`] and its pod. Out: CRI calls, directories, and how it went. It owns no state of pods, only the limit of concurrent
//! image pulls. A call that failed may still take effect, in particular one that timed out, so callers wait for a fresh status before they
//! decide again.
//!
//! | module | job |
//! |---|---|
//! | `sandbox`, `container`, `images`, `hooks` | the calls of each action |
//! | [`requests`] | CRI requests from a manifest: pure |
//! | `pull_credentials` | which image pull secret is for which image: pure |
//! | `hosts_file`, `termination_messages` | files of ours that containers mount |
//! | [`objects`] | config maps, secrets, tokens and claims that a pod refers to |
//! | [`volumes`], [`host_mounts`], `cleanup` | directories and mounts of a pod, made and removed: blocking |
//! | `logs`, `log_files` | rotation of container logs: a task, and its files |
//! | `log_links` | links to container logs: blocking |
//! | `error` | why an action failed, with the reason of Kubernetes |

pub mod host_mounts;
pub(crate) mod logs;
pub mod objects;
pub mod requests;
pub mod volumes;

mod cleanup;
mod container;
mod error;
mod hooks;
mod hosts_file;
mod images;
mod log_files;
pub(crate) mod log_links;
mod pull_credentials;
mod resize;
mod sandbox;
mod termination_messages;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleg::{ContainerId, Pleg};
use pleg_cri::duration::seconds;
use pleg_cri::{Client, Subject, Unary, v1};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use self::cleanup::CleanupError;
use self::container::{StartRequest, StopRequest};
use self::objects::{ApiObjects, NoApiServer, Objects};
use self::requests::{NodeConfig, SysctlError};
use crate::activity::Activity;
use crate::cgroups::PodCgroups;
use crate::events::Events;
use crate::host;
use crate::manifest::Pod;
use crate::reconcile::action::Action;
use crate::reconcile::history::PodFailure;

pub(crate) use self::cleanup::remove_unmounted_directory;
#[cfg(test)]
pub(crate) use self::error::call_failed;
pub(crate) use self::error::{ActionError, ExecError};
pub(crate) use self::termination_messages::ExitedContainer;

/// For how many pods volumes are brought up to date at once: after a restart, all pods of the node are due.
const CONCURRENT_REFRESHES: usize = 8;
/// How many sandboxes are stopped at once, and how many removed, for each core: more are not faster, and then all end as late as the last
/// one.
const TEARDOWNS_OF_A_CORE: usize = 2;
/// What takes longer than this lets the next one start: a refresh, or the end of a sandbox.
const SLOT: Duration = Duration::from_secs(3);
/// How long the removal of a sandbox yields to many pods that start or stop at once.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);
/// Deadline of reading a file of a pod.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// What actions need to know of their pod at the moment.
#[derive(Debug, Clone)]
pub(crate) struct ActionContext {
    /// The number of its newest sandbox.
    pub(crate) sandbox_attempt: u32,
    /// Its addresses.
    pub(crate) ips: Box<[IpAddr]>,
    /// For the start of an ephemeral container: the container whose processes it sees, if that exists.
    pub(crate) target: Option<ContainerId>,
    /// Cancelled once the pod has failed or terminates: nothing is created or started, and no start waits for an image or a hook. Also if the
    /// container that is being started has exited, so that its hook is of no use.
    pub(crate) no_starts: CancellationToken,
    /// Cancelled when the pod gets a shorter grace period: the next decision kills its containers with that.
    pub(crate) cut_kills: CancellationToken,
    /// Held, by threads for file operations, while files of the pod's volumes are written: two writers would disturb each other.
    pub(crate) volume_writes: Arc<Mutex<()>>,
    /// For a sandbox: what the volumes of the pod contain.
    pub(crate) volume_objects: Objects,
    /// Notified when a sandbox that is being removed is stopped.
    pub(crate) sandbox_stopped: Arc<Notify>,
    /// Cancelled when another pod waits for the name of this one: its sandbox is removed without delay.
    pub(crate) hurry: CancellationToken,
}

/// How an action went.
#[derive(Debug)]
pub(crate) struct ActionOutcome {
    pub(crate) action: Action,
    /// The action created a container, or found it created, even if it failed afterwards.
    pub(crate) created: bool,
    /// The pre-stop hook of a container has run, even if the action failed afterwards.
    pub(crate) pre_stopped: bool,
    pub(crate) result: Result<(), ActionError>,
}

impl ActionOutcome {
    /// The action could not begin: [`ActionError::Cancelled`] if the pod terminates, so that it is no longer needed.
    pub(crate) fn failed(action: Action, error: ActionError) -> Self {
        Self {
            action,
            created: false,
            pre_stopped: false,
            result: Err(error),
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self.result, Err(ActionError::Cancelled))
    }
}

/// Acts through the runtime. Clones share the limits of image pulls and of refreshes.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeExecutor {
    client: Client,
    pleg: Pleg,
    node: Arc<NodeConfig>,
    objects: Arc<dyn ApiObjects>,
    pulls: Arc<Semaphore>,
    refreshes: Arc<Semaphore>,
    teardowns: Arc<Semaphore>,
    removals: Arc<Semaphore>,
    activity: Activity,
    cgroups: PodCgroups,
    events: Events,
}

impl RuntimeExecutor {
    pub(crate) fn new(client: Client, pleg: Pleg, node: Arc<NodeConfig>) -> Self {
        Self {
            client,
            pleg,
            node,
            objects: Arc::new(NoApiServer),
            pulls: Arc::new(Semaphore::new(images::CONCURRENT_PULLS)),
            refreshes: Arc::new(Semaphore::new(CONCURRENT_REFRESHES)),
            teardowns: Arc::new(Semaphore::new(host::for_each_core(TEARDOWNS_OF_A_CORE))),
            removals: Arc::new(Semaphore::new(host::for_each_core(TEARDOWNS_OF_A_CORE))),
            activity: Activity::default(),
            cgroups: PodCgroups::default(),
            events: Events::default(),
        }
    }

    /// What the runtime does just now.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Where objects of the API come from.
    pub(crate) fn set_objects(&mut self, objects: Arc<dyn ApiObjects>) {
        self.objects = objects;
    }

    /// Where objects of the API come from.
    pub(crate) fn objects(&self) -> &dyn ApiObjects {
        &*self.objects
    }

    /// What the volumes of a pod contain.
    pub(crate) async fn volume_objects(&self, pod: &Pod) -> Result<Objects, ActionError> {
        let fetched = objects::for_volumes(&*self.objects, pod).await;
        fetched.map_err(ActionError::VolumeObjects)
    }

    /// Brings the files of a running pod's volumes up to date, when it is its turn. Files whose content is the same are not written.
    pub(crate) async fn refresh_volumes(
        &self,
        pod: &Pod,
        writes: Arc<Mutex<()>>,
        cancelled: &CancellationToken,
    ) -> Result<(), ActionError> {
        let slot = tokio::select! {
            biased;
            () = cancelled.cancelled() => return Err(ActionError::Cancelled),
            slot = self.refreshes.acquire() => slot,
        };
        // One that has begun ends by itself.
        in_slot(slot, self.refresh_volumes_now(pod, writes, cancelled)).await
    }

    async fn refresh_volumes_now(
        &self,
        pod: &Pod,
        writes: Arc<Mutex<()>>,
        cancelled: &CancellationToken,
    ) -> Result<(), ActionError> {
        let fetched = tokio::select! {
            biased;
            () = cancelled.cancelled() => return Err(ActionError::Cancelled),
            fetched = self.volume_objects(pod) => fetched?,
        };
        let cancelled = cancelled.clone();
        let refresh = move |node: &NodeConfig, pod: &Pod| {
            let _writing = writes.lock();
            if cancelled.is_cancelled() {
                return Ok(());
            }
            volumes::refresh(node, pod, &fetched)
        };
        self.blocking(pod, refresh).await
    }

    /// Carries out an action.
    pub(crate) async fn execute(&self, pod: &Pod, action: Action, context: &ActionContext) -> ActionOutcome {
        let (mut created, mut pre_stopped) = (false, false);
        let _acting = action.is_awaited().then(|| self.activity.begin());
        let stop_request = |id, name, grace| StopRequest {
            pod,
            id,
            name,
            grace,
            context,
        };
        let result = match &action {
            Action::RunSandbox { attempt, replaces } => self.run_sandbox(pod, *attempt, replaces, context).await,
            Action::StopSandbox(id) => self.stop_sandbox(pod, id).await,
            Action::RemoveSandbox(id) | Action::RemoveOldSandbox(id) => self.remove_sandbox(pod, id, context).await,
            Action::RemoveContainer { id, name, attempt } => self.remove_container(pod, id, name, *attempt).await,
            Action::Start {
                name,
                attempt,
                sandbox,
                created: existing,
            } => match pod.spec.container(name) {
                Some(container) => {
                    let start = StartRequest {
                        pod,
                        container,
                        attempt: *attempt,
                        sandbox,
                        context,
                    };
                    self.start(&start, existing.as_ref(), &mut created).await
                }
                None => Ok(()),
            },
            Action::Resize { id, name, shrinks, .. } => match pod.spec.container(name) {
                Some(container) => self.resize(pod, container, id, *shrinks).await,
                None => Ok(()),
            },
            Action::PreStop { id, name, grace } => {
                let hooked = self.pre_stop(&stop_request(id, name, *grace)).await;
                pre_stopped = hooked.is_ok();
                hooked
            }
            Action::Kill {
                id,
                name,
                grace,
                pre_stop,
                ..
            } => {
                let stop = stop_request(id, name, *grace);
                self.kill(&stop, *pre_stop, &mut pre_stopped).await
            }
        };
        ActionOutcome {
            action,
            created,
            pre_stopped,
            result,
        }
    }

    /// The log directory of a pod.
    pub(crate) fn log_directory(&self, pod: &Pod) -> PathBuf {
        self.node.log_directory(pod)
    }

    /// Makes the runtime reopen the log of a container.
    pub(crate) async fn reopen_log(&self, pod: &Pod, name: &str, id: &ContainerId) -> Result<(), pleg_cri::Error> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let request = v1::ReopenContainerLogRequest {
            container_id: id.to_string(),
        };
        self.call(&about, request).await.map(drop)
    }

    /// What a container left about its exit. An error to read it is the message then.
    pub(crate) async fn termination_message(&self, pod: &Pod, name: &str, exited: ExitedContainer) -> String {
        let Some(container) = pod.spec.container(name).cloned() else {
            return String::new();
        };
        let read = self.blocking(pod, move |node, pod| {
            Ok::<_, CleanupError>(termination_messages::read(node, pod, &container, exited))
        });
        match tokio::time::timeout(READ_DEADLINE, read).await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => format!("cannot read the termination message: {error}"),
            Err(_) => format!("cannot read the termination message within {}", seconds(READ_DEADLINE)),
        }
    }

    /// Whether this node admits a pod at all. A pod that is not admitted has failed.
    pub(crate) fn admit(&self, pod: &Pod) -> Result<(), PodFailure> {
        let failed = |error: SysctlError| PodFailure {
            reason: "SysctlForbidden".to_owned(),
            message: format!("Pod was rejected: {error}"),
        };
        requests::sysctls::check(&pod.spec, &self.node.host.allowed_unsafe_sysctls).map_err(failed)
    }

    /// Removes the directories and the cgroup of a terminated pod.
    pub(crate) async fn clean_up(&self, pod: &Pod) -> Result<(), ActionError> {
        self.cgroups.release(&pod.id.uid);
        match self.blocking(pod, cleanup::remove).await {
            Err(ActionError::Interrupted(error)) => return Err(CleanupError::Interrupted(error).into()),
            removed => removed?,
        }
        Ok(self.cgroups.remove_slices(&self.node, &pod.id.uid).await?)
    }

    /// Removes an exited container, and then its log.
    pub(crate) async fn remove_dead(
        &self,
        pod: &Pod,
        id: &ContainerId,
        name: &str,
        attempt: u32,
    ) -> Result<(), ActionError> {
        self.remove_container(pod, id, name, attempt).await
    }

    /// The configuration of the node.
    pub(crate) fn node(&self) -> &Arc<NodeConfig> {
        &self.node
    }

    /// Where it tells what it does.
    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// Tells from now on what it does.
    pub(crate) fn set_events(&mut self, events: Events) {
        self.events = events;
    }

    /// The cgroups of pods.
    pub(crate) fn cgroups(&self) -> &PodCgroups {
        &self.cgroups
    }

    /// The address of a pod that has these IPs. With `hostNetwork` that is the host's, which may have changed since we started.
    pub(crate) fn address(&self, pod: &Pod, ips: &[IpAddr]) -> Option<IpAddr> {
        if pod.spec.host_network {
            return Some(host::address_now(self.node.ips.first().copied()));
        }
        ips.first().copied()
    }

    /// One call. Boxed: its future has room for the largest message, and many pods wait at once.
    async fn call<R: Unary>(&self, about: &Subject, request: R) -> Result<R::Response, pleg_cri::Error> {
        Box::pin(self.client.call_for(about, request)).await
    }

    /// One call with its own deadline.
    async fn call_within<R: Unary>(
        &self,
        about: &Subject,
        request: R,
        within: Duration,
    ) -> Result<R::Response, pleg_cri::Error> {
        Box::pin(self.client.call_within(about, request, within)).await
    }

    /// File operations, on a thread of their own.
    async fn blocking<T, E>(
        &self,
        pod: &Pod,
        work: impl FnOnce(&NodeConfig, &Pod) -> Result<T, E> + Send + 'static,
    ) -> Result<T, ActionError>
    where
        T: Send + 'static,
        E: Into<ActionError> + Send + 'static,
    {
        let (node, pod) = (Arc::clone(&self.node), pod.clone());
        let done = tokio::task::spawn_blocking(move || work(&node, &pod)).await?;
        done.map_err(Into::into)
    }
}

/// Does something in a slot, which is given up if it takes long, so that nothing waits for another's fault.
async fn in_slot<S, T>(slot: S, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(SLOT, &mut work).await {
        return done;
    }
    drop(slot);
    work.await
}

/// The subject of calls about a pod.
fn subject(pod: &Pod) -> Subject {
    Subject {
        pod: Some(pod.id.full_name()),
        ..Subject::NODE
    }
}

/// Stopping or removing an object that does not exist is a success.
fn ignore_not_found<T>(result: Result<T, pleg_cri::Error>) -> Result<(), pleg_cri::Error> {
    match result {
        Err(error) if !error.kind.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Seconds, rounded up, as CRI has timeouts.
fn whole_seconds(duration: Duration) -> i64 {
    let rounded = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(rounded).unwrap_or(i64::MAX)
}
