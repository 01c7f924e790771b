//! `pleg pods`: the pods of the node.

use std::process::ExitCode;

use jiff::Timestamp;

use crate::args::{Format, Global, Pods};
use crate::connect::{self, Observed, Stay};
use crate::text::clean;
use crate::{kube, output};

pub(crate) async fn run(global: &Global, args: Pods) -> anyhow::Result<ExitCode> {
    let observed = Observed::find(global, &args.observe, Stay::Once).await?;
    let wanted = args.namespace.as_deref();
    let pods = observed
        .pods(|namespace, _, _| wanted.is_none_or(|wanted| wanted == namespace))
        .await?;
    let pods = match pods {
        connect::Pods::Runtime(pods) => pods,
        connect::Pods::Node(pods) => return of_node(&pods, &args),
    };
    if nothing(&args, pods.len()) {
        return Ok(ExitCode::SUCCESS);
    }
    match args.output {
        Format::Table => output::print(&output::pod::table(&pods, false, Timestamp::now()))?,
        Format::Wide => output::print(&output::pod::table(&pods, true, Timestamp::now()))?,
        Format::Json => output::print_json(&pods)?,
        Format::Yaml => output::print_yaml(&pods)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether there is no table to print. Says so beside the answer, as kubectl does: a head without rows may be taken for a mistake.
fn nothing(args: &Pods, pods: usize) -> bool {
    let is_table = matches!(args.output, Format::Table | Format::Wide);
    if pods > 0 || !is_table {
        return false;
    }
    match &args.namespace {
        Some(namespace) => connect::tell(&format!("No pods found in namespace {}.", clean(namespace))),
        None => connect::tell("No pods found."),
    }
    true
}

/// As kubectl prints them.
fn of_node(pods: &[kube::Pod], args: &Pods) -> anyhow::Result<ExitCode> {
    if nothing(args, pods.len()) {
        return Ok(ExitCode::SUCCESS);
    }
    let table = |wide| output::kube::table(pods, args.namespace.is_none(), wide, Timestamp::now());
    let list = || {
        let items: Vec<_> = pods.iter().map(|pod| &pod.raw).collect();
        serde_json::json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})
    };
    match args.output {
        Format::Table => output::print(&table(false))?,
        Format::Wide => output::print(&table(true))?,
        Format::Json => output::print_json(&list())?,
        Format::Yaml => output::print_yaml(&list())?,
    }
    Ok(ExitCode::SUCCESS)
}
