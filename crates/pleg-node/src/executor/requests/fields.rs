//! Fields of a pod, and requests and limits of its containers, as text: for the environment and for files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use super::NodeConfig;
use crate::manifest::{Container, ContainerResource, Pod, PodField, Quantity, ResourceField};

/// The value of a field. `ips` are those of the pod.
pub(crate) fn field(node: &NodeConfig, pod: &Pod, field: &PodField, ips: &[IpAddr]) -> String {
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
    let line = |(key, value): (&String, &String)| format!("{key}={}", quoted(value));
    pairs.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A text in double quotes, escaped as Go does: that is what readers of these files expect.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let escape = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{7}' => "\\a",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{b}' => "\\v",
            c if c.is_ascii_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(c));
                continue;
            }
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
                continue;
            }
            c => {
                quoted.push(c);
                continue;
            }
        };
        quoted.push_str(escape);
    }
    quoted.push('"');
    quoted
}

/// The number of a `resourceFieldRef`, rounded up; none if the pod has no such container. `own` is the container whose variable it is.
pub(crate) fn resource(node: &NodeConfig, pod: &Pod, own: Option<&Container>, field: &ResourceField) -> Option<String> {
    let container = match &field.container {
        Some(name) => pod.spec.container(name)?,
        None => own?,
    };
    let resources = &container.resources;
    let milli = |quantity: Option<Quantity>| quantity.filter(|quantity| quantity.milli() > 0).map(Quantity::milli);
    let units = |quantity: Option<Quantity>| quantity.filter(|quantity| quantity.milli() > 0).map(Quantity::units);
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (value, divisor) = match &field.resource {
        ContainerResource::CpuLimit => {
            let all = whole(node.host.cpus).saturating_mul(1000);
            (milli(resources.cpu_limit).unwrap_or(all), field.divisor.milli())
        }
        ContainerResource::CpuRequest => (milli(resources.cpu_request).unwrap_or(0), field.divisor.milli()),
        ContainerResource::MemoryLimit => {
            let limit = units(resources.memory_limit);
            (limit.unwrap_or(whole(node.memory)), field.divisor.units())
        }
        ContainerResource::MemoryRequest => (units(resources.memory_request).unwrap_or(0), field.divisor.units()),
        ContainerResource::EphemeralStorageLimit => {
            let limit = units(resources.ephemeral_storage_limit);
            (
                limit.unwrap_or(whole(node.host.ephemeral_storage)),
                field.divisor.units(),
            )
        }
        ContainerResource::EphemeralStorageRequest => {
            let request = units(resources.ephemeral_storage_request);
            (request.unwrap_or(0), field.divisor.units())
        }
        ContainerResource::HugePages(size) => {
            let pages = resources.hugepages.get(size).copied();
            (units(pages).unwrap_or(0), field.divisor.units())
        }
    };
    let divisor = divisor.max(1);
    Some((value / divisor + i64::from(value % divisor > 0)).to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::{node, pod};

    #[test]
    fn resources_are_divided_and_rounded_up() {
        use ContainerResource as R;
        let mut node = node(Path::new("/x"));
        (node.host.cpus, node.host.ephemeral_storage) = (4, 100 << 30);
        let mut pod = Pod::clone(&pod(
            "containers: [{name: a, image: i, resources: {requests: {cpu: 250m}, limits: {cpu: 1500m, memory: 100M}}}, {name: b, image: i}]",
        ));
        let pages = Quantity::parse("4Mi").unwrap();
        pod.spec.containers[0]
            .resources
            .hugepages
            .insert("2Mi".to_owned(), pages);
        for (container, resource, divisor, wanted) in [
            ("a", R::CpuLimit, "1", "2"),
            ("a", R::CpuLimit, "1m", "1500"),
            ("a", R::CpuRequest, "1", "1"),
            ("a", R::CpuRequest, "1m", "250"),
            ("a", R::MemoryLimit, "1", "100000000"),
            ("a", R::MemoryLimit, "1Mi", "96"),
            ("a", R::HugePages("2Mi".to_owned()), "1Mi", "4"),
            ("a", R::HugePages("1Gi".to_owned()), "1Mi", "0"),
            // What is not limited is limited by the node; what is not requested is not there.
            ("b", R::CpuLimit, "1", "4"),
            ("b", R::CpuRequest, "1m", "0"),
            ("b", R::MemoryLimit, "1Gi", "8"),
            ("b", R::MemoryRequest, "1", "0"),
            ("b", R::EphemeralStorageLimit, "1Gi", "100"),
            ("b", R::EphemeralStorageRequest, "1", "0"),
        ] {
            let field = ResourceField {
                container: Some(container.to_owned()),
                resource,
                divisor: Quantity::parse(divisor).unwrap(),
            };
            let found = super::resource(&node, &pod, None, &field);
            assert_eq!(found.as_deref(), Some(wanted), "{field:?}");
        }
        let own = ResourceField {
            container: None,
            resource: R::CpuRequest,
            divisor: Quantity::parse("1m").unwrap(),
        };
        let found = super::resource(&node, &pod, Some(&pod.spec.containers[0]), &own);
        assert_eq!(found.as_deref(), Some("250"));
        let none = ResourceField {
            container: Some("none".to_owned()),
            ..own
        };
        assert_eq!(super::resource(&node, &pod, None, &none), None);
    }

    #[test]
    fn texts_are_quoted_as_go_does() {
        for (text, wanted) in [
            ("", "\"\""),
            ("a'b", "\"a'b\""),
            ("a\"\\b", "\"a\\\"\\\\b\""),
            ("\n\t\r\u{7}\u{8}\u{b}\u{c}", "\"\\n\\t\\r\\a\\b\\v\\f\""),
            ("\0\u{7f}", "\"\\x00\\x7f\""),
            ("\u{85}ü", "\"\\u0085ü\""),
        ] {
            assert_eq!(quoted(text), wanted);
        }
    }
}
