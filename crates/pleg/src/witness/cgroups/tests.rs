//! inotify reports what happens in a plain directory as it does in one of cgroups, and before the call that changes it returns: no test
//! has to wait.

use super::*;

const UID: &str = "7c1e3a52-0d4b-4c8e-9f10-2b3c4d5e6f70";

fn id(number: usize) -> Arc<str> {
    format!("{number:064x}").into()
}

/// A machine with cgroup2 and no cgroups.
struct Machine {
    dir: tempfile::TempDir,
    cgroups: Cgroups,
}

impl Machine {
    fn new(kind: &str, options: &str) -> Self {
        Self::with_limit(kind, options, "1000")
    }

    fn with_limit(kind: &str, options: &str, most: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for path in ["proc/self", "proc/sys/fs/inotify", "fs"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let proc = dir.path().join("proc");
        let mount = format!("41 31 0:38 / {}/fs rw - {kind} none {options}\n", dir.path().display());
        std::fs::write(proc.join("self/mountinfo"), mount).unwrap();
        std::fs::write(proc.join("sys/fs/inotify/max_user_watches"), most).unwrap();
        let cgroups = Cgroups::new(&proc);
        Self { dir, cgroups }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("fs").join(path)
    }

    fn mkdir(&self, path: &str) {
        std::fs::create_dir_all(self.path(path)).unwrap();
    }

    fn rmdir(&self, path: &str) {
        std::fs::remove_dir(self.path(path)).unwrap();
    }

    /// A container whose cgroup has this path is watched.
    fn learn(&mut self, controllers: &str, path: &str, id: &Arc<str>) {
        let (controllers, path) = (controllers.to_owned(), format!("/{path}"));
        self.cgroups.learn(id, &[Cgroup { controllers, path }]);
    }

    fn lose_events(&mut self) {
        let mut buffer = [0; 4096];
        while rustix::io::read(self.cgroups.events().unwrap(), &mut buffer).is_ok() {}
    }

    fn announced(&mut self) -> Vec<Announcement> {
        let mut out = VecDeque::new();
        loop {
            let before = out.len();
            self.cgroups.take_events(&mut out);
            if out.len() == before {
                // Events without a meaning may precede others.
                self.cgroups.take_events(&mut out);
                if out.len() == before {
                    return out.into();
                }
            }
        }
    }
}

fn made(id: &Arc<str>, pod: Option<&str>) -> Announcement {
    let (id, pod) = (Arc::clone(id), pod.map(Into::into));
    Announcement::CgroupMade { id, pod }
}

fn removed(id: &Arc<str>) -> Announcement {
    Announcement::CgroupRemoved { id: Arc::clone(id) }
}

#[test]
fn siblings_of_a_known_container_are_seen() {
    for (kind, options, controllers) in [("cgroup2", "rw", ""), ("cgroup", "rw,pids", "pids")] {
        let mut machine = Machine::new(kind, options);
        let pod = format!("kubepods/burstable/pod{UID}");
        let first = format!("{pod}/{}", id(1));
        machine.mkdir(&first);
        machine.learn(controllers, &first, &id(1));
        // The pod, its class, and kubepods; not the root.
        assert_eq!(machine.cgroups.len(), 3);
        assert_eq!(machine.announced(), []);

        machine.mkdir(&format!("{pod}/{}", id(2)));
        assert_eq!(machine.announced(), [made(&id(2), Some(UID))]);
        machine.mkdir(&format!("{pod}/crio-conmon-{}", id(2)));
        std::fs::write(machine.path(&format!("{pod}/{}.txt", id(3))), "").unwrap();
        assert_eq!(machine.announced(), []);
        machine.rmdir(&format!("{pod}/{}", id(2)));
        assert_eq!(machine.announced(), [removed(&id(2))]);
    }
}

#[test]
fn a_pod_that_was_filled_before_it_was_watched_is_scanned() {
    let mut machine = Machine::new("cgroup2", "rw");
    let slice =
        |class: &str, uid: &str| format!("kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{uid}.slice");
    let first = format!("{}/cri-containerd-{}.scope", slice("burstable", "x"), id(1));
    machine.mkdir(&first);
    machine.learn("", &first, &id(1));

    // A class and a pod that did not exist, and two containers in it, before any event is read.
    let pod = slice("besteffort", &UID.replace('-', "_"));
    machine.mkdir(&format!("{pod}/cri-containerd-{}.scope", id(2)));
    machine.mkdir(&format!("{pod}/cri-containerd-{}.scope", id(3)));
    let mut announced = machine.announced();
    announced.sort_by_key(|announcement| format!("{announcement:?}"));
    assert_eq!(announced, [made(&id(2), Some(UID)), made(&id(3), Some(UID))]);
    assert_eq!(machine.cgroups.len(), 5);
    machine.mkdir(&format!("{pod}/cri-containerd-{}.scope", id(4)));
    assert_eq!(machine.announced(), [made(&id(4), Some(UID))]);

    // What is deeper than a pod is not watched.
    machine.mkdir(&format!("{pod}/init.scope/deeper"));
    assert_eq!(machine.announced(), []);
    assert_eq!(machine.cgroups.len(), 5);
}

#[test]
fn a_pod_that_its_sandbox_led_to_first_is_scanned_all_the_same() {
    let mut machine = Machine::new("cgroup2", "rw");
    machine.mkdir(&format!("kubepods/burstable/pod1/{}", id(1)));
    machine.learn("", &format!("kubepods/burstable/pod1/{}", id(1)), &id(1));
    let pod = format!("kubepods/burstable/pod{UID}");
    machine.mkdir(&format!("{pod}/{}", id(2)));
    machine.mkdir(&format!("{pod}/{}", id(3)));
    machine.learn("", &format!("{pod}/{}", id(2)), &id(2));
    assert!(machine.announced().contains(&made(&id(3), Some(UID))));
}

#[test]
fn a_removed_pod_frees_its_watch_and_may_come_back() {
    let mut machine = Machine::new("cgroup2", "rw");
    let pod = "kubepods/burstable/pod1";
    let first = format!("{pod}/{}", id(1));
    machine.mkdir(&first);
    machine.learn("", &first, &id(1));
    for _ in 0..100 {
        machine.rmdir(&first);
        machine.rmdir(pod);
        assert_eq!(machine.announced(), [removed(&id(1))]);
        assert_eq!((machine.cgroups.dirs.len(), machine.cgroups.watches.len()), (2, 2));
        machine.mkdir(&first);
        assert_eq!(machine.announced(), [made(&id(1), None)]);
        assert_eq!((machine.cgroups.dirs.len(), machine.cgroups.watches.len()), (3, 3));
    }
    // Removed and made again before any event is read.
    machine.rmdir(&first);
    machine.rmdir(pod);
    machine.mkdir(&first);
    assert_eq!(machine.announced(), [removed(&id(1)), made(&id(1), None)]);
    assert_eq!((machine.cgroups.dirs.len(), machine.cgroups.watches.len()), (3, 3));
    // Moved away, with what is in it, and back.
    std::fs::rename(machine.path("kubepods/burstable"), machine.path("elsewhere")).unwrap();
    assert_eq!(machine.announced(), []);
    assert_eq!((machine.cgroups.dirs.len(), machine.cgroups.watches.len()), (1, 1));
    std::fs::rename(machine.path("elsewhere"), machine.path("kubepods/burstable")).unwrap();
    assert_eq!(machine.announced(), [made(&id(1), None)]);
    assert_eq!((machine.cgroups.dirs.len(), machine.cgroups.watches.len()), (3, 3));
    // The topmost, above which nothing is watched.
    std::fs::remove_dir_all(machine.path("kubepods")).unwrap();
    machine.announced();
    assert_eq!((machine.cgroups.dirs.len(), machine.cgroups.watches.len()), (0, 0));
}

/// Removed cgroups are like that: the kernel says nothing about the directory itself.
#[test]
fn a_directory_whose_removal_is_not_reported_is_swept() {
    let mut machine = Machine::new("cgroup2", "rw");
    for number in 0..2000 {
        let path = format!("pod{number}/{}", id(number));
        machine.mkdir(&path);
        machine.learn("", &path, &id(number));
        std::fs::remove_dir_all(machine.path(&format!("pod{number}"))).unwrap();
        machine.lose_events();
    }
    assert!(machine.cgroups.len() <= SWEEP_EVERY, "{}", machine.cgroups.len());
    // One that took the place of a removed one is known by the next container in it.
    machine.mkdir(&format!("kubepods/pod1/{}", id(1)));
    machine.learn("", &format!("kubepods/pod1/{}", id(1)), &id(1));
    std::fs::remove_dir_all(machine.path("kubepods")).unwrap();
    machine.mkdir(&format!("kubepods/pod2/{}", id(2)));
    machine.lose_events();
    machine.learn("", &format!("kubepods/pod2/{}", id(2)), &id(2));
    machine.announced();
    machine.mkdir(&format!("kubepods/pod3/{}", id(3)));
    assert_eq!(machine.announced(), [made(&id(3), None)]);
}

#[test]
fn the_root_of_a_hierarchy_is_never_watched() {
    let mut machine = Machine::new("cgroup2", "rw");
    machine.mkdir(&id(1));
    machine.learn("", &id(1), &id(1));
    assert_eq!(machine.cgroups.len(), 0);
    machine.mkdir(&format!("k8s.io/{}", id(2)));
    machine.learn("", &format!("k8s.io/{}", id(2)), &id(2));
    assert_eq!(machine.cgroups.len(), 1);
    machine.mkdir(&format!("k8s.io/{}", id(3)));
    assert_eq!(machine.announced(), [made(&id(3), None)]);
}

#[test]
fn an_oom_kill_is_announced_when_its_count_grows() {
    let mut machine = Machine::new("cgroup2", "rw");
    let path = format!("k8s.io/{}", id(1));
    machine.mkdir(&path);
    let events = machine.path(&path).join("memory.events");
    let write = |kills: &str| std::fs::write(&events, format!("low 0\noom 9\noom_kill {kills}\n")).unwrap();
    let oom = Announcement::OomKilled { id: id(1) };
    write("3");
    machine.learn("", &path, &id(1));
    assert_eq!(machine.announced(), []);
    write("3");
    assert_eq!(machine.announced(), []);
    write("4");
    assert_eq!(machine.announced(), std::slice::from_ref(&oom));
    write("x");
    assert_eq!(machine.announced(), []);
    // The exit is seen before the count: the count is looked at a last time, and only once.
    write("5");
    let mut out = VecDeque::new();
    machine.cgroups.exited(&id(1), &mut out);
    assert_eq!(out, [oom]);
    assert_eq!((machine.cgroups.memory.len(), machine.cgroups.memory_of.len()), (0, 0));
    write("6");
    assert_eq!(machine.announced(), []);
    // Learned twice, forgotten once.
    machine.learn("", &path, &id(1));
    machine.learn("", &path, &id(1));
    machine.cgroups.forget(&id(1));
    assert_eq!((machine.cgroups.memory.len(), machine.cgroups.memory_of.len()), (0, 0));
    write("7");
    assert_eq!(machine.announced(), []);
}

#[test]
fn no_more_is_watched_than_half_of_what_the_user_may() {
    let mut machine = Machine::with_limit("cgroup2", "rw", "20\n");
    for pod in 0..30 {
        machine.mkdir(&format!("kubepods/pod{pod}/{}", id(pod)));
    }
    for pod in 0..30 {
        machine.learn("", &format!("kubepods/pod{pod}/{}", id(pod)), &id(pod));
    }
    assert_eq!(machine.cgroups.len(), 10);
    // A place that becomes free is used again.
    std::fs::remove_dir_all(machine.path("kubepods")).unwrap();
    machine.announced();
    assert_eq!(machine.cgroups.len(), 0);
    machine.mkdir(&format!("kubepods/pod1/{}", id(1)));
    machine.learn("", &format!("kubepods/pod1/{}", id(1)), &id(1));
    assert_eq!(machine.cgroups.len(), 2);
}

#[test]
fn after_an_overflow_only_what_exists_is_watched() {
    let mut machine = Machine::new("cgroup2", "rw");
    let first = format!("kubepods/burstable/pod1/{}", id(1));
    machine.mkdir(&first);
    machine.learn("", &first, &id(1));
    // The kernel keeps so many events and drops the rest.
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let file = machine.path("kubepods/burstable/pod1");
    for number in 0..most / 2 + 10 {
        let path = file.join(format!("x{number}"));
        std::fs::create_dir(&path).unwrap();
        std::fs::remove_dir(&path).unwrap();
    }
    std::fs::remove_dir_all(machine.path("kubepods/burstable/pod1")).unwrap();
    let mut out = VecDeque::new();
    while !out.contains(&Announcement::Overflow) {
        machine.cgroups.take_events(&mut out);
    }
    assert_eq!((machine.cgroups.dirs.len(), machine.cgroups.watches.len()), (2, 2));
    machine.mkdir(&format!("kubepods/burstable/pod2/{}", id(2)));
    assert_eq!(machine.announced(), [made(&id(2), None)]);
}

#[test]
fn too_many_announcements_become_an_overflow() {
    let mut machine = Machine::new("cgroup2", "rw");
    machine.mkdir(&format!("kubepods/pod1/{}", id(1)));
    machine.learn("", &format!("kubepods/pod1/{}", id(1)), &id(1));
    let pod = machine.path("kubepods/pod2");
    std::fs::create_dir(&pod).unwrap();
    for number in 0..MOST_PENDING + 10 {
        std::fs::create_dir(pod.join(&*id(number))).unwrap();
    }
    let mut out = VecDeque::new();
    machine.cgroups.take_events(&mut out);
    assert_eq!(out.len(), MOST_PENDING + 1);
    assert_eq!(out.back(), Some(&Announcement::Overflow));
}

#[test]
fn hostile_names_do_no_harm() {
    let mut machine = Machine::new("cgroup2", "rw");
    let first = format!("kubepods/pod1/{}", id(1));
    machine.mkdir(&first);
    machine.learn("", &first, &id(1));
    let long = [b"\n".as_slice(), &[b'a'; 254]].concat();
    for name in [b"\xff\xfe".as_slice(), b"pod\n", b"pod\xff", &long] {
        let dir = machine.path("kubepods").join(OsStr::from_bytes(name));
        std::fs::create_dir_all(dir.join(&*id(2))).unwrap();
        assert_eq!(machine.announced(), [made(&id(2), None)]);
        std::fs::remove_dir_all(dir).unwrap();
        assert_eq!(machine.announced(), [removed(&id(2))]);
    }
    assert_eq!(machine.cgroups.len(), 2);
}

#[test]
fn without_inotify_or_mounts_nothing_is_watched() {
    let mut machine = Machine::new("tmpfs", "rw");
    machine.mkdir(&format!("k8s.io/{}", id(1)));
    machine.learn("", &format!("k8s.io/{}", id(1)), &id(1));
    assert_eq!(machine.cgroups.len(), 0);
    machine.cgroups.stop();
    machine.learn("", &format!("k8s.io/{}", id(1)), &id(1));
    assert_eq!(machine.announced(), []);
    assert!(machine.cgroups.events().is_none());
}
