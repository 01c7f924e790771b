//! Where the cgroup of a container is in the file system: from its path in `/proc/PID/cgroup` to a directory below a mount.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::names::Owner;
use super::process::{Cgroup, names};

/// A node with thousands of pods has tens of thousands of mounts.
const MOST_MOUNT_BYTES: u64 = 16 * 1024 * 1024;
const MOST_MOUNTS: usize = 64;

/// How far below a mount a path is searched whose beginning is hidden by a cgroup namespace, and in how many directories.
const SEARCH_DEPTH: usize = 4;
const SEARCH_DIRS: usize = 1000;
/// Searches in vain after which no more are made: each may read a thousand directories.
const SEARCHES_IN_VAIN: u32 = 8;
/// Beginnings of paths that are remembered.
const MOST_BASES: usize = 64;

/// The directory of a container's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    /// Where its hierarchy is mounted.
    pub(super) root: PathBuf,
    /// cgroup2, which has `memory.events`.
    pub(super) unified: bool,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// The part of the hierarchy that is mounted, as our own cgroup namespace names it.
    root: String,
    point: PathBuf,
    /// None for cgroup2.
    controllers: Option<String>,
}

impl Mount {
    /// A line of `/proc/self/mountinfo`; none if it is not about cgroups.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let (mount, super_block) = line.split_once(" - ")?;
        let mut super_block = super_block.split(' ');
        let (kind, options) = (super_block.next()?, super_block.nth(1)?);
        let controllers = match kind {
            "cgroup2" => None,
            "cgroup" => Some(options.trim_end().to_owned()),
            _ => return None,
        };
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
        let root = String::from_utf8(root).ok()?;
        let point = PathBuf::from(std::ffi::OsStr::from_bytes(&point));
        Some(Self {
            root,
            point,
            controllers,
        })
    }

    /// Whether this is the hierarchy of a line of `/proc/PID/cgroup`.
    fn is_of(&self, cgroup: &Cgroup) -> bool {
        match &self.controllers {
            None => cgroup.controllers.is_empty(),
            Some(options) => {
                let mut controllers = cgroup.controllers.split(',');
                !cgroup.controllers.is_empty() && controllers.all(|one| options.split(',').any(|other| other == one))
            }
        }
    }
}

/// The kernel writes blanks in paths as `\040`.
fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| first == b'\\');
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &others[3..] } else { others };
    }
    bytes
}

/// A path whose beginning a cgroup namespace hides starts with this many `..`, and continues below this directory.
#[derive(Debug)]
struct Base {
    ups: usize,
    mount: PathBuf,
    dir: PathBuf,
}

/// Finds the directories of containers' cgroups.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Read once: that takes long on a node with many mounts, and hierarchies are mounted at boot.
    mounts: Option<Vec<Mount>>,
    bases: Vec<Base>,
    in_vain: u32,
}

impl Places {
    /// The directory with the container's id in its name, in one hierarchy: cgroup2 if it has one there, or else the best of the others.
    pub(super) fn find(&mut self, proc: &Path, cgroups: &[Cgroup], id: &str) -> Option<Place> {
        let mounts = match self.mounts.take() {
            Some(mounts) => mounts,
            None => read_mounts(&proc.join("self/mountinfo")),
        };
        let mut candidates: Vec<&Cgroup> = cgroups.iter().filter(|cgroup| cgroup.is_of(id)).collect();
        candidates.sort_by_key(|cgroup| rank(cgroup));
        let place = candidates.into_iter().find_map(|cgroup| {
            let mut mounts = mounts.iter().filter(|mount| mount.is_of(cgroup));
            mounts.find_map(|mount| {
                Some(Place {
                    dir: self.resolve(mount, &cgroup.path, id)?,
                    root: mount.point.clone(),
                    unified: mount.controllers.is_none(),
                })
            })
        });
        self.mounts = Some(mounts);
        place
    }

