//! What to type next: commands an operator has on a node, filled with what is known.

use super::Trouble;
use super::commands::Commands;

/// What is known about the place of a trouble. What is unknown is left out of the commands.
#[derive(Debug, Clone, Copy, Default)]
pub struct About<'a> {
    /// The runtime's endpoint, as in `unix:///run/containerd/containerd.sock`.
    pub endpoint: Option<&'a str>,
    /// The pod, as `namespace/name`.
    pub pod: Option<&'a str>,
    /// The container's name.
    pub container: Option<&'a str>,
    /// The runtime's id of the container.
    pub id: Option<&'a str>,
    /// The runtime's id of the pod's sandbox.
    pub sandbox: Option<&'a str>,
    /// The process of the pod's shim.
    pub shim_pid: Option<u32>,
}

const GENERATOR_ENDED: &str = "Why: `journalctl -u pleg -n 100`. Repair: `systemctl restart pleg`; a panic is a bug, so please \
                               report it with that log.";

impl Trouble {
    /// What to type next. Commands stand in backticks; one that changes something comes after the word "repair".
    pub fn remedy(self, about: &About<'_>) -> String {
        let commands = Commands::of(about);
        match self {
            Self::GeneratorEnded => GENERATOR_ENDED.to_owned(),
            Self::RuntimeDown => commands.runtime_down(),
            Self::RuntimeStuck => commands.runtime_stuck(),
            Self::LockedContainer => commands.locked_container(),
            Self::HungShim => commands.shim(),
            Self::StalledStorage => commands.stalled_storage(),
            Self::MissedExit => commands.missed_exit(),
            Self::LeftoverProcess => commands.leftover_process(),
            Self::StuckInspection => commands.stuck_inspection(),
            Self::NotInspectable => commands.not_inspectable(),
            Self::ListFails => commands.list_fails(),
            Self::ListOverLimit | Self::ListNearLimit => commands.list_size(),
            Self::ManyDeadContainers => commands.many_dead(),
            Self::LongRelist => commands.long_relist(),
            Self::RuntimeSlow => commands.runtime_slow(),
            Self::RuntimeNotReady => commands.runtime_not_ready(),
            Self::NetworkNotReady => commands.network_not_ready(),
            Self::StreamDown => commands.stream_down(),
            Self::LossyStream => commands.lossy_stream(),
            Self::SplitEvents => commands.split_events(),
            Self::OrphanContainers => commands.orphan_containers(),
            Self::OddObjects => commands.odd_objects(),
            Self::OpenSocket => commands.open_socket(),
        }
    }
}

