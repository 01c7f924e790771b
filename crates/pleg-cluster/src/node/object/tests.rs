use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::super::conditions::{pressure, ready};
use super::super::machine::Machine;
use super::super::resources::Resources;
use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn settings() -> NodeSettings {
    NodeSettings {
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        taints: vec![Taint {
            key: "new".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        }],
        capacity: Resources {
            milli_cpu: 2000,
            memory: 8 << 30,
            ephemeral_storage: 100 << 30,
            pods: 110,
        },
        reserved: Resources {
            memory: 1 << 30,
            ..Resources::default()
        },
        machine: Machine {
            machine_id: "m".to_owned(),
            system_uuid: "u".to_owned(),
            boot_id: "b1".to_owned(),
            architecture: "amd64".to_owned(),
            ..Machine::default()
        },
        runtime_version: "containerd://2.1.4".to_owned(),
        port: Some(10250),
        ..NodeSettings::default()
    }
}

fn desired(reasons: &[String], ips: &[&str]) -> DesiredNode {
    let mut conditions = pressure(&[]);
    conditions.push(ready(reasons));
    let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
    DesiredNode::new("a", &settings(), &ips, &[], conditions)
}

#[test]
fn a_new_node_has_all_of_it() {
    let node = desired(&[], &["192.0.2.7"]).initial(&settings(), at(0));
    let value = json!(node);
    assert_eq!(value["metadata"]["labels"]["kubernetes.io/arch"], "amd64");
    assert_eq!(value["metadata"]["labels"]["disk"], "ssd");
    assert_eq!(value["spec"]["taints"][0]["key"], "new");
    assert_eq!(value["status"]["allocatable"]["memory"], "7Gi");
    assert_eq!(value["status"]["capacity"]["pods"], "110");
    assert_eq!(value["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    assert_eq!(
        value["status"]["addresses"],
        json!([{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "a"}])
    );
    let conditions = node.status.unwrap().conditions.unwrap();
    assert_eq!(conditions.last().unwrap().type_, "Ready");
    assert_eq!(conditions.len(), 4);
}

#[test]
fn a_patch_has_only_what_differs() {
    let wanted = desired(&[], &["192.0.2.7"]);
    let mut known = wanted.initial(&settings(), at(0));
    known.metadata.uid = Some("1".to_owned());
    let patch = wanted.patch(&known, at(10));
    assert!(!patch.is_change, "{patch:?}");
    assert_eq!(
        patch.body["status"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["conditions"]
    );
    assert_eq!(patch.body["metadata"], json!({"uid": "1"}));
    let heartbeat = &patch.body["status"]["conditions"][3];
    assert_eq!(
        (&heartbeat["lastHeartbeatTime"], &heartbeat["lastTransitionTime"]),
        (&json!("2027-01-15T08:00:10Z"), &json!("2027-01-15T08:00:00Z"))
    );

    // Another address replaces the old one.
    let moved = desired(&[], &["192.0.2.8", "2001:db8::8"]).patch(&known, at(10));
    assert!(moved.is_change);
    let addresses = moved.body["status"]["addresses"].as_array().unwrap();
    assert_eq!((addresses.len(), &addresses[3]), (4, &json!({"$patch": "replace"})));

    let bad = desired(&["container runtime is down".to_owned()], &["192.0.2.7"]).patch(&known, at(10));
    assert!(bad.is_change);
    assert_eq!(
        bad.body["status"]["conditions"][3]["lastTransitionTime"],
        "2027-01-15T08:00:10Z"
    );
}

#[test]
fn what_others_write_stays() {
    let wanted = desired(&[], &["192.0.2.7"]);
    let mut known = wanted.initial(&settings(), at(0));
    let labels = known.metadata.labels.as_mut().unwrap();
    labels.insert("disk".to_owned(), "hdd".to_owned());
    labels.insert("node-role.kubernetes.io/worker".to_owned(), String::new());
    known.spec = None;
    let status = known.status.as_mut().unwrap();
    status.conditions.as_mut().unwrap().push(NodeCondition {
        type_: "KernelDeadlock".to_owned(),
        status: "False".to_owned(),
        ..NodeCondition::default()
    });
    status
        .allocatable
        .as_mut()
        .unwrap()
        .insert("hugepages-2Mi".to_owned(), Quantity("0".to_owned()));
    assert!(!wanted.patch(&known, at(10)).is_change);

    // An extended resource that an operator has added becomes allocatable.
    let status = known.status.as_mut().unwrap();
    status
        .capacity
        .as_mut()
        .unwrap()
        .insert("example.com/dongle".to_owned(), Quantity("4".to_owned()));
    let patch = wanted.patch(&known, at(10));
    assert_eq!(patch.body["status"]["allocatable"], json!({"example.com/dongle": "4"}));
    assert!(patch.body["status"].get("capacity").is_none());
}

#[test]
fn labels_of_every_node_are_kept_up_to_date() {
    let wanted = desired(&[], &[]);
    let mut known = wanted.initial(&settings(), at(0));
    known
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("kubernetes.io/arch".to_owned(), "arm64".to_owned());
    let patch = wanted.patch(&known, at(10));
    assert!(patch.is_change);
    assert_eq!(patch.body["metadata"]["labels"], json!({"kubernetes.io/arch": "amd64"}));
}

#[test]
fn an_empty_object_is_patched_in_full() {
    let patch = desired(&[], &["192.0.2.7"]).patch(&Node::default(), at(0));
    let keys: Vec<&String> = patch.body["status"].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "addresses",
            "allocatable",
            "capacity",
            "conditions",
            "daemonEndpoints",
            "nodeInfo"
        ]
    );
}

#[test]
fn a_boot_shows() {
    let known = desired(&[], &[]).initial(&settings(), at(0));
    assert!(!rebooted(&known, "b1") && rebooted(&known, "b2") && !rebooted(&known, ""));
    assert!(!rebooted(&Node::default(), "b2"));
}

#[test]
fn the_version_is_semantic() {
    let (core, ours) = KUBELET_VERSION.strip_prefix('v').unwrap().split_once('+').unwrap();
    assert!(core.split('.').all(|number| number.parse::<u32>().is_ok()) && ours.starts_with("pleg-"));
    assert!(ours.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)));
}

#[test]
fn transitions_are_events() {
    let good = desired(&[], &[]);
    let told = |events: Vec<Event>| -> Vec<String> {
        let one = |event: &Event| format!("{} {}", event.reason, event.message);
        events.iter().map(one).collect()
    };
    assert_eq!(
        told(good.events(&[])),
        [
            "NodeHasSufficientMemory Node a status is now: NodeHasSufficientMemory",
            "NodeHasNoDiskPressure Node a status is now: NodeHasNoDiskPressure",
            "NodeHasSufficientPID Node a status is now: NodeHasSufficientPID",
            "NodeReady Node a status is now: NodeReady",
        ]
    );
    let posted = good.initial(&settings(), at(0)).status.unwrap().conditions.unwrap();
    assert_eq!(told(good.events(&posted)), Vec::<String>::new());
    let bad = desired(&["container runtime is down".to_owned()], &[]);
    assert_eq!(
        told(bad.events(&posted)),
        ["NodeNotReady Node a status is now: NodeNotReady: container runtime is down"]
    );
}
