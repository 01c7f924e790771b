//! Decides which pods are inspected, starts inspections and takes them in.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::Abortable;

use super::super::Generator;
use super::{Begun, Done, InspectTrigger};
use crate::inspect::Inspection;
use crate::model::event::Source;
use crate::model::{ObjectRef, ObjectState, PodRef, PodView};
use crate::publish::cache::{StalePart, Token};
use crate::records::PodKey;
use crate::runtime::Runtime;

impl<R: Runtime> Generator<R> {
    /// Decides what to do about a pod that a relist brought news of, or that a caller asked for.
    pub(in crate::generator) fn schedule_inspection(
        &mut self,
        key: PodKey,
        token: Token,
        source: Source,
        why: InspectTrigger,
    ) {
        let asked = why != InspectTrigger::News;
        self.follow_quarantined(key, token, source, asked);
        let before = self.inspections.get(key).map(|pod| (pod.asked, pod.by_ids()));
        let (asked_before, by_id_before) = before.unwrap_or_default();
        let unchanged = !asked && !self.has_fresh_news(key);
        if unchanged {
            self.clear_unchanged(key);
            if !asked_before {
                return;
            }
        }
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
        let view = self.records.listed(key);
        let records = &self.records;
        self.publisher
            .cache
            .hold(&pod, || (records.listed_status(pod.clone(), &view), uninspected(&view)));
        let initial = self.schedule.is_first();
        let entry = self.inspections.enqueue(key, token, source, initial);
        entry.asked |= asked || asked_before;
        entry.whole |= why != InspectTrigger::ById;
        if unchanged {
            // What was to be a relist by itself when it was ended for lack of news still is.
            entry.by_id.extend(by_id_before);
        }
        entry.relisted(token, source, asked, &view);
        if view.is_empty() {
            self.commit_removal(key);
        }
    }

    /// An event was about these objects of the pod, all of them in the records: asks for them by id, without a list.
    pub(in crate::generator) fn inspect_objects(
        &mut self,
        key: PodKey,
        ids: Vec<Arc<str>>,
        token: Token,
        source: Source,
    ) {
        self.schedule_inspection(key, token, source, InspectTrigger::ById);
        if let Some(entry) = self.inspections.get_mut(key) {
            // Whatever happens to a sandbox happens to all that is in it.
            entry.whole |= ids.iter().any(|id| self.records.is_sandbox(id));
            entry.by_id.extend(ids);
        }
    }

    /// Something was seen of the pod that is neither committed nor in quarantine.
    fn has_fresh_news(&self, key: PodKey) -> bool {
        self.records.is_dirty_beside(key, |id| self.quarantine.has(id))
    }

    /// What was seen of the pod is what was committed, but for what is in quarantine.
    pub(in crate::generator) fn clear_unchanged(&mut self, key: PodKey) {
        let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) else {
            return;
        };
        self.inspections.forget(key);
        if !self.records.sweep(key) {
            self.release_pod(key, &uid);
            self.publisher.cache.remove(&uid);
        } else if self.quarantine.has_pod(key) {
            self.show_stale(key, None);
        } else {
            self.publisher.cache.release(&uid);
        }
        self.gauges();
        self.inspection_settled(key);
    }

    /// Starts inspections while there is room.
    pub(in crate::generator) fn start_inspections(&mut self) {
        while let Some(key) = self.inspections.take_next(self.limiter.limit()) {
            let (Some(entry), Some(pod)) = (self.inspections.pods.get_mut(&key), self.records.pod(key)) else {
                continue;
            };
            let (pod, view) = (pod.clone(), self.records.listed(key));
            self.recorder.inspecting(&pod.uid);
            let begun = entry.begin(self.inspections.next_id, &view);
            self.inspections.next_id += 1;
            self.start_inspection(key, pod, view, begun);
        }
    }

    fn start_inspection(&mut self, key: PodKey, pod: PodRef, view: PodView, begun: Begun) {
        let Begun {
            id,
            registration,
            token,
            only,
        } = begun;
        let known = self.publisher.cache.known(&pod.uid);
        let reusable = known.as_ref().filter(|known| self.identity.may_reuse(known.inspected));
        let taken_over = only.is_some() && reusable.is_some();
        self.publisher.cache.inspecting(&pod.uid, token, !taken_over);
        let inspection = Inspection {
            pod,
            view,
            known: reusable.map(|known| (Arc::clone(&known.status), known.at)),
            stale: known.iter().flat_map(|known| ids(&known.stale)).collect(),
            only,
            skip: self.quarantine.of_pod(key).cloned().collect(),
        };
        let (runtime, limiter) = (Arc::clone(&self.runtime), self.limiter.clone());
        let run = async move {
            let inspected = Abortable::new(inspection.run(&runtime, &limiter), registration).await;
            Done {
                key,
                id,
                inspected: inspected.ok(),
                view: inspection.view,
                skipped: inspection.skip,
                known: known.map(|known| known.status),
            }
        };
        self.inspections.running.push(run.boxed());
    }

    /// Takes in an inspection.
    pub(in crate::generator) fn inspected(&mut self, done: Done) {
        if self.inspections.is_current(&done) {
            let key = done.key;
            self.commit(done);
            self.take_in_answers(key);
        }
    }

    /// After a commit: is there more to inspect?
    pub(in crate::generator) fn finish_inspection(&mut self, key: PodKey, exists: bool) -> bool {
        let news = self.has_fresh_news(key);
        self.inspections.finish(key, exists, news)
    }
}

fn ids(stale: &[StalePart]) -> impl Iterator<Item = Arc<str>> {
    stale.iter().map(|part| Arc::clone(part.object.id()))
}

/// Every part of a pod that was never inspected.
fn uninspected(view: &PodView) -> Arc<[StalePart]> {
    let sandboxes = view.sandboxes.iter().map(|(id, state)| StalePart {
        object: ObjectRef::Sandbox { id: id.clone() },
        listed: Some(ObjectState::Sandbox(*state)),
        error: None,
    });
    let containers = view.containers.iter().map(|(container, state)| StalePart {
        object: ObjectRef::Container(container.clone()),
        listed: Some(ObjectState::Container(*state)),
        error: None,
    });
    sandboxes.chain(containers).collect()
}
