//! The condition of stuck pods, if it is asked for: True while a pod is stuck, False once it is not, absent if it never was.
//!
//! Follows the state of the [`Tracker`](super::tracker::Tracker), not its changes, so nothing is lost in an outage. The UID is a precondition:
//! a pod of the same name that came after it is not touched, and neither is the mirror of a static pod, whose UID is another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use pleg::{PodRef, PodUid};
use serde_json::json;
use tokio::time::Instant;

use super::condition::{self, STUCK, whole_second};
use super::finding::reason;
use super::tracker::Tracker;
use crate::api::{Api, ApiError, call};
use crate::retry::{Backoff, TroubleLog};

/// Patches in one go.
const AT_ONCE: usize = 4;
/// Delays after a failure: of an API server that is away, and of one that refuses.
const RETRY: [(Duration, Duration); 2] = [
    (Duration::from_secs(1), Duration::from_mins(1)),
    (Duration::from_secs(30), Duration::from_mins(5)),
];
/// The reason of a pod that is stuck no longer, as of a pod of `pleg node`.
const ANSWERS: &str = "RuntimeAnswers";

/// What the condition of a pod says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    stuck: bool,
    reason: String,
    message: String,
}

#[derive(Debug)]
struct Entry {
    pod: PodRef,
    since: Timestamp,
    wanted: Said,
    /// None: nothing yet.
    posted: Option<Said>,
}

/// The conditions of pods: one entry for each episode of the tracker, whose number is bounded.
#[derive(Debug)]
pub(super) struct PodConditions {
    api: Api,
    entries: BTreeMap<PodUid, Entry>,
    not_before: Instant,
    backoff: [Backoff; 2],
    log: TroubleLog,
    is_forbidden: bool,
}

impl PodConditions {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            entries: BTreeMap::new(),
            not_before: Instant::now(),
            backoff: RETRY.map(|(first, max)| Backoff::new(first, max)),
            log: TroubleLog::default(),
            is_forbidden: false,
        }
    }

    /// The API server did not permit the last attempt.
    pub(super) fn is_forbidden(&self) -> bool {
        self.is_forbidden
    }

    /// Takes in which pods are stuck.
    pub(super) fn follow(&mut self, tracker: &Tracker, now: Instant) {
        let mut stuck = BTreeSet::new();
        for (pod, episode) in tracker.pods(now) {
            let said = Said {
                stuck: true,
                reason: reason(episode.trouble),
                message: episode.text.clone(),
            };
            stuck.insert(pod.uid.clone());
            let entry = self.entries.entry(pod.uid.clone()).or_insert_with(|| Entry {
                pod: pod.clone(),
                since: episode.since,
                wanted: said.clone(),
                // Of a pod that an earlier process reported, the words are not known: they are left alone until it is found again.
                posted: episode.restored.then(|| said.clone()),
            });
            entry.wanted = said;
        }
        self.entries.retain(|uid, entry| {
            if !stuck.contains(uid) {
                entry.wanted = Said {
                    stuck: false,
                    reason: ANSWERS.to_owned(),
                    message: String::new(),
                };
            }
            entry.wanted.stuck || entry.posted.as_ref().is_some_and(|posted| posted.stuck)
        });
    }

    /// Posts what differs.
    pub(super) async fn post(&mut self) {
        if Instant::now() < self.not_before {
            return;
        }
        let differs =
            |(uid, entry): (&PodUid, &Entry)| (entry.posted.as_ref() != Some(&entry.wanted)).then(|| uid.clone());
        let late: Vec<PodUid> = self.entries.iter().filter_map(differs).take(AT_ONCE).collect();
        for uid in late {
            let Some(entry) = self.entries.get_mut(&uid) else {
                continue;
            };
            match patch(&self.api, entry).await {
                Ok(()) => {
                    self.is_forbidden = false;
                    self.log.fine("conditions of pods are reported again");
                    self.backoff.iter_mut().for_each(Backoff::reset);
                    entry.posted = Some(entry.wanted.clone());
                }
                // It is gone, or another one has its name, or it is static and its mirror has another UID.
                Err(error) if error.is_not_found() || error.is_conflict() || error.code() == Some(422) => {
                    entry.posted = Some(entry.wanted.clone());
                }
                Err(error) => return self.failed(&error),
            }
        }
    }

    fn failed(&mut self, error: &ApiError) {
        let is_refused = !error.is_transient() && !error.is_unauthorized();
        let delay = self.backoff[usize::from(is_refused)].delay();
        self.not_before = Instant::now() + delay.max(error.retry_after().unwrap_or_default().min(RETRY[1].1));
        self.is_forbidden = error.is_forbidden();
        let next = if self.is_forbidden {
            "Grant the verb patch on pods/status: deploy/rbac-pod-condition.yaml has the rules; or leave out --report-pod-condition"
        } else {
            "It is tried again"
        };
        self.log.failed(error, next);
    }
}

async fn patch(api: &Api, entry: &Entry) -> Result<(), ApiError> {
    let (pod, wanted) = (&entry.pod, &entry.wanted);
    let transition = if wanted.stuck { entry.since } else { Timestamp::now() };
    let condition = core::PodCondition {
        type_: STUCK.to_owned(),
        status: if wanted.stuck { "True" } else { "False" }.to_owned(),
        reason: Some(wanted.reason.clone()),
        message: Some(wanted.message.clone()),
        last_transition_time: Some(Time(whole_second(transition))),
        ..core::PodCondition::default()
    };
    let mut body = condition::patch(&condition);
    body["metadata"] = json!({ "uid": pod.uid });
    let pods = kube::Api::<core::Pod>::namespaced(api.client(), &pod.namespace);
    let (params, patch) = (PatchParams::default(), Patch::Strategic(body));
    let patching = pods.patch_status(&pod.name, &params, &patch);
    call(format!("patch pods/status of pod {pod}"), patching)
        .await
        .map(drop)
}
