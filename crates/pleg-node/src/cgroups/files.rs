//! The files of cgroups, in versions 1 and 2: limits are written, usage is read. Blocking.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::limits::{PERIOD, weight};
use super::{CgroupError, Wanted, names};
use crate::host::has_cgroup_v2;

/// Controllers that containers may need below their pod.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];
/// Controllers without which the limits of a pod are incomplete.
const NEEDED: [&str; 2] = ["cpu", "memory"];
/// The files of a cgroup that we read are a few lines.
const MAX_STAT: usize = 64 << 10;

/// Controllers that would be needed, and that this machine does not have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Missing(pub(crate) BTreeSet<&'static str>);

/// Creates cgroups and writes their limits.
pub(super) fn write(mount: &Path, wanted: &[Wanted]) -> Result<Missing, CgroupError> {
    // Otherwise directories would be created on a disk.
    if !mount.is_dir() {
        return Err(CgroupError::Write {
            cgroup: mount.display().to_string(),
            path: mount.to_owned(),
            source: io::ErrorKind::NotFound.into(),
        });
    }
    if has_cgroup_v2(mount) {
        write_v2(mount, wanted)
    } else {
        write_v1(mount, wanted)
    }
}

fn write_v2(mount: &Path, wanted: &[Wanted]) -> Result<Missing, CgroupError> {
    let available = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
    let has = |name: &str| available.split_whitespace().any(|other| other == name);
    for cgroup in wanted {
        let writer = Writer::new(&cgroup.levels);
        let mut directory = mount.to_owned();
        for level in &cgroup.levels {
            for controller in CONTROLLERS.into_iter().filter(|name| has(name)) {
                // One by one: a controller that cannot be enabled here keeps no other from it. Runtimes enable them too.
                let _ = fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"));
            }
            directory.push(level);
            writer.create(&directory)?;
        }
        let limits = &cgroup.limits;
        if has("cpu") {
            writer.write(&directory.join("cpu.weight"), &weight(limits.cpu_shares))?;
            if let Some(quota) = limits.cpu_quota {
                writer.write(&directory.join("cpu.max"), &format!("{quota} {PERIOD}"))?;
            }
        }
        if let (Some(memory), true) = (limits.memory, has("memory")) {
            writer.write(&directory.join("memory.max"), &memory)?;
        }
    }
    Ok(Missing(NEEDED.into_iter().filter(|name| !has(name)).collect()))
}

/// Only the hierarchies that have something to write: runtimes create the others, and know what those need (such as cpuset's CPUs).
fn write_v1(mount: &Path, wanted: &[Wanted]) -> Result<Missing, CgroupError> {
    let missing: BTreeSet<&str> = NEEDED.into_iter().filter(|name| !mount.join(name).is_dir()).collect();
    for cgroup in wanted {
        let writer = Writer::new(&cgroup.levels);
        let limits = &cgroup.limits;
        for hierarchy in NEEDED.into_iter().filter(|name| !missing.contains(name)) {
            let mut directory = mount.join(hierarchy);
            for level in &cgroup.levels {
                directory.push(level);
                writer.create(&directory)?;
            }
            if hierarchy == "cpu" {
                writer.write(&directory.join("cpu.shares"), &limits.cpu_shares)?;
                if let Some(quota) = limits.cpu_quota {
                    writer.write(&directory.join("cpu.cfs_period_us"), &PERIOD)?;
                    writer.write(&directory.join("cpu.cfs_quota_us"), &quota)?;
                }
            } else if let Some(memory) = limits.memory {
                writer.write(&directory.join("memory.limit_in_bytes"), &memory)?;
            }
        }
    }
    Ok(Missing(missing))
}

/// Creates directories and writes values, with errors that name the cgroup.
struct Writer {
    cgroup: String,
}

impl Writer {
    fn new(levels: &[String]) -> Self {
        Self {
            cgroup: names::path(levels),
        }
    }

    fn create(&self, directory: &Path) -> Result<(), CgroupError> {
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(self.error(directory, error)),
            _ => Ok(()),
        }
    }

    fn write(&self, file: &Path, value: &dyn fmt::Display) -> Result<(), CgroupError> {
        fs::write(file, format!("{value}")).map_err(|error| self.error(file, error))
    }

    fn error(&self, path: &Path, source: io::Error) -> CgroupError {
        CgroupError::Write {
            cgroup: self.cgroup.clone(),
            path: path.to_owned(),
            source,
        }
    }
}

/// The memory in use by a cgroup without what the kernel can drop at once (the working set), in bytes.
pub(crate) fn memory(mount: &Path, cgroup: &Path) -> Option<u64> {
    let (directory, usage, inactive) = if has_cgroup_v2(mount) {
        (mount.join(cgroup), "memory.current", "inactive_file ")
    } else {
        (
            mount.join("memory").join(cgroup),
            "memory.usage_in_bytes",
            "total_inactive_file ",
        )
    };
    let usage = number(&directory.join(usage))?;
    Some(usage.saturating_sub(stat(&directory, inactive).unwrap_or_default()))
}

