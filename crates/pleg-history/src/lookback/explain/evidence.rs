//! What came before a death, from the entries around it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerId, Event, EventType, Level, PodRef, SandboxState};
use pleg_cri::duration::seconds;

use super::{Evidence, EvidenceKind, LONGEST_BEFORE, status_change};
use crate::entry::{Entry, MissedReason, NodeEvent, What};
use crate::lookback::lives::{Ending, Life};
use crate::lookback::troubles::TroubleSpan;
use crate::lookback::{between, happened, seconds_between};

/// What is seen within this time belongs together: the events of one pod are published together, those of others a moment later.
const TOGETHER: Duration = Duration::from_secs(10);
/// A sandbox or a sibling that goes first goes right before.
const RIGHT_BEFORE: Duration = Duration::from_mins(1);
/// Pods that have to die together to be worth a line.
const FEW: usize = 3;
/// Pods that such a line names.
const NAMED: usize = 4;
/// Lines; the nearest of each kind.
const MOST: usize = 12;

/// What came before this death, the oldest first.
pub(super) fn before(
    pod: &PodRef,
    life: &Life,
    death: &Ending,
    entries: &[Entry],
    troubles: &[TroubleSpan],
) -> Vec<Evidence> {
    let around = Around { pod, life, death };
    let mut found: Vec<Evidence> = entries.iter().filter_map(|entry| around.entry(entry)).collect();
    found.extend(troubles.iter().filter_map(|span| around.trouble(span)));
    found.extend(around.others(entries));
    // The nearest are kept, and of the same time those that say most.
    found.sort_by(|a, b| a.seconds_before.total_cmp(&b.seconds_before).then(a.kind.cmp(&b.kind)));
    found.truncate(MOST);
    found.sort_by(|a, b| a.time.cmp(&b.time).then(a.kind.cmp(&b.kind)));
    found
}

struct Around<'a> {
    pod: &'a PodRef,
    life: &'a Life,
    death: &'a Ending,
}

