//! `pleg node`: runs the pods of a set of manifests; `pleg node check` and `pleg node problems` report what is wrong with manifests.

mod check;
mod cluster;
mod configz;
mod lock;
mod manifest_sources;
mod node_server;
mod problems;
mod tasks;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use pleg::{CriRuntime, Generator, Metrics, WitnessMode};
use pleg_cluster::cluster::{Cluster, NodeHandles};
use pleg_cri::{Client, Deadlines, v1};
use pleg_node::events::EventSink;
use pleg_node::executor::requests::{Cgroups, HostOptions, NodeConfig, check_pattern};
use pleg_node::manifest::{NodeName, Quantity};
use pleg_node::{
    DEFAULT_HARD, EvictionConfig, GracefulShutdown, ImageGcPolicy, LogLimits, NodeLoop, Store, Threshold, host,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::about::{Settings, Setup};
use crate::args::{Global, HistoryFileArgs, WitnessArg};
use crate::history_task::DaemonHistory;
use crate::http::{routes, server};
use crate::listen::ListenArgs;
use crate::signals::Signals;
use crate::systemd::Systemd;
use crate::telemetry::Telemetry;
use crate::text::{count, parse_duration_or_zero};
use crate::{Usage, connect};
use cluster::ClusterArgs;
use lock::NodeLock;
use manifest_sources::ManifestSources;
use node_server::ServerArgs;
use tasks::{run_cluster, run_generator, run_node_server};

/// Smallest maximum size of a log.
const LEAST_LOG: u64 = 4096;
/// Snapshots that wait for the node loop.
const QUEUED: usize = 4;
/// Most foreign pods that are named in an error.
const MOST_NAMED: usize = 3;

#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("source").required(true).multiple(true).args(["manifests", "manifest_url", "kubeconfig"]),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  pleg node --manifests /etc/pleg/manifests
  pleg node --manifests DIR --manifest-url http://10.0.0.1/pods.yaml
  pleg node --kubeconfig /etc/kubernetes/kubelet.conf    Become a node of a cluster
  pleg pods
  pleg inspect web-NODE
  pleg node check web.yaml                    What would be refused, before it is deployed
  pleg node problems                          Current manifest problems

A file contains one or more pods, as YAML or JSON. Editing it replaces its pods, removing it terminates them.
A manifest with an unsupported field is refused with the path of that field; nothing is ignored."
)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    what: Option<NodeWhat>,
    /// Run the pods of the manifests in this directory
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Run the pods served at this URL, which is polled every 20 s
    #[arg(long, value_name = "URL")]
    manifest_url: Option<String>,
    /// Node name, appended to the name of every pod [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Node IP address [default: the source address of outgoing connections]
    #[arg(long, value_name = "IP")]
    node_ip: Option<IpAddr>,
    /// Directory for container logs
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    log_dir: PathBuf,
    /// Directory for links to container logs
    #[arg(long, value_name = "DIR", default_value = "/var/log/containers")]
    log_link_dir: PathBuf,
    /// Rotate a container log that is larger than this
    #[arg(long, value_name = "SIZE", default_value = "10Mi", value_parser = log_size)]
    container_log_max_size: u64,
    /// Maximum number of log files per container
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(2..))]
    container_log_max_files: u16,
    /// Remove unused images once this much of their filesystem is in use, in percent; 100 for never
    #[arg(long, value_name = "PERCENT", default_value = "85", value_parser = clap::value_parser!(u8).range(0..=100))]
    image_gc_high_threshold: u8,
    /// Remove unused images until no more than this much is in use, in percent
    #[arg(long, value_name = "PERCENT", default_value = "80", value_parser = clap::value_parser!(u8).range(0..=100))]
    image_gc_low_threshold: u8,
    /// Keep an unused image for at least this long
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration_or_zero)]
    image_minimum_gc_age: Duration,
    /// Evict a pod at once when less than this is left, as in `memory.available<100Mi,nodefs.available<10%`; '' for never
    #[arg(long, value_name = "THRESHOLDS", default_value = DEFAULT_HARD)]
    eviction_hard: String,
    /// Evict a pod when less than this has been left for a grace period
    #[arg(long, value_name = "THRESHOLDS", default_value = "", hide_default_value = true)]
    eviction_soft: String,
    /// Grace periods of --eviction-soft, as in `memory.available=1m30s`
    #[arg(long, value_name = "PERIODS", default_value = "", hide_default_value = true)]
    eviction_soft_grace_period: String,
    /// Longest grace period of a pod that is evicted for --eviction-soft
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration_or_zero)]
    eviction_max_pod_grace_period: Duration,
    /// Report pressure for this long after its cause has gone
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration_or_zero)]
    eviction_pressure_transition_period: Duration,
    /// End all pods within this time when told to stop (SIGTERM): ordinary ones first, then critical ones [default: pods keep running]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_or_zero)]
    shutdown_grace_period: Option<Duration>,
    /// How much of --shutdown-grace-period is kept for critical pods
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "0s",
        value_parser = parse_duration_or_zero,
        requires = "shutdown_grace_period"
    )]
    shutdown_grace_period_critical_pods: Duration,
    /// Instead: how long pods have of each priority or more, the lowest first, as in `0=20s,1000=10s,2000000000=10s`
    #[arg(
        long,
        value_name = "PRIORITY=DURATION",
        value_delimiter = ',',
        value_parser = priority_period,
        allow_hyphen_values = true,
        conflicts_with = "shutdown_grace_period"
    )]
    shutdown_grace_period_by_priority: Vec<(i32, Duration)>,
    /// Directory for pod volumes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/pleg/pods")]
    pod_dir: PathBuf,
    /// State file for what has to survive a restart: exit codes, restart counts, back-off
    #[arg(long, value_name = "FILE", default_value = "/var/lib/pleg/node.redb")]
    state_file: PathBuf,
    /// Cgroup below which `kubepods` with all pods is; `/` for the top, which a kubelet uses
    #[arg(long, value_name = "NAME", default_value = "pleg", value_parser = cgroup_root)]
    cgroup_root: String,
    /// Directory of the seccomp profiles that pods refer to as Localhost
    #[arg(long, value_name = "DIR", default_value = "/var/lib/pleg/seccomp")]
    seccomp_dir: PathBuf,
    /// Kernel parameters that pods may set although they are not safe, such as kernel.msg*
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = sysctl_pattern)]
    allowed_unsafe_sysctls: Vec<String>,
    /// Handler of the runtime for a runtimeClassName [default: the handler of the same name]
    #[arg(long, value_name = "CLASS=HANDLER", value_parser = runtime_class)]
    runtime_class: Vec<(String, String)>,
    /// Domain of the cluster, for the full names of pods with a subdomain, and for their DNS
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// DNS servers of the cluster, for pods with `dnsPolicy: ClusterFirst` [default: those pods have the host's DNS]
    #[arg(long, value_name = "IPS", value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// Give each pod a cgroup with limits of its own; false leaves it to the runtime
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    cgroups_per_qos: bool,
    /// How the runtime names cgroups [default: what the runtime reports, else cgroupfs]
    #[arg(long, value_name = "DRIVER")]
    cgroup_driver: Option<CgroupDriver>,
    /// Allow pods of another owner on the same runtime; they are not touched
    #[arg(long)]
    share_runtime: bool,
    /// Watch the processes and cgroups of containers in the kernel, where they can be seen (auto), or not at all (off). Crashed
    /// containers are then restarted as soon as the runtime reports their exit, on every runtime
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    witness: WitnessArg,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    history: HistoryFileArgs,
}

