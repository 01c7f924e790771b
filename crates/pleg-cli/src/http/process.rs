//! Metrics of the process itself, under the names of Prometheus' client libraries, and of the build.
//!
//! They are read from /proc with each scrape. A value that the kernel does not provide is omitted.

use std::fmt::Write as _;
use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// Clock ticks per second in /proc: 100 on every current Linux.
const TICKS: f64 = 100.0;

/// This process as /proc describes it.
#[derive(Debug, Default, PartialEq)]
struct Process {
    resident: Option<f64>,
    virtual_size: Option<f64>,
    open_files: Option<f64>,
    most_files: Option<f64>,
    started: Option<f64>,
}

impl Process {
    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // The descriptor that reads the directory is not counted.
        let open_files = fs::read_dir("/proc/self/fd")
            .ok()
            .map(|files| files.count().saturating_sub(1) as f64);
        Self {
            open_files,
            ..Self::of(
                &text("/proc/self/status"),
                &text("/proc/self/limits"),
                &text("/proc/self/stat"),
                &text("/proc/stat"),
            )
        }
    }

    fn of(status: &str, limits: &str, stat: &str, machine: &str) -> Self {
        let kib = |name: &str| number(status, name).map(|kib| kib * 1024.0);
        // The second field is the program's name in parentheses, which may contain any character; the start time is field 22.
        let start = stat
            .rsplit_once(") ")
            .and_then(|(_, fields)| fields.split(' ').nth(19)?.parse::<f64>().ok());
        let boot = number(machine, "btime");
        Self {
            resident: kib("VmRSS:"),
            virtual_size: kib("VmSize:"),
            open_files: None,
            most_files: number(limits, "Max open files"),
            started: boot.zip(start).map(|(boot, ticks)| boot + ticks / TICKS),
        }
    }
}

/// The first number after `name` at the beginning of a line.
fn number(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The metrics, in Prometheus' text format.
pub(super) fn metrics() -> String {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let process = Process::read();
    let mut text = format!(
        "# HELP pleg_build_info Which build this is; always 1.\n# TYPE pleg_build_info gauge\n\
         pleg_build_info{{version=\"{}\",arch=\"{}\",profile=\"{}\"}} 1\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        if cfg!(debug_assertions) { "debug" } else { "release" },
    );
    let mut add = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    };
    let cpu = spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9;
    add(
        "process_cpu_seconds_total",
        "counter",
        "User and system CPU time, in seconds.",
        Some(cpu),
    );
    add(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory, in bytes.",
        process.resident,
    );
    add(
        "process_virtual_memory_bytes",
        "gauge",
        "Virtual memory, in bytes.",
        process.virtual_size,
    );
    add(
        "process_open_fds",
        "gauge",
        "Open file descriptors.",
        process.open_files,
    );
    add(
        "process_max_fds",
        "gauge",
        "Maximum number of open file descriptors.",
        process.most_files,
    );
    add(
        "process_start_time_seconds",
        "gauge",
        "Unix time at which the process started.",
        process.started,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_with_care() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 5 0 0 0 1 2 0 0 20 0 1 0 12345 99 1 2";
        let process = Process::of(
            "Name:\tpleg\nVmSize:\t  2048 kB\nVmRSS:\t 1024 kB\n",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n",
            stat,
            "cpu 1 2 3\nbtime 1700000000\n",
        );
        let expected = Process {
            resident: Some(1_048_576.0),
            virtual_size: Some(2_097_152.0),
            open_files: None,
            most_files: Some(1024.0),
            started: Some(1_700_000_123.45),
        };
        assert_eq!(process, expected);
        assert_eq!(
            Process::of("", "Max open files unlimited", "7 (x", "btime"),
            Process::default()
        );
    }
}
