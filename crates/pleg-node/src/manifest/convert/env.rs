//! The environment of a container, and references to fields of the pod.

use k8s_openapi::api::core::v1 as core;

use super::super::problem::At;
use super::super::{
    ContainerResource, EnvFrom, EnvValue, EnvVar, KeyRef, ObjectKind, ObjectRef, PodField, Quantity, ResourceField,
    names,
};
use super::resources;

/// What a reference is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A variable.
    Variable,
    /// A file of a volume.
    File,
}

pub(super) fn variable(var: &core::EnvVar, at: &At<'_>) -> EnvVar {
    let core::EnvVar {
        name,
        value,
        value_from,
    } = var;
    at.key("name").require(name, names::variable);
    if value.as_ref().is_some_and(|value| !value.is_empty()) && value_from.is_some() {
        at.refuse("value and valueFrom must not both be set");
    }
    let reference = value_from
        .as_ref()
        .and_then(|from| value_source(from, &at.key("valueFrom")));
    EnvVar {
        name: name.clone(),
        value: reference.unwrap_or_else(|| EnvValue::Text(value.clone().unwrap_or_default())),
    }
}

fn value_source(source: &core::EnvVarSource, at: &At<'_>) -> Option<EnvValue> {
    let core::EnvVarSource {
        config_map_key_ref,
        field_ref,
        file_key_ref,
        resource_field_ref,
        secret_key_ref,
    } = source;
    at.unsupported("fileKeyRef", file_key_ref.is_some());
    at.needs_api("configMapKeyRef", config_map_key_ref.is_some());
    at.needs_api("secretKeyRef", secret_key_ref.is_some());
    let key_ref = |name: &str, key: &str, optional: Option<bool>, at: &At<'_>| {
        at.key("name").require(name, names::subdomain);
        at.key("key").require(key, names::data_key);
        KeyRef {
            name: name.to_owned(),
            key: key.to_owned(),
            optional: optional.unwrap_or_default(),
        }
    };
    let mut values = Vec::new();
    if let Some(core::ConfigMapKeySelector { key, name, optional }) = config_map_key_ref {
        let key = key_ref(name, key, *optional, &at.key("configMapKeyRef"));
        values.push(Some(EnvValue::ConfigMapKey(key)));
    }
    if let Some(core::SecretKeySelector { key, name, optional }) = secret_key_ref {
        let key = key_ref(name, key, *optional, &at.key("secretKeyRef"));
        values.push(Some(EnvValue::SecretKey(key)));
    }
    if let Some(field) = field_ref {
        let field = field_reference(field, Use::Variable, &at.key("fieldRef"));
        values.push(field.map(EnvValue::Field));
    }
    if let Some(resource) = resource_field_ref {
        let resource = resource_reference(resource, Use::Variable, &at.key("resourceFieldRef"));
        values.push(resource.map(EnvValue::Resource));
    }
    if values.len() != 1 && file_key_ref.is_none() {
        at.refuse("exactly one of fieldRef, resourceFieldRef, configMapKeyRef and secretKeyRef must be set");
    }
    values.pop()?
}

pub(super) fn from(source: &core::EnvFromSource, at: &At<'_>) -> EnvFrom {
    let core::EnvFromSource {
        config_map_ref,
        prefix,
        secret_ref,
    } = source;
    at.needs_api("configMapRef", config_map_ref.is_some());
    at.needs_api("secretRef", secret_ref.is_some());
    let (kind, name, optional, key) = match (config_map_ref, secret_ref) {
        (Some(core::ConfigMapEnvSource { name, optional }), None) => {
            (ObjectKind::ConfigMap, name.as_str(), *optional, "configMapRef")
        }
        (None, Some(core::SecretEnvSource { name, optional })) => {
            (ObjectKind::Secret, name.as_str(), *optional, "secretRef")
        }
        _ => {
            at.refuse("exactly one of configMapRef and secretRef must be set");
            (ObjectKind::ConfigMap, "", None, "configMapRef")
        }
    };
    at.key(key).key("name").require(name, names::subdomain);
    let prefix = prefix.clone().unwrap_or_default();
    if !prefix.is_empty() {
        at.key("prefix").check(&prefix, names::variable);
    }
    EnvFrom {
        prefix,
        source: ObjectRef {
            kind,
            name: name.to_owned(),
            optional: optional.unwrap_or_default(),
        },
    }
}

