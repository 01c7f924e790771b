//! What the operator says about the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Taint;

use super::machine::Machine;
use super::resources::Resources;

/// When a Node object is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Register {
    /// Whenever there is none, also after it was deleted.
    #[default]
    Always,
    /// At the start; once it is deleted, the node stays away until `pleg node` is restarted.
    Once,
    /// By somebody else.
    Never,
}

/// What the operator says about the node, and what was read of the machine at the start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeSettings {
    /// When a Node object is created.
    pub register: Register,
    /// Labels at registration, in addition to those of every node.
    pub labels: BTreeMap<String, String>,
    /// Taints at registration.
    pub taints: Vec<Taint>,
    /// Addresses given by the operator; none: that of outgoing connections.
    pub ips: Vec<IpAddr>,
    /// What the machine has.
    pub capacity: Resources,
    /// What pods do not get of it.
    pub reserved: Resources,
    /// The port of the node's own server; none if it has none.
    pub port: Option<u16>,
    /// What identifies the machine.
    pub machine: Machine,
    /// `containerd://2.1.4`
    pub runtime_version: String,
}

/// Why a label, or a taint, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not a label.
    #[error("{0:?} is not a label; expected KEY=VALUE of letters, digits, '-', '_' and '.', such as disk=ssd")]
    Label(String),
    /// A label that nodes may not set.
    #[error("{0:?}: a node may not set this label of Kubernetes itself; set it with `kubectl label node`")]
    Restricted(String),
    /// Not a taint.
    #[error(
        "{0:?} is not a taint; expected KEY=VALUE:EFFECT or KEY:EFFECT, where EFFECT is NoSchedule, PreferNoSchedule or NoExecute"
    )]
    Taint(String),
}

/// Parses `KEY=VALUE`. Labels of Kubernetes' own domains are refused unless a node may set them: the API server would refuse the whole node.
pub fn parse_label(text: &str) -> Result<(String, String), SettingError> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    if !is_key(key) || !is_value(value) {
        return Err(SettingError::Label(text.to_owned()));
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_own = |of: &str| domain == of || domain.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'));
    let allowed = ALLOWED.contains(&key) || ALLOWED_DOMAINS.iter().any(|of| is_own(of));
    if (is_own("kubernetes.io") || is_own("k8s.io")) && !allowed {
        return Err(SettingError::Restricted(key.to_owned()));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Labels of Kubernetes that a node may set on itself.
const ALLOWED: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
/// Domains of such labels, with all below them.
const ALLOWED_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Parses `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
pub fn parse_taint(text: &str) -> Result<Taint, SettingError> {
    let bad = || SettingError::Taint(text.to_owned());
    let (name, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    let (key, value) = name
        .split_once('=')
        .map_or((name, None), |(key, value)| (key, Some(value)));
    let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
    if !known || !is_key(key) || !value.is_none_or(is_value) {
        return Err(bad());
    }
    Ok(Taint {
        effect: effect.to_owned(),
        key: key.to_owned(),
        value: value.filter(|value| !value.is_empty()).map(str::to_owned),
        time_added: None,
    })
}

fn is_key(key: &str) -> bool {
    let (domain, name) = key
        .split_once('/')
        .map_or((None, key), |(domain, name)| (Some(domain), name));
    let is_domain = |domain: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let part = |part: &str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
        domain.len() <= 253 && domain.chars().all(plain) && domain.split('.').all(part)
    };
    !name.is_empty() && is_value(name) && domain.is_none_or(is_domain)
}

fn is_value(value: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63 && value.chars().all(plain) && edge(value.chars().next()) && edge(value.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_a_node_may_set() {
        for (text, ok) in [
            ("disk=ssd", true),
            ("disk=", true),
            ("disk", true),
            ("example.com/rack=r-1", true),
            ("node.kubernetes.io/pool=a", true),
            ("x.node.kubernetes.io/pool=a", true),
            ("topology.kubernetes.io/zone=z", true),
            ("node-restriction.kubernetes.io/x=y", false),
            ("node-role.kubernetes.io/worker=", false),
            ("foo.k8s.io/x=y", false),
            ("notkubernetes.io/x=y", true),
            ("=x", false),
            ("a b=c", false),
            ("a=b c", false),
            ("-a=b", false),
            ("Example.com/a=b", false),
            ("a=-", false),
        ] {
            assert_eq!(parse_label(text).is_ok(), ok, "{text}: {:?}", parse_label(text));
        }
        assert_eq!(parse_label("disk=ssd"), Ok(("disk".to_owned(), "ssd".to_owned())));
    }

    #[test]
    fn taints_have_an_effect() {
        let taint = parse_taint("dedicated=gpu:NoSchedule").unwrap();
        assert_eq!(
            (taint.key.as_str(), taint.value.as_deref(), taint.effect.as_str()),
            ("dedicated", Some("gpu"), "NoSchedule")
        );
        assert_eq!(parse_taint("a:NoExecute").unwrap().value, None);
        for text in ["a", "a=b", "a:Never", ":NoSchedule", "a=b c:NoSchedule"] {
            assert!(
                parse_taint(text).unwrap_err().to_string().contains("KEY=VALUE:EFFECT"),
                "{text}"
            );
        }
    }
}
