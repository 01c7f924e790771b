//! The checks of `/readyz?verbose` that are about the generator: a projection of the report, and of nothing else.
//!
//! Every cause belongs to exactly one check, and a check fails if and only if the report has a cause of it. So the checks cannot
//! contradict what `health` says at the same moment.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Cause, Level, Report, Stage};
use crate::health::diagnosis::Trouble;

/// One check: its name, and why it failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Check {
    /// As `/readyz?verbose` prints it.
    pub name: Cow<'static, str>,
    /// Why it failed; none if it passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The generator has completed a relist within the threshold, and it still runs.
const PLEG: &str = "pleg";

/// The checks by name, apart from [`PLEG`].
const OF_CAUSES: [&str; 7] = [
    "runtime-lists",
    "quarantined-pods",
    "shims",
    "containers",
    "event-stream",
    "kernel-witness",
    "runtime-calls-in-flight",
];

impl Cause {
    /// The check that this cause fails.
    pub(super) fn check(&self) -> &'static str {
        match self.stage {
            Stage::Generator => PLEG,
            Stage::List => "runtime-lists",
            Stage::Inspect if self.attempts == 0 => "runtime-calls-in-flight",
            Stage::Inspect => "quarantined-pods",
            Stage::Probe if self.trouble == Trouble::HungShim => "shims",
            Stage::Probe => "containers",
            Stage::Stream => "event-stream",
            Stage::Witness => "kernel-witness",
        }
    }
}

impl Report {
    /// The generator serves: what `/readyz` answers 200 for, and what the PLEG check of a kubelet passes.
    pub fn passes(&self) -> bool {
        self.level != Level::Unhealthy
    }

    /// The headline and the first cause, without advice.
    pub fn short(&self) -> String {
        let Some(first) = self.causes.first() else {
            return self.headline.clone();
        };
        let more = match self.causes.len() + self.more_causes - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        format!("{}: {first}{more}", self.headline)
    }

    /// Every check of the report, in a fixed order.
    pub fn checks(&self) -> Vec<Check> {
        let pleg = Check {
            name: PLEG.into(),
            failed: (!self.passes()).then(|| self.message.clone()),
        };
        let of_causes = OF_CAUSES.into_iter().map(|name| {
            let causes = self.causes.iter().filter(|cause| cause.check() == name);
            let texts: Vec<_> = causes.map(Cause::full).collect();
            Check {
                name: name.into(),
                failed: (!texts.is_empty()).then(|| texts.join("; ")),
            }
        });
        std::iter::once(pleg).chain(of_causes).collect()
    }
}

/// Shortens the causes to `most`: the first of each check, so that every check that fails says why, then others in their order.
/// Returns how many were left out.
pub(super) fn shorten(causes: &mut Vec<Cause>, most: usize) -> usize {
    let more = causes.len().saturating_sub(most);
    if more == 0 {
        return 0;
    }
    let mut checks: Vec<&'static str> = Vec::new();
    let mut first = Vec::with_capacity(causes.len());
    for cause in causes.iter() {
        let is_first = !checks.contains(&cause.check());
        if is_first {
            checks.push(cause.check());
        }
        first.push(is_first);
    }
    let mut room = most.saturating_sub(checks.len());
    let mut first = first.into_iter();
    causes.retain(|_| {
        let is_first = first.next() == Some(true);
        let fits = is_first || room > 0;
        if fits && !is_first {
            room -= 1;
        }
        fits
    });
    more
}
