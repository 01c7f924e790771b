//! What a problem usually means, and what to type next: one text for health, the log, the node condition and `pleg doctor`.
//!
//! Pure: names and texts only, not how a trouble is recognised. The cited issues are upstream reports of it.

mod commands;
mod remedy;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use remedy::About;

/// A known kind of trouble of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Trouble {
    /// The generator has ended, by a panic or by shutdown.
    GeneratorEnded,
    /// No process answers at the runtime socket.
    RuntimeDown,
    /// The runtime accepts connections but answers no call.
    RuntimeStuck,
    /// `ListContainers` hangs while `ListPodSandbox` and `Version` answer.
    LockedContainer,
    /// A list or a status hangs, and no shim does.
    StalledStorage,
    /// A verbose `PodSandboxStatus` takes seconds on one pod and milliseconds on the others.
    HungShim,
    /// A container's process has exited, and the runtime reports the container as running.
    MissedExit,
    /// The runtime reports a container as exited, and its process is alive.
    LeftoverProcess,
    /// The status of one container or sandbox hangs while lists and other statuses answer.
    StuckInspection,
    /// A listed container or sandbox whose status call fails.
    NotInspectable,
    /// The runtime answers a list with an error.
    ListFails,
    /// A list is larger than a kubelet accepts.
    ListOverLimit,
    /// A list is larger than half of what a kubelet accepts.
    ListNearLimit,
    /// Far more dead containers than running ones.
    ManyDeadContainers,
    /// Inspecting every pod one after another takes minutes.
    LongRelist,
    /// Every call takes long.
    RuntimeSlow,
    /// The runtime reports that it is not ready.
    RuntimeNotReady,
    /// The runtime reports that its network is not ready.
    NetworkNotReady,
    /// The runtime refuses or ends its event stream.
    StreamDown,
    /// The event stream is connected and keeps missing changes.
    LossyStream,
    /// Each event goes to one subscriber only.
    SplitEvents,
    /// Containers without a sandbox.
    OrphanContainers,
    /// Objects that Kubernetes did not create, or whose metadata is broken.
    OddObjects,
    /// Every user on the machine can open the runtime socket.
    OpenSocket,
}

impl Trouble {
    /// All of them, the worst first.
    pub const ALL: [Self; 24] = [
        Self::GeneratorEnded,
        Self::RuntimeDown,
        Self::RuntimeStuck,
        Self::LockedContainer,
        Self::StalledStorage,
        Self::HungShim,
        Self::MissedExit,
        Self::LeftoverProcess,
        Self::StuckInspection,
        Self::NotInspectable,
        Self::ListFails,
        Self::ListOverLimit,
        Self::ListNearLimit,
        Self::ManyDeadContainers,
        Self::LongRelist,
        Self::RuntimeSlow,
        Self::RuntimeNotReady,
        Self::NetworkNotReady,
        Self::StreamDown,
        Self::LossyStream,
        Self::SplitEvents,
        Self::OrphanContainers,
        Self::OddObjects,
        Self::OpenSocket,
    ];

