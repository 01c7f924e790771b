//! What a user of a cluster does with kubectl, against nodes that are `pleg node` and a real control plane.

#![allow(missing_docs, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place, RUNTIMES};
use pleg_e2e::cluster_scenarios;
use pleg_e2e::image;
use pleg_e2e::node::{container, is_ready};
use pleg_e2e::wait::until;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::main(&[
        (
            Place::SharedNode,
            &RUNTIMES,
            cluster_scenarios![
                a_deployment_rolls_out_scales_updates_and_rolls_back,
                a_stateful_set_starts_in_order,
                a_daemon_set_runs_on_its_node,
                jobs_succeed_and_fail,
                a_cron_job_runs,
                a_deleted_pod_has_its_grace,
                a_pod_is_evicted_by_the_api,
                an_edited_config_map_reaches_the_file,
                a_token_is_mounted_and_accepted,
                a_failing_probe_is_described,
            ],
        ),
        (
            Place::OwnNode,
            &RUNTIMES,
            cluster_scenarios![a_node_is_drained, a_node_shuts_down_in_order],
        ),
    ])
}

/// A pod template's `spec` with one container of the test image, which runs a script.
fn runs(script: &str, container: &str, pod: &str) -> String {
    let (image, script) = (image::NAME, serde_json::to_string(script).unwrap_or_default());
    format!(
        "{{terminationGracePeriodSeconds: 1, {pod} containers: [{{name: app, image: '{image}', imagePullPolicy: Never, \
         command: [/bin/sh, -c, {script}], {container}}}]}}"
    )
}

/// A manifest of a controller whose pods have the label `app: NAME`.
fn controller(kind: &str, name: &str, fields: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{fields} selector: {{matchLabels: {{app: {name}}}}}, \
         template: {{metadata: {{labels: {{app: {name}}}}}, spec: {spec}}}}}}}"
    )
}

fn pod(name: &str, spec: &str) -> String {
    format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {spec}}}")
}

/// A web server that says which version it is, and which pod.
fn web() -> String {
    runs(
        "echo $VERSION from $POD > /tmp/index.html; exec httpd -f -p 80 -h /tmp",
        "env: [{name: VERSION, value: one}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], \
         readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}",
        "",
    )
}

/// What a pod's web server says.
async fn page(pod: &Value) -> Result<String> {
    let ip = pod["status"]["podIP"].as_str().context("no address")?;
    let address: SocketAddr = format!("{ip}:80").parse()?;
    let get = move || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    };
    tokio::task::spawn_blocking(get)
        .await?
        .with_context(|| format!("GET http://{address}"))
}

/// Waits until so many pods of an app are ready and no others exist, all of this version.
async fn serve(context: &Context, count: usize, version: &str) -> Result<Vec<Value>> {
    until(&format!("{count} pods of version {version}"), PATIENCE, async || {
        let pods = context.pods("app=web").await?;
        let phases: Vec<&Value> = pods.iter().map(|pod| &pod["status"]["phase"]).collect();
        ensure!(pods.len() == count && pods.iter().all(is_ready), "{phases:?}");
        for pod in &pods {
            let said = page(pod).await?;
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            ensure!(said.contains(&format!("{version} from {name}")), "{said}");
        }
        Ok(pods)
    })
    .await
}

async fn a_deployment_rolls_out_scales_updates_and_rolls_back(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    kubectl
        .apply(&controller("Deployment", "web", "replicas: 5,", &web()))
        .await?;
    kubectl.run("rollout status deployment/web --timeout=90s").await?;
    serve(context, 5, "one").await?;
    kubectl.run("scale deployment/web --replicas=2").await?;
    kubectl.run("rollout status deployment/web --timeout=90s").await?;
    serve(context, 2, "one").await?;
    kubectl.run("scale deployment/web --replicas=3").await?;
    kubectl.run("set env deployment/web VERSION=two").await?;
    kubectl.run("rollout status deployment/web --timeout=90s").await?;
    serve(context, 3, "two").await?;
    kubectl.run("rollout undo deployment/web").await?;
    kubectl.run("rollout status deployment/web --timeout=90s").await?;
    let pods = serve(context, 3, "one").await?;
    for pod in &pods {
        ensure!(container(pod, "app")["restartCount"] == 0, "{}", pod["status"]);
        ensure!(pod["spec"]["nodeName"] == context.node_name.as_str(), "{}", pod["spec"]);
    }
    kubectl.run("delete deployment/web --wait --timeout=90s").await?;
    serve(context, 0, "").await.map(drop)
}