impl Around<'_> {
    fn is_ours(&self, pod: &PodRef) -> bool {
        pod.uid == self.pod.uid || (pod.namespace == self.pod.namespace && pod.name == self.pod.name)
    }

    /// It happened at most so long before the death, or together with it.
    fn within(&self, time: Timestamp, longest: Duration) -> bool {
        between(time, self.death.time) <= longest && between(self.death.time, time) <= TOGETHER
    }

    fn evidence(&self, time: Timestamp, kind: EvidenceKind, text: String) -> Evidence {
        Evidence {
            time,
            seconds_before: seconds_between(time, self.death.time),
            kind,
            text,
            event: None,
            id: None,
        }
    }

    fn entry(&self, entry: &Entry) -> Option<Evidence> {
        if entry.id == self.death.id {
            return None;
        }
        let found = match (entry.event(), entry.note()) {
            (Some(event), _) => self.event(event)?,
            (_, Some(what)) => self.note(entry, what)?,
            _ => return None,
        };
        Some(Evidence {
            event: entry.event().map(|event| event.cursor()),
            id: Some(entry.id),
            ..found
        })
    }

    fn event(&self, event: &Event) -> Option<Evidence> {
        let pod = event.pod.as_ref()?;
        if !self.is_ours(pod) || event.initial {
            return None;
        }
        let time = happened(event);
        match (&event.subject, event.kind) {
            (Some(Subject::Container(container)), EventType::ContainerStopped)
                if container.id == self.life.container.id =>
            {
                let text = format!("the node stops container {}, as it announced", container.name);
                Some(self.evidence(time, EvidenceKind::StopAnnounced, text))
            }
            (Some(Subject::Container(container)), EventType::ContainerDied)
                if is_other(&container.id, self.life) && self.within(time, RIGHT_BEFORE) && time <= self.death.time =>
            {
                let text = format!("container {} died: {}", container.name, ending(event));
                Some(self.evidence(time, EvidenceKind::SiblingDied, text))
            }
            (Some(Subject::Sandbox { state, .. }), EventType::PodSandboxChanged)
                if *state != Some(SandboxState::Ready) && self.within(time, RIGHT_BEFORE) =>
            {
                let how = if state.is_some() { "no longer ready" } else { "gone" };
                Some(self.evidence(time, EvidenceKind::SandboxLost, format!("the pod's sandbox is {how}")))
            }
            _ => None,
        }
    }

    fn note(&self, entry: &Entry, what: &What) -> Option<Evidence> {
        let time = entry.time();
        if !self.within(time, LONGEST_BEFORE) {
            return None;
        }
        let (kind, text) = match what {
            What::PodStatusChanged(changed) if self.is_ours(&changed.pod) && time <= self.death.time => {
                (EvidenceKind::StatusChanged, status_change(what)?)
            }
            What::NodeEvent(event) if self.is_about(event) && time <= self.death.time => {
                (node_event(event)?, format!("{}: {}", event.reason, event.message))
            }
            What::HealthChanged(changed) if changed.level == Level::Unhealthy => {
                (EvidenceKind::NodeHealth, changed.headline.clone())
            }
            What::DaemonStarted(started) => {
                let how = match started.previous {
                    Some(previous) if !previous.clean => " after a crash or kill",
                    _ => "",
                };
                let text = format!("the pleg daemon started{how}: what happened while it was away is not known");
                (EvidenceKind::Unseen, text)
            }
            What::Gap(missed) => {
                let why = match missed.reason {
                    MissedReason::NotWritten => "the history could not be written",
                    MissedReason::Crashed => "the daemon was killed or crashed",
                };
                (EvidenceKind::Unseen, format!("events are missing: {why}"))
            }
            _ => return None,
        };
        Some(self.evidence(time, kind, text))
    }

    /// It is about this container or its pod.
    fn is_about(&self, event: &NodeEvent) -> bool {
        let container = event
            .container
            .as_deref()
            .is_none_or(|name| name == &*self.life.container.name);
        container && event.pod.as_ref().is_some_and(|pod| self.is_ours(pod))
    }

    /// A trouble of the pod or of the whole node, at the death or not long before it.
    fn trouble(&self, span: &TroubleSpan) -> Option<Evidence> {
        let name = self.pod.to_string();
        let kind = match &span.pod {
            None => EvidenceKind::NodeTrouble,
            Some(pod) if *pod == name => EvidenceKind::PodTrouble,
            Some(_) => return None,
        };
        let ended_before = span.to.map(|to| between(to, self.death.time)).unwrap_or_default();
        if span.from > self.death.time || ended_before > LONGEST_BEFORE {
            return None;
        }
        let mut text = span.trouble.clone();
        if let Some(container) = &span.container {
            text = format!("{text} of container {container}");
        }
        if let Some(reason) = &span.reason {
            text = format!("{text}: {reason}");
        }
        let whole = |duration: Duration| seconds(Duration::from_secs(duration.as_secs()));
        let how_long = match span.to {
            Some(to) if to <= self.death.time && !span.cut_short => {
                format!("lasted {}", whole(between(span.from, to)))
            }
            _ => "not over by then".to_owned(),
        };
        Some(Evidence {
            event: span.event,
            ..self.evidence(span.from, kind, format!("{text} ({how_long})"))
        })
    }

    /// Other pods that failed at the same time.
    fn others(&self, entries: &[Entry]) -> Option<Evidence> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        let mut first = self.death.time;
        for event in entries.iter().filter_map(Entry::event) {
            let time = happened(event);
            let is_near = between(time, self.death.time) <= TOGETHER && between(self.death.time, time) <= TOGETHER;
            if event.kind != EventType::ContainerDied || event.initial || event.exit_code == Some(0) || !is_near {
                continue;
            }
            if let Some(pod) = event.pod.as_ref().filter(|pod| !self.is_ours(pod)) {
                names.insert(pod.to_string());
                first = first.min(time);
            }
        }
        if names.len() < FEW {
            return None;
        }
        let more = if names.len() > NAMED { ", …" } else { "" };
        let some: Vec<_> = names.iter().take(NAMED).map(String::as_str).collect();
        let text = format!(
            "containers of {} other pods died within {}: {}{more}",
            names.len(),
            seconds(TOGETHER),
            some.join(", ")
        );
        Some(self.evidence(first, EvidenceKind::OthersDied, text))
    }
}

/// What an event of the node stands for; none if it is only that all went well.
fn node_event(event: &NodeEvent) -> Option<EvidenceKind> {
    let probe = ["liveness probe", "startup probe"];
    let message = event.message.to_ascii_lowercase();
    match event.reason.as_str() {
        "Unhealthy" | "Killing" if probe.iter().any(|probe| message.contains(probe)) => Some(EvidenceKind::ProbeFailed),
        "Evicted" | "Preempting" => Some(EvidenceKind::Evicted),
        "Killing" => Some(EvidenceKind::NodeEvent),
        _ => event.warning.then_some(EvidenceKind::NodeEvent),
    }
}

fn is_other(id: &ContainerId, life: &Life) -> bool {
    *id != life.container.id
}

/// `exit code 137, OOMKilled`.
fn ending(event: &Event) -> String {
    let code = event.exit_code.map(|code| format!("exit code {code}"));
    let words = [code, event.reason.as_deref().map(str::to_owned)];
    let words: Vec<_> = words.into_iter().flatten().collect();
    if words.is_empty() {
        "the runtime does not say how".to_owned()
    } else {
        words.join(", ")
    }
}
