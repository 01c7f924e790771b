//! `pleg bench`: what a relist costs, compared with merely moving its bytes. And [`node`]: what `pleg node` adds to the runtime's own work.

pub(crate) mod node;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use pleg::Metrics;
use pleg::internals::{Coverage, Records, Snapshot};
use pleg_cri::{Client, ListFilter, v1};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tokio::time::Instant;

use crate::args::{Bench, Global, PlainFormat};
use crate::connect::{self, Stay};
use crate::output::{self, table::Table};
use crate::text::count;

/// Relists before the first that counts: connections, buffers and branch predictors settle.
const WARM_UP: u32 = 5;
/// How often all statuses are asked for.
const ROUNDS: u32 = 3;
/// Statuses in flight: where the generator's limit begins.
const AT_ONCE: usize = 64;

#[derive(Debug, Serialize)]
struct Result {
    endpoint: String,
    pods: usize,
    containers: usize,
    bytes: usize,
    #[serde(rename = "looks")]
    relists: u32,
    #[serde(rename = "look")]
    relist: Cost,
    floor: Cost,
    cpu_ratio: f64,
    wall_ratio: f64,
    rss_mib: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    statuses: Option<Statuses>,
}

/// The floor under inspecting everything.
#[derive(Debug, Serialize)]
struct Statuses {
    calls: usize,
    bytes: usize,
    #[serde(flatten)]
    cost: Cost,
}

#[derive(Debug, Serialize)]
struct Cost {
    cpu_ms_p50: f64,
    cpu_ms_p90: f64,
    wall_ms_p50: f64,
    wall_ms_p90: f64,
}

