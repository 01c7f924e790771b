use pleg_node::sources::static_pods::{ConfigSource, read};
use serde_json::json;

use super::*;
use crate::pods::known::KnownPods;

fn node_name() -> NodeName {
    NodeName::new("n").unwrap()
}

fn node() -> core::Node {
    serde_json::from_value(json!({"metadata": {"name": "n", "uid": "node-uid"}})).unwrap()
}

fn static_pod(image: &str) -> Arc<Pod> {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: web, labels: {{a: b}}}}, spec: {{containers: [{{name: c, image: {image}}}]}}}}"
    );
    let mut found = read(text.as_bytes(), &node_name(), ConfigSource::File).unwrap();
    found.pods.remove(0)
}

fn created(pod: &Pod) -> Box<core::Pod> {
    let mut object = mirror_of(pod, &node(), Timestamp::UNIX_EPOCH);
    object.metadata.uid = Some("mirror-uid".to_owned());
    object.metadata.resource_version = Some("5".to_owned());
    Box::new(object)
}

#[test]
fn a_mirror_pod_has_what_the_kubelets_have() {
    let pod = static_pod("i");
    let mirror = serde_json::to_value(mirror_of(&pod, &node(), Timestamp::UNIX_EPOCH)).unwrap();
    let hash = pod.id.uid.to_string();
    assert_eq!(
        mirror["metadata"],
        json!({
            "name": "web-n", "namespace": "default", "labels": {"a": "b"},
            "annotations": {
                "kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash,
                "kubernetes.io/config.source": "file", "kubernetes.io/config.seen": "1970-01-01T00:00:00Z",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid", "controller": true}],
        })
    );
    assert_eq!(
        (&mirror["spec"]["nodeName"], &mirror["status"]),
        (&json!("n"), &serde_json::Value::Null)
    );
}

#[test]
fn what_is_done_about_mirror_pods() {
    let pod = static_pod("i");
    let edited = |edit: fn(&mut core::Pod)| {
        let mut object = created(&static_pod("i"));
        edit(&mut object);
        Some(object)
    };
    let delete = |why: &str| format!("delete: {why}");
    let create = || "create".to_owned();
    for (mirror, wanted, expected) in [
        (None, vec![], vec![]),
        (None, vec![pod.clone()], vec![create()]),
        (Some(created(&pod)), vec![pod.clone()], vec![]),
        (Some(created(&pod)), vec![], vec![delete("its static pod is gone")]),
        (
            Some(created(&pod)),
            vec![static_pod("j")],
            vec![delete("its static pod has changed"), create()],
        ),
        (
            edited(|object| object.metadata.labels = None),
            vec![pod.clone()],
            vec![delete("somebody changed its labels"), create()],
        ),
        (
            edited(|object| object.spec.as_mut().unwrap().containers[0].image = Some("evil".to_owned())),
            vec![pod.clone()],
            vec![delete("somebody changed its images"), create()],
        ),
        (
            edited(|object| {
                object.metadata.deletion_timestamp = Some(serde_json::from_str("\"2027-01-15T08:00:00Z\"").unwrap());
            }),
            vec![pod.clone()],
            vec![delete("somebody deleted it, and its static pod runs"), create()],
        ),
    ] {
        let mut known = KnownPods::default();
        known.apply(*mirror.unwrap_or_default());
        let steps = steps(&wanted, known.mirrors(), &node_name());
        let words: Vec<String> = steps
            .iter()
            .map(|step| match step {
                Step::Create(_) => create(),
                Step::Delete(_, why) => delete(why),
            })
            .collect();
        assert_eq!(words, expected);
    }
}
