//! Chaos, from a seed: manifests change, containers and sandboxes die, calls fail and hang, runtime and node restart. Once it is quiet
//! again, what runs is exactly what is desired.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::machine::{Machine, Running, is_ready, pod, spec};
use pleg::PodUid;
use pleg_cri::{Deadlines, Rpc};
use pleg_node::sources::static_pods::{ConfigSource, read};
use pleg_sim::Ending;

/// Number of steps of one run.
const STEPS: usize = 500;
/// Number of runs, unless `$PLEG_CHAOS_SEEDS` is set.
const STORIES: u64 = 4;
const NAMES: usize = 8;
/// Calls by which a node acts.
const CALLS: [Rpc; 9] = [
    Rpc::RunPodSandbox,
    Rpc::CreateContainer,
    Rpc::StartContainer,
    Rpc::StopContainer,
    Rpc::StopPodSandbox,
    Rpc::RemovePodSandbox,
    Rpc::RemoveContainer,
    Rpc::PullImage,
    Rpc::ExecSync,
];
/// Probes and hooks that never fail by themselves.
const PROBED: &str = "livenessProbe: {exec: {command: ['true']}, periodSeconds: 2, failureThreshold: 1}, \
    startupProbe: {exec: {command: ['true']}, periodSeconds: 1, failureThreshold: 1}, \
    readinessProbe: {exec: {command: ['true']}, periodSeconds: 2}, \
    lifecycle: {postStart: {exec: {command: ['true']}}, preStop: {exec: {command: [sleep, '1']}}}";

struct Story {
    rng: fastrand::Rng,
    machine: Machine,
    node: Option<Running>,
    wanted: BTreeMap<usize, String>,
}

impl Story {
    /// A pod of that number, in one of several versions.
    fn manifest(&mut self, n: usize) -> String {
        let name = format!("p{n}");
        let version = self.rng.usize(..3);
        match self.rng.usize(..6) {
            0 => spec(
                &name,
                &format!(
                    "terminationGracePeriodSeconds: 2, initContainers: [{{name: i, image: v{version}, command: [sleep, '1']}}, \
                     {{name: s, image: i, restartPolicy: Always}}], containers: [{{name: app, image: i}}, {{name: b, image: i}}]"
                ),
            ),
            1 => spec(
                &name,
                &format!(
                    "terminationGracePeriodSeconds: 2, containers: [{{name: app, image: v{version}, command: [ignore-term]}}]"
                ),
            ),
            2 => spec(
                &name,
                &format!(
                    "terminationGracePeriodSeconds: 5, containers: [{{name: app, image: v{version}, {PROBED}}}, {{name: b, image: i, {PROBED}}}]"
                ),
            ),
            3 => spec(
                &name,
                &format!(
                    "terminationGracePeriodSeconds: 5, initContainers: [{{name: s, image: v{version}, restartPolicy: Always, {PROBED}}}], \
                     containers: [{{name: app, image: i, {PROBED}}}]"
                ),
            ),
            _ => pod(&name, &format!("serve, v{version}")),
        }
    }

    /// The node ends. None of its containers was killed for a probe or a hook: they never fail by themselves, and what the runtime could
    /// not do is not their fault.
    async fn end(&mut self, gently: bool) {
        let Some(node) = self.node.take() else { return };
        for why in ["liveness", "startup", "hook"] {
            assert_eq!(node.kills(why), 0, "containers were killed for {why}");
        }
        if gently {
            node.stop().await;
        } else {
            node.kill().await;
        }
    }

    async fn want(&self) {
        if let Some(node) = &self.node {
            let manifests: Vec<String> = self.wanted.values().cloned().collect();
            node.want(&manifests).await;
        }
    }

    async fn start(&mut self) {
        if self.node.is_none() {
            // Short ones, so that hanging calls time out within the run.
            let deadlines = Deadlines {
                act: Duration::from_secs(10),
                list: Duration::from_secs(10),
                inspect: Duration::from_secs(2),
                ..Deadlines::default()
            };
            self.machine.sim.wait_up().await;
            self.node = Some(self.machine.node_with(deadlines).await);
            self.want().await;
        }
    }

