//! What a stock kubelet would do with this runtime. Pure.
//!
//! Its relist is serial: two lists, then for every pod that changed or failed the statuses of its sandboxes and containers one after
//! the other, each for up to two minutes. After three minutes without a complete relist the node is NotReady. No message may be larger
//! than 16 MiB.

use std::time::Duration;

use pleg_cri::duration::seconds;
use serde::Serialize;

use super::facts::{Answer, Facts, KUBELET_LIMIT, List, SLOW, Sample, Silence};
use crate::text::count;

/// Its deadline of one call.
const CALL: Duration = Duration::from_mins(2);

/// The verdict about a kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// It works.
    Ready,
    /// Its relists take so long that changes are seen minutes late.
    Late,
    /// The node is NotReady, or will be.
    NotReady,
}

/// The forecast.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Kubelet {
    pub(super) verdict: Verdict,
    /// As text.
    pub(super) says: String,
    /// Duration of a relist without changes, including calls that hang. `None` if it never completes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) look_seconds: Option<f64>,
    /// Duration of a relist after everything has changed, as after a restart of the kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) relist_all_seconds: Option<f64>,
    /// Status calls that hang now.
    pub(super) hanging_calls: usize,
    /// The number of further hanging calls that make the node NotReady.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) more_hangs_to_not_ready: Option<usize>,
}

impl Kubelet {
    fn not_ready(says: String) -> Self {
        Self {
            verdict: Verdict::NotReady,
            says,
            look_seconds: None,
            relist_all_seconds: None,
            hanging_calls: 0,
            more_hangs_to_not_ready: None,
        }
    }
}

/// The number of further hanging calls that exceed the threshold.
fn more_hangs(relist: Duration) -> usize {
    let Some(room) = pleg::health::THRESHOLD.checked_sub(relist) else {
        return 0;
    };
    usize::try_from(room.as_millis() / CALL.as_millis() + 1).unwrap_or(usize::MAX)
}

/// Forecasts.
pub(super) fn forecast(facts: &Facts) -> Kubelet {
    match no_relist_completes(facts) {
        Some(why) => Kubelet::not_ready(why),
        None => with_relists(facts),
    }
}

/// Why a kubelet completes no relist on this runtime, if it completes none.
fn no_relist_completes(facts: &Facts) -> Option<String> {
    let threshold = seconds(pleg::health::THRESHOLD);
    match &facts.silence {
        Some(Silence::Down(_)) => return Some("NotReady after 30s: container runtime is down.".to_owned()),
        Some(Silence::Stuck(_)) => {
            return Some(format!(
                "NotReady: the runtime does not answer Status, and no relist completes within {threshold}."
            ));
        }
        None => {}
    }
    if let Some(bad) = facts.conditions.iter().find(|condition| !condition.status) {
        return Some(format!("NotReady now: the runtime reports {}=false.", bad.kind));
    }
    let lists = [
        ("ListPodSandbox", &facts.sandboxes),
        ("ListContainers", &facts.containers),
    ];
    lists.into_iter().find_map(|(rpc, list)| match &list.answer {
        Answer::Ok if over_limit(list) => Some(format!(
            "NotReady {threshold} after the list exceeded 16 MiB: every relist fails at {rpc} ({} bytes).",
            list.bytes
        )),
        Answer::Ok => None,
        Answer::None(_) => Some(format!(
            "Every relist waits {} for {rpc} and fails; NotReady {threshold} after the last successful one.",
            seconds(CALL)
        )),
        _ => Some(format!(
            "Every relist fails at {rpc}; NotReady {threshold} after the last successful one."
        )),
    })
}

/// The forecast for a runtime that answers both lists: how long a relist takes, one status call after the other.
fn with_relists(facts: &Facts) -> Kubelet {
    let lists = facts.sandboxes.took + facts.containers.took;
    let statuses = || facts.samples.iter().filter(|sample| sample.is_plain_status());
    // If everything is slow, calls that timed out here would have been answered within the kubelet's deadline.
    let slow = facts.everything_is_slow();
    let hangs = |sample: &&Sample| !slow && matches!(sample.answer, Answer::None(_));
    let hanging = statuses().filter(hangs).count();
    let late = statuses().filter(|sample| sample.took >= SLOW && !hangs(sample));
    let late: Duration = late.map(|sample| sample.took).sum();
    let quick = statuses().filter(|sample| sample.took < SLOW).count();
    let times = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let relist = lists + CALL.saturating_mul(times(hanging));
    let all = relist + late + facts.alone.unwrap_or_default().saturating_mul(times(quick));
    let more = more_hangs(relist);
    let verdict = match () {
        () if more == 0 => Verdict::NotReady,
        () if hanging > 0 => Verdict::Late,
        () => Verdict::Ready,
    };
    let calls = |n: usize| if n == 1 { "call hangs" } else { "calls hang" };
    let says = match verdict {
        Verdict::NotReady => format!(
            "{hanging} {} for {} each, so every relist takes {}: NotReady again and again, because that exceeds {}.",
            calls(hanging),
            seconds(CALL),
            rounded(relist),
            seconds(pleg::health::THRESHOLD)
        ),
        Verdict::Late => format!(
            "Every relist takes {} because {hanging} {}, and changes of all pods are seen that much later; NotReady \
             if {more} more hang{}.",
            rounded(relist),
            calls(hanging),
            if more == 1 { "s" } else { "" }
        ),
        Verdict::Ready => format!(
            "A relist takes {}; one that inspects every pod, as after a restart of the kubelet, takes {}{}; \
             NotReady if {} hang{}.",
            rounded(relist),
            if slow { "more than " } else { "" },
            rounded(all),
            count(more, "container"),
            if more == 1 { "s" } else { "" }
        ),
    };
    Kubelet {
        verdict,
        says,
        look_seconds: Some(millis(relist)),
        relist_all_seconds: Some(millis(all)),
        hanging_calls: hanging,
        more_hangs_to_not_ready: Some(more),
    }
}