/// The cgroup drivers of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CgroupDriver {
    /// Cgroups are directories
    Cgroupfs,
    /// Cgroups are slices of systemd
    Systemd,
}

/// The name of the simulated runtime.
const SIMULATED: &str = "pleg-sim";
/// Where cgroups are mounted.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// The subcommands, which answer once.
#[derive(Debug, Subcommand)]
enum NodeWhat {
    /// Check manifests: what would be refused, and why, before they are deployed
    Check(check::CheckArgs),
    /// Show the manifest problems of the running node
    Problems(problems::ProblemsArgs),
}

impl NodeArgs {
    /// Whether it runs pods until shutdown, and is not a subcommand that answers once.
    pub(crate) fn stays(&self) -> bool {
        self.what.is_none()
    }

    fn image_gc(&self) -> Result<ImageGcPolicy, Usage> {
        let (high, low) = (self.image_gc_high_threshold, self.image_gc_low_threshold);
        if low >= high {
            return Err(Usage(format!(
                "--image-gc-low-threshold {low} must be less than --image-gc-high-threshold {high}"
            )));
        }
        Ok(ImageGcPolicy {
            high_threshold: high,
            low_threshold: low,
            minimum_age: self.image_minimum_gc_age,
        })
    }

    fn eviction(&self) -> Result<EvictionConfig, Usage> {
        let refused = |flag: &'static str| move |error| Usage(format!("--{flag}: {error}"));
        let mut thresholds = Threshold::parse_hard(&self.eviction_hard).map_err(refused("eviction-hard"))?;
        let soft = Threshold::parse_soft(&self.eviction_soft, &self.eviction_soft_grace_period);
        thresholds.extend(soft.map_err(refused("eviction-soft"))?);
        Ok(EvictionConfig {
            thresholds,
            pressure_transition_period: self.eviction_pressure_transition_period,
            max_pod_grace_period: self.eviction_max_pod_grace_period,
        })
    }

