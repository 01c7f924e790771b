//! `pleg node check`: reports what a node would refuse, before a file is deployed.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use pleg_node::sources::{Checked, check};

use super::node_name;
use crate::args::PlainFormat;
use crate::output;
use crate::text::clean;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg node check web.yaml
  pleg node check /etc/pleg/manifests web.yaml
  pleg node check *.yaml -o json | jq '.[].problems'

Reads the files as `pleg node` does and reports the same problems. No runtime is contacted, so what
only a running node can know (a host port in use, a missing image) is not checked.
The exit code is 1 if something would be refused.")]
pub(super) struct CheckArgs {
    /// Manifests, or directories of manifests
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Node name, appended to the name of every pod [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: PlainFormat,
}

pub(super) async fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let name = node_name(args.node_name.as_deref())?;
    // Reading may block on a slow disk, and Ctrl-C must still work.
    let checked = tokio::task::spawn_blocking(move || check(&args.files, &name)).await?;
    match args.output {
        PlainFormat::Table => output::print(&text(&checked))?,
        PlainFormat::Json => output::print_json(&checked)?,
    }
    let refused = checked.iter().any(|file| !file.problems.is_empty());
    Ok(ExitCode::from(u8::from(refused)))
}

fn text(checked: &[Checked]) -> String {
    let mut text = String::new();
    for file in checked {
        let origin = clean(&file.origin.to_string());
        for problem in &file.problems {
            let _ = writeln!(text, "{origin}: {}", clean(problem));
        }
        if file.problems.is_empty() {
            let pods: Vec<String> = file.pods.iter().map(|pod| clean(pod)).collect();
            let _ = writeln!(text, "{origin}: ok: {}", pods.join(", "));
        }
    }
    text
}