/// The CPU time of a cgroup, in nanoseconds.
pub(crate) fn cpu(mount: &Path, cgroup: &Path) -> Option<u64> {
    if has_cgroup_v2(mount) {
        let text = fs::read_to_string(mount.join(cgroup).join("cpu.stat")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        return line.trim().parse::<u64>().ok()?.checked_mul(1000);
    }
    // Usually a link to `cpu,cpuacct`.
    number(&mount.join("cpuacct").join(cgroup).join("cpuacct.usage"))
}

/// The part of the page cache of a cgroup of version 2 that has not been used for a while, in bytes.
pub(crate) fn inactive_file(mount: &Path, cgroup: &Path) -> Option<u64> {
    stat(&mount.join(cgroup), "inactive_file ")
}

fn stat(directory: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(directory.join("memory.stat")).ok()?;
    let text = text.get(..MAX_STAT.min(text.len()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// The processes and threads in a cgroup.
pub(crate) fn processes(mount: &Path, cgroup: &Path) -> Option<u64> {
    let directory: PathBuf = if has_cgroup_v2(mount) {
        mount.join(cgroup)
    } else {
        mount.join("pids").join(cgroup)
    };
    number(&directory.join("pids.current"))
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::limits::CgroupLimits;

    fn wanted(limits: CgroupLimits) -> Vec<Wanted> {
        let levels = ["pleg", "kubepods", "pod1"].map(str::to_owned).into();
        vec![Wanted { levels, limits }]
    }

    const LIMITED: CgroupLimits = CgroupLimits {
        cpu_shares: 1024,
        cpu_quota: Some(50_000),
        memory: Some(1 << 20),
    };

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|_| "none".to_owned())
    }

    #[test]
    fn version_2() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path();
        fs::write(mount.join("cgroup.controllers"), "cpu memory pids misc\n").unwrap();
        assert_eq!(write(mount, &wanted(LIMITED)).unwrap(), Missing::default());
        let pod = mount.join("pleg/kubepods/pod1");
        for (file, value) in [
            ("cpu.weight", "39"),
            ("cpu.max", "50000 100000"),
            ("memory.max", "1048576"),
        ] {
            assert_eq!(read(&pod.join(file)), value, "{file}");
        }
        // A real file keeps them all; this one has the last.
        assert_eq!(read(&mount.join("pleg/cgroup.subtree_control")), "+pids");
        assert_eq!(read(&pod.join("cgroup.subtree_control")), "none");
        // What has no limit is left alone.
        let other = vec![Wanted {
            levels: vec!["other".to_owned()],
            limits: CgroupLimits::default(),
        }];
        write(mount, &other).unwrap();
        assert_eq!(read(&mount.join("other/memory.max")), "none");
        assert_eq!(read(&mount.join("other/cpu.weight")), "1");
    }

    #[test]
    fn a_missing_controller_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
        let missing = write(dir.path(), &wanted(LIMITED)).unwrap();
        assert_eq!(missing, Missing(["memory"].into()));
        let pod = dir.path().join("pleg/kubepods/pod1");
        assert_eq!(
            (read(&pod.join("memory.max")), read(&pod.join("cpu.weight"))),
            ("none".into(), "39".into())
        );
    }

    #[test]
    fn version_1() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path();
        for name in ["cpu", "memory", "cpuset"] {
            fs::create_dir(mount.join(name)).unwrap();
        }
        assert_eq!(write(mount, &wanted(LIMITED)).unwrap(), Missing::default());
        for (file, value) in [
            ("cpu/pleg/kubepods/pod1/cpu.shares", "1024"),
            ("cpu/pleg/kubepods/pod1/cpu.cfs_period_us", "100000"),
            ("cpu/pleg/kubepods/pod1/cpu.cfs_quota_us", "50000"),
            ("memory/pleg/kubepods/pod1/memory.limit_in_bytes", "1048576"),
        ] {
            assert_eq!(read(&mount.join(file)), value, "{file}");
        }
        assert!(!mount.join("cpuset/pleg").exists());
    }

    #[test]
    fn usage_is_the_working_set() {
        for (version, directory, usage, stat) in [
            (2, "", "memory.current", "anon 5\ninactive_file 300\n"),
            (
                1,
                "memory",
                "memory.usage_in_bytes",
                "inactive_file 7\ntotal_inactive_file 300\n",
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mount = dir.path();
            if version == 2 {
                fs::write(mount.join("cgroup.controllers"), "memory").unwrap();
            }
            let pod = mount.join(directory).join("pleg/pod1");
            fs::create_dir_all(&pod).unwrap();
            assert_eq!(memory(mount, Path::new("pleg/pod1")), None);
            fs::write(pod.join(usage), "1000\n").unwrap();
            assert_eq!(memory(mount, Path::new("pleg/pod1")), Some(1000));
            fs::write(pod.join("memory.stat"), stat).unwrap();
            assert_eq!(memory(mount, Path::new("pleg/pod1")), Some(700));
        }
    }
}
