//! Scenarios times runtimes, as tests, against one control plane.
//!
//! As [`crate::suite`], but starting a control plane takes seconds: all scenarios of a test program share one, each in a namespace of its
//! own. Those that harm no other pod share a node for each runtime as well; the rest have a node, or even a control plane, of their own.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::OnceCell;

use super::member::LABEL;
use super::{ControlPlane, Kubectl, Member};
use crate::suite::end_in_order_on_interrupt;
use crate::version::Version;
use crate::wait::until;

/// No scenario takes as long; one that does hangs.
const LIMIT: Duration = Duration::from_mins(5);
/// More than cores: a scenario mostly waits.
const AT_ONCE: usize = 8;
/// What a loaded machine needs for anything that a pod does.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// What a scenario works with.
#[derive(Debug)]
pub struct Context {
    /// The control plane.
    pub cluster: Arc<ControlPlane>,
    /// The node that pods of the namespace are bound to, once it has joined.
    node: OnceCell<Arc<Member>>,
    /// The name of that node.
    pub node_name: String,
    /// The scenario's own namespace.
    pub namespace: String,
    /// kubectl of an administrator in that namespace.
    pub kubectl: Kubectl,
    /// The runtime of the node.
    pub version: Version,
    /// What the choices of the scenario follow from, if it makes any.
    pub seed: u64,
}

/// Whom a scenario shares its place with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A node, with the scenarios of the same runtime.
    SharedNode,
    /// The control plane only.
    OwnNode,
    /// The control plane only; the scenario starts its node itself, with [`Context::join`].
    NoNode,
    /// Nobody.
    OwnCluster,
}

/// A scenario's future.
pub type Run<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A named scenario. Made by [`cluster_scenarios!`](crate::cluster_scenarios).
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub run: for<'a> fn(&'a Context) -> Run<'a>,
    /// What its choices follow from, if it makes any.
    pub seed: u64,
}

/// Names `async fn(&Context) -> Result<()>` as scenarios of a cluster.
#[macro_export]
macro_rules! cluster_scenarios {
    ($($name:ident),* $(,)?) => {
        &[$($crate::cluster::suite::Scenario { name: stringify!($name), run: |context| Box::pin($name(context)), seed: 0 }),*]
    };
}

/// Scenarios, the runtimes they are for, and whom they share with.
pub type Group = (Place, &'static [Version], &'static [Scenario]);

/// The runtimes that nodes of a cluster are tested with.
pub const RUNTIMES: [Version; 2] = [Version::V2_1, Version::Crio];

/// What the scenarios of a test program share.
struct World {
    cluster: OnceCell<Arc<ControlPlane>>,
    members: BTreeMap<Version, OnceCell<Arc<Member>>>,
}

impl World {
    async fn cluster(&self) -> Result<Arc<ControlPlane>> {
        let cluster = self.cluster.get_or_try_init(async || {
            let started = ControlPlane::start().await.context("start a control plane")?;
            anyhow::Ok(Arc::new(started))
        });
        cluster.await.cloned()
    }

    /// The control plane of a scenario, and its node.
    async fn place(&self, place: Place, version: Version, scenario: Scenario) -> Result<Context> {
        let cluster = match place {
            Place::OwnCluster => Arc::new(ControlPlane::start().await.context("start a control plane")?),
            _ => self.cluster().await?,
        };
        let namespace = label(&[version.name(), scenario.name]);
        let context = Context {
            node: OnceCell::new(),
            node_name: match place {
                Place::SharedNode => label(&[version.name()]),
                _ => namespace.clone(),
            },
            kubectl: cluster.kubectl().within(&namespace),
            namespace,
            cluster,
            version,
            seed: scenario.seed,
        };
        let join = async || {
            let joined = Member::join(&context.cluster, version, &context.node_name).await;
            let joined = joined.with_context(|| format!("start a node on {version}"))?;
            anyhow::Ok(Arc::new(joined))
        };
        let member = match (place, self.members.get(&version)) {
            (Place::NoNode, _) => return Ok(context),
            (Place::SharedNode, Some(shared)) => shared.get_or_try_init(join).await?.clone(),
            _ => join().await?,
        };
        context.node.set(member)?;
        Ok(context)
    }
}

