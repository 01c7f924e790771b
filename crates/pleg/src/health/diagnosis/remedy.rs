//! What to type next: commands an operator has on a node, filled with what is known.

use super::Trouble;

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

impl Trouble {
    /// What to type next. Commands stand in backticks; one that changes something comes after the word "repair".
    pub fn next(self, about: &About<'_>) -> String {
        let node = Node::of(about);
        match self {
            Self::GeneratorEnded => "Why: `journalctl -u pleg -n 100`. Repair: `systemctl restart pleg`; a panic is a \
                                     bug, so please report it with that log."
                .to_owned(),
            Self::RuntimeDown => format!(
                "Is it running? `systemctl status {0}`, and why not: `journalctl -u {0} -n 50`.",
                node.unit
            ),
            Self::RuntimeStuck => format!(
                "Process state: `ps -o pid,stat,wchan:32,args -C {}` (T: stopped, D: blocked on I/O).{}",
                node.process,
                node.stacks()
            ),
            Self::LockedContainer => format!("{}{}", node.shim(), node.stacks()),
            Self::HungShim => node.shim(),
            Self::StalledStorage => format!(
                "Is the disk full or unresponsive? `timeout 5 df -h /var/lib/{}`, `mount -t nfs,nfs4`, `dmesg | \
                 tail -n 50`.{}",
                node.state_dir,
                node.stacks()
            ),
            Self::StuckInspection => format!(
                "Ask again: {}.{} Its volumes: `mount -t nfs,nfs4`, `dmesg | tail -n 50`. Its shim: {}.{}",
                node.status(),
                node.known(),
                node.find_shim(),
                node.stacks()
            ),
            Self::NotInspectable => format!(
                "Full error: {}; runtime log: `journalctl -u {} -n 100`. Repair: {}a restart of the \
                 runtime.",
                node.status(),
                node.unit,
                match (node.id, node.sandbox) {
                    (Some(id), _) => format!("`{} rm -f {id}`, else ", node.crictl),
                    (None, Some(sandbox)) => format!("`{} rmp -f {sandbox}`, else ", node.crictl),
                    (None, None) => String::new(),
                }
            ),
            Self::ListFails => format!(
                "Full error: `{0} pods`, `{0} ps -a`; runtime log: `journalctl -u {1} -n 100`.",
                node.crictl, node.unit
            ),
            Self::ListOverLimit | Self::ListNearLimit => format!(
                "Number and size: `{0} ps -a -q | wc -l`, `{0} ps -a -o json | wc -c`. {1} If the \
                 objects are few but large, they have large labels or annotations.",
                node.crictl,
                node.dead()
            ),
            Self::ManyDeadContainers => format!("{} Then fix the crash loop that creates them.", node.dead()),
            Self::LongRelist => format!(
                "Which pods change so often: {}. How long a relist takes: {}. Fewer pods or fewer dead containers on \
                 this node help.",
                node.pleg("watch --no-initial"),
                node.pleg("bench")
            ),
            Self::RuntimeSlow => format!(
                "Which resource is short: `head /proc/pressure/*`, `top -b -n 1 | head -n 15`, `iostat -x 1 3`; \
                 connected clients: `ss -xp | grep {}`.",
                node.process
            ),
            Self::RuntimeNotReady => format!(
                "Reported conditions: `{} info`, `journalctl -u {} -n 50`.",
                node.crictl, node.unit
            ),
            Self::NetworkNotReady => format!(
                "CNI configuration: `ls -l /etc/cni/net.d /opt/cni/bin`; reported conditions: `{} info`.",
                node.crictl
            ),
            Self::StreamDown => format!(
                "Runtime log: `journalctl -u {} -n 50`. State of polling: {}.",
                node.unit,
                node.pleg("health")
            ),
            Self::LossyStream => format!(
                "Other subscribers: `ss -xp | grep {}`; runtime log: `journalctl -u {} -n 100`. `--mode \
                 generic` relists every second and does not subscribe.",
                node.process, node.unit
            ),
            Self::SplitEvents => format!(
                "Let only one program subscribe to events; connected clients: `ss -xp | grep {}`. containerd 2.0 \
                 and later deliver every event to all subscribers.",
                node.process
            ),
            Self::OrphanContainers => {
                let crictl = &node.crictl;
                let (which, repair) = match node.id {
                    Some(id) => (format!("`{crictl} inspect {id}`"), format!("`{crictl} rm -f {id}`")),
                    None => (format!("`{crictl} ps -a`"), format!("`{crictl} rm -f` with its id")),
                };
                format!("Inspect it: {which}. Repair, if it is no longer needed: {repair}.")
            }
            Self::OddObjects => format!(
                "List them: `{0} pods -o json`, `{0} ps -a -o json`. They can stay if they belong to another tool.",
                node.crictl
            ),
            Self::OpenSocket => match node.socket {
                Some(path) => {
                    format!(
                        "Mode of the socket: `ls -l {path}`. Repair: `chmod o-rwx {path}`, also in the runtime's configuration."
                    )
                }
                None => "Mode of the socket: `ls -l` with its path. Repair: remove the permissions of others, also in \
                         the runtime's configuration."
                    .to_owned(),
            },
        }
    }
}

