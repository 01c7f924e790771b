//! What `deploy/` and `release/image` make, in a real cluster: the `DaemonSet` as written, under a kubelet, and the chart, which is the same.

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::cluster::deployment::{deploy, exec, kubelet_with_a_pod, kustomization, ready_pod, repository, succeed};
use pleg_e2e::cluster::parts;
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place, RUNTIMES};
use pleg_e2e::node::container;
use pleg_e2e::truth::{ContainerTruth, PodTruth, SandboxTruth, State};
use pleg_e2e::wait::until;
use pleg_e2e::{Truth, Version, cluster_scenarios, truth};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::main(&[
        (
            Place::NoNode,
            &RUNTIMES,
            cluster_scenarios![a_daemon_set_runs_as_written, with_the_witness_it_sees_processes],
        ),
        // No node is needed: what is rendered and stored is looked at.
        (
            Place::NoNode,
            &[Version::V2_1],
            cluster_scenarios![the_chart_is_the_manifests, a_release_leaves_nothing_behind],
        ),
    ])
}

/// What `pleg pods -o json` says, as [`truth`] says it.
fn told(pods: &str) -> Result<Truth> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap_or_default()).unwrap_or(u32::MAX);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let sandbox = |of: &Value| SandboxTruth {
        attempt: number(&of["attempt"]),
        ready: of["state"] == "Ready",
    };
    let container = |of: &Value| ContainerTruth {
        name: text(&of["name"]),
        attempt: number(&of["attempt"]),
        state: match of["state"].as_str() {
            Some("Created") => State::Created,
            Some("Running") => State::Running,
            Some("Exited") => State::Exited,
            _ => State::Unknown,
        },
        exit_code: of["exit_code"]
            .as_i64()
            .and_then(|code| i32::try_from(code).ok())
            .unwrap_or_default(),
        reason: text(&of["reason"]),
    };
    let mut told = Truth::default();
    for pod in list(&serde_json::from_str(pods)?) {
        let of_pod = PodTruth {
            name: text(&pod["pod"]["name"]),
            namespace: text(&pod["pod"]["namespace"]),
            sandboxes: list(&pod["sandboxes"])
                .iter()
                .map(|of| (text(&of["id"]), sandbox(of)))
                .collect(),
            containers: list(&pod["containers"])
                .iter()
                .map(|of| (text(&of["id"]), container(of)))
                .collect(),
        };
        told.pods.insert(text(&pod["pod"]["uid"]), of_pod);
    }
    Ok(told)
}

/// Waits until what is said in the pod is what the runtime says.
async fn agrees(context: &Context, pod: &Value) -> Result<()> {
    let client = context.node()?.runtime().client();
    until("the pod to say what the runtime says", PATIENCE, async || {
        let told = told(&exec(context, pod, &["pods", "-o", "json"]).await?)?;
        let truth = truth(client).await?;
        ensure!(truth.pods.len() >= 2, "the runtime has only\n{truth}");
        ensure!(told == truth, "it says\n{told}and the runtime has\n{truth}");
        Ok(())
    })
    .await
}

