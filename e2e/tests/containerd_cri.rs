//! The harness itself, and `pleg-cri` against the real thing: what the generator's scenarios stand on.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_cri::v1::ContainerEventType as Event;
use pleg_cri::{ApiVersion, Client, Config, Deadlines, ErrorKind, ListFilter, v1};
use pleg_e2e::home::Home;
use pleg_e2e::image::Program;
use pleg_e2e::truth::State;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Container, Containerd, Context, Pod, Version, process, scenarios, suite};
use rustix::process::Signal;

/// Set for the copy of this program that is to be killed with a runtime in its hands.
const ABANDON: &str = "PLEG_E2E_ABANDON";

fn main() -> ExitCode {
    if let Some(version) = std::env::var(ABANDON).ok().as_deref().and_then(Version::from_name) {
        return abandon(version);
    }
    suite::main(scenarios![
        the_version_is_told,
        both_decoders_agree,
        what_is_unknown_is_not_found,
        a_paused_runtime_meets_the_deadline,
        a_stopped_runtime_is_unreachable_until_it_is_back,
        events_come_where_the_runtime_has_them,
        containers_end_as_they_are_told,
        shims_and_processes_are_found,
        a_locked_container_hangs_lists_and_nothing_else,
        nothing_is_left_behind,
        an_abandoned_runtime_is_swept_up,
    ])
}

async fn the_version_is_told(context: &Context) -> Result<()> {
    let endpoint = context.containerd.endpoint().clone();
    let client = Client::connect(endpoint, Config::default()).await?;
    ensure!(client.api() == ApiVersion::V1, "speaks {}", client.api());
    let told = client.version().await?;
    ensure!(told.runtime_name == "containerd", "is called {}", told.runtime_name);
    let said = &told.runtime_version;
    // The newest moves with its distribution.
    let expected = match context.version() {
        Version::V1_6 => said.starts_with("1.6."),
        Version::V1_7 => said.starts_with("1.7."),
        Version::V2_1 => !said.starts_with("1."),
    };
    ensure!(expected, "says it is {said}");
    Ok(())
}

/// Our own walk over the bytes of a list against prost's full decoding of it.
async fn both_decoders_agree(context: &Context) -> Result<()> {
    let kubelet = &context.kubelet;
    for number in 0..3 {
        let sandbox = kubelet.run_pod(&Pod::new(&format!("pod-{number}"))).await?;
        kubelet
            .create(&sandbox, &Container::new("created", Program::Stubborn))
            .await?;
        kubelet
            .run(&sandbox, &Container::new("running", Program::Stubborn))
            .await?;
        let ends = Container::new("ended", Program::Exit(number, 0)).attempt(7);
        let ended = kubelet.run(&sandbox, &ends).await?;
        kubelet.wait_for_exit(&ended).await?;
        if number == 2 {
            kubelet.stop_pod(&sandbox).await?;
        }
    }
    let client = context.containerd.client();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    let mut ours = BTreeSet::new();
    let summary = client
        .list_sandboxes(&ListFilter::All, |it| {
            let names = [it.id, it.uid, it.namespace, it.name, it.pod_uid_label].map(text);
            ours.insert((names, it.attempt, it.state, it.created_at));
        })
        .await?;
    let theirs = client.call(v1::ListPodSandboxRequest { filter: None }).await?.items;
    let theirs: BTreeSet<_> = theirs
        .into_iter()
        .map(|mut it| {
            let about = it.metadata.unwrap_or_default();
            let label = it.labels.remove("io.kubernetes.pod.uid").unwrap_or_default();
            let names = [it.id, about.uid, about.namespace, about.name, label];
            (names, about.attempt, it.state, it.created_at)
        })
        .collect();
    ensure!(
        summary.items == 3 && ours == theirs,
        "sandboxes: {ours:#?} are not {theirs:#?}"
    );

    let mut ours = BTreeSet::new();
    let summary = client
        .list_containers(&ListFilter::All, |it| {
            let labels = [it.pod_uid_label, it.pod_name_label, it.pod_namespace_label].map(text);
            let names = [it.id, it.pod_sandbox_id, it.name].map(text);
            ours.insert((names, labels, it.attempt, it.state, it.created_at));
        })
        .await?;
    let theirs = client
        .call(v1::ListContainersRequest { filter: None })
        .await?
        .containers;
    let theirs: BTreeSet<_> = theirs
        .into_iter()
        .map(|mut it| {
            let about = it.metadata.unwrap_or_default();
            let labels = ["uid", "name", "namespace"].map(|label| {
                let label = format!("io.kubernetes.pod.{label}");
                it.labels.remove(&label).unwrap_or_default()
            });
            let names = [it.id, it.pod_sandbox_id, about.name];
            (names, labels, about.attempt, it.state, it.created_at)
        })
        .collect();
    ensure!(
        summary.items == 9 && ours == theirs,
        "containers: {ours:#?} are not {theirs:#?}"
    );
    Ok(())
}

