//! Beside a stock kubelet, as people install it: the `DaemonSet` of `deploy/` tells the cluster of a container that hangs, and the kubelet
//! does what it does without it.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::print_stdout, reason = "the figures, for people")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::cluster::beside::account;
use pleg_e2e::cluster::deployment::{deploy, exec, kubelet_with_a_pod, ready_pod};
use pleg_e2e::cluster::reported::{described, events, hang, is_one_pair, kubelets_part, stuck_node};
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place, RUNTIMES};
use pleg_e2e::cluster::{Beside, Member};
use pleg_e2e::node::{container, is_ready};
use pleg_e2e::wait::until;
use pleg_e2e::{Version, cluster_scenarios, image};
use serde_json::{Value, json};
use tokio::time::Instant;

fn main() -> ExitCode {
    suite::main(&[(
        Place::NoNode,
        &RUNTIMES,
        cluster_scenarios![
            the_daemon_set_reports_a_hung_container,
            the_kubelet_does_the_same_beside_pleg,
        ],
    )])
}

/// A hang shows so soon.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

async fn until_node_stuck(context: &Context, pod: &Value, status: &str) -> Result<Value> {
    let waited = until(&format!("the condition of the node: {status}"), PATIENCE, async || {
        let ours = stuck_node(context).await?;
        ensure!(ours["status"] == status, "{ours}");
        Ok(ours)
    })
    .await;
    match waited {
        Ok(condition) => Ok(condition),
        Err(error) => {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let log = context.kubectl.run(&format!("logs {name} --tail=30")).await;
            Err(error.context(log.unwrap_or_else(|error| error.to_string())))
        }
    }
}

/// With the service account of its pod and the address that every pod has: a hang is described within 30 s, one pair of events, recovery.
async fn the_daemon_set_reports_a_hung_container(context: &Context) -> Result<()> {
    context.cluster.serve_pods().await?;
    kubelet_with_a_pod(context).await?;
    // A conmon that hangs shows in no call of CRI-O, only in the kernel.
    let components: &[&str] = match context.version {
        Version::Crio => &["report-to-cluster", "witness"],
        _ => &["report-to-cluster"],
    };
    deploy(context, components).await?;
    let pod = ready_pod(context, "the pod of the DaemonSet", |_| true).await?;
    let fine = until_node_stuck(context, &pod, "False").await?;
    ensure!(fine["reason"] == "NothingIsStuck", "{fine}");
    has_no_other_rights(context).await?;
    let before = kubelets_part(context).await?;

    let frozen = hang(context, "web").await?;
    let hung = Instant::now();
    let shown = until("kubectl describe to name the pod", SHOWN_WITHIN, async || {
        described(context, "web").await
    })
    .await;
    if shown.is_err() {
        shown.context(exec(context, &pod, &["health"]).await.unwrap_or_default())?;
    }
    println!("{:?}: described after {:?}", context.version, hung.elapsed());
    ensure!(kubelets_part(context).await? == before, "{before}");
    let health = exec(context, &pod, &["health"]).await?;
    ensure!(health.contains("pleg.io/Stuck=True reported "), "{health}");

    frozen.thaw();
    until_node_stuck(context, &pod, "False").await?;
    context
        .until_pod("web", "a restarted container", |pod| {
            container(pod, "app")["restartCount"] == 1
        })
        .await?;
    until("the events of the recovery", PATIENCE, async || {
        let of_pod = events(context, &context.namespace, "Pod", "web").await?;
        let of_node = events(context, "default", "Node", &context.node_name).await?;
        for events in [of_pod, of_node] {
            ensure!(is_one_pair(&events), "{events:?}");
        }
        Ok(())
    })
    .await?;
    let after = kubelets_part(context).await?;
    ensure!(after == before, "before: {before}\nafter: {after}");
    let pod = ready_pod(context, "the pod of the DaemonSet", |_| true).await?;
    ensure!(container(&pod, "pleg")["restartCount"] == 0, "{}", pod["status"]);
    Ok(())
}

/// The service account may do what the rules say, and nothing that harms.
async fn has_no_other_rights(context: &Context) -> Result<()> {
    let user = format!("--as=system:serviceaccount:{}:pleg", context.namespace);
    for (verb, what, may) in [
        ("patch", "nodes/status", true),
        ("create", "events", true),
        ("patch", "nodes", false),
        ("list", "pods", false),
        ("patch", "pods/status", false),
        ("get", "secrets", false),
    ] {
        let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
        let subresource = format!("--subresource={subresource}");
        let args = ["auth", "can-i", verb, resource, &subresource, &user];
        // It ends with 1 if the answer is no.
        let answer = context.kubectl.run_args(&args).await;
        ensure!(answer.is_ok() == may, "{verb} {what}: {answer:?}");
    }
    Ok(())
}

