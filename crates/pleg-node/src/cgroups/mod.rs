//! Cgroups of pods, laid out as a kubelet does: `kubepods/burstable/podUID`, `kubepods/besteffort/podUID`, and guaranteed pods directly
//! below `kubepods`, all below the node's cgroup root.
//!
//! In: a pod that is about to get its sandbox, and one that has left. Out: its cgroup with the limits of the whole pod, and the weights of the
//! classes against each other. [`PodCgroups`] owns one table: the CPU requests of burstable pods, whose sum is the weight of their class.
//! Where cgroups cannot be written, pods run without pod-level limits, and that is logged once.
//!
//! | module | job |
//! |---|---|
//! | [`limits`] | shares, quota and memory limit of a pod: pure |
//! | [`names`] | paths and systemd slices: pure |
//! | `files` | writes and reads the files of versions 1 and 2: blocking |
//! | `systemd` | the same through `systemctl`, with the systemd driver |
//! | `remove` | removes empty cgroups: blocking |

pub(crate) mod files;
pub(crate) mod limits;
pub(crate) mod names;
pub(crate) mod remove;

mod systemd;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pleg::PodUid;
use tracing::warn;

use self::files::Missing;
use self::limits::{CgroupLimits, MIN_SHARES};
use crate::executor::requests::{Cgroups, NodeConfig};
use crate::manifest::Pod;
use crate::status::{QosClass, qos_class};

/// Why the cgroup of a pod cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    /// A file cannot be written.
    #[error("cannot set up cgroup {cgroup}: cannot write {}", .path.display())]
    Write {
        /// The cgroup.
        cgroup: String,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `systemctl` failed.
    #[error(transparent)]
    Systemd(#[from] systemd::SystemdError),
}

impl CgroupError {
    /// Whether cgroups are not ours to write: not mounted, read-only, or without permission.
    fn is_no_access(&self) -> bool {
        match self {
            Self::Write { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ),
            Self::Systemd(error) => error.is_no_access(),
        }
    }
}

/// The cgroups of a node's pods. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodCgroups {
    /// The CPU requests of burstable pods that run or start, in thousandths of a core. Held for a change; never across an await.
    burstable: Arc<Mutex<BTreeMap<PodUid, i64>>>,
    /// Held while the classes are computed and written: the last one to write must have counted all pods.
    classes: Arc<tokio::sync::Mutex<()>>,
    /// It was logged that cgroups cannot be written, or that a controller is missing.
    logged: Arc<[AtomicBool; 2]>,
}

impl PodCgroups {
    /// Creates the cgroup of a pod, with its limits, and those above it.
    pub(crate) async fn set_up(&self, node: &Arc<NodeConfig>, pod: &Pod) -> Result<(), CgroupError> {
        if !node.cgroups_per_qos {
            return Ok(());
        }
        self.count(pod);
        let classes = self.classes.lock().await;
        self.write(node, self.wanted_classes(node)).await?;
        drop(classes);
        self.write(node, vec![wanted_pod(node, pod)]).await
    }

