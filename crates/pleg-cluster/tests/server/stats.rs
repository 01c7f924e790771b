//! `/stats/summary` and `/metrics/resource`.

use http::StatusCode;
use pleg_cri::Rpc;
use serde_json::Value;

use crate::node::ServedMachine;

#[tokio::test]
async fn usage_is_shown_with_its_time() {
    let machine = ServedMachine::start().await;
    machine.api.allow("metrics-server get metrics");
    machine.api.allow("metrics-server get stats");
    let client = machine.ca.client("metrics-server", "kube-system");
    let spec = "containers: [{name: app, image: img, command: [serve]}]";
    let uids = machine.run(&[("web", spec)]).await;

    let (status, text) = machine.get(&client, "/metrics/resource").await;
    assert_eq!(status, StatusCode::OK);
    let labels = "{container=\"app\",namespace=\"default\",pod=\"web-n\"}";
    for metric in [
        "node_cpu_usage_seconds_total ".to_owned(),
        "node_memory_working_set_bytes ".to_owned(),
        format!("container_cpu_usage_seconds_total{labels} "),
        format!("container_memory_working_set_bytes{labels} "),
        "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web-n\"} ".to_owned(),
    ] {
        let line = text.lines().find_map(|line| line.strip_prefix(&metric));
        let (value, time) = line
            .and_then(|line| line.split_once(' '))
            .unwrap_or_else(|| panic!("no {metric}: {text}"));
        assert!(
            value.parse::<f64>().unwrap() >= 0.0 && time.parse::<i64>().unwrap() > 1_700_000_000_000,
            "{text}"
        );
    }
    assert!(
        text.contains(&format!("container_start_time_seconds{labels} ")) && text.contains("\nscrape_error 0\n"),
        "{text}"
    );

    let (status, text) = machine.get(&client, "/stats/summary").await;
    assert_eq!(status, StatusCode::OK);
    let summary: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(summary["node"]["nodeName"], "n");
    let pod = &summary["pods"][0];
    assert_eq!(
        (&pod["podRef"]["name"], &pod["podRef"]["uid"]),
        (&"web-n".into(), &uids[0].as_str().into())
    );
    assert_eq!(pod["containers"][0]["name"], "app");
    assert!(pod["containers"][0]["cpu"]["usageCoreNanoSeconds"].is_u64(), "{text}");
    machine.stop().await;
}

#[tokio::test]
async fn a_runtime_that_fails_is_no_silence() {
    let machine = ServedMachine::start().await;
    machine.api.allow("metrics-server get metrics");
    let client = machine.ca.client("metrics-server", "kube-system");
    machine
        .run(&[("web", "containers: [{name: app, image: img, command: [serve]}]")])
        .await;
    machine
        .sim
        .faults()
        .fail(Rpc::ListPodSandboxStats, "INTERNAL".parse().unwrap(), 1.0)
        .unwrap();
    let (status, text) = machine.get(&client, "/metrics/resource").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        text.contains("node_cpu_usage_seconds_total ") && text.contains("\nscrape_error 1\n"),
        "{text}"
    );
    machine.stop().await;
}

#[tokio::test]
async fn probes_are_counted_for_each_container() {
    let machine = ServedMachine::start().await;
    machine.api.allow("prometheus get metrics");
    let client = machine.ca.client("prometheus", "monitoring");
    let spec = "containers: [{name: app, image: img, command: [serve], readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1}}]";
    let uids = machine.run(&[("web", spec)]).await;
    let (status, text) = machine.get(&client, "/metrics/probes").await;
    assert_eq!(status, StatusCode::OK);
    let labels = format!(
        "container=\"app\",namespace=\"default\",pod=\"web-n\",pod_uid=\"{}\",probe_type=\"Readiness\"",
        uids[0].as_str()
    );
    let sample = format!("prober_probe_total{{{labels},result=\"successful\"}} ");
    assert!(text.contains(&sample), "{text}");
    let stranger = machine.ca.client("stranger", "none");
    assert_eq!(machine.get(&stranger, "/metrics/probes").await.0, StatusCode::FORBIDDEN);
    machine.stop().await;
}
