//! Facts about this machine: its name, memory and DNS, read when a node starts; its address and clock, read whenever needed. No state.
//!
//! In: `/proc`, `/etc/resolv.conf` and the kernel. Out: plain values. Blocking, and without DNS queries.

pub mod resources;

pub(crate) mod clock;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

use crate::manifest::{DnsConfig, InvalidNodeName, NodeName};

/// The memory of the machine if it is unknown: it only weighs pods against each other.
const DEFAULT_MEMORY: u64 = 1 << 30;
/// The most of anything that is done at once because there are many cores.
const MAX_AT_ONCE: usize = 32;
/// A resolv.conf is a few lines.
const MAX_RESOLV_CONF: usize = 64 << 10;

/// The name of this machine, as a node name.
pub fn name() -> Result<NodeName, InvalidNodeName> {
    let uname = rustix::system::uname();
    NodeName::new(&uname.nodename().to_string_lossy())
}

/// The source address of outgoing connections, if there is a route.
pub fn address() -> Option<IpAddr> {
    // Nothing is sent: the kernel only says which address it would send from. Documentation addresses (RFC 5737, RFC 3849) are not assigned.
    let by = |own: &str, other: &str| {
        let socket = UdpSocket::bind(own).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = by("0.0.0.0:0", "192.0.2.1:9").or_else(|| by("[::]:0", "[2001:db8::1]:9"));
    found.filter(|ip| !ip.is_unspecified())
}

/// An address of this machine now: `known` if it still is one, else the source address of outgoing connections, else localhost.
pub(crate) fn address_now(known: Option<IpAddr>) -> IpAddr {
    let is_ours = |ip: &IpAddr| UdpSocket::bind((*ip, 0)).is_ok();
    known
        .filter(is_ours)
        .or_else(address)
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// This machine's memory, in bytes.
pub fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    total_memory(&text).unwrap_or(DEFAULT_MEMORY)
}

/// The CPUs that this process may use.
pub fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| u64::try_from(cpus.get()).unwrap_or(u64::MAX))
}

/// So many for each core.
pub(crate) fn for_each_core(of_one: usize) -> usize {
    let cores = usize::try_from(cpus()).unwrap_or(usize::MAX);
    cores.max(1).saturating_mul(of_one).min(MAX_AT_ONCE)
}

/// The size of the disk that has this directory, or will have it; 0 if it cannot be had.
pub fn disk_size(directory: &Path) -> u64 {
    let existing = directory.ancestors().find(|path| path.exists());
    let stat = existing.and_then(|path| rustix::fs::statvfs(path).ok());
    stat.map_or(0, |stat| stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Whether `SELinux` is enabled.
pub fn has_selinux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Whether cgroups are mounted there in version 2 alone. Where both versions are, runtimes use version 1.
pub fn has_cgroup_v2(mount: &Path) -> bool {
    mount.join("cgroup.controllers").exists()
}

/// The DNS configuration of this machine.
pub fn dns() -> DnsConfig {
    dns_of(Path::new("/etc/resolv.conf"))
}

fn dns_of(path: &Path) -> DnsConfig {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut config = DnsConfig::default();
    for line in text.get(..MAX_RESOLV_CONF.min(text.len())).unwrap_or_default().lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            // An address with an interface is skipped: a container has no interface of that name.
            Some("nameserver") => config
                .servers
                .extend(words.next().and_then(|ip| ip.parse::<IpAddr>().ok())),
            // The last one counts.
            Some("search" | "domain") => config.searches = words.map(str::to_owned).collect(),
            Some("options") => config.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_is_there_now() {
        let local: IpAddr = "127.0.0.2".parse().unwrap();
        assert_eq!(address_now(Some(local)), local);
        // A documentation address, which no machine has.
        let other = address_now(Some("192.0.2.1".parse().unwrap()));
        assert_eq!(other, address().unwrap_or("127.0.0.1".parse().unwrap()));
        assert_eq!(address_now(None), other);
    }

    #[test]
    fn the_disk_of_a_directory_that_is_yet_to_be_made_has_a_size() {
        let dir = tempfile::tempdir().unwrap();
        let size = disk_size(&dir.path().join("not/yet"));
        assert!(size > 0 && size == disk_size(dir.path()));
        assert!(cpus() > 0);
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       16318392 kB\nMemFree:         1234 kB\n";
        assert_eq!(total_memory(text), Some(16_318_392 * 1024));
        assert_eq!(total_memory("MemTotal: lots"), None);
        assert!(memory() > 0);
    }

    #[test]
    fn resolv_conf_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let text = "# made by hand\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver x\nsearch a b\nsearch example.com\noptions ndots:2 rotate\n";
        std::fs::write(&path, text).unwrap();
        let config = dns_of(&path);
        assert_eq!(config.servers, ["192.0.2.53".parse::<IpAddr>().unwrap()]);
        assert_eq!(
            (config.searches, config.options),
            (
                vec!["example.com".to_owned()],
                vec!["ndots:2".to_owned(), "rotate".to_owned()]
            )
        );
        assert_eq!(dns_of(&dir.path().join("none")), DnsConfig::default());
    }
}
