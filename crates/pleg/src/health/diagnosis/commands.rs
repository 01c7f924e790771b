//! The building blocks of remedies: commands for this runtime, and what is known about the place of a trouble.

use super::remedy::About;

/// What commands are made of: the words of [`About`] that may stand in a shell, and the names of the runtime's parts.
pub(super) struct Commands<'a> {
    /// `crictl`, with the endpoint where it is known.
    pub(super) crictl: String,
    pub(super) endpoint: Option<&'a str>,
    pub(super) socket: Option<&'a str>,
    pub(super) unit: &'static str,
    pub(super) process: &'static str,
    /// Its directory in /var/lib.
    pub(super) state_dir: &'static str,
    pub(super) pod: Option<&'a str>,
    pub(super) container: Option<&'a str>,
    pub(super) id: Option<&'a str>,
    pub(super) sandbox: Option<&'a str>,
    pub(super) shim_pid: Option<u32>,
}

impl<'a> Commands<'a> {
    pub(super) fn of(about: &About<'a>) -> Self {
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

    /// A command of our own, about this runtime: a user who pastes it may have another one by default.
    pub(super) fn pleg(&self, command: &str) -> String {
        match self.endpoint {
            Some(endpoint) => format!("`pleg {command} -r {endpoint}`"),
            None => format!("`pleg {command}`"),
        }
    }

    /// Asks for the status of the container, or else of the sandbox.
    pub(super) fn status(&self) -> String {
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
    pub(super) fn known(&self) -> String {
        let pod = self.pod.map(|pod| {
            format!(
                " What pleg knows about the pod: {}.",
                self.pleg(&format!("inspect {pod}"))
            )
        });
        pod.unwrap_or_default()
    }

    /// Counts the dead containers, of the pod or of all, and removes them.
    pub(super) fn dead(&self) -> String {
        let of = self.sandbox.map(|id| format!(" --pod {id}")).unwrap_or_default();
        format!(
            "Count the dead: `{0} ps -a --state Exited -q{of} | wc -l`. Repair: `{0} rm $({0} ps -a --state Exited \
             -q{of})` (this removes their logs and exit codes too).",
            self.crictl
        )
    }

    /// Shows the shim's state.
    pub(super) fn find_shim(&self) -> String {
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
    pub(super) fn shim(&self) -> String {
        let pid = self.shim_pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        format!(
            "State of the shim: {}. T (stopped): repair with `kill -CONT {pid}`, which loses nothing. D (blocked on \
             I/O): its disk or file server has to recover. Killing the shim kills the pod's containers.",
            self.find_shim()
        )
    }

    /// Where the runtime's goroutines wait; only for runtimes that are known not to die of the signal.
    pub(super) fn stacks(&self) -> String {
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
