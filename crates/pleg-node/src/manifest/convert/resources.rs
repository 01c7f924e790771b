//! Requests and limits of a container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::super::problem::At;
use super::super::{Quantity, ResizePolicy, Resources};
use super::Policy;

type List = BTreeMap<String, ApiQuantity>;

/// A quantity; a problem if it is none.
pub(super) fn quantity(quantity: &ApiQuantity, at: &At<'_>) -> Option<Quantity> {
    Quantity::parse(&quantity.0)
        .map_err(|error| at.refuse(error.to_string()))
        .ok()
}

pub(super) fn convert(resources: Option<&core::ResourceRequirements>, at: &At<'_>) -> Resources {
    let Some(core::ResourceRequirements {
        claims,
        limits,
        requests,
    }) = resources
    else {
        return Resources::default();
    };
    at.unsupported("claims", claims.is_some());
    let limits = convert_list(limits.as_ref(), &at.key("limits"));
    let requests = convert_list(requests.as_ref(), &at.key("requests"));
    let pair = |name: &'static str| (requests.get(name).copied(), limits.get(name).copied());
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let (Some(request), Some(limit)) = pair(name)
            && request > limit
        {
            at.key("requests")
                .refuse(format!("requests more {name} than the limit allows"));
        }
    }
    // Without a request, the limit is the request.
    let or_limit = |(request, limit): (Option<Quantity>, Option<Quantity>)| request.or(limit);
    let hugepages = limits.iter().filter_map(|(name, quantity)| {
        let size = name.strip_prefix("hugepages-")?;
        Some((size.to_owned(), *quantity))
    });
    Resources {
        cpu_limit: limits.get("cpu").copied(),
        memory_limit: limits.get("memory").copied(),
        cpu_request: or_limit(pair("cpu")),
        memory_request: or_limit(pair("memory")),
        ephemeral_storage_limit: limits.get("ephemeral-storage").copied(),
        ephemeral_storage_request: or_limit(pair("ephemeral-storage")),
        hugepages: hugepages.collect(),
    }
}

pub(super) fn convert_resize_policy(policies: &[core::ContainerResizePolicy]) -> ResizePolicy {
    let restarts = |resource: &str| {
        let mut policies = policies.iter();
        policies.any(|policy| policy.resource_name == resource && policy.restart_policy == "RestartContainer")
    };
    ResizePolicy {
        cpu_restarts: restarts("cpu"),
        memory_restarts: restarts("memory"),
    }
}

fn convert_list<'a>(list: Option<&'a List>, at: &At<'_>) -> BTreeMap<&'a str, Quantity> {
    let entry = |(name, value): (&'a String, &ApiQuantity)| {
        let at = at.key(name);
        match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => {}
            name if name.starts_with("hugepages-") && at.policy() == Policy::Api => {}
            "hugepages-2Mi" | "hugepages-1Gi" => {
                at.refuse("field is not supported by pleg node; remove it");
            }
            // What a device plugin provides.
            _ => at
                .refuse("unknown resource; pleg node has no device plugins: expected cpu, memory or ephemeral-storage"),
        }
        Some((name.as_str(), quantity(value, &at)?))
    };
    list.into_iter().flatten().filter_map(entry).collect()
}
