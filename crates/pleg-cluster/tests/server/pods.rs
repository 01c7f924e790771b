//! `/pods` and `/runningpods`.

use http::StatusCode;
use serde_json::Value;

use crate::node::ServedMachine;

#[tokio::test]
async fn pods_are_shown() {
    let machine = ServedMachine::start().await;
    machine.api.allow("prometheus get pods");
    let prometheus = machine.ca.client("prometheus", "monitoring");
    let spec = "containers: [{name: app, image: img, command: [serve]}]";
    let uids = machine.run(&[("a", spec), ("b", spec)]).await;
    for path in ["/pods", "/runningpods", "/runningpods/"] {
        let (status, body) = machine.get(&prometheus, path).await;
        assert_eq!(status, StatusCode::OK);
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&"PodList".into(), &"v1".into()),
            "{path}"
        );
        let pods = list["items"].as_array().unwrap();
        assert_eq!(pods.len(), 2, "{path}: {body}");
        for (n, name) in ["a-n", "b-n"].into_iter().enumerate() {
            assert_eq!(pods[n]["metadata"]["name"], name);
            assert_eq!(pods[n]["metadata"]["uid"], uids[n].as_str());
            assert_eq!(pods[n]["spec"]["containers"][0]["name"], "app");
            let phase = &pods[n]["status"]["phase"];
            assert_eq!(phase == "Running", path == "/pods", "{path}: {phase}");
        }
    }
    machine.stop().await;
}