/// What commands are made of: the words of [`About`] that may stand in a shell, and the names of the runtime's parts.
struct Node<'a> {
    /// `crictl`, with the endpoint where it is known.
    crictl: String,
    endpoint: Option<&'a str>,
    socket: Option<&'a str>,
    unit: &'static str,
    process: &'static str,
    /// Its directory in /var/lib.
    state_dir: &'static str,
    pod: Option<&'a str>,
    container: Option<&'a str>,
    id: Option<&'a str>,
    sandbox: Option<&'a str>,
    shim_pid: Option<u32>,
}

impl<'a> Node<'a> {
    fn of(about: &About<'a>) -> Self {
        let endpoint = about.endpoint.filter(|text| is_word(text));
        let has = |part: &str| endpoint.is_some_and(|endpoint| endpoint.contains(part));
        let (unit, process, state_dir) = if has("crio") {
            ("crio", "crio", "containers")
        } else if has("dockerd") {
            ("cri-docker", "cri-dockerd", "docker")
        } else if has("k3s") {
            ("k3s", "containerd", "rancher")
        } else {
            ("containerd", "containerd", "containerd")
        };
        Self {
            crictl: endpoint.map_or_else(|| "crictl".to_owned(), |endpoint| format!("crictl -r {endpoint}")),
            endpoint,
            socket: endpoint.map(|endpoint| endpoint.strip_prefix("unix://").unwrap_or(endpoint)),
            unit,
            process,
            state_dir,
            pod: about.pod.filter(|text| is_word(text)),
            container: about.container.filter(|text| is_word(text)),
            id: about.id.filter(|text| is_word(text)),
            sandbox: about.sandbox.filter(|text| is_word(text)),
            shim_pid: about.shim_pid,
        }
    }

    /// A command of our own, about the runtime that is meant: whoever pastes it may have another one by default.
    fn pleg(&self, command: &str) -> String {
        match self.endpoint {
            Some(endpoint) => format!("`pleg {command} -r {endpoint}`"),
            None => format!("`pleg {command}`"),
        }
    }

    /// Asks for the status of the container, or else of the sandbox.
    fn status(&self) -> String {
        let crictl = &self.crictl;
        match (self.id, self.sandbox) {
            (Some(id), _) => format!("`{crictl} -t 10s inspect {id}`"),
            (None, Some(sandbox)) => format!("`{crictl} -t 10s inspectp {sandbox}`"),
            (None, None) => {
                let name = self.container.map(|name| format!(" --name {name}")).unwrap_or_default();
                format!("`{crictl} ps -a{name}`, then `{crictl} -t 10s inspect` with the id")
            }
        }
    }

    /// What we know of the pod ourselves.
    fn known(&self) -> String {
        let pod = self.pod.map(|pod| {
            format!(
                " What pleg knows about the pod: {}.",
                self.pleg(&format!("inspect {pod}"))
            )
        });
        pod.unwrap_or_default()
    }

    /// Counts the dead containers, of the pod or of all, and removes them.
    fn dead(&self) -> String {
        let of = self.sandbox.map(|id| format!(" --pod {id}")).unwrap_or_default();
        format!(
            "Count the dead: `{0} ps -a --state Exited -q{of} | wc -l`. Repair: `{0} rm $({0} ps -a --state Exited \
             -q{of})` (this removes their logs and exit codes too).",
            self.crictl
        )
    }

