//! Real processes. Only their cgroups are not: `/proc` is a directory in which `stat` is a link to the real one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

use super::*;

fn id(number: usize) -> Arc<str> {
    format!("{number:064x}").into()
}

/// A machine whose processes are in the cgroups that a test says.
struct Machine {
    proc: tempfile::TempDir,
    kernel: Kernel,
}

impl Machine {
    fn new() -> Self {
        let proc = tempfile::tempdir().unwrap();
        for pid in ["self", "1"] {
            std::fs::create_dir(proc.path().join(pid)).unwrap();
            std::fs::write(proc.path().join(pid).join("cgroup"), "0::/\n").unwrap();
        }
        let kernel = Kernel::with_proc(proc.path());
        assert_eq!(kernel.unavailable(), None);
        Self { proc, kernel }
    }

    /// The process is in the container's cgroup.
    fn put(&self, pid: u32, id: &str) {
        let dir = self.proc.path().join(pid.to_string());
        if std::fs::create_dir(&dir).is_ok() {
            std::os::unix::fs::symlink(format!("/proc/{pid}/stat"), dir.join("stat")).unwrap();
        }
        std::fs::write(dir.join("cgroup"), format!("0::/kubepods/pod1/{id}\n")).unwrap();
    }

    fn watch(&mut self, id: &Arc<str>, pid: u32) -> Process {
        self.put(pid, id);
        self.kernel.watch(id, pid).unwrap()
    }

    async fn next(&mut self) -> Announcement {
        next(&mut self.kernel).await
    }