/// Whether a kubelet refuses this list: a streamed one comes in pieces.
pub(super) fn over_limit(list: &List) -> bool {
    !list.streamed && list.bytes > KUBELET_LIMIT
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e3).round() / 1e3
}

/// Rounds for reading.
pub(super) fn rounded(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    seconds(Duration::from_millis(match millis {
        0..1000 => millis,
        1000..10_000 => millis / 100 * 100,
        _ => millis / 1000 * 1000,
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::facts::{Condition, Object};
    use super::*;

    fn status(took: Duration, answer: Answer) -> Sample {
        Sample {
            rpc: "ContainerStatus",
            verbose: false,
            object: Some(Arc::new(Object::default())),
            took,
            answer,
        }
    }

    /// 100 statuses of 5 ms, lists of 10 ms, and what is added.
    fn node(hanging: usize, change: impl FnOnce(&mut Facts)) -> Kubelet {
        let ms = Duration::from_millis;
        let mut facts = Facts::default();
        (facts.sandboxes.took, facts.containers.took) = (ms(10), ms(10));
        facts.alone = Some(ms(5));
        facts.samples = vec![status(ms(20), Answer::Ok); 100];
        let hangs = status(Duration::from_secs(2), Answer::None(Duration::from_secs(2)));
        facts.samples.extend(vec![hangs; hanging]);
        change(&mut facts);
        forecast(&facts)
    }

    /// A name, calls that hang, what else is changed, and what has to come: verdict, hangs to NotReady, words.
    type Case = (
        &'static str,
        usize,
        fn(&mut Facts),
        Verdict,
        Option<usize>,
        &'static str,
    );

    const CASES: &[Case] = &[
        (
            "a node that is well",
            0,
            |_| {},
            Verdict::Ready,
            Some(2),
            "A relist takes 20ms; one that inspects every pod, as after a restart of the kubelet, takes 520ms; NotReady \
                 if 2 containers hang.",
        ),
        // kubernetes/kubernetes#94829, and measured: relists of 120 s while health reports ok.
        (
            "one hangs",
            1,
            |_| {},
            Verdict::Late,
            Some(1),
            "NotReady if 1 more hangs",
        ),
        (
            "two hang",
            2,
            |_| {},
            Verdict::NotReady,
            Some(0),
            "every relist takes 4m0s",
        ),
        (
            "slow lists leave less room",
            0,
            |facts| facts.containers.took = Duration::from_secs(70),
            Verdict::Ready,
            Some(1),
            "A relist takes 1m10s",
        ),
        (
            "a late status is counted as it was",
            0,
            |facts| facts.samples.push(status(Duration::from_secs(40), Answer::Ok)),
            Verdict::Ready,
            Some(2),
            "40s",
        ),
        (
            "where everything is slow, nothing hangs",
            0,
            |facts| {
                let late = status(Duration::from_secs(2), Answer::None(Duration::from_secs(2)));
                facts.samples = vec![late; 100];
                facts.samples.push(Sample {
                    object: None,
                    ..status(Duration::from_secs(3), Answer::Ok)
                });
                facts.alone = None;
            },
            Verdict::Ready,
            Some(2),
            "more than 3m20s",
        ),
        (
            "the list hangs",
            0,
            |facts| facts.containers.answer = Answer::None(Duration::from_secs(5)),
            Verdict::NotReady,
            None,
            "Every relist waits 2m0s for ListContainers and fails",
        ),
        (
            "the list is too large",
            0,
            |facts| facts.containers.bytes = KUBELET_LIMIT + 1,
            Verdict::NotReady,
            None,
            "exceeded 16 MiB",
        ),
        (
            "a streamed list may be as large as it likes",
            0,
            |facts| (facts.containers.bytes, facts.containers.streamed) = (KUBELET_LIMIT + 1, true),
            Verdict::Ready,
            Some(2),
            "",
        ),
        (
            "down",
            0,
            |facts| facts.silence = Some(Silence::Down(String::new())),
            Verdict::NotReady,
            None,
            "container runtime is down",
        ),
        (
            "the runtime is not ready",
            0,
            |facts| {
                facts.conditions = vec![Condition {
                    kind: "NetworkReady".to_owned(),
                    ..Condition::default()
                }];
            },
            Verdict::NotReady,
            None,
            "NetworkReady=false",
        ),
    ];

    #[test]
    fn the_table() {
        for (name, hanging, change, verdict, more, says) in CASES.iter().copied() {
            let kubelet = node(hanging, change);
            assert_eq!(kubelet.verdict, verdict, "{name}");
            assert_eq!(kubelet.more_hangs_to_not_ready, more, "{name}");
            assert!(kubelet.says.contains(says), "{name}: {}", kubelet.says);
        }
    }
}
