//! Where a daemon keeps its history, and how much of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pleg_history::{LEAST_SIZE, Limits};

use crate::text::{parse_duration, parse_size};

/// The history of a daemon.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "History")]
pub(crate) struct HistoryFileArgs {
    /// Keep what happens in this file [default: /var/lib/pleg/history.dat for root, else pleg/history.dat in $XDG_STATE_HOME or
    /// ~/.local/state]
    #[arg(
        id = "history_file",
        long = "history-file",
        value_name = "FILE",
        env = "PLEG_HISTORY_FILE",
        hide_env = true
    )]
    file: Option<PathBuf>,
    /// Largest size of that file, at least 8MiB; the oldest entries make room. 0: keep no history
    #[arg(id = "history_size", long = "history-size", value_name = "SIZE", env = "PLEG_HISTORY_SIZE", hide_env = true, default_value = "256MiB", value_parser = parse_history_size)]
    size: u64,
    /// Drop entries that are older than this. 0: keep no history
    #[arg(id = "history_age", long = "history-age", value_name = "DURATION", env = "PLEG_HISTORY_AGE", hide_env = true, default_value = "7d", value_parser = parse_age)]
    age: Duration,
}

impl HistoryFileArgs {
    /// How much is kept; none if nothing is.
    pub(crate) fn limits(&self) -> Option<Limits> {
        let limits = Limits {
            size: self.size,
            age: self.age,
        };
        (limits.size > 0 && !limits.age.is_zero()).then_some(limits)
    }

    /// The flags in force, for those who read a bug report.
    pub(crate) fn describe(&self) -> String {
        match (self.limits(), self.path()) {
            (Some(limits), Some(path)) => {
                let hours = limits.age.as_secs() / 3600;
                format!("{}, {} MiB, {hours} h", path.display(), limits.size >> 20)
            }
            _ => "off".to_owned(),
        }
    }

    /// The file that was named, or the usual one; none for a user without a home.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.file.clone().or_else(default_history_file)
    }
}

/// Where a daemon of this user keeps its history unless told otherwise.
pub(crate) fn default_history_file() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/pleg/history.dat".into());
    }
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("pleg/history.dat"))
}

fn parse_history_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Ok(0),
        size if size < LEAST_SIZE => Err("at least 8MiB, or 0 to keep no history".to_owned()),
        size => Ok(size),
    }
}

/// Days, or what every other duration accepts.
fn parse_age(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s" | "0d") {
        return Ok(Duration::ZERO);
    }
    if let Some(days) = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok()) {
        return match days {
            1..=365 => Ok(Duration::from_hours(24 * days)),
            _ => Err("from 1d to 365d".to_owned()),
        };
    }
    parse_duration(text).map_err(|error| error.replace("as in 400ms, 5s, 2m or 1m30s", "as in 7d, 36h or 90m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_are_read() {
        assert_eq!(parse_history_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_history_size("0"), Ok(0));
        assert!(parse_history_size("7MiB").is_err());
        assert_eq!(parse_age("7d"), Ok(Duration::from_hours(168)));
        assert_eq!(parse_age("36h"), Ok(Duration::from_hours(36)));
        assert_eq!(parse_age("0"), Ok(Duration::ZERO));
        for bad in ["", "d", "-1d", "1000d", "week"] {
            assert!(parse_age(bad).is_err(), "{bad}");
        }
    }
}
