//! The report: what `-o json` prints. Its fields are stable, and documented in `docs/output.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use pleg::health::Oddities;
use serde::Serialize;

use super::events;
use super::facts::{Answer, Condition, DeadOf, Events, Facts, KUBELET_LIMIT, List, Processes, Runtime, Sample, Socket};
use super::finding::{Finding, Severity};
use super::kubelet::Kubelet;
use crate::text::count;

/// Maximum number of pods with dead containers that are named.
const MOST_DEAD_OF: usize = 20;

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) endpoint: String,
    /// The highest severity of the findings; `None` without findings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) severity: Option<Severity>,
    pub(super) took_seconds: f64,
    pub(super) budget_seconds: f64,
    /// What was skipped for lack of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left_out: Vec<String>,
    /// The most severe first.
    pub(super) findings: Vec<Finding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime: Option<Runtime>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) socket: Option<Socket>,
    pub(super) events: EventsTold,
    pub(super) witness: WitnessTold,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counts: Option<Counts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lists: Vec<ListTold>,
    pub(super) calls: Vec<CallStats>,
    pub(super) kubelet: Kubelet,
}

/// The event stream.
#[derive(Debug, Serialize)]
pub(super) struct EventsTold {
    pub(super) state: &'static str,
    /// As text.
    pub(super) says: String,
}

/// Whether the kernel can be a witness.
#[derive(Debug, Serialize)]
pub(super) struct WitnessTold {
    /// Running containers, and how many of their processes can be watched, of those that were asked for.
    pub(super) running: usize,
    pub(super) asked: usize,
    pub(super) watched: usize,
    /// As text.
    pub(super) says: String,
}

impl WitnessTold {
    fn of(processes: &Processes) -> Self {
        let Processes {
            running,
            asked,
            watched,
            why_not,
            ..
        } = processes;
        let says = match (watched, why_not) {
            (0, None) => "no running container to watch".to_owned(),
            (0, Some(reason)) => format!("off: {reason}"),
            (_, None) => format!(
                "on: the kernel shows {}",
                if *watched == 1 {
                    "1 process".to_owned()
                } else {
                    format!("{watched} processes")
                }
            ),
            (_, Some(reason)) => format!("on for {watched} of {asked} processes: {reason}"),
        };
        Self {
            running: *running,
            asked: *asked,
            watched: *watched,
            says,
        }
    }
}

/// The content of the lists.
#[derive(Debug, Serialize)]
pub(super) struct Counts {
    pub(super) pods: usize,
    pub(super) sandboxes: usize,
    /// `None` if the runtime does not list its containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) containers: Option<usize>,
    pub(super) running: usize,
    pub(super) dead: usize,
    pub(super) orphans: usize,
    pub(super) odd_objects: Oddities,
    /// Pods with dead containers, those with most first.
    pub(super) dead_by_pod: Vec<DeadOf>,
}

/// The size of a list.
#[derive(Debug, Serialize)]
pub(super) struct ListTold {
    pub(super) rpc: &'static str,
    pub(super) items: usize,
    pub(super) bytes: usize,
    pub(super) kubelet_limit_bytes: usize,
    pub(super) streamed: bool,
}

/// How long one kind of call took.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct CallStats {
    pub(super) rpc: &'static str,
    /// With `verbose`: the runtime asks the shim.
    pub(super) verbose: bool,
    pub(super) calls: usize,
    pub(super) failed: usize,
    pub(super) unanswered: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) worst_ms: f64,
    /// The object of the slowest call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst_pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst_container: Option<String>,
}

/// Assembles the report.
pub(super) fn report(
    facts: Facts,
    kubelet: Kubelet,
    findings: Vec<Finding>,
    took: Duration,
    budget: Duration,
) -> Report {
    let answered = facts.silence.is_none();
    let calls = call_stats(&facts.samples);
    let lists = [
        ("ListPodSandbox", &facts.sandboxes),
        ("ListContainers", &facts.containers),
    ];
    let lists = lists
        .into_iter()
        .filter(|(_, list)| answered && list.answer == Answer::Ok);
    let told = |(rpc, list): (&'static str, &List)| ListTold {
        rpc,
        items: list.items,
        bytes: list.bytes,
        kubelet_limit_bytes: KUBELET_LIMIT,
        streamed: list.streamed,
    };
    let lists: Vec<ListTold> = lists.map(told).collect();
    let inventory = facts.inventory;
    let listed = facts.containers.answer == Answer::Ok;
    let counts = (answered && facts.sandboxes.answer == Answer::Ok).then(|| Counts {
        pods: inventory.pods,
        sandboxes: inventory.sandboxes.len(),
        containers: listed.then_some(inventory.containers.len()),
        running: inventory.running,
        dead: inventory.dead,
        orphans: inventory.orphans.len(),
        odd_objects: inventory.odd,
        dead_by_pod: inventory.dead_of.into_iter().take(MOST_DEAD_OF).collect(),
    });
    Report {
        endpoint: facts.endpoint,
        severity: findings.first().map(|finding| finding.severity),
        took_seconds: (took.as_secs_f64() * 1e3).round() / 1e3,
        budget_seconds: budget.as_secs_f64(),
        left_out: facts.left_out,
        findings,
        witness: WitnessTold::of(&facts.processes),
        events: events_told(&facts.events, facts.runtime.as_ref()),
        runtime: facts.runtime,
        conditions: facts.conditions,
        socket: facts.socket,
        counts,
        lists,
        calls,
        kubelet,
    }
}

