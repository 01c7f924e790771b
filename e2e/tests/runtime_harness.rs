//! The harness itself: what the other scenarios take for granted.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::home::Home;
use pleg_e2e::image::Program;
use pleg_e2e::steps::app;
use pleg_e2e::truth::State;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Container, Context, Pod, Runtime, Sandbox, Version, process, scenarios, suite};
use rustix::process::Signal;

/// Set for the copy of this program that is to be killed with a runtime in its hands.
const ABANDON: &str = "PLEG_E2E_ABANDON";

fn main() -> ExitCode {
    if let Some(version) = std::env::var(ABANDON).ok().as_deref().and_then(Version::from_name) {
        return abandon(version);
    }
    suite::main(scenarios![
        containers_end_as_scripted,
        monitors_and_processes_are_found,
        nothing_is_left_behind,
        an_abandoned_runtime_is_swept_up,
    ])
}

/// Each program of the test image does what its name says, and the truth tells it.
async fn containers_end_as_scripted(context: &Context) -> Result<()> {
    let kubelet = &context.kubelet;
    let pod = Pod::new("pod");
    let sandbox = kubelet.run_pod(&pod).await?;

    let polite = Container::new("polite", Program::Polite(5));
    let asked = kubelet.run(&sandbox, &polite).await?;
    kubelet.wait_for_log(&sandbox, &polite, "ready").await?;
    let says = Container::new("says", Program::Echo("so it is".to_owned()));
    let said = kubelet.run(&sandbox, &says).await?;
    kubelet.wait_for_log(&sandbox, &says, "so it is").await?;
    let killed = kubelet
        .run(&sandbox, &Container::new("stubborn", Program::Stubborn))
        .await?;
    let three = kubelet
        .run(&sandbox, &Container::new("three", Program::Exit(3, 0)))
        .await?;
    let glutton = Container::new("glutton", Program::Eat(256)).memory_mib(32);
    let eater = kubelet.run(&sandbox, &glutton).await?;
    let absent = absent(context, &sandbox).await?;

    kubelet.stop(&asked, 20).await?;
    kubelet.stop(&killed, 0).await?;
    let ends = [
        (asked, 5, &["Error"][..]),
        (said, 0, &["Completed"]),
        (killed, 137, &["Error"]),
        (three, 3, &["Error"]),
        // containerd learns of the exit and of its reason apart: on a busy machine one is reported a while before the other.
        (eater, 137, &["OOMKilled", "Error"]),
    ];
    let absent = absent.map(|id| (id, 128, &["StartError"][..]));
    for (id, code, reasons) in ends.into_iter().chain(absent) {
        let status = kubelet.wait_for_exit(&id).await?;
        let metadata = status.metadata.unwrap_or_default();
        ensure!(
            status.exit_code == code && reasons.contains(&status.reason.as_str()),
            "{} ended with {} {}",
            metadata.name,
            status.exit_code,
            status.reason
        );
        let truth = context.truth().await?;
        let told = &truth.pods[&pod.uid].containers[&id];
        ensure!(
            (told.state, told.exit_code) == (State::Exited, code) && reasons.contains(&told.reason.as_str()),
            "told of {}: {told:?}",
            metadata.name
        );
    }
    kubelet.stop_pod(&sandbox).await?;
    kubelet.wait_for_stop(&sandbox).await?;
    ensure!(
        !context.truth().await?.pods[&pod.uid].sandboxes[&sandbox.id].ready,
        "stopped, and still ready"
    );
    kubelet.remove_pod(&sandbox).await?;
    let left = context.truth().await?;
    ensure!(left.pods.is_empty(), "removed, and still there:\n{left}");
    Ok(())
}

/// A container whose program is not there: containerd fails to start it, CRI-O to create it.
async fn absent(context: &Context, sandbox: &Sandbox) -> Result<Option<String>> {
    let created = context
        .kubelet
        .create(sandbox, &Container::new("absent", Program::Absent))
        .await;
    if context.version().is_crio() {
        ensure!(created.is_err(), "a program that is not there was found");
        return Ok(None);
    }
    let id = created?;
    ensure!(
        context.kubelet.start(&id).await.is_err(),
        "a program that is not there was started"
    );
    Ok(Some(id))
}

async fn monitors_and_processes_are_found(context: &Context) -> Result<()> {
    let kubelet = &context.kubelet;
    let sandbox = kubelet.run_pod(&Pod::new("pod")).await?;
    let id = kubelet.run(&sandbox, &app()).await?;
    let pid = kubelet.container_pid(&id).await?;
    let mut pids = vec![pid];
    if !context.version().is_crio() {
        pids.push(kubelet.sandbox_pid(&sandbox).await?);
        ensure!(pids[0] != pids[1]);
    }
    for pid in pids {
        // For a moment after the start it still is runc, about to become the program.
        until("the container's program", PATIENCE, async || {
            let found = process::all()?.into_iter().find(|process| process.pid == pid);
            let found = found.with_context(|| format!("there is no process {pid}"))?;
            ensure!(found.args == ["/tool", "pause"], "{found:?}");
            Ok(())
        })
        .await?;
        let ours = process::in_cgroup(pid, &context.runtime.home().cgroup());
        ensure!(ours, "{pid} is elsewhere");
    }
    let monitor = context.runtime.monitor(&sandbox.id, &id)?;
    let monitors = context.runtime.monitors()?;
    ensure!(monitors.len() == 1, "one pod, one shim or conmon: {monitors:?}");
    let frozen = process::Frozen::new(monitor.pid)?;
    // Neither list nor plain status notices: this is what makes a hung shim or conmon so hard to find.
    ensure!(context.truth().await?.pods.len() == 1);
    frozen.thaw();
    process::signal(pid, Signal::KILL)?;
    kubelet.wait_for_exit(&id).await?;
    Ok(())
}

