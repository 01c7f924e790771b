//! What `/proc` says about one process. The root of `/proc` is a parameter, so that a test can write one.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// More of a file is not read: the files of one process are far smaller, and a wrong one must not fill the memory.
const MOST_BYTES: u64 = 64 * 1024;

/// The most hierarchies of cgroups that are looked at. The kernel has about fifteen.
const MOST_CGROUPS: usize = 64;

/// A process, as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The program's name, cut by the kernel to 15 bytes.
    pub(crate) name: String,
    /// As `ps` writes it: `S` sleeps, `T` is stopped, `Z` is dead and not reaped.
    pub(crate) state: char,
    /// Its parent's process.
    pub(crate) parent: u32,
    /// When it was started, in ticks since boot: distinguishes it from a later process with the same number.
    pub(crate) started: u64,
    /// Whether the kernel shows us its private fields; none if that is not known, as with a zombie.
    pub(crate) permitted: Option<bool>,
    /// The exit code of a zombie. It is 0 as well where the kernel does not show it to us.
    pub(crate) exit_code: Option<i32>,
}

impl Stat {
    pub(crate) fn read(proc: &Path, pid: u32) -> io::Result<Self> {
        let text = read(&proc.join(pid.to_string()).join("stat"))?;
        Self::parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not the format of stat"))
    }

    /// Short text is accepted as long as it has a state: the fields after it are evidence that may be missing.
    fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        // The name stands in parentheses and may hold anything; the state follows the last of them.
        let (head, tail) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        // The state is field 3 of the kernel's documentation, which counts from 1.
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let number = |at: usize| field(at).and_then(|text| text.parse::<u64>().ok());
        let state = field(3)?.chars().next()?;
        let status = field(52).and_then(|text| text.parse().ok());
        Some(Self {
            name: name.to_owned(),
            state,
            parent: field(4).and_then(|text| text.parse().ok()).unwrap_or_default(),
            started: number(22).unwrap_or_default(),
            // Where its code starts: 1 if we may not know, 0 if it has no memory any more.
            permitted: number(26).filter(|&start| start != 0).map(|start| start != 1),
            exit_code: status.filter(|_| is_dead(state)).map(exit_code),
        })
    }

    pub(crate) fn is_dead(&self) -> bool {
        is_dead(self.state)
    }
}

fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// The exit code in a wait status, as shells and runtimes write it: 128 + N for signal N.
fn exit_code(status: i32) -> i32 {
    match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    }
}

/// A process's place in one hierarchy of cgroups: a line of `/proc/PID/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cgroup {
    /// Separated by commas; empty for cgroup2.
    pub(crate) controllers: String,
    /// Relative to the root of our own cgroup namespace.
    pub(crate) path: String,
}

