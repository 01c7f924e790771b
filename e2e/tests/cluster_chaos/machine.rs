//! The runtime under the node, simulated or real, behind a proxy that injects faults.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use pleg_cri::list::{POD_NAME_LABEL, POD_NAMESPACE_LABEL};
use pleg_cri::{Client, Config, Deadlines, Endpoint, v1};
use pleg_e2e::cluster::member::network;
use pleg_e2e::home::Home;
use pleg_e2e::kubelet::CONTAINER_NAME_LABEL;
use pleg_e2e::process::{self, Frozen};
use pleg_e2e::{Runtime, Version};
use pleg_sim::{Command, Proxy, ProxyConfig, Sim, SimConfig};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Calls that fail, hang or are slow.
const CALLS: [&str; 12] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
    "RemoveContainer",
    "ContainerStatus",
    "PodSandboxStatus",
    "ListContainers",
    "ListPodSandbox",
    "ExecSync",
];

/// What is under the proxy.
enum Ground {
    Simulated { sim: Sim, home: Home },
    Real(Box<Runtime>),
}

pub(crate) struct Machine {
    proxy: Proxy,
    /// Straight to the runtime.
    client: Client,
    frozen: Option<Frozen>,
    ground: Ground,
}

impl Machine {
    pub(crate) async fn start(seed: u64, version: Version, simulated: bool) -> Result<Self> {
        let ground = if simulated {
            let home = Home::new()?;
            let config = SimConfig {
                seed,
                pull_time: Duration::from_millis(50),
                ..SimConfig::default()
            };
            let sim = Sim::spawn_thread(config, Endpoint::unix(home.dir().join("runtime.sock"))).await?;
            Ground::Simulated { sim, home }
        } else {
            let runtime = Runtime::start(version).await?;
            network(&runtime)?;
            Ground::Real(Box::new(runtime))
        };
        let endpoint = match &ground {
            Ground::Simulated { sim, .. } => sim.endpoint().clone(),
            Ground::Real(runtime) => runtime.endpoint().clone(),
        };
        let home = ground.home();
        let config = ProxyConfig {
            upstream: endpoint.clone(),
            listen: Endpoint::unix(home.dir().join("proxy.sock")),
            control: None,
            seed,
        };
        let proxy = Proxy::start(config).await.context("start the proxy")?;
        let deadlines = Deadlines {
            list: Duration::from_secs(5),
            inspect: Duration::from_secs(5),
            ..Deadlines::default()
        };
        let config = Config {
            deadlines,
            ..Config::default()
        };
        Ok(Self {
            proxy,
            client: Client::lazy(endpoint, config),
            frozen: None,
            ground,
        })
    }

    pub(crate) fn home(&self) -> &Home {
        self.ground.home()
    }

