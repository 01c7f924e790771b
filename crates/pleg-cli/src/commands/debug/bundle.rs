//! `pleg debug bundle`: one file to attach to a bug report.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use jiff::Timestamp;
use serde::Serialize;

use crate::about::{Settings, Setup};
use crate::args::{Bundle, Global};
use crate::bundle::{self, Part, RECORDER};
use crate::connect::{Observed, Stay};
use crate::local::Local;
use crate::text::count;
use crate::wire::Conditions;
use crate::{Usage, output};

pub(crate) async fn run(global: &Global, args: Bundle) -> anyhow::Result<ExitCode> {
    let time = Timestamp::now();
    let path = args
        .output
        .unwrap_or_else(|| format!("{}.tar.gz", bundle::name(time)).into());
    let to_stdout = path == Path::new("-");
    if to_stdout && std::io::stdout().is_terminal() {
        let message = "a bundle is binary: name a file with -o, or redirect stdout".to_owned();
        return Err(Usage(message).into());
    }
    // Nobody should wait for what cannot be written in the end.
    if !to_stdout {
        bundle::check(&path, args.force)?;
    }
    let observed = Observed::find(global, &args.observe, Stay::Once).await?;
    let parts = match &observed {
        Observed::Daemon(daemon) => {
            let mut parts = Vec::new();
            for (name, what, path) in PARTS {
                let bytes = daemon.get_bytes(path).await?.to_vec();
                parts.push(Part { name, what, bytes });
            }
            parts
        }
        Observed::Runtime(local) => of_runtime(local).await?,
    };
    let bytes = bundle::pack(&parts, time)?;
    if to_stdout {
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(&bytes)
            .and_then(|()| stdout.flush())
            .map_err(output::write_error)?;
        return Ok(ExitCode::SUCCESS);
    }
    bundle::write(&path, &bytes, args.force)?;
    output::print(&told(
        &path,
        bytes.len(),
        &parts,
        matches!(observed, Observed::Daemon(_)),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What is in a bundle, and where a daemon has it.
const PARTS: [(&str, &str, &str); 5] = [
    (
        "about.json",
        "versions, settings, calls in flight",
        "/api/v1/debug/about",
    ),
    ("health.json", "the health report", "/api/v1/health"),
    (
        "conditions.json",
        "the conditions of the node",
        "/api/v1/node/conditions",
    ),
    ("metrics.txt", "the metrics", "/metrics"),
    (
        RECORDER,
        "what was observed, decided and published",
        "/api/v1/debug/recorder",
    ),
];

/// The same without a daemon: there is no past to tell of, but the present.
async fn of_runtime(local: &Local) -> anyhow::Result<Vec<Part>> {
    let health = json(&local.health().await)?;
    let about = json(&Setup::new(local.client.clone(), Settings::new()).about().await)?;
    let conditions = json(&Conditions::of(&local.pleg, None))?;
    let metrics = local.pleg.render_metrics()?.into_bytes();
    let mut recorder = Vec::new();
    if let Some(recording) = local.pleg.recording().await {
        for line in recording.into_lines() {
            serde_json::to_writer(&mut recorder, &line)?;
            recorder.push(b'\n');
        }
    }
    let parts = PARTS.into_iter().zip([about, health, conditions, metrics, recorder]);
    Ok(parts
        .map(|((name, what, _), bytes)| Part { name, what, bytes })
        .collect())
}

fn json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(value)
}

fn told(path: &Path, bytes: usize, parts: &[Part], daemon: bool) -> String {
    let mut text = format!(
        "{} ({} kB), readable only by you:\n",
        path.display(),
        bytes.div_ceil(1000)
    );
    for part in parts {
        let _ = write!(text, "  {:<15}  {}", part.name, part.what);
        if part.name == RECORDER {
            let lines = part.bytes.split(|byte| *byte == b'\n').count() - 1;
            let _ = write!(text, ": {}", count(lines, "line"));
        }
        text.push('\n');
    }
    if !daemon {
        text.push_str("No daemon is running, so the bundle has no history; pleg run keeps the last ten minutes.\n");
    }
    text.push_str(
        "It contains names and ids of pods and containers, and error messages of the runtime. It contains no\n\
         labels, annotations, environment variables, logs or secrets.\n",
    );
    text
}