/// The main function of a test program.
pub fn main(groups: &[Group]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let wanted = std::env::var("PLEG_E2E").unwrap_or_default();
    let obstacle = |version: Version| match wanted.as_str() {
        "off" => Some("PLEG_E2E=off; the step cluster of ./test runs them".to_owned()),
        // What is missing fails the scenarios that need it.
        "required" => None,
        _ => ControlPlane::obstacle().or_else(|| version.obstacle()),
    };
    let mut left_out = Vec::new();
    for version in RUNTIMES {
        if let Some(obstacle) = obstacle(version) {
            if !arguments.list {
                let _ = writeln!(io::stderr(), "pleg-e2e: LEFT OUT, no node ran on {version}: {obstacle}");
            }
            left_out.push(version);
        }
    }
    let Ok(tokio) = Builder::new_multi_thread().worker_threads(2).enable_all().build() else {
        return ExitCode::FAILURE;
    };
    end_in_order_on_interrupt();
    let world = Arc::new(World {
        cluster: OnceCell::new(),
        members: RUNTIMES.map(|version| (version, OnceCell::new())).into(),
    });
    let mut trials = Vec::new();
    for &(place, versions, scenarios) in groups {
        for (&scenario, &version) in scenarios
            .iter()
            .flat_map(|one| versions.iter().map(move |version| (one, version)))
        {
            let name = format!("{}::{}", version.name(), scenario.name);
            let (world, handle) = (world.clone(), tokio.handle().clone());
            let trial = Trial::test(name, move || handle.block_on(run(&world, place, version, scenario)));
            trials.push(trial.with_ignored_flag(left_out.contains(&version)));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let _entered = tokio.enter();
    drop(world);
    conclusion.exit_code()
}

async fn run(world: &World, place: Place, version: Version, scenario: Scenario) -> Result<(), Failed> {
    let failed = |error: &anyhow::Error, more: &str| {
        let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
        Failed::from(format!("{version}, {}: {}\n{more}", scenario.name, causes.join("\n")))
    };
    if let Some(obstacle) = ControlPlane::obstacle().or_else(|| version.obstacle()) {
        return Err(failed(&anyhow::anyhow!(obstacle), ""));
    }
    let placed = world.place(place, version, scenario).await;
    let context = placed.map_err(|error| failed(&error, ""))?;
    let play = async {
        context.create_namespace().await?;
        (scenario.run)(&context).await
    };
    let played = tokio::time::timeout(LIMIT, play).await;
    let played = played.unwrap_or_else(|_| Err(anyhow::anyhow!("not done within {LIMIT:?}")));
    match played {
        // What is left would only slow the others down.
        Ok(()) if place == Place::SharedNode => {
            let _ = context
                .kubectl
                .run(&format!("delete namespace {} --wait=false", context.namespace))
                .await;
            Ok(())
        }
        Ok(()) => Ok(()),
        Err(error) => Err(failed(&error, &context.aftermath().await)),
    }
}

impl Context {
    /// The node, which has joined.
    pub fn node(&self) -> Result<&Member> {
        let node = self.node.get().context("no node has joined yet")?;
        Ok(node)
    }

    /// Makes this the node of a scenario that has none yet; it may be started or not.
    pub fn join(&self, member: Member) -> Result<&Member> {
        self.node.set(Arc::new(member))?;
        self.node()
    }

    async fn create_namespace(&self) -> Result<()> {
        let (name, node) = (&self.namespace, &self.node_name);
        let manifest = format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: '{name}', annotations: \
             {{scheduler.alpha.kubernetes.io/node-selector: {LABEL}={node}}}}}}}"
        );
        // Another scenario may have killed the API server.
        until("the namespace", PATIENCE, async || self.kubectl.apply(&manifest).await).await?;
        self.cluster.admits_pods(name).await
    }

    /// The pods of the namespace with these labels (`app=web`; all if it is empty).
    pub async fn pods(&self, selector: &str) -> Result<Vec<Value>> {
        let selector = selector.replace('=', "%3D");
        let path = format!("/api/v1/namespaces/{}/pods?labelSelector={selector}", self.namespace);
        let list = self.cluster.get(&path).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// A pod of the namespace.
    pub async fn pod(&self, name: &str) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{}/pods/{name}", self.namespace);
        self.cluster.get(&path).await
    }

    /// Waits until a pod is as wanted, and returns it.
    pub async fn until_pod(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        until(&format!("{what} of pod {name}"), PATIENCE, async || {
            let pod = self.pod(name).await?;
            ensure!(is(&pod), "{}", pod["status"]);
            Ok(pod)
        })
        .await
    }

    /// Waits until a pod can serve, and returns it.
    pub async fn until_pod_ready(&self, name: &str) -> Result<Value> {
        self.until_pod(name, "Ready", crate::node::is_ready).await
    }

    /// Waits until there is no such pod.
    pub async fn until_pod_gone(&self, name: &str) -> Result<()> {
        until(&format!("the end of pod {name}"), PATIENCE, async || {
            match self.pods("").await {
                Ok(pods) if pods.iter().all(|pod| pod["metadata"]["name"] != name) => Ok(()),
                Ok(_) => bail!("it is there"),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Whom the API server takes the bearer of a token for.
    pub async fn whoami(&self, token: &str) -> Result<Value> {
        let review = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token },
        });
        let review = self
            .cluster
            .post("/apis/authentication.k8s.io/v1/tokenreviews", &review)
            .await?;
        ensure!(review["status"]["authenticated"] == true, "{}", review["status"]);
        Ok(review["status"]["user"].clone())
    }

    /// What a person would look at next.
    async fn aftermath(&self) -> String {
        let mut told = Vec::new();
        for line in ["get pods -o wide", "get events --sort-by=.lastTimestamp"] {
            let said = self.kubectl.run(line).await;
            let said = said.unwrap_or_else(|error| error.to_string());
            let lines: Vec<&str> = said.lines().collect();
            told.push(format!(
                "$ kubectl {line}\n{}",
                lines[lines.len().saturating_sub(25)..].join("\n")
            ));
        }
        told.extend(self.node.get().map(|node| node.log_tail()));
        told.push(self.cluster.log_tail());
        told.join("\n")
    }
}

/// A name that Kubernetes accepts for a namespace or a node.
fn label(parts: &[&str]) -> String {
    let mut name = parts.join("-").replace(['_', '.'], "-");
    name.insert_str(0, "t-");
    name.truncate(60);
    name.trim_end_matches('-').to_owned()
}
