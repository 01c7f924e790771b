//! The measurements, one after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use pleg_cri::duration::seconds;
use pleg_cri::list::{POD_NAME_LABEL, POD_UID_LABEL};
use pleg_cri::{Client, Endpoint, v1};
use tokio::time::{Instant, sleep};

use super::direct::{self, CLIENTS, at, container, nanoseconds, since};
use super::figures::{Figure, Limit, Report, Samples, Unit};
use super::pods::{Does, Maker, NODE};
use super::subject::Subject;
use super::tell;

/// How often all pods are started.
const TAKES: usize = 2;
/// Pods that are adopted.
const ADOPTED: usize = 30;
/// How often it is killed and started.
const ADOPTIONS: usize = 3;
/// Nothing is waited for longer than this.
const PATIENCE: Duration = Duration::from_mins(3);
/// How often the runtime is asked where its books tell the time: seldom, since asking takes from what is measured.
const SELDOM: Duration = Duration::from_millis(50);
/// How often, where the answer itself is the time.
const OFTEN: Duration = Duration::from_millis(1);
/// Full relists of an idle node become ever rarer; after this time it counts as idle.
const LONGEST_REST: Duration = Duration::from_secs(20);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) pods: usize,
    pub(super) rounds: usize,
    pub(super) idle: Duration,
}

/// A runtime, and what is measured on it.
pub(super) struct Course {
    client: Client,
    maker: Maker,
    subject: Subject,
}

impl Course {
    pub(super) fn new(client: Client, scratch: &Path, image: &str, known: v1::Image) -> anyhow::Result<Self> {
        let runtime: Endpoint = client.endpoint().clone();
        Ok(Self {
            maker: Maker::new(scratch, image, known)?,
            subject: Subject::new(&scratch.join("node"), &runtime)?,
            client,
        })
    }

    /// All of it.
    pub(super) async fn run(mut self, sizes: Sizes) -> anyhow::Result<Report> {
        let Sizes { pods, rounds, idle } = sizes;
        let rounds_of_all = rounds.min(pods);
        let Started {
            direct,
            by_hand,
            by_node,
        } = self.start_in_turns(pods, rounds_of_all).await?;
        tell("pleg node at rest");
        let idle = self.idle(idle).await?;
        tell("manifests edited");
        let edits = self.edits(rounds_of_all).await?;
        tell("manifests removed");
        let removals = self.removals(rounds_of_all, pods).await?;
        let left = self.shrink(pods - rounds_of_all).await?;
        tell("pleg node killed and started");
        let adoptions = self.adoptions(left).await?;
        tell("containers that crash");
        let crashes = self.crashes(rounds).await?;
        self.finish(left).await?;
        let measured = Measured {
            pods,
            left,
            direct,
            by_hand,
            by_node,
            idle,
            edits,
            removals,
            adoptions,
            crashes,
        };
        let version = self.client.version().await?;
        Ok(Report {
            endpoint: self.client.endpoint().to_string(),
            runtime: format!("{} {}", version.runtime_name, version.runtime_version),
            pods,
            rounds,
            clients: CLIENTS,
            figures: measured.figures(),
        })
    }

    /// Starts all pods by direct calls and by `pleg node`, in turns, and keeps the best of each: other load on the machine counts for neither.
    /// Leaves the pods of `pleg node` running.
    async fn start_in_turns(&mut self, pods: usize, rounds: usize) -> anyhow::Result<Started> {
        let mut direct = direct::Baseline::default();
        let (mut by_hand, mut by_node) = (None, None);
        for take in 1..=TAKES {
            tell(&format!("{pods} pods by direct calls, {take} of {TAKES}"));
            let mut started = direct::start_all(&self.client, &self.maker, pods).await?;
            if take == 1 {
                direct = direct::replace(&self.client, &self.maker, &mut started, rounds).await?;
            }
            by_hand = Some(better(by_hand, started.times.clone()));
            direct::end_all(&self.client, started).await?;
            tell(&format!("{pods} pods by pleg node, {take} of {TAKES}"));
            // Not earlier: it would end the pods above, which have no manifest.
            self.subject.start()?;
            self.subject.ready().await?;
            by_node = Some(better(by_node, self.starts(pods).await?));
            if take < TAKES {
                self.finish(pods).await?;
                self.subject.end();
            }
        }
        Ok(Started {
            direct,
            by_hand: by_hand.unwrap_or_default(),
            by_node: by_node.unwrap_or_default(),
        })
    }

    /// Until each of so many pods ran, from when their manifests were there.
    async fn starts(&mut self, pods: usize) -> anyhow::Result<Samples> {
        let began = Timestamp::now();
        for n in 0..pods {
            let name = format!("pod-{n}");
            self.subject.write(&name, &self.maker.manifest(&name, Does::Stay(0)))?;
        }
        let running = self.until_running(pods).await?;
        let mut starts = Samples::default();
        for id in running.values() {
            starts.push(since(began, container(&self.client, id).await?.started_at));
        }
        Ok(starts)
    }

