//! `pleg doctor` on real nodes: one that is well, one with a stopped shim, one that has missed an exit, one whose list hangs by a
//! lock.
//!
//! Runs the binary that `cargo build` made: only cargo's unstable options would build it for us.

use std::process::{Command, ExitCode, Output};

use anyhow::{Context as _, Result, ensure};
use pleg_cri::v1;
use pleg_e2e::steps::app;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Pod, Version, process, scenarios, suite};
use rustix::process::Signal;
use serde_json::Value;

fn main() -> ExitCode {
    suite::main_on(&[
        (&Version::ALL, scenarios![a_node_that_is_well, a_missed_exit_is_named]),
        (&[Version::CrioEvents], scenarios![a_node_that_is_well]),
        // No call to CRI-O passes through a conmon, so a stopped one delays none, and its lists take no container's lock.
        (
            &Version::CONTAINERD,
            scenarios![a_stopped_shim_is_named, a_lock_is_traced_to_its_pod],
        ),
    ])
}

/// Runs it, and returns the report and the exit code.
async fn doctor(context: &Context) -> Result<(Value, Option<i32>)> {
    let tests = std::env::current_exe()?;
    let pleg = tests
        .parent()
        .and_then(|deps| deps.parent())
        .context("no target directory")?
        .join("pleg");
    ensure!(
        pleg.exists(),
        "there is no {}: run cargo build --workspace first",
        pleg.display()
    );
    let endpoint = context.runtime.endpoint().to_string();
    let run = move || {
        Command::new(pleg)
            .args(["doctor", "-o", "json", "-r", &endpoint])
            .output()
    };
    let Output { status, stdout, stderr } = tokio::task::spawn_blocking(run).await??;
    let report =
        serde_json::from_slice(&stdout).with_context(|| format!("{status}: {}", String::from_utf8_lossy(&stderr)))?;
    Ok((report, status.code()))
}

/// The one finding of this trouble.
fn finding<'a>(report: &'a Value, trouble: &str) -> Option<&'a Value> {
    report["findings"]
        .as_array()?
        .iter()
        .find(|finding| finding["trouble"] == trouble)
}

/// Without a network the node would not be well. That there is a configuration is all containerd looks at.
async fn give_a_network(context: &Context) -> Result<()> {
    let dir = context.runtime.home().dir().join("cni");
    std::fs::create_dir_all(&dir)?;
    let plugins = r#"{"cniVersion": "0.4.0", "name": "test", "plugins": [{"type": "loopback"}]}"#;
    std::fs::write(dir.join("10-test.conflist"), plugins)?;
    until("the runtime to find its network", PATIENCE, async || {
        let answer = context.runtime.client().call(v1::StatusRequest::default()).await?;
        let conditions = answer.status.unwrap_or_default().conditions;
        ensure!(conditions.iter().all(|condition| condition.status), "{conditions:?}");
        Ok(())
    })
    .await
}

async fn a_node_that_is_well(context: &Context) -> Result<()> {
    give_a_network(context).await?;
    for name in ["web", "db"] {
        let sandbox = context.kubelet.run_pod(&Pod::new(name)).await?;
        context.kubelet.run(&sandbox, &app()).await?;
    }
    let before = context.truth().await?;
    let (report, code) = doctor(context).await?;
    ensure!(context.truth().await? == before, "an examination changed the runtime");

    let broken = report["severity"] == "critical" || report["severity"] == "warning";
    ensure!(code == Some(0) && !broken, "{code:?}: {report}");
    let counts = &report["counts"];
    ensure!(
        counts["pods"] == 2 && counts["containers"] == 2 && counts["running"] == 2,
        "{counts}"
    );
    // What they have, as far as it was seen with the eye.
    let (events, runtime_config, split) = match context.version() {
        Version::V1_6 => ("unimplemented", false, false),
        Version::V1_7 => ("refused", false, true),
        Version::V2_1 | Version::Crio | Version::CrioEvents => ("not-tried", true, false),
    };
    ensure!(report["events"]["state"] == events, "{}", report["events"]);
    ensure!(
        report["runtime"]["runtime_config"] == runtime_config,
        "{}",
        report["runtime"]
    );
    ensure!(
        report["runtime"]["streaming_lists"] == context.version().is_crio(),
        "{}",
        report["runtime"]
    );
    ensure!(finding(&report, "split-events").is_some() == split, "{report}");
    ensure!(report["kubelet"]["verdict"] == "ready", "{}", report["kubelet"]);
    Ok(())
}

