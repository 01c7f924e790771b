//! The environment of a container, and the expansion of `$(NAME)`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::NodeConfig;
use crate::manifest::{Container, EnvValue, Pod, PodField};

/// The variables, in order. Of several with one name only the last one is kept.
pub(super) fn environment(
    node: &NodeConfig,
    pod: &Pod,
    container: &Container,
    ips: &[IpAddr],
) -> Vec<(String, String)> {
    let mut environment: Vec<(String, String)> = Vec::new();
    for var in &container.env {
        let value = match &var.value {
            EnvValue::Text(text) => expand(text, &environment),
            EnvValue::Field(field) => value_of(node, pod, field, ips),
            // Refused in manifests.
            EnvValue::Resource(_) | EnvValue::ConfigMapKey(_) | EnvValue::SecretKey(_) => continue,
        };
        environment.retain(|(name, _)| *name != var.name);
        environment.push((var.name.clone(), value));
    }
    environment
}

fn value_of(node: &NodeConfig, pod: &Pod, field: &PodField, ips: &[IpAddr]) -> String {
    let first = |ips: &[IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    let all = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    match field {
        PodField::Name => pod.id.name.to_string(),
        PodField::Namespace => pod.id.namespace.to_string(),
        PodField::Uid => pod.id.uid.to_string(),
        PodField::Label(key) => pod.labels.get(key).cloned().unwrap_or_default(),
        PodField::Annotation(key) => pod.annotations.get(key).cloned().unwrap_or_default(),
        PodField::Labels => lines(&pod.labels),
        PodField::Annotations => lines(&pod.annotations),
        PodField::NodeName => node.name.to_string(),
        PodField::ServiceAccountName => pod.spec.service_account.clone().unwrap_or_default(),
        PodField::HostIp => first(&node.ips),
        PodField::PodIp => first(ips),
        PodField::HostIps => all(&node.ips),
        PodField::PodIps => all(ips),
    }
}

/// A line for each pair, as a file of the downward API has them.
fn lines(pairs: &BTreeMap<String, String>) -> String {
    let line = |(key, value): (&String, &String)| format!("{key}={value:?}");
    pairs.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Replaces `$(NAME)` by the value of the variable. An unknown one is left as it is, and `$$` becomes `$`.
pub(super) fn expand(text: &str, environment: &[(String, String)]) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|after| after.split_once(')'));
        let Some((name, after)) = name else {
            expanded.push('$');
            continue;
        };
        if let Some((_, value)) = environment.iter().find(|(other, _)| other == name) {
            expanded.push_str(value);
        } else {
            expanded.extend(["$(", name, ")"]);
        }
        rest = after;
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let environment = [("A".to_owned(), "1".to_owned()), ("B_2".to_owned(), "$(A)".to_owned())];
        for (text, wanted) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            // Values are not expanded again.
            ("$(B_2)", "$(A)"),
            ("$(NO)", "$(NO)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$", "$"),
            ("$$", "$"),
            ("a$b", "a$b"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("ä$(A)ö$", "ä1ö$"),
        ] {
            assert_eq!(expand(text, &environment), wanted, "{text}");
        }
    }
}
