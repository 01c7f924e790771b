//! `pleg node` on one runtime, as a user runs it: the binary, a directory of manifests, the HTTP API.
//!
//! All it leaves behind is in the runtime's home, so that the home's clean-up finds it, whatever happened.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use pleg_cri::Endpoint;
use rustix::process::Signal;
use serde_json::Value;

use crate::home::Home;
use crate::image::{self, Program};
use crate::wait::{PATIENCE, until};
use crate::{Runtime, process};

/// Where the pods are, as Kubernetes writes them.
const PODS: &str = "/api/v1/pods";
/// Nothing that is asked for takes longer.
const ANSWER: Duration = Duration::from_secs(10);
/// How much of its log is worth showing.
const LOG_TAIL: usize = 60;

/// The binary that cargo made beside this test: only cargo's unstable options would build it for us.
pub fn binary() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test
        .parent()
        .and_then(Path::parent)
        .context("the test is in no target directory")?;
    let pleg = target.join("pleg");
    ensure!(
        pleg.exists(),
        "there is no {}: run cargo build --workspace first",
        pleg.display()
    );
    Ok(pleg)
}

/// One `pleg node`. Dropping it kills it; its pods stay.
#[derive(Debug)]
pub struct Node {
    dir: PathBuf,
    endpoint: Endpoint,
    cgroup: String,
    name: String,
    ip: IpAddr,
    /// `None` while it is down.
    child: Mutex<Option<Child>>,
}

impl Node {
    /// Its place in a runtime's home. Not started.
    pub fn new(runtime: &Runtime) -> Result<Self> {
        Self::at(runtime, runtime.endpoint().clone())
    }

    /// The same, which reaches its runtime elsewhere: through a proxy, say.
    pub fn at(runtime: &Runtime, endpoint: Endpoint) -> Result<Self> {
        Self::within(runtime.home(), endpoint)
    }

    /// In the home of a runtime that may be a simulated one.
    pub fn within(home: &Home, endpoint: Endpoint) -> Result<Self> {
        let dir = home.dir().join("node");
        fs::create_dir_all(dir.join("manifests")).context("create the directory of manifests")?;
        Ok(Self {
            dir,
            endpoint,
            cgroup: home.cgroup(),
            name: "n".to_owned(),
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            child: Mutex::new(None),
        })
    }

    /// The same with a name and an address of its own, as a node of a cluster has them.
    #[must_use]
    pub fn called(mut self, name: &str, ip: IpAddr) -> Self {
        name.clone_into(&mut self.name);
        self.ip = ip;
        self
    }

    /// Starts it, and waits until it has completed a relist.
    pub async fn start(runtime: &Runtime) -> Result<Self> {
        let node = Self::new(runtime)?;
        node.up(&[]).await?;
        Ok(node)
    }

    /// Starts it with these arguments as well, and waits until it has completed a relist.
    pub async fn up(&self, args: &[&str]) -> Result<()> {
        self.spawn(args)?;
        self.ready().await
    }

