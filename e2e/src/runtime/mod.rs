//! One running container runtime: start, stop, restart, kill, pause.
//!
//! What differs between containerd and CRI-O is in a module for each: the configuration, how it is started, how it gets an image, and
//! which process stands between it and a container.

mod containerd;
mod crio;

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
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
const LOG: &str = "runtime.log";
/// How many lines of the log are worth showing, and how much of each.
const LOG_TAIL: (usize, usize) = (25, 400);
/// What a runtime says at its start, at length, of what it has.
const CHATTER: [&str; 2] = ["loading plugin", "Current CRI-O configuration"];

/// A runtime with the test image in it. Dropping it ends it, its pods and every trace of both.
#[derive(Debug)]
pub struct Runtime {
    version: Version,
    /// `None` while it is down.
    child: Mutex<Option<Child>>,
    client: Client,
    home: Home,
}

impl Runtime {
    /// Starts one, waits until CRI answers, and gives it the test image.
    pub async fn start(version: Version) -> Result<Self> {
        let home = Home::new()?;
        fs::create_dir(home.dir().join("cni")).context("create the directory for CNI")?;
        if version.is_crio() {
            crio::prepare(version, &home)?;
        } else {
            containerd::prepare(&home)?;
        }
        let endpoint = Endpoint::parse(&home.dir().join(SOCKET).to_string_lossy())?;
        let runtime = Self {
            version,
            child: Mutex::new(None),
            client: client(endpoint),
            home,
        };
        runtime.up().await?;
        runtime.import(image::archive()?, &image::NAMES).await?;
        Ok(runtime)
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
        let logs = self.home.dir().join("logs");
        Kubelet::new(self.client.clone(), self.home.cgroup(), logs, self.version.is_crio())
    }

    /// The process id, while it is up.
    pub fn pid(&self) -> Result<i32> {
        let child = self.child.lock();
        let child = child.as_ref().context("the runtime is down")?;
        Ok(i32::try_from(child.id())?)
    }

    /// Starts it again after [`Runtime::stop`] or [`Runtime::kill`], and waits until CRI answers.
    pub async fn up(&self) -> Result<()> {
        self.spawn()?;
        until("CRI to answer", PATIENCE, async || {
            if let Some(status) = self.ended()? {
                // Waiting on would not help, but saying why does.
                return Ok(Err(anyhow::anyhow!("{} ended by itself: {status}", self.version)));
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

    /// The process between the runtime and a container: the shim of its sandbox with containerd, its own conmon with CRI-O.
    pub fn monitor(&self, sandbox_id: &str, container_id: &str) -> Result<Process> {
        let watched = if self.version.is_crio() {
            container_id
        } else {
            sandbox_id
        };
        let mut monitors = self.monitors()?.into_iter();
        let found = monitors.find(|(of, _)| of == watched).map(|(_, process)| process);
        found.with_context(|| format!("no shim or conmon runs for {watched}"))
    }

    /// All shims or conmons of this runtime, each with the id of the sandbox or container that it watches.
    pub fn monitors(&self) -> Result<Vec<(String, Process)>> {
        let watched = |process: &Process| {
            let id = if self.version.is_crio() {
                crio::watched_by(process, &self.home)
            } else {
                containerd::watched_by(process, self.endpoint())
            };
            id.map(ToOwned::to_owned)
        };
        let all = process::all()?.into_iter();
        Ok(all.filter_map(|process| Some((watched(&process)?, process))).collect())
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.home.dir().join(LOG)).unwrap_or_default();
        let told = text
            .lines()
            .filter(|line| !CHATTER.iter().any(|word| line.contains(word)));
        let told: Vec<&str> = told.collect();
        let (lines, width) = LOG_TAIL;
        let tail = told[told.len().saturating_sub(lines)..].iter();
        let tail: Vec<String> = tail.map(|line| line.chars().take(width).collect()).collect();
        format!("the last lines of {}'s log:\n{}", self.version, tail.join("\n"))
    }

    fn spawn(&self) -> Result<()> {
        let mut child = self.child.lock();
        ensure!(child.is_none(), "the runtime is already up");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.home.dir().join(LOG))?;
        let mut command = if self.version.is_crio() {
            crio::command(self.version, &self.home)?
        } else {
            containerd::command(self.version, &self.home)?
        };
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Not in our process group: Ctrl-C is ours to handle, in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        *child = Some(command.spawn().with_context(|| format!("start {}", self.version))?);
        Ok(())
    }

    fn ended(&self) -> Result<Option<ExitStatus>> {
        match self.child.lock().as_mut() {
            Some(child) => Ok(child.try_wait()?),
            None => bail!("the runtime is down"),
        }
    }

    async fn wait_for_end(&self) -> Result<()> {
        until("the runtime to end", PATIENCE, async || {
            self.ended()?.context("it still runs").map(|_| ())
        })
        .await?;
        *self.child.lock() = None;
        Ok(())
    }

    /// Gives it the images of an archive, and waits until CRI knows the names. It has to be up.
    pub async fn import(&self, archive: &[u8], names: &[&str]) -> Result<()> {
        let path = self.home.dir().join("image.tar");
        fs::write(&path, archive).context("write an archive of images")?;
        if self.version.is_crio() {
            crio::import(&self.home, &path, names)?;
        } else {
            containerd::import(self.version, &self.home, &path)?;
        }
        fs::remove_file(&path).context("remove an archive of images")?;
        for name in names {
            let image = v1::ImageSpec {
                image: (*name).to_owned(),
                ..Default::default()
            };
            // containerd's CRI hears of it by an event of its own, a moment later.
            until(&format!("CRI to know the image {name}"), PATIENCE, async || {
                let request = v1::ImageStatusRequest {
                    image: Some(image.clone()),
                    verbose: false,
                };
                self.client.call(request).await?.image.context("it does not")
            })
            .await?;
        }
        Ok(())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Reaps the child; the home's own drop, which comes after this one, ends the rest.
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a tool that has to succeed.
fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let Output { status, stderr, .. } = command.output().with_context(|| format!("{what}: {command:?}"))?;
    ensure!(
        status.success(),
        "{what}: {status}: {}",
        String::from_utf8_lossy(&stderr)
    );
    Ok(())
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
