//! Faults between the generator and a real runtime, made by the proxy: other pods and containers are not affected.
//!
//! The proxy passes everything on but what a command holds, so these are the hangs of the simulator's suite
//! (`crates/pleg/tests/isolation.rs`) with real containers and real exit codes behind them.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg::Level;
use pleg_cri::{Endpoint, Rpc};
use pleg_e2e::steps::{Member, crowd};
use pleg_e2e::{Context, Observer, process, scenarios, suite};
use pleg_sim::control::{Hang, Object, RpcName, Unhang};
use pleg_sim::{Command, Proxy, ProxyConfig, Selector};
use rustix::process::Signal;
use tokio::time::{Instant, timeout};

fn main() -> ExitCode {
    suite::main(scenarios![
        hung_containers_delay_no_other,
        a_locked_container_hides_no_other,
        the_proxy_changes_nothing,
    ])
}

const PODS: usize = 10;
/// containerd itself takes up to half a second to notice a death, and the machine is shared.
const NOISE: Duration = Duration::from_millis(750);
/// Deaths of others are seen within this while a list hangs.
const SOON: Duration = Duration::from_secs(10);

async fn proxied(context: &Context) -> Result<Proxy> {
    let config = ProxyConfig {
        upstream: context.runtime.endpoint().clone(),
        listen: Endpoint::unix(context.runtime.home().dir().join("proxy.sock")),
        control: None,
        seed: 1,
    };
    Proxy::start(config).await.context("start the proxy")
}

/// The container of that place in each pod is killed at once; how long it took until all deaths were reported but those of `but`.
async fn storm(node: &mut Observer, pods: &[Member], place: usize, but: &BTreeSet<usize>) -> Result<Duration> {
    let started = Instant::now();
    for pod in pods {
        process::signal(pod.containers[place].1, Signal::KILL)?;
    }
    let died = format!("ContainerDied {}#0 137 Error", NAMES[place]);
    for (_, pod) in pods.iter().enumerate().filter(|(n, _)| !but.contains(n)) {
        node.sees(&pod.sandbox.pod, &[&died]).await?;
    }
    Ok(started.elapsed())
}

const NAMES: &[&str] = &["first", "second", "third"];

/// `ContainerStatus` of one container hangs for good, then of five, and everything dies at once.
async fn hung_containers_delay_no_other(context: &Context) -> Result<()> {
    let pods = crowd(context, PODS, NAMES).await?;
    let proxy = proxied(context).await?;
    let mut node = Observer::watchful(&context.runtime, proxy.endpoint())?;
    node.knows().await?;
    let usual = storm(&mut node, &pods, 0, &BTreeSet::new()).await?;
    for (place, hung) in [(1, BTreeSet::from([3])), (2, BTreeSet::from([0, 2, 4, 6, 8]))] {
        for &n in &hung {
            let hang = Hang {
                rpc: RpcName(Rpc::ContainerStatus),
                pod: Some(format!("default/pod-{n}").parse()?),
                container: Some(NAMES[place].to_owned()),
                id: None,
            };
            proxy.execute(Command::Hang(hang)).await?;
        }
        let worst = storm(&mut node, &pods, place, &hung).await?;
        ensure!(
            worst <= 2 * usual.max(NOISE),
            "{} hang: the last death of the others was reported after {worst:?}, and after {usual:?} when none hung",
            hung.len()
        );
        let names: BTreeSet<String> = hung.iter().map(|n| format!("default/pod-{n}")).collect();
        let report = node
            .health("those that hang to be named", |report| {
                let named = report.causes.iter().filter_map(|cause| cause.who.pod.as_deref());
                named.collect::<BTreeSet<_>>() == names.iter().map(String::as_str).collect()
            })
            .await?;
        ensure!(report.level == Level::Degraded, "{report:?}");
        proxy.execute(Command::Unhang(Unhang::default())).await?;
        let died = format!("ContainerDied {}#0 137 Error", NAMES[place]);
        for &n in &hung {
            node.sees(&pods[n].sandbox.pod, &[&died]).await?;
        }
    }
    node.agrees().await
}

/// One container's lock: every list hangs.
async fn a_locked_container_hides_no_other(context: &Context) -> Result<()> {
    let pods = crowd(context, 4, &NAMES[..2]).await?;
    let proxy = proxied(context).await?;
    let mut node = Observer::watchful(&context.runtime, proxy.endpoint())?;
    node.knows().await?;
    let locked = Selector {
        pod: "default/pod-1".parse()?,
        container: Some("first".to_owned()),
    };
    proxy.execute(Command::Lock(locked.into())).await?;
    for place in [0, 1] {
        // The second time the list has hung for long.
        process::signal(pods[2].containers[place].1, Signal::KILL)?;
        let died = format!("ContainerDied {}#0 137 Error", NAMES[place]);
        let seen = timeout(SOON, node.sees(&pods[2].sandbox.pod, &[&died])).await;
        seen.with_context(|| format!("a death was not seen by id within {SOON:?}"))??;
    }
    let named = node.health("the locked container to be named, and it alone", |report| {
        let mut named = report.causes.iter().filter(|cause| cause.who.pod.is_some()).peekable();
        named.peek().is_some()
            && named.all(|cause| {
                cause.who.pod.as_deref() == Some("default/pod-1") && cause.who.container.as_deref() == Some("first")
            })
    });
    let report = named.await?;
    ensure!(report.level == Level::Degraded, "{report:?}");
    proxy.execute(Command::Unlock(Object::default())).await?;
    node.health("the lock to be forgotten", |report| report.level == Level::Healthy)
        .await?;
    node.agrees().await
}

/// Without a fault the proxy is not there: a pod's whole life, a restart of the runtime, and then a cut of the proxy itself.
async fn the_proxy_changes_nothing(context: &Context) -> Result<()> {
    let proxy = proxied(context).await?;
    let mut node = Observer::watchful(&context.runtime, proxy.endpoint())?;
    let pods = crowd(context, 2, &NAMES[..1]).await?;
    node.knows().await?;
    node.agrees().await?;
    context.runtime.restart().await?;
    node.agrees().await?;
    proxy.down(Duration::from_millis(300)).await;
    proxy.wait_up().await;
    context.kubelet.stop(&pods[0].containers[0].0, 0).await?;
    node.sees(&pods[0].sandbox.pod, &["ContainerDied first#0 137 Error"])
        .await?;
    node.agrees().await
}
