//! One run: the steps that a seed chooses, then quiet.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use pleg_e2e::cluster::suite::Context;
use pleg_e2e::cluster::{FaultProxy, Faults, Part, PodWatch, bare_node};
use pleg_e2e::wait::until;
use pleg_e2e::{Lives, Node};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};

use crate::machine::Machine;
use crate::pods::{IMAGES, SETTINGS, pod, static_pod};
use crate::verdict;

/// Steps of one run.
const STEPS: usize = 90;
/// Longest pause between two steps, and longest time that a fault lasts, in milliseconds.
const PAUSE: u64 = 500;
const FAULT: u64 = 5000;
/// Names of pods, and of static pods.
const NAMES: usize = 7;
const STATIC_NAMES: usize = 2;
/// A container's back-off doubles with each crash, and the end has to wait for it.
const MOST_CRASHES: u32 = 2;
/// Everything is right so soon after the last fault: as long as the longest back-off, twice, and what a loaded machine adds.
const RIGHT_WITHIN: Duration = Duration::from_secs(150);
/// `pleg node` ends within this when it is asked to.
const END: Duration = Duration::from_secs(30);

/// The API server is restarted by one run at a time.
static API_SERVER: Mutex<()> = Mutex::const_new(());

pub(crate) struct Story<'a> {
    context: &'a Context,
    rng: Rng,
    machine: Machine,
    api: FaultProxy,
    node: Node,
    flags: Vec<String>,
    lives: Lives,
    watch: PodWatch,
    began: Instant,
    journal: Vec<String>,
    /// When what is wrong ends again; none if nothing is.
    api_heals: Option<Instant>,
    runtime_heals: Option<Instant>,
    node_returns: Option<Instant>,
    server_returns: Option<(Instant, MutexGuard<'static, ()>)>,
    crashes: BTreeMap<String, u32>,
    statics: BTreeMap<String, Value>,
}

impl<'a> Story<'a> {
    pub(crate) async fn start(context: &'a Context, simulated: bool) -> Result<Self> {
        let cluster = &context.cluster;
        let machine = Machine::start(context.seed, context.version, simulated).await?;
        let api = FaultProxy::start(cluster, &context.node_name).await?;
        let endpoint = machine.endpoint().clone();
        let (node, mut flags) = bare_node(cluster, machine.home(), &context.node_name, api.url(), endpoint)?;
        let mut rng = Rng::with_seed(context.seed);
        if rng.bool() {
            // Calls that hang are given up and repeated while the others still hang.
            flags.push("--timeout=4s".to_owned());
        }
        let settings = format!("create configmap {SETTINGS} --from-literal=a=b");
        // The API server may be down for another run.
        until("the config map", RIGHT_WITHIN, async || {
            context.kubectl.run(&settings).await
        })
        .await?;
        let story = Self {
            lives: Lives::of(machine.client().clone()),
            watch: PodWatch::start(cluster, &context.namespace),
            context,
            rng,
            machine,
            api,
            node,
            flags,
            began: Instant::now(),
            journal: Vec::new(),
            api_heals: None,
            runtime_heals: None,
            node_returns: None,
            server_returns: None,
            crashes: BTreeMap::new(),
            statics: BTreeMap::new(),
        };
        story.spawn()?;
        story.node.ready().await?;
        Ok(story)
    }

    pub(crate) async fn play(&mut self) -> Result<()> {
        for n in 0..NAMES {
            self.create(&format!("p{n}")).await;
        }
        for _ in 0..STEPS {
            self.step().await?;
            sleep(Duration::from_millis(self.rng.u64(..PAUSE))).await;
            self.recover().await?;
        }
        let quiet = Instant::now();
        self.calm_down().await?;
        until("everything to be right", RIGHT_WITHIN, async || {
            let right = verdict::right(self.context, &self.machine, &self.statics).await;
            right.map_err(|error| format!("{error:#}"))
        })
        .await?;
        self.note(format!(
            "right {:.1} s after the last fault",
            quiet.elapsed().as_secs_f64()
        ));
        self.lives.check()?;
        self.watch.check()?;
        let log = self.node.log();
        let bug = log
            .lines()
            .find(|line| line.contains("panicked") || line.contains("a bug in pleg"));
        ensure!(bug.is_none(), "{bug:?}");
        timeout(END, self.node.stop()).await.context("it does not end")?
    }