    /// Part of a core, in percent, and memory in MiB.
    async fn idle(&mut self, watched: Duration) -> anyhow::Result<[f64; 2]> {
        sleep(watched.min(LONGEST_REST)).await;
        let (before, began) = (self.subject.cpu()?, Instant::now());
        sleep(watched).await;
        let used = self.subject.cpu()?.saturating_sub(before);
        let percent = used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        Ok([percent, self.subject.resident()?])
    }

    /// From an edit to the start of the new container.
    async fn edits(&mut self, rounds: usize) -> anyhow::Result<Samples> {
        let mut edits = Samples::default();
        for n in 0..rounds {
            let name = format!("pod-{n}");
            let old = self.of(&name).await?;
            let old = old.first().context("the pod of a manifest is gone")?;
            let began = Timestamp::now();
            self.subject.write(&name, &self.maker.manifest(&name, Does::Stay(1)))?;
            let new = self
                .until("an edited pod to run", SELDOM, async |this| {
                    let all = this.of(&name).await?;
                    let new =
                        |one: &v1::Container| one.id != old.id && one.state() == v1::ContainerState::ContainerRunning;
                    Ok(all.into_iter().find(new))
                })
                .await?;
            edits.push(since(began, container(&self.client, &new.id).await?.started_at));
        }
        Ok(edits)
    }

    /// From the end of a removed pod's container to the end of its sandbox. Of the last pods, so that the first ones are left.
    async fn removals(&mut self, rounds: usize, pods: usize) -> anyhow::Result<Samples> {
        let mut removals = Samples::default();
        for n in pods - rounds..pods {
            let name = format!("pod-{n}");
            let all = self.of(&name).await?;
            let old = all.first().context("the pod of a manifest is gone")?;
            self.subject.remove(&name)?;
            // By the runtime's books if it is seen to have ended; else when it was last seen running.
            let mut ended = Timestamp::now();
            self.until("a removed pod to end", OFTEN, async |this| {
                let asked = Timestamp::now();
                match container(&this.client, &old.id).await {
                    Ok(status) if status.state() == v1::ContainerState::ContainerRunning => {
                        ended = asked;
                        Ok(None)
                    }
                    Ok(status) => {
                        ended = at(status.finished_at);
                        Ok(Some(()))
                    }
                    Err(error) if is_not_found(&error) => Ok(Some(())),
                    Err(error) => Err(error),
                }
            })
            .await?;
            self.until("the sandbox of a removed pod to be removed", OFTEN, async |this| {
                let request = v1::PodSandboxStatusRequest {
                    pod_sandbox_id: old.pod_sandbox_id.clone(),
                    verbose: false,
                };
                match this.client.call(request).await {
                    Ok(_) => Ok(None),
                    Err(error) if error.kind.is_not_found() => Ok(Some(())),
                    Err(error) => Err(error.into()),
                }
            })
            .await?;
            removals.push(since(ended, nanoseconds(Timestamp::now())));
        }
        Ok(removals)
    }

    /// Removes all but as many as are adopted. Returns how many are left.
    async fn shrink(&mut self, pods: usize) -> anyhow::Result<usize> {
        let left = pods.min(ADOPTED);
        for n in left..pods {
            self.subject.remove(&format!("pod-{n}"))?;
        }
        self.until_running(left).await?;
        Ok(left)
    }

    /// Removes all that is left, by `pleg node` itself.
    async fn finish(&mut self, pods: usize) -> anyhow::Result<()> {
        for n in 0..pods {
            self.subject.remove(&format!("pod-{n}"))?;
        }
        self.until("all pods to be removed", SELDOM, async |this| {
            let left = this.client.call(v1::ListPodSandboxRequest::default()).await?.items;
            Ok(left.is_empty().then_some(()))
        })
        .await
    }

    /// From the start of `pleg node` until it shows all pods; none of them was touched.
    async fn adoptions(&mut self, pods: usize) -> anyhow::Result<Samples> {
        let before = self.until_running(pods).await?;
        self.subject.shows(pods).await?;
        let mut adoptions = Samples::default();
        for _ in 0..ADOPTIONS {
            self.subject.kill();
            let began = Instant::now();
            self.subject.start()?;
            self.subject.shows(pods).await?;
            adoptions.push(began.elapsed().as_secs_f64());
            let after = self.until_running(pods).await?;
            ensure!(
                before == after,
                "pleg node started containers that were already running\n{}",
                self.subject.log()
            );
        }
        Ok(adoptions)
    }

