//! The flags that more than one command takes.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pleg_cri::Endpoint;

use crate::text::parse_duration;

/// Where the flags stand that more than one command takes.
const GLOBAL: &str = "Global options";

/// What every command takes, but for those that ask nobody: see [`ASK_NOBODY`].
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The runtime's socket, as in unix:///run/containerd/containerd.sock
    #[arg(short, long, global = true, help_heading = GLOBAL, value_name = "ENDPOINT", value_parser = Endpoint::parse)]
    pub(crate) runtime_endpoint: Option<Endpoint>,
    /// Deadline of one call to the runtime or the daemon, as in 400ms, 5s, 2m
    #[arg(short, long, global = true, help_heading = GLOBAL, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Show on stderr which runtime or daemon is used
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) verbose: bool,
    /// Log level, on stderr
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// Log format
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Show times in UTC instead of the local zone
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) utc: bool,
    /// Disable colours, as $NO_COLOR does
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) no_color: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}
