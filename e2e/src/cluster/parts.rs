//! The programs of a control plane: how each is started, and what it needs.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::pki::{Ca, Credentials, Pair, Subject, kubeconfig, signing_keys};
use super::service_address;
use crate::version;

/// A node that does not renew its lease for this long is unknown, in seconds. A node renews every 10 s.
pub const NODE_GRACE: u32 = 20;

/// More flags of the API server, separated by blanks: an audit log, say.
const API_SERVER_FLAGS: &str = "PLEG_E2E_API_SERVER_FLAGS";

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The store.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl Part {
    /// All, in the order of their start.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// The name of its program.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }
}

/// The version of Kubernetes, without a v.
pub fn kubernetes() -> Result<&'static str> {
    let line = include_str!("../../cluster/go.mod")
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    let version = line.and_then(|line| line.split(' ').next());
    version.context("e2e/cluster/go.mod does not name k8s.io/kubernetes")
}

/// A program of `cluster/build`.
pub fn program(name: &str) -> Result<PathBuf> {
    let prefix = version::cache()?.join(format!("control-plane-{}", kubernetes()?));
    let path = prefix.join(name);
    ensure!(path.exists(), "{} is missing: run e2e/cluster/build", path.display());
    Ok(path)
}

/// The kubelet of `oracle/build`.
pub fn kubelet() -> Result<PathBuf> {
    let path = version::cache()?.join(format!("kubelet-{}/kubelet", kubernetes()?));
    ensure!(path.exists(), "{} is missing: run e2e/oracle/build", path.display());
    Ok(path)
}

/// The helm of `helm/build`.
pub fn helm() -> Result<PathBuf> {
    let line = include_str!("../../helm/go.mod")
        .lines()
        .find_map(|line| line.trim().strip_prefix("helm.sh/helm/v3 v"));
    let version = line.and_then(|line| line.split(' ').next());
    let version = version.context("e2e/helm/go.mod does not name helm.sh/helm/v3")?;
    let path = version::cache()?.join(format!("helm-{version}/helm"));
    ensure!(path.exists(), "{} is missing: run e2e/helm/build", path.display());
    Ok(path)
}

/// The files that the programs read, and where they listen.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    port: u16,
    ca: PathBuf,
    ca_key: PathBuf,
    serving: Pair,
    to_kubelets: Pair,
    token_key: PathBuf,
    token_key_public: PathBuf,
    controller_manager: PathBuf,
    scheduler: PathBuf,
}

impl Files {
    /// Writes them.
    pub(super) fn new(dir: &Path, ca: &Ca, port: u16) -> Result<Self> {
        let server = format!("https://127.0.0.1:{port}");
        let pki = dir.join("pki");
        let (token_key, token_key_public) = signing_keys(&pki)?;
        let addresses = [Ipv4Addr::LOCALHOST, service_address::ADDRESS].map(IpAddr::V4);
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ];
        let config_of = |user: &str| {
            let path = dir.join(format!("{user}.kubeconfig"));
            let pair = ca.issue(user, &Subject::client(&format!("system:{user}"), &[]))?;
            kubeconfig(&path, &server, ca.certificate(), Credentials::Certificate(&pair))?;
            anyhow::Ok(path)
        };
        Ok(Self {
            serving: ca.issue("kube-apiserver", &Subject::server("kube-apiserver", &addresses, &names))?,
            to_kubelets: ca.issue(
                "kube-apiserver-kubelet-client",
                &Subject::client("kube-apiserver-kubelet-client", &["system:masters"]),
            )?,
            controller_manager: config_of("kube-controller-manager")?,
            scheduler: config_of("kube-scheduler")?,
            dir: dir.to_owned(),
            port,
            ca: ca.certificate().to_owned(),
            ca_key: ca.key(),
            token_key,
            token_key_public,
        })
    }

    /// How a part is started.
    pub(super) fn command(&self, part: Part) -> Result<Command> {
        let mut command = Command::new(program(part.program())?);
        // Some write to where they are.
        command.current_dir(&self.dir);
        match part {
            Part::Etcd => self.etcd(&mut command),
            Part::ApiServer => self.api_server(&mut command),
            Part::ControllerManager => self.controller_manager(&mut command),
            Part::Scheduler => {
                option(&mut command, "kubeconfig", &self.scheduler);
                command.args(["--leader-elect=false", "--secure-port=0"]);
            }
        }
        Ok(command)
    }

    /// The directory of etcd's data.
    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    fn etcd_socket(&self, name: &str) -> String {
        format!("unix://{}", self.dir.join(name).display())
    }

    fn etcd(&self, command: &mut Command) {
        let (clients, peers) = (self.etcd_socket("etcd.sock"), self.etcd_socket("peers.sock"));
        command.args(["--name", "test", "--unsafe-no-fsync", "--log-level", "warn"]);
        option(command, "data-dir", &self.data());
        for (flag, value) in [
            ("--listen-client-urls", &clients),
            ("--advertise-client-urls", &clients),
            ("--listen-peer-urls", &peers),
            ("--initial-advertise-peer-urls", &peers),
            ("--initial-cluster", &format!("test={peers}")),
        ] {
            command.args([flag, value]);
        }
    }

    fn api_server(&self, command: &mut Command) {
        for (flag, path) in [
            ("client-ca-file", &self.ca),
            ("tls-cert-file", &self.serving.certificate),
            ("tls-private-key-file", &self.serving.key),
            ("service-account-key-file", &self.token_key_public),
            ("service-account-signing-key-file", &self.token_key),
            ("kubelet-client-certificate", &self.to_kubelets.certificate),
            ("kubelet-client-key", &self.to_kubelets.key),
            ("kubelet-certificate-authority", &self.ca),
        ] {
            option(command, flag, path);
        }
        command
            .arg(format!("--etcd-servers={}", self.etcd_socket("etcd.sock")))
            .arg(format!("--secure-port={}", self.port))
            .arg(format!("--service-cluster-ip-range={}", service_address::RANGE))
            .args([
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                // It refuses to publish a loopback address as an endpoint.
                "--endpoint-reconciler-type=none",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=Node,RBAC",
                // The second one binds the pods of a namespace to the node of a scenario.
                "--enable-admission-plugins=NodeRestriction,PodNodeSelector",
                "--enable-bootstrap-token-auth",
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                // Of a server that nobody needs any more.
                "--shutdown-delay-duration=0s",
            ])
            .args(std::env::var(API_SERVER_FLAGS).unwrap_or_default().split_whitespace());
    }

    fn controller_manager(&self, command: &mut Command) {
        for (flag, path) in [
            ("kubeconfig", &self.controller_manager),
            ("root-ca-file", &self.ca),
            ("service-account-private-key-file", &self.token_key),
            ("cluster-signing-cert-file", &self.ca),
            ("cluster-signing-key-file", &self.ca_key),
        ] {
            option(command, flag, path);
        }
        command.arg(format!("--node-monitor-grace-period={NODE_GRACE}s")).args([
            "--node-monitor-period=1s",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--secure-port=0",
        ]);
    }
}

fn option(command: &mut Command, flag: &str, path: &Path) {
    command.arg(format!("--{flag}={}", path.display()));
}
