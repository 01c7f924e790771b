//! What the node itself uses. Blocking.

use std::fs;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use pleg_node::host::resources::{Filesystem, HostResources, ThisMachine};

use super::model::{CpuStats, FsStats, MemoryStats, NodeStats, ProcessLimits};

/// The figures of this machine. What cannot be read is left out.
pub(super) fn read(machine: &ThisMachine, pods: &Path, now: Timestamp) -> NodeStats {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let hertz = rustix::param::clock_ticks_per_second();
    let cpu = cpu_ticks(&stat).zip(1_000_000_000_u64.checked_div(hertz));
    let memory = machine.memory();
    let processes = machine.processes();
    NodeStats {
        start_time: boot_time(&stat).unwrap_or_default(),
        cpu: cpu.map(|(ticks, tick)| CpuStats {
            time: now,
            usage_nano_cores: None,
            usage_core_nano_seconds: ticks.saturating_mul(tick),
        }),
        memory: memory.ok().map(|memory| MemoryStats {
            time: now,
            available_bytes: Some(memory.available),
            usage_bytes: None,
            working_set_bytes: memory.capacity.saturating_sub(memory.available),
            rss_bytes: None,
            page_faults: None,
            major_page_faults: None,
        }),
        fs: filesystem(machine, pods, now).ok(),
        rlimit: processes.ok().map(|processes| ProcessLimits {
            time: now,
            maxpid: processes.capacity,
            curproc: processes.capacity.saturating_sub(processes.available),
        }),
        ..NodeStats::default()
    }
}

/// The filesystem of a path.
pub(super) fn filesystem(machine: &ThisMachine, path: &Path, now: Timestamp) -> io::Result<FsStats> {
    let Filesystem {
        capacity,
        available,
        inodes,
        inodes_free,
    } = machine.filesystem(path)?;
    Ok(FsStats {
        time: now,
        available_bytes: Some(available),
        capacity_bytes: Some(capacity),
        used_bytes: Some(capacity.saturating_sub(available)),
        inodes_free: Some(inodes_free),
        inodes: Some(inodes),
        inodes_used: Some(inodes.saturating_sub(inodes_free)),
    })
}

/// What all CPUs have worked since the machine started, in ticks: everything but idle time and waiting for disks.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    let [user, nice, system, _idle, _waiting, rest @ ..] = ticks.as_slice() else {
        return None;
    };
    // Interrupts, soft interrupts, and what the hypervisor took. Guests are in the user's time.
    Some(user + nice + system + rest.iter().take(3).sum::<u64>())
}

fn boot_time(stat: &str) -> Option<Timestamp> {
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(seconds.trim().parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_proc_are_read() {
        let stat = "cpu  10 2 30 4000 500 6 7 8 9 1\ncpu0 1 1 1 1\nbtime 1794960000\n";
        assert_eq!(cpu_ticks(stat), Some(10 + 2 + 30 + 6 + 7 + 8));
        assert_eq!(boot_time(stat), Timestamp::from_second(1_794_960_000).ok());
        assert_eq!((cpu_ticks("cpu 1 2"), boot_time("")), (None, None));
    }

    #[test]
    fn this_machine_has_figures() {
        let machine = ThisMachine {
            cgroup_mount: "/sys/fs/cgroup".into(),
        };
        let stats = read(&machine, Path::new("/"), Timestamp::now());
        assert!(stats.cpu.is_some_and(|cpu| cpu.usage_core_nano_seconds > 0));
        assert!(stats.memory.is_some_and(|memory| memory.working_set_bytes > 0));
        assert!(stats.fs.is_some() && stats.rlimit.is_some() && stats.start_time > Timestamp::UNIX_EPOCH);
    }
}
