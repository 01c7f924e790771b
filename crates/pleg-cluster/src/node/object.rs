//! The Node object: what it should be, and the patch that makes it so. Pure.
//!
//! A patch has only what differs from what the API server has, so that what others write stays: conditions of other types, extended
//! resources, labels and taints of operators.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pleg_node::events::Event;
use serde_json::{Map, Value, json};

use super::conditions::Condition;
use super::resources::{ResourceList, is_extended};
use super::settings::NodeSettings;

/// The version that `kubectl get nodes` shows: of the kubelet whose behaviour this is, with ours as build metadata. It has to be a
/// semantic version, because version checks of the control plane and its tools parse it; build metadata (as in `v1.37.1+k3s1`) leaves its
/// precedence alone, while a pre-release (`v1.37.1-pleg`) would be older than v1.37.1.
pub const KUBELET_VERSION: &str = concat!("v1.37.1+pleg-", env!("CARGO_PKG_VERSION"));

/// What a Node object should be now.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredNode {
    name: String,
    /// Of every node; kept up to date.
    default_labels: BTreeMap<String, String>,
    addresses: Vec<NodeAddress>,
    capacity: ResourceList,
    allocatable: ResourceList,
    endpoints: NodeDaemonEndpoints,
    info: NodeSystemInfo,
    images: Vec<ContainerImage>,
    conditions: Vec<Condition>,
}

impl DesiredNode {
    /// Of the machine's settings, and what was observed: its addresses, images, and conditions, of which Ready is the last.
    pub fn new(
        name: &str,
        settings: &NodeSettings,
        ips: &[IpAddr],
        images: &[ContainerImage],
        conditions: Vec<Condition>,
    ) -> Self {
        let machine = &settings.machine;
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let default_labels = [
            label("kubernetes.io/hostname", name),
            label("kubernetes.io/os", "linux"),
            label("kubernetes.io/arch", &machine.architecture),
            label("beta.kubernetes.io/os", "linux"),
            label("beta.kubernetes.io/arch", &machine.architecture),
        ];
        Self {
            name: name.to_owned(),
            default_labels: default_labels.into(),
            addresses: addresses(name, ips),
            capacity: settings.capacity.list(),
            allocatable: settings.capacity.less(settings.reserved).list(),
            endpoints: NodeDaemonEndpoints {
                kubelet_endpoint: settings.port.map(|port| DaemonEndpoint { port: port.into() }),
            },
            info: NodeSystemInfo {
                architecture: machine.architecture.clone(),
                boot_id: machine.boot_id.clone(),
                container_runtime_version: settings.runtime_version.clone(),
                kernel_version: machine.kernel_version.clone(),
                kube_proxy_version: String::new(),
                kubelet_version: KUBELET_VERSION.to_owned(),
                machine_id: machine.machine_id.clone(),
                operating_system: "linux".to_owned(),
                os_image: machine.os_image.clone(),
                running_in_user_namespace: None,
                swap: None,
                system_uuid: machine.system_uuid.clone(),
            },
            images: images.to_vec(),
            conditions,
        }
    }