/// No root, no capability, no shell; the runtime's socket, also after a restart of the runtime.
async fn a_daemon_set_runs_as_written(context: &Context) -> Result<()> {
    let node = kubelet_with_a_pod(context).await?;
    deploy(context, &[]).await?;
    let pod = ready_pod(context, "the pod of the DaemonSet", |_| true).await?;
    agrees(context, &pod).await?;
    let health = exec(context, &pod, &["health"]).await?;
    ensure!(health.starts_with("Healthy: "), "{health}");
    let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
    context.kubectl.fails(&format!("exec {name} -- sh -c true")).await?;

    // As few privileges as the manifests say, seen from the host.
    let process = pleg_process(&pod)?;
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    for line in [
        "Uid:\t65532\t65532\t65532\t65532",
        "Gid:\t0\t0\t0\t0",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        ensure!(status.contains(line), "not {line:?} but\n{status}");
    }

    // The API server reaches it as Prometheus does.
    let proxy = format!("/api/v1/namespaces/{}/pods/{name}:10255/proxy", context.namespace);
    let report = context.cluster.get(&format!("{proxy}/api/v1/health")).await?;
    ensure!(report["level"] == "Healthy", "{report}");

    // A new socket: the old container has the old one, and is replaced.
    node.runtime().restart().await?;
    let restarted = |pod: &Value| container(pod, "pleg")["restartCount"].as_u64() > Some(0);
    let pod = ready_pod(context, "the pod with the new socket", restarted).await?;
    agrees(context, &pod).await?;
    let ended = container(&pod, "pleg")["lastState"]["terminated"].clone();
    ensure!(ended["exitCode"] == 1, "{ended}");
    let log = context.kubectl.run(&format!("logs {name} --previous")).await?;
    ensure!(log.contains("the runtime has replaced its socket"), "{log}");
    Ok(())
}

/// The first process of the `DaemonSet`'s container, on this machine.
fn pleg_process(pod: &Value) -> Result<i32> {
    let id = container(pod, "pleg")["containerID"].as_str().unwrap_or_default();
    let (_, id) = id.split_once("://").context("a container without an id")?;
    let ours = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(id));
    let mut all = pleg_e2e::process::all()?
        .into_iter()
        .filter(|it| it.program() == "pleg");
    all.find(|it| ours(&it.pid))
        .map(|it| it.pid)
        .context("no process of the container")
}

async fn with_the_witness_it_sees_processes(context: &Context) -> Result<()> {
    kubelet_with_a_pod(context).await?;
    deploy(context, &["witness"]).await?;
    let pod = ready_pod(context, "the pod of the DaemonSet", |_| true).await?;
    until("the witness", PATIENCE, async || {
        let health = exec(context, &pod, &["health"]).await?;
        ensure!(
            health.contains("Kernel witness: on") && health.contains("every running container is watched"),
            "{health}"
        );
        Ok(())
    })
    .await?;
    agrees(context, &pod).await
}

/// helm with the cluster and the namespace of the scenario.
fn helm(context: &Context, args: &[&str]) -> Result<String> {
    let mut command = Command::new(parts::helm()?);
    let home = context.cluster.dir().join("helm");
    succeed(
        command
            .args(args)
            .args(["--namespace", &context.namespace])
            .arg("--kubeconfig")
            .arg(context.cluster.admin_kubeconfig())
            .env("HOME", home),
    )
}

fn chart() -> Result<String> {
    Ok(repository()?.join("deploy/chart/pleg").display().to_string())
}

/// Objects as the API server would store them, by kind and name.
async fn stored(context: &Context, manifests: &str) -> Result<Vec<(String, Value)>> {
    let args = ["apply", "--dry-run=server", "--output=json", "--filename=-"];
    let said = context.kubectl.run_with_input(&args, manifests).await?;
    let said: Value = serde_json::from_str(&said)?;
    // One object is no list.
    let objects = said["items"].as_array().cloned().unwrap_or_else(|| vec![said.clone()]);
    let mut objects: Vec<(String, Value)> = objects.into_iter().map(plain).collect();
    // Only the manifests have it: helm makes it with --create-namespace.
    objects.retain(|(name, _)| !name.starts_with("Namespace "));
    objects.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(objects)
}

/// An object with its kind and name, without what the server or helm adds.
fn plain(mut object: Value) -> (String, Value) {
    let name = format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
    let metadata = &object["metadata"];
    let mut labels = metadata["labels"].clone();
    if let Some(labels) = labels.as_object_mut() {
        // The selectors show that the instance is the same.
        for of_helm in ["helm.sh/chart", "managed-by", "version", "instance"] {
            labels.remove(of_helm);
            labels.remove(&format!("app.kubernetes.io/{of_helm}"));
        }
    }
    object["metadata"] = json!({ "name": metadata["name"], "namespace": metadata["namespace"], "labels": labels });
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    (name, object)
}

