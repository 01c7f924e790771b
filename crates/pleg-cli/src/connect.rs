//! Chooses what a command talks to: the runtime that was named, a daemon, or the runtime that is discovered.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use pleg::{CriRuntime, Generator, Metrics, Mode, Pleg, PodEntry, WitnessMode};
use pleg_cri::discovery::{CRICTL_CONFIG, CrictlConfig, DiscoverError, Discovery};
use pleg_cri::{Client, Deadlines, Endpoint, InFlight, Observer};
use serde::Deserialize;

use crate::address::DaemonAddress;
use crate::args::{Global, Observe, default_socket};
use crate::http::client::Daemon;
use crate::local::Local;
use crate::{Usage, node_pod, waiting, wire};

/// Deadline for a daemon at the default address to answer; then the runtime is asked instead.
const HELLO: Duration = Duration::from_secs(1);
/// Deadlines of commands that answer once are shorter than those of a daemon.
const ONCE: Duration = Duration::from_secs(10);

/// What the observing commands talk to.
#[derive(Debug)]
pub(crate) enum Observed {
    Daemon(Daemon),
    Runtime(Box<Local>),
}

/// Pods, in the shape of what was asked.
#[derive(Debug)]
pub(crate) enum Pods {
    /// Pods of a runtime.
    Runtime(Vec<wire::Pod>),
    /// Pods of `pleg node`: desired and observed state.
    Node(Vec<node_pod::Pod>),
}

impl Pods {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Runtime(pods) => pods.len(),
            Self::Node(pods) => pods.len(),
        }
    }
}

/// A daemon's answer about its pods: a list from `pleg run`, a `PodList` from `pleg node`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Runtime(Vec<wire::Pod>),
    Node { items: Vec<serde_json::Value> },
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum Source {
    Daemon(Daemon),
    Runtime(Client),
}

/// Whether a command answers once or keeps running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    Once,
    Long,
}

impl Observed {
    /// Chooses what to ask, and connects.
    pub(crate) async fn find(global: &Global, observe: &Observe, stay: Stay) -> anyhow::Result<Self> {
        Self::find_by(global, observe, stay, (Mode::Auto, WitnessMode::Auto)).await
    }

    /// The same; a generator in this process finds changes as `by` says.
    pub(crate) async fn find_by(
        global: &Global,
        observe: &Observe,
        stay: Stay,
        by: (Mode, WitnessMode),
    ) -> anyhow::Result<Self> {
        let metrics = Metrics::new()?;
        let client = match source(global, observe, stay, &metrics).await? {
            Source::Daemon(daemon) => return Ok(Self::Daemon(daemon)),
            Source::Runtime(client) => client,
        };
        let mut config = pleg::Config::default();
        (config.evented.mode, config.witness) = by;
        if stay == Stay::Once {
            // Subscribing for a single answer would take events from other subscribers for nothing.
            config.evented.mode = Mode::Generic;
            config.witness = WitnessMode::Off;
            // The answer is due long before a round of probes ends.
            config.probe.round = Duration::ZERO;
        }
        let generator = Generator::new(CriRuntime::new(client), config, metrics);
        Ok(Self::Runtime(Box::new(Local::start(generator))))
    }

