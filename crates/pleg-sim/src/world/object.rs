//! Sandboxes and containers as the simulated runtime holds them, and their CRI statuses.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use pleg_cri::v1;

use super::encode::Variants;
use super::odd::Quirk;
use super::process::Process;
use super::schedule::DueKey;
use super::script::Script;
use super::table::Identified;

/// Labels or annotations, in the order they were given.
pub(crate) type Pairs = Vec<(String, String)>;

/// A pod sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: Arc<str>,
    /// Key of its pod in the world: the UID, or `namespace/name` where there is none.
    pub(crate) pod: Arc<str>,
    pub(crate) metadata: v1::PodSandboxMetadata,
    pub(crate) ready: bool,
    pub(crate) created_at: i64,
    pub(crate) ip: String,
    pub(crate) host_network: bool,
    pub(crate) handler: String,
    /// Where the logs of its containers are.
    pub(crate) log_directory: String,
    pub(crate) labels: Pairs,
    pub(crate) annotations: Pairs,
    pub(crate) quirk: Option<Quirk>,
    pub(crate) encoded: Variants,
    /// Its encoded status, once an event has carried it.
    pub(crate) told: OnceCell<Box<[u8]>>,
    /// Its share of the bytes of the world.
    pub(crate) size: usize,
}

/// A container.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: Arc<str>,
    pub(crate) sandbox: Arc<str>,
    /// The name and attempt that are reserved while it exists.
    pub(crate) reserved: String,
    /// Key of its pod in the world.
    pub(crate) pod: Arc<str>,
    pub(crate) metadata: v1::ContainerMetadata,
    pub(crate) state: v1::ContainerState,
    pub(crate) created_at: i64,
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    pub(crate) exit_code: i32,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) image: String,
    pub(crate) image_ref: String,
    pub(crate) labels: Pairs,
    pub(crate) annotations: Pairs,
    /// As runtimes report it: below the log directory of the sandbox.
    pub(crate) log_path: String,
    /// Its log is a real file: it was created by a client.
    pub(crate) logs: bool,
    pub(crate) mounts: Vec<v1::Mount>,
    pub(crate) resources: Option<v1::LinuxContainerResources>,
    pub(crate) script: Script,
    /// Its process, while it runs, if containers have any.
    pub(crate) process: Option<Process>,
    /// Its entry in the schedule, while it is to end by itself.
    pub(crate) due: Option<DueKey>,
    pub(crate) quirk: Option<Quirk>,
    pub(crate) encoded: Variants,
    /// Its encoded status, once an event has carried it.
    pub(crate) told: OnceCell<Box<[u8]>>,
    /// Its share of the bytes of the world.
    pub(crate) size: usize,
}

impl Identified for Sandbox {
    fn id(&self) -> &Arc<str> {
        &self.id
    }
}

impl Identified for Container {
    fn id(&self) -> &Arc<str> {
        &self.id
    }
}

/// True if `pairs` hold all of `selector`.
pub(crate) fn selected(pairs: &Pairs, selector: &HashMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| pairs.iter().any(|(k, v)| k == key && v == value))
}

/// Where a log is: below the directory of its sandbox.
pub(crate) fn log_path(directory: &str, path: &str) -> String {
    if directory.is_empty() || path.is_empty() {
        return path.to_owned();
    }
    Path::new(directory).join(path).to_string_lossy().into_owned()
}

pub(crate) fn map(pairs: &Pairs) -> HashMap<String, String> {
    pairs.iter().cloned().collect()
}

impl Sandbox {
    /// The enum value on the wire, with its quirk.
    pub(crate) fn state(&self) -> i32 {
        match self.quirk {
            Some(Quirk::UnknownState) => super::odd::UNKNOWN_STATE,
            _ => i32::from(!self.ready),
        }
    }

    pub(crate) fn created(&self) -> i64 {
        self.quirk.map_or(self.created_at, |quirk| quirk.time(self.created_at))
    }

    pub(crate) fn status(&self) -> v1::PodSandboxStatus {
        let network = if self.host_network {
            v1::NamespaceMode::Node
        } else {
            v1::NamespaceMode::Pod
        };
        v1::PodSandboxStatus {
            id: self.id.to_string(),
            metadata: (self.quirk != Some(Quirk::NoMetadata)).then(|| self.metadata.clone()),
            state: self.state(),
            created_at: self.created(),
            // A stopped sandbox has lost its addresses, as on containerd.
            network: Some(v1::PodSandboxNetworkStatus {
                ip: if self.ready { self.ip.clone() } else { String::new() },
                additional_ips: Vec::new(),
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace {
                    options: Some(v1::NamespaceOption {
                        network: network.into(),
                        pid: v1::NamespaceMode::Container.into(),
                        ipc: v1::NamespaceMode::Pod.into(),
                        target_id: String::new(),
                    }),
                }),
            }),
            labels: map(&self.labels),
            annotations: map(&self.annotations),
            runtime_handler: self.handler.clone(),
        }
    }

    pub(crate) fn matches(&self, filter: &v1::PodSandboxFilter) -> bool {
        (filter.id.is_empty() || *filter.id == *self.id)
            && filter.state.is_none_or(|value| value.state == self.state())
            && selected(&self.labels, &filter.label_selector)
    }
}

impl Container {
    /// The enum value on the wire, with its quirk.
    pub(crate) fn wire_state(&self) -> i32 {
        match self.quirk {
            Some(Quirk::UnknownState) => super::odd::UNKNOWN_STATE,
            _ => self.state.into(),
        }
    }

    pub(crate) fn created(&self) -> i64 {
        self.quirk.map_or(self.created_at, |quirk| quirk.time(self.created_at))
    }

    pub(crate) fn running(&self) -> bool {
        self.state == v1::ContainerState::ContainerRunning
    }

    pub(crate) fn exited(&self) -> bool {
        self.state == v1::ContainerState::ContainerExited
    }

    pub(crate) fn status(&self) -> v1::ContainerStatus {
        v1::ContainerStatus {
            id: self.id.to_string(),
            metadata: (self.quirk != Some(Quirk::NoMetadata)).then(|| self.metadata.clone()),
            state: self.wire_state(),
            created_at: self.created(),
            started_at: self.quirk.map_or(self.started_at, |quirk| quirk.time(self.started_at)),
            finished_at: self
                .quirk
                .map_or(self.finished_at, |quirk| quirk.time(self.finished_at)),
            exit_code: self.exit_code,
            image: Some(v1::ImageSpec {
                image: self.image.clone(),
                ..Default::default()
            }),
            image_ref: self.image_ref.clone(),
            reason: self.reason.to_owned(),
            message: self.message.clone(),
            labels: map(&self.labels),
            annotations: map(&self.annotations),
            mounts: self.mounts.clone(),
            log_path: self.log_path.clone(),
            resources: self
                .resources
                .clone()
                .map(|linux| v1::ContainerResources { linux: Some(linux) }),
            image_id: self.image_ref.clone(),
        }
    }

    pub(crate) fn matches(&self, filter: &v1::ContainerFilter) -> bool {
        (filter.id.is_empty() || *filter.id == *self.id)
            && (filter.pod_sandbox_id.is_empty() || *filter.pod_sandbox_id == *self.sandbox)
            && filter.state.is_none_or(|value| value.state == self.wire_state())
            && selected(&self.labels, &filter.label_selector)
    }
}
