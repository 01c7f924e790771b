//! Whether this node may run a pod, as far as the Node object says: its labels and its taints. Pure.
//!
//! The scheduler has checked the same, but labels may have changed since, and pods can be bound without it. What else decides (resources,
//! ports, pressure) is in `pleg-node`. Pods that the node accepted before are not checked again.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use pleg_node::reconcile::history::PodFailure;

/// Checks a pod against its node.
pub(crate) fn check(pod: &core::Pod, node: &core::Node) -> Result<(), PodFailure> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    if !matches_selector(spec, node) {
        return Err(rejected(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ));
    }
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let mut taints = taints.iter().filter(|taint| taint.effect == "NoExecute");
    if taints.any(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint))) {
        return Err(rejected(
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ));
    }
    Ok(())
}

/// A pod for another operating system.
pub(crate) fn check_os(pod: &core::Pod) -> Result<(), PodFailure> {
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    if os.is_some_and(|os| os.name != "linux") {
        return Err(rejected(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    Ok(())
}

fn rejected(reason: &str, why: &str) -> PodFailure {
    PodFailure {
        reason: reason.to_owned(),
        message: format!("Pod was rejected: {why}"),
    }
}

/// `nodeSelector`, and the required terms of `nodeAffinity`: one of them has to match.
fn matches_selector(spec: &core::PodSpec, node: &core::Node) -> bool {
    let no_labels = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
    let selector = spec.node_selector.iter().flatten();
    let selects = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    selector.into_iter().all(selects)
        && required.is_none_or(|required| {
            let mut terms = required.node_selector_terms.iter();
            terms.any(|term| matches_term(term, labels, name))
        })
}

/// All requirements of a term have to match. A term without any matches nothing.
fn matches_term(term: &core::NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|one| matches_requirement(one, labels.get(&one.key).map(String::as_str)))
        && fields.iter().all(|one| matches_requirement(one, field(&one.key)))
}

fn matches_requirement(requirement: &core::NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_one = value.is_some_and(|value| values.iter().any(|other| other == value));
    let compare = || {
        let value: i64 = value?.parse().ok()?;
        let other: i64 = values.first()?.parse().ok()?;
        Some(value.cmp(&other))
    };
    match requirement.operator.as_str() {
        "In" => is_one,
        "NotIn" => !is_one,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compare().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

/// Whether a toleration is about this taint. An empty key or effect is about all of them.
fn tolerates(toleration: &core::Toleration, taint: &core::Taint) -> bool {
    let is_any = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let same_effect = is_any(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect);
    let same_key = is_any(&toleration.key) || toleration.key.as_deref() == Some(&taint.key);
    let value = toleration.value.as_deref().unwrap_or_default();
    let tainted = taint.value.as_deref().unwrap_or_default();
    let compare = || Some(tainted.parse::<i64>().ok()?.cmp(&value.parse::<i64>().ok()?));
    let same_value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => value == tainted,
        Some("Gt") => compare().is_some_and(std::cmp::Ordering::is_gt),
        Some("Lt") => compare().is_some_and(std::cmp::Ordering::is_lt),
        Some(_) => false,
    };
    same_effect && same_key && same_value
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reason(spec: &Value) -> Option<String> {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let node = json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd", "cpus": "8"}},
            "spec": {"taints": [
                {"key": "soft", "effect": "NoSchedule"},
                {"key": "out", "value": "of-service", "effect": "NoExecute"},
            ]},
        });
        let failure = check(&pod, &serde_json::from_value(node).unwrap()).err()?;
        assert!(failure.message.starts_with("Pod was rejected: "));
        Some(failure.reason)
    }

    #[test]
    fn labels_decide() {
        let tolerations = json!([{"operator": "Exists"}]);
        let term = |key: &str, operator: &str, values: &[&str]| {
            let expression = json!({"key": key, "operator": operator, "values": values});
            json!({"matchExpressions": [expression]})
        };
        let required = |terms: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        let field =
            |name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        for (selector, affinity, fits) in [
            (json!({}), json!({}), true),
            (json!({"disk": "ssd"}), json!({}), true),
            (json!({"disk": "hdd"}), json!({}), false),
            (json!({"zone": "a"}), json!({}), false),
            (json!({}), required(json!([term("disk", "In", &["hdd", "ssd"])])), true),
            (json!({}), required(json!([term("disk", "NotIn", &["ssd"])])), false),
            (json!({}), required(json!([term("zone", "NotIn", &["a"])])), true),
            (json!({}), required(json!([term("disk", "Exists", &[])])), true),
            (json!({}), required(json!([term("disk", "DoesNotExist", &[])])), false),
            (json!({}), required(json!([term("cpus", "Gt", &["4"])])), true),
            (json!({}), required(json!([term("cpus", "Lt", &["4"])])), false),
            (json!({}), required(json!([term("disk", "Gt", &["4"])])), false),
            // One term is enough, and an empty one matches nothing.
            (
                json!({}),
                required(json!([term("zone", "Exists", &[]), term("disk", "Exists", &[])])),
                true,
            ),
            (json!({}), required(json!([{}])), false),
            (json!({}), required(field("n")), true),
            (json!({}), required(field("m")), false),
            (json!({"disk": "hdd"}), required(field("n")), false),
        ] {
            let spec = json!({"nodeSelector": selector, "affinity": affinity, "tolerations": tolerations});
            assert_eq!(reason(&spec).is_none(), fits, "{spec}");
        }
    }

    #[test]
    fn taints_decide_unless_they_are_tolerated() {
        for (tolerations, fits) in [
            (json!([]), false),
            (json!([{"operator": "Exists"}]), true),
            (
                json!([{"key": "out", "operator": "Exists", "effect": "NoExecute"}]),
                true,
            ),
            (
                json!([{"key": "out", "operator": "Exists", "effect": "NoSchedule"}]),
                false,
            ),
            (json!([{"key": "out", "value": "of-service"}]), true),
            (json!([{"key": "out", "operator": "Equal", "value": "other"}]), false),
            (json!([{"key": "other", "operator": "Exists"}]), false),
        ] {
            let spec = json!({"tolerations": tolerations});
            let expected = (!fits).then(|| "TaintToleration".to_owned());
            assert_eq!(reason(&spec), expected, "{spec}");
        }
    }
}