pub(crate) async fn run(global: &Global, args: Bench) -> anyhow::Result<ExitCode> {
    let client = connect::runtime(global, connect::deadlines(global, Stay::Long)?, &Metrics::new()?).await?;
    let mut relister = Relister::new(client);
    let (mut relist, mut floor) = (Samples::default(), Samples::default());
    let talk = std::io::stderr().is_terminal();
    for n in 0..WARM_UP + args.relists {
        // One after the other in turn, so that whatever else the machine does falls on both.
        tokio::time::sleep(args.every).await;
        let relisted = measure(relister.relist()).await?;
        tokio::time::sleep(args.every).await;
        let moved = Box::pin(measure(relister.client.drain_lists())).await?;
        relister.bytes = moved.0;
        if n >= WARM_UP {
            relist.push(relisted.1);
            floor.push(moved.1);
        }
        if talk {
            let _ = write!(anstream::stderr(), "\rrelist {} of {}", n + 1, WARM_UP + args.relists);
        }
    }
    if talk {
        let _ = writeln!(anstream::stderr());
    }
    let (relist, floor) = (relist.cost(), floor.cost());
    let result = Result {
        endpoint: relister.client.endpoint().to_string(),
        pods: relister.records.len(),
        containers: relister.containers,
        bytes: relister.bytes,
        relists: args.relists,
        cpu_ratio: round(relist.cpu_ms_p50 / floor.cpu_ms_p50.max(f64::MIN_POSITIVE)),
        wall_ratio: round(relist.wall_ms_p50 / floor.wall_ms_p50.max(f64::MIN_POSITIVE)),
        relist,
        floor,
        rss_mib: rss_mib(),
        statuses: if args.statuses {
            Some(statuses(&relister.client).await?)
        } else {
            None
        },
    };
    match args.output {
        PlainFormat::Json => output::print_json(&result)?,
        PlainFormat::Table => output::print(&text(&result))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Relists as the generator does when nothing has changed.
struct Relister {
    client: Client,
    snapshot: Snapshot,
    records: Records,
    containers: usize,
    bytes: usize,
}

impl Relister {
    fn new(client: Client) -> Self {
        Self {
            client,
            snapshot: Snapshot::default(),
            records: Records::default(),
            containers: 0,
            bytes: 0,
        }
    }

    async fn relist(&mut self) -> anyhow::Result<()> {
        self.records.prepare(&mut self.snapshot);
        let Snapshot { sandboxes, containers } = &mut self.snapshot;
        let filter = ListFilter::All;
        let (listed, counted) = tokio::join!(
            self.client.list_sandboxes_raw(&filter, |item| sandboxes.push_raw(item)),
            self.client
                .list_containers_raw(&filter, |item| containers.push_raw(item)),
        );
        listed?;
        self.containers = counted?.items;
        let (touched, _) = self.records.observe(&mut self.snapshot, Coverage::Full);
        // In a quiet node only the first relist finds anything.
        for &pod in &touched {
            let view = self.records.listed(pod);
            self.records.commit(pod, &view);
        }
        self.records.recycle(touched);
        Ok(())
    }
}

/// Asks for the status of everything by id and drops the answers.
async fn statuses(client: &Client) -> anyhow::Result<Statuses> {
    let (mut sandboxes, mut containers): (Vec<String>, Vec<String>) = Default::default();
    let filter = ListFilter::All;
    client
        .list_sandboxes(&filter, |item| {
            sandboxes.push(String::from_utf8_lossy(item.id).into_owned());
        })
        .await?;
    client
        .list_containers(&filter, |item| {
            containers.push(String::from_utf8_lossy(item.id).into_owned());
        })
        .await?;
    let (mut samples, mut bytes) = (Samples::default(), 0);
    for _ in 0..ROUNDS {
        let of_sandboxes = stream::iter(&sandboxes).map(|id| {
            let request = v1::PodSandboxStatusRequest {
                pod_sandbox_id: id.clone(),
                ..Default::default()
            };
            client.drain(request)
        });
        let of_containers = stream::iter(&containers).map(|id| {
            let request = v1::ContainerStatusRequest {
                container_id: id.clone(),
                ..Default::default()
            };
            client.drain(request)
        });
        let all = of_sandboxes
            .map(futures_util::future::Either::Left)
            .chain(of_containers.map(futures_util::future::Either::Right))
            .buffer_unordered(AT_ONCE)
            .try_fold(0, async |sum, bytes| Ok(sum + bytes));
        let (sum, cost) = Box::pin(measure(all)).await?;
        bytes = sum;
        samples.push(cost);
    }
    Ok(Statuses {
        calls: sandboxes.len() + containers.len(),
        bytes,
        cost: samples.cost(),
    })
}

async fn measure<T, E: Into<anyhow::Error>>(
    work: impl Future<Output = std::result::Result<T, E>>,
) -> anyhow::Result<(T, [Duration; 2])> {
    let (cpu, wall) = (cpu(), Instant::now());
    let answer = work.await.map_err(Into::into)?;
    let wall = wall.elapsed();
    Ok((answer, [self::cpu().saturating_sub(cpu), wall]))
}

/// The processor's time that this process has used.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(secs, u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[derive(Debug, Default)]
struct Samples {
    cpu: Vec<Duration>,
    wall: Vec<Duration>,
}

impl Samples {
    fn push(&mut self, [cpu, wall]: [Duration; 2]) {
        self.cpu.push(cpu);
        self.wall.push(wall);
    }

    fn cost(mut self) -> Cost {
        self.cpu.sort();
        self.wall.sort();
        let at = |samples: &[Duration], percent: usize| {
            let found = samples.get((samples.len() * percent / 100).min(samples.len().saturating_sub(1)));
            round(found.map_or(0.0, |sample| sample.as_secs_f64() * 1e3))
        };
        Cost {
            cpu_ms_p50: at(&self.cpu, 50),
            cpu_ms_p90: at(&self.cpu, 90),
            wall_ms_p50: at(&self.wall, 50),
            wall_ms_p90: at(&self.wall, 90),
        }
    }
}

fn round(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

/// Resident memory, in MiB; 0 where the kernel does not tell.
fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0);
    (kib / 1024.0 * 10.0).round() / 10.0
}

fn text(result: &Result) -> String {
    let mut table = Table::new(&["", "CPU P50", "CPU P90", "WALL P50", "WALL P90"]);
    for (name, cost) in [("relist", &result.relist), ("floor", &result.floor)] {
        let ms = |value: f64| format!("{value:.3}ms").into();
        let cells = [cost.cpu_ms_p50, cost.cpu_ms_p90, cost.wall_ms_p50, cost.wall_ms_p90].map(ms);
        table.row([name.into()].into_iter().chain(cells).collect());
    }
    let statuses = result.statuses.as_ref().map_or(String::new(), |all| {
        format!(
            "Requesting {} statuses, {AT_ONCE} at a time, and discarding {} bytes: {:.1}ms of CPU, {:.1}ms.\n",
            all.calls, all.bytes, all.cost.cpu_ms_p50, all.cost.wall_ms_p50
        )
    });
    format!(
        "{} at {}: {}, {}, {} bytes\n{}A relist costs {:.2} times the CPU of the floor. Memory: {} MiB\n{statuses}",
        count(result.relists, "relist"),
        result.endpoint,
        count(result.pods, "pod"),
        count(result.containers, "container"),
        result.bytes,
        table.render(),
        result.cpu_ratio,
        result.rss_mib
    )
}
