//! Why an action failed. Each error has a reason, the word that Kubernetes has for it in a pod status.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use pleg_cri::ErrorKind;
use pleg_cri::duration::seconds;

use super::cleanup::CleanupError;
use super::hosts_file::HostsFileError;
use super::objects::ObjectsError;
use super::requests::{EnvError, HostnameTooLong, RunAsNonRootError};
use super::volumes::VolumeError;
use crate::cgroups::CgroupError;
use crate::net::NetError;

/// Why an action failed. A failed call may still have taken effect, in particular one that timed out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActionError {
    /// The pod terminates or has failed, so the action is no longer needed; or another one with a shorter grace period replaces it.
    #[error("the pod is terminating")]
    Cancelled,
    /// A CRI call failed.
    #[error(transparent)]
    Call(CallError),
    /// The image is missing and must not be pulled.
    #[error("container image {0} is not present and imagePullPolicy is Never")]
    ImageNeverPull(String),
    /// The container would run as root.
    #[error(transparent)]
    RunAsNonRoot(#[from] RunAsNonRootError),
    /// The post-start hook failed: the container has to be killed.
    #[error(transparent)]
    PostStartHook(#[from] HookError),
    /// The container whose processes an ephemeral container is to see was never created.
    #[error("target container {target} of ephemeral container {container} does not exist")]
    NoTarget {
        /// The ephemeral container.
        container: String,
        /// Its `targetContainerName`.
        target: String,
    },
    /// The environment of the container cannot be had.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// Objects of the API that its environment refers to cannot be had.
    #[error(transparent)]
    EnvironmentObjects(ObjectsError),
    /// Objects of the API that volumes refer to cannot be had.
    #[error(transparent)]
    VolumeObjects(ObjectsError),
    /// A directory or volume of the pod cannot be prepared.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The host name of the pod is too long.
    #[error(transparent)]
    Hostname(#[from] HostnameTooLong),
    /// What the container mounts cannot be prepared.
    #[error(transparent)]
    ContainerFiles(#[from] ContainerFilesError),
    /// The termination message of a removed container cannot be removed.
    #[error("cannot remove the termination message of container {container}")]
    RemoveTerminationMessage {
        /// The container.
        container: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The cgroup of the pod cannot be set up or removed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Something of the pod cannot be removed from the host.
    #[error(transparent)]
    Cleanup(#[from] CleanupError),
    /// The log of a removed container cannot be removed.
    #[error("cannot remove {}", .path.display())]
    RemoveLog {
        /// The log.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A pre-stop hook could not be run.
    #[error("pre-stop hook could not be run")]
    PreStopHook(#[source] HookError),
    /// The memory limit that a running container is to have is below what it uses.
    #[error("cannot set the memory limit of container {container} to {limit} bytes: it uses {used}")]
    LimitBelowUsage {
        /// The container.
        container: String,
        /// In bytes.
        limit: u64,
        /// In bytes.
        used: u64,
    },
    /// A thread for file operations panicked, or we shut down.
    #[error("file operations were interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl ActionError {
    /// The reason in a pod status, and in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Cancelled => "Cancelled",
            Self::Call(error) => error.reason,
            Self::ImageNeverPull(_) => "ErrImageNeverPull",
            Self::RunAsNonRoot(_) | Self::NoTarget { .. } | Self::Environment(_) | Self::EnvironmentObjects(_) => {
                "CreateContainerConfigError"
            }
            Self::PostStartHook(_) => "PostStartHookError",
            Self::Hostname(_) => "CreatePodSandboxError",
            Self::ContainerFiles(error) => error.reason(),
            Self::Volume(error) => error.reason(),
            Self::PreStopHook(_) => "PreStopHookError",
            Self::LimitBelowUsage { .. } => "ResizeError",
            Self::VolumeObjects(_) | Self::Interrupted(_) => "FailedMount",
            Self::Cleanup(_) => "FailedCleanup",
            Self::Cgroup(_) => "FailedCreatePodContainer",
            Self::RemoveLog { .. } | Self::RemoveTerminationMessage { .. } => "RemoveContainerError",
        }
    }
}

/// Why something that a container mounts cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerFilesError {
    /// A volume, or a part of it.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The hosts file of the pod.
    #[error(transparent)]
    HostsFile(#[from] HostsFileError),
    /// The file for its termination message.
    #[error("cannot create the file for the termination message of container {container}")]
    TerminationMessage {
        /// The container.
        container: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ContainerFilesError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Volume(error) => error.reason(),
            Self::HostsFile(_) | Self::TerminationMessage { .. } => "CreateContainerConfigError",
        }
    }
}

/// A CRI call of an action that failed.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub(crate) struct CallError {
    /// The reason in a pod status.
    reason: &'static str,
    source: pleg_cri::Error,
}

impl CallError {
    /// The reason in a pod status.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }

    /// Why the call failed.
    pub(crate) fn kind(&self) -> &ErrorKind {
        &self.source.kind
    }

    /// The id of the object of the call, if it has one.
    pub(crate) fn subject_id(&self) -> Option<&str> {
        self.source.subject.id.as_deref()
    }
}

/// For `map_err`: a call failed, and this is the reason in a pod status.
pub(crate) fn call_failed(reason: &'static str) -> impl Fn(pleg_cri::Error) -> ActionError {
    move |source| ActionError::Call(CallError { reason, source })
}

/// Why a command in a container failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    /// It exited with another code than 0.
    #[error("`{command}` exited with {code}: {output}")]
    Exited {
        /// The command.
        command: String,
        /// Its exit code.
        code: i32,
        /// The beginning of its output.
        output: String,
    },
    /// It did not exit in time, and the runtime ended it.
    #[error("`{command}` did not exit within {}", seconds(*.within))]
    TimedOut {
        /// The command.
        command: String,
        /// Its timeout.
        within: Duration,
    },
    /// It could not be run, or how it ended is not known. That says nothing about the container.
    #[error(transparent)]
    Call(#[from] pleg_cri::Error),
}

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    /// Its command failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// Its HTTP request failed.
    #[error(transparent)]
    Http(#[from] NetError),
    /// It took too long.
    #[error("no answer within {}", seconds(*.0))]
    Timeout(Duration),
}

impl HookError {
    /// The runtime is away or does not answer, so the hook is not at fault. An answer of the runtime, such as that there is no such command,
    /// is a failure of the hook.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Exec(ExecError::Call(error)) => error.kind.is_unreachable() || error.kind.is_deadline(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cannot be removed was mounted before: another reason.
    #[test]
    fn a_clean_up_that_fails_is_no_failed_mount() {
        let error = CleanupError::Mounted {
            path: "/var/lib/pleg/pods/x".into(),
            mount: "/var/lib/pleg/pods/x/disk".into(),
        };
        assert_eq!(ActionError::from(error).reason(), "FailedCleanup");
    }

    /// An answer of the runtime is about the hook; no answer is not.
    #[test]
    fn an_outage_is_not_the_fault_of_a_hook() {
        let kind = |kind| {
            let error = pleg_cri::Error {
                rpc: pleg_cri::Rpc::ExecSync,
                subject: pleg_cri::Subject::NODE,
                endpoint: pleg_cri::Endpoint::unix("/run/x.sock"),
                kind,
            };
            HookError::from(ExecError::from(error)).is_outage()
        };
        let status = |code| pleg_cri::ErrorKind::Status {
            code,
            message: "no".to_owned(),
        };
        assert!(kind(pleg_cri::ErrorKind::Deadline(Duration::from_secs(1))));
        assert!(kind(pleg_cri::ErrorKind::Unreachable("gone".to_owned())));
        assert!(kind(status("UNAVAILABLE")));
        assert!(!kind(status("UNKNOWN")), "no such command");
        assert!(!kind(pleg_cri::ErrorKind::NotFound("no container".to_owned())));
        assert!(!HookError::Timeout(Duration::from_secs(1)).is_outage());
    }
}
