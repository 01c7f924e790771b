//! What a status says about the resources of running containers, and whether they are being changed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::StatusInput;
use super::conditions::Value;
use super::model::{ConditionStatus, ResourceList};
use crate::eviction::message::binary;
use crate::manifest::Container;
use crate::reconcile::observed::{ObservedContainer, ObservedPod};
use crate::reconcile::resize::{Resize, SetResources};

/// The resources that a running container has: those of its pod, or the ones before while it is being resized. None if it has no
/// requests and limits.
pub(super) fn of_container(
    from: &StatusInput<'_>,
    container: &Container,
    now: &ObservedContainer<'_>,
) -> Option<core::ResourceRequirements> {
    let ObservedContainer::Running(running) = now else {
        return None;
    };
    let mut resources = desired(from, &container.name)?.clone();
    let history = from.history.container(&container.name);
    if Resize::pending(history, running.attempt, container).is_some()
        && let Some(set) = history.and_then(|history| history.set_resources(running.attempt))
    {
        replace(&mut resources, set);
    }
    Some(resources)
}

/// The requests that a running container is to have.
pub(super) fn allocated(
    from: &StatusInput<'_>,
    container: &Container,
    now: &ObservedContainer<'_>,
) -> Option<ResourceList> {
    let ObservedContainer::Running(_) = now else {
        return None;
    };
    desired(from, &container.name)?.requests.clone()
}

/// The condition while containers are being resized.
pub(super) fn resizing(from: &StatusInput<'_>, observed: &ObservedPod<'_>) -> Option<Value> {
    let mut failures = from.pod.spec.all_containers().filter_map(|container| {
        let ObservedContainer::Running(running) = observed.container(&container.name) else {
            return None;
        };
        let history = from.history.container(&container.name);
        Resize::pending(history, running.attempt, container)?;
        Some(history.and_then(|history| history.resize_failure.as_ref()))
    });
    let first = failures.next()?;
    Some(match first.or_else(|| failures.flatten().next()) {
        Some(failure) => (ConditionStatus::True, Some("Error"), Some(failure.message.clone())),
        None => (ConditionStatus::True, None, None),
    })
}

/// What the pod says, if it says anything.
fn desired<'a>(from: &StatusInput<'a>, name: &str) -> Option<&'a core::ResourceRequirements> {
    let spec = from.pod.object.spec.as_ref()?;
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let container = containers.find(|container| container.name == name)?;
    let resources = container.resources.as_ref()?;
    (resources.limits.is_some() || resources.requests.is_some()).then_some(resources)
}

fn replace(resources: &mut core::ResourceRequirements, set: SetResources) {
    let put = |list: &mut Option<BTreeMap<String, Quantity>>, name: &str, value: Option<String>| {
        let list = list.get_or_insert_default();
        match value {
            Some(value) => _ = list.insert(name.to_owned(), Quantity(value)),
            None => _ = list.remove(name),
        }
    };
    put(&mut resources.limits, "cpu", set.cpu_limit.map(cores));
    put(&mut resources.requests, "cpu", set.cpu_request.map(cores));
    put(&mut resources.limits, "memory", set.memory_limit.map(bytes));
    put(&mut resources.requests, "memory", set.memory_request.map(bytes));
}

/// Thousandths of a core, as Kubernetes writes them.
fn cores(milli: i64) -> String {
    if milli % 1000 == 0 {
        (milli / 1000).to_string()
    } else {
        format!("{milli}m")
    }
}

/// Thousandths of a byte, as Kubernetes writes bytes.
fn bytes(milli: i64) -> String {
    binary((milli / 1000).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_as_kubernetes_does() {
        assert_eq!([cores(500), cores(2000), cores(1250)], ["500m", "2", "1250m"]);
        assert_eq!([bytes(1_000_000), bytes((64 << 20) * 1000)], ["1000", "64Mi"]);
    }

    #[test]
    fn only_cpu_and_memory_are_replaced() {
        let list = |pairs: &[(&str, &str)]| {
            let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), Quantity((*value).to_owned()));
            Some(pairs.iter().map(pair).collect::<BTreeMap<_, _>>())
        };
        let mut resources = core::ResourceRequirements {
            limits: list(&[("cpu", "2"), ("memory", "1Gi"), ("ephemeral-storage", "1Gi")]),
            requests: list(&[("cpu", "2")]),
            claims: None,
        };
        let set = SetResources {
            cpu_request: Some(250),
            cpu_limit: Some(500),
            memory_request: None,
            memory_limit: Some((64 << 20) * 1000),
        };
        replace(&mut resources, set);
        assert_eq!(
            resources.limits,
            list(&[("cpu", "500m"), ("memory", "64Mi"), ("ephemeral-storage", "1Gi")])
        );
        assert_eq!(resources.requests, list(&[("cpu", "250m")]));
    }
}
