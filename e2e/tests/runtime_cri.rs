//! `pleg-cri` against the real thing: what it says of a runtime that answers, and of one that does not.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_cri::v1::ContainerEventType as Event;
use pleg_cri::{ApiVersion, Client, Config, Deadlines, ErrorKind, ListFilter, v1};
use pleg_e2e::image::Program;
use pleg_e2e::steps::app;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Container, Context, Pod, Version, process, scenarios, suite};

fn main() -> ExitCode {
    suite::main_on(&[
        (
            &Version::ALL,
            scenarios![
                the_version_is_reported,
                both_decoders_agree,
                what_is_unknown_is_not_found,
                a_paused_runtime_meets_the_deadline,
                a_stopped_runtime_is_unreachable_until_it_is_back,
                events_come_where_the_runtime_has_them,
            ],
        ),
        (
            &[Version::CrioEvents],
            scenarios![events_come_where_the_runtime_has_them],
        ),
        // CRI-O's lists take no container's lock.
        (
            &Version::CONTAINERD,
            scenarios![a_locked_container_hangs_lists_and_nothing_else],
        ),
    ])
}

async fn the_version_is_reported(context: &Context) -> Result<()> {
    let endpoint = context.runtime.endpoint().clone();
    let client = Client::connect(endpoint, Config::default()).await?;
    ensure!(client.api() == ApiVersion::V1, "speaks {}", client.api());
    let told = client.version().await?;
    let name = if context.version().is_crio() {
        "cri-o"
    } else {
        "containerd"
    };
    ensure!(told.runtime_name == name, "is called {}", told.runtime_name);
    let said = &told.runtime_version;
    // The newest moves with its distribution.
    let expected = match context.version() {
        Version::V1_6 => said.starts_with("1.6."),
        Version::V1_7 => said.starts_with("1.7."),
        Version::V2_1 => !said.starts_with("1."),
        Version::Crio | Version::CrioEvents => said.starts_with("1.36."),
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
            kubelet.wait_for_stop(&sandbox).await?;
        }
    }
    let client = context.runtime.client();
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
    let client = context.runtime.client();
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
    Client::lazy(context.runtime.endpoint().clone(), config)
}

async fn a_paused_runtime_meets_the_deadline(context: &Context) -> Result<()> {
    let client = impatient(context);
    client.version().await?;
    let paused = context.runtime.pause()?;
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
    context.runtime.stop().await?;
    let error = client
        .version()
        .await
        .err()
        .context("nobody is there, and yet an answer")?;
    ensure!(error.kind.is_unreachable(), "{error}");
    context.runtime.up().await?;
    client.version().await?;
    context.runtime.kill().await?;
    let error = client.list_sandboxes(&ListFilter::All, |_| {}).await;
    let error = error.err().context("nobody is there, and yet a list")?;
    ensure!(error.kind.is_unreachable(), "{error}");
    context.runtime.up().await?;
    client.list_sandboxes(&ListFilter::All, |_| {}).await?;
    Ok(())
}

/// containerd says nothing to a subscriber before the first event: a quiet runtime must not look like one that refuses or hangs.
async fn events_come_where_the_runtime_has_them(context: &Context) -> Result<()> {
    let client = context.runtime.client();
    let stream = client.container_events().await;
    if context.version() == Version::V1_6 {
        let error = stream.err().context("1.6 has events?")?;
        ensure!(error.kind == ErrorKind::Unimplemented, "{error}");
        return Ok(());
    }
    let mut stream = stream?;
    if context.version() == Version::Crio {
        let error = stream.next().await.err().context("an event of nothing")?;
        ensure!(error.kind.is_unreachable() && stream.ended_cleanly(), "{error}");
        return Ok(());
    }
    let kubelet = &context.kubelet;
    let sandbox = kubelet.run_pod(&Pod::new("pod")).await?;
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
    // What CRI-O sends of a sandbox that it does not know yet is lost.
    let silent = usize::from(context.version().is_crio());
    let expected = [
        (&sandbox.id, Event::ContainerCreatedEvent),
        (&sandbox.id, Event::ContainerStartedEvent),
        (&id, Event::ContainerCreatedEvent),
        (&id, Event::ContainerStartedEvent),
        (&id, Event::ContainerStoppedEvent),
        (&id, Event::ContainerDeletedEvent),
    ];
    let expected = expected.map(|(id, kind)| (id.clone(), kind));
    ensure!(seen == expected[silent..], "{seen:?}");
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

    let frozen = process::Frozen::new(context.runtime.monitor(&bad.id, &locked)?.pid)?;
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
