//! What of upstream's tests has to pass, and what a run says about it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;

use crate::ginkgo::{self, Outcome};

/// What is to be expected of each spec, and why.
const BASELINE: &str = include_str!("../../upstream/baseline");
/// The group of specs that have to pass. The name of any other group says why its specs do not.
const PASSES: &str = "passes";

/// What a run found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Specs that have to pass and did not, and why.
    pub broken: Vec<(String, String)>,
    /// Specs that have to pass and did not run.
    pub missing: Vec<String>,
    /// Specs that passed, though nobody expected it.
    pub gained: Vec<String>,
    /// Specs that failed, as expected, and the reason of their group.
    pub expected: Vec<(String, String)>,
    /// Specs that passed at the second attempt.
    pub flaky: Vec<String>,
    /// Specs that are in no group and failed.
    pub unknown: Vec<(String, String)>,
    /// How many passed.
    pub passed: usize,
}

/// Compares a run with the baseline. Only a whole run misses specs.
pub fn compare(outcomes: &BTreeMap<String, Outcome>, whole: bool) -> Result<Comparison> {
    Ok(with(&ginkgo::baseline(BASELINE)?, outcomes, whole))
}

fn with(baseline: &BTreeMap<&str, &str>, outcomes: &BTreeMap<String, Outcome>, whole: bool) -> Comparison {
    let mut found = Comparison::default();
    for (spec, outcome) in outcomes {
        let group = baseline.get(spec.as_str()).copied();
        let why = || first_line(&outcome.message, &outcome.state);
        if outcome.has_passed() {
            found.passed += 1;
            if outcome.attempts > 1 {
                found.flaky.push(spec.clone());
            }
            if group != Some(PASSES) {
                found.gained.push(spec.clone());
            }
            continue;
        }
        match group {
            Some(PASSES) => found.broken.push((spec.clone(), why())),
            Some(reason) => found.expected.push((spec.clone(), reason.to_owned())),
            None => found.unknown.push((spec.clone(), why())),
        }
    }
    let required = baseline
        .iter()
        .filter(|(_, group)| **group == PASSES)
        .map(|(spec, _)| *spec);
    let missing = required.filter(|spec| whole && !outcomes.contains_key(*spec));
    found.missing = missing.map(str::to_owned).collect();
    found
}

impl Comparison {
    /// Everything that has to pass did.
    pub fn is_good(&self) -> bool {
        self.broken.is_empty() && self.missing.is_empty()
    }

    /// For people.
    pub fn report(&self) -> String {
        let mut text = String::new();
        let mut part = |heading: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                let _ = writeln!(text, "{heading} ({}):", lines.len());
                for line in &lines {
                    let _ = writeln!(text, "  {line}");
                }
            }
        };
        let pairs =
            |pairs: &[(String, String)]| pairs.iter().map(|(spec, why)| format!("{spec}\n      {why}")).collect();
        part("failed as expected", pairs(&self.expected));
        part("passed at the second attempt", self.flaky.clone());
        part(
            "passed, and are not in the baseline: add them to [passes]",
            self.gained.clone(),
        );
        part("failed, and are in no group of the baseline", pairs(&self.unknown));
        part("FAILED, and are in [passes]", pairs(&self.broken));
        part("DID NOT RUN, and are in [passes]", self.missing.clone());
        let failed = self.expected.len() + self.unknown.len() + self.broken.len();
        let _ = writeln!(text, "{} passed, {failed} did not", self.passed);
        text
    }
}

fn first_line(message: &str, state: &str) -> String {
    let line = message
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or(state);
    line.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(state: &str, attempts: u64) -> Outcome {
        Outcome {
            state: state.to_owned(),
            message: "\n  because\nmore".to_owned(),
            attempts,
        }
    }

    #[test]
    fn a_run_is_compared_with_the_baseline() {
        let text = "[passes]\n[sig-node] a\n[sig-node] b\n[sig-node] c\n[no registry]\n[sig-node] d\n[sig-node] e\n";
        let baseline = ginkgo::baseline(text).unwrap();
        let outcomes = BTreeMap::from([
            ("[sig-node] a".to_owned(), outcome("passed", 2)),
            ("[sig-node] b".to_owned(), outcome("failed", 2)),
            ("[sig-node] d".to_owned(), outcome("failed", 1)),
            ("[sig-node] e".to_owned(), outcome("passed", 1)),
            ("[sig-node] f".to_owned(), outcome("passed", 1)),
            ("[sig-node] g".to_owned(), outcome("timedout", 1)),
        ]);
        let found = with(&baseline, &outcomes, true);
        let pair = |spec: &str, why: &str| vec![(spec.to_owned(), why.to_owned())];
        assert_eq!(
            found,
            Comparison {
                broken: pair("[sig-node] b", "because"),
                missing: vec!["[sig-node] c".to_owned()],
                gained: vec!["[sig-node] e".to_owned(), "[sig-node] f".to_owned()],
                expected: pair("[sig-node] d", "no registry"),
                flaky: vec!["[sig-node] a".to_owned()],
                unknown: pair("[sig-node] g", "because"),
                passed: 3,
            }
        );
        assert!(!found.is_good());
        assert!(found.report().ends_with("3 passed, 3 did not\n"), "{}", found.report());
        assert!(with(&baseline, &outcomes, false).missing.is_empty());
    }

    #[test]
    fn the_committed_baseline_is_well_formed() {
        let specs = ginkgo::baseline(BASELINE).unwrap();
        assert!(specs.keys().all(|spec| spec.starts_with("[sig-node]")), "{specs:?}");
    }
}