/// What is left of a runtime in the kernel's own books.
fn traces(home: &Path, cgroup: &str) -> Result<Vec<String>> {
    let below = format!("{}/", home.display());
    let mut found = Vec::new();
    for process in process::all()? {
        let mentions = process.args.iter().any(|arg| arg.contains(&below));
        if mentions || process::in_cgroup(process.pid, cgroup) {
            found.push(format!("{process:?}"));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    found.extend(mounts.lines().filter(|line| line.contains(&below)).map(str::to_owned));
    for controller in std::fs::read_dir("/sys/fs/cgroup")? {
        let path = controller?.path().join(cgroup);
        found.extend(path.exists().then(|| path.display().to_string()));
    }
    found.extend(home.exists().then(|| home.display().to_string()));
    Ok(found)
}

/// The sockets of the shims, as their bundles name them.
fn shim_sockets(home: &Path) -> Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for bundle in std::fs::read_dir(home.join("state/io.containerd.runtime.v2.task/k8s.io"))
        .into_iter()
        .flatten()
    {
        let bundle = bundle?.path();
        // The bare address, or, since 2.0, a JSON object with the address in quotes.
        let read = |file: &str| std::fs::read_to_string(bundle.join(file)).unwrap_or_default();
        let text = read("address") + &read("bootstrap.json");
        sockets.extend(
            text.split(['"', '\n'])
                .find_map(|part| part.strip_prefix("unix://"))
                .map(PathBuf::from),
        );
    }
    sockets.sort();
    sockets.dedup();
    Ok(sockets)
}

/// Also when the runtime was killed first and a shim or conmon hangs.
async fn nothing_is_left_behind(context: &Context) -> Result<()> {
    let runtime = Runtime::start(context.version()).await?;
    let kubelet = runtime.kubelet();
    let sandbox = kubelet.run_pod(&Pod::new("pod")).await?;
    let id = kubelet.run(&sandbox, &app()).await?;
    let (home, cgroup) = (runtime.home().dir().to_owned(), runtime.home().cgroup());
    let sockets = shim_sockets(&home)?;
    ensure!(
        sockets.len() == usize::from(!context.version().is_crio()) && sockets.iter().all(|socket| socket.exists()),
        "the shim's socket: {sockets:?}"
    );
    let before = traces(&home, &cgroup)?;
    ensure!(before.len() > 5, "the test looks in the wrong places: {before:#?}");
    let monitor = process::Frozen::new(runtime.monitor(&sandbox.id, &id)?.pid)?;
    runtime.kill().await?;
    drop(runtime);
    let after = traces(&home, &cgroup)?;
    ensure!(after.is_empty(), "left behind: {after:#?}");
    ensure!(
        !sockets.iter().any(|socket| socket.exists()),
        "left behind: {sockets:?}"
    );
    drop(monitor);
    Ok(())
}

/// The other side of the next scenario: a test run that is about to be killed.
#[expect(clippy::print_stdout, reason = "read by the one who will kill it")]
fn abandon(version: Version) -> ExitCode {
    let hold = async {
        let runtime = Runtime::start(version).await?;
        let kubelet = runtime.kubelet();
        let sandbox = kubelet.run_pod(&Pod::new("pod")).await?;
        kubelet.run(&sandbox, &app()).await?;
        println!("{} {}", runtime.home().dir().display(), runtime.home().cgroup());
        std::future::pending::<Result<()>>().await
    };
    let runtime = tokio::runtime::Runtime::new().map_err(anyhow::Error::from);
    let failed = runtime.and_then(|runtime| runtime.block_on(hold)).err();
    println!("{failed:?}");
    ExitCode::FAILURE
}

async fn an_abandoned_runtime_is_swept_up(context: &Context) -> Result<()> {
    let mut other = Command::new(std::env::current_exe()?)
        .env(ABANDON, context.version().name())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    let out = other.stdout.take().context("its output")?;
    BufReader::new(out).read_line(&mut said)?;
    other.kill()?;
    other.wait()?;
    let (home, cgroup) = said
        .trim()
        .split_once(' ')
        .with_context(|| format!("it said {said:?}"))?;
    // Another scenario that starts just now may have swept already.
    let _new = Home::new()?;
    let left = traces(home.as_ref(), cgroup)?;
    ensure!(left.is_empty(), "left behind: {left:#?}");
    Ok(())
}