    /// Where the node reaches the runtime.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.proxy.endpoint()
    }

    /// Straight to the runtime, without faults.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Something goes wrong between the node and its runtime until [`Machine::heal`]. Returns what.
    pub(crate) async fn injure(&mut self, rng: &mut Rng, pod: &str) -> String {
        let call = CALLS[rng.usize(..CALLS.len())];
        let half = || 0.5;
        let command = match rng.u8(..9) {
            0 => json!({ "hang": { "rpc": call } }),
            1 | 2 => json!({ "hang": { "rpc": call, "pod": pod } }),
            3 => json!({ "fail": { "rpc": call, "code": "UNAVAILABLE", "rate": half() } }),
            4 => json!({ "fail": { "rpc": call, "code": "UNKNOWN", "rate": half() } }),
            5 => json!({ "set": { "latency": format!("{}ms", rng.u16(100..2000)), "rpc": call } }),
            6 => json!({ "down": { "for": format!("{}ms", rng.u16(100..3000)) } }),
            7 => json!({ "events": { "drop": half(), "double": 0.2, "reorder": 0.2 } }),
            _ => json!({ "lock": { "pod": pod, "container": "app" } }),
        };
        self.execute(command).await
    }

    /// Something happens in the runtime itself.
    pub(crate) async fn shake(&mut self, rng: &mut Rng, pod: &str) -> String {
        let runtime = match &self.ground {
            Ground::Real(runtime) => runtime,
            Ground::Simulated { sim, .. } => return shake_sim(sim, rng, pod).await,
        };
        match rng.u8(..3) {
            0 => {
                let monitors = runtime.monitors().unwrap_or_default();
                let Some((id, shim)) = rng.choice(&monitors) else {
                    return "there is no shim".to_owned();
                };
                let _ = process::signal(shim.pid, Signal::KILL);
                format!("killed the shim of {id}")
            }
            1 => {
                self.frozen = runtime.pause().ok();
                "the runtime is stopped".to_owned()
            }
            _ => {
                let (killed, started) = (runtime.kill().await, runtime.up().await);
                format!("the runtime was killed and started: {killed:?} {started:?}")
            }
        }
    }

    /// The main container of a pod dies.
    pub(crate) async fn crash(&self, namespace: &str, name: &str) -> Result<()> {
        let runtime = match &self.ground {
            Ground::Simulated { sim, .. } => {
                let pod = format!("{namespace}/{name}");
                let exit = json!({ "exit": { "pod": pod, "container": "app", "exit_code": 1 } });
                sim.execute(serde_json::from_value(exit)?).await?;
                return Ok(());
            }
            Ground::Real(runtime) => runtime,
        };
        let list = self.client.call(v1::ListContainersRequest::default()).await?;
        let is = |labels: &HashMap<String, String>, label: &str, value: &str| {
            labels.get(label).is_some_and(|found| found == value)
        };
        let found = list.containers.iter().find(|one| {
            one.state() == v1::ContainerState::ContainerRunning
                && is(&one.labels, POD_NAMESPACE_LABEL, namespace)
                && is(&one.labels, POD_NAME_LABEL, name)
                && is(&one.labels, CONTAINER_NAME_LABEL, "app")
        });
        let id = &found.context("it does not run")?.id;
        process::signal(runtime.kubelet().container_pid(id).await?, Signal::KILL)
    }

    /// All is well again.
    pub(crate) async fn heal(&mut self) {
        self.frozen = None;
        self.proxy.wait_up().await;
        self.execute(json!({ "clear": {} })).await;
        if let Ground::Simulated { sim, .. } = &self.ground {
            command(json!({ "unhang-shim": {} }), async |command| {
                sim.execute(command).await.is_ok()
            })
            .await;
        }
    }

    async fn execute(&self, what: Value) -> String {
        command(what, async |command| self.proxy.execute(command).await.is_ok()).await
    }
}

impl Ground {
    fn home(&self) -> &Home {
        match self {
            Self::Simulated { home, .. } => home,
            Self::Real(runtime) => runtime.home(),
        }
    }
}

async fn shake_sim(sim: &Sim, rng: &mut Rng, pod: &str) -> String {
    let truth = sim.truth();
    let sandbox = rng.choice(&truth.sandboxes).map(|sandbox| sandbox.id.clone());
    match (rng.u8(..3), sandbox) {
        (0, Some(id)) => {
            sim.world().stop_sandbox(&id);
            format!("sandbox {id} died")
        }
        (1, _) => {
            let down = json!({ "down": { "for": format!("{}ms", rng.u16(100..2000)) } });
            command(down, async |command| sim.execute(command).await.is_ok()).await
        }
        _ => {
            let hang = json!({ "hang-shim": { "pod": pod } });
            command(hang, async |command| sim.execute(command).await.is_ok()).await
        }
    }
}

/// A command as `pleg sim ctl` has them. One about a pod that the runtime does not have is refused, which is as good.
async fn command(what: Value, execute: impl AsyncFn(Command) -> bool) -> String {
    let text = what.to_string();
    let command = match serde_json::from_value(what) {
        Ok(command) => command,
        Err(error) => return format!("{text} ({error})"),
    };
    if execute(command).await {
        text
    } else {
        format!("{text} (refused)")
    }
}
