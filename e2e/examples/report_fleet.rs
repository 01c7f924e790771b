//! What the reporters of a fleet cost an API server:
//! `cargo run --release --workspace --example report_fleet -- [NODES] [SECONDS AT REST] [CLIENTS]`.
//!
//! Starts a real control plane, creates NODES Node objects (5000), and runs a reporter for each of them in this process, with the rights of
//! `deploy/rbac.yaml`. Then something is stuck on a tenth of the nodes at once, and recovers. As in a fleet, each reporter has a client and
//! connections of its own, unless CLIENTS says that so many are shared by all. Requests without an answer are shown with their causes.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use pleg::{PodRef, Trouble};
use pleg_cluster::api::{Api, read_kubeconfig};
use pleg_cluster::report::{Finding, Findings, ReportHandle, Reporter, ReporterConfig};
use pleg_e2e::cluster::beside::account;
use pleg_e2e::cluster::{ControlPlane, Credentials, Part, pki};
use pleg_node::manifest::NodeName;
use prometheus::Registry;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// Requests at once while nodes are created.
const CREATED_AT_ONCE: usize = 32;
/// Longest time that a tenth of the nodes may need to report.
const PATIENCE: Duration = Duration::from_mins(10);

/// A node on which something may be stuck.
struct Simulated {
    name: String,
    is_stuck: Arc<AtomicBool>,
}

impl Findings for Simulated {
    fn now(&self) -> Option<Vec<Finding>> {
        let pod = PodRef {
            uid: format!("uid-{}", self.name).as_str().into(),
            namespace: "default".into(),
            name: format!("web-{}", self.name).as_str().into(),
        };
        let stuck = Finding {
            trouble: Trouble::HungShim,
            text: format!(
                "the shim of pod {pod} hangs: PodSandboxStatus through it is not answered; its process 4711 is stopped"
            ),
            pod: Some(pod),
            age: Duration::from_secs(10),
        };
        let is_stuck = self.is_stuck.load(Ordering::Relaxed);
        Some(if is_stuck { vec![stuck] } else { Vec::new() })
    }

    fn pod(&self, _: &str, _: &str) -> Option<PodRef> {
        None
    }
}

struct Fleet {
    cluster: ControlPlane,
    /// One for each client.
    requests: Vec<Registry>,
    nodes: Vec<(Arc<AtomicBool>, ReportHandle)>,
    stop: CancellationToken,
}

impl Fleet {
    async fn start(count: usize, clients: usize) -> Result<Self> {
        let cluster = ControlPlane::start().await?;
        let token = account(&cluster).await?;
        let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
        let creating = names.iter().map(|name| {
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            let cluster = &cluster;
            async move { cluster.post("/api/v1/nodes", &node).await.map(drop) }
        });
        let created: Vec<()> = stream::iter(creating)
            .buffer_unordered(CREATED_AT_ONCE)
            .try_collect()
            .await?;
        println!("{} nodes created", created.len());
        let file = cluster.dir().join("fleet.kubeconfig");
        pki::kubeconfig(
            &file,
            cluster.server(),
            cluster.ca().certificate(),
            Credentials::Token(&token),
        )?;
        let config = read_kubeconfig(&file).await?;
        let (mut apis, mut requests) = (Vec::new(), Vec::new());
        for _ in 0..clients.clamp(1, count) {
            let (api, registry) = (Api::new(config.clone())?, Registry::new());
            api.reach().register_requests(&registry)?;
            apis.push(api);
            requests.push(registry);
        }
        let stop = CancellationToken::new();
        let mut nodes = Vec::new();
        for (name, api) in names.into_iter().zip(apis.iter().cycle()) {
            let is_stuck = Arc::new(AtomicBool::new(false));
            let config = ReporterConfig {
                node: NodeName::new(&name).context("a name")?,
                boot_id: String::new(),
                pod_conditions: false,
                found_within: Duration::from_secs(75),
            };
            let findings = Simulated {
                name,
                is_stuck: Arc::clone(&is_stuck),
            };
            let reporter = Reporter::new(api.clone(), config, Arc::new(findings));
            nodes.push((is_stuck, reporter.handle()));
            tokio::spawn(reporter.run(stop.clone()));
        }
        Ok(Self {
            cluster,
            requests,
            nodes,
            stop,
        })
    }

    /// Requests so far, by method and code.
    fn requests(&self) -> BTreeMap<String, f64> {
        let mut all = BTreeMap::new();
        let families = self.requests.iter().flat_map(Registry::gather);
        for family in families.filter(|family| family.name() == "rest_client_requests_total") {
            for metric in family.get_metric() {
                let labels = metric.get_label().iter().map(prometheus::proto::LabelPair::value);
                let labels: Vec<&str> = labels.collect();
                *all.entry(labels.join(" ")).or_default() += metric.get_counter().get_value();
            }
        }
        all
    }