    /// The next announcement, which has to be an exit: whose, and its code.
    async fn exited(&mut self) -> (Arc<str>, u32, Option<i32>) {
        match self.next().await {
            Announcement::Exited { id, pid, exit_code, .. } => (id, pid, exit_code),
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is announced now. Asks the kernel itself, since tokio may learn of an event later.
    async fn is_silent(&mut self) -> bool {
        let pending = std::future::poll_fn(|cx| Poll::Ready(self.kernel.poll_next(cx).is_pending())).await;
        pending && readable(self.kernel.epoll.as_ref().unwrap()).unwrap().is_empty()
    }
}

async fn next(kernel: &mut Kernel) -> Announcement {
    let next = std::future::poll_fn(|cx| kernel.poll_next(cx));
    tokio::time::timeout(Duration::from_secs(20), next).await.unwrap()
}

/// A shell. It is killed at the end, whatever happens.
struct Shell {
    child: Child,
    /// One reader for all lines: another one would miss what the first has buffered.
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    fn run(script: &str) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the shell has ended");
        line.trim().to_owned()
    }

    /// What it reads ends.
    fn close(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(pid: u32, signal: Signal) {
    kill_process(number(pid), signal).unwrap();
}

fn number(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

#[tokio::test]
async fn an_unreaped_zombie_is_announced_with_its_exit_code() {
    let mut machine = Machine::new();
    for (number, code) in [(1, 0), (2, 7), (3, 255)] {
        let mut shell = Shell::run(&format!("echo executed; read x; exit {code}"));
        // Until then it has no code of its own, and whether a 0 can be believed is not known.
        assert_eq!(shell.line(), "executed");
        let process = machine.watch(&id(number), shell.pid());
        let parent = Some(std::process::id());
        assert_eq!(
            process,
            Process {
                pid: shell.pid(),
                parent
            }
        );
        assert!(machine.is_silent().await);
        shell.close();
        assert_eq!(machine.exited().await, (id(number), shell.pid(), Some(code)));
        assert_eq!(machine.kernel.watched(), Watched::default());
    }
    let shell = Shell::run("read x");
    machine.watch(&id(4), shell.pid());
    shell.signal(Signal::KILL);
    assert_eq!(machine.exited().await, (id(4), shell.pid(), Some(137)));
}

#[tokio::test]
async fn a_process_that_was_reaped_is_announced_without_its_exit_code() {
    let mut machine = Machine::new();
    let mut shell = Shell::run("read x; exit 7");
    machine.watch(&id(1), shell.pid());
    shell.child.kill().unwrap();
    shell.child.wait().unwrap();
    assert_eq!(machine.exited().await, (id(1), shell.pid(), None));
}

#[tokio::test]
async fn a_code_of_0_is_not_believed_where_the_kernel_hides_it() {
    let mut machine = Machine::new();
    let mut shell = Shell::run("read x; exit 0");
    machine.watch(&id(1), shell.pid());
    machine
        .kernel
        .processes
        .values_mut()
        .for_each(|seen| seen.permitted = false);
    shell.close();
    assert_eq!(machine.exited().await, (id(1), shell.pid(), None));
}

#[tokio::test]
async fn the_code_of_a_later_process_with_the_same_number_is_not_taken() {
    let mut machine = Machine::new();
    let mut shell = Shell::run("read x; exit 7");
    machine.watch(&id(1), shell.pid());
    machine.kernel.processes.values_mut().for_each(|seen| seen.started += 1);
    shell.close();
    assert_eq!(machine.exited().await, (id(1), shell.pid(), None));
}

#[tokio::test]
async fn a_death_is_announced_while_the_parent_is_stopped() {
    let mut machine = Machine::new();
    let mut shell = Shell::run("sleep 1000 & echo $!; wait");
    let child: u32 = shell.line().parse().unwrap();
    let process = machine.watch(&id(1), child);
    assert_eq!(process.parent, Some(shell.pid()));
    shell.signal(Signal::STOP);
    let (_, status) = waitpid(Some(number(shell.pid())), WaitOptions::UNTRACED)
        .unwrap()
        .unwrap();
    assert!(status.stopped());
    send(child, Signal::KILL);
    assert_eq!(machine.exited().await, (id(1), child, Some(137)));
    let parent = crate::runtime::shim::Shim::at(shell.pid()).unwrap();
    assert_eq!(parent.word(), "stopped");
}

#[tokio::test]
async fn a_process_of_another_cgroup_is_refused() {
    let mut machine = Machine::new();
    let shell = Shell::run("read x");
    machine.put(shell.pid(), &id(2));
    assert_eq!(
        machine.kernel.watch(&id(1), shell.pid()),
        Err(WatchError::Mismatch(shell.pid()))
    );
    // The monitor of a container has the id in the name of its cgroup too.
    machine.put(shell.pid(), &format!("crio-conmon-{}.scope", id(1)));
    assert_eq!(
        machine.kernel.watch(&id(1), shell.pid()),
        Err(WatchError::Mismatch(shell.pid()))
    );
    assert_eq!(machine.kernel.watched(), Watched::default());
    // And with the real /proc.
    let own = std::process::id();
    assert_eq!(Kernel::new().watch(&id(1), own), Err(WatchError::Mismatch(own)));
}

#[tokio::test]
async fn what_is_no_process_or_no_id_is_refused() {
    let mut machine = Machine::new();
    for pid in [0, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        assert_eq!(machine.kernel.watch(&id(1), pid), Err(WatchError::NotFound(pid)));
    }
    let mut shell = Shell::run("exit 0");
    machine.put(shell.pid(), &id(1));
    for bad in [
        "",
        "0",
        "00000000000",
        "0000000000000/",
        "0000 00000000000",
        "0000000000000\n",
        "..é000000000000",
    ] {
        machine.put(shell.pid(), bad);
        let refused = machine.kernel.watch(&bad.into(), shell.pid());
        assert!(matches!(refused, Err(WatchError::Refused(_))), "{bad:?}: {refused:?}");
    }
    machine.put(shell.pid(), &id(1));
    shell.child.wait().unwrap();
    let refused = machine.kernel.watch(&id(1), shell.pid());
    assert_eq!(refused, Err(WatchError::NotFound(shell.pid())));
}

#[tokio::test]
async fn a_zombie_outside_of_cgroups_has_exited() {
    let mut machine = Machine::new();
    let mut shell = Shell::run("read x");
    machine.watch(&id(1), shell.pid());
    shell.close();
    machine.exited().await;
    // As cgroup v1 shows a zombie.
    machine.put(shell.pid(), "");
    let refused = machine.kernel.watch(&id(1), shell.pid());
    assert_eq!(refused, Err(WatchError::NotFound(shell.pid())));
    // As cgroup v2 does.
    machine.watch(&id(1), shell.pid());
    assert_eq!(machine.exited().await.1, shell.pid());
}

/// A process cannot be made to have a certain number: the file is changed at the moment at which the pidfd is opened.
#[tokio::test]
async fn the_cgroup_is_read_after_the_pidfd_was_opened() {
    thread_local! {
        static FILE: std::cell::RefCell<PathBuf> = std::cell::RefCell::default();
    }
    let mut machine = Machine::new();
    let shell = Shell::run("read x");
    machine.put(shell.pid(), &id(1));
    let file = machine.proc.path().join(shell.pid().to_string()).join("cgroup");
    FILE.with(|own| own.replace(file));
    machine.kernel.open = |pid| {
        let pidfd = open(pid);
        FILE.with(|file| std::fs::write(&*file.borrow(), "0::/system.slice/other.service\n").unwrap());
        pidfd
    };
    let refused = machine.kernel.watch(&id(1), shell.pid());
    assert_eq!(refused, Err(WatchError::Mismatch(shell.pid())));
}

#[tokio::test]
async fn a_process_that_executes_another_program_is_the_same() {
    let mut machine = Machine::new();
    let mut shell = Shell::run("read x; exec sh -c 'echo executed; read y; exit 3'");
    machine.watch(&id(1), shell.pid());
    shell.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(shell.line(), "executed");
    assert!(machine.is_silent().await);
    shell.close();
    assert_eq!(machine.exited().await, (id(1), shell.pid(), Some(3)));
}

#[tokio::test]
async fn only_the_first_process_of_a_container_counts() {
    let mut machine = Machine::new();
    // As with exec, or with a PID namespace that containers share.
    let mut shell = Shell::run("sleep 1000 & echo $!; wait; echo reaped; read x; exit 4");
    let child: u32 = shell.line().parse().unwrap();
    machine.put(child, &id(1));
    machine.watch(&id(1), shell.pid());
    send(child, Signal::KILL);
    assert_eq!(shell.line(), "reaped");
    assert!(machine.is_silent().await);
    // Two containers in one PID namespace: the other one is not affected.
    let other = Shell::run("read x");
    machine.watch(&id(2), other.pid());
    shell.close();
    assert_eq!(machine.exited().await, (id(1), shell.pid(), Some(4)));
    assert!(machine.is_silent().await);
    assert_eq!(machine.kernel.watched().processes, 1);
}

/// A container with `hostPID` shares the namespace of all other processes, and containers may share one with each other: whose a process
/// is, its cgroup says.
#[tokio::test]
async fn containers_in_one_pid_namespace_are_distinguished() {
    let mut machine = Machine::new();
    // All of them see each other, and one has started the others, as a container with hostPID may.
    let mut shell = Shell::run("sleep 1000 & echo $!; sleep 1000 & echo $!; read x; exit 5");
    let [second, third]: [u32; 2] = [shell.line().parse().unwrap(), shell.line().parse().unwrap()];
    machine.watch(&id(1), shell.pid());
    machine.watch(&id(2), second);
    machine.watch(&id(3), third);
    // Not even if the runtime names the process of another container.
    assert_eq!(machine.kernel.watch(&id(4), second), Err(WatchError::Mismatch(second)));
    send(third, Signal::KILL);
    let (announced, pid, _) = machine.exited().await;
    assert_eq!((announced, pid), (id(3), third));
    shell.close();
    assert_eq!(machine.exited().await, (id(1), shell.pid(), Some(5)));
    assert!(machine.is_silent().await && machine.kernel.lives(&id(2)));
    send(second, Signal::KILL);
    assert_eq!(machine.exited().await.0, id(2));
}

#[tokio::test]
async fn a_second_process_of_a_container_replaces_the_first() {
    let mut machine = Machine::new();
    let (first, second) = (Shell::run("read x"), Shell::run("read x"));
    machine.watch(&id(1), first.pid());
    machine.watch(&id(1), second.pid());
    assert_eq!(machine.kernel.watched().processes, 1);
    // A refusal does not.
    assert!(machine.kernel.watch(&id(1), std::process::id()).is_err());
    assert_eq!(machine.kernel.watched().processes, 1);
    first.signal(Signal::KILL);
    second.signal(Signal::KILL);
    assert_eq!(machine.exited().await, (id(1), second.pid(), Some(137)));
    assert!(machine.is_silent().await);
}

#[test]
fn it_is_made_and_asked_without_a_runtime() {
    let mut machine = Machine::new();
    let mut shell = Shell::run("read x; exit 5");
    machine.watch(&id(1), shell.pid());
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(machine.kernel.poll_next(&mut cx).is_pending());
    shell.close();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        assert_eq!(machine.exited().await, (id(1), shell.pid(), Some(5)));
    });
    drop(runtime);
    assert!(machine.kernel.poll_next(&mut cx).is_pending());
}

#[test]
fn what_does_not_work_is_said() {
    let reason = |proc: &Path| {
        let mut kernel = Kernel::with_proc(proc);
        let reason = kernel.unavailable().unwrap();
        let refused = kernel.watch(&id(1), std::process::id());
        assert_eq!(refused, Err(WatchError::Refused(Arc::clone(&reason))));
        assert_eq!(kernel.watched(), Watched::default());
        reason
    };
    assert_eq!(
        &*reason(Path::new("/none")),
        "/none/self/cgroup cannot be read: No such file or directory (os error 2)"
    );
    let proc = tempfile::tempdir().unwrap();
    std::fs::create_dir(proc.path().join("self")).unwrap();
    std::fs::write(proc.path().join("self/cgroup"), "0::/\n").unwrap();
    assert!(reason(proc.path()).starts_with("processes of other users are hidden: "));
    assert_eq!(Kernel::new().unavailable(), None);
}

/// A hierarchy of cgroups in which directories can be made.
struct Hierarchy {
    mount: PathBuf,
    /// It was mounted for the test.
    own: bool,
}

impl Hierarchy {
    fn find(kind: &str, controller: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts.lines().filter_map(|line| {
            let (mount, super_block) = line.split_once(" - ")?;
            let mut super_block = super_block.split(' ');
            let (own_kind, options) = (super_block.next()?, super_block.nth(1)?);
            let fits = own_kind == kind && (kind == "cgroup2" || options.split(',').any(|one| one == controller));
            let mut fields = mount.split(' ').skip(3);
            (fits && fields.next()? == "/").then(|| PathBuf::from(fields.next().unwrap_or_default()))
        });
        let mounted = mounts.map(|mount| Self { mount, own: false }).find(Self::is_writable);
        mounted.or_else(|| {
            let mount = tempfile::tempdir().unwrap().keep();
            let options = if kind == "cgroup2" { "rw" } else { controller };
            let mut command = Command::new("mount");
            command
                .args(["-t", kind, "-o", options, "none"])
                .arg(&mount)
                .stderr(Stdio::null());
            let own = command.status().is_ok_and(|status| status.success());
            Some(Self { mount, own }).filter(|hierarchy| own && hierarchy.is_writable())
        })
    }

    fn is_writable(&self) -> bool {
        let probe = self.mount.join(format!("pleg-probe-{}", std::process::id()));
        std::fs::create_dir(&probe).is_ok() && std::fs::remove_dir(&probe).is_ok()
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        if self.own {
            let _ = Command::new("umount").arg(&self.mount).status();
            let _ = std::fs::remove_dir(&self.mount);
        }
    }
}

/// Directories that are removed at the end, deepest first.
struct Dirs(Vec<PathBuf>);

impl Dirs {
    fn make(&mut self, path: PathBuf) -> PathBuf {
        std::fs::create_dir(&path).unwrap();
        self.0.push(path.clone());
        path
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            let _ = std::fs::remove_dir(path);
        }
    }
}

#[tokio::test]
async fn real_cgroups_of_both_versions() {
    let mut tried = 0;
    for (kind, controller) in [("cgroup", "pids"), ("cgroup2", "")] {
        match Hierarchy::find(kind, controller) {
            Some(hierarchy) => {
                with_real_cgroups(&hierarchy.mount).await;
                tried += 1;
            }
            None => eprintln!("LEFT OUT: no {kind} hierarchy in which directories can be made"),
        }
    }
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true") && rustix::process::geteuid().is_root();
    assert!(tried > 0 || !must, "neither cgroup v1 nor v2 could be tried");
}

async fn with_real_cgroups(mount: &Path) {
    let uid = "7c1e3a52-0d4b-4c8e-9f10-2b3c4d5e6f70";
    let mut dirs = Dirs(Vec::new());
    let top = dirs.make(mount.join(format!("pleg-test-{}", std::process::id())));
    let pod = dirs.make(top.join("pod1"));
    let container = dirs.make(pod.join(format!("crio-{}", id(1))));
    let shell = Shell::run("read x");
    std::fs::write(container.join("cgroup.procs"), shell.pid().to_string()).unwrap();

    let mut kernel = Kernel::new();
    assert_eq!(kernel.unavailable(), None);
    let other = kernel.watch(&id(2), shell.pid());
    assert_eq!(other, Err(WatchError::Mismatch(shell.pid())));
    kernel.watch(&id(1), shell.pid()).unwrap();
    let both = Watched {
        processes: 1,
        cgroups: 2,
        limited: false,
    };
    assert_eq!(kernel.watched(), both);

    // A pod that did not exist, with a container.
    let second = dirs.make(top.join(format!("pod{uid}")));
    let sibling = dirs.make(second.join(&*id(2)));
    let (sibling_id, uid) = (id(2), Some(uid.into()));
    assert_eq!(
        next(&mut kernel).await,
        Announcement::CgroupMade {
            id: sibling_id,
            pod: uid
        }
    );
    std::fs::remove_dir(sibling).unwrap();
    assert_eq!(next(&mut kernel).await, Announcement::CgroupRemoved { id: id(2) });

    let killed = tokio::time::Instant::now();
    shell.signal(Signal::KILL);
    let exited = next(&mut kernel).await;
    eprintln!("{}: announced {:?} after the kill", mount.display(), killed.elapsed());
    let Announcement::Exited {
        id: whose, exit_code, ..
    } = exited
    else {
        panic!("{exited:?}");
    };
    assert_eq!((whose, exit_code), (id(1), Some(137)));
    drop(shell);

    // A cgroup is busy for a moment after its last process. It is removed with its pod, and so is the watch.
    let gone = async {
        while std::fs::remove_dir(&container).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap();
    assert_eq!(next(&mut kernel).await, Announcement::CgroupRemoved { id: id(1) });
    for path in [&pod, &second, &top] {
        std::fs::remove_dir(path).unwrap();
    }
    // The removal of the topmost is not reported.
    kernel.cgroups.sweep();
    let freed = std::future::poll_fn(|cx| {
        assert!(kernel.poll_next(cx).is_pending());
        let none = kernel.watched().cgroups == 0;
        if none { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::time::timeout(Duration::from_secs(20), freed).await.unwrap();
}

/// Runs a test again in a process of its own, where no other test opens files. True if this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os("PLEG_TEST_ALONE").is_some() {
        return true;
    }
    let name = format!("witness::kernel::tests::{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&name, "--exact", "--test-threads=1"])
        .env("PLEG_TEST_ALONE", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_starts_and_exits_leave_nothing_open() {
    if !is_alone("a_thousand_starts_and_exits_leave_nothing_open") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut machine = Machine::new();
        assert!(machine.is_silent().await);
        let before = open_files();
        for number in 0..1000 {
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            machine.watch(&id(number), child.id());
            child.kill().unwrap();
            if number % 2 == 1 {
                child.wait().unwrap();
            }
            assert_eq!(machine.exited().await.0, id(number));
            child.wait().unwrap();
            std::fs::remove_dir_all(machine.proc.path().join(child.id().to_string())).unwrap();
        }
        assert!(machine.is_silent().await);
        assert_eq!(open_files(), before);
        assert_eq!((machine.kernel.processes.len(), machine.kernel.tokens.len()), (0, 0));
    });
}

#[test]
fn no_more_is_watched_than_half_of_the_open_files() {
    if !is_alone("no_more_is_watched_than_half_of_the_open_files") {
        return;
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(100);
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let mut machine = Machine::new();
    let shell = Shell::run("read x");
    for number in 0..49 {
        machine.watch(&id(number), shell.pid());
    }
    let last = Shell::run("read x");
    machine.watch(&id(49), last.pid());
    machine.put(shell.pid(), &id(50));
    let refused = machine.kernel.watch(&id(50), shell.pid());
    assert!(matches!(refused, Err(WatchError::Limit(_))), "{refused:?}");
    // One that is watched already may be watched again.
    machine.watch(&id(7), shell.pid());
    // One that has exited makes room.
    last.signal(Signal::KILL);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (exited, ..) = runtime.unwrap().block_on(machine.exited());
    assert_eq!(exited, id(49));
    machine.watch(&id(50), shell.pid());
    assert_eq!(machine.kernel.watched().processes, 50);
}
