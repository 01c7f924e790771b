//! `pleg run --report-to-cluster` beside a kubelet: its rights, and where it runs.
//!
//! Its service account has the rules of `deploy/rbac.yaml`, and no others. Scenarios see the reporter through [`Beside`] only, so that it can
//! run elsewhere, as a `DaemonSet`, without another scenario.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use pleg_cri::Endpoint;
use rustix::process::Signal;

use super::ControlPlane;
use super::pki::{Credentials, kubeconfig};
use super::suite::PATIENCE;
use crate::node::{binary, http_get};
use crate::process;
use crate::wait::until;

/// The namespace and the name of the service account.
const ACCOUNT: (&str, &str) = ("pleg", "pleg");
/// The rules, in the files that people apply.
const RULES: [&str; 2] = [
    include_str!("../../../deploy/rbac.yaml"),
    include_str!("../../../deploy/rbac-pod-condition.yaml"),
];

/// A reporter. Dropping it ends it.
#[derive(Debug)]
pub struct Beside {
    dir: PathBuf,
    args: Vec<String>,
    child: Mutex<Option<Child>>,
}

/// Creates the service account with the rules of `deploy/`, and returns a token of it.
pub async fn account(cluster: &ControlPlane) -> Result<String> {
    let (namespace, name) = ACCOUNT;
    let kubectl = cluster.kubectl().within(namespace);
    // Scenarios of one control plane do it at the same time.
    until("the service account and its rules", PATIENCE, async || {
        let own = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}");
        kubectl.apply(&own).await?;
        kubectl
            .apply(&format!(
                "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}"
            ))
            .await?;
        for rules in RULES {
            kubectl.apply(rules).await?;
        }
        let token = kubectl.run(&format!("create token {name} --duration=1h")).await?;
        anyhow::Ok(token.trim().to_owned())
    })
    .await
}

impl Beside {
    /// Not started. It observes the runtime at `endpoint`, keeps its files in `dir`, and reports for `node` with a token, to `server`.
    pub fn new(
        cluster: &ControlPlane,
        dir: &Path,
        endpoint: &Endpoint,
        node: &str,
        server: &str,
        token: &str,
    ) -> Result<Self> {
        let dir = dir.join("beside");
        fs::create_dir_all(&dir)?;
        let file = dir.join("kubeconfig");
        kubeconfig(&file, server, cluster.ca().certificate(), Credentials::Token(token))?;
        let options = [
            ("runtime-endpoint", endpoint.to_string()),
            ("listen", format!("unix://{}", dir.join("pleg.sock").display())),
            ("kubeconfig", file.display().to_string()),
            ("node-name", node.to_owned()),
            // A hung container is reported within 30 s.
            ("probe-round", "20s".to_owned()),
        ];
        let args = options.map(|(flag, value)| format!("--{flag}={value}"));
        Ok(Self {
            dir,
            args: args.to_vec(),
            child: Mutex::new(None),
        })
    }

    /// Starts it with these arguments as well, and waits until it has completed a relist.
    pub async fn up(&self, more: &[&str]) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = Command::new(binary()?);
        command.args(["run", "--report-to-cluster"]).args(&self.args).args(more);
        command
            .env_remove("NODE_NAME")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        *self.child.lock() = Some(command.spawn().context("run pleg")?);
        until("pleg run to be ready", PATIENCE, async || {
            let (status, body) = self.get("/readyz").await?;
            ensure!(status == 200, "{body}");
            Ok(())
        })
        .await
        .with_context(|| self.log())
    }

    /// Ends it without a word.
    pub fn kill(&self) -> Result<()> {
        let mut child = self.child.lock().take().context("pleg run is down")?;
        process::signal(i32::try_from(child.id())?, Signal::KILL)?;
        child.wait()?;
        Ok(())
    }

    /// One request: its status and its body.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        http_get(&self.dir.join("pleg.sock"), path).await
    }

    /// What it says of itself: `pleg health`.
    pub async fn health(&self) -> Result<String> {
        let mut command = Command::new(binary()?);
        let socket = format!("unix://{}", self.dir.join("pleg.sock").display());
        command.args(["health", "--daemon", &socket, "--fail-on", "not-ready"]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
