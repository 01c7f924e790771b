//! Who answers: the runtime that was named, a daemon, or the runtime that is found.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pleg::{CriRuntime, Generator, Metrics};
use pleg_cri::endpoint::{CRICTL_CONFIG, CrictlConfig, DiscoverError, Discovery};
use pleg_cri::{Client, Deadlines, Endpoint, InFlight};

use crate::args::{Global, Observe, default_socket};
use crate::http::client::Daemon;
use crate::local::Local;
use crate::{Usage, waiting, wire};

/// A daemon at its usual place that does not say hello within this is not there.
const HELLO: Duration = Duration::from_secs(1);
/// A command that answers once does not wait for a stuck runtime as long as a daemon would.
const ONCE: Duration = Duration::from_secs(10);

/// Who answers the observing commands.
#[derive(Debug)]
pub(crate) enum Observed {
    Daemon(Daemon),
    Runtime(Box<Local>),
}

/// Whether a command answers once or stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    Once,
    Long,
}

impl Observed {
    /// Finds out who answers, and connects.
    pub(crate) async fn find(global: &Global, observe: &Observe, stay: Stay) -> anyhow::Result<Self> {
        if let Some(daemon) = daemon(global, observe).await? {
            if global.verbose {
                tell(&format!("asking the daemon at {}", daemon.endpoint()));
            }
            return Ok(Self::Daemon(daemon));
        }
        let metrics = Metrics::new()?;
        let client = runtime(global, deadlines(global, stay)?, &metrics).await?;
        let mut config = pleg::Config::default();
        if stay == Stay::Once {
            // An answer is due long before a round of probes is through.
            config.probe.round = Duration::ZERO;
        }
        let generator = Generator::new(CriRuntime::new(client), config, metrics);
        Ok(Self::Runtime(Box::new(Local::start(generator))))
    }

    /// The pods whose names `wanted` takes, in order of namespace and name.
    pub(crate) async fn pods(&self, wanted: impl Fn(&str, &str, &str) -> bool) -> anyhow::Result<Vec<wire::Pod>> {
        let mut pods: Vec<wire::Pod> = match self {
            Self::Daemon(daemon) => {
                let mut pods: Vec<wire::Pod> = daemon.get_json("/api/v1/pods").await?;
                pods.retain(|pod| wanted(&pod.pod.namespace, &pod.pod.name, &pod.pod.uid));
                pods
            }
            Self::Runtime(local) => {
                let entries = local
                    .pods(|pod| wanted(&pod.namespace, &pod.name, pod.uid.as_str()))
                    .await?;
                let read = |entry| serde_json::from_str(&serde_json::to_string(&wire::PodJson::from(entry))?);
                entries.iter().map(read).collect::<Result<_, _>>()?
            }
        };
        let key = |pod: &wire::Pod| (pod.pod.namespace.clone(), pod.pod.name.clone(), pod.pod.uid.clone());
        pods.sort_by_cached_key(key);
        Ok(pods)
    }

    pub(crate) async fn health(&self) -> anyhow::Result<wire::Report> {
        match self {
            Self::Daemon(daemon) => daemon.get_json("/api/v1/health").await,
            Self::Runtime(local) => Ok(serde_json::from_value(serde_json::to_value(local.health().await)?)?),
        }
    }
}

/// The daemon to ask, if one was named or answers at its usual place, and no runtime was named.
async fn daemon(global: &Global, observe: &Observe) -> anyhow::Result<Option<Daemon>> {
    let timeout = global.timeout.unwrap_or(ONCE);
    if let Some(endpoint) = &observe.daemon {
        let daemon = Daemon::new(endpoint.clone(), timeout);
        daemon.hello(timeout).await?;
        return Ok(Some(daemon));
    }
    if global.runtime_endpoint.is_some() {
        return Ok(None);
    }
    let Some(path) = default_socket().filter(|path| path.exists()) else {
        return Ok(None);
    };
    let daemon = Daemon::new(Endpoint::unix(path), timeout);
    Ok(daemon.hello(HELLO).await.is_ok().then_some(daemon))
}

/// The runtime's endpoint, and who named it.
pub(crate) fn endpoint(global: &Global) -> anyhow::Result<(Endpoint, String)> {
    if let Some(endpoint) = &global.runtime_endpoint {
        return Ok((endpoint.clone(), "--runtime-endpoint".to_owned()));
    }
    Discovery::default().find().map_err(|error| match error {
        DiscoverError::Invalid { .. } => Usage(error.to_string()).into(),
        DiscoverError::Config { .. } => anyhow::anyhow!("{error}"),
        DiscoverError::Nowhere { .. } => {
            anyhow::anyhow!("{error}. Name a socket with --runtime-endpoint, or see a simulated node with: pleg demo")
        }
    })
}

/// The runtime's endpoint; says who is asked if that is wanted.
pub(crate) fn told_endpoint(global: &Global) -> anyhow::Result<Endpoint> {
    let (endpoint, from) = endpoint(global)?;
    if global.verbose {
        tell(&format!("asking the runtime at {endpoint} ({from})"));
    }
    Ok(endpoint)
}

/// Connects to the runtime; says on a terminal if that takes long.
pub(crate) async fn runtime(global: &Global, deadlines: Deadlines, metrics: &Metrics) -> anyhow::Result<Client> {
    let endpoint = told_endpoint(global)?;
    let inflight = InFlight::observed_by(Arc::new(metrics.clone()));
    let config = pleg_cri::Config {
        deadlines,
        inflight: inflight.clone(),
        ..pleg_cri::Config::default()
    };
    let connect = Client::connect(endpoint, config);
    Ok(waiting::told(|| waiting::oldest_call(&inflight), connect).await?)
}

/// The deadlines of a command: the flag's, else crictl's, else ours.
pub(crate) fn deadlines(global: &Global, stay: Stay) -> anyhow::Result<Deadlines> {
    let default = Deadlines::default();
    let crictl = || CrictlConfig::read(CRICTL_CONFIG.as_ref()).map_err(|error| anyhow::anyhow!("{error}"));
    let one = match global.timeout {
        Some(timeout) => Some(timeout),
        None => crictl()
            .context("reading the time for one call")?
            .and_then(|config| config.timeout()),
    };
    Ok(match (one, stay) {
        (Some(one), _) => every(one),
        (None, Stay::Once) => Deadlines { list: ONCE, ..default },
        (None, Stay::Long) => default,
    })
}

/// The same deadline for every call that reads.
pub(crate) fn every(one: Duration) -> Deadlines {
    let default = Deadlines::default();
    Deadlines {
        list: one,
        inspect: one,
        connect: default.connect.min(one),
        ..default
    }
}

fn tell(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stderr(), "{text}");
}