    /// The pods that `wanted` selects, sorted by namespace and name.
    pub(crate) async fn pods(&self, wanted: impl Fn(&str, &str, &str) -> bool) -> anyhow::Result<Pods> {
        let mut pods = match self {
            Self::Daemon(daemon) => of_daemon(daemon, &[]).await?,
            Self::Runtime(local) => {
                let entries = local
                    .pods(|pod| wanted(&pod.namespace, &pod.name, pod.uid.as_str()))
                    .await?;
                let mut pods = read(local, &entries)?;
                pods.sort_by_cached_key(|pod| {
                    let pod = &pod.pod;
                    (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
                });
                Pods::Runtime(pods)
            }
        };
        match &mut pods {
            Pods::Runtime(pods) => pods.retain(|pod| wanted(&pod.pod.namespace, &pod.pod.name, pod.pod.uid.as_str())),
            Pods::Node(pods) => pods.retain(|pod| {
                let view = &pod.view;
                wanted(view.namespace(), view.name(), view.uid())
            }),
        }
        Ok(pods)
    }

    /// The pods of the runtime, also if `pleg node` is asked.
    pub(crate) async fn runtime_pods(&self, wanted: impl Fn(&str, &str) -> bool) -> anyhow::Result<Vec<wire::Pod>> {
        let mut pods = match self {
            Self::Daemon(daemon) => daemon.get_json("/api/v1/runtime/pods").await?,
            Self::Runtime(_) => match self.pods(|namespace, name, _| wanted(namespace, name)).await? {
                Pods::Runtime(pods) => pods,
                Pods::Node(_) => Vec::new(),
            },
        };
        pods.retain(|pod: &wire::Pod| wanted(&pod.pod.namespace, &pod.pod.name));
        Ok(pods)
    }

    /// The same, but it never writes to stderr: that is where the caller draws.
    pub(crate) fn silent(self) -> Self {
        match self {
            Self::Daemon(daemon) => Self::Daemon(daemon.silent()),
            Self::Runtime(local) => Self::Runtime(local),
        }
    }

    /// The health as it is known now, without a relist.
    pub(crate) async fn known_health(&self) -> anyhow::Result<wire::Report> {
        match self {
            Self::Daemon(_) => self.health().await,
            Self::Runtime(local) => {
                let report = wire::ReportJson::of(&local.pleg, None);
                let mut report: wire::Report = serde_json::from_value(serde_json::to_value(report)?)?;
                // They depend on the runtime's `Status`, which is not called.
                report.conditions.clear();
                Ok(report)
            }
        }
    }

    pub(crate) async fn health(&self) -> anyhow::Result<wire::Report> {
        match self {
            Self::Daemon(daemon) => daemon.get_json("/api/v1/health").await,
            Self::Runtime(local) => {
                let mut report: wire::Report = serde_json::from_value(serde_json::to_value(local.health().await)?)?;
                // A single relist has no mode and no cursor worth printing.
                (report.mode, report.instance) = (None, None);
                Ok(report)
            }
        }
    }
}

/// The pods of a daemon, sorted by namespace and name.
pub(crate) async fn of_daemon(daemon: &Daemon, query: &[(&str, String)]) -> anyhow::Result<Pods> {
    let answer = daemon.query_json("/api/v1/pods", query).await?;
    read_answer(answer).with_context(|| format!("the daemon at {} has another version", daemon.address()))
}

/// All pods of a daemon. Thousands take a while to read, which happens in another thread.
pub(crate) async fn all_of_daemon<T: Send + 'static>(
    daemon: &Daemon,
    then: impl FnOnce(Pods) -> T + Send + 'static,
) -> anyhow::Result<T> {
    let bytes = daemon.get_bytes("/api/v1/pods").await?;
    let read = tokio::task::spawn_blocking(move || {
        let answer: Answer = serde_json::from_slice(&bytes)?;
        Ok::<_, serde_json::Error>(then(read_answer(answer)?))
    });
    read.await?
        .with_context(|| format!("the daemon at {} has another version", daemon.address()))
}

fn read_answer(answer: Answer) -> serde_json::Result<Pods> {
    Ok(match answer {
        Answer::Runtime(pods) => Pods::Runtime(pods),
        Answer::Node { items } => Pods::Node(items.into_iter().map(node_pod::Pod::read).collect::<Result<_, _>>()?),
    })
}

/// Pods as a daemon would send them.
pub(crate) fn read(local: &Local, entries: &[PodEntry]) -> anyhow::Result<Vec<wire::Pod>> {
    read_entries(&local.pleg, entries)
}

/// The same, where only the handle of the generator is at hand.
pub(crate) fn read_entries(pleg: &Pleg, entries: &[PodEntry]) -> anyhow::Result<Vec<wire::Pod>> {
    let report = pleg.health().report_in_full();
    let health = wire::PodHealth::of(&report, Timestamp::now());
    let read = |entry| serde_json::from_str(&serde_json::to_string(&wire::PodJson::new(entry, &health))?);
    let pods: Result<_, serde_json::Error> = entries.iter().map(read).collect();
    Ok(pods?)
}

/// Chooses what to ask, and connects.
pub(crate) async fn source(
    global: &Global,
    observe: &Observe,
    stay: Stay,
    metrics: &Metrics,
) -> anyhow::Result<Source> {
    if let Some(daemon) = daemon(global, observe).await? {
        return Ok(Source::Daemon(daemon));
    }
    runtime(global, deadlines(global, stay)?, metrics)
        .await
        .map(Source::Runtime)
}

/// The daemon named by the flag, else by the environment. `--runtime-endpoint` takes precedence over the environment.
fn named(global: &Global, observe: &Observe) -> Result<Option<DaemonAddress>, Usage> {
    match &observe.daemon {
        Some(address) => Ok(Some(address.clone())),
        None if global.runtime_endpoint.is_some() => Ok(None),
        None => DaemonAddress::from_environment(),
    }
}

/// The daemon to ask: one that was named, or one that answers at the default address if no runtime was named.
pub(crate) async fn daemon(global: &Global, observe: &Observe) -> anyhow::Result<Option<Daemon>> {
    told_daemon(global, observe, "asking the runtime instead").await
}