    /// How pods end when `requested`; none if they keep running.
    fn graceful_shutdown(&self, requested: &CancellationToken) -> Result<Option<GracefulShutdown>, Usage> {
        let requested = requested.clone();
        if !self.shutdown_grace_period_by_priority.is_empty() {
            let periods = self.shutdown_grace_period_by_priority.iter().copied().collect();
            return Ok(Some(GracefulShutdown::by_priority(requested, periods)));
        }
        let critical_pods = self.shutdown_grace_period_critical_pods;
        let Some(grace_period) = self.shutdown_grace_period.filter(|grace| !grace.is_zero()) else {
            return Ok(None);
        };
        if critical_pods > grace_period {
            return Err(Usage(
                "--shutdown-grace-period-critical-pods must not be more than --shutdown-grace-period, of which it is a part".to_owned(),
            ));
        }
        Ok(Some(GracefulShutdown::new(requested, grace_period, critical_pods)))
    }

    fn log_limits(&self) -> LogLimits {
        LogLimits {
            max_bytes: self.container_log_max_size,
            max_files: self.container_log_max_files.into(),
        }
    }
}

/// The name given on the command line, or the host name.
fn node_name(typed: Option<&str>) -> Result<NodeName, Usage> {
    let name = match typed {
        Some(name) => NodeName::new(name),
        None => host::name(),
    };
    name.map_err(|what| Usage(format!("{what}. Set one with --node-name")))
}

/// Runs a subcommand.
pub(crate) async fn once(global: &Global, args: NodeArgs) -> anyhow::Result<ExitCode> {
    match args.what {
        Some(NodeWhat::Check(args)) => check::run(args).await,
        Some(NodeWhat::Problems(args)) => problems::run(global, args).await,
        None => Ok(ExitCode::SUCCESS),
    }
}