    /// The result, with all that is needed to understand a failure.
    pub(crate) fn end(self, played: Result<()>) -> Result<()> {
        let (seed, seen) = (self.context.seed, self.lives.count());
        let last = self.journal.last().cloned().unwrap_or_default();
        let Err(error) = played else {
            let _ = writeln!(io::stderr(), "seed {seed}: {seen} containers ran; {last}");
            return Ok(());
        };
        let file: PathBuf = std::env::temp_dir().join(format!("pleg-chaos-{seed}.log"));
        let kept = std::fs::write(&file, self.node.log());
        let journal = self.journal.join("\n");
        let tail = self.node.log_tail();
        Err(error.context(format!(
            "PLEG_CHAOS_SEED={seed}, the whole log of pleg node: {} ({kept:?})\n{journal}\n{tail}",
            file.display()
        )))
    }

    fn note(&mut self, what: impl std::fmt::Display) {
        let at = self.began.elapsed().as_secs_f64();
        self.journal.push(format!("{at:6.2} {what}"));
    }

    fn spawn(&self) -> Result<()> {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.node.spawn(&flags)
    }

    fn later(&mut self, most: u64) -> Instant {
        Instant::now() + Duration::from_millis(self.rng.u64(100..most))
    }

    async fn step(&mut self) -> Result<()> {
        let name = format!("p{}", self.rng.usize(..NAMES));
        match self.rng.u8(..24) {
            0..=5 => {
                // Most names are taken.
                for n in 0..NAMES {
                    if self.create(&format!("p{n}")).await {
                        break;
                    }
                }
            }
            6..=8 => self.delete(&name).await,
            9..=11 => self.update(&name).await,
            12 | 13 => self.change_static_pod()?,
            14 | 15 => self.crash(&name).await,
            16..=18 => self.injure_api(),
            19 | 20 => {
                let pod = format!("{}/{name}", self.context.namespace);
                self.runtime_heals = Some(self.later(FAULT));
                let what = self.machine.injure(&mut self.rng, &pod).await;
                self.note(format_args!("runtime: {what}"));
            }
            21 => {
                let pod = format!("{}/{name}", self.context.namespace);
                self.runtime_heals = Some(self.later(FAULT));
                let what = self.machine.shake(&mut self.rng, &pod).await;
                self.note(format_args!("runtime: {what}"));
            }
            22 => self.end_node().await?,
            _ => self.kill_api_server().await?,
        }
        Ok(())
    }