/// The second pod waits until the first one is ready, which takes a file.
async fn a_stateful_set_starts_in_order(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    let spec = runs(
        "sleep 2; touch /tmp/ready; exec sleep 1000000",
        "readinessProbe: {exec: {command: [test, -f, /tmp/ready]}, periodSeconds: 1}",
        "",
    );
    let fields = "replicas: 2, serviceName: db,";
    kubectl.apply(&controller("StatefulSet", "db", fields, &spec)).await?;
    kubectl.run("rollout status statefulset/db --timeout=90s").await?;
    let first = context.until_pod_ready("db-0").await?;
    let second = context.until_pod_ready("db-1").await?;
    let ready_at = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|one| one["type"] == "Ready");
        ready.and_then(|one| one["lastTransitionTime"].as_str().map(ToOwned::to_owned))
    };
    let (ready, created) = (ready_at(&first), second["metadata"]["creationTimestamp"].as_str());
    ensure!(
        ready.as_deref() <= created,
        "db-1 was created at {created:?}, before db-0 was ready at {ready:?}"
    );
    // A pod that is deleted comes back under its name.
    kubectl.run("delete pod db-0 --wait --timeout=60s").await?;
    context
        .until_pod("db-0", "another one", |pod| {
            is_ready(pod) && pod["metadata"]["uid"] != first["metadata"]["uid"]
        })
        .await?;
    Ok(())
}

async fn a_daemon_set_runs_on_its_node(context: &Context) -> Result<()> {
    let selector = format!("nodeSelector: {{pleg.test/node: {}}},", context.node_name.as_str());
    let spec = runs("exec sleep 1000000", "", &selector);
    context
        .kubectl
        .apply(&controller("DaemonSet", "agent", "", &spec))
        .await?;
    context
        .kubectl
        .run("rollout status daemonset/agent --timeout=90s")
        .await?;
    let pods = context.pods("app=agent").await?;
    let [pod] = pods.as_slice() else {
        anyhow::bail!("{pods:?}")
    };
    ensure!(
        is_ready(pod) && pod["spec"]["nodeName"] == context.node_name.as_str(),
        "{pod}"
    );
    Ok(())
}

async fn jobs_succeed_and_fail(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    let job = |name: &str, fields: &str, script: &str| {
        let spec = runs(script, "", "restartPolicy: Never,");
        format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: {name}}}, spec: {{{fields} template: {{spec: {spec}}}}}}}"
        )
    };
    kubectl
        .apply(&job("three", "completions: 3, parallelism: 2,", "echo done; exit 0"))
        .await?;
    kubectl.apply(&job("fails", "backoffLimit: 1,", "exit 7")).await?;
    kubectl
        .run("wait --for=condition=complete job/three --timeout=120s")
        .await?;
    kubectl
        .run("wait --for=condition=failed job/fails --timeout=120s")
        .await?;
    let failed = context.pods("job-name=fails").await?;
    ensure!(failed.len() == 2, "{} pods instead of 2", failed.len());
    for pod in &failed {
        let state = &container(pod, "app")["state"]["terminated"];
        ensure!(
            pod["status"]["phase"] == "Failed" && state["exitCode"] == 7,
            "{}",
            pod["status"]
        );
    }
    let reason = kubectl
        .run_args(&["get", "job/fails", "-o", "jsonpath={.status.conditions[*].reason}"])
        .await?;
    ensure!(reason.contains("BackoffLimitExceeded"), "{reason}");
    let done = context.pods("job-name=three").await?;
    let succeeded = done.iter().filter(|pod| pod["status"]["phase"] == "Succeeded");
    ensure!(succeeded.count() == 3, "{done:?}");
    Ok(())
}

async fn a_cron_job_runs(context: &Context) -> Result<()> {
    let spec = runs("echo tick", "", "restartPolicy: OnFailure,");
    let manifest = format!(
        "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: tick}}, spec: {{schedule: '* * * * *', \
         jobTemplate: {{spec: {{template: {{spec: {spec}}}}}}}}}}}"
    );
    context.kubectl.apply(&manifest).await?;
    // It starts with the next minute.
    until("a job of the cron job", Duration::from_secs(150), async || {
        let path = format!("/apis/batch/v1/namespaces/{}/cronjobs/tick", context.namespace);
        let job = context.cluster.get(&path).await?;
        ensure!(job["status"]["lastSuccessfulTime"].is_string(), "{}", job["status"]);
        Ok(())
    })
    .await
}