pub(crate) async fn run(global: &Global, args: NodeArgs, signals: Signals) -> anyhow::Result<ExitCode> {
    let graceful_shutdown = args.graceful_shutdown(&signals.stop)?;
    let ends_pods = graceful_shutdown.is_some();
    // If pods have to end first, the first signal only begins it.
    let shutdown = if ends_pods {
        signals.stop_now.child_token()
    } else {
        signals.stop.clone()
    };
    let name = node_name(args.node_name.as_deref())?;
    let (image_gc, eviction) = (args.image_gc()?, args.eviction()?);
    let sources = ManifestSources::new(&args, &name)?;
    let path = args.listen.path()?;
    let tcp = args.listen.bind_tcp().await?;

    let (metrics, telemetry) = (Metrics::new()?, Telemetry::from_env()?);
    let deadlines = global.timeout.map_or_else(Deadlines::default, connect::every);
    let client = tokio::select! {
        biased;
        () = signals.stop.cancelled() => return Ok(ExitCode::SUCCESS),
        client = connect::observed_runtime(global, deadlines, telemetry.observer(&metrics)) => client?,
    };
    // Held until the end.
    let _lock = NodeLock::take(client.endpoint(), &name, &args.state_file).await?;
    if !args.share_runtime {
        refuse_to_share(&client, &name).await?;
    }
    let versions = client.version().await?;
    let runtime = &*versions.runtime_name;
    let mut node = node_config(&args, name, &client).await;
    // A simulated runtime has no processes, and must not fill the cgroups of this machine.
    node.cgroups_per_qos &= runtime != SIMULATED;

    let configz = configz::configz(&args, &client.endpoint().to_string(), &node);

    let unix = args.listen.bind().await?;
    let store = Store::open(&args.state_file)?;
    let sources = sources.with_known(&store.manifests(&node.name));
    let runtime_version = format!("{runtime}://{}", versions.runtime_version);
    let mut cluster = args
        .cluster
        .open(
            &node,
            args.node_ip.is_some(),
            &eviction,
            runtime_version,
            args.server.port(),
        )
        .await;
    let node_server = match &mut cluster {
        Some(cluster) => Some(args.server.open(&node, cluster).await?),
        None => None,
    };
    let mut origins = sources.origins();
    origins.extend(cluster.iter().flat_map(Cluster::origins));
    let history = DaemonHistory::open(&args.history, &metrics).await;
    let generator = generator(&args, &client, metrics, &history);
    let mut node_loop = NodeLoop::new(client.clone(), generator.handle(), node, origins.clone(), runtime)?
        .with_store(store)
        .with_logs(args.log_limits())
        .with_image_gc(image_gc)
        .with_eviction(eviction);
    if let Some(graceful_shutdown) = graceful_shutdown {
        node_loop = node_loop.with_graceful_shutdown(graceful_shutdown);
    }
    let node_loop = with_cluster(node_loop, &history, cluster.as_ref());
    let mut setup = Setup::new(client.clone(), settings(&args, &path));
    let history = history.record(&generator.handle(), &mut setup);
    let router = routes::router(generator.handle(), setup, Some(node_loop.reports()), shutdown.clone());
    log_start(&sources, cluster.as_ref(), &client);

    let (sender, snapshots) = mpsc::channel(QUEUED);
    let handles = NodeHandles {
        pleg: generator.handle(),
        runtime: client,
        reports: node_loop.reports(),
        snapshots: sender.clone(),
        shutting_down: if ends_pods {
            signals.stop
        } else {
            CancellationToken::new()
        },
    };
    let (pleg, served) = (generator.handle(), configz::serve(&router, configz));
    let sources = sources.spawn(sender, &shutdown);
    let node_server = run_node_server(node_server, handles.clone(), served, &shutdown);
    let server = server::serve(unix, tcp, router, &shutdown);
    let node = run_generator(generator, node_loop, snapshots, sources, &shutdown);
    let joined = run_cluster(cluster, handles, &shutdown);
    let systemd = Systemd::of_this_process();
    let told = systemd.tell(&pleg, &shutdown);
    let sending = telemetry.run(&pleg, &shutdown);
    let ((), ended, joined, served, (), ()) = tokio::join!(server, node, joined, node_server, told, sending);
    history.finish().await;
    joined?;
    served?;
    ended?;
    tracing::info!(
        "stopped; pods {}",
        if ends_pods { "have ended" } else { "keep running" }
    );
    Ok(ExitCode::SUCCESS)
}

/// Whose pods it runs, and where.
fn log_start(sources: &ManifestSources, cluster: Option<&Cluster>, client: &Client) {
    let mut whose: Vec<String> = sources.origins().iter().map(ToString::to_string).collect();
    whose.extend(cluster.map(Cluster::describe));
    tracing::info!("running the pods of {} on {}", whose.join(" and "), client.endpoint());
}

/// The flags in force, for those who read a bug report.
fn settings(args: &NodeArgs, socket: &Path) -> Settings {
    Settings::from([
        ("listen", socket.display().to_string()),
        ("listen-tcp", args.listen.tcp_text()),
        ("witness", WitnessMode::from(args.witness).to_string()),
        ("history", args.history.describe()),
    ])
}

/// Gives the node what its cluster has for it, and tells its history and its cluster what it does.
fn with_cluster(mut node_loop: NodeLoop, history: &DaemonHistory, cluster: Option<&Cluster>) -> NodeLoop {
    if let Some(cluster) = cluster {
        node_loop = node_loop
            .with_objects(cluster.objects())
            .with_allocatable(cluster.allocatable());
    }
    let of_cluster = cluster.map(|cluster| Arc::new(cluster.events()) as Arc<dyn EventSink>);
    match history.events(of_cluster) {
        Some(events) => node_loop.with_events(events),
        None => node_loop,
    }
}

fn generator(args: &NodeArgs, client: &Client, metrics: Metrics, history: &DaemonHistory) -> Generator<CriRuntime> {
    let mut config = pleg::Config::default();
    history.configure(&mut config);
    // On a runtime of our own there is no kubelet that would miss the events that we consume.
    config.evented.exclusive_subscriber = !args.share_runtime;
    config.heartbeat = Some(pleg_node::HEARTBEAT);
    config.witness = args.witness.into();
    Generator::new(CriRuntime::new(client.clone()), config, metrics)
}

