//! The restart policy of a container, and its rules.

use k8s_openapi::api::core::v1 as core;

use super::super::problem::At;
use super::super::{ContainerRestart, RestartPolicy, RestartRule, Role};

/// The words of `restartPolicy`, of a pod and of a container.
pub(super) const POLICIES: [(&str, RestartPolicy); 3] = [
    ("Always", RestartPolicy::Always),
    ("OnFailure", RestartPolicy::OnFailure),
    ("Never", RestartPolicy::Never),
];
/// As many as an API server allows.
const MAX_RULES: usize = 20;

/// A container's own restart policy. A sidecar has none: it is always restarted.
pub(super) fn convert(container: &core::Container, role: Role, at: &At<'_>) -> Option<ContainerRestart> {
    let policy = container.restart_policy.as_deref().filter(|policy| !policy.is_empty());
    let rules = container.restart_policy_rules.as_ref();
    if policy.is_none() && rules.is_some_and(|rules| !rules.is_empty()) {
        at.key("restartPolicyRules").refuse("restartPolicy must be set too");
    }
    if rules.is_some_and(|rules| rules.len() > MAX_RULES) {
        let most = format!("at most {MAX_RULES} entries are allowed");
        at.key("restartPolicyRules").refuse(most);
    }
    let rules = at.list("restartPolicyRules", rules, convert_rule);
    let policy = at.key("restartPolicy").one_of(policy?, &POLICIES)?;
    matches!(role, Role::Init | Role::Main).then(|| ContainerRestart {
        policy,
        rules: rules.into_iter().flatten().collect(),
    })
}

fn convert_rule(rule: &core::ContainerRestartRule, at: &At<'_>) -> Option<RestartRule> {
    let core::ContainerRestartRule { action, exit_codes } = rule;
    match action.as_str() {
        "RestartAllContainers" => at
            .key("action")
            .refuse("RestartAllContainers is not supported by pleg node"),
        _ => _ = at.key("action").one_of(action, &[("Restart", ())]),
    }
    let at = at.key("exitCodes");
    let Some(core::ContainerRestartRuleOnExitCodes { operator, values }) = exit_codes else {
        at.refuse("required field is missing");
        return None;
    };
    let codes = values.iter().flatten().copied().collect();
    let is_in = at.key("operator").one_of(operator, &[("In", true), ("NotIn", false)])?;
    Some(if is_in {
        RestartRule::In(codes)
    } else {
        RestartRule::NotIn(codes)
    })
}