    fn resolve(&mut self, mount: &Mount, path: &str, id: &str) -> Option<PathBuf> {
        let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let ups = parts.iter().take_while(|part| **part == "..").count();
        // A container may have cgroups of its own below its own.
        let last = parts.iter().rposition(|part| names(part, id))?;
        parts.truncate(last + 1);
        let parts = parts.get(ups..)?;
        if parts.iter().any(|part| matches!(*part, ".." | ".")) {
            return None;
        }
        let root: Vec<&str> = mount.root.split('/').filter(|part| !part.is_empty()).collect();
        if ups == 0 && !root.contains(&"..") {
            let below: PathBuf = parts.strip_prefix(root.as_slice())?.iter().collect();
            return Some(mount.point.join(below)).filter(|dir| dir.is_dir());
        }
        self.below(mount, ups, &parts.iter().collect::<PathBuf>())
    }

    /// Our own cgroup namespace hides how the path begins: what is left of it is searched below the mount.
    fn below(&mut self, mount: &Mount, ups: usize, path: &Path) -> Option<PathBuf> {
        let known = self
            .bases
            .iter()
            .filter(|base| base.ups == ups && base.mount == mount.point);
        if let Some(found) = known.map(|base| base.dir.join(path)).find(|dir| dir.is_dir()) {
            return Some(found);
        }
        if self.in_vain >= SEARCHES_IN_VAIN {
            return None;
        }
        let Some(dir) = search(&mount.point, path) else {
            self.in_vain += 1;
            return None;
        };
        self.in_vain = 0;
        let found = dir.join(path);
        if self.bases.len() < MOST_BASES {
            let mount = mount.point.clone();
            self.bases.push(Base { ups, mount, dir });
        }
        Some(found)
    }
}

/// The hierarchies that every runtime puts containers into come first.
fn rank(cgroup: &Cgroup) -> u8 {
    let has = |controller| cgroup.controllers.split(',').any(|one| one == controller);
    match () {
        () if cgroup.controllers.is_empty() => 0,
        () if has("pids") => 1,
        () if has("memory") => 2,
        () => 3,
    }
}

/// The directory nearest to the root below which the path exists.
fn search(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut queue = VecDeque::from([(root.to_owned(), 0)]);
    let mut seen = 1;
    while let Some((dir, depth)) = queue.pop_front() {
        if dir.join(path).is_dir() {
            return Some(dir);
        }
        if depth == SEARCH_DEPTH {
            continue;
        }
        let Ok(entries) = dir.read_dir() else { continue };
        let dirs = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for entry in dirs.filter(|entry| Owner::of(&entry.file_name()) == Owner::Other) {
            if seen == SEARCH_DIRS {
                break;
            }
            seen += 1;
            queue.push_back((entry.path(), depth + 1));
        }
    }
    None
}

