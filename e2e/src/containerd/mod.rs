//! One running containerd: start, stop, restart, kill, pause.

mod config;

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use pleg_cri::{Client, Config, Deadlines, Endpoint, v1};
use rustix::process::Signal;

use crate::home::{Home, SOCKET};
use crate::process::{self, Frozen, Process};
use crate::version::Version;
use crate::wait::{PATIENCE, until};
use crate::{Kubelet, image};

/// The runtime's own words, in the home.
const LOG: &str = "containerd.log";
/// How many lines of the log are worth showing, and how much of each.
const LOG_TAIL: (usize, usize) = (25, 400);

/// A containerd with the test image in it. Dropping it ends it, its pods and every trace of both.
#[derive(Debug)]
pub struct Containerd {
    version: Version,
    /// `None` while it is down.
    child: Mutex<Option<Child>>,
    client: Client,
    home: Home,
}

impl Containerd {
    /// Starts one, waits until CRI answers, and gives it the test image.
    pub async fn start(version: Version) -> Result<Self> {
        let home = Home::new()?;
        let text = config::render(home.dir(), image::NAME)?;
        fs::write(home.dir().join("config.toml"), text).context("write containerd's configuration")?;
        fs::create_dir(home.dir().join("cni")).context("create the directory for CNI")?;
        let endpoint = Endpoint::parse(&home.dir().join(SOCKET).to_string_lossy())?;
        let containerd = Self {
            version,
            child: Mutex::new(None),
            client: client(endpoint),
            home,
        };
        containerd.up().await?;
        containerd.import().await?;
        Ok(containerd)
    }

    /// Which one it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        self.client.endpoint()
    }

    /// A client for those who act and those who check, with deadlines that catch a hang and nothing less.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its directory.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Somebody who makes pods here.
    pub fn kubelet(&self) -> Kubelet {
        Kubelet::new(self.client.clone(), self.home.cgroup(), self.home.dir().join("logs"))
    }

    /// The `ctr` of this version, pointed at this socket and at the namespace of Kubernetes.
    pub fn ctr(&self) -> Result<Command> {
        let mut ctr = Command::new(self.version.bin()?.join("ctr"));
        ctr.arg("--address")
            .arg(self.endpoint().path())
            .args(["--namespace", "k8s.io"]);
        Ok(ctr)
    }

    /// The process id, while it is up.
    pub fn pid(&self) -> Result<i32> {
        let child = self.child.lock();
        let child = child.as_ref().context("containerd is down")?;
        Ok(i32::try_from(child.id())?)
    }

    /// Starts it again after [`Containerd::stop`] or [`Containerd::kill`], and waits until CRI answers.
    pub async fn up(&self) -> Result<()> {
        self.spawn()?;
        until("CRI to answer", PATIENCE, async || {
            if let Some(status) = self.ended()? {
                // Waiting on would not help, but saying why does.
                return Ok(Err(anyhow::anyhow!("containerd ended by itself: {status}")));
            }
            self.client.version().await.map(|_| Ok(())).map_err(anyhow::Error::from)
        })
        .await
        .flatten()
        .with_context(|| self.log_tail())
    }

    /// Asks it to end, as a service manager does, and waits until it has. Pods go on.
    pub async fn stop(&self) -> Result<()> {
        process::signal(self.pid()?, Signal::TERM)?;
        self.wait_for_end().await
    }

    /// Ends it without a word. Pods go on.
    pub async fn kill(&self) -> Result<()> {
        process::signal(self.pid()?, Signal::KILL)?;
        self.wait_for_end().await
    }

    /// Stop, and up again.
    pub async fn restart(&self) -> Result<()> {
        self.stop().await?;
        self.up().await
    }

    /// Stops it where it stands, until the answer is dropped: connections stay, nothing answers.
    pub fn pause(&self) -> Result<Frozen> {
        Frozen::new(self.pid()?)
    }

    /// The shim of a sandbox.
    pub fn shim(&self, sandbox_id: &str) -> Result<Process> {
        let shims = self.shims()?;
        let shim = shims.into_iter().find(|shim| shim.value_of("-id") == Some(sandbox_id));
        shim.with_context(|| format!("no shim runs for sandbox {sandbox_id}"))
    }

    /// All shims of this containerd.
    pub fn shims(&self) -> Result<Vec<Process>> {
        let socket = self.endpoint().path().to_string_lossy().into_owned();
        let ours = |process: &Process| {
            process.program().starts_with("containerd-shim") && process.value_of("-address") == Some(&socket)
        };
        Ok(process::all()?.into_iter().filter(ours).collect())
    }

    /// The last lines of its log, without the list of its plugins.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.home.dir().join(LOG)).unwrap_or_default();
        let told: Vec<&str> = text.lines().filter(|line| !line.contains("loading plugin")).collect();
        let (lines, width) = LOG_TAIL;
        let tail = told[told.len().saturating_sub(lines)..].iter();
        let tail: Vec<String> = tail.map(|line| line.chars().take(width).collect()).collect();
        format!(
            "the last lines of containerd {}'s log:\n{}",
            self.version,
            tail.join("\n")
        )
    }

    fn spawn(&self) -> Result<()> {
        let mut child = self.child.lock();
        ensure!(child.is_none(), "containerd is already up");
        let bin = self.version.bin()?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.home.dir().join(LOG))?;
        // containerd looks for its shim in PATH, and the host may have another one.
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
        let mut command = Command::new(bin.join("containerd"));
        command
            .arg("--config")
            .arg(self.home.dir().join("config.toml"))
            .env("PATH", path);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Not in our process group: Ctrl-C is ours to handle, in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        *child = Some(
            command
                .spawn()
                .with_context(|| format!("start containerd {}", self.version))?,
        );
        Ok(())
    }

    fn ended(&self) -> Result<Option<ExitStatus>> {
        match self.child.lock().as_mut() {
            Some(child) => Ok(child.try_wait()?),
            None => bail!("containerd is down"),
        }
    }

    async fn wait_for_end(&self) -> Result<()> {
        until("containerd to end", PATIENCE, async || {
            self.ended()?.context("it still runs").map(|_| ())
        })
        .await?;
        *self.child.lock() = None;
        Ok(())
    }

    async fn import(&self) -> Result<()> {
        let archive = self.home.dir().join("image.tar");
        fs::write(&archive, image::archive()?).context("write the test image")?;
        let output = self
            .ctr()?
            .args(["images", "import"])
            .arg(&archive)
            .output()
            .context("run ctr")?;
        ensure!(
            output.status.success(),
            "import the test image: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        // CRI hears of it by an event of containerd's own, a moment later.
        let image = v1::ImageSpec {
            image: image::NAME.to_owned(),
            ..Default::default()
        };
        until("CRI to know the test image", PATIENCE, async || {
            let request = v1::ImageStatusRequest {
                image: Some(image.clone()),
                verbose: false,
            };
            self.client.call(request).await?.image.context("it does not")
        })
        .await?;
        Ok(())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Reaps the child; the home's own drop, which comes after this one, ends the rest.
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Deadlines far above what anything here takes, and far below what a person waits.
fn client(endpoint: Endpoint) -> Client {
    let deadlines = Deadlines {
        list: PATIENCE,
        inspect: PATIENCE,
        act: Duration::from_mins(1),
        connect: Duration::from_secs(5),
    };
    let config = Config {
        deadlines,
        ..Config::default()
    };
    Client::lazy(endpoint, config)
}
