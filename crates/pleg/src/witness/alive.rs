//! Finds the processes of containers without the runtime, by their cgroups: for containers of which the runtime says that they ended.

use std::path::Path;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::names::Owner;
use super::process::{Cgroup, Stat};

/// More processes than this are not searched.
const MOST: usize = 100_000;

/// The first process that is alive in the cgroup of each of these containers, by their ids; for a container that has exited, one that
/// was left over. Reads all of `/proc`: some ten milliseconds for a thousand processes, so not for a task that others wait for.
pub fn alive_in(containers: impl IntoIterator<Item = Arc<str>>) -> Vec<(Arc<str>, u32)> {
    find(Path::new("/proc"), &containers.into_iter().collect())
}

fn find(proc: &Path, containers: &HashSet<Arc<str>>) -> Vec<(Arc<str>, u32)> {
    let mut first: HashMap<Arc<str>, (u64, u32)> = HashMap::new();
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten().take(MOST);
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let Ok(cgroups) = Cgroup::read(proc, pid) else { continue };
        let Some(id) = cgroups.iter().find_map(|cgroup| owner(cgroup, containers)) else {
            continue;
        };
        let Some(stat) = Stat::read(proc, pid).ok().filter(|stat| !stat.is_dead()) else {
            continue;
        };
        // The one that was started first: those that others started in the container came after it.
        let process = (stat.started, pid);
        let known = first.entry(id).or_insert(process);
        *known = process.min(*known);
    }
    first.into_iter().map(|(id, (_, pid))| (id, pid)).collect()
}

/// Whose cgroup it is.
fn owner(cgroup: &Cgroup, containers: &HashSet<Arc<str>>) -> Option<Arc<str>> {
    cgroup.path.split('/').find_map(|name| match Owner::of(name.as_ref()) {
        Owner::Container(id) => containers.get(id).cloned(),
        Owner::Monitor | Owner::Other => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c4d5e6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f";

    #[test]
    fn the_first_living_process_of_each_container_is_found() {
        let proc = tempfile::tempdir().unwrap();
        let other = ID.replace('3', "4");
        let add = |pid: u32, state: char, started: u64, cgroup: &str| {
            let dir = proc.path().join(pid.to_string());
            std::fs::create_dir(&dir).unwrap();
            let stat = format!("{pid} (sh) {state} 1{} {started} 0", " 9".repeat(17));
            std::fs::write(dir.join("stat"), stat).unwrap();
            let cgroup = cgroup.replace("OTHER", &other).replace("ID", ID);
            std::fs::write(dir.join("cgroup"), cgroup).unwrap();
        };
        // A process of the container that was started later, the container's own, and a dead one before both.
        add(20, 'S', 900, "0::/kubepods/pod1/ID\n");
        add(31, 'S', 800, "0::/kubepods/pod1/cri-containerd-ID.scope/deeper\n");
        add(30, 'Z', 700, "0::/kubepods/pod1/ID\n");
        // The monitor, which lives, of a container whose process is dead.
        add(40, 'S', 100, "0::/kubepods/pod1/crio-conmon-OTHER.scope\n");
        add(41, 'Z', 100, "5:pids:/kubepods/pod1/crio-OTHER\n");
        add(50, 'S', 100, "0::/\n");
        std::fs::create_dir(proc.path().join("60")).unwrap();
        std::fs::create_dir(proc.path().join("sys")).unwrap();
        let containers = [ID, &other].map(Arc::from).into_iter().collect();
        let found = find(proc.path(), &containers);
        assert_eq!(found, [(Arc::from(ID), 31)]);
        assert_eq!(find(Path::new("/nowhere"), &containers), []);
        assert_eq!(find(proc.path(), &HashSet::new()), []);
    }
}