/// The same for commands that have no use for a runtime: none if no daemon answers at the default address.
pub(crate) async fn daemon_only(global: &Global, observe: &Observe) -> anyhow::Result<Option<Daemon>> {
    told_daemon(global, observe, "reading the file of the history instead").await
}

async fn told_daemon(global: &Global, observe: &Observe, instead: &str) -> anyhow::Result<Option<Daemon>> {
    let daemon = find_daemon(global, observe, instead).await?;
    if let (Some(daemon), true) = (&daemon, global.verbose) {
        tell(&format!("asking the daemon at {}", daemon.address()));
    }
    Ok(daemon)
}

async fn find_daemon(global: &Global, observe: &Observe, instead: &str) -> anyhow::Result<Option<Daemon>> {
    let timeout = global.timeout.unwrap_or(ONCE);
    if let Some(address) = named(global, observe)? {
        let daemon = Daemon::new(address, timeout);
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
    match daemon.hello(HELLO).await {
        Ok(()) => Ok(Some(daemon)),
        Err(error) => {
            // Where a daemon runs, users expect its answers, which know more than a single relist.
            tell(&format!("{error}; {instead}"));
            Ok(None)
        }
    }
}

/// Describes what would be asked, for error messages.
pub(crate) fn asked(global: &Global, observe: &Observe) -> String {
    match (named(global, observe), endpoint(global)) {
        (Ok(Some(address)), _) => format!("the daemon at {address}"),
        (_, Ok((endpoint, _))) => format!("the runtime at {endpoint}"),
        _ => "the runtime".to_owned(),
    }
}

/// The runtime's endpoint, and where it was configured.
pub(crate) fn endpoint(global: &Global) -> anyhow::Result<(Endpoint, String)> {
    if let Some(endpoint) = &global.runtime_endpoint {
        return Ok((endpoint.clone(), "--runtime-endpoint".to_owned()));
    }
    Discovery::default().find().map_err(|error| match error {
        DiscoverError::Invalid { .. } => Usage(error.to_string()).into(),
        DiscoverError::Config { .. } => anyhow::anyhow!("{error}"),
        DiscoverError::Nowhere { .. } => {
            anyhow::anyhow!("{error}. Name a socket with --runtime-endpoint, or try a simulated node with: pleg demo")
        }
    })
}

/// The runtime's endpoint; printed with `--verbose`.
pub(crate) fn told_endpoint(global: &Global) -> anyhow::Result<Endpoint> {
    let (endpoint, from) = endpoint(global)?;
    if global.verbose {
        tell(&format!("asking the runtime at {endpoint} ({from})"));
    }
    Ok(endpoint)
}

/// Connects to the runtime; reports progress on a terminal if that takes long.
pub(crate) async fn runtime(global: &Global, deadlines: Deadlines, metrics: &Metrics) -> anyhow::Result<Client> {
    observed_runtime(global, deadlines, Arc::new(metrics.clone())).await
}

/// The same, with calls that somebody else observes.
pub(crate) async fn observed_runtime(
    global: &Global,
    deadlines: Deadlines,
    observer: Arc<dyn Observer>,
) -> anyhow::Result<Client> {
    let endpoint = told_endpoint(global)?;
    let inflight = InFlight::observed_by(observer);
    let config = pleg_cri::Config {
        deadlines,
        inflight: inflight.clone(),
        ..pleg_cri::Config::default()
    };
    let connect = Client::connect(endpoint, config);
    Ok(waiting::told(|| waiting::oldest_call(&inflight), connect).await?)
}

/// The deadlines of a command: from the flag, else from crictl.yaml, else the defaults.
pub(crate) fn deadlines(global: &Global, stay: Stay) -> anyhow::Result<Deadlines> {
    let default = Deadlines::default();
    let crictl = || CrictlConfig::read(CRICTL_CONFIG.as_ref()).map_err(|error| anyhow::anyhow!("{error}"));
    let one = match global.timeout {
        Some(timeout) => Some(timeout),
        None => crictl()
            .context("cannot read the timeout")?
            .and_then(|config| config.timeout()),
    };
    Ok(match (one, stay) {
        (Some(one), _) => every(one),
        (None, Stay::Once) => Deadlines { list: ONCE, ..default },
        (None, Stay::Long) => default,
    })
}

/// Uses one deadline for every call that reads.
pub(crate) fn every(one: Duration) -> Deadlines {
    let default = Deadlines::default();
    Deadlines {
        list: one,
        inspect: one,
        connect: default.connect.min(one),
        ..default
    }
}

/// Prints a note on stderr.
pub(crate) fn tell(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stderr(), "{text}");
}
