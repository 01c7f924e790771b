//! Whether an exited container is restarted: by the policy of its pod, or by its own policy and rules.

use std::collections::BTreeSet;

use super::container::{Container, Role};
use super::spec::Spec;

/// Which exited containers are restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartPolicy {
    /// All.
    #[default]
    Always,
    /// Those with an exit code other than 0.
    OnFailure,
    /// None.
    Never,
}

impl RestartPolicy {
    /// Whether a container that exited with this code is restarted.
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// `restartPolicy` and `restartPolicyRules` of a container, which replace the policy of its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRestart {
    /// The policy, if no rule matches.
    pub policy: RestartPolicy,
    /// When it is restarted whatever the policy says.
    pub rules: Vec<RestartRule>,
}

/// A rule by which a container is restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartRule {
    /// Its exit code is one of these: `In`.
    In(BTreeSet<i32>),
    /// Its exit code is none of these: `NotIn`.
    NotIn(BTreeSet<i32>),
}

impl RestartRule {
    fn matches(&self, exit_code: i32) -> bool {
        match self {
            Self::In(codes) => codes.contains(&exit_code),
            Self::NotIn(codes) => !codes.contains(&exit_code),
        }
    }
}

impl Spec {
    /// The policy of a container, apart from its rules: its own, or that of its pod.
    pub fn restart_policy_of(&self, container: &Container) -> RestartPolicy {
        match (container.role, &container.restart) {
            (Role::Ephemeral, _) => RestartPolicy::Never,
            (Role::Sidecar, _) => RestartPolicy::Always,
            (_, Some(own)) => own.policy,
            (_, None) => self.restart_policy,
        }
    }

    /// Whether a container that exited with this code is restarted.
    pub fn restarts(&self, container: &Container, exit_code: i32) -> bool {
        let mut rules = rules_of(container).iter();
        rules.any(|rule| rule.matches(exit_code)) || self.restart_policy_of(container).restarts(exit_code)
    }

    /// Whether no exit of a container leads to a restart.
    pub fn never_restarts(&self, container: &Container) -> bool {
        self.restart_policy_of(container) == RestartPolicy::Never && rules_of(container).is_empty()
    }
}

fn rules_of(container: &Container) -> &[RestartRule] {
    container.restart.as_ref().map_or(&[], |own| &own.rules)
}

#[cfg(test)]
mod tests {
    use crate::testing::pod;

    /// The policy of the pod, what the container says, and whether exit codes 0, 1 and 42 lead to a restart.
    #[test]
    fn a_container_may_have_a_policy_and_rules_of_its_own() {
        let rules = |policy: &str, operator: &str| {
            format!(
                "restartPolicy: {policy}, restartPolicyRules: \
                 [{{action: Restart, exitCodes: {{operator: {operator}, values: [1, 42]}}}}]"
            )
        };
        for (of_pod, own, expected) in [
            ("Never", "tty: false".to_owned(), [false, false, false]),
            ("OnFailure", "tty: false".to_owned(), [false, true, true]),
            ("Always", "tty: false".to_owned(), [true, true, true]),
            ("Never", "restartPolicy: Always".to_owned(), [true, true, true]),
            ("Never", "restartPolicy: OnFailure".to_owned(), [false, true, true]),
            ("Always", "restartPolicy: Never".to_owned(), [false, false, false]),
            ("Never", rules("Never", "In"), [false, true, true]),
            ("Always", rules("Never", "NotIn"), [true, false, false]),
            ("Never", rules("OnFailure", "NotIn"), [true, true, true]),
        ] {
            let spec = format!("restartPolicy: {of_pod}, containers: [{{name: app, image: img, {own}}}]");
            let pod = pod(&spec);
            let container = &pod.spec.containers[0];
            let restarts = [0, 1, 42].map(|code| pod.spec.restarts(container, code));
            assert_eq!(restarts, expected, "{spec}");
            assert_eq!(pod.spec.never_restarts(container), restarts == [false; 3], "{spec}");
        }
    }
}