/// The remedies, one for each trouble.
impl Commands<'_> {
    fn runtime_down(&self) -> String {
        format!(
            "Is it running? `systemctl status {0}`, and why not: `journalctl -u {0} -n 50`.",
            self.unit
        )
    }

    fn runtime_stuck(&self) -> String {
        format!(
            "Process state: `ps -o pid,stat,wchan:32,args -C {}` (T: stopped, D: blocked on I/O).{}",
            self.process,
            self.stacks()
        )
    }

    fn locked_container(&self) -> String {
        format!("{}{}", self.shim(), self.stacks())
    }

    fn stalled_storage(&self) -> String {
        format!(
            "Is the disk full or unresponsive? `timeout 5 df -h /var/lib/{}`, `mount -t nfs,nfs4`, `dmesg | \
                 tail -n 50`.{}",
            self.state_dir,
            self.stacks()
        )
    }

    fn missed_exit(&self) -> String {
        format!("{} What the runtime says: {}.", self.shim(), self.status())
    }

    fn leftover_process(&self) -> String {
        format!(
            "Which processes are left: `grep -ls {} /proc/[0-9]*/cgroup`. What the runtime says: {}. Repair: end them \
             with `kill`, by the process id that is named here, once nobody needs them.",
            self.id.unwrap_or("CONTAINER_ID"),
            self.status()
        )
    }

    fn stuck_inspection(&self) -> String {
        format!(
            "Ask again: {}.{} Its volumes: `mount -t nfs,nfs4`, `dmesg | tail -n 50`. Its shim: {}.{}",
            self.status(),
            self.known(),
            self.find_shim(),
            self.stacks()
        )
    }

    fn not_inspectable(&self) -> String {
        format!(
            "Full error: {}; runtime log: `journalctl -u {} -n 100`. Repair: {}a restart of the \
                 runtime.",
            self.status(),
            self.unit,
            match (self.id, self.sandbox) {
                (Some(id), _) => format!("`{} rm -f {id}`, else ", self.crictl),
                (None, Some(sandbox)) => format!("`{} rmp -f {sandbox}`, else ", self.crictl),
                (None, None) => String::new(),
            }
        )
    }

    fn list_fails(&self) -> String {
        format!(
            "Full error: `{0} pods`, `{0} ps -a`; runtime log: `journalctl -u {1} -n 100`.",
            self.crictl, self.unit
        )
    }

    fn list_size(&self) -> String {
        format!(
            "Number and size: `{0} ps -a -q | wc -l`, `{0} ps -a -o json | wc -c`. {1} If the \
                 objects are few but large, they have large labels or annotations.",
            self.crictl,
            self.dead()
        )
    }

    fn many_dead(&self) -> String {
        format!("{} Then fix the crash loop that creates them.", self.dead())
    }

    fn long_relist(&self) -> String {
        format!(
            "Which pods change so often: {}. How long a relist takes: {}. Fewer pods or fewer dead containers on \
                 this node help.",
            self.pleg("watch --no-initial"),
            self.pleg("bench")
        )
    }

    fn runtime_slow(&self) -> String {
        format!(
            "Which resource is short: `head /proc/pressure/*`, `top -b -n 1 | head -n 15`, `iostat -x 1 3`; \
                 connected clients: `ss -xp | grep {}`.",
            self.process
        )
    }

    fn runtime_not_ready(&self) -> String {
        format!(
            "Reported conditions: `{} info`, `journalctl -u {} -n 50`.",
            self.crictl, self.unit
        )
    }

    fn network_not_ready(&self) -> String {
        format!(
            "CNI configuration: `ls -l /etc/cni/net.d /opt/cni/bin`; reported conditions: `{} info`.",
            self.crictl
        )
    }

    fn stream_down(&self) -> String {
        format!(
            "Runtime log: `journalctl -u {} -n 50`. State of polling: {}.",
            self.unit,
            self.pleg("health")
        )
    }

    fn lossy_stream(&self) -> String {
        format!(
            "Other subscribers: `ss -xp | grep {}`; runtime log: `journalctl -u {} -n 100`. `--mode \
                 generic` relists every second and does not subscribe.",
            self.process, self.unit
        )
    }

    fn split_events(&self) -> String {
        format!(
            "Let only one program subscribe to events; connected clients: `ss -xp | grep {}`. containerd 2.0 \
                 and later deliver every event to all subscribers.",
            self.process
        )
    }

    fn orphan_containers(&self) -> String {
        let crictl = &self.crictl;
        let (which, repair) = match self.id {
            Some(id) => (format!("`{crictl} inspect {id}`"), format!("`{crictl} rm -f {id}`")),
            None => (format!("`{crictl} ps -a`"), format!("`{crictl} rm -f` with its id")),
        };
        format!("Inspect it: {which}. Repair, if it is no longer needed: {repair}.")
    }

    fn odd_objects(&self) -> String {
        format!(
            "List them: `{0} pods -o json`, `{0} ps -a -o json`. They can stay if they belong to another tool.",
            self.crictl
        )
    }

    fn open_socket(&self) -> String {
        match self.socket {
            Some(path) => {
                format!(
                    "Mode of the socket: `ls -l {path}`. Repair: `chmod o-rwx {path}`, also in the runtime's configuration."
                )
            }
            None => "Mode of the socket: `ls -l` with its path. Repair: remove the permissions of others, also in \
                         the runtime's configuration."
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: About<'static> = About {
        endpoint: Some("unix:///run/containerd/containerd.sock"),
        pod: Some("default/web"),
        container: Some("app"),
        id: Some("c0ffee"),
        sandbox: Some("5a9db0"),
        shim_pid: Some(4711),
    };

    /// Every combination of what is known.
    fn abouts() -> impl Iterator<Item = About<'static>> {
        (0..32).map(|bits: u32| {
            let known = |bit: u32| bits & (1 << bit) != 0;
            About {
                endpoint: FULL.endpoint.filter(|_| known(0)),
                pod: FULL.pod.filter(|_| known(1)),
                container: FULL.container.filter(|_| known(1)),
                id: FULL.id.filter(|_| known(2)),
                sandbox: FULL.sandbox.filter(|_| known(3)),
                shim_pid: FULL.shim_pid.filter(|_| known(4)),
            }
        })
    }

    #[test]
    fn every_trouble_has_a_next_step() {
        for trouble in Trouble::ALL {
            for about in abouts() {
                let remedy = trouble.remedy(&about);
                assert!(
                    remedy.contains('`') && remedy.matches('`').count() % 2 == 0,
                    "{trouble}: {remedy}"
                );
                assert!(remedy.ends_with(['.', '`']), "{trouble}: {remedy}");
                for gap in ["  ", " )", "()", "-p `", "-r `", "--pod `", "None", "`.`", "''", "\n"] {
                    assert!(!remedy.contains(gap), "{trouble} has {gap:?} in: {remedy}");
                }
            }
        }
    }

    #[test]
    fn what_is_known_stands_in_the_command() {
        for (trouble, has) in [
            (Trouble::HungShim, "ps -o pid,stat,wchan:32,args -p 4711"),
            (Trouble::LockedContainer, "kill -USR1 $(pidof containerd)"),
            (
                Trouble::StuckInspection,
                "crictl -r unix:///run/containerd/containerd.sock -t 10s inspect c0ffee",
            ),
            (
                Trouble::NotInspectable,
                "Repair: `crictl -r unix:///run/containerd/containerd.sock rm -f c0ffee`",
            ),
            (
                Trouble::ManyDeadContainers,
                "ps -a --state Exited -q --pod 5a9db0 | wc -l",
            ),
            (Trouble::OpenSocket, "ls -l /run/containerd/containerd.sock"),
        ] {
            let remedy = trouble.remedy(&FULL);
            assert!(remedy.contains(has), "{trouble}: {remedy}");
        }
        let no_pid = About { shim_pid: None, ..FULL };
        let remedy = Trouble::HungShim.remedy(&no_pid);
        assert!(
            remedy.contains("pgrep -d, -f 'containerd-shim.* -id 5a9db0'"),
            "{remedy}"
        );
        let crio = About {
            endpoint: Some("unix:///run/crio/crio.sock"),
            ..no_pid
        };
        assert!(Trouble::HungShim.remedy(&crio).contains("'conmon.*5a9db0'"));
        assert!(Trouble::RuntimeDown.remedy(&crio).contains("systemctl status crio"));
    }

    /// A command asks the runtime that the trouble is about, whatever the default is where it is pasted.
    #[test]
    fn every_command_names_its_runtime() {
        for trouble in Trouble::ALL {
            let remedy = trouble.remedy(&FULL);
            for command in remedy.split('`').skip(1).step_by(2) {
                for part in command.split(['|', '(', ')']) {
                    let mut words = part.split_whitespace();
                    if matches!(words.next(), Some("crictl" | "pleg")) {
                        assert!(words.any(|word| word == "-r"), "{trouble}: {command}");
                    }
                }
            }
        }
    }

    /// The first command changes nothing.
    #[test]
    fn what_changes_something_is_called_a_repair() {
        for trouble in Trouble::ALL {
            for about in abouts() {
                let remedy = trouble.remedy(&about);
                let harmless = remedy.to_lowercase();
                let harmless = harmless.split("repair").next().unwrap_or_default();
                for change in [" rm ", " rmp ", "-cont", "-kill", "chmod", "restart", "stop "] {
                    assert!(
                        !harmless.contains(change),
                        "{trouble}: {change:?} before its label: {remedy}"
                    );
                }
            }
        }
    }

    /// A name is the runtime's word, and may be anything.
    #[test]
    fn a_hostile_name_never_reaches_the_shell() {
        for bad in ["$(reboot)", "a;b", "a b", "`x`", "-rf", "a\nb", "", "'", "é"] {
            let about = About {
                endpoint: Some(bad),
                pod: Some(bad),
                container: Some(bad),
                id: Some(bad),
                sandbox: Some(bad),
                shim_pid: None,
            };
            for trouble in Trouble::ALL {
                assert_eq!(
                    trouble.remedy(&about),
                    trouble.remedy(&About::default()),
                    "{trouble} with {bad:?}"
                );
            }
        }
    }

    /// A signal that a process does not expect ends it.
    #[test]
    fn stacks_are_requested_only_from_runtimes_that_give_them() {
        let about = About {
            endpoint: Some("unix:///run/cri-dockerd.sock"),
            ..FULL
        };
        for trouble in Trouble::ALL {
            assert!(!trouble.remedy(&about).contains("USR1"), "{trouble}");
        }
    }
}
