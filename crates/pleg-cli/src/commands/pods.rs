//! `pleg pods`: the pods of the node.

mod again;
mod choose;
mod row;
mod watch;

use std::process::ExitCode;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, ListFormat, Pods};
use crate::connect::{self, Observed, Stay};
use crate::output::pod::Style;
use crate::text::clean;
use crate::{Usage, node_pod, output, signals};
pub(crate) use again::{Restarted, ask, can_ask, is_inspected, may_pass};
pub(crate) use choose::Choosable;
use choose::{choose, is_named};

/// Answers once.
pub(crate) async fn run(global: &Global, args: Pods) -> anyhow::Result<ExitCode> {
    check(&args)?;
    let observed = Observed::find(global, &args.observe, Stay::Once).await?;
    let pods = find(&observed, &args).await?;
    let absent = absent(&pods, &args);
    if !nothing(&args, &pods.chosen) || !absent.is_empty() {
        print(&pods.chosen, &args)?;
    }
    anyhow::ensure!(absent.is_empty(), "no pod {}", absent.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Answers, and keeps running.
pub(crate) async fn watch(global: &Global, args: Pods, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    check(&args)?;
    if args.output == ListFormat::Yaml {
        return Err(Usage("-w prints line by line: choose -o table, wide, json or name".to_owned()).into());
    }
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(ExitCode::SUCCESS),
        () = signals::stdout_closed() => Ok(ExitCode::SUCCESS),
        ended = watch::follow(global, &args) => ended.map(|()| ExitCode::SUCCESS),
    }
}

fn check(args: &Pods) -> Result<(), Usage> {
    for name in &args.names {
        crate::args::one_namespace(name, args.namespace.as_deref())?;
    }
    Ok(())
}

/// Pods that have the right names, and those of them that are asked for.
struct Found {
    /// Namespace and name of each.
    named: Vec<(String, String)>,
    chosen: connect::Pods,
}

async fn find(observed: &Observed, args: &Pods) -> anyhow::Result<Found> {
    let mut chosen = observed
        .pods(|namespace, name, _| is_named(args, namespace, name))
        .await?;
    let named = match &mut chosen {
        connect::Pods::Runtime(pods) => {
            let named = namespaces_and_names(pods);
            choose(pods, args);
            named
        }
        connect::Pods::Node(pods) => {
            let named = namespaces_and_names(pods);
            choose(pods, args);
            named
        }
    };
    Ok(Found { named, chosen })
}

fn namespaces_and_names<P: Choosable>(pods: &[P]) -> Vec<(String, String)> {
    let owned = |pod: &P| {
        let [namespace, name, _] = pod.names();
        (namespace.to_owned(), name.to_owned())
    };
    pods.iter().map(owned).collect()
}

/// Names that match no pod.
fn absent(found: &Found, args: &Pods) -> Vec<String> {
    let is_there = |wanted: &crate::filter::PodName| {
        let mut named = found.named.iter();
        named.any(|(namespace, name)| wanted.matches(namespace, name))
    };
    let absent = args.names.iter().filter(|name| !is_there(name));
    absent.map(ToString::to_string).collect()
}

/// Whether there are no rows. Says so on stderr, as kubectl does.
fn nothing(args: &Pods, pods: &connect::Pods) -> bool {
    let is_table = matches!(args.output, ListFormat::Table | ListFormat::Wide);
    if pods.len() > 0 || !is_table {
        return false;
    }
    if !args.names.is_empty() {
        // The error names them.
    } else if let Some(namespace) = &args.namespace {
        connect::tell(&format!("No pods found in namespace {}.", clean(namespace)));
    } else {
        connect::tell("No pods found.");
    }
    true
}

fn style(args: &Pods) -> Style {
    Style {
        wide: args.output == ListFormat::Wide,
        no_headers: args.no_headers,
    }
}

fn print(pods: &connect::Pods, args: &Pods) -> anyhow::Result<()> {
    let now = Timestamp::now();
    match pods {
        connect::Pods::Runtime(pods) => match args.output {
            ListFormat::Table | ListFormat::Wide => output::print(&output::pod::table(pods, style(args), now)),
            ListFormat::Json => output::print_json(pods),
            ListFormat::Yaml => output::print_yaml(pods),
            ListFormat::Name => output::print(&names(pods)),
        },
        connect::Pods::Node(pods) => match args.output {
            ListFormat::Table | ListFormat::Wide => {
                let table = output::kube::table(pods, args.namespace.is_none(), style(args), now);
                output::print(&table)
            }
            ListFormat::Json => output::print_json(&list(pods)),
            ListFormat::Yaml => output::print_yaml(&list(pods)),
            ListFormat::Name => output::print(&names(pods)),
        },
    }
}

/// Names as kubectl prints them.
fn list(pods: &[node_pod::Pod]) -> serde_json::Value {
    let items: Vec<_> = pods.iter().map(|pod| &pod.raw).collect();
    serde_json::json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})
}

/// Names as `pleg inspect` takes them.
fn names<P: Choosable>(pods: &[P]) -> String {
    let line = |pod: &P| {
        let [namespace, name, _] = pod.names().map(clean);
        format!("{namespace}/{name}\n")
    };
    pods.iter().map(line).collect()
}
