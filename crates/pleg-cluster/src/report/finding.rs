//! What is stuck on this node, as the generator's health report shows it. Pure.
//!
//! A finding has no age in its words, so that they stay the same as long as their cause does: a trouble is one patch, not one each second.
//! Not every cause of the report is one: a lost event stream makes the generator slower, but nothing on the node is stuck for it.

use std::time::Duration;

use jiff::Timestamp;
use pleg::health::{Cause, Stage};
use pleg::{ContainerId, Level, Pleg, PodRef, Report, Trouble};

/// Bytes of one finding's words.
const MAX_TEXT: usize = 400;

/// Something that is stuck now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What usually lies behind it.
    pub trouble: Trouble,
    /// The pod that it is about; none if it is about the runtime as a whole.
    pub pod: Option<PodRef>,
    /// The call, the container and the pod, in one sentence.
    pub text: String,
    /// For how long.
    pub age: Duration,
}

/// Where findings come from: a generator, or in tests something simpler.
pub trait Findings: Send + Sync {
    /// What is stuck now; none before everything was looked at once.
    fn now(&self) -> Option<Vec<Finding>>;

    /// The pod of this name.
    fn pod(&self, namespace: &str, name: &str) -> Option<PodRef>;
}

impl Findings for Pleg {
    fn now(&self) -> Option<Vec<Finding>> {
        let report = self.health().report_in_full();
        let found = of_report(&report, |cause| {
            let id = cause.who.id.as_deref()?;
            let by_id = self.cache().find_container(&ContainerId::from(id));
            let by_name = || {
                let (namespace, name) = cause.who.pod.as_deref()?.split_once('/')?;
                self.cache().find(namespace, name)
            };
            by_id.or_else(by_name).map(|entry| entry.status.pod.clone())
        });
        (report.relists > 0 || !found.is_empty()).then_some(found)
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<PodRef> {
        let entry = self.cache().find(namespace, name)?;
        Some(entry.status.pod.clone())
    }
}

/// The findings of a report. `pod_of`: the pod of a cause that does not know its UID.
pub fn of_report(report: &Report, pod_of: impl Fn(&Cause) -> Option<PodRef>) -> Vec<Finding> {
    let is_stuck = |cause: &&Cause| !matches!(cause.stage, Stage::Generator | Stage::Stream);
    let of_cause = |cause: &Cause| {
        let about = cause.who.about.as_ref().map(|(pod, _)| pod.clone());
        let named = cause.who.pod.is_some();
        Finding {
            trouble: cause.trouble,
            pod: about
                .or_else(|| named.then(|| pod_of(cause)).flatten())
                .filter(has_valid_names),
            text: shortened(&sentence(cause)),
            age: Duration::from_secs(cause.age_seconds),
        }
    };
    let mut found: Vec<Finding> = report.causes.iter().filter(is_stuck).map(of_cause).collect();
    let is_late = report.level == Level::Unhealthy && report.last_seen_seconds.is_some();
    if found.is_empty()
        && is_late
        && !report.causes.iter().any(|cause| cause.stage == Stage::Generator)
        && let Some(why) = report.why_unhealthy()
    {
        found.push(Finding {
            trouble: Trouble::RuntimeStuck,
            pod: None,
            text: shortened(&why),
            age: Duration::from_secs(report.threshold_seconds),
        });
    }
    found
}

/// What is seen, without ages.
fn sentence(cause: &Cause) -> String {
    let (who, rpc) = (&cause.who, &cause.rpc);
    let process = who.shim.map(|shim| format!("process {} is {}", shim.pid, shim.word()));
    match (cause.trouble, &who.pod) {
        (Trouble::HungShim, Some(pod)) => {
            let process = process.map(|process| format!("; its {process}")).unwrap_or_default();
            format!("the shim of pod {pod} hangs: {rpc} through it is not answered{process}")
        }
        (Trouble::MissedExit, Some(_)) => {
            let process = process
                .map(|process| format!("; the parent {process}"))
                .unwrap_or_default();
            format!("the process of {who} has exited, but {rpc} reports it as running{process}")
        }
        (Trouble::LeftoverProcess, Some(_)) => {
            format!("{rpc} reports {who} as exited, but its process is alive")
        }
        (Trouble::LockedContainer, Some(_)) => format!("{rpc} is not answered; {who} does not answer by its id either"),
        (Trouble::StuckInspection, Some(_)) => format!("{rpc} of {who} is not answered"),
        (Trouble::StalledStorage, _) => format!("{rpc} is not answered for most containers"),
        // The words of the runtime.
        (_, pod) => match (&cause.last_error, pod) {
            (Some(error), _) => error.to_string(),
            (None, Some(_)) => format!("{rpc} of {who} is not answered"),
            (None, None) => format!("{rpc} is not answered"),
        },
    }
}

/// Whether the names can be those of a pod of the API: they become parts of a path there, and the runtime may say anything.
fn has_valid_names(pod: &PodRef) -> bool {
    let is_name = |name: &str, longest: usize, dots: bool| {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || (dots && c == '.');
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        name.len() <= longest
            && name.chars().all(good)
            && edge(name.chars().next())
            && edge(name.chars().next_back())
            && !name.contains("..")
    };
    is_name(&pod.namespace, 63, false) && is_name(&pod.name, 253, true) && !pod.uid.as_str().is_empty()
}

/// Cut between characters, without control characters.
fn shortened(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut short = String::new();
    for c in text.chars().map(clean) {
        if short.len() + c.len_utf8() > MAX_TEXT {
            short.push('…');
            break;
        }
        short.push(c);
    }
    short
}

/// When it began, as far as `age` tells.
pub(super) fn since(now: Timestamp, age: Duration) -> Timestamp {
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(now.as_second().saturating_sub(seconds)).unwrap_or(now)
}

/// The reason word of a trouble: `hung-shim` is `HungShim`.
pub(super) fn reason(trouble: Trouble) -> String {
    let capitalised = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    trouble.name().split('-').map(capitalised).collect()
}

#[cfg(test)]
mod tests;