/// The mounts of cgroups; none if there are none or they cannot be read.
fn read_mounts(path: &Path) -> Vec<Mount> {
    let Ok(file) = File::open(path) else {
        return Vec::new();
    };
    let lines = BufReader::new(file.take(MOST_MOUNT_BYTES))
        .split(b'\n')
        .map_while(Result::ok);
    lines.filter_map(|line| Mount::parse(&line)).take(MOST_MOUNTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c4d5e6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f";

    fn line(controllers: &str, path: &str) -> Cgroup {
        let path = path.replace("ID", ID);
        let controllers = controllers.to_owned();
        Cgroup { controllers, path }
    }

    /// A `/proc` whose mounts are these: the part that is mounted, where below the directory, the type and its options.
    fn machine(mounts: &[(&str, &str, &str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "31 23 0:28 / / rw shared:1 - ext4 /dev/vda rw\nbroken\n".to_owned();
        for (root, point, kind, options) in mounts {
            let point = dir.path().join(point);
            std::fs::create_dir_all(&point).unwrap();
            let point = point.to_str().unwrap().replace(' ', "\\040");
            let line = format!("41 31 0:38 {root} {point} rw,relatime shared:9 - {kind} none {options}\n");
            text.push_str(&line);
        }
        std::fs::create_dir(dir.path().join("self")).unwrap();
        std::fs::write(dir.path().join("self/mountinfo"), text).unwrap();
        dir
    }

    fn make(machine: &tempfile::TempDir, path: &str) -> PathBuf {
        let path = machine.path().join(path.replace("ID", ID));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn cgroup2_comes_first_then_pids_then_memory() {
        let machine = machine(&[
            ("/", "cpu", "cgroup", "rw,cpu,cpuacct"),
            ("/", "memory", "cgroup", "rw,memory"),
            ("/", "pids dir", "cgroup", "rw,pids"),
            ("/", "unified", "cgroup2", "rw,nsdelegate"),
        ]);
        let lines = [
            line("cpuacct,cpu", "/a/ID"),
            line("memory", "/a/ID"),
            line("pids", "/a/ID/init.scope"),
            line("", "/a/ID"),
            line("name=systemd", "/a/ID"),
        ];
        let find = || {
            let place = Places::default().find(machine.path(), &lines, ID)?;
            Some((place.dir, place.unified))
        };
        assert_eq!(find(), None);
        let dir = make(&machine, "cpu/a/ID");
        assert_eq!(find(), Some((dir, false)));
        let dir = make(&machine, "memory/a/ID");
        assert_eq!(find(), Some((dir, false)));
        let dir = make(&machine, "pids dir/a/ID");
        assert_eq!(find(), Some((dir, false)));
        let dir = make(&machine, "unified/a/ID");
        assert_eq!(find(), Some((dir, true)));
        assert_eq!(
            Places::default().find(machine.path(), &lines, &ID.replace('3', "4")),
            None
        );
        assert_eq!(Places::default().find(Path::new("/none"), &lines, ID), None);
    }

    #[test]
    fn a_mount_of_a_part_has_the_rest_of_the_path() {
        let machine = machine(&[("/docker/x", "fs", "cgroup2", "rw")]);
        let dir = make(&machine, "fs/a/ID");
        let find = |path| Places::default().find(machine.path(), &[line("", path)], ID);
        assert_eq!(find("/docker/x/a/ID").unwrap().dir, dir);
        assert_eq!(find("/docker/y/a/ID"), None);
        assert_eq!(find("/a/ID"), None);
    }

    #[test]
    fn a_path_whose_beginning_is_hidden_is_searched() {
        let machine = machine(&[("/../../../..", "fs", "cgroup2", "rw")]);
        let dir = make(&machine, "fs/kubepods/burstable/pod1/ID");
        make(&machine, "fs/system/a/b/c/d/e/f");
        let mut places = Places::default();
        let mut find = |path| Some(places.find(machine.path(), &[line("", path)], ID)?.dir);
        assert_eq!(find("/../../pod1/ID/container"), Some(dir.clone()));
        assert_eq!(find("/../../../burstable/pod1/ID"), Some(dir.clone()));
        // The second time without a search.
        assert_eq!(find("/../../pod1/ID"), Some(dir));
        assert_eq!(find("/../../pod1/../pod1/ID"), None);
        assert_eq!(find("/.."), None);
        assert_eq!(places.bases.len(), 2);
    }

    #[test]
    fn searches_in_vain_end() {
        let machine = machine(&[("/..", "fs", "cgroup2", "rw")]);
        for number in 0..1200 {
            make(&machine, &format!("fs/{number}"));
        }
        let mut places = Places::default();
        for _ in 0..20 {
            assert_eq!(places.find(machine.path(), &[line("", "/../pod1/ID")], ID), None);
        }
        assert_eq!(places.in_vain, SEARCHES_IN_VAIN);
    }

    #[test]
    fn escapes_in_mounts() {
        assert_eq!(unescape("/a\\040b\\134c\\"), b"/a b\\c\\");
        assert_eq!(unescape("\\777\\9zé"), "\\777\\9zé".as_bytes());
        for broken in ["", " - ", "1 2 3 - cgroup2 none", "1 2 3 / - cgroup2 none rw"] {
            assert_eq!(Mount::parse(broken.as_bytes()), None, "{broken:?}");
        }
    }
}
