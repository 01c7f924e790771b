//! Findings about the status calls: hung shims, stuck and slow calls, calls that fail.

use std::collections::HashSet;
use std::time::Duration;

use pleg::Trouble;
use pleg_cri::duration::seconds;

use super::super::facts::{Answer, SHIM_ANSWERS, SLOW, Sample};
use super::super::finding::{Place, Severity};
use super::super::kubelet::rounded;
use super::Judge;
use crate::text::count;

/// A single status call takes about 1 ms on a healthy runtime.
const SLOW_ALONE: Duration = Duration::from_millis(100);

impl Judge<'_> {
    /// Status calls that are slow, hang or fail.
    pub(super) fn statuses(&mut self) {
        let facts = self.facts;
        let plain: Vec<&Sample> = facts.samples.iter().filter(|sample| sample.is_plain_status()).collect();
        let median = facts.median_status();
        let stuck = self.stuck();
        if facts.everything_is_slow() {
            let evidence = format!(
                "half of {} status calls take {} or more, and so do calls that concern no container",
                plain.len(),
                rounded(median)
            );
            self.find(Severity::Critical, Trouble::RuntimeSlow, evidence, Vec::new());
            return;
        }
        if stuck.len() > plain.len() / 2 && stuck.len() > 2 {
            let evidence = format!(
                "{} of {} status calls are not answered, but Version and the lists are",
                stuck.len(),
                plain.len()
            );
            self.find(Severity::Critical, Trouble::StalledStorage, evidence, stuck);
        } else {
            self.hung_and_stuck(stuck, median);
        }
        if let Some(alone) = facts.alone.filter(|alone| *alone >= SLOW_ALONE) {
            let evidence = format!("a status call takes {} even when it is the only call", rounded(alone));
            self.find(Severity::Warning, Trouble::RuntimeSlow, evidence, Vec::new());
        }
        self.refused(&plain);
    }

    fn hung_and_stuck(&mut self, mut stuck: Vec<Place>, median: Duration) {
        let hung = self.hung_shims();
        if !hung.is_empty() {
            let asked = self.facts.samples.iter().filter(|sample| sample.verbose).count();
            let evidence = format!(
                "verbose PodSandboxStatus, which the runtime forwards to the shim, takes {} or more in {} of \
                 {}",
                seconds(SHIM_ANSWERS),
                hung.len(),
                count(asked, "pod")
            );
            // Calls for these pods hang for that reason.
            let pods: HashSet<&str> = hung.iter().map(|place| place.sandbox.as_str()).collect();
            stuck.retain(|place| !pods.contains(place.sandbox.as_str()));
            self.find(Severity::Critical, Trouble::HungShim, evidence, hung);
        }
        // A lock is already reported with the list that hangs.
        let locked = self
            .findings
            .iter()
            .any(|finding| finding.trouble == Trouble::LockedContainer);
        if !stuck.is_empty() && !locked {
            let evidence = format!(
                "{} {} not answered, but the lists are, and half of all other status calls answer within {}",
                stuck.len(),
                if stuck.len() == 1 {
                    "status call is"
                } else {
                    "status calls are"
                },
                rounded(median)
            );
            self.find(Severity::Critical, Trouble::StuckInspection, evidence, stuck);
        } else if let Some(slow) = self.slow() {
            let evidence = format!(
                "{} {} slow, but half of all status calls answer within {}",
                slow.len(),
                if slow.len() == 1 {
                    "status call is"
                } else {
                    "status calls are"
                },
                rounded(median)
            );
            self.find(Severity::Warning, Trouble::StuckInspection, evidence, slow);
        }
    }

    /// Objects whose status is an error.
    fn refused(&mut self, plain: &[&Sample]) {
        if let Some(why) = plain.iter().find_map(|sample| match &sample.answer {
            Answer::Unreachable(why) => Some(why),
            _ => None,
        }) {
            let evidence = format!("the runtime went away during the examination: {why}");
            self.find(Severity::Critical, Trouble::RuntimeDown, evidence, Vec::new());
        }
        let refused = self.places(|sample| match &sample.answer {
            Answer::NotFound => Some("listed, but not found by its id".to_owned()),
            Answer::Failed(why) => Some(why.clone()),
            Answer::Unimplemented => Some("call not implemented by the runtime".to_owned()),
            _ => None,
        });
        if refused.is_empty() {
            return;
        }
        let evidence = format!("{} of {} status calls failed", refused.len(), plain.len());
        // If most are refused, the runtime needs repair, not each object.
        let most = refused.len() > 2 && refused.len() > plain.len() / 2;
        let first = refused.first().filter(|_| !most).cloned().unwrap_or_default();
        self.find_about(&first, Severity::Critical, Trouble::NotInspectable, evidence, refused);
    }

    /// Status calls that were not answered.
    pub(super) fn stuck(&self) -> Vec<Place> {
        self.places(|sample| match sample.answer {
            Answer::None(after) => Some(format!("{}: no answer within {}", sample.rpc, seconds(after))),
            _ => None,
        })
    }

    /// Status calls that were answered late.
    fn slow(&self) -> Option<Vec<Place>> {
        let slow = self.places(|sample| {
            let late = sample.answer == Answer::Ok && sample.took >= SLOW;
            late.then(|| format!("{}: answered after {}", sample.rpc, rounded(sample.took)))
        });
        (!slow.is_empty()).then_some(slow)
    }

    /// Plain status calls for which `told` returns something.
    fn places(&self, told: impl Fn(&Sample) -> Option<String>) -> Vec<Place> {
        let plain = self.facts.samples.iter().filter(|sample| sample.is_plain_status());
        let told = plain.filter_map(|sample| Some(self.place(sample.object.as_ref()?, told(sample)?)));
        let mut places: Vec<_> = told.collect();
        places.sort_by(|a, b| (&a.pod, &a.container, &a.id).cmp(&(&b.pod, &b.container, &b.id)));
        places
    }

    /// Sandboxes whose shim does not answer; empty if everything is slow.
    pub(super) fn hung_shims(&self) -> Vec<Place> {
        let slow = self.facts.everything_is_slow();
        let is_hung = |sample: &&Sample| sample.verbose && sample.took >= SHIM_ANSWERS && !slow;
        let hung = self.facts.samples.iter().filter(is_hung);
        let told = hung.filter_map(|sample| {
            let detail = match sample.answer {
                Answer::None(after) => format!("no answer within {}", seconds(after)),
                _ => format!("answered after {}", rounded(sample.took)),
            };
            Some(self.place(sample.object.as_ref()?, detail))
        });
        let mut places: Vec<_> = told.collect();
        places.sort_by(|a, b| (&a.pod, &a.sandbox).cmp(&(&b.pod, &b.sandbox)));
        places
    }
}