    /// Starts it, and waits for nothing.
    pub fn spawn(&self, args: &[&str]) -> Result<()> {
        let mut child = self.child.lock();
        ensure!(child.is_none(), "pleg node is already up");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("node.log"))?;
        *child = Some(self.command(args)?.stderr(log).spawn().context("run pleg node")?);
        Ok(())
    }

    /// Runs it where it is expected to refuse. Returns the exit code and what it said.
    pub async fn refused(&self, args: &[&str]) -> Result<(Option<i32>, String)> {
        let mut command = self.command(args)?;
        let output = tokio::task::spawn_blocking(move || command.stderr(Stdio::piped()).output()).await??;
        Ok((
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }

    fn command(&self, args: &[&str]) -> Result<Command> {
        let path = |name: &str| self.dir.join(name);
        let mut command = Command::new(binary()?);
        command
            .arg("node")
            .arg("--manifests")
            .arg(path("manifests"))
            .args(["--node-name", &self.name, "--node-ip", &self.ip.to_string()])
            .arg("--log-dir")
            .arg(path("logs"))
            .arg("--log-link-dir")
            .arg(path("containers"))
            .arg("--pod-dir")
            .arg(path("pods"))
            .arg("--state-file")
            .arg(path("node.redb"))
            .arg("--cgroup-root")
            .arg(&self.cgroup)
            .arg("--listen")
            .arg(format!("unix://{}", path("pleg.sock").display()))
            .arg("--runtime-endpoint")
            .arg(self.endpoint.to_string())
            .args(args);
        // The state of this machine must not decide about the pods of a scenario.
        for (flag, value) in [("--image-gc-high-threshold", "100"), ("--eviction-hard", "")] {
            if !args.contains(&flag) {
                command.args([flag, value]);
            }
        }
        command
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(command)
    }

    /// Waits until it has completed a relist.
    pub async fn ready(&self) -> Result<()> {
        until("pleg node to be ready", PATIENCE, async || {
            if let Some(status) = self.ended()? {
                return Ok(Err(anyhow::anyhow!("pleg node ended by itself: {status}")));
            }
            let (status, body) = self.get("/readyz").await?;
            ensure!(status == 200, "{body}");
            Ok(Ok(()))
        })
        .await
        .flatten()
        .with_context(|| self.log_tail())
    }

    /// How it ended by itself, if it did.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        let mut child = self.child.lock();
        Ok(child.as_mut().context("pleg node is down")?.try_wait()?)
    }

    /// Ends it without a word. Pods go on.
    pub async fn kill(&self) -> Result<()> {
        self.end(Signal::KILL).await.map(drop)
    }

    /// Asks it to end, and waits until it has. Pods go on.
    pub async fn stop(&self) -> Result<()> {
        let status = self.end(Signal::TERM).await?;
        ensure!(status.success(), "pleg node ended with {status}: {}", self.log_tail());
        Ok(())
    }

    async fn end(&self, signal: Signal) -> Result<ExitStatus> {
        let child = self.child.lock().take();
        let mut child = child.context("pleg node is down")?;
        process::signal(i32::try_from(child.id())?, signal)?;
        tokio::task::spawn_blocking(move || child.wait())
            .await?
            .context("wait for pleg node")
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a manifest, the way a careful writer does: it is there all at once.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let (hidden, path) = (self.manifest(&format!(".{file}")), self.manifest(file));
        fs::write(&hidden, text).with_context(|| format!("write {}", hidden.display()))?;
        fs::rename(&hidden, &path).with_context(|| format!("write {}", path.display()))
    }

    /// Removes a manifest.
    pub fn remove(&self, file: &str) -> Result<()> {
        let path = self.manifest(file);
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
    }

    fn manifest(&self, file: &str) -> PathBuf {
        self.dir.join("manifests").join(file)
    }

    /// One request: its status and its body.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        http_get(&self.dir.join("pleg.sock"), path).await
    }

    /// All pods, as Kubernetes writes them.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        let (status, body) = self.get(PODS).await?;
        ensure!(status == 200, "{PODS}: {status}: {body}");
        let list: Value = serde_json::from_str(&body)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// A pod by the name in its manifest; null if there is none.
    pub async fn pod(&self, name: &str) -> Result<Value> {
        let name = format!("{name}-{}", self.name);
        let pods = self.pods().await?;
        let found = pods.into_iter().find(|pod| pod["metadata"]["name"] == name.as_str());
        Ok(found.unwrap_or_default())
    }

    /// Waits until a pod is as wanted, and returns it.
    pub async fn until(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        self.until_within(name, what, PATIENCE, is).await
    }

    /// The same, for as long as this.
    pub async fn until_within(
        &self,
        name: &str,
        what: &str,
        patience: Duration,
        is: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        until(&format!("{what} of {name}"), patience, async || {
            let pod = self.pod(name).await?;
            if is(&pod) {
                return Ok(pod);
            }
            bail!("{}", pod["status"]);
        })
        .await
        .with_context(|| self.log_tail())
    }

    /// Waits until a pod can serve, and returns it.
    pub async fn until_ready(&self, name: &str) -> Result<Value> {
        self.until(name, "Ready", is_ready).await
    }

    /// Waits until there is nothing of a pod any more, to the node's knowledge.
    pub async fn until_gone(&self, name: &str) -> Result<()> {
        self.until(name, "the end", Value::is_null).await.map(drop)
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("node.log")).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n");
        format!("the last lines of pleg node's log:\n{tail}")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A pod that can serve.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// The status of a pod's container.
pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let lists = ["initContainerStatuses", "containerStatuses"].map(|list| pod["status"][list].as_array());
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|status| status["name"] == name).unwrap_or(&Value::Null)
}

/// One request to a daemon on a unix socket: its status and its body.
pub async fn http_get(socket: &Path, path: &str) -> Result<(u16, String)> {
    let (socket, path) = (socket.to_owned(), path.to_owned());
    tokio::task::spawn_blocking(move || get(&socket, &path)).await?
}

fn get(socket: &Path, path: &str) -> Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(ANSWER))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("read the answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
    let status = head.split(' ').nth(1).context("an answer without a status")?;
    Ok((status.parse()?, body.to_owned()))
}

/// A manifest of a pod on the host's network, of what is in its `spec`. Containers of it have the test image.
pub fn manifest(name: &str, spec: &str) -> String {
    format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{hostNetwork: true, {spec}}}}}\n")
}

/// A container of a manifest, with what else it says.
pub fn runs(name: &str, program: &Program, more: &str) -> String {
    let command = serde_json::to_string(&program.command()).unwrap_or_default();
    let image = image::NAME;
    format!("{{name: {name}, image: \"{image}\", imagePullPolicy: Never, command: {command}, {more}}}")
}
