//! Upstream's end-to-end tests against one node: what `upstream/run` starts.
//!
//! `cargo run -p pleg-e2e --example upstream -- [--runtime VERSION] [--at-once N] [--keep DIR] [REGEX...]`

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pleg_e2e::cluster::{ControlPlane, Member};
use pleg_e2e::upstream::{self, Selection, compare, images};
use pleg_e2e::{Version, suite};

/// The node that everything runs on.
const NODE: &str = "upstream";

struct Options {
    version: Version,
    selection: Selection,
    keep: Option<PathBuf>,
}

fn options() -> Result<Options> {
    let mut options = Options {
        version: Version::V2_1,
        selection: Selection {
            only: Vec::new(),
            at_once: 12,
        },
        keep: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--runtime" => {
                let name = value()?;
                let version = Version::from_name(&name);
                options.version =
                    version.with_context(|| format!("no runtime is called {name}: use 1.7, 2.1 or crio"))?;
            }
            "--at-once" => options.selection.at_once = value()?.parse().context("--at-once")?,
            "--keep" => options.keep = Some(value()?.into()),
            flag if flag.starts_with('-') => bail!("unknown option {flag}; see e2e/upstream/README.md"),
            only => options.selection.only.push(only.to_owned()),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let options = options()?;
    if let Some(obstacle) = ControlPlane::obstacle().or_else(|| options.version.obstacle()) {
        bail!("{obstacle}");
    }
    tokio::select! {
        exit = play(&options) => exit,
        signal = suite::interrupted() => Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))),
    }
}

async fn play(options: &Options) -> Result<ExitCode> {
    let images = images::make().context("make the images")?;
    let cluster = ControlPlane::start().await?;
    let member = Member::join(&cluster, options.version, NODE).await?;
    let names: Vec<&str> = images.names.iter().map(String::as_str).collect();
    member.runtime().import(&images.archive, &names).await?;
    let dir = options.keep.clone().unwrap_or_else(|| cluster.dir().to_owned());
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    println!(
        "running the specs on {}; their words are in {}/specs.log",
        options.version,
        dir.display()
    );
    let outcomes = upstream::run(&cluster, &options.selection, &dir).await?;
    if options.keep.is_some() {
        std::fs::write(dir.join("node.log"), member.log()).context("keep the node's log")?;
    }
    let comparison = compare::compare(&outcomes, options.selection.only.is_empty())?;
    print!("{}", comparison.report());
    Ok(if comparison.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
