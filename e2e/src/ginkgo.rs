//! Reports of ginkgo, which critest and upstream's end-to-end tests are written with, and lists of what is to be expected of their specs.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// How a spec ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `passed`, `failed`, `skipped` and others of ginkgo.
    pub state: String,
    /// Why, if it did not pass.
    pub message: String,
    /// How often it ran.
    pub attempts: u64,
}

impl Outcome {
    /// It passed, at last.
    pub fn has_passed(&self) -> bool {
        self.state == "passed"
    }
}

/// The specs of ginkgo's report, by their full names. Those that were not selected are `skipped`.
pub fn outcomes(report: &Value) -> Result<BTreeMap<String, Outcome>> {
    let specs = report[0]["SpecReports"].as_array().context("a report without specs")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let specs = specs.iter().filter(|spec| spec["LeafNodeType"] == "It").map(|spec| {
        let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let mut words: Vec<String> = containers.map(text).collect();
        words.push(text(&spec["LeafNodeText"]));
        let outcome = Outcome {
            state: text(&spec["State"]),
            message: text(&spec["Failure"]["Message"]),
            attempts: spec["NumAttempts"].as_u64().unwrap_or_default(),
        };
        (words.join(" "), outcome)
    });
    Ok(specs.collect())
}

/// A list of specs, each a line, in groups: each spec and its group. A line such as `[passes]` begins a group, `#` a comment.
pub fn baseline(text: &str) -> Result<BTreeMap<&str, &str>> {
    let mut group = None;
    let mut specs = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The names of specs begin with a word in brackets too, and may end with one.
        let heading = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(name) = heading.filter(|name| !name.contains(']')) {
            group = Some(name);
            continue;
        }
        let group = group.with_context(|| format!("{line:?} is in no group"))?;
        ensure!(specs.insert(line, group).is_none(), "{line:?} is there twice");
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_read_by_group() {
        let text = "# why\n[passes]\n[k8s.io] A b [Conformance]\n\n[no network]\n# why\n[k8s.io] C\n";
        let read = baseline(text).unwrap();
        assert_eq!(read.get("[k8s.io] A b [Conformance]"), Some(&"passes"));
        assert_eq!(read.get("[k8s.io] C"), Some(&"no network"));
        assert!(baseline("[k8s.io] A\n").is_err(), "no group");
        assert!(baseline("[passes]\n[k8s.io] A\n[k8s.io] A\n").is_err(), "twice");
    }

    #[test]
    fn a_report_is_read() {
        let report = serde_json::json!([{"SpecReports": [
            {"LeafNodeType": "BeforeSuite", "State": "passed"},
            {"LeafNodeType": "It", "ContainerHierarchyTexts": ["a", "b"], "LeafNodeText": "c", "State": "failed", "NumAttempts": 2,
             "Failure": {"Message": "why"}},
        ]}]);
        let read = outcomes(&report).unwrap();
        let failed = Outcome {
            state: "failed".to_owned(),
            message: "why".to_owned(),
            attempts: 2,
        };
        assert_eq!(read, BTreeMap::from([("a b c".to_owned(), failed)]));
    }
}