/// A pod of the test image. Its container keeps files in `/data` over its restarts.
fn pod(name: &str, policy: &str, script: &str, more: &Value) -> Value {
    let mut app = json!({
        "name": "app", "image": image::NAME, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
    });
    let init = more["init"].as_str().map(|script| {
        json!([{ "name": "init", "image": image::NAME, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script] }])
    });
    if !more["liveness"].is_null() {
        app["livenessProbe"] = more["liveness"].clone();
    }
    let spec = json!({
        "terminationGracePeriodSeconds": 1, "restartPolicy": policy, "containers": [app], "dnsPolicy": "Default",
        "initContainers": init.unwrap_or(json!([])), "volumes": [{ "name": "data", "emptyDir": {} }],
    });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

/// Pods that do one thing each, none of which depends on when the kubelet looks; and whether that is done.
type Life = (Value, fn(&Value) -> bool);

fn lives() -> Vec<Life> {
    let stay = "trap 'exit 0' TERM; /tool pause & wait";
    let again = |first: &str| format!("if test -e /data/was-here; then {stay}; fi; touch /data/was-here; {first}");
    let liveness = json!({
        "exec": { "command": ["test", "-e", "/data/healthy"] }, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30,
        "initialDelaySeconds": 1,
    });
    let sick = format!("if test -e /data/was-here; then touch /data/healthy; {stay}; fi; touch /data/was-here; {stay}");
    let restarted_once = |pod: &Value| is_ready(pod) && container(pod, "app")["restartCount"] == 1;
    vec![
        (pod("steady", "Always", stay, &json!({})), is_ready),
        (pod("init", "Always", stay, &json!({ "init": "exit 0" })), is_ready),
        (pod("crashes", "Always", &again("exit 3"), &json!({})), restarted_once),
        (
            pod("sick", "Always", &sick, &json!({ "liveness": liveness })),
            restarted_once,
        ),
        (pod("done", "Never", "exit 0", &json!({})), |pod| {
            pod["status"]["phase"] == "Succeeded"
        }),
        (pod("fails", "Never", "exit 4", &json!({})), |pod| {
            pod["status"]["phase"] == "Failed"
        }),
    ]
}

/// Lets the pods live and die once. Returns all events of the kubelet about them, with how often each happened.
async fn live(context: &Context) -> Result<BTreeMap<String, u64>> {
    let mut uids = BTreeSet::new();
    for (pod, _) in lives() {
        context.kubectl.apply(&pod.to_string()).await?;
    }
    for (pod, is_done) in lives() {
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let pod = context.until_pod(name, "the end of its tasks", is_done).await?;
        uids.insert(pod["metadata"]["uid"].as_str().context("a UID")?.to_owned());
    }
    context.kubectl.run("delete pods --all --wait --timeout=90s").await?;
    let path = format!("/api/v1/namespaces/{}/events", context.namespace);
    let list = context.cluster.get(&path).await?;
    let mut seen = BTreeMap::new();
    for event in list["items"].as_array().into_iter().flatten() {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["involvedObject"];
        if event["source"]["component"] != "kubelet" || !uids.contains(&word(&object["uid"])) {
            continue;
        }
        // How often a probe fails until its container has ended, and whether it still finds the container, are matters of time.
        let is_probe = event["reason"] == "Unhealthy";
        let message = if is_probe { &Value::Null } else { &event["message"] };
        let fields = [
            &object["name"],
            &object["fieldPath"],
            &event["type"],
            &event["reason"],
            message,
        ];
        let happened = seen.entry(fields.map(word).join(" | ")).or_default();
        *happened = if is_probe {
            1
        } else {
            *happened + event["count"].as_u64().unwrap_or(1)
        };
    }
    Ok(seen)
}

/// The same pods without and with `pleg run --report-to-cluster` beside the same kubelet: it tells the same of them.
async fn the_kubelet_does_the_same_beside_pleg(context: &Context) -> Result<()> {
    let cluster = &context.cluster;
    let member = Member::kubelet(cluster, context.version, &context.node_name).await?;
    let node = context.join(member)?;
    let alone = live(context).await?;
    ensure!(alone.len() >= 20 && alone.values().sum::<u64>() >= 25, "{alone:#?}");
    let before = kubelets_part(context).await?;

    let (runtime, token) = (node.runtime(), account(cluster).await?);
    let dir = runtime.home().dir();
    let beside = Beside::new(cluster, dir, runtime.endpoint(), node.name(), cluster.server(), &token)?;
    beside.up(&["--report-pod-condition"]).await?;
    let together = live(context).await?;
    ensure!(together == alone, "alone {alone:#?}\nbeside pleg {together:#?}");
    let after = kubelets_part(context).await?;
    ensure!(after == before, "before: {before}\nafter: {after}");
    // It was there, and had nothing to tell. Its first report comes within half a minute of its start.
    until("a report that nothing is stuck", PATIENCE, async || {
        let fine = stuck_node(context).await?;
        ensure!(fine["status"] == "False", "{fine}\n{}", beside.log());
        Ok(())
    })
    .await?;
    for (pod, _) in lives() {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let ours = events(context, &context.namespace, "Pod", name).await?;
        ensure!(ours.is_empty(), "{ours:?}");
    }
    Ok(())
}
