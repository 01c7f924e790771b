//! `pleg bench node`: what `pleg node` adds to what the runtime itself takes.
//!
//! The same pods twice: once by the same calls, made directly, and once by `pleg node` from manifests. When a container was made,
//! began and ended is taken from the runtime's own books, for both alike; so nobody has to be asked, or listened to, while it works.
//!
//! | module | job |
//! |---|---|
//! | `figures` | what was measured, what it may be, and how it is shown |
//! | `pods` | the pods: their manifests, and the requests that are made from them |
//! | `direct` | the baseline: the same calls, by four clients |
//! | `subject` | `pleg node` itself, as a child process, with its directory of manifests |
//! | `course` | the measurements, one after the other |

mod course;
mod direct;
mod figures;
mod pods;
mod subject;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use pleg::Metrics;
use pleg_cri::duration::seconds;
use pleg_cri::{Client, Deadlines, v1};
use tokio_util::sync::CancellationToken;

use self::course::Course;
use self::figures::Report;
use crate::args::{Global, PlainFormat};
use crate::text::{count, parse_duration};
use crate::{connect, output};

/// What a shell calls a command that Ctrl-C ended before it had an answer.
const INTERRUPTED: u8 = 130;
/// How long the end of what we made may take.
const CLEAN: Duration = Duration::from_mins(2);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg bench node                                  On this machine's runtime: takes three minutes
  pleg bench node --pods 10 --rounds 3 --idle 5s   A taste
  pleg bench node -o json | jq '.figures[] | select(.ok | not)'
  pleg bench node --check                          Exit code 1 if a limit is missed

It runs pods of its own on the host network and removes them; a runtime with other pods is refused.
`pleg node` is this binary, as a child process. Starts are measured twice, alternating, and the better
result of each counts. Stop other programs that use the CPU.")]
pub(crate) struct NodeBench {
    /// Number of pods
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pods: u32,
    /// Number of crashes, edits and removals to measure
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long to measure it while idle, after a wait of the same length, at most 20s, for it to settle
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    idle: Duration,
    /// An image that contains sh and sleep; pulled if absent
    #[arg(long, value_name = "IMAGE", default_value = "busybox:1.36")]
    image: String,
    /// Exit with 1 if a limit is exceeded
    #[arg(long)]
    check: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: PlainFormat,
}

pub(crate) async fn run(global: &Global, args: NodeBench, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    let client = connect::runtime(global, Deadlines::default(), &Metrics::new()?).await?;
    refuse_to_disturb(&client).await?;
    let image = Box::pin(image(&client, &args.image)).await?;
    let scratch = Scratch::new()?;
    let course = Course::new(client.clone(), scratch.path(), &args.image, image)?;
    let sizes = course::Sizes {
        pods: args.pods as usize,
        rounds: args.rounds as usize,
        idle: args.idle,
    };
    let measured = tokio::select! {
        biased;
        () = shutdown.cancelled() => None,
        report = course.run(sizes) => Some(report),
    };
    // Whatever happened: pods of ours do not stay. A second Ctrl-C has the default effect.
    let cleaned = tokio::time::timeout(CLEAN, direct::remove_all(&client, pods::NODE)).await;
    let cleaned = cleaned.unwrap_or_else(|_| anyhow::bail!("not done within {}", seconds(CLEAN)));
    let cleaned = cleaned.with_context(|| {
        let label = pleg_node::executor::requests::NODE_LABEL;
        format!("pods of the benchmark are left, with the label {label}={}", pods::NODE)
    });
    let Some(report) = measured else {
        cleaned?;
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let report: Report = report?;
    cleaned?;
    match args.output {
        PlainFormat::Json => output::print_json(&report)?,
        PlainFormat::Table => output::print(&report.text())?,
    }
    let missed = args.check && !report.all_ok();
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Others' pods would be disturbed, and would disturb what is measured.
async fn refuse_to_disturb(client: &Client) -> anyhow::Result<()> {
    let listed = client.call(v1::ListPodSandboxRequest::default()).await?.items;
    let Some(first) = listed.first() else { return Ok(()) };
    let name = first.metadata.clone().unwrap_or_default();
    let label = pleg_node::executor::requests::NODE_LABEL;
    let ours = |sandbox: &v1::PodSandbox| sandbox.labels.get(label).is_some_and(|node| node == pods::NODE);
    if listed.iter().all(ours) {
        let node = pods::NODE;
        anyhow::bail!(
            "{} has {} of an earlier measurement. Remove them with: crictl rmp -f $(crictl pods -q --label {label}={node})",
            client.endpoint(),
            count(listed.len(), "pod"),
        );
    }
    anyhow::bail!(
        "{} has {} ({}/{}{}): the benchmark creates and removes many pods, and other pods distort the results. Use a runtime without pods",
        client.endpoint(),
        count(listed.len(), "pod"),
        name.namespace,
        name.name,
        if listed.len() > 1 { ", …" } else { "" }
    )
}

/// The image, which has to be there before anything is measured.
async fn image(client: &Client, name: &str) -> anyhow::Result<v1::Image> {
    let spec = || v1::ImageSpec {
        image: name.to_owned(),
        ..Default::default()
    };
    let status = async || {
        let request = v1::ImageStatusRequest {
            image: Some(spec()),
            verbose: false,
        };
        anyhow::Ok(client.call(request).await?.image.filter(|image| !image.id.is_empty()))
    };
    if let Some(image) = status().await? {
        return Ok(image);
    }
    tell(&format!("pulling {name}"));
    let request = v1::PullImageRequest {
        image: Some(spec()),
        ..Default::default()
    };
    let pulled = Box::pin(client.call(request)).await;
    pulled.with_context(|| format!("image {name} not found. Choose another one with --image"))?;
    status()
        .await?
        .with_context(|| format!("{name} was pulled but cannot be found"))
}

/// Says on a terminal what is being measured.
fn tell(what: &str) {
    if std::io::stderr().is_terminal() {
        let _ = writeln!(anstream::stderr(), "{what}");
    }
}

/// A directory that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("pleg-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing of worth is in it.
        let _ = std::fs::remove_dir_all(&self.0);
        // Whoever names cgroups removes them, a runtime does not: those of pods, and what they were below.
        let top = Path::new("/sys/fs/cgroup");
        for hierarchy in directories(top).chain([top.to_owned()]) {
            let root = hierarchy.join(pods::NODE);
            for group in directories(&root).chain([root.clone()]) {
                // What is busy stays.
                let _ = std::fs::remove_dir(group);
            }
        }
    }
}

fn directories(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}