fn events_told(events: &Events, runtime: Option<&Runtime>) -> EventsTold {
    let (state, says) = match events {
        _ if runtime.is_none() => ("unknown", "the runtime does not answer".to_owned()),
        Events::NotTried => (
            "not-tried",
            "not checked: subscribing would consume events the runtime holds for its next subscriber (use --events to check)"
                .to_owned(),
        ),
        Events::Split => (
            "refused",
            "not checked: this runtime delivers each event to one subscriber only, so pleg would take events from a kubelet"
                .to_owned(),
        ),
        Events::Unimplemented => ("unimplemented", "the runtime has no event stream".to_owned()),
        Events::Open { events, within } => (
            "open",
            format!(
                "open: {} in {}",
                count(*events, "event"),
                super::kubelet::rounded(*within)
            ),
        ),
        Events::Failed(why) => ("failed", why.clone()),
        Events::NoTime => (
            "not-tried",
            format!(
                "not checked: this takes {}, and the budget is used up",
                pleg_cri::duration::seconds(events::TIME)
            ),
        ),
    };
    EventsTold { state, says }
}

/// Summarises the calls by kind.
fn call_stats(samples: &[Sample]) -> Vec<CallStats> {
    let mut kinds: BTreeMap<(bool, &'static str), Vec<&Sample>> = BTreeMap::new();
    // An unimplemented call says nothing about latency.
    for sample in samples.iter().filter(|sample| sample.answer != Answer::Unimplemented) {
        kinds.entry((sample.verbose, sample.rpc)).or_default().push(sample);
    }
    let stats = kinds.into_iter().map(|((verbose, rpc), mut samples)| {
        samples.sort_by_key(|sample| sample.took);
        let at = |percent: usize| {
            let place = (samples.len() * percent).div_ceil(100).max(1) - 1;
            samples.get(place).map_or(0.0, |sample| millis(sample.took))
        };
        let worst = samples.last();
        let object = worst.and_then(|sample| sample.object.as_ref());
        let unanswered = samples.iter().filter(|s| matches!(s.answer, Answer::None(_))).count();
        let ok = samples.iter().filter(|s| s.answer == Answer::Ok).count();
        CallStats {
            rpc,
            verbose,
            calls: samples.len(),
            failed: samples.len() - ok - unanswered,
            unanswered,
            p50_ms: at(50),
            p99_ms: at(99),
            worst_ms: at(100),
            worst_pod: object.map(|object| object.pod.clone()).filter(|pod| !pod.is_empty()),
            worst_container: object.and_then(|object| object.container.clone()),
        }
    });
    stats.collect()
}

fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::facts::Object;
    use super::*;

    #[test]
    fn the_worst_call_is_named() {
        let sample = |pod: &str, millis: u64, answer: Answer| Sample {
            rpc: "ContainerStatus",
            verbose: false,
            object: Some(Arc::new(Object {
                pod: pod.to_owned(),
                container: Some("app".to_owned()),
                ..Object::default()
            })),
            took: Duration::from_millis(millis),
            answer,
        };
        let mut samples: Vec<_> = (1..=98).map(|n| sample("a/b", n, Answer::Ok)).collect();
        samples.insert(40, sample("default/web", 2000, Answer::None(Duration::from_secs(2))));
        samples.push(sample("c/d", 99, Answer::NotFound));
        samples.push(Sample {
            rpc: "RuntimeConfig",
            object: None,
            ..sample("", 1, Answer::Unimplemented)
        });
        let expected = CallStats {
            rpc: "ContainerStatus",
            verbose: false,
            calls: 100,
            failed: 1,
            unanswered: 1,
            p50_ms: 50.0,
            p99_ms: 99.0,
            worst_ms: 2000.0,
            worst_pod: Some("default/web".to_owned()),
            worst_container: Some("app".to_owned()),
        };
        assert_eq!(call_stats(&samples), [expected]);
    }
}
