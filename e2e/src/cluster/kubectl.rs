//! kubectl, as a user types it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

use super::parts::program;

/// kubectl with a kubeconfig and a namespace.
#[derive(Debug, Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    home: PathBuf,
    namespace: String,
    spdy: bool,
}

impl Kubectl {
    /// With the credentials of that file. What it keeps for itself goes to `home`.
    pub fn new(kubeconfig: PathBuf, home: &Path) -> Self {
        Self {
            kubeconfig,
            home: home.join("kubectl"),
            namespace: "default".to_owned(),
            spdy: false,
        }
    }

    /// The same in another namespace.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// The same with sessions over SPDY, as older ones have them, instead of a web socket.
    #[must_use]
    pub fn over_spdy(mut self) -> Self {
        self.spdy = true;
        self
    }

    /// Runs a command line, split at blanks: `rollout status deployment/web`. It has to succeed; returns what it printed.
    pub async fn run(&self, line: &str) -> Result<String> {
        self.run_args(&line.split_whitespace().collect::<Vec<_>>()).await
    }

    /// The same, with arguments that have blanks.
    pub async fn run_args(&self, args: &[&str]) -> Result<String> {
        let output = self.output(args, None).await?;
        succeeded(args, &output)
    }

    /// Runs a command line that has to fail, and returns what it said.
    pub async fn fails(&self, line: &str) -> Result<String> {
        let args: Vec<&str> = line.split_whitespace().collect();
        let output = self.output(&args, None).await?;
        ensure!(!output.status.success(), "kubectl {line} succeeded");
        Ok(said(&output))
    }

    /// `kubectl apply -f -` of a manifest.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with_input(&["apply", "-f", "-"], manifest)
            .await
            .with_context(|| manifest.to_owned())
    }

    /// The same with these arguments, which read what is given.
    pub async fn run_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let output = self.output(args, Some(input)).await?;
        succeeded(args, &output)
    }

    /// The command itself, for those who need more than its output.
    pub fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(program("kubectl")?);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--namespace", &self.namespace])
            .args(args)
            .env("HOME", &self.home)
            .env_remove("KUBECONFIG");
        if self.spdy {
            command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false");
            command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
        }
        Ok(command)
    }

    async fn output(&self, args: &[&str], stdin: Option<&str>) -> Result<Output> {
        let mut command = self.command(args)?;
        let stdin = stdin.map(ToOwned::to_owned);
        let run = move || -> Result<Output> {
            command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            if let (Some(text), Some(mut pipe)) = (stdin, child.stdin.take()) {
                std::io::Write::write_all(&mut pipe, text.as_bytes())?;
            }
            Ok(child.wait_with_output()?)
        };
        tokio::task::spawn_blocking(run)
            .await?
            .with_context(|| format!("run kubectl {}", args.join(" ")))
    }
}

fn succeeded(args: &[&str], output: &Output) -> Result<String> {
    let line = args.join(" ");
    ensure!(
        output.status.success(),
        "kubectl {line}: {}: {}",
        output.status,
        said(output)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
        .trim()
        .to_owned()
}
