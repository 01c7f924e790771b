//! The log: always on stderr, so that stdout contains only answers.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command, LogFormat, LogLevel};

/// Starts the log. Long-running commands log when the runtime is lost and back; others only print their answer.
pub(crate) fn init(cli: &Cli) {
    let level = cli.global.log_level.unwrap_or(match cli.command {
        Command::Run(_) | Command::Watch(_) | Command::Top(_) | Command::Sim(_) => LogLevel::Info,
        Command::Node(ref args) if args.stays() => LogLevel::Info,
        // The answer or the error already says it.
        _ => LogLevel::Error,
    });
    // What is written to its terminal would stand in the middle of its screen.
    let silent = matches!(cli.command, Command::Top(_)) && std::io::stderr().is_terminal();
    let level = match level {
        _ if silent => "off",
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    // Dependencies only log warnings, unless everything is requested.
    let rest = match level {
        "trace" => "debug",
        "off" => "off",
        _ => "warn",
    };
    // The client of the API server logs an error for every request that fails; we log the first of an outage, with what to do.
    let client = if level == "trace" { "debug" } else { "off" };
    let filter = EnvFilter::new(format!(
        "{rest},kube_client={client},pleg={level},pleg_cri={level},pleg_node={level},pleg_sim={level}"
    ));
    let colour = !cli.global.no_color
        && std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false);
    match cli.global.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