impl Cgroup {
    /// The hierarchies in which the process is.
    pub(crate) fn read(proc: &Path, pid: u32) -> io::Result<Vec<Self>> {
        let text = read(&proc.join(pid.to_string()).join("cgroup"))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Vec<Self> {
        let text = String::from_utf8_lossy(text);
        let lines = text.lines().filter_map(|line| {
            // The path is the last field and may have colons.
            let mut fields = line.splitn(3, ':');
            let (_number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let (controllers, path) = (controllers.to_owned(), path.to_owned());
            path.starts_with('/').then_some(Self { controllers, path })
        });
        lines.take(MOST_CGROUPS).collect()
    }

    /// Whether this is the container's cgroup, or one inside of it.
    pub(crate) fn is_of(&self, id: &str) -> bool {
        self.path.split('/').any(|name| names(name, id))
    }
}

/// Whether a cgroup of this name is the container's. That of its monitor is not, and has the id in its name too.
pub(crate) fn names(name: &str, id: &str) -> bool {
    name.contains(id) && !name.contains("conmon")
}

/// The first bytes of a file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of stat with these fields; the others are 9.
    fn line(name: &str, state: &str, start_code: &str, status: &str) -> String {
        let mut fields = vec!["9"; 52];
        fields[2] = state;
        fields[3] = "77";
        fields[21] = "4711";
        fields[25] = start_code;
        fields[51] = status;
        format!("8 ({name}) {}\n", fields[2..].join(" "))
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let long = "x".repeat(70_000);
        for name in ["sleep", "a) Z 1 (b", "", ") S", "\u{fffd} \n x", &long] {
            let stat = Stat::parse(line(name, "S", "4096", "0").as_bytes()).unwrap();
            assert_eq!((stat.name.as_str(), stat.state), (name, 'S'), "{name:?}");
            assert_eq!((stat.parent, stat.started), (77, 4711), "{name:?}");
            assert_eq!((stat.permitted, stat.exit_code), (Some(true), None), "{name:?}");
        }
        assert_eq!(Stat::parse(b"8 (\xff\xfe) T 1").unwrap().state, 'T');
        for broken in ["", "8", "8 (sleep", "8 (sleep)", "8 sleep) S", ")("] {
            assert_eq!(Stat::parse(broken.as_bytes()), None, "{broken:?}");
        }
    }

    #[test]
    fn only_a_zombie_has_an_exit_code() {
        let code = |state, status: i32| {
            let line = line("sh", state, "0", &status.to_string());
            Stat::parse(line.as_bytes()).unwrap().exit_code
        };
        assert_eq!(code("Z", 0), Some(0));
        assert_eq!(code("Z", 7 << 8), Some(7));
        assert_eq!(code("Z", 255 << 8), Some(255));
        assert_eq!(code("Z", 9), Some(137));
        assert_eq!(code("X", 15), Some(143));
        // With a core dump.
        assert_eq!(code("Z", 0x80 + 11), Some(139));
        assert_eq!(code("T", 19), None);
        assert_eq!(code("S", 0), None);
        assert_eq!(Stat::parse(b"8 (sh) Z 1").unwrap().exit_code, None);
    }

    #[test]
    fn what_we_may_not_see_is_known_from_where_the_code_starts() {
        let permitted = |start| Stat::parse(line("sh", "S", start, "0").as_bytes()).unwrap().permitted;
        assert_eq!(permitted("94389749293056"), Some(true));
        assert_eq!(permitted("1"), Some(false));
        assert_eq!(permitted("0"), None);
    }

    #[test]
    fn the_lines_of_cgroups() {
        let text = "12:pids:/kubepods/pod1/abc\n3:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/../x\nbroken\n2:none\n5:p:relative\n";
        let cgroups = Cgroup::parse(text.as_bytes());
        let pairs: Vec<_> = cgroups
            .iter()
            .map(|c| (c.controllers.as_str(), c.path.as_str()))
            .collect();
        let expected = [
            ("pids", "/kubepods/pod1/abc"),
            ("cpu,cpuacct", "/a:b"),
            ("name=systemd", "/"),
            ("", "/../x"),
        ];
        assert_eq!(pairs, expected);
        assert!(Cgroup::parse(b"\xff\xfe\n0::/\xff\n").len() == 1);
        assert_eq!(Cgroup::parse("0::/\n".repeat(1000).as_bytes()).len(), MOST_CGROUPS);
    }

    #[test]
    fn a_container_is_in_a_path_with_its_id_in_one_name() {
        let id = "0123456789abcdef";
        for (path, is) in [
            ("/kubepods/pod1/0123456789abcdef", true),
            ("/a.slice/cri-containerd-0123456789abcdef.scope", true),
            ("/a/crio-0123456789abcdef/container/deeper", true),
            ("/../../pod1/0123456789abcdef", true),
            ("/a/crio-conmon-0123456789abcdef.scope", false),
            ("/0123456789/abcdef", false),
            ("/0123456789abcde", false),
            ("/", false),
        ] {
            let (controllers, path) = (String::new(), path.to_owned());
            assert_eq!(
                Cgroup {
                    controllers,
                    path: path.clone()
                }
                .is_of(id),
                is,
                "{path}"
            );
        }
    }

    #[test]
    fn a_file_without_end_is_read_in_part() {
        assert_eq!(read(Path::new("/dev/zero")).unwrap().len(), 65_536);
        assert!(read(Path::new("/proc/self/none")).is_err());
        let own = Stat::read(Path::new("/proc"), std::process::id()).unwrap();
        assert!(own.permitted == Some(true) && own.parent > 0 && own.started > 0);
        assert!(!Cgroup::read(Path::new("/proc"), std::process::id()).unwrap().is_empty());
    }
}
