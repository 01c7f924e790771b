//! `pleg node problems`: the problems of a running node's manifests.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use http::StatusCode;
use pleg_node::sources::SourceProblem;

use crate::args::{Global, Observe, TextFormat};
use crate::http::client::Refused;
use crate::text::clean;
use crate::{Usage, connect, output};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg node problems
  pleg node problems -o json | jq -r '.[].origin'

The exit code is 0 even if there are problems.")]
pub(super) struct ProblemsArgs {
    #[command(flatten)]
    observe: Observe,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: TextFormat,
}

pub(super) async fn run(global: &Global, args: ProblemsArgs) -> anyhow::Result<ExitCode> {
    let Some(daemon) = connect::daemon(global, &args.observe).await? else {
        let words = "no running `pleg node` found: name its socket with --daemon. A container runtime knows nothing about manifests";
        return Err(Usage(words.to_owned()).into());
    };
    let answer: anyhow::Result<Vec<SourceProblem>> = daemon.get_json("/api/v1/node/complaints").await;
    let problems = answer.map_err(|error| match error.downcast_ref::<Refused>() {
        Some(refused) if refused.status == StatusCode::NOT_FOUND => anyhow::anyhow!(
            "the daemon at {} runs no pods from manifests: it is not `pleg node`",
            daemon.address()
        ),
        _ => error,
    })?;
    match args.output {
        TextFormat::Text if problems.is_empty() => connect::tell("No problems found."),
        TextFormat::Text => output::print(&text(&problems))?,
        TextFormat::Json => output::print_json(&problems)?,
        TextFormat::Yaml => output::print_yaml(&problems)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(problems: &[SourceProblem]) -> String {
    let mut text = String::new();
    for problem in problems {
        let _ = writeln!(text, "{}", clean(&problem.to_string()));
    }
    text
}