    /// What reporters that fail now say, without the name of their node, and how many say it.
    fn errors(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for (_, handle) in &self.nodes {
            let progress = handle.progress();
            if let Some(error) = progress.error {
                *all.entry(error.replace(&progress.node, "NODE")).or_default() += 1;
            }
        }
        all
    }

    /// Waits until it is so, and prints what it cost: requests, the most in one second, and the CPU of the API server.
    async fn phase(&self, what: &str, until: impl Fn(Duration) -> bool) -> Result<()> {
        let (start, before) = (Instant::now(), self.requests());
        let cpu = self.cpu()?;
        let total = |requests: &BTreeMap<String, f64>| requests.values().sum::<f64>();
        let mut errors: BTreeMap<String, usize> = BTreeMap::new();
        let (mut last, mut most) = (total(&before), 0.0_f64);
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !until(start.elapsed()) {
            tick.tick().await;
            let now = total(&self.requests());
            most = most.max(now - last);
            last = now;
            for (error, count) in self.errors() {
                let most = errors.entry(error).or_default();
                *most = count.max(*most);
            }
            if start.elapsed() > PATIENCE {
                bail!("{what}: not done within {PATIENCE:?}");
            }
        }
        let (seconds, after) = (start.elapsed().as_secs_f64(), self.requests());
        let by_kind: Vec<String> = after
            .iter()
            .map(|(kind, count)| (kind, count - before.get(kind).unwrap_or(&0.0)))
            .filter(|(_, count)| *count > 0.0)
            .map(|(kind, count)| format!("{kind}: {count}"))
            .collect();
        let requests = total(&after) - total(&before);
        let now = self.cpu()?;
        let percent = |which: usize| (now[which] - cpu[which]) / seconds * 100.0;
        println!(
            "{what}: {seconds:.0} s, {requests} requests, {:.1} each second, most in one second {most}; API server {:.1} % of a core, \
             reporters {:.1} %; {}",
            requests / seconds,
            percent(0),
            percent(1),
            by_kind.join(", "),
        );
        for (error, count) in errors {
            println!("    up to {count} at once: {error}");
        }
        Ok(())
    }

    /// Seconds of CPU so far, of the API server and of all reporters.
    fn cpu(&self) -> Result<[f64; 2]> {
        let api_server = self.cluster.pid(Part::ApiServer)?.to_string();
        Ok([cpu_of(&api_server)?, cpu_of("self")?])
    }

    fn set_stuck(&self, is_stuck: bool) {
        for (node, _) in self.nodes.iter().step_by(10) {
            node.store(is_stuck, Ordering::Relaxed);
        }
    }

    /// Every tenth node was reported so, and the others as fine.
    fn is_reported(&self, stuck: bool) -> bool {
        let expected = |n: usize| Some(stuck && n.is_multiple_of(10));
        self.nodes
            .iter()
            .enumerate()
            .all(|(n, (_, handle))| handle.progress().stuck == expected(n))
    }
}

/// Seconds of CPU of a process so far.
fn cpu_of(process: &str) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |n: usize| {
        fields
            .get(n)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or_default()
    };
    Ok((ticks(11) + ticks(12)) / 100.0)
}

fn resident_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let nodes = args.next().transpose()?.unwrap_or(5000);
    let rest = Duration::from_secs(args.next().transpose()?.unwrap_or(330));
    if let Some(obstacle) = ControlPlane::obstacle() {
        bail!("{obstacle}");
    }
    let clients = args.next().transpose()?.unwrap_or(nodes);
    let fleet = Fleet::start(usize::try_from(nodes)?, usize::try_from(clients)?).await?;
    fleet.phase("all start", |_| fleet.is_reported(false)).await?;
    println!("resident: {:.0} MiB", resident_mib().unwrap_or_default());
    fleet.phase("at rest", |elapsed| elapsed >= rest).await?;
    fleet.set_stuck(true);
    fleet.phase("a tenth is stuck", |_| fleet.is_reported(true)).await?;
    fleet
        .phase("and stays so", |elapsed| elapsed >= Duration::from_mins(1))
        .await?;
    fleet.set_stuck(false);
    fleet.phase("it recovers", |_| fleet.is_reported(false)).await?;
    println!("resident: {:.0} MiB", resident_mib().unwrap_or_default());
    fleet.stop.cancel();
    sleep(Duration::from_secs(3)).await;
    Ok(())
}
