//! `pleg node` on real runtimes: what containers get of the node, and leave there.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use pleg_e2e::image::Program;
use pleg_e2e::node::{container, manifest, runs};
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Node, Version, scenarios, suite};

fn main() -> ExitCode {
    suite::main_on(&[(
        &[Version::V1_7, Version::V2_1, Version::Crio],
        scenarios![
            a_container_gets_its_files_and_leaves_a_message,
            a_sub_path_cannot_leave_its_volume,
            a_failure_without_a_message_has_the_end_of_the_log,
        ],
    )])
}

/// What is mounted below a directory.
fn mounts_below(directory: &Path) -> Result<Vec<String>> {
    let directory = std::fs::canonicalize(directory)?.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points
        .filter(|point| point.starts_with(&directory))
        .map(str::to_owned)
        .collect())
}

/// A file system in memory, a part of a volume, files of the downward API, variables, aliases in the hosts file: the container says in its
/// termination message what it finds. Then the node is killed, and another one removes what the first one mounted.
async fn a_container_gets_its_files_and_leaves_a_message(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let writes = "mkdir -p /data/part && echo from-init > /data/part/file";
    let says = "{ grep db.local /etc/hosts; grep ' /mem ' /proc/mounts; cat /sub/file; cat /pod/name; echo; echo $MEMORY; id -G; ls -ld /mem; } \
                > /dev/termination-log 2>&1; exit 3";
    let mounts = "volumeMounts: [{name: mem, mountPath: /mem}, {name: data, mountPath: /sub, subPathExpr: $(PART)}, \
                  {name: pod, mountPath: /pod}], resources: {limits: {memory: 64Mi}}, env: [{name: PART, value: part}, \
                  {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}]";
    let init = runs(
        "init",
        &Program::Shell(writes.to_owned()),
        "volumeMounts: [{name: data, mountPath: /data}], resources: {limits: {memory: 64Mi}}",
    );
    let app = runs("app", &Program::Shell(says.to_owned()), mounts);
    node.write(
        "p.yaml",
        &manifest(
            "p",
            &format!(
                "restartPolicy: Never, hostAliases: [{{ip: 10.1.1.1, hostnames: [db, db.local]}}], securityContext: {{fsGroup: 4242}}, \
                 volumes: [{{name: mem, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}, {{name: data, emptyDir: {{}}}}, \
                 {{name: pod, downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}], \
                 initContainers: [{init}], containers: [{app}]"
            ),
        ),
    )?;
    let pod = node
        .until("p", "a failure", |pod| pod["status"]["phase"] == "Failed")
        .await?;
    let terminated = &container(&pod, "app")["state"]["terminated"];
    let message = terminated["message"].as_str().unwrap_or_default();
    ensure!(terminated["exitCode"] == 3, "{pod}");
    for wanted in [
        "10.1.1.1\tdb\tdb.local\n",
        "tmpfs /mem tmpfs ",
        "size=1024k",
        "\nfrom-init\np-n\n64\n",
        "4242",
        "drwxrwsrwt",
    ] {
        ensure!(message.contains(wanted), "{wanted:?} is missing: {message}");
    }
    let mounted = mounts_below(node.dir())?;
    ensure!(mounted.len() == 3, "{mounted:?}");
    // What it mounted outlives it; another run of it finds that.
    node.kill().await?;
    node.remove("p.yaml")?;
    node.up(&[]).await?;
    node.until_gone("p").await?;
    // A run that starts does not show a pod whose manifest is gone; it ends it all the same.
    until("everything to be removed", PATIENCE, async || {
        let left = mounts_below(node.dir())?;
        ensure!(left.is_empty(), "{left:?}");
        let mut directories = std::fs::read_dir(node.dir().join("pods"))?;
        ensure!(directories.next().is_none());
        Ok(())
    })
    .await
}

/// A container puts a link to the host where another one mounts a part of their volume.
async fn a_sub_path_cannot_leave_its_volume(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let init = runs(
        "init",
        &Program::Shell("ln -s /etc /data/part".to_owned()),
        "volumeMounts: [{name: data, mountPath: /data}]",
    );
    let app = runs(
        "app",
        &Program::Stubborn,
        "volumeMounts: [{name: data, mountPath: /sub, subPath: part}]",
    );
    node.write(
        "p.yaml",
        &manifest(
            "p",
            &format!(
                "terminationGracePeriodSeconds: 0, volumes: [{{name: data, emptyDir: {{}}}}], initContainers: [{init}], containers: [{app}]"
            ),
        ),
    )?;
    let pod = node
        .until("p", "a refusal", |pod| {
            container(pod, "app")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        })
        .await?;
    let waiting = &container(&pod, "app")["state"]["waiting"];
    let message = waiting["message"].as_str().unwrap_or_default();
    ensure!(message.ends_with("leads out of the volume"), "{message}");
    node.remove("p.yaml")?;
    node.until_gone("p").await
}

async fn a_failure_without_a_message_has_the_end_of_the_log(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let app = runs(
        "app",
        &Program::Shell("echo one; echo two >&2; exit 4".to_owned()),
        "terminationMessagePolicy: FallbackToLogsOnError",
    );
    node.write(
        "p.yaml",
        &manifest("p", &format!("restartPolicy: Never, containers: [{app}]")),
    )?;
    let pod = node
        .until("p", "a failure", |pod| pod["status"]["phase"] == "Failed")
        .await?;
    let message = container(&pod, "app")["state"]["terminated"]["message"].clone();
    let mut lines: Vec<&str> = message.as_str().unwrap_or_default().lines().collect();
    // Two pipes have no order.
    lines.sort_unstable();
    ensure!(lines == ["one", "two"], "{pod}");
    node.remove("p.yaml")?;
    node.until_gone("p").await
}