    /// The object to create.
    pub fn initial(&self, settings: &NodeSettings, now: Timestamp) -> Node {
        let mut labels = settings.labels.clone();
        labels.extend(self.default_labels.clone());
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                taints: (!settings.taints.is_empty()).then(|| settings.taints.clone()),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                addresses: Some(self.addresses.clone()),
                allocatable: Some(self.allocatable.clone()),
                capacity: Some(self.capacity.clone()),
                conditions: Some(self.conditions.iter().map(|condition| condition.at(now, &[])).collect()),
                daemon_endpoints: Some(self.endpoints.clone()),
                images: Some(self.images.clone()),
                node_info: Some(self.info.clone()),
                ..NodeStatus::default()
            }),
        }
    }

    /// The patch of the status that makes `known` what it should be, with fresh heartbeats; and whether there is more to it than those.
    pub fn patch(&self, known: &Node, now: Timestamp) -> NodePatch {
        let empty = NodeStatus::default();
        let status = known.status.as_ref().unwrap_or(&empty);
        let posted = status.conditions.as_deref().unwrap_or_default();
        let mut fields = Map::new();
        let mut field = |name: &str, value: Value| _ = fields.insert(name.to_owned(), value);
        if status.addresses.as_deref().unwrap_or_default() != self.addresses {
            // Addresses are merged by type: without this, an old one of the same type would stay.
            let mut addresses: Vec<Value> = self.addresses.iter().map(|address| json!(address)).collect();
            addresses.push(json!({"$patch": "replace"}));
            field("addresses", Value::Array(addresses));
        }
        if let Some(changed) = changed(status.capacity.as_ref(), &self.capacity) {
            field("capacity", changed);
        }
        if let Some(changed) = changed(status.allocatable.as_ref(), &self.allocatable_of(status)) {
            field("allocatable", changed);
        }
        if self.endpoints.kubelet_endpoint.is_some() && status.daemon_endpoints.as_ref() != Some(&self.endpoints) {
            field("daemonEndpoints", json!(self.endpoints));
        }
        if status.node_info.as_ref() != Some(&self.info) {
            field("nodeInfo", json!(self.info));
        }
        if status.images.as_deref().unwrap_or_default() != self.images {
            field("images", json!(self.images));
        }
        let labels = self.missing_labels(known);
        let conditions_posted = self.conditions.iter().all(|condition| condition.is_posted(posted));
        let is_change = !fields.is_empty() || labels.is_some() || !conditions_posted;
        let conditions: Vec<_> = self
            .conditions
            .iter()
            .map(|condition| condition.at(now, posted))
            .collect();
        fields.insert("conditions".to_owned(), json!(conditions));
        // The UID: another machine's node of this name is not ours to patch.
        let mut metadata = json!({"uid": known.metadata.uid});
        if let Some(labels) = labels {
            metadata["labels"] = json!(labels);
        }
        NodePatch {
            body: json!({"metadata": metadata, "status": fields}),
            is_change,
        }
    }

    /// Whether two desired nodes differ in what should be known at once: everything but images.
    pub fn differs_from(&self, other: &Self) -> bool {
        let without_images = |node: &Self| Self {
            images: Vec::new(),
            ..node.clone()
        };
        without_images(self) != without_images(other)
    }

    /// The events about the conditions that change with this object.
    pub fn events(&self, posted: &[NodeCondition]) -> Vec<Event> {
        let changed = self.conditions.iter().filter(|condition| !condition.has_status(posted));
        changed.map(|condition| condition.event(&self.name)).collect()
    }

    /// With what operators have added to the capacity.
    fn allocatable_of(&self, status: &NodeStatus) -> ResourceList {
        let added = status.capacity.iter().flatten().filter(|(name, _)| is_extended(name));
        let mut allocatable: ResourceList = added.map(|(name, amount)| (name.clone(), amount.clone())).collect();
        allocatable.extend(self.allocatable.clone());
        allocatable
    }

    fn missing_labels(&self, known: &Node) -> Option<BTreeMap<String, String>> {
        let has = |key: &str, value: &str| {
            known
                .metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(key))
                .is_some_and(|label| label == value)
        };
        let missing: BTreeMap<String, String> = self
            .default_labels
            .iter()
            .filter(|(key, value)| !has(key, value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        (!missing.is_empty()).then_some(missing)
    }
}

/// A strategic merge patch of a node's status.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePatch {
    /// What is sent.
    pub body: Value,
    /// It changes more than heartbeat times.
    pub is_change: bool,
}

/// Of a map that is merged by key: the entries that differ.
fn changed(known: Option<&ResourceList>, desired: &ResourceList) -> Option<Value> {
    let is_known = |name: &String, amount| known.and_then(|known| known.get(name)) == Some(amount);
    let changed: Map<String, Value> = desired
        .iter()
        .filter(|(name, amount)| !is_known(name, amount))
        .map(|(name, amount)| (name.clone(), json!(amount)))
        .collect();
    (!changed.is_empty()).then_some(Value::Object(changed))
}

fn addresses(name: &str, ips: &[IpAddr]) -> Vec<NodeAddress> {
    let address = |kind: &str, address: String| NodeAddress {
        type_: kind.to_owned(),
        address,
    };
    let mut all: Vec<NodeAddress> = ips.iter().map(|ip| address("InternalIP", ip.to_string())).collect();
    all.push(address("Hostname", name.to_owned()));
    all
}

/// Whether the machine has booted since it wrote this object.
pub fn rebooted(known: &Node, boot_id: &str) -> bool {
    let info = known.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.is_some_and(|info| !info.boot_id.is_empty() && !boot_id.is_empty() && info.boot_id != boot_id)
}

#[cfg(test)]
mod tests;
