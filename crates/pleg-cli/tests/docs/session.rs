//! A terminal in which the commands of one document are typed, with a simulated node behind it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use pleg_cri::Endpoint;
use pleg_sim::{Sim, SimConfig};
use tempfile::TempDir;

use crate::document::Command;

/// Nothing takes longer, unless it hangs: all documents share the machine.
const LONG: Duration = Duration::from_mins(1);
/// Commands that ask a daemon if there is one, else the runtime.
const OBSERVING: [&str; 6] = ["watch", "top", "pods", "inspect", "health", "debug bundle"];
/// Commands that ask a daemon.
const LOOKING_BACK: [&str; 3] = ["history", "why", "report"];

pub(crate) struct Session {
    // Before the directory: what runs ends before its sockets go.
    staying: Vec<Running>,
    sim: Sim,
    dir: TempDir,
    daemon: bool,
}

impl Session {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pleg"), dir.path().join("bin/pleg")).unwrap();
        let config = SimConfig {
            pods: 5,
            churn: 20.0,
            ..SimConfig::default()
        };
        let listen = Endpoint::unix(dir.path().join("node.sock"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let sim = runtime.block_on(Sim::spawn_thread(config, listen)).unwrap();
        Self {
            staying: Vec::new(),
            sim,
            dir,
            daemon: false,
        }
    }

    /// The command as it is run here:
    ///
    /// - cargo has built the binary, so `cargo run --release --` is `pleg`; and a demonstration is a short one;
    /// - `/tmp/` and `/run/pleg/` are this session's directory;
    /// - the sockets that a command would find by itself are named: the daemon's for `pleg run`, and that or the runtime's for
    ///   those who observe. (`$CONTAINER_RUNTIME_ENDPOINT` names the runtime for all others.)
    fn here(&self, command: &str) -> String {
        let dir = format!("{}/", self.dir.path().display());
        let daemon = format!("unix://{dir}pleg.sock");
        let mut here = command
            .replace("cargo run --release -- ", "pleg ")
            .replace("/tmp/", &dir)
            .replace("/run/pleg/", &dir)
            .replace("pleg demo", "pleg demo --for 10s");
        if !here.contains("--listen ") {
            here = here.replace("pleg run", &format!("pleg run --listen {daemon}"));
        }
        if !here.contains(" -r ") && !here.contains("--daemon") {
            let option = if self.daemon {
                format!("--daemon {daemon}")
            } else {
                format!("-r {}", self.sim.endpoint())
            };
            let looking_back: &[&str] = if self.daemon { &LOOKING_BACK } else { &[] };
            for name in OBSERVING.iter().chain(looking_back) {
                let typed = format!("pleg {name}");
                if here == typed || here.starts_with(&format!("{typed} ")) {
                    here = here.replacen(&typed, &format!("{typed} {option}"), 1);
                }
            }
        }
        here
    }

    /// Waits until a node runs its pods.
    fn wait_for_pods(node: &str) -> Result<(), String> {
        let socket = node.split("--listen ").nth(1).and_then(|rest| rest.split(' ').next());
        wait_until_printed("Running", &["pods", "--daemon", socket.unwrap()])
    }

    /// Waits until the daemon has completed a relist, as a person does who goes to another terminal.
    fn wait_for_relist(&self) -> Result<(), String> {
        let socket = self.dir.path().join("pleg.sock");
        wait_until_printed("Ready=True", &["health", "--daemon", &socket.to_string_lossy()])
    }

    /// Runs a command; says what was wrong.
    pub(crate) fn run(&mut self, command: &Command) -> Result<(), String> {
        let text = &command.text;
        let serves = text.starts_with("pleg run")
            || text.starts_with("pleg node -")
            || (text.starts_with("pleg sim ") && !text.contains("sim ctl"));
        let ends = ["--for", "--count", "|"].iter().any(|end| text.contains(end));
        let follows = !ends && (text.starts_with("pleg watch") || text.contains("follow"));
        let here = self.here(text);
        let mut process = Process::new("sh");
        process.arg("-c");
        // A process that has to be stopped is the shell's own.
        process.arg(if serves || follows {
            format!("exec 2>&1; exec {here}")
        } else {
            format!("exec 2>&1; {here}")
        });
        let path = std::env::var("PATH").unwrap_or_default();
        process
            .current_dir(crate::root())
            .env("PATH", format!("{}/bin:{path}", self.dir.path().display()))
            .env("CONTAINER_RUNTIME_ENDPOINT", self.sim.endpoint().to_string())
            .env_remove("PLEG_DAEMON")
            .env("PLEG_HISTORY_FILE", self.dir.path().join("history.dat"))
            .env("PLEG_HISTORY_SIZE", "8MiB")
            .env("NO_COLOR", "1");
        let mut running = Running::start(process);
        if serves || follows {
            running.read_until(&command.shown)?;
            if serves {
                self.staying.push(running);
                if text.starts_with("pleg node") {
                    Self::wait_for_pods(&here)?;
                }
                if text.starts_with("pleg run") {
                    self.daemon = true;
                    self.wait_for_relist()?;
                }
                return Ok(());
            }
            let pid = rustix::process::Pid::from_child(&running.child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        }
        let (status, output) = running.end()?;
        let failure = |line: &String| line.starts_with("Error:") || line.starts_with("CRITICAL");
        let fails = command.shown.iter().any(failure);
        // curl is no program of ours: a signal just ends it.
        if status.success() == fails && !(follows && text.starts_with("curl")) {
            return Err(format!("ended with {status}\n{}", output.join("\n")));
        }
        match command.shown.iter().find(|line| !is_in(line, &output)) {
            Some(line) => Err(missing(line, &output)),
            None => Ok(()),
        }
    }
}

/// A process, and what it has printed so far.
struct Running {
    child: Child,
    lines: Receiver<String>,
    output: Vec<String>,
}

impl Running {
    fn start(mut process: Process) -> Self {
        let mut child = process
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Ends with the process, or with this value.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            output: Vec::new(),
        }
    }

    /// Waits until all of `shown` was printed.
    fn read_until(&mut self, shown: &[String]) -> Result<(), String> {
        while let Some(line) = shown.iter().find(|line| !is_in(line, &self.output)) {
            match self.lines.recv_timeout(LONG) {
                Ok(printed) => self.output.push(printed),
                Err(_) => return Err(missing(line, &self.output)),
            }
        }
        Ok(())
    }

    /// Waits for the end.
    fn end(mut self) -> Result<(ExitStatus, Vec<String>), String> {
        loop {
            match self.lines.recv_timeout(LONG) {
                Ok(printed) => self.output.push(printed),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(format!("does not end\n{}", self.output.join("\n"))),
            }
        }
        let status = self.child.wait().unwrap();
        Ok((status, std::mem::take(&mut self.output)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `pleg` with these arguments until it prints the word.
#[expect(clippy::disallowed_methods, reason = "a test of another process has no paused time")]
fn wait_until_printed(word: &str, arguments: &[&str]) -> Result<(), String> {
    let start = std::time::Instant::now();
    loop {
        let output = Process::new(env!("CARGO_BIN_EXE_pleg"))
            .args(arguments)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        if printed.contains(word) {
            return Ok(());
        }
        if start.elapsed() > LONG {
            let errors = String::from_utf8_lossy(&output.stderr);
            let command = arguments.join(" ");
            return Err(format!("pleg {command} does not print {word}, but\n{printed}{errors}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn missing(line: &str, output: &[String]) -> String {
    format!("does not print\n{line}\nbut\n{}", output.join("\n"))
}

/// Whether a line like this one was printed.
fn is_in(shown: &str, output: &[String]) -> bool {
    if let Some(keys) = keys(shown) {
        return output.iter().any(|line| self::keys(line).as_ref() == Some(&keys));
    }
    let words = words(shown);
    output.iter().any(|line| {
        let mut printed = self::words(line).into_iter();
        words.iter().all(|word| printed.any(|other| other == *word))
    })
}

/// The words that are the same in every run.
fn words(line: &str) -> Vec<&str> {
    let varies = |word: &&str| word.contains("://") || word.contains(|c: char| c.is_ascii_digit());
    line.split_whitespace().filter(|word| !varies(word)).collect()
}

/// The keys of an object in JSON.
fn keys(line: &str) -> Option<Vec<String>> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line.trim()).ok()?;
    Some(object.keys().cloned().collect())
}