async fn what_is_unknown_is_not_found(context: &Context) -> Result<()> {
    let client = context.containerd.client();
    let id = "0123456789abcdef".to_owned();
    let container = v1::ContainerStatusRequest {
        container_id: id.clone(),
        verbose: false,
    };
    let sandbox = v1::PodSandboxStatusRequest {
        pod_sandbox_id: id,
        verbose: false,
    };
    for answer in [
        client.call(container).await.map(|_| ()),
        client.call(sandbox).await.map(|_| ()),
    ] {
        let error = answer.err().context("an id that nobody has was found")?;
        ensure!(error.kind.is_not_found(), "{error}");
    }
    Ok(())
}

/// A client that gives up soon.
fn impatient(context: &Context) -> Client {
    let soon = Duration::from_millis(300);
    let deadlines = Deadlines {
        list: soon,
        inspect: soon,
        act: soon,
        connect: soon,
    };
    let config = Config {
        deadlines,
        ..Config::default()
    };
    Client::lazy(context.containerd.endpoint().clone(), config)
}

async fn a_paused_runtime_meets_the_deadline(context: &Context) -> Result<()> {
    let client = impatient(context);
    client.version().await?;
    let paused = context.containerd.pause()?;
    let version = client.version().await.map(|_| ());
    let list = client.list_containers(&ListFilter::All, |_| {}).await.map(|_| ());
    for answer in [version, list] {
        let error = answer.err().context("a stopped process answered")?;
        ensure!(error.kind.is_deadline(), "{error}");
    }
    ensure!(
        client.inflight().calls().is_empty(),
        "calls that ended are still in the table"
    );
    paused.thaw();
    until("the same client to be answered", PATIENCE, async || {
        client.version().await
    })
    .await?;
    Ok(())
}

async fn a_stopped_runtime_is_unreachable_until_it_is_back(context: &Context) -> Result<()> {
    let client = impatient(context);
    client.version().await?;
    context.containerd.stop().await?;
    let error = client
        .version()
        .await
        .err()
        .context("nobody is there, and yet an answer")?;
    ensure!(error.kind.is_unreachable(), "{error}");
    context.containerd.up().await?;
    client.version().await?;
    context.containerd.kill().await?;
    let error = client.list_sandboxes(&ListFilter::All, |_| {}).await;
    let error = error.err().context("nobody is there, and yet a list")?;
    ensure!(error.kind.is_unreachable(), "{error}");
    context.containerd.up().await?;
    client.list_sandboxes(&ListFilter::All, |_| {}).await?;
    Ok(())
}

