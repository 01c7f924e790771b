//! `pleg containers`, or `pleg ps`: the containers of the node, as `crictl ps` lists them.

use std::process::ExitCode;

use jiff::Timestamp;
use pleg::{ContainerState, ContainerStatus, PodRef};
use serde::Serialize;

use crate::args::{Containers, Global, ListFormat};
use crate::connect::{self, Observed, Stay};
use crate::output;
use crate::output::container::Row;
use crate::output::pod::Style;

/// A container with its pod, for `-o json`.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    pod: &'a PodRef,
    #[serde(flatten)]
    container: &'a ContainerStatus,
}

pub(crate) async fn run(global: &Global, args: Containers) -> anyhow::Result<ExitCode> {
    for pod in &args.pods {
        crate::args::one_namespace(pod, args.namespace.as_deref())?;
    }
    let observed = Observed::find(global, &args.observe, Stay::Once).await?;
    let wanted = |namespace: &str, name: &str| {
        let named = args.pods.is_empty() || args.pods.iter().any(|pod| pod.matches(namespace, name));
        named && args.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
    };
    let pods = observed.runtime_pods(wanted).await?;
    let all = pods
        .iter()
        .flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
    let shown: Vec<_> = all
        .filter(|(_, container)| args.all || container.state == ContainerState::Running)
        .collect();
    let listed = || -> Vec<Listed<'_>> {
        let listed = shown.iter().map(|(pod, container)| Listed {
            pod: &pod.pod,
            container,
        });
        listed.collect()
    };
    match args.output {
        ListFormat::Table | ListFormat::Wide if shown.is_empty() => {
            connect::tell(if args.all {
                "No containers found."
            } else {
                "No running containers found; -a shows all."
            });
        }
        ListFormat::Table | ListFormat::Wide => {
            let style = Style {
                wide: args.output == ListFormat::Wide,
                no_headers: args.no_headers,
            };
            let rows: Vec<Row<'_>> = shown.iter().map(|(pod, container)| Row { pod, container }).collect();
            let now = Timestamp::now();
            let table = output::container::table(&rows, style, now);
            output::print(&(table + &output::pod::troubles(&pods, now)))?;
        }
        ListFormat::Json => output::print_json(&listed())?,
        ListFormat::Yaml => output::print_yaml(&listed())?,
        ListFormat::Name => {
            let mut ids = String::new();
            for (_, container) in &shown {
                ids.push_str(container.id.as_str());
                ids.push('\n');
            }
            output::print(&ids)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