    async fn step(&mut self) {
        let n = self.rng.usize(..NAMES);
        let call = CALLS[self.rng.usize(..CALLS.len())];
        let sandboxes = self.machine.sandboxes();
        let containers = self.machine.running();
        match self.rng.usize(..16) {
            0..=3 => {
                let manifest = self.manifest(n);
                self.wanted.insert(n, manifest);
                self.want().await;
            }
            4 => {
                self.wanted.remove(&n);
                self.want().await;
            }
            5 | 6 if !containers.is_empty() => {
                let id = &containers[self.rng.usize(..containers.len())].id;
                let ending = if self.rng.bool() {
                    Ending::Exit(self.rng.i32(0..3))
                } else {
                    Ending::Oom
                };
                self.machine.sim.world().finish(id, ending);
            }
            7 if !containers.is_empty() => {
                let id = &containers[self.rng.usize(..containers.len())].id;
                self.machine.sim.world().kill_container(id);
                self.machine.sim.world().remove_container(id);
            }
            8 if !sandboxes.is_empty() => {
                let id = &sandboxes[self.rng.usize(..sandboxes.len())].id;
                self.machine.sim.world().stop_sandbox(id);
            }
            9 => self
                .machine
                .sim
                .faults()
                .fail(call, "UNAVAILABLE".parse().unwrap(), 0.5)
                .unwrap(),
            10 => {
                // No more than the fault table takes.
                self.machine.sim.faults().unhang(Some(call), None);
                self.machine.sim.faults().hang(call, None, None).unwrap();
            }
            11 => self.machine.sim.faults().set_latency(
                Some(call),
                Duration::from_secs(self.rng.u64(..15)),
                Duration::ZERO,
            ),
            12 => self.machine.sim.faults().clear(),
            13 => {
                let time = Duration::from_millis(self.rng.u64(..5000));
                self.machine.sim.down(time).await;
            }
            14 => {
                let gently = self.rng.bool();
                self.end(gently).await;
            }
            _ => self.start().await,
        }
        let pause = Duration::from_millis(self.rng.u64(..4000));
        tokio::time::sleep(pause).await;
    }

    /// What runs, and what is ready, by pod.
    fn is_right(&self) -> Result<(), String> {
        let node = self.node.as_ref().unwrap();
        let pods = node.reports.pods();
        let uids: Vec<PodUid> = pods.iter().map(|report| report.pod.id.uid.clone()).collect();
        if pods.len() != self.wanted.len() {
            return Err(format!("{} pods instead of {}", pods.len(), self.wanted.len()));
        }
        for report in &pods {
            let id = &report.pod.id;
            let n: usize = id.name.trim_start_matches('p').trim_end_matches("-n").parse().unwrap();
            if self.wanted.get(&n).is_none_or(|text| {
                let found = read(
                    text.as_bytes(),
                    &pleg_node::manifest::NodeName::new("n").unwrap(),
                    ConfigSource::File,
                );
                found.unwrap().pods[0].id.uid != id.uid
            }) {
                return Err(format!("{id} is not the one that is wanted"));
            }
            if !report.containers().iter().all(|container| container.ready) {
                return Err(format!("{id} is not ready: {:?}", report.containers()));
            }
            let running = self
                .machine
                .running()
                .into_iter()
                .filter(|container| *container.uid == *id.uid.as_str());
            let sidecars = report.init_containers().iter();
            let sidecars = sidecars.filter(|container| container.started == Some(true));
            let should = report.containers().len() + sidecars.count();
            let running = running.count();
            if running != should {
                return Err(format!("{id}: {running} containers run instead of {should}"));
            }
        }
        let ready = self.machine.sandboxes().into_iter().filter(|sandbox| sandbox.ready);
        let strangers: Vec<_> = ready
            .filter(|sandbox| !uids.iter().any(|uid| *uid.as_str() == sandbox.uid))
            .collect();
        if !strangers.is_empty() {
            return Err(format!("nobody wants {strangers:?}"));
        }
        Ok(())
    }
}

