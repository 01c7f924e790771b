//! Asks the runtime about one pod: each sandbox and each container by the ids that the list gave.

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::{try_join, try_join_all};
use hashbrown::HashSet;
use jiff::{SignedDuration, Timestamp};
use pleg_cri::{Error, Subject};

use crate::limiter::Limiter;
use crate::model::{ContainerId, ContainerState, PodRef, PodView, SandboxId, SandboxState};
use crate::runtime::Runtime;
use crate::status::{ContainerStatus, PodStatus, SandboxStatus};

/// The exit code of a process that was ended by SIGKILL.
const KILLED: i32 = 137;
const OUT_OF_MEMORY: &str = "OOMKilled";
/// The reason of an end is known after this long, if it ever is.
const REASON_ARRIVES: SignedDuration = SignedDuration::from_secs(30);

/// What the runtime said about a pod.
#[derive(Debug)]
pub(crate) struct Inspected {
    pub(crate) sandboxes: Vec<SandboxStatus>,
    pub(crate) containers: Vec<ContainerStatus>,
    /// Listed, but gone when asked for: they went away meanwhile.
    pub(crate) gone_sandboxes: Vec<SandboxId>,
    pub(crate) gone_containers: Vec<ContainerId>,
}

/// Inspects the pod as `view` shows it. `known` is its last status, and when that was inspected, from which ended containers are taken over: they do not change
/// while the runtime runs, but for [what was killed a moment ago](may_learn_more). With `only`, so is whatever is not in it.
pub(crate) async fn inspect<R: Runtime>(
    runtime: &R,
    limiter: &Limiter,
    pod: &PodRef,
    view: &PodView,
    known: Option<(&PodStatus, Option<Timestamp>)>,
    only: Option<&HashSet<Arc<str>>>,
) -> Result<Inspected, Error> {
    let name = pod.full_name();
    let inspected = known.and_then(|(_, at)| at);
    let known = known.map(|(status, _)| status);
    let asked = |id: &str| only.is_none_or(|only| only.contains(id));
    let sandboxes = try_join_all(view.sandboxes.iter().map(|(id, state)| {
        let subject = Subject::sandbox(Arc::clone(&name), id.shared());
        let known = known.filter(|_| !asked(id.as_str()));
        let known = known.and_then(|known| known.sandboxes.iter().find(|known| known.id == *id));
        let known = known.filter(|known| known.state == *state);
        async move {
            match known {
                Some(known) => Ok(Some(known.clone())),
                None => found(limiter.run(runtime.sandbox_status(&subject, id)).await),
            }
        }
    }));
    let known = known.map(PodStatus::by_id).unwrap_or_default();
    let containers = try_join_all(view.containers.iter().map(|(container, state)| {
        let subject = Subject::container(Arc::clone(&name), Arc::clone(&container.name), container.id.shared());
        let settled = *state == ContainerState::Exited || !asked(container.id.as_str());
        let same = known
            .get(&container.id)
            .copied()
            .filter(|status| status.state == *state);
        async move {
            let final_word = |same: &&ContainerStatus| inspected.is_none_or(|at| !may_learn_more(same, at));
            match same.filter(|same| settled && final_word(same)) {
                Some(same) => Ok(Some(same.clone())),
                None => found(
                    limiter
                        .run(runtime.container_status(&subject, &container.id, &container.name))
                        .await,
                ),
            }
        }
    }));
    let (sandboxes, containers) = try_join(sandboxes, containers).await?;

    let gone_sandboxes = gone(view.sandboxes.iter().map(|(id, _)| id), &sandboxes);
    let gone_containers = gone(view.containers.iter().map(|(container, _)| &container.id), &containers);
    Ok(Inspected {
        sandboxes: sandboxes.into_iter().flatten().collect(),
        containers: containers.into_iter().flatten().collect(),
        gone_sandboxes,
        gone_containers,
    })
}

/// Whether the runtime may say more of this end than it did `then`. It is told of an exit and of its reason apart: a container that ran
/// out of memory may first be told to have ended by `Error`, and by `OOMKilled` once that message has arrived.
pub(crate) fn may_learn_more(status: &ContainerStatus, then: Timestamp) -> bool {
    let recent = |at: Timestamp| then.duration_since(at).abs() < REASON_ARRIVES;
    status.exit_code == Some(KILLED) && &*status.reason != OUT_OF_MEMORY && status.finished_at.is_some_and(recent)
}

fn found<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(status) => Ok(Some(status)),
        Err(error) if error.kind.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn gone<'a, I: Clone + 'a, T>(ids: impl Iterator<Item = &'a I>, answers: &[Option<T>]) -> Vec<I> {
    ids.zip(answers)
        .filter(|(_, answer)| answer.is_none())
        .map(|(id, _)| id.clone())
        .collect()
}

impl Inspected {
    /// Everything in the view is gone.
    pub(crate) fn leaves_nothing_of(&self, view: &PodView) -> bool {
        self.gone_sandboxes.len() == view.sandboxes.len() && self.gone_containers.len() == view.containers.len()
    }

    /// Something that was listed is gone.
    pub(crate) fn misses_something(&self) -> bool {
        !self.gone_sandboxes.is_empty() || !self.gone_containers.is_empty()
    }

    /// The view without what is gone.
    pub(crate) fn correct(&self, view: &mut PodView) {
        let (sandboxes, containers): (HashSet<_>, HashSet<_>) = (
            self.gone_sandboxes.iter().collect(),
            self.gone_containers.iter().collect(),
        );
        view.sandboxes.retain(|(id, _)| !sandboxes.contains(id));
        view.containers
            .retain(|(container, _)| !containers.contains(&container.id));
    }

    /// The pod's status. Where nothing is ready and no address is told, the last known ones are kept.
    pub(crate) fn into_status(self, pod: PodRef, known: Option<&PodStatus>) -> PodStatus {
        let ready = self
            .sandboxes
            .iter()
            .any(|sandbox| sandbox.state == SandboxState::Ready);
        let mut ips: Box<[IpAddr]> = match self
            .sandboxes
            .iter()
            .find(|sandbox| sandbox.state == SandboxState::Ready)
        {
            Some(sandbox) => sandbox.ips.clone(),
            None => self
                .sandboxes
                .first()
                .map(|sandbox| sandbox.ips.clone())
                .unwrap_or_default(),
        };
        if ips.is_empty()
            && !ready
            && let Some(known) = known
        {
            ips.clone_from(&known.ips);
        }
        PodStatus {
            pod,
            ips,
            sandboxes: self.sandboxes.into(),
            containers: self.containers.into(),
        }
    }
}