    /// Makes cgroups what they should be.
    async fn write(&self, node: &Arc<NodeConfig>, wanted: Vec<Wanted>) -> Result<(), CgroupError> {
        let set = match node.cgroups {
            Cgroups::Path => {
                let node = Arc::clone(node);
                let write = move || files::write(&node.cgroup_mount, &wanted);
                match tokio::task::spawn_blocking(write).await {
                    Ok(written) => written,
                    // We shut down.
                    Err(_) => return Ok(()),
                }
            }
            Cgroups::Systemd => systemd::set(&node.systemctl, node.cgroup_mount.clone(), &wanted)
                .await
                .map(|()| Missing::default())
                .map_err(Into::into),
        };
        match set {
            Ok(missing) => {
                self.log_missing(&missing);
                Ok(())
            }
            Err(error) if error.is_no_access() => {
                self.log_no_access(&error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The cgroups of the classes. The weight of the burstable class follows its pods.
    fn wanted_classes(&self, node: &NodeConfig) -> Vec<Wanted> {
        let burstable = limits::shares(self.burstable.lock().values().sum());
        let class = |(name, cpu_shares)| Wanted {
            levels: names::class(&node.cgroup_root, name),
            limits: CgroupLimits {
                cpu_shares,
                ..CgroupLimits::default()
            },
        };
        let classes = [(QosClass::Burstable, burstable), (QosClass::BestEffort, MIN_SHARES)];
        classes.map(class).into()
    }

    /// Counts a burstable pod that runs or starts.
    pub(crate) fn count(&self, pod: &Pod) {
        if qos_class(pod) == QosClass::Burstable {
            let request = limits::cpu_request(&pod.spec);
            self.burstable.lock().insert(pod.id.uid.clone(), request);
        }
    }

    /// The pod does not run any more.
    pub(crate) fn release(&self, uid: &PodUid) {
        self.burstable.lock().remove(uid);
    }

    /// Stops the slices of a pod that has left. Cgroups of the other driver are removed with its directories.
    pub(crate) async fn remove_slices(&self, node: &NodeConfig, uid: &PodUid) -> Result<(), CgroupError> {
        if node.cgroups != Cgroups::Systemd || !node.cgroups_per_qos {
            return Ok(());
        }
        let slices = names::everywhere(&node.cgroup_root, uid).map(|levels| names::slice(&levels));
        match systemd::remove(&node.systemctl, &slices).await {
            Err(error) if !error.is_no_access() => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn log_no_access(&self, error: &CgroupError) {
        if !self.logged[0].swap(true, Ordering::Relaxed) {
            let error = crate::error::with_causes(error);
            warn!("pods run without pod-level limits, because cgroups cannot be written: {error}");
        }
    }

    fn log_missing(&self, missing: &Missing) {
        if !missing.0.is_empty() && !self.logged[1].swap(true, Ordering::Relaxed) {
            let controllers: Vec<&str> = missing.0.iter().copied().collect();
            warn!(
                "pod-level limits are incomplete: this machine's cgroups have no {} controller",
                controllers.join(" and no ")
            );
        }
    }
}

/// The cgroup of a pod, with its limits.
fn wanted_pod(node: &NodeConfig, pod: &Pod) -> Wanted {
    Wanted {
        levels: names::pod(&node.cgroup_root, qos_class(pod), &pod.id.uid),
        limits: limits::of(pod),
    }
}

/// A cgroup, and the limits that it has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    levels: Vec<String>,
    limits: CgroupLimits,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::testing::{node, pod_named};

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn burstable(name: &str, cpu: &str) -> Arc<Pod> {
        let resources = format!("requests: {{cpu: {cpu}}}, limits: {{cpu: 1, memory: 1Gi}}");
        pod_named(
            name,
            &format!("containers: [{{name: a, image: i, resources: {{{resources}}}}}]"),
        )
    }

    #[tokio::test]
    async fn the_weight_of_the_burstable_class_is_that_of_its_pods() {
        let dir = tempfile::tempdir().unwrap();
        let node = Arc::new(node(dir.path()));
        fs::create_dir_all(node.cgroup_mount.join("cpu")).unwrap();
        fs::create_dir_all(node.cgroup_mount.join("memory")).unwrap();
        let cgroups = PodCgroups::default();
        let shares = || read(&node.cgroup_mount.join("cpu/pleg/kubepods/burstable/cpu.shares"));
        let (one, two) = (burstable("one", "500m"), burstable("two", "250m"));
        cgroups.set_up(&node, &one).await.unwrap();
        assert_eq!(shares(), "512");
        cgroups.set_up(&node, &two).await.unwrap();
        assert_eq!(shares(), "768");
        let best_effort = node.cgroup_mount.join("cpu/pleg/kubepods/besteffort/cpu.shares");
        assert_eq!(read(&best_effort), "2");
        cgroups.release(&one.id.uid);
        cgroups.set_up(&node, &two).await.unwrap();
        assert_eq!(shares(), "256");
        let pod = format!("pleg/kubepods/burstable/pod{}", two.id.uid);
        let memory = node.cgroup_mount.join("memory").join(pod);
        assert_eq!(read(&memory.join("memory.limit_in_bytes")), (1 << 30).to_string());
    }

    /// A pod that was counted late must not be overwritten by one that was counted early.
    #[tokio::test]
    async fn pods_that_start_together_all_count() {
        let dir = tempfile::tempdir().unwrap();
        let node = Arc::new(node(dir.path()));
        fs::create_dir_all(node.cgroup_mount.join("cpu")).unwrap();
        let shares = node.cgroup_mount.join("cpu/pleg/kubepods/burstable/cpu.shares");
        let pods: Vec<_> = (0..8).map(|n| burstable(&format!("pod{n}"), "125m")).collect();
        for _ in 0..50 {
            let cgroups = PodCgroups::default();
            futures_util::future::join_all(pods.iter().map(|pod| cgroups.set_up(&node, pod))).await;
            assert_eq!(read(&shares), "1024");
        }
    }

    #[tokio::test]
    async fn pods_without_cgroups_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let node = Arc::new(NodeConfig {
            cgroups_per_qos: false,
            ..node(dir.path())
        });
        fs::create_dir_all(node.cgroup_mount.join("cpu")).unwrap();
        PodCgroups::default()
            .set_up(&node, &burstable("one", "1"))
            .await
            .unwrap();
        assert!(!node.cgroup_mount.join("cpu/pleg").exists());
    }

    /// Without write access everything else works.
    #[tokio::test]
    async fn no_cgroups_are_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let node = Arc::new(node(dir.path()));
        let cgroups = PodCgroups::default();
        cgroups.set_up(&node, &burstable("one", "1")).await.unwrap();
        assert!(!node.cgroup_mount.exists());
        assert!(cgroups.logged[0].load(Ordering::Relaxed));
    }
}