/// SIGTERM is answered within the grace, and only then the pod is gone.
async fn a_deleted_pod_has_its_grace(context: &Context) -> Result<()> {
    let polite = runs(
        "trap 'sleep 3; exit 0' TERM; while true; do sleep 1; done",
        "",
        "restartPolicy: Never,",
    )
    .replace(
        "terminationGracePeriodSeconds: 1,",
        "terminationGracePeriodSeconds: 30,",
    );
    let stubborn = runs("while true; do sleep 1; done", "", "");
    context.kubectl.apply(&pod("polite", &polite)).await?;
    context.kubectl.apply(&pod("stubborn", &stubborn)).await?;
    context.until_pod_ready("polite").await?;
    context.until_pod_ready("stubborn").await?;
    let began = tokio::time::Instant::now();
    context
        .kubectl
        .run("delete pod polite stubborn --wait --timeout=60s")
        .await?;
    let took = began.elapsed();
    ensure!(
        took >= Duration::from_secs(3) && took < Duration::from_secs(28),
        "both were gone after {took:?}"
    );
    Ok(())
}

async fn a_pod_is_evicted_by_the_api(context: &Context) -> Result<()> {
    let spec = runs("while true; do sleep 1; done", "", "");
    context.kubectl.apply(&pod("p", &spec)).await?;
    context.until_pod_ready("p").await?;
    let metadata = json!({ "name": "p", "namespace": context.namespace });
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
    let path = format!("/api/v1/namespaces/{}/pods/p/eviction", context.namespace);
    context
        .kubectl
        .run_with_input(&["create", "--raw", &path, "-f", "-"], &eviction.to_string())
        .await?;
    context.until_pod_gone("p").await
}