async fn node_config(args: &NodeArgs, name: NodeName, client: &Client) -> NodeConfig {
    NodeConfig {
        ips: args.node_ip.or_else(host::address).into_iter().collect(),
        memory: host::memory(),
        cgroups_per_qos: args.cgroups_per_qos,
        cgroups: match args.cgroup_driver {
            Some(CgroupDriver::Cgroupfs) => Cgroups::Path,
            Some(CgroupDriver::Systemd) => Cgroups::Systemd,
            None => cgroups(client).await,
        },
        cgroup_root: args.cgroup_root.clone(),
        cgroup_mount: CGROUP_MOUNT.into(),
        oom_group: host::has_cgroup_v2(CGROUP_MOUNT.as_ref()),
        systemctl: "systemctl".into(),
        dns: host::dns(),
        host: host_options(args),
        logs: args.log_dir.clone(),
        log_links: args.log_link_dir.clone(),
        pods: args.pod_dir.clone(),
        name,
    }
}

/// What this machine has and allows.
fn host_options(args: &NodeArgs) -> HostOptions {
    HostOptions {
        cpus: host::cpus(),
        ephemeral_storage: host::disk_size(&args.pod_dir),
        selinux: host::has_selinux(),
        seccomp_profiles: args.seccomp_dir.clone(),
        allowed_unsafe_sysctls: args.allowed_unsafe_sysctls.clone(),
        runtime_handlers: args.runtime_class.iter().cloned().collect(),
        cluster_domain: args.cluster_domain.clone(),
        cluster_dns: args.cluster_dns.clone(),
        ..HostOptions::default()
    }
}

async fn refuse_to_share(client: &Client, name: &NodeName) -> anyhow::Result<()> {
    let others = pleg_node::foreign_pods(client, name)
        .await
        .context("cannot determine the owners of the pods")?;
    if others.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = others.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    anyhow::bail!(
        "{} has {} of another owner ({}{}): does a kubelet use this runtime? Use --share-runtime to run beside them",
        client.endpoint(),
        count(others.len(), "pod"),
        named.join(", "),
        if others.len() > MOST_NAMED { ", …" } else { "" }
    )
}

/// Bytes, as Kubernetes writes them.
fn log_size(text: &str) -> Result<u64, String> {
    let size = Quantity::parse(text).map_err(|error| error.to_string())?;
    match u64::try_from(size.units()) {
        Ok(bytes) if bytes >= LEAST_LOG => Ok(bytes),
        _ => Err(format!(
            "is less than {LEAST_LOG} bytes: the log would be rotated constantly"
        )),
    }
}

/// A kernel parameter of a pod's namespaces.
fn sysctl_pattern(text: &str) -> Result<String, String> {
    check_pattern(text).map_err(|error| error.to_string())
}

/// A priority, and how long pods of it have.
fn priority_period(text: &str) -> Result<(i32, Duration), String> {
    let (priority, period) = text
        .split_once('=')
        .ok_or("expected PRIORITY=DURATION, such as 1000=10s")?;
    let priority = priority
        .trim()
        .parse()
        .map_err(|_| format!("{priority:?} is not a priority: expected a whole number, such as 1000=10s"))?;
    Ok((priority, parse_duration_or_zero(period.trim())?))
}

/// A runtime class and its handler.
fn runtime_class(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((class, handler)) if !class.is_empty() && !handler.is_empty() => {
            Ok((class.to_owned(), handler.to_owned()))
        }
        _ => Err("expected CLASS=HANDLER, such as gvisor=runsc"),
    }
}

/// The top, or one level without characters that have a meaning to systemd or in paths.
fn cgroup_root(text: &str) -> Result<String, &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text == "/" {
        return Ok(text.to_owned());
    }
    if text.is_empty() || text.len() > 64 || text.starts_with('.') || !text.chars().all(plain) {
        return Err("expected / or up to 64 letters, digits, '-', '_' and '.', not starting with '.'");
    }
    Ok(text.to_owned())
}

/// How the runtime names cgroups: as paths if it does not answer.
async fn cgroups(client: &Client) -> Cgroups {
    match client.call(v1::RuntimeConfigRequest {}).await {
        Ok(answer)
            if answer.linux.as_ref().map(v1::LinuxRuntimeConfiguration::cgroup_driver)
                == Some(v1::CgroupDriver::Systemd) =>
        {
            Cgroups::Systemd
        }
        _ => Cgroups::Path,
    }
}