    /// From a container's end, as the runtime reports it, to the creation of the next one, as its status says.
    async fn crashes(&mut self, rounds: usize) -> anyhow::Result<Samples> {
        let mut crashes = Samples::default();
        for n in 0..rounds {
            let name = format!("crash-{n}");
            self.subject.write(&name, &self.maker.manifest(&name, Does::Fall))?;
            let attempt = |wanted: u32| {
                let name = name.clone();
                async move |this: &Self| {
                    let all = this.of(&name).await?;
                    let is = |one: &v1::Container| one.metadata.as_ref().is_some_and(|it| it.attempt == wanted);
                    anyhow::Ok(all.into_iter().find(is))
                }
            };
            let first = self.until("a pod that crashes to start", SELDOM, attempt(0)).await?;
            let mut last_seen = Timestamp::now();
            self.until("a container to crash", OFTEN, async |this| {
                let asked = Timestamp::now();
                let status = container(&this.client, &first.id).await?;
                let ended = status.state() == v1::ContainerState::ContainerExited;
                if !ended {
                    last_seen = asked;
                }
                Ok(ended.then_some(()))
            })
            .await?;
            let next = self
                .until("a crashed container to be created again", SELDOM, attempt(1))
                .await?;
            crashes.push(since(last_seen, next.created_at));
            self.subject.remove(&name)?;
        }
        Ok(crashes)
    }

    /// The containers of a manifest's pod.
    async fn of(&self, name: &str) -> anyhow::Result<Vec<v1::Container>> {
        let filter = v1::ContainerFilter {
            label_selector: [(POD_NAME_LABEL.to_owned(), format!("{name}-{NODE}"))].into(),
            ..Default::default()
        };
        let listed = self.client.call(v1::ListContainersRequest { filter: Some(filter) });
        Ok(listed.await?.containers)
    }

    /// Waits until so many containers run, and no others are there. Returns their ids by pod.
    async fn until_running(&mut self, pods: usize) -> anyhow::Result<BTreeMap<String, String>> {
        self.until("pods to run", SELDOM * 2, async |this| {
            let listed = this.client.call(v1::ListContainersRequest::default()).await?.containers;
            let runs = |one: &&v1::Container| one.state() == v1::ContainerState::ContainerRunning;
            if listed.len() != pods || listed.iter().filter(runs).count() != pods {
                return Ok(None);
            }
            let by_pod = |one: v1::Container| Some((one.labels.get(POD_UID_LABEL)?.clone(), one.id));
            Ok(Some(listed.into_iter().filter_map(by_pod).collect()))
        })
        .await
    }

    async fn until<T>(
        &self,
        what: &str,
        every: Duration,
        mut check: impl AsyncFnMut(&Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = check(self).await? {
                return Ok(found);
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "timed out after {} waiting for {what}\n{}",
                seconds(PATIENCE),
                self.subject.log()
            );
            sleep(every).await;
        }
    }
}

/// The start of all pods, by direct calls and by `pleg node`.
struct Started {
    direct: direct::Baseline,
    by_hand: Samples,
    by_node: Samples,
}

/// Everything that was measured.
struct Measured {
    pods: usize,
    /// Pods that were left to be adopted.
    left: usize,
    direct: direct::Baseline,
    by_hand: Samples,
    by_node: Samples,
    /// CPU in percent, and memory in MiB.
    idle: [f64; 2],
    edits: Samples,
    removals: Samples,
    adoptions: Samples,
    crashes: Samples,
}

impl Measured {
    /// Each figure with its limit.
    fn figures(&self) -> Vec<Figure> {
        let Self { pods, left, direct, .. } = self;
        let (by_node, by_hand) = (&self.by_node, &self.by_hand);
        let [cpu, resident] = self.idle;
        vec![
            Figure::new(
                format!("{pods} manifests at once: all running"),
                Unit::Seconds,
                by_node.worst(),
                Limit::Ratio(1.15),
            )
            .beside(by_hand.worst()),
            Figure::new("  the median pod", Unit::Seconds, by_node.median(), Limit::Ratio(1.3))
                .beside(by_hand.median()),
            Figure::new(
                "crash, from the runtime's report to a new container",
                Unit::Seconds,
                self.crashes.median(),
                Limit::Above(0.020),
            )
            .beside(direct.create.median())
            .spread(&self.crashes),
            Figure::new(
                "manifest edited: running again",
                Unit::Seconds,
                self.edits.median(),
                Limit::Ratio(1.3),
            )
            .beside(direct.replace.median())
            .spread(&self.edits),
            Figure::new(
                "manifest removed: from its end to no sandbox",
                Unit::Seconds,
                self.removals.worst(),
                Limit::Value(1.0),
            )
            .beside(direct.removal.worst())
            .spread(&self.removals),
            Figure::new(
                format!("{left} running pods adopted after kill -9"),
                Unit::Seconds,
                self.adoptions.worst(),
                Limit::Value(0.5),
            )
            .spread(&self.adoptions),
            Figure::new(format!("idle at {pods} pods"), Unit::Percent, cpu, Limit::Value(0.5)),
            Figure::new("  resident memory", Unit::Mebibytes, resident, Limit::Value(33.4)),
        ]
    }
}

/// The one in which all ran sooner.
fn better(best: Option<Samples>, new: Samples) -> Samples {
    best.filter(|best| best.worst() <= new.worst()).unwrap_or(new)
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<pleg_cri::Error>();
    error.is_some_and(|error| error.kind.is_not_found())
}
