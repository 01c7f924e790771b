//! From the runtime's statistics to those of a kubelet. Pure.

use jiff::Timestamp;
use pleg_cri::v1;

use super::model::{CpuStats, FsStats, InterfaceStats, MemoryStats, NetworkStats, SwapStats};

fn value(value: Option<&v1::UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

/// A time of CRI, in nanoseconds; `now` for a runtime that gives none.
fn time(nanoseconds: i64, now: Timestamp) -> Timestamp {
    match Timestamp::from_nanosecond(nanoseconds.into()) {
        Ok(time) if nanoseconds > 0 => time,
        _ => now,
    }
}

pub(super) fn cpu(usage: &v1::CpuUsage, now: Timestamp) -> Option<CpuStats> {
    Some(CpuStats {
        time: time(usage.timestamp, now),
        usage_nano_cores: value(usage.usage_nano_cores.as_ref()),
        usage_core_nano_seconds: value(usage.usage_core_nano_seconds.as_ref())?,
    })
}

pub(super) fn memory(usage: &v1::MemoryUsage, now: Timestamp) -> Option<MemoryStats> {
    Some(MemoryStats {
        time: time(usage.timestamp, now),
        // A cgroup without a limit has no end.
        available_bytes: value(usage.available_bytes.as_ref()).filter(|&bytes| bytes > 0 && bytes < 1 << 62),
        usage_bytes: value(usage.usage_bytes.as_ref()),
        working_set_bytes: value(usage.working_set_bytes.as_ref())?,
        rss_bytes: value(usage.rss_bytes.as_ref()),
        page_faults: value(usage.page_faults.as_ref()),
        major_page_faults: value(usage.major_page_faults.as_ref()),
    })
}

pub(super) fn swap(usage: &v1::SwapUsage, now: Timestamp) -> SwapStats {
    SwapStats {
        time: time(usage.timestamp, now),
        swap_available_bytes: value(usage.swap_available_bytes.as_ref()),
        swap_usage_bytes: value(usage.swap_usage_bytes.as_ref()),
    }
}

pub(super) fn layer(usage: &v1::FilesystemUsage, now: Timestamp) -> FsStats {
    FsStats {
        time: time(usage.timestamp, now),
        used_bytes: value(usage.used_bytes.as_ref()),
        inodes_used: value(usage.inodes_used.as_ref()),
        available_bytes: None,
        capacity_bytes: None,
        inodes_free: None,
        inodes: None,
    }
}

pub(super) fn network(usage: &v1::NetworkUsage, now: Timestamp) -> NetworkStats {
    let interface = |usage: &v1::NetworkInterfaceUsage| InterfaceStats {
        name: usage.name.clone(),
        rx_bytes: value(usage.rx_bytes.as_ref()),
        rx_errors: value(usage.rx_errors.as_ref()),
        tx_bytes: value(usage.tx_bytes.as_ref()),
        tx_errors: value(usage.tx_errors.as_ref()),
    };
    let default = usage.default_interface.as_ref().map(interface);
    let mut interfaces: Vec<_> = usage.interfaces.iter().map(interface).collect();
    if let Some(default) = &default
        && !interfaces.iter().any(|other| other.name == default.name)
    {
        interfaces.insert(0, default.clone());
    }
    NetworkStats {
        time: time(usage.timestamp, now),
        default,
        interfaces,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_does_not_know_is_left_out() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(cpu(&v1::CpuUsage::default(), now), None);
        let usage = v1::CpuUsage {
            timestamp: 1_000_000_000,
            usage_core_nano_seconds: Some(v1::UInt64Value { value: 7 }),
            usage_nano_cores: None,
        };
        let expected = CpuStats {
            time: Timestamp::from_second(1).unwrap(),
            usage_nano_cores: None,
            usage_core_nano_seconds: 7,
        };
        assert_eq!(cpu(&usage, now), Some(expected));
        assert_eq!(memory(&v1::MemoryUsage::default(), now), None);
        let unlimited = v1::MemoryUsage {
            working_set_bytes: Some(v1::UInt64Value { value: 1 }),
            available_bytes: Some(v1::UInt64Value { value: u64::MAX }),
            ..v1::MemoryUsage::default()
        };
        let found = memory(&unlimited, now).unwrap();
        assert_eq!(
            (found.time, found.available_bytes, found.working_set_bytes),
            (now, None, 1)
        );
    }
}
