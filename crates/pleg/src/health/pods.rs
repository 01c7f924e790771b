//! What a report says about single pods: whether anything new is seen of them at all, and which causes are about which pod.

use std::fmt::Write as _;
use std::time::Duration;

use hashbrown::HashMap;
use pleg_cri::duration::seconds;

use super::{Cause, Level, Report, Stage};
use crate::model::status::PodStatus;

impl Report {
    /// Why nothing new is seen of any pod; none while the lists answer. Without ages: the text stays the same as long as the cause does.
    pub fn why_stale(&self) -> Option<String> {
        let list = self.causes.iter().find(|cause| cause.stage == Stage::List);
        match list {
            Some(cause) => Some(match (&cause.last_error, &cause.who.pod) {
                (Some(error), _) => error.to_string(),
                (None, Some(_)) => format!("{} is not answered, and neither is {} by its id", cause.rpc, cause.who),
                (None, None) => format!("{} is not answered", cause.rpc),
            }),
            None => (self.level == Level::Unhealthy).then(|| self.headline.clone()),
        }
    }

    /// Why the generator is unhealthy, if it is: the call that fails, and who holds it up. Without ages, like [`Report::why_stale`].
    pub fn why_unhealthy(&self) -> Option<String> {
        if self.passes() {
            return None;
        }
        // Before the first relist, and after the end of the generator, the headline says it all.
        let is_late = |cause: &&Cause| cause.stage != Stage::Generator && self.last_seen_seconds.is_some();
        let Some(cause) = self.causes.first().filter(is_late) else {
            return Some(match self.last_seen_seconds {
                Some(_) if self.causes.is_empty() => self.relist_late(),
                _ => self.headline.clone(),
            });
        };
        let mut why = self.relist_late();
        if cause.stage == Stage::List
            && let Some(stale) = self.why_stale()
        {
            why = format!("{why}: {stale}");
        }
        // Writing to a string cannot fail.
        if let Some(pod) = &cause.who.pod
            && !why.contains(&**pod)
        {
            let _ = write!(why, "; {} does not answer", cause.who);
        }
        let more = self.causes.len() - 1 + self.more_causes;
        if more > 0 {
            let _ = write!(why, "; and {more} more");
        }
        Some(why)
    }

    fn relist_late(&self) -> String {
        let threshold = seconds(Duration::from_secs(self.threshold_seconds));
        format!("PLEG is not healthy: no complete relist within {threshold}")
    }

    /// Finds the causes that are about a pod.
    pub fn by_pod(&self) -> CausesByPod<'_> {
        let mut index = CausesByPod::default();
        for cause in &self.causes {
            let ids = [&cause.who.id, &cause.who.sandbox];
            let ids: Vec<&str> = ids.into_iter().filter_map(|id| id.as_deref()).collect();
            if ids.is_empty() {
                // A pod's name may have had another UID before, so a name counts only where there is no id.
                if let Some(pod) = &cause.who.pod {
                    index.by_name.entry(pod).or_default().push(cause);
                }
            }
            for id in ids {
                index.by_id.entry(id).or_default().push(cause);
            }
        }
        index
    }
}

/// The causes of a [`Report`], by pod.
#[derive(Debug, Default)]
pub struct CausesByPod<'a> {
    by_id: HashMap<&'a str, Vec<&'a Cause>>,
    by_name: HashMap<&'a str, Vec<&'a Cause>>,
}

impl<'a> CausesByPod<'a> {
    /// The causes that are about this pod, its sandboxes or its containers.
    pub fn of(&self, status: &PodStatus) -> Vec<&'a Cause> {
        if self.by_id.is_empty() && self.by_name.is_empty() {
            return Vec::new();
        }
        let sandboxes = status.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
        let containers = status.containers.iter().map(|container| container.id.as_str());
        let by_id = sandboxes.chain(containers).filter_map(|id| self.by_id.get(id));
        let name = status.pod.full_name();
        let by_name = self.by_name.get(&*name);
        let mut found: Vec<&Cause> = Vec::new();
        for cause in by_id.chain(by_name).flatten() {
            if !found.iter().any(|known| std::ptr::eq(*known, *cause)) {
                found.push(cause);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pleg_cri::{Endpoint, Error, ErrorKind, InFlight, Rpc, Subject};
    use tokio::time::Instant;

    use super::super::{HungShim, THRESHOLD};
    use super::*;
    use crate::health::Health;
    use crate::model::PodRef;
    use crate::model::status::SandboxStatus;
    use crate::publish::cache::{PodError, Since};
    use crate::{SandboxState, Trouble};

    fn pod(uid: &str, sandbox: &str) -> PodStatus {
        let pod = PodRef {
            uid: uid.into(),
            namespace: "default".into(),
            name: "web".into(),
        };
        PodStatus {
            sandboxes: [SandboxStatus::listed(&sandbox.into(), SandboxState::Ready, 0, 1)].into(),
            ..PodStatus::empty(pod)
        }
    }

    /// Two pods may have one name; the ids tell which of them is meant.
    #[tokio::test(start_paused = true)]
    async fn causes_are_found_by_id() {
        let health = Health::new(THRESHOLD, InFlight::default(), None);
        health.relist_complete();
        let (old, new) = (pod("old", "s-old"), pod("new", "s-new"));
        health.shim_hangs(HungShim {
            pod: new.pod.clone(),
            sandbox: "s-new".into(),
            shim: None,
            since: Instant::now(),
            took: Default::default(),
        });
        let error = PodError {
            message: "no answer".into(),
            trouble: Trouble::StuckInspection,
            rpc: "PodSandboxStatus".into(),
            container: None,
            id: Some("s-old".into()),
            sandbox: Some("s-old".into()),
            attempts: 1,
            since: Since::at(Instant::now()),
        };
        let sandbox = crate::model::ObjectRef::Sandbox { id: "s-old".into() };
        health.quarantine(&old.pod, &sandbox, Arc::new(error));
        let report = health.report();
        let of = |status: &PodStatus| -> Vec<_> {
            let causes = report.by_pod().of(status);
            causes.iter().map(|cause| cause.trouble).collect()
        };
        assert_eq!(of(&new), [Trouble::HungShim]);
        assert_eq!(of(&old), [Trouble::StuckInspection]);
        assert_eq!(of(&pod("third", "s")), []);
        assert_eq!(report.why_stale(), None, "one pod's trouble makes no other stale");
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_stale_while_no_list_answers() {
        let health = Health::new(THRESHOLD, InFlight::default(), None);
        health.relist_complete();
        assert_eq!(health.report().why_stale(), None);
        let error = Error {
            rpc: Rpc::ListPodSandbox,
            subject: Subject::NODE,
            endpoint: Endpoint::unix("/run/cri.sock"),
            kind: ErrorKind::Deadline(THRESHOLD),
        };
        health.relist_failed(error, false, Instant::now());
        let why = health.report().why_stale().expect("a reason");
        assert!(
            why.starts_with("ListPodSandbox") && why.contains("no answer within"),
            "{why}"
        );
        assert_eq!(health.report().why_unhealthy(), None, "not yet");
        let _list = health.inflight().begin(Rpc::ListPodSandbox, Subject::NODE, None);
        tokio::time::advance(THRESHOLD + THRESHOLD).await;
        let unhealthy = health.report().why_unhealthy();
        let expected = format!("PLEG is not healthy: no complete relist within 3m0s: {why}");
        assert_eq!(unhealthy, Some(expected));
        tokio::time::advance(THRESHOLD).await;
        assert_eq!(health.report().why_unhealthy(), unhealthy, "it has no ages");
    }
}
