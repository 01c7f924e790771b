//! What `deploy/` and `release/image` make, in a cluster: the image in a node's runtime, and the `DaemonSet` as written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Member;
use super::member::LABEL;
use super::suite::{Context, PATIENCE};
use crate::Runtime;
use crate::image::{self, Program};
use crate::node::{binary, is_ready};
use crate::wait::until;

/// What all objects of one release have.
pub const SELECTOR: &str = "app.kubernetes.io/instance=pleg";

/// The repository that this was built from.
pub fn repository() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().context("find the repository")
}

/// Runs a program that has to succeed.
pub fn succeed(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("{command:?}"))?;
    let words = String::from_utf8_lossy(&stderr);
    ensure!(status.success(), "{command:?}: {status}: {words}");
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// The image of the manifests, with the binary that cargo made, in a runtime.
pub async fn load_image(runtime: &Runtime) -> Result<()> {
    let dir = runtime.home().dir();
    let stripped = dir.join("pleg");
    // Symbols are most of a debug build. Without strip it is only larger.
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(binary()?).status();
    if !strip.is_ok_and(|status| status.success()) {
        fs::copy(binary()?, &stripped)?;
    }
    let archive = dir.join("pleg.tar");
    let mut make = Command::new(repository()?.join("release/image"));
    make.arg("--binary").arg(&stripped).arg("--output").arg(&archive);
    tokio::task::spawn_blocking(move || succeed(&mut make)).await??;
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("localhost/pleg:{version}");
    runtime.import(&fs::read(&archive)?, &[&name]).await
}

/// Makes a kubelet with the image the node of the scenario, and runs a pod `web` on it.
pub async fn kubelet_with_a_pod(context: &Context) -> Result<&Member> {
    let member = Member::kubelet(&context.cluster, context.version, &context.node_name).await?;
    let node = context.join(member)?;
    load_image(node.runtime()).await?;
    let command = Program::Stubborn.command();
    let app = json!({ "name": "app", "image": image::NAME, "imagePullPolicy": "Never", "command": command });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [app] });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" }, "spec": spec });
    context.kubectl.apply(&pod.to_string()).await?;
    context.until_pod_ready("web").await?;
    Ok(node)
}

/// A kustomization of the base with components and patches, in a directory of its own.
pub fn kustomization(context: &Context, name: &str, components: &[&str], patches: &[Value]) -> Result<PathBuf> {
    // A root may not be named by an absolute path.
    let up = "../".repeat(16);
    let kustomize = format!("{up}{}/deploy/kustomize", repository()?.display());
    let components = components
        .iter()
        .map(|component| format!("{kustomize}/components/{component}"));
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": context.namespace,
        "resources": [format!("{kustomize}/base")],
        "components": components.collect::<Vec<_>>(),
        "patches": patches,
    });
    let dir = context.cluster.dir().join(format!("{}-{name}", context.namespace));
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("kustomization.yaml"), kustomization.to_string())?;
    Ok(dir)
}

/// Applies the manifests, with what is particular to this machine: where the runtime's socket is, and which node is meant.
pub async fn deploy(context: &Context, components: &[&str]) -> Result<()> {
    let socket = context.node()?.runtime().endpoint().path();
    let mut selector = json!({ "kubernetes.io/os": "linux" });
    selector[LABEL] = json!(context.node_name);
    let replace = |path: &str, value: Value| json!({ "op": "replace", "path": path, "value": value });
    let pod = "/spec/template/spec";
    let of_pod = json!([
        replace(&format!("{pod}/volumes/0/hostPath/path"), json!(socket)),
        replace(&format!("{pod}/nodeSelector"), selector),
    ]);
    let patch = |kind: &str, name: &str, patch: &Value| {
        let options = json!({ "allowNameChange": true });
        json!({ "target": { "kind": kind, "name": name }, "patch": patch.to_string(), "options": options })
    };
    let mut patches = vec![patch("DaemonSet", "pleg", &of_pod)];
    // The namespaces of several scenarios are in one cluster, and bindings are in none.
    for (component, name) in [
        ("report-to-cluster", "pleg-report"),
        ("report-pod-condition", "pleg-report-pod-condition"),
    ] {
        if components.contains(&component) {
            let own = json!([replace(
                "/metadata/name",
                json!(format!("{name}-{}", context.namespace))
            )]);
            patches.push(patch("ClusterRoleBinding", name, &own));
        }
    }
    let dir = kustomization(context, "deploy", components, &patches)?;
    context
        .kubectl
        .run_args(&["apply", "--kustomize", &dir.display().to_string()])
        .await?;
    Ok(())
}

/// The pod of the `DaemonSet`, once it is ready.
pub async fn ready_pod(context: &Context, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    until(what, PATIENCE, async || {
        let pods = context.pods(SELECTOR).await?;
        let found = pods.iter().find(|pod| is_ready(pod) && is(pod));
        found
            .cloned()
            .with_context(|| pods.iter().map(|pod| pod["status"].to_string()).collect::<String>())
    })
    .await
}

/// Runs `pleg` in a pod.
pub async fn exec(context: &Context, pod: &Value, args: &[&str]) -> Result<String> {
    let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
    let line = [&["exec", name, "--", "pleg"], args].concat();
    context.kubectl.run_args(&line).await
}