/// containerd answers a subscription with its first event and not before, so one is made beside it.
async fn events_come_where_the_runtime_has_them(context: &Context) -> Result<()> {
    let client = context.containerd.client();
    let kubelet = &context.kubelet;
    let pod = Pod::new("pod");
    let (stream, sandbox) = tokio::join!(client.container_events(), kubelet.run_pod(&pod));
    if !context.version().has_events() {
        let error = stream.err().context("1.6 has events?")?;
        ensure!(error.kind == ErrorKind::Unimplemented, "{error}");
        return Ok(());
    }
    let (mut stream, sandbox) = (stream?, sandbox?);
    let id = kubelet
        .run(&sandbox, &Container::new("app", Program::Exit(3, 50)))
        .await?;
    kubelet.wait_for_exit(&id).await?;
    kubelet.remove(&id).await?;
    let mut seen = Vec::new();
    while seen.last() != Some(&(id.clone(), Event::ContainerDeletedEvent)) {
        let event = tokio::time::timeout(PATIENCE, stream.next()).await;
        let event = event.with_context(|| format!("no event any more after {seen:?}"))??;
        seen.push((event.container_id.clone(), event.container_event_type()));
    }
    let expected = [
        (&sandbox.id, Event::ContainerCreatedEvent),
        (&sandbox.id, Event::ContainerStartedEvent),
        (&id, Event::ContainerCreatedEvent),
        (&id, Event::ContainerStartedEvent),
        (&id, Event::ContainerStoppedEvent),
        (&id, Event::ContainerDeletedEvent),
    ];
    let expected = expected.map(|(id, kind)| (id.clone(), kind));
    ensure!(seen == expected, "{seen:?}");
    Ok(())
}

/// Each program of the test image does what its name says, and the truth tells it.
async fn containers_end_as_they_are_told(context: &Context) -> Result<()> {
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
    let absent = kubelet
        .create(&sandbox, &Container::new("absent", Program::Absent))
        .await?;
    ensure!(
        kubelet.start(&absent).await.is_err(),
        "a program that is not there was started"
    );

    kubelet.stop(&asked, 20).await?;
    kubelet.stop(&killed, 0).await?;
    for (id, code, reason) in [
        (&asked, 5, "Error"),
        (&said, 0, "Completed"),
        (&killed, 137, "Error"),
        (&three, 3, "Error"),
        (&eater, 137, "OOMKilled"),
        (&absent, 128, "StartError"),
    ] {
        let status = kubelet.wait_for_exit(id).await?;
        let metadata = status.metadata.unwrap_or_default();
        ensure!(
            (status.exit_code, status.reason.as_str()) == (code, reason),
            "{} ended with {} {}",
            metadata.name,
            status.exit_code,
            status.reason
        );
        let truth = context.truth().await?;
        let told = &truth.pods[&pod.uid].containers[id];
        ensure!(
            (told.state, told.exit_code, told.reason.as_str()) == (State::Exited, code, reason),
            "told of {}: {told:?}",
            metadata.name
        );
    }
    kubelet.stop_pod(&sandbox).await?;
    ensure!(
        !context.truth().await?.pods[&pod.uid].sandboxes[&sandbox.id].ready,
        "stopped, and still ready"
    );
    kubelet.remove_pod(&sandbox).await?;
    let left = context.truth().await?;
    ensure!(left.pods.is_empty(), "removed, and still there:\n{left}");
    Ok(())
}

async fn shims_and_processes_are_found(context: &Context) -> Result<()> {
    let kubelet = &context.kubelet;
    let sandbox = kubelet.run_pod(&Pod::new("pod")).await?;
    let id = kubelet.run(&sandbox, &Container::new("app", Program::Stubborn)).await?;
    let pids = [kubelet.sandbox_pid(&sandbox).await?, kubelet.container_pid(&id).await?];
    ensure!(pids[0] != pids[1]);
    for pid in pids {
        let found = process::all()?.into_iter().find(|process| process.pid == pid);
        let found = found.with_context(|| format!("there is no process {pid}"))?;
        ensure!(found.args == ["/tool", "pause"], "{found:?}");
        ensure!(
            process::in_cgroup(pid, &context.containerd.home().cgroup()),
            "{pid} is elsewhere"
        );
    }
    let shim = context.containerd.shim(&sandbox.id)?;
    ensure!(context.containerd.shims()? == [shim.clone()], "one pod, one shim");
    let frozen = process::Frozen::new(shim.pid)?;
    // Neither list nor plain status notices: this is what makes a hung shim so hard to find.
    ensure!(context.truth().await?.pods.len() == 1);
    frozen.thaw();
    process::signal(pids[1], Signal::KILL)?;
    kubelet.wait_for_exit(&id).await?;
    Ok(())
}