    /// Shows the shim's state.
    fn find_shim(&self) -> String {
        // CRI-O has no shim but a monitor.
        let (name, flag) = if self.process == "crio" {
            ("conmon", "")
        } else {
            ("containerd-shim", " -id ")
        };
        match (self.shim_pid, self.sandbox) {
            (Some(pid), _) => format!("`ps -o pid,stat,wchan:32,args -p {pid}`"),
            (None, Some(sandbox)) => {
                format!("`ps -o pid,stat,wchan:32,args -p $(pgrep -d, -f '{name}.*{flag}{sandbox}')`")
            }
            (None, None) => {
                let (first, rest) = name.split_at(1);
                format!("`ps -eo pid,stat,wchan:32,args | grep '[{first}]{rest}'`")
            }
        }
    }

    /// The shim's state, and what follows from it.
    fn shim(&self) -> String {
        let pid = self.shim_pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        format!(
            "State of the shim: {}. T (stopped): repair with `kill -CONT {pid}`, which loses nothing. D (blocked on \
             I/O): its disk or file server has to recover. Killing the shim kills the pod's containers.",
            self.find_shim()
        )
    }

    /// Where the runtime's goroutines wait; only for runtimes that are known not to die of the signal.
    fn stacks(&self) -> String {
        match self.process {
            process @ ("containerd" | "crio") => {
                format!(" Where it is blocked: `kill -USR1 $(pidof {process})` writes goroutine stacks to its log.")
            }
            _ => String::new(),
        }
    }
}

/// Names come from the runtime, and people paste commands: what could be read as anything but one word is left out.
fn is_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '/' | '@' | '+' | '-');
    !text.is_empty() && text.len() <= 256 && !text.starts_with('-') && text.chars().all(plain)
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
                let next = trouble.next(&about);
                assert!(
                    next.contains('`') && next.matches('`').count() % 2 == 0,
                    "{trouble}: {next}"
                );
                assert!(next.ends_with(['.', '`']), "{trouble}: {next}");
                for gap in ["  ", " )", "()", "-p `", "-r `", "--pod `", "None", "`.`", "''", "\n"] {
                    assert!(!next.contains(gap), "{trouble} has {gap:?} in: {next}");
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
            let next = trouble.next(&FULL);
            assert!(next.contains(has), "{trouble}: {next}");
        }
        let no_pid = About { shim_pid: None, ..FULL };
        let next = Trouble::HungShim.next(&no_pid);
        assert!(next.contains("pgrep -d, -f 'containerd-shim.* -id 5a9db0'"), "{next}");
        let crio = About {
            endpoint: Some("unix:///run/crio/crio.sock"),
            ..no_pid
        };
        assert!(Trouble::HungShim.next(&crio).contains("'conmon.*5a9db0'"));
        assert!(Trouble::RuntimeDown.next(&crio).contains("systemctl status crio"));
    }

    /// A command asks the runtime that the trouble is about, whatever the default is where it is pasted.
    #[test]
    fn every_command_names_its_runtime() {
        for trouble in Trouble::ALL {
            let next = trouble.next(&FULL);
            for command in next.split('`').skip(1).step_by(2) {
                for part in command.split(['|', '(', ')']) {
                    let mut words = part.split_whitespace();
                    if matches!(words.next(), Some("crictl" | "pleg")) {
                        assert!(words.any(|word| word == "-r"), "{trouble}: {command}");
                    }
                }
            }
        }
    }

    /// Whoever pastes the first command has changed nothing.
    #[test]
    fn what_changes_something_is_called_a_repair() {
        for trouble in Trouble::ALL {
            for about in abouts() {
                let next = trouble.next(&about);
                let harmless = next.to_lowercase();
                let harmless = harmless.split("repair").next().unwrap_or_default();
                for change in [" rm ", " rmp ", "-cont", "-kill", "chmod", "restart", "stop "] {
                    assert!(
                        !harmless.contains(change),
                        "{trouble}: {change:?} before its label: {next}"
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
                    trouble.next(&about),
                    trouble.next(&About::default()),
                    "{trouble} with {bad:?}"
                );
            }
        }
    }

    /// A signal that a process does not expect ends it.
    #[test]
    fn stacks_are_asked_only_of_those_who_give_them() {
        let about = About {
            endpoint: Some("unix:///run/cri-dockerd.sock"),
            ..FULL
        };
        for trouble in Trouble::ALL {
            assert!(!trouble.next(&about).contains("USR1"), "{trouble}");
        }
    }
}