/// kubectl edits the object, and the file in the container changes without a restart; so does one of a secret.
async fn an_edited_config_map_reaches_the_file(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    kubectl
        .run("create configmap settings --from-literal=colour=red")
        .await?;
    kubectl
        .run("create secret generic keys --from-literal=token=old")
        .await?;
    let spec = runs(
        "exec sleep 1000000",
        "volumeMounts: [{name: settings, mountPath: /etc/settings}, {name: keys, mountPath: /etc/keys}], \
         readinessProbe: {periodSeconds: 1, exec: {command: [/bin/sh, -c, \
         'test \"$(cat /etc/settings/colour) $(cat /etc/keys/token)\" = \"blue new\"']}}",
        "volumes: [{name: settings, configMap: {name: settings}}, {name: keys, secret: {secretName: keys}}],",
    );
    kubectl.apply(&pod("reader", &spec)).await?;
    let running = |pod: &Value| container(pod, "app")["state"]["running"].is_object();
    let before = context.until_pod("reader", "running", running).await?;
    ensure!(!is_ready(&before), "{}", before["status"]);
    kubectl
        .run_args(&["patch", "configmap", "settings", "-p", r#"{"data":{"colour":"blue"}}"#])
        .await?;
    kubectl
        .run_args(&["patch", "secret", "keys", "-p", r#"{"stringData":{"token":"new"}}"#])
        .await?;
    // A kubelet needs up to a minute for it.
    let after = until("both files to change", Duration::from_secs(150), async || {
        let pod = context.pod("reader").await?;
        ensure!(is_ready(&pod), "{}", pod["status"]);
        Ok(pod)
    })
    .await?;
    let id = |pod: &Value| container(pod, "app")["containerID"].clone();
    ensure!(id(&before) == id(&after), "{}", after["status"]);
    Ok(())
}

/// The token of a pod tells the API server which pod it is.
async fn a_token_is_mounted_and_accepted(context: &Context) -> Result<()> {
    let spec = runs(
        "cat /var/run/secrets/kubernetes.io/serviceaccount/token > /dev/termination-log",
        "",
        "restartPolicy: Never,",
    );
    context.kubectl.apply(&pod("p", &spec)).await?;
    let done = context
        .until_pod("p", "success", |pod| pod["status"]["phase"] == "Succeeded")
        .await?;
    let token = container(&done, "app")["state"]["terminated"]["message"]
        .as_str()
        .unwrap_or_default();
    let who = context.whoami(token).await?;
    let user = format!("system:serviceaccount:{}:default", context.namespace);
    ensure!(who["username"] == user.as_str(), "{who}");
    ensure!(who["extra"]["authentication.kubernetes.io/pod-name"][0] == "p", "{who}");
    Ok(())
}

async fn a_failing_probe_is_described(context: &Context) -> Result<()> {
    let spec = runs(
        "while true; do sleep 1; done",
        "livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 2}, \
         readinessProbe: {httpGet: {port: 81}, periodSeconds: 1}",
        "",
    );
    context.kubectl.apply(&pod("p", &spec)).await?;
    context
        .until_pod("p", "a restart", |pod| {
            container(pod, "app")["restartCount"].as_u64() >= Some(1)
        })
        .await?;
    let described = [
        "Liveness probe failed",
        "Readiness probe failed",
        "Killing",
        "Unhealthy",
    ];
    until("the probes in kubectl describe", PATIENCE, async || {
        let said = context.kubectl.run("describe pod p").await?;
        let missing: Vec<_> = described.iter().filter(|words| !said.contains(**words)).collect();
        ensure!(missing.is_empty(), "{missing:?} is missing in:\n{said}");
        Ok(())
    })
    .await
}

/// Pods of controllers go and come back elsewhere, the node stays, and takes pods again after uncordon.
async fn a_node_is_drained(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    let node = &context.node_name;
    kubectl
        .apply(&controller("Deployment", "web", "replicas: 2,", &web()))
        .await?;
    kubectl.run("rollout status deployment/web --timeout=90s").await?;
    kubectl
        .run(&format!("drain {node} --ignore-daemonsets --timeout=90s"))
        .await?;
    let pods = context.pods("app=web").await?;
    ensure!(
        pods.iter().all(|pod| pod["status"]["phase"] == "Pending"),
        "pods run on a drained node: {pods:?}"
    );
    let ready = context.node()?.ready_condition(&context.cluster).await?;
    ensure!(ready["status"] == "True", "{ready}");
    kubectl.run(&format!("uncordon {node}")).await?;
    serve(context, 2, "one").await.map(drop)
}

/// SIGTERM with a grace period for pods: ordinary ones end first, then critical ones, the node says so, and nothing comes back with it.
async fn a_node_shuts_down_in_order(context: &Context) -> Result<()> {
    let node = context.node()?;
    node.node()?.stop().await?;
    let flags = [
        "--shutdown-grace-period=20s",
        "--shutdown-grace-period-critical-pods=10s",
    ];
    node.up(&flags).await?;
    node.until_ready(&context.cluster).await?;
    let polite = "trap 'sleep 1; exit 0' TERM; while true; do sleep 1; done";
    let spec = |more: &str| {
        runs(polite, "", more).replace("terminationGracePeriodSeconds: 1,", "terminationGracePeriodSeconds: 8,")
    };
    let critical = "priorityClassName: system-node-critical,";
    context.kubectl.apply(&pod("ordinary", &spec(""))).await?;
    context.kubectl.apply(&pod("critical", &spec(critical))).await?;
    for name in ["ordinary", "critical"] {
        context.until_pod_ready(name).await?;
    }
    node.node()?.stop().await?;
    let ready = node.ready_condition(&context.cluster).await?;
    let said = ready["message"].as_str().unwrap_or_default();
    ensure!(
        ready["status"] == "False" && said.contains("node is shutting down"),
        "{ready}"
    );
    let mut ends = Vec::new();
    for name in ["ordinary", "critical"] {
        let pod = context.pod(name).await?;
        let status = &pod["status"];
        ensure!(
            status["phase"] == "Failed" && status["reason"] == "Terminated",
            "{name}: {status}"
        );
        let end = &container(&pod, "app")["state"]["terminated"];
        ensure!(end["exitCode"] == 0, "{name} had no time to end: {status}");
        ends.push(end["finishedAt"].as_str().unwrap_or_default().to_owned());
    }
    ensure!(ends[0] <= ends[1], "the critical pod ended first: {ends:?}");
    node.up(&flags).await?;
    node.until_ready(&context.cluster).await?;
    let after = context.pod("ordinary").await?;
    ensure!(after["status"]["phase"] == "Failed", "{}", after["status"]);
    Ok(())
}