/// A reference to a field of the pod.
pub(super) fn field_reference(selector: &core::ObjectFieldSelector, usage: Use, at: &At<'_>) -> Option<PodField> {
    let core::ObjectFieldSelector {
        api_version,
        field_path,
    } = selector;
    let version = api_version.as_deref().filter(|version| !version.is_empty());
    at.only("apiVersion", version.as_ref(), &"v1", "expected v1");
    let at = at.key("fieldPath");
    let keyed = |prefix: &str| {
        let key = field_path.strip_prefix(prefix)?.strip_suffix("']")?;
        at.check(key, names::qualified);
        Some(key.to_owned())
    };
    let found = match (field_path.as_str(), usage) {
        ("", _) => {
            at.refuse("required field is missing");
            return None;
        }
        ("metadata.name", _) => Some(PodField::Name),
        ("metadata.namespace", _) => Some(PodField::Namespace),
        ("metadata.uid", _) => Some(PodField::Uid),
        ("metadata.labels", Use::File) => Some(PodField::Labels),
        ("metadata.annotations", Use::File) => Some(PodField::Annotations),
        ("spec.nodeName", Use::Variable) => Some(PodField::NodeName),
        ("spec.serviceAccountName", Use::Variable) => Some(PodField::ServiceAccountName),
        ("status.hostIP", Use::Variable) => Some(PodField::HostIp),
        ("status.hostIPs", Use::Variable) => Some(PodField::HostIps),
        ("status.podIP", Use::Variable) => Some(PodField::PodIp),
        ("status.podIPs", Use::Variable) => Some(PodField::PodIps),
        _ => keyed("metadata.labels['")
            .map(PodField::Label)
            .or_else(|| keyed("metadata.annotations['").map(PodField::Annotation)),
    };
    if found.is_none() {
        let expected = match usage {
            Use::Variable => {
                "metadata.name, .namespace, .uid, .labels['…'] or .annotations['…'], spec.nodeName or .serviceAccountName, \
                 status.hostIP, .hostIPs, .podIP or .podIPs"
            }
            Use::File => "metadata.name, .namespace, .uid, .labels, .annotations, .labels['…'] or .annotations['…']",
        };
        let path = names::quoted(field_path);
        at.refuse(format!("{path} is not supported; expected {expected}"));
    }
    found
}

/// A reference to a request or limit of a container.
pub(super) fn resource_reference(
    selector: &core::ResourceFieldSelector,
    usage: Use,
    at: &At<'_>,
) -> Option<ResourceField> {
    let core::ResourceFieldSelector {
        container_name,
        divisor,
        resource,
    } = selector;
    let container = container_name.clone().filter(|name| !name.is_empty());
    if container.is_none() && usage == Use::File {
        at.key("containerName").refuse("required field is missing");
    }
    let divisor = divisor
        .as_ref()
        .and_then(|divisor| resources::quantity(divisor, &at.key("divisor")));
    let at = at.key("resource");
    let found = match resource.as_str() {
        "" => {
            at.refuse("required field is missing");
            return None;
        }
        "limits.cpu" => ContainerResource::CpuLimit,
        "requests.cpu" => ContainerResource::CpuRequest,
        "limits.memory" => ContainerResource::MemoryLimit,
        "requests.memory" => ContainerResource::MemoryRequest,
        "limits.ephemeral-storage" => ContainerResource::EphemeralStorageLimit,
        "requests.ephemeral-storage" => ContainerResource::EphemeralStorageRequest,
        other => {
            let pages = other
                .strip_prefix("limits.hugepages-")
                .or_else(|| other.strip_prefix("requests.hugepages-"));
            let Some(size) = pages else {
                let resource = names::quoted(other);
                at.refuse(format!(
                    "{resource} is not supported; expected limits. or requests. with cpu, memory or ephemeral-storage"
                ));
                return None;
            };
            ContainerResource::HugePages(size.to_owned())
        }
    };
    Some(ResourceField {
        container,
        resource: found,
        divisor: divisor.filter(|divisor| divisor.milli() > 0).unwrap_or(Quantity::ONE),
    })
}
