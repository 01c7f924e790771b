//! What `pleg node` does with the machine, on real runtimes: network, logs, cgroups, pressure, images.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use pleg_cri::v1;
use pleg_e2e::checks::{nothing_is_left, page, uid};
use pleg_e2e::image::Program;
use pleg_e2e::node::{container, is_ready, manifest, runs};
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Node, Version, scenarios, suite, version};
use serde_json::Value;

fn main() -> ExitCode {
    suite::main_on(&[(
        &[Version::V1_7, Version::V2_1, Version::Crio],
        scenarios![
            a_pod_network_has_addresses,
            a_log_stays_within_bounds,
            a_pod_has_a_cgroup_of_its_class,
            a_pod_is_evicted_under_pressure,
            the_image_of_sandboxes_is_never_collected,
        ],
    )])
}

/// With plugins that make a pair of interfaces for each pod, which go with its namespace: the host keeps nothing.
async fn a_pod_network_has_addresses(context: &Context) -> Result<()> {
    version::tool("usr/lib/cni/ptp").context("NO POD NETWORK WAS TESTED: the plugins are missing")?;
    let home = context.runtime.home().dir();
    // All of them at once, on one host.
    let net = match context.version() {
        Version::V1_7 => 17,
        Version::V2_1 => 21,
        _ => 36,
    };
    // Of this runtime alone: runtimes share a record of attachments, and CRI-O clears away those of a network that are not its own.
    let name = context.runtime.home().cgroup();
    let conf = format!(
        r#"{{"cniVersion": "0.4.0", "name": "{name}", "plugins": [{{"type": "ptp", "ipam": {{"type": "host-local",
        "subnet": "10.213.{net}.0/24", "dataDir": "{}"}}}}]}}"#,
        home.join("ipam").display()
    );
    std::fs::write(home.join("cni/10-test.conflist"), conf)?;
    let node = Node::start(&context.runtime).await?;
    let shows = runs(
        "app",
        &Program::Shell("echo $IP > index.html; exec httpd -f -p 80".to_owned()),
        "workingDir: /tmp, env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}], \
         readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}",
    );
    let spec = manifest("p", &format!("terminationGracePeriodSeconds: 0, containers: [{shows}]"))
        .replace("hostNetwork: true", "hostNetwork: false");
    node.write("p.yaml", &spec)?;
    let pod = node.until_ready("p").await?;
    let ip = pod["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    ensure!(ip.starts_with(&format!("10.213.{net}.")), "{pod}");
    let said = page(format!("{ip}:80")).await?;
    ensure!(said.contains(&ip), "{said}");
    // The sandbox dies, and with it the address; the next one has another.
    let sandboxes = context.truth().await?;
    let sandbox = sandboxes.pods.values().flat_map(|pod| pod.sandboxes.keys()).next();
    context.kubelet.lose_sandbox(sandbox.context("no sandbox")?).await?;
    let again = node
        .until("p", "another address", |pod| {
            let next = pod["status"]["podIP"].as_str();
            is_ready(pod) && next.is_some_and(|next| next != ip)
        })
        .await?;
    let next = again["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    let said = page(format!("{next}:80")).await?;
    ensure!(said.contains(&next), "{said}");
    node.remove("p.yaml")?;
    node.until_gone("p").await?;
    nothing_is_left(context, &node).await?;
    let leases = std::fs::read_dir(home.join("ipam").join(name))?.flatten();
    let held: Vec<_> = leases
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with("10."))
        .collect();
    ensure!(held.is_empty(), "addresses that nobody gives back: {held:?}");
    Ok(())
}

/// What was written is in the log that was put aside, and what is written next in the one that was begun.
async fn a_log_stays_within_bounds(context: &Context) -> Result<()> {
    let node = Node::new(&context.runtime)?;
    node.up(&["--container-log-max-size", "4Ki", "--container-log-max-files", "2"])
        .await?;
    let talks = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; while true; do echo tick; sleep 1; done";
    let talks = runs("app", &Program::Shell(talks.to_owned()), "");
    node.write(
        "p.yaml",
        &manifest("p", &format!("terminationGracePeriodSeconds: 0, containers: [{talks}]")),
    )?;
    let pod = node.until_ready("p").await?;
    let directory = node.dir().join(format!("logs/default_p-n_{}/app", uid(&pod)?));
    let id = container(&pod, "app")["containerID"].as_str().unwrap_or_default();
    let id = id.rsplit('/').next().unwrap_or_default();
    let link = node.dir().join(format!("containers/p-n_default_app-{id}.log"));
    ensure!(
        std::fs::read_link(&link)? == directory.join("0.log"),
        "{}",
        link.display()
    );
    until("a log that was put aside, and a new one", PATIENCE, async || {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&directory)? {
            names.push(entry?.path());
        }
        names.sort();
        let [now, before] = names.as_slice() else {
            bail!("{names:?}");
        };
        ensure!(std::fs::read_to_string(before)?.contains("line 499"), "{names:?}");
        let written = std::fs::read_to_string(now)?;
        ensure!(written.contains("tick") && !written.contains("line"), "{written}");
        Ok(())
    })
    .await?;
    node.remove("p.yaml")?;
    node.until_gone("p").await?;
    nothing_is_left(context, &node).await
}