/// Lists and statuses are as ever: only the shim itself does not answer.
async fn a_stopped_shim_is_named(context: &Context) -> Result<()> {
    let sandbox = context.kubelet.run_pod(&Pod::new("bad")).await?;
    let id = context.kubelet.run(&sandbox, &app()).await?;
    context.kubelet.run_pod(&Pod::new("good")).await?;
    let pid = context.runtime.monitor(&sandbox.id, &id)?.pid;
    let frozen = process::Frozen::new(pid)?;
    let (report, code) = doctor(context).await?;
    frozen.thaw();
    ensure!(code == Some(1), "{code:?}: {report}");
    let finding = finding(&report, "hung-shim").with_context(|| report.to_string())?;
    let places = finding["objects"].as_array().context("no places")?;
    ensure!(places.len() == 1, "{finding}");
    ensure!(places[0]["pod"] == "default/bad", "{finding}");
    ensure!(
        places[0]["shim_pid"] == pid && places[0]["shim_state"] == "T",
        "{finding}"
    );
    // And when it runs again all is well with it.
    let (report, _) = doctor(context).await?;
    ensure!(self::finding(&report, "hung-shim").is_none(), "{report}");
    Ok(())
}

/// The runtime does not learn that the process has exited, and no call reveals it.
async fn a_missed_exit_is_named(context: &Context) -> Result<()> {
    let sandbox = context.kubelet.run_pod(&Pod::new("bad")).await?;
    let id = context.kubelet.run(&sandbox, &app()).await?;
    let good = context.kubelet.run_pod(&Pod::new("good")).await?;
    context.kubelet.run(&good, &app()).await?;
    let (report, _) = doctor(context).await?;
    ensure!(report["witness"]["watched"] == 2, "{}", report["witness"]);
    ensure!(finding(&report, "missed-exit").is_none(), "{report}");

    let shim = context.runtime.monitor(&sandbox.id, &id)?.pid;
    let pid = context.kubelet.container_pid(&id).await?;
    let frozen = process::Frozen::new(shim)?;
    process::signal(pid, Signal::KILL)?;
    let (report, code) = doctor(context).await?;
    frozen.thaw();
    ensure!(code == Some(1), "{code:?}: {report}");
    let finding = finding(&report, "missed-exit").with_context(|| report.to_string())?;
    let places = finding["objects"].as_array().context("no places")?;
    ensure!(places.len() == 1 && places[0]["pod"] == "default/bad", "{finding}");
    ensure!(
        places[0]["shim_pid"] == shim && places[0]["shim_state"] == "T",
        "{finding}"
    );
    Ok(())
}

/// A call into a stopped shim holds a container's lock: every list of containers hangs. No container can be named without its id, but
/// its pod can.
async fn a_lock_is_traced_to_its_pod(context: &Context) -> Result<()> {
    let sandbox = context.kubelet.run_pod(&Pod::new("bad")).await?;
    let locked = context.kubelet.run(&sandbox, &app()).await?;
    context.kubelet.run_pod(&Pod::new("good")).await?;
    let frozen = process::Frozen::new(context.runtime.monitor(&sandbox.id, &locked)?.pid)?;
    let update = tokio::spawn({
        let kubelet = context.kubelet.clone();
        async move { kubelet.update_cpu_shares(&locked, 512).await }
    });
    until("the doctor to find the lock", PATIENCE, async || {
        let (report, code) = doctor(context).await?;
        let finding = finding(&report, "locked-container").with_context(|| report.to_string())?;
        ensure!(finding["objects"][0]["pod"] == "default/bad", "{finding}");
        ensure!(
            report["kubelet"]["verdict"] == "not-ready" && code == Some(1),
            "{report}"
        );
        Ok(())
    })
    .await?;
    frozen.thaw();
    update.await??;
    Ok(())
}