    /// What is due returns, and a node that ended because it could not start is started again, as systemd would.
    async fn recover(&mut self) -> Result<()> {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.api_heals) {
            self.heal_api();
        }
        if due(self.runtime_heals) {
            self.heal_runtime().await;
        }
        if due(self.server_returns.as_ref().map(|(at, _)| *at)) {
            self.start_api_server()?;
        }
        if due(self.node_returns) {
            self.start_node()?;
        } else if self.node_returns.is_none()
            && let Some(status) = self.node.ended()?
        {
            ensure!(status.code() == Some(1), "pleg node ended by itself: {status}");
            self.node.kill().await?;
            self.note(format_args!("pleg node ended by itself: {status}; starting it again"));
            self.spawn()?;
        }
        Ok(())
    }

    /// Every fault ends, and everything is up.
    async fn calm_down(&mut self) -> Result<()> {
        self.note("quiet");
        self.heal_api();
        self.heal_runtime().await;
        self.start_api_server()?;
        self.start_node()?;
        self.context.cluster.ready().await?;
        self.recover().await
    }

    fn heal_api(&mut self) {
        self.api_heals = None;
        self.api.set(Faults::default());
        self.note("the way to the API server is healed");
    }

    async fn heal_runtime(&mut self) {
        self.runtime_heals = None;
        self.machine.heal().await;
        self.note("the runtime is healed");
    }

    fn start_api_server(&mut self) -> Result<()> {
        if let Some((_, turn)) = self.server_returns.take() {
            self.context.cluster.spawn(Part::ApiServer)?;
            drop(turn);
            self.note("the API server starts");
        }
        Ok(())
    }

    async fn kill_api_server(&mut self) -> Result<()> {
        if let Ok(turn) = API_SERVER.try_lock() {
            // One that is about to start would fail the others' start as well.
            let ready = timeout(END, self.context.cluster.ready()).await;
            if ready.is_ok_and(|ready| ready.is_ok()) {
                self.context.cluster.kill(Part::ApiServer).await?;
                self.server_returns = Some((self.later(FAULT), turn));
                self.note("the API server is killed");
            }
        }
        Ok(())
    }

    fn start_node(&mut self) -> Result<()> {
        if self.node_returns.take().is_some() {
            self.spawn()?;
            self.note("pleg node starts");
        }
        Ok(())
    }

    async fn end_node(&mut self) -> Result<()> {
        if self.node_returns.is_some() || self.node.ended()?.is_some() {
            return Ok(());
        }
        if self.rng.bool() {
            self.node.kill().await?;
            self.note("pleg node is killed");
        } else {
            timeout(END, self.node.stop()).await.context("it does not end")??;
            self.note("pleg node is stopped");
        }
        self.node_returns = Some(self.later(FAULT));
        Ok(())
    }

    fn injure_api(&mut self) {
        let millis = Duration::from_millis;
        let mut faults = Faults::default();
        match self.rng.u8(..6) {
            0 => faults.down = true,
            1 => faults.delay = millis(self.rng.u64(100..2500)),
            2 => faults.status = Some(429),
            3 => faults.status = Some(if self.rng.bool() { 500 } else { 503 }),
            4 => faults.cut_watches = Some(millis(self.rng.u64(50..1500))),
            _ => faults.lose_answers = true,
        }
        if self.rng.bool() {
            faults.spared = 50;
        }
        self.note(format_args!("API server: {}", described(&faults)));
        self.api.set(faults);
        self.api_heals = Some(self.later(FAULT));
    }

    fn path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/pods{name}", self.context.namespace)
    }

    /// What was asked of the API server itself, and whether it was done: it may be down.
    fn asked<T>(&mut self, what: &str, answer: &Result<T>) {
        match answer {
            Ok(_) => self.note(what),
            Err(error) => self.note(format_args!("{what} (not done: {:.80})", format!("{error:#}"))),
        }
    }

    /// Returns whether there was none of that name.
    async fn create(&mut self, name: &str) -> bool {
        let pod = pod(&mut self.rng, name, &self.context.node_name);
        let answer = self.context.cluster.post(&self.path(""), &pod).await;
        let containers = pod["spec"]["containers"].as_array();
        let scripts: Vec<&Value> = containers.into_iter().flatten().map(|one| &one["command"][2]).collect();
        let exists = answer
            .as_ref()
            .is_err_and(|error| format!("{error:#}").contains("already exists"));
        if !exists {
            self.asked(&format!("create {name}: {scripts:?}"), &answer);
        }
        !exists
    }

    async fn delete(&mut self, name: &str) {
        let mut options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        let grace = self.rng.u8(..6);
        // Sometimes at once, sometimes as the pod says.
        if grace < 3 {
            options["gracePeriodSeconds"] = json!(grace);
        }
        let answer = self
            .context
            .cluster
            .delete(&self.path(&format!("/{name}")), &options)
            .await;
        self.asked(&format!("delete {name} {options}"), &answer);
    }

    async fn update(&mut self, name: &str) {
        let path = self.path(&format!("/{name}"));
        let patch = match self.rng.u8(..4) {
            0 => json!({ "metadata": { "labels": { "n": self.rng.u8(..).to_string() } } }),
            1 => json!({ "spec": { "activeDeadlineSeconds": self.rng.u8(5..30) } }),
            _ => {
                // A merge patch replaces lists as a whole.
                let Ok(pod) = self.context.cluster.get(&path).await else {
                    return;
                };
                let mut containers = pod["spec"]["containers"].clone();
                containers[0]["image"] = json!(IMAGES[self.rng.usize(..IMAGES.len())]);
                json!({ "spec": { "containers": containers } })
            }
        };
        let answer = self.context.cluster.patch(&path, &patch).await;
        self.asked(&format!("change {name}"), &answer);
    }

    fn change_static_pod(&mut self) -> Result<()> {
        let name = format!("static{}", self.rng.usize(..STATIC_NAMES));
        let file = format!("{name}.json");
        if self.rng.u8(..3) == 0 && self.statics.remove(&name).is_some() {
            self.node.remove(&file)?;
            self.note(format_args!("remove {name}"));
            return Ok(());
        }
        let manifest = static_pod(&mut self.rng, &name, &self.context.namespace);
        self.node.write(&file, &manifest.to_string())?;
        self.note(format_args!("write {name}"));
        self.statics.insert(name, manifest);
        Ok(())
    }

    async fn crash(&mut self, name: &str) {
        let count = self.crashes.entry(name.to_owned()).or_default();
        *count += 1;
        if *count <= MOST_CRASHES {
            let done = self.machine.crash(&self.context.namespace, name).await;
            self.asked(&format!("crash {name}"), &done);
        }
    }
}

fn described(faults: &Faults) -> String {
    // Without what is as it should be.
    let (all, fine) = (format!("{faults:?}"), format!("{:?}", Faults::default()));
    let fine: Vec<&str> = fine.split([',', '{', '}']).map(str::trim).collect();
    let wrong = all
        .split([',', '{', '}'])
        .map(str::trim)
        .filter(|part| !fine.contains(part));
    wrong.collect::<Vec<_>>().join(", ")
}