async fn story(seed: u64) {
    let mut story = Story {
        rng: fastrand::Rng::with_seed(seed),
        machine: Machine::start().await,
        node: None,
        wanted: BTreeMap::new(),
    };
    story.start().await;
    for _ in 0..STEPS {
        story.step().await;
    }
    // Quiet: failures are retried within five minutes, the longest back-off of a crash loop.
    story.machine.sim.faults().clear();
    story.start().await;
    story.want().await;
    for _ in 0..200 {
        if story.is_right().is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    if let Err(what) = story.is_right() {
        panic!("seed {seed}: {what}");
    }
    story.end(true).await;
    story.machine.check();
}

#[tokio::test(start_paused = true)]
async fn after_chaos_what_runs_is_what_is_wanted() {
    for seed in 0..seeds() {
        story(seed).await;
    }
}

fn seeds() -> u64 {
    let seeds = std::env::var("PLEG_CHAOS_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(STORIES)
}

/// While calls about half of the pods hang for any time, the other half starts and terminates as if it were alone.
#[tokio::test(start_paused = true)]
async fn no_pod_waits_for_another_that_hangs() {
    for seed in 0..seeds().div_ceil(2) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let machine = Machine::start().await;
        let node = machine.node().await;
        let mut bad: BTreeMap<usize, String> = BTreeMap::new();
        let mut good: BTreeMap<usize, String> = BTreeMap::new();
        for n in 0..5 {
            bad.insert(n, pod(&format!("bad{n}"), "serve, v0"));
        }
        let all = |bad: &BTreeMap<usize, String>, good: &BTreeMap<usize, String>| {
            bad.values().chain(good.values()).cloned().collect::<Vec<_>>()
        };
        let uids = node.want(&all(&bad, &good)).await;
        node.until("all of the bad ones", |reports| {
            uids.iter().all(|uid| is_ready(reports, uid))
        })
        .await;
        for step in 0..150 {
            // All calls about a bad pod hang; it dies, or is edited.
            let n = rng.usize(..bad.len());
            let name = format!("bad{n}-n");
            let ids: Vec<_> = machine.objects_of(&name);
            let call = [
                Rpc::ContainerStatus,
                Rpc::PodSandboxStatus,
                Rpc::CreateContainer,
                Rpc::StartContainer,
                Rpc::StopContainer,
                Rpc::StopPodSandbox,
                Rpc::RemovePodSandbox,
            ][rng.usize(..7)];
            match rng.usize(..4) {
                0 | 1 if !ids.is_empty() => {
                    machine.sim.faults().unhang(Some(call), None);
                    machine.sim.faults().hang(call, None, Some(ids)).unwrap();
                }
                2 => _ = bad.insert(n, pod(&format!("bad{n}"), &format!("serve, v{step}"))),
                _ => {
                    if let Some(id) = ids.first() {
                        machine.sim.world().kill_container(id);
                    }
                }
            }
            // A good pod starts, changes or terminates within seconds.
            let n = rng.usize(..6);
            let wanted = (rng.usize(..4) > 0).then(|| pod(&format!("good{n}"), &format!("serve, v{step}")));
            match &wanted {
                Some(manifest) => _ = good.insert(n, manifest.clone()),
                None => _ = good.remove(&n),
            }
            let uids = node.want(&all(&bad, &good)).await;
            let began = tokio::time::Instant::now();
            let name = format!("good{n}-n");
            let place = good.range(..n).count() + bad.len();
            node.until("the good one", |reports| {
                let shown = reports.pods().into_iter().find(|report| *report.pod.id.name == *name);
                match (&wanted, shown) {
                    (Some(_), Some(shown)) => shown.pod.id.uid == uids[place] && is_ready(reports, &uids[place]),
                    (None, shown) => shown.is_none(),
                    (Some(_), None) => false,
                }
            })
            .await;
            let took = began.elapsed();
            assert!(
                took < Duration::from_secs(20),
                "seed {seed}, step {step}: {name} waited for {took:?}"
            );
        }
        node.stop().await;
        machine.check();
    }
}
