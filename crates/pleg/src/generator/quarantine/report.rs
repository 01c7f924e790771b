//! Reports what is in quarantine: to readers of the cache, health, recorder and log.

use std::sync::Arc;
use std::time::Duration;

use pleg_cri::duration::seconds;
use pleg_cri::{ErrorKind, Rpc, Subject};
use tokio::time::Instant;

use super::super::Generator;
use super::{Denied, Failure, Held, Phase};
use crate::health::Who;
use crate::model::event::Source;
use crate::model::{ObjectRef, PodRef, PodUid};
use crate::publish::cache::{StalePart, Token};
use crate::recorder::line::Turn;
use crate::records::PodKey;
use crate::runtime::Runtime;

impl<R: Runtime> Generator<R> {
    /// Reports the object to health, recorder and log, unless it is too early to report.
    pub(super) fn announce_quarantined(&mut self, pod: &PodRef, id: &Arc<str>, failure: &Failure, pause: Duration) {
        let was_announced = self
            .quarantine
            .objects
            .get(id)
            .is_some_and(|held| self.quarantine.is_announced(held.pod));
        let relists_fail = self.health.relists_fail();
        let Some(held) = self.quarantine.objects.get_mut(id) else {
            return;
        };
        if failure.kind.is_not_found() {
            if held.denied == Denied::Never {
                held.denied = Denied::At(Instant::now());
            }
            // Most likely the sandbox went away since it was listed. It is a trouble if a list that was sent later still has it.
            if matches!(held.denied, Denied::At(at) if !self.lists.sandboxes_listed_since(at)) {
                if held.source == Source::OnDemand {
                    self.requests.pod(&pod.uid, held.source);
                } else {
                    self.stream.hinted.pods.entry_ref(&pod.uid).or_default();
                }
                return;
            }
        }
        let Some(cause) = held.error.clone() else { return };
        held.announced = true;
        if !was_announced {
            self.recorder
                .transition(Turn::Quarantined, Some(pod), Some(&cause.message), None);
        }
        self.health.quarantine(pod, &held.object, Arc::clone(&cause));
        // A runtime that is gone is reported once, not for each pod. One that lists, and says again and again that this pod cannot be
        // reached, is not gone.
        let gone = failure.kind.is_unreachable() && (held.attempts == 1 || relists_fail);
        if gone {
            // The next relist shows whether the runtime is gone, and reports that; relist now.
            self.requests.all(Source::Relist);
        } else if !std::mem::replace(&mut held.logged, true) {
            let who = Who {
                pod: Some(pod.full_name()),
                container: failure.subject.container.clone(),
                id: failure.subject.id.clone(),
                sandbox: cause.sandbox.clone(),
                shim: None,
                about: None,
            };
            let advice = self.health.advice(cause.trouble, &who);
            tracing::warn!(
                pod = %pod,
                container = held.object.container_name().map(|name| &**name),
                call = %failure.rpc,
                error = %failure.kind,
                retry_in = %seconds(pause),
                "{} is in quarantine; others are not affected",
                kind_of(&held.object)
            );
            tracing::debug!("{advice}");
        }
    }

    /// Releases an object from quarantine, because it answered or is gone. Returns its entry.
    pub(super) fn let_go(&mut self, id: &Arc<str>) -> Option<Held> {
        // An answer that waits stays with what is returned.
        let answered = match self.quarantine.objects.get_mut(id)?.phase {
            Phase::Answered(_) => Some(std::mem::replace(
                &mut self.quarantine.objects.get_mut(id)?.phase,
                Phase::Queued,
            )),
            _ => None,
        };
        let mut held = self.quarantine.remove(id)?;
        held.phase = answered.unwrap_or(held.phase);
        let pod = self.records.pod(held.pod).cloned()?;
        if held.announced {
            self.health.release(&pod.uid, id);
            if !self.quarantine.is_announced(held.pod) {
                let lasted = Some(held.since.elapsed());
                self.recorder.transition(Turn::Released, Some(&pod), None, lasted);
            }
        }
        if held.logged {
            tracing::info!(
                pod = %pod,
                container = held.object.container_name().map(|name| &**name),
                lasted = %seconds(held.since.elapsed()),
                "{} left quarantine",
                kind_of(&held.object)
            );
        }
        Some(held)
    }

    /// The pod is gone, and with it all that was held of it.
    pub(in crate::generator) fn release_pod(&mut self, key: PodKey, uid: &PodUid) {
        for id in self.quarantine.ids_of(key) {
            self.let_go(&id);
            self.health.release(uid, &id);
        }
    }

    /// The stale parts of a pod, for its readers.
    pub(in crate::generator) fn stale_parts(&self, key: PodKey) -> Arc<[StalePart]> {
        let parts = self.quarantine.of_pod(key).filter_map(|id| {
            let held = self.quarantine.objects.get(id)?;
            Some(StalePart {
                object: held.object.clone(),
                listed: self.records.object_state(&held.object),
                error: held.error.clone().filter(|_| held.announced),
            })
        });
        parts.collect()
    }

    /// Something of the pod is being asked for, in an inspection or again.
    pub(in crate::generator) fn is_being_asked(&self, key: PodKey) -> bool {
        self.inspections.has(key) || self.quarantine.is_asking(key)
    }

    /// Shows readers which parts of the pod are stale. `tried`: the relist up to which one was asked for in vain.
    pub(in crate::generator) fn show_stale(&mut self, key: PodKey, tried: Option<Token>) {
        let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) else {
            return;
        };
        let inspecting = self.is_being_asked(key);
        self.publisher
            .cache
            .stale(&uid, self.stale_parts(key), tried, inspecting);
    }

    /// The call about the object was given up after it had waited so long.
    pub(super) fn no_answer(&self, id: &Arc<str>, waited: Duration) -> Option<Failure> {
        let held = self.quarantine.objects.get(id)?;
        let pod = self.records.pod(held.pod)?.full_name();
        let (rpc, subject) = match &held.object {
            ObjectRef::Sandbox { id } => (Rpc::PodSandboxStatus, Subject::sandbox(pod, id.shared())),
            ObjectRef::Container(container) => {
                let subject = Subject::container(pod, Arc::clone(&container.name), container.id.shared());
                (Rpc::ContainerStatus, subject)
            }
        };
        let kind = ErrorKind::Deadline(Duration::from_millis(waited.as_millis().try_into().unwrap_or(u64::MAX)));
        let on = self
            .runtime
            .endpoint()
            .map_or(String::new(), |endpoint| format!(" on {endpoint}"));
        Some(Failure {
            text: format!("{rpc} of {subject}{on}: {kind}").into(),
            rpc,
            subject,
            kind,
        })
    }
}

fn kind_of(object: &ObjectRef) -> &'static str {
    match object {
        ObjectRef::Container(_) => "container",
        ObjectRef::Sandbox { .. } => "sandbox",
    }
}