/// The commonest hang there is: a call holds a container's lock while its shim does not answer, and every list wants that lock.
async fn a_locked_container_hangs_lists_and_nothing_else(context: &Context) -> Result<()> {
    let kubelet = &context.kubelet;
    let (bad, good) = (Pod::new("bad"), Pod::new("good"));
    let (bad, good) = (kubelet.run_pod(&bad).await?, kubelet.run_pod(&good).await?);
    let locked = kubelet.run(&bad, &app()).await?;
    let other = kubelet.run(&good, &app()).await?;
    let client = impatient(context);
    client.list_containers(&ListFilter::All, |_| {}).await?;

    let frozen = process::Frozen::new(context.containerd.shim(&bad.id)?.pid)?;
    let update = tokio::spawn({
        let (kubelet, locked) = (kubelet.clone(), locked.clone());
        async move { kubelet.update_cpu_shares(&locked, 512).await }
    });
    let hung = until("lists of containers to hang", PATIENCE, async || {
        let list = client.list_containers(&ListFilter::All, |_| {}).await;
        list.err().context("it still answers")
    });
    ensure!(hung.await?.kind.is_deadline());
    let of_good = ListFilter::PodUid(good.pod.uid.clone());
    let filtered = client.list_containers(&of_good, |_| {}).await.err();
    ensure!(
        filtered.is_some_and(|error| error.kind.is_deadline()),
        "a filter does not help"
    );
    client.list_sandboxes(&ListFilter::All, |_| {}).await?;
    let status = |id: &str| v1::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: false,
    };
    client.call(status(&other)).await?;
    let culprit = client.call(status(&locked)).await.err();
    ensure!(
        culprit.is_some_and(|error| error.kind.is_deadline()),
        "the locked one answers"
    );

    frozen.thaw();
    until("lists to answer again", PATIENCE, async || {
        client.list_containers(&ListFilter::All, |_| {}).await
    })
    .await?;
    update.await??;
    Ok(())
}

/// A container that stays.
fn app() -> Container {
    Container::new("app", Program::Stubborn)
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
    for bundle in std::fs::read_dir(home.join("state/io.containerd.runtime.v2.task/k8s.io"))? {
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

/// Also when the runtime was killed first and a shim hangs.
async fn nothing_is_left_behind(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context.version()).await?;
    let kubelet = containerd.kubelet();
    let sandbox = kubelet.run_pod(&Pod::new("pod")).await?;
    kubelet.run(&sandbox, &Container::new("app", Program::Stubborn)).await?;
    let (home, cgroup) = (containerd.home().dir().to_owned(), containerd.home().cgroup());
    let sockets = shim_sockets(&home)?;
    ensure!(
        sockets.len() == 1 && sockets[0].exists(),
        "the shim's socket: {sockets:?}"
    );
    let before = traces(&home, &cgroup)?;
    ensure!(before.len() > 5, "the test looks in the wrong places: {before:#?}");
    let shim = process::Frozen::new(containerd.shim(&sandbox.id)?.pid)?;
    containerd.kill().await?;
    drop(containerd);
    let after = traces(&home, &cgroup)?;
    ensure!(after.is_empty(), "left behind: {after:#?}");
    ensure!(!sockets[0].exists(), "left behind: {sockets:?}");
    drop(shim);
    Ok(())
}

/// The other side of the next scenario: a test run that is about to be killed.
#[expect(clippy::print_stdout, reason = "read by the one who will kill it")]
fn abandon(version: Version) -> ExitCode {
    let hold = async {
        let containerd = Containerd::start(version).await?;
        let kubelet = containerd.kubelet();
        let sandbox = kubelet.run_pod(&Pod::new("pod")).await?;
        kubelet.run(&sandbox, &Container::new("app", Program::Stubborn)).await?;
        println!("{} {}", containerd.home().dir().display(), containerd.home().cgroup());
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
