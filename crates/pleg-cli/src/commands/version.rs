//! `pleg version`: ours, and the runtime's if one answers.

use std::fmt::Write as _;
use std::process::ExitCode;

use pleg::runtime::{Runtime as _, RuntimeVersion};
use pleg::{CriRuntime, Metrics};
use serde::Serialize;

use crate::args::{Global, TextFormat, Version};
use crate::connect::{self, Stay};
use crate::output;

#[derive(Debug, Serialize)]
struct Versions {
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<RuntimeVersion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) async fn run(global: &Global, args: Version) -> anyhow::Result<ExitCode> {
    let mut versions = Versions {
        version: env!("CARGO_PKG_VERSION"),
        endpoint: None,
        runtime: None,
        error: None,
    };
    // Without a runtime there is still our own version to tell; a runtime that was named has to answer.
    let named = global.runtime_endpoint.is_some();
    match runtime(global).await {
        Ok((endpoint, runtime)) => {
            versions.endpoint = Some(endpoint);
            versions.runtime = Some(runtime);
        }
        Err(error) => versions.error = Some(format!("{error:#}")),
    }
    match args.output {
        TextFormat::Text => {
            let mut text = format!("pleg {}\n", versions.version);
            if let Some(runtime) = &versions.runtime {
                let at = versions.endpoint.as_deref().unwrap_or_default();
                let _ = writeln!(
                    text,
                    "{} {} (CRI {}) at {at}",
                    runtime.name, runtime.version, runtime.api
                );
            }
            output::print(&text)?;
        }
        TextFormat::Json => output::print_json(&versions)?,
        TextFormat::Yaml => output::print_yaml(&versions)?,
    }
    match versions.error {
        Some(error) if named => Err(anyhow::anyhow!("{error}")),
        Some(error) => {
            // In JSON and YAML it stands in the answer.
            if args.output == TextFormat::Text {
                connect::tell(&format!("The runtime's version is unknown: {error}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

async fn runtime(global: &Global) -> anyhow::Result<(String, RuntimeVersion)> {
    let client = connect::runtime(global, connect::deadlines(global, Stay::Once)?, &Metrics::new()?).await?;
    let runtime = CriRuntime::new(client.clone()).version().await?;
    Ok((client.endpoint().to_string(), runtime))
}