/// Whatever is chosen, the chart makes what kustomize makes.
async fn the_chart_is_the_manifests(context: &Context) -> Result<()> {
    let crio = "runtime.socket=/run/crio/crio.sock";
    for (name, components, settings) in [
        ("plain", &[][..], &[][..]),
        ("witness", &["witness"], &["witness=true"]),
        ("crio", &["crio"], &[crio]),
        ("report", &["report-to-cluster"], &["reportToCluster.enabled=true"]),
        (
            "everything",
            &["witness", "crio", "report-to-cluster", "report-pod-condition"],
            &[
                "witness=true",
                crio,
                "reportToCluster.enabled=true",
                "reportToCluster.podCondition=true",
            ],
        ),
    ] {
        let dir = kustomization(context, name, components, &[])?;
        let manifests = context
            .kubectl
            .run_args(&["kustomize", &dir.display().to_string()])
            .await?;
        let chart = chart()?;
        // helm does not ask the cluster when it renders.
        let kubernetes = format!("--kube-version={}", parts::kubernetes()?);
        let mut args = vec!["template", "pleg", &chart, &kubernetes];
        args.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let rendered = helm(context, &args)?;
        let (manifests, rendered) = (stored(context, &manifests).await?, stored(context, &rendered).await?);
        let names = |objects: &[(String, Value)]| objects.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        ensure!(
            names(&manifests) == names(&rendered) && manifests.len() >= 2,
            "{name}: kustomize has {:?}, the chart {:?}",
            names(&manifests),
            names(&rendered)
        );
        for ((what, of_kustomize), (_, of_chart)) in manifests.iter().zip(&rendered) {
            ensure!(
                of_kustomize == of_chart,
                "{name}: {what} of kustomize\n{of_kustomize:#}\nof the chart\n{of_chart:#}"
            );
        }
    }
    Ok(())
}

/// Everything in the cluster that carries the release's name, and helm's own records of it.
async fn left_of(context: &Context, release: &str) -> Result<String> {
    let kinds = "daemonsets,pods,controllerrevisions,serviceaccounts,secrets,configmaps,roles,rolebindings,clusterroles,clusterrolebindings";
    let by_label = format!("get {kinds} --selector app.kubernetes.io/instance={release} --output name");
    let by_owner = format!("get secrets --selector owner=helm,name={release} --output name");
    Ok(context.kubectl.run(&by_label).await? + &context.kubectl.run(&by_owner).await?)
}

async fn a_release_leaves_nothing_behind(context: &Context) -> Result<()> {
    let release = "pleg-on-trial";
    let chart = chart()?;
    helm(
        context,
        &["install", release, &chart, "--set", "reportToCluster.enabled=true"],
    )?;
    let said = left_of(context, release).await?;
    for object in [
        "daemonset.apps/pleg-on-trial",
        "serviceaccount/pleg-on-trial",
        "clusterrole.rbac.authorization.k8s.io/pleg-on-trial-report",
        "clusterrolebinding.rbac.authorization.k8s.io/pleg-on-trial-report",
        "secret/sh.helm.release.v1.pleg-on-trial.v1",
    ] {
        ensure!(said.contains(object), "no {object} in\n{said}");
    }
    helm(context, &["upgrade", release, &chart, "--set", "witness=true"])?;
    let host_pid = [
        "get",
        "daemonset",
        release,
        "--output=jsonpath={.spec.template.spec.hostPID}",
    ];
    ensure!(
        context.kubectl.run_args(&host_pid).await? == "true",
        "the upgrade changed nothing"
    );
    helm(context, &["uninstall", release, "--wait"])?;
    until("everything to be gone", PATIENCE, async || {
        let left = left_of(context, release).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}
