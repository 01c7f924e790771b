//! A simulated node for one test, and ways to run the binary on it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pleg_cri::Endpoint;
use pleg_sim::{Flavour, Sim, SimConfig, SimError};
use tempfile::TempDir;

/// Nothing here takes longer, unless it hangs.
pub(crate) const LONG: Duration = Duration::from_secs(30);

static SEEDS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Node {
    pub(crate) dir: TempDir,
    pub(crate) sim: Sim,
}

impl Node {
    pub(crate) fn start(config: SimConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = Endpoint::unix(dir.path().join("cri.sock"));
        let sim = block_on(Sim::spawn_thread(config, listen)).unwrap();
        Self { dir, sim }
    }

    pub(crate) fn with_pods(pods: usize) -> Self {
        Self::start(SimConfig {
            pods,
            ..SimConfig::default()
        })
    }

    /// Containers with real processes. None on a machine where no cgroup can be made, if that is what it says.
    pub(crate) fn with_processes(pods: usize) -> Option<Self> {
        Self::with_processes_like(Flavour::Sim, pods)
    }

    pub(crate) fn with_processes_like(flavour: Flavour, pods: usize) -> Option<Self> {
        let config = SimConfig {
            pods,
            flavour,
            processes: true,
            // The kernel is one for all tests: no two simulators may have containers with the same ids.
            seed: u64::from(std::process::id()) << 16 | SEEDS.fetch_add(1, Ordering::Relaxed),
            ..Default::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let tried = Endpoint::unix(dir.path().join("try.sock"));
        match block_on(Sim::start(config.clone(), tried)) {
            Ok(sim) => drop(sim),
            Err(SimError::World(error)) => {
                assert!(error.to_string().contains("delegated cgroup"), "{error}");
                assert!(std::env::var_os("CI").is_none(), "CI has to run this: {error}");
                let mut stderr = std::io::stderr();
                let _ = std::io::Write::write_fmt(
                    &mut stderr,
                    format_args!("LEFT OUT, nothing was tried with real processes: {error}\n"),
                );
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        Some(Self::start(config))
    }

    /// The binary, pointed at this node's runtime.
    pub(crate) fn pleg(&self, args: &[&str]) -> assert_cmd::Command {
        let mut command = pleg(args);
        command.arg("-r").arg(self.sim.endpoint().to_string());
        command
    }

    /// The same, to be stopped by the test.
    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        let mut command = bare();
        command.args(args).arg("-r").arg(self.sim.endpoint().to_string());
        Running::start(command)
    }

    /// Starts a daemon and waits until it is ready.
    pub(crate) fn daemon(&self, args: &[&str]) -> Daemon {
        let socket = self.dir.path().join("run/pleg.sock");
        let listen = format!("unix://{}", socket.display());
        let period: &[&str] = if args.contains(&"--period") {
            &[]
        } else {
            &["--period", "50ms"]
        };
        let mut running = self.spawn(&[&["run", "--listen", &listen], period, args].concat());
        let ready = running.stderr_line();
        assert!(ready.contains("watching unix://"), "{ready}");
        let daemon = Daemon { running, socket };
        wait_for("a complete relist", || daemon.get("/readyz").0 == 200);
        daemon
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleg"));
    for variable in [
        "CONTAINER_RUNTIME_ENDPOINT",
        "PLEG_DAEMON",
        "NO_COLOR",
        "RUST_BACKTRACE",
    ] {
        command.env_remove(variable);
    }
    command.env("TZ", "UTC").env("RUST_BACKTRACE", "1");
    command
}

/// The binary, as a user types it.
pub(crate) fn pleg(args: &[&str]) -> assert_cmd::Command {
    let mut command = bare();
    command.args(args);
    let mut command = assert_cmd::Command::from_std(command);
    command.timeout(LONG);
    command
}

/// A process that is killed with the test.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdout: Option<BufReader<ChildStdout>>,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdout: Some(BufReader::new(child.stdout.take().unwrap())),
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
        }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn stderr_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; returns the exit code and the rest of stderr.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let mut code = None;
        wait_for("the end of the process", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (code.and_then(|code| code.code()), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A level that has to come.
#[expect(clippy::disallowed_methods, reason = "a test of another process has no paused time")]
pub(crate) fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is() {
        assert!(start.elapsed() < LONG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) struct Daemon {
    pub(crate) running: Running,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = request(&self.socket, &format!("GET {path} HTTP/1.1"), "");
        (status, body)
    }

    pub(crate) fn json(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// One request over a connection of its own: status, head and body.
pub(crate) fn request(socket: &Path, line: &str, headers: &str) -> (u16, String, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // A server that has read enough of a bad request closes the connection after its answer, maybe while we still write.
    let _ = write!(stream, "{line}\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
        dechunk(body)
    } else {
        body.to_owned()
    };
    (status, head.to_lowercase(), body)
}

fn dechunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        text.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    text
}

/// Snapshots without what differs from run to run.
pub(crate) fn settings() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    for (pattern, to) in [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "[uid]"),
        (r"sha256:[0-9a-f]{64}", "[image]"),
        (r#"(config\.seen"?[=:] ?"?)\d+"#, "${1}[ns]"),
        (r"[0-9a-f]{64}|\([0-9a-f]{13}\)", "[id]"),
        (r#""instance":"[0-9a-f]{16}""#, r#""instance":"[instance]""#),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[time]"),
        (r"\b\d\d:\d\d:\d\d\b", "[clock]"),
        (r"10\.\d+\.\d+\.\d+ *", "[ip] "),
        (r"unix:///[^\s:]+/cri\.sock", "[runtime]"),
        (r"\d+(\.\d+)?m?s ago", "[age] ago"),
        (r#""?last_seen_seconds"?: [\d.]+"#, "last_seen_seconds: [age]"),
        (r"within [\d.]+m?s", "within [deadline]"),
        (r"(?m)\b[0-9]+s$", "[age]"),
        (r"\b[0-9]+s +\[age\] ago +", "[age] [age] ago "),
        (r"for \d+m?s\b", "for [age]"),
        (r"relists so far: \d+", "relists so far: [n]"),
        (r#""looks": \d+"#, r#""looks": [n]"#),
        (r"(?m)^\d+ calls in flight.*\n", ""),
        (r"(a full relist every )[\d.]+m?s?[\d.]*s?", "$1[period]"),
    ] {
        settings.add_filter(pattern, to);
    }
    settings
}
