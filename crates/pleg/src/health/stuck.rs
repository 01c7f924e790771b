//! Containers that do not change and whose status hangs: found by the probe.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::Rpc;
use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::Health;
use super::cause::{Cause, Seen, Stage, Who};
use crate::health::diagnosis::Trouble;
use crate::model::{ContainerId, ContainerRef, ObjectRef, PodRef, SandboxId};

/// A container whose status is not answered, while those of its sandbox and of most other containers are.
#[derive(Debug, Clone)]
pub(crate) struct StuckContainer {
    pub(crate) pod: PodRef,
    pub(crate) sandbox: SandboxId,
    pub(crate) container: ContainerRef,
    /// For how long each of the two calls was waited for.
    pub(crate) slow: Duration,
    pub(crate) since: Instant,
    /// What the status of its sandbox took meanwhile.
    pub(crate) around: Duration,
}

impl StuckContainer {
    pub(crate) fn who(&self) -> Who {
        Who {
            pod: Some(self.pod.full_name()),
            container: Some(Arc::clone(&self.container.name)),
            id: Some(self.container.id.shared()),
            sandbox: Some(self.sandbox.shared()),
            shim: None,
            about: Some((self.pod.clone(), ObjectRef::Container(self.container.clone()))),
        }
    }

    /// What is seen, in words.
    pub(crate) fn text(&self) -> String {
        format!(
            "ContainerStatus of {} is not answered within {}, asked twice, while its sandbox answers within {}",
            self.who(),
            seconds(self.slow),
            seconds(self.around.max(Duration::from_millis(1)))
        )
    }
}

/// What the probe knows of containers that do not answer.
#[derive(Debug, Default)]
pub(super) struct StuckContainers {
    named: BTreeMap<ContainerId, StuckContainer>,
    /// Most do not, so that none is to blame: since when, and in words.
    most: Option<(Instant, Arc<str>)>,
}

impl StuckContainers {
    pub(super) fn has(&self, id: Option<&Arc<str>>) -> bool {
        id.is_some_and(|id| self.named.values().any(|stuck| stuck.container.id.as_str() == &**id))
    }

    /// The causes. `is_named`: this container is named by a cause already.
    pub(super) fn causes(&self, now: Instant, endpoint: Option<&str>, is_named: impl Fn(&str) -> bool) -> Vec<Cause> {
        let seen = |trouble, who, since: Instant| Seen {
            stage: Stage::Probe,
            trouble,
            rpc: Rpc::ContainerStatus.name().into(),
            who,
            age: now.saturating_duration_since(since),
        };
        let most = self.most.iter().map(|(since, text)| {
            let seen = seen(Trouble::StalledStorage, Who::default(), *since);
            let text = format!("{text} (for {})", seen.for_long());
            seen.say(text, endpoint)
        });
        let named = self
            .named
            .values()
            .filter(|stuck| !is_named(stuck.container.id.as_str()));
        let named = named.map(|stuck| {
            let seen = seen(Trouble::StuckInspection, stuck.who(), stuck.since);
            let text = format!("{} (for {})", stuck.text(), seen.for_long());
            seen.say(text, endpoint)
        });
        most.chain(named).collect()
    }
}

impl Health {
    pub(crate) fn container_stuck(&self, stuck: StuckContainer) {
        let id = stuck.container.id.clone();
        let mut state = self.shared.lock();
        state.changes += 1;
        state.stuck.named.insert(id, stuck);
    }

    /// The container answers, or is gone. Returns it if it was stuck.
    pub(crate) fn container_answers(&self, id: &ContainerId) -> Option<StuckContainer> {
        let mut state = self.shared.lock();
        let stuck = state.stuck.named.remove(id)?;
        state.changes += 1;
        Some(stuck)
    }

    /// Most containers do not answer, while sandboxes do. Returns that in words.
    pub(crate) fn no_container_answers(&self, since: Instant, waited: Duration) -> Arc<str> {
        let text: Arc<str> = format!(
            "ContainerStatus is not answered within {} for most containers that were asked, while PodSandboxStatus is",
            seconds(waited)
        )
        .into();
        let mut state = self.shared.lock();
        state.changes += 1;
        state.stuck.most = Some((since, Arc::clone(&text)));
        drop(state);
        text
    }

    /// Returns since when they did not.
    pub(crate) fn containers_answer(&self) -> Option<Instant> {
        let mut state = self.shared.lock();
        let (since, _) = state.stuck.most.take()?;
        state.changes += 1;
        Some(since)
    }
}