    /// The name in JSON, and as the value of a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::GeneratorEnded => "generator-ended",
            Self::RuntimeDown => "runtime-down",
            Self::RuntimeStuck => "runtime-stuck",
            Self::LockedContainer => "locked-container",
            Self::StalledStorage => "stalled-storage",
            Self::HungShim => "hung-shim",
            Self::MissedExit => "missed-exit",
            Self::LeftoverProcess => "leftover-process",
            Self::StuckInspection => "stuck-inspection",
            Self::NotInspectable => "not-inspectable",
            Self::ListFails => "list-fails",
            Self::ListOverLimit => "list-over-limit",
            Self::ListNearLimit => "list-near-limit",
            Self::ManyDeadContainers => "many-dead-containers",
            Self::LongRelist => "long-relist",
            Self::RuntimeSlow => "runtime-slow",
            Self::RuntimeNotReady => "runtime-not-ready",
            Self::NetworkNotReady => "network-not-ready",
            Self::StreamDown => "stream-down",
            Self::LossyStream => "lossy-stream",
            Self::SplitEvents => "split-events",
            Self::OrphanContainers => "orphan-containers",
            Self::OddObjects => "odd-objects",
            Self::OpenSocket => "open-socket",
        }
    }

    /// Reads a name back.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|trouble| trouble.name() == name)
    }

    /// What it usually means, in one sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::GeneratorEnded => {
                "A bug in pleg made its generator panic, or its process is shutting down; the runtime and its \
                 containers are not affected."
            }
            Self::RuntimeDown => "The runtime is not running, or it is starting and does not serve its socket yet.",
            Self::RuntimeStuck => {
                "The runtime process is stopped, deadlocked or blocked on disk I/O: it accepts connections but \
                 answers no call."
            }
            Self::LockedContainer => {
                "One container's lock is held inside the runtime, by a call into a hung shim or, if every shim answers, \
                 into storage that does not, and every list of containers waits for it; all other containers still \
                 answer status calls by id."
            }
            Self::StalledStorage => {
                "No shim hangs, so the runtime itself is blocked: by a full, frozen or failing disk, or by \
                 unresponsive network storage."
            }
            Self::HungShim => {
                "The pod's shim is stopped or stuck in the kernel: the pod stays listed as running whatever its \
                 processes do, and stop, remove and exec hang."
            }
            Self::MissedExit => {
                "The shim or monitor of the container is stopped or stuck, so the runtime does not learn that the \
                 container has died: a kubelet keeps it as running, does not restart it, and sends it traffic."
            }
            Self::LeftoverProcess => {
                "The shim died or lost track of the container: its process goes on with its memory, files and ports, \
                 beside whatever was started in its place."
            }
            Self::StuckInspection => {
                "The runtime is blocked on something that only this container uses: a volume on a dead NFS server, \
                 its storage, or its shim; a kubelet is blocked too, for 2 minutes per call."
            }
            Self::NotInspectable => {
                "The runtime still lists the object but has lost its state, as happens after an unclean shutdown; \
                 a kubelet gets the same error on every relist."
            }
            Self::ListFails => {
                "The runtime cannot list what it runs, so every relist of a kubelet fails too and the node becomes \
                 NotReady."
            }
            Self::ListOverLimit => {
                "A list is larger than the 16 MiB a kubelet accepts, so every relist of the kubelet fails and the \
                 node becomes NotReady."
            }
            Self::ListNearLimit => {
                "A list is larger than half of the 16 MiB a kubelet accepts; beyond 16 MiB every relist of the \
                 kubelet fails."
            }
            Self::ManyDeadContainers => {
                "Dead containers pile up: a crash loop creates them faster than garbage collection removes them, \
                 and every relist transfers them all."
            }
            Self::LongRelist => {
                "A kubelet inspects changed pods one call after another, so when many change at once its relist \
                 takes longer than the threshold of 3 minutes."
            }
            Self::RuntimeSlow => {
                "Every call is slow, so no single pod is the cause: the machine is short of CPU, memory or disk \
                 bandwidth, or too many clients call the runtime at once."
            }
            Self::RuntimeNotReady => "The runtime itself reports that it cannot run containers.",
            Self::NetworkNotReady => {
                "The runtime has no usable network configuration: pods with hostNetwork work, other pods cannot \
                 start."
            }
            Self::StreamDown => {
                "The runtime refuses or ends its event stream, so changes are found by relisting only, within one \
                 relist period."
            }
            Self::LossyStream => {
                "The runtime drops events, sends none for some changes, or splits them among its subscribers, so \
                 changes are found by relisting, which stays frequent."
            }
            Self::SplitEvents => {
                "This runtime delivers each event to one subscriber only, so a second subscriber takes events away \
                 from the first."
            }
            Self::OrphanContainers => {
                "A sandbox was removed without its containers, as happens after an unclean shutdown; nothing will \
                 garbage-collect them."
            }
            Self::OddObjects => {
                "The runtime holds objects that Kubernetes did not create, or whose metadata is broken; they do no \
                 harm, but no kubelet will clean them up."
            }
            Self::OpenSocket => "Any user who can open the runtime socket can run anything as root on this machine.",
        }
    }

    /// Upstream issues that report it, as `project#number`.
    pub fn seen_in(self) -> &'static [&'static str] {
        match self {
            Self::LockedContainer => &[
                "containerd#9770",
                "containerd#12680",
                "containerd#10583",
                "Azure/AKS#4507",
            ],
            Self::HungShim => &[
                "containerd#8167",
                "containerd#2438",
                "containerd#3529",
                "containerd#13814",
                "cri-o#9406",
            ],
            Self::MissedExit => &["containerd#8167", "cri-o#9406"],
            Self::StalledStorage => &["kubernetes#94829"],
            Self::StuckInspection => &[
                "kubernetes#94829",
                "kubernetes#97362",
                "kubernetes#98044",
                "cri-o#2584",
                "amazon-eks-ami#1228",
            ],
            Self::NotInspectable => &["moby#44300"],
            Self::ListOverLimit | Self::ListNearLimit => &["kubernetes#131407", "talos#10801"],
            Self::ManyDeadContainers => &["kubernetes#64507", "kubernetes#45419"],
            Self::LongRelist => &["kubernetes#93886", "kubernetes#139788"],
            Self::StreamDown => &["kubernetes#129827"],
            Self::LossyStream => &["cri-o#6603", "containerd#7318"],
            Self::SplitEvents => &["containerd#7318", "containerd#8892", "cri-o#7210"],
            Self::GeneratorEnded
            | Self::RuntimeDown
            | Self::RuntimeStuck
            | Self::RuntimeSlow
            | Self::LeftoverProcess
            | Self::ListFails
            | Self::RuntimeNotReady
            | Self::NetworkNotReady
            | Self::OrphanContainers
            | Self::OddObjects
            | Self::OpenSocket => &[],
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Trouble {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Trouble {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || serde::de::Error::custom(format_args!("unknown trouble {}", pleg_cri::error::quoted(&name)));
        Self::parse(&name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer as _;
    use serde::de::value::{Error, StrDeserializer};

    use super::*;

    /// A `Formatter` is the smallest serializer there is.
    struct Shown(Trouble);
    impl std::fmt::Display for Shown {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.serialize(f)
        }
    }

    #[test]
    fn every_trouble_has_a_name_and_a_sentence_of_its_own() {
        for (place, trouble) in Trouble::ALL.into_iter().enumerate() {
            let name = trouble.name();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
            assert_eq!(Trouble::parse(name), Some(trouble));
            let means = trouble.meaning();
            assert!(
                means.ends_with('.') && !means.contains(". "),
                "{trouble}: one sentence: {means}"
            );
            // `ALL` is in the order of the enum, so it has each exactly once.
            assert_eq!(trouble as usize, place);
        }
        assert_eq!(Trouble::parse("nope"), None);
    }

    /// The causes that the field has reported most; health and doctor name each by one of these.
    #[test]
    fn the_known_causes_are_cited() {
        for issue in [
            "kubernetes#94829",
            "kubernetes#97362",
            "kubernetes#98044",
            "containerd#9770",
            "containerd#8167",
            "cri-o#2584",
            "kubernetes#64507",
            "kubernetes#131407",
            "kubernetes#93886",
            "moby#44300",
        ] {
            let cited = Trouble::ALL.iter().any(|trouble| trouble.seen_in().contains(&issue));
            assert!(cited, "{issue}");
        }
    }

    #[test]
    fn it_is_written_and_read_by_name() {
        let read = |name: &'static str| {
            let text: StrDeserializer<'_, Error> = name.into_deserializer();
            Trouble::deserialize(text)
        };
        assert_eq!(read("hung-shim"), Ok(Trouble::HungShim));
        assert!(read("HungShim").is_err());
        assert_eq!(Shown(Trouble::HungShim).to_string(), "hung-shim");
    }
}