/// The value of a file of a pod's cgroup: its name in version 1, and in version 2.
fn cgroup_value(cgroup: &str, [v1, v2]: [&str; 2]) -> Result<String> {
    let top = Path::new("/sys/fs/cgroup");
    let path = if top.join("cgroup.controllers").exists() {
        top.join(cgroup).join(v2)
    } else {
        let controller = v1.split('.').next().unwrap_or_default();
        top.join(controller).join(cgroup).join(v1)
    };
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

/// The limits of the whole pod are on its cgroup, and its containers are in it.
async fn a_pod_has_a_cgroup_of_its_class(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let limits = "limits: {cpu: 500m, memory: 64Mi}";
    for (name, resources) in [
        ("guaranteed", limits.to_owned()),
        ("burstable", format!("{limits}, requests: {{cpu: 250m}}")),
        ("besteffort", String::new()),
    ] {
        let more = format!("resources: {{{resources}}}");
        let container = runs("app", &Program::Stubborn, &more);
        node.write(
            &format!("{name}.yaml"),
            &manifest(
                name,
                &format!("terminationGracePeriodSeconds: 0, containers: [{container}]"),
            ),
        )?;
    }
    let root = context.runtime.home().cgroup();
    for (name, class, shares, memory) in [
        ("guaranteed", "", ["512", "20"], Some("67108864")),
        ("burstable", "/burstable", ["256", "10"], Some("67108864")),
        ("besteffort", "/besteffort", ["2", "1"], None),
    ] {
        let pod = node.until_ready(name).await?;
        let cgroup = format!("{root}/kubepods{class}/pod{}", uid(&pod)?);
        let weight = cgroup_value(&cgroup, ["cpu.shares", "cpu.weight"])?;
        ensure!(shares.contains(&weight.as_str()), "{name}: weight {weight}");
        let limit = cgroup_value(&cgroup, ["memory.limit_in_bytes", "memory.max"])?;
        match memory {
            Some(memory) => ensure!(limit == memory, "{name}: memory limit {limit}"),
            None => ensure!(limit == "max" || limit.len() > 15, "{name}: memory limit {limit}"),
        }
        let id = container(&pod, "app")["containerID"].as_str().unwrap_or_default();
        let id = id.rsplit('/').next().unwrap_or_default();
        // The container's processes are charged to the pod. CRI-O puts its name before the id.
        let usage = |name: &str| {
            let cgroup = format!("{cgroup}/{name}");
            cgroup_value(&cgroup, ["memory.usage_in_bytes", "memory.current"])
        };
        let own = usage(id).or_else(|_| usage(&format!("crio-{id}")))?;
        ensure!(own.parse::<u64>()? > 0, "{name}: {own}");
    }
    let burstable = cgroup_value(&format!("{root}/kubepods/burstable"), ["cpu.shares", "cpu.weight"])?;
    ensure!(["256", "10"].contains(&burstable.as_str()), "class: {burstable}");
    for name in ["guaranteed", "burstable", "besteffort"] {
        node.remove(&format!("{name}.yaml"))?;
        node.until_gone(name).await?;
    }
    nothing_is_left(context, &node).await
}

/// With a threshold that no machine reaches: every pod is evicted, and says what it used.
async fn a_pod_is_evicted_under_pressure(context: &Context) -> Result<()> {
    let node = Node::new(&context.runtime)?;
    node.up(&["--eviction-hard", "memory.available<1000Ti"]).await?;
    let requests = "resources: {requests: {memory: 1Mi}}";
    let eats = runs("app", &Program::Eat(20), requests);
    node.write("p.yaml", &manifest("p", &format!("containers: [{eats}]")))?;
    let waits = runs("app", &Program::Stubborn, "");
    node.write(
        "q.yaml",
        &manifest("q", &format!("terminationGracePeriodSeconds: 0, containers: [{waits}]")),
    )?;
    let is_evicted = |pod: &Value| pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted";
    let evicted = node.until("p", "eviction", is_evicted).await?;
    let message = evicted["status"]["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 1000Ti, available: "),
        "{message}"
    );
    ensure!(message.contains("Container app was using "), "{message}");
    // A best-effort pod does not even start.
    let not_admitted = |pod: &Value| pod["status"]["message"] == "The node had condition: [MemoryPressure]. ";
    node.until("q", "refusal", not_admitted).await?;
    until("its end", PATIENCE, async || {
        let truth = context.truth().await?;
        let runs = truth.to_string().contains("Running");
        ensure!(!runs, "{truth}");
        Ok(())
    })
    .await?;
    let (_, conditions) = node.get("/api/v1/node/conditions").await?;
    ensure!(conditions.contains("KubeletHasInsufficientMemory"), "{conditions}");
    // It stays evicted without the pressure, and the other one starts.
    node.stop().await?;
    node.up(&[]).await?;
    node.until_ready("q").await?;
    node.until("p", "eviction", is_evicted).await?;
    node.remove("p.yaml")?;
    node.remove("q.yaml")?;
    node.until_gone("p").await?;
    node.until_gone("q").await?;
    nothing_is_left(context, &node).await
}

/// Every disk is too full for these thresholds, and no container exists: only that sandboxes need the image keeps it.
async fn the_image_of_sandboxes_is_never_collected(context: &Context) -> Result<()> {
    let node = Node::new(&context.runtime)?;
    node.up(&[
        "--image-gc-high-threshold",
        "1",
        "--image-gc-low-threshold",
        "0",
        "--image-minimum-gc-age",
        "0s",
    ])
    .await?;
    until("a collection", PATIENCE, async || {
        let (_, metrics) = node.get("/metrics").await?;
        let failures = metrics
            .lines()
            .find_map(|line| line.strip_prefix("pleg_node_image_gc_failures_total "));
        ensure!(failures.is_some_and(|count| count != "0"), "{failures:?}");
        Ok(())
    })
    .await?;
    let images = context.runtime.client().call(v1::ListImagesRequest::default()).await?;
    ensure!(!images.images.is_empty(), "the image is gone");
    node.write(
        "p.yaml",
        &manifest("p", &format!("containers: [{}]", runs("app", &Program::Stubborn, ""))),
    )?;
    node.until_ready("p").await?;
    Ok(())
}
