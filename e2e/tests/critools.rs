//! crictl and critest against the simulator: what people try first on a runtime, and the specs that runtimes are held to.
//!
//! Like the other tests of this crate it is left out, and says so, where its tools are not there; `PLEG_E2E=required` makes that a
//! failure. `PLEG_CRITEST=all` runs every spec of critest (eight minutes: many wait for a minute) and prints how each ended.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::pin::Pin;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use pleg_e2e::critools::{self, Bench};
use pleg_e2e::wait::{PATIENCE, until};
use pleg_sim::SimConfig;
use serde_json::{Value, json};

type Check = for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), (|bench| Box::pin($name(bench))) as Check)),*]
    };
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let wanted = std::env::var("PLEG_E2E").unwrap_or_default();
    let obstacle = match wanted.as_str() {
        "off" => Some("PLEG_E2E=off; the step critools of ./test runs them".to_owned()),
        _ => critools::obstacle(),
    };
    if let Some(obstacle) = &obstacle
        && !arguments.list
    {
        let _ = writeln!(
            std::io::stderr(),
            "pleg-e2e: LEFT OUT, crictl and critest are not run: {obstacle}"
        );
        if wanted == "required" {
            return ExitCode::FAILURE;
        }
    }
    let checks = checks![
        crictl_reads,
        crictl_accepts_short_ids,
        crictl_shows_usage,
        crictl_manages_images,
        crictl_runs_a_pod_to_its_end,
        crictl_reads_logs,
        crictl_follows_events,
        crictl_gets_an_error_for_unsupported_calls,
        critest_has_the_specs_of_the_baseline,
        critest_passes_what_it_passed,
    ];
    let ignored = obstacle.is_some();
    let trials = checks.map(|(name, check)| Trial::test(name, move || run(check)).with_ignored_flag(ignored));
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn run(check: Check) -> Result<(), Failed> {
    let played = || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let config = SimConfig {
                pods: 2,
                // A pull takes a moment: one of the specs gives up on it after a millisecond.
                pull_time: Duration::from_millis(50),
                ..SimConfig::default()
            };
            let bench = Bench::start(config).await?;
            check(&bench).await
        })
    };
    played().map_err(|error| Failed::from(format!("{error:#}")))
}

/// The configuration of a pod, with logs in the bench's directory.
fn pod(bench: &Bench, name: &str) -> Result<String> {
    let logs = bench.dir().join("logs");
    std::fs::create_dir_all(&logs)?;
    let config = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "attempt": 0},
        "log_directory": logs,
        "labels": {"app": name},
        "linux": {},
    });
    bench.file(&format!("{name}.json"), &config)
}

/// The configuration of a container.
fn container(bench: &Bench, name: &str, command: &[&str]) -> Result<String> {
    let config = json!({
        "metadata": {"name": name, "attempt": 0},
        "image": {"image": "busybox:1.36"},
        "command": command,
        "log_path": format!("{name}.log"),
        "linux": {},
    });
    bench.file(&format!("container-{name}.json"), &config)
}

async fn crictl_reads(bench: &Bench) -> Result<()> {
    let version = bench.run(&["version"])?;
    ensure!(version.contains("RuntimeName:  pleg-sim"), "{version}");
    let info = bench.json(&["info"])?;
    ensure!(info["status"]["conditions"][1]["type"] == "NetworkReady", "{info}");
    ensure!(bench.run(&["runtime-config"])?.contains("CGROUPFS"));

    let pods = bench.run(&["pods"])?;
    ensure!(pods.contains("web-0") && pods.contains("web-1"), "{pods}");
    ensure!(bench.run(&["pods", "-q", "--name", "web-1"])?.lines().count() == 1);
    let all = bench.run(&["ps", "-a", "-q"])?;
    ensure!(all.lines().count() == 4, "{all}");
    ensure!(bench.run(&["ps", "-q", "--state", "Exited"])?.is_empty());

    let id = all.lines().next().context("no container")?;
    let inspected = bench.json(&["inspect", id])?;
    ensure!(inspected["status"]["state"] == "CONTAINER_RUNNING", "{inspected}");
    let id = bench.run(&["pods", "-q"])?;
    let inspected = bench.json(&["inspectp", id.lines().next().context("no pod")?])?;
    ensure!(inspected["status"]["state"] == "SANDBOX_READY", "{inspected}");
    ensure!(inspected["info"]["processStatus"] == "running", "{inspected}");
    Ok(())
}

async fn crictl_accepts_short_ids(bench: &Bench) -> Result<()> {
    let container = bench.run(&["ps", "-q"])?.chars().take(12).collect::<String>();
    let inspected = bench.json(&["inspect", &container])?;
    let id = inspected["status"]["id"].as_str().unwrap_or_default();
    ensure!(id.len() == 64 && id.starts_with(&container), "{inspected}");
    ensure!(bench.run(&["ps", "-q", "--id", &container])?.trim() == id);
    let pod = bench.run(&["pods", "-q"])?.chars().take(12).collect::<String>();
    ensure!(bench.run(&["ps", "-q", "--pod", &pod])?.lines().count() == 2);
    ensure!(bench.run(&["stopp", &pod])?.contains("Stopped"));
    ensure!(bench.json(&["inspectp", &pod])?["status"]["state"] == "SANDBOX_NOTREADY");
    let error = bench.fails(&["inspect", "0123456789ab"])?;
    ensure!(error.contains("NotFound"), "{error}");
    Ok(())
}

async fn crictl_shows_usage(bench: &Bench) -> Result<()> {
    let stats = bench.json(&["stats", "-o", "json"])?;
    let stats = stats["stats"].as_array().context("no stats")?;
    ensure!(stats.len() == 4, "{stats:?}");
    for one in stats {
        let number = |value: &Value| {
            value["value"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0_u64)
        };
        ensure!(number(&one["cpu"]["usageCoreNanoSeconds"]) > 0, "{one}");
        ensure!(number(&one["memory"]["workingSetBytes"]) > 0, "{one}");
        ensure!(number(&one["writableLayer"]["usedBytes"]) > 0, "{one}");
    }
    let table = bench.run(&["stats", "--seconds", "1"])?;
    ensure!(table.contains("CPU %") && table.contains("sidecar"), "{table}");
    let table = bench.run(&["statsp", "--seconds", "1"])?;
    ensure!(table.contains("web-0") && table.contains("web-1"), "{table}");
    let usage = bench.json(&["imagefsinfo"])?;
    ensure!(
        usage["status"]["imageFilesystems"][0]["usedBytes"]["value"] != "0",
        "{usage}"
    );
    Ok(())
}

async fn crictl_manages_images(bench: &Bench) -> Result<()> {
    ensure!(bench.run(&["images"])?.contains("docker.io/library/busybox"));
    bench.run(&["pull", "registry.example.com/app:1"])?;
    let image = bench.json(&["inspecti", "registry.example.com/app:1"])?;
    ensure!(
        image["status"]["repoTags"] == json!(["registry.example.com/app:1"]),
        "{image}"
    );
    let removed = bench.run(&["rmi", "registry.example.com/app:1"])?;
    ensure!(removed.contains("Deleted: registry.example.com/app:1"), "{removed}");
    ensure!(
        bench
            .fails(&["inspecti", "registry.example.com/app:1"])?
            .contains("no such image")
    );
    let error = bench.fails(&["pull", "registry.example.com/missing:1"])?;
    ensure!(error.contains("NotFound"), "{error}");
    Ok(())
}

async fn crictl_runs_a_pod_to_its_end(bench: &Bench) -> Result<()> {
    let pod_config = pod(bench, "life")?;
    let sandbox = bench.run(&["runp", &pod_config])?.trim().to_owned();
    let config = container(bench, "main", &["sleep", "600"])?;
    let id = bench
        .run(&["create", &sandbox, &config, &pod_config])?
        .trim()
        .to_owned();
    ensure!(bench.json(&["inspect", &id])?["status"]["state"] == "CONTAINER_CREATED");
    bench.run(&["start", &id])?;
    ensure!(bench.run(&["exec", "-s", &id, "echo", "hello"])?.contains("hello"));
    bench.run(&["update", "--memory", "67108864", &id])?;
    let limits = bench.json(&["inspect", &id])?;
    let limit = &limits["status"]["resources"]["linux"]["memoryLimitInBytes"];
    ensure!(limit == "67108864", "{limits}");

    bench.run(&["stop", "--timeout", "5", &id])?;
    let stopped = bench.json(&["inspect", &id])?;
    ensure!(stopped["status"]["exitCode"] == 143, "{stopped}");
    bench.run(&["stop", &id]).context("a second stop")?;
    bench.run(&["rm", &id])?;
    ensure!(bench.run(&["ps", "-a", "-q", "--pod", &sandbox])?.is_empty());
    bench.run(&["stopp", &sandbox])?;
    bench.run(&["rmp", &sandbox])?;
    ensure!(bench.run(&["pods", "-q", "--label", "app=life"])?.is_empty());
    bench.run(&["update-runtime-config", "--pod-cidr", "10.88.0.0/16"])?;
    let sandbox = bench.run(&["runp", &pod_config])?.trim().to_owned();
    let address = bench.json(&["inspectp", &sandbox])?["status"]["network"]["ip"].to_string();
    ensure!(address.starts_with("\"10.88."), "{address}");
    Ok(())
}

async fn crictl_reads_logs(bench: &Bench) -> Result<()> {
    let pod_config = pod(bench, "logs")?;
    let sandbox = bench.run(&["runp", &pod_config])?.trim().to_owned();
    let config = container(bench, "talks", &["sh", "-c", "echo hello; echo 'you there'; sleep 600"])?;
    let id = bench
        .run(&["create", &sandbox, &config, &pod_config])?
        .trim()
        .to_owned();
    bench.run(&["start", &id])?;
    let log = bench.run(&["logs", &id])?;
    ensure!(log == "hello\nyou there\n", "{log:?}");
    let path = bench.dir().join("logs/talks.log");
    std::fs::rename(&path, path.with_extension("old"))?;
    bench.run(&["logs", "--reopen", &id])?;
    ensure!(path.exists(), "the log was not opened again");
    Ok(())
}

async fn crictl_follows_events(bench: &Bench) -> Result<()> {
    let mut child = bench.crictl(&["events"])?.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("no output")?;
    until("crictl to subscribe", PATIENCE, async || {
        let calls = bench.sim().stats();
        let subscribers = calls.events.as_ref().map_or(0, |events| events.subscribers);
        ensure!(subscribers > 0, "no subscriber");
        Ok(())
    })
    .await?;
    let sandbox = bench.run(&["runp", &pod(bench, "event")?])?.trim().to_owned();
    let first = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.take(200).find(|line| line.contains("CONTAINER_STARTED_EVENT"))
    });
    let found = tokio::time::timeout(PATIENCE, first).await;
    child.kill()?;
    child.wait()?;
    let found = found.context("no event came")??;
    ensure!(found.is_some(), "the stream ended without the start of {sandbox}");
    Ok(())
}

async fn crictl_gets_an_error_for_unsupported_calls(bench: &Bench) -> Result<()> {
    let containers = bench.run(&["ps", "-q"])?;
    let id = containers.lines().next().context("no container")?;
    let pods = bench.run(&["pods", "-q"])?;
    let pod = pods.lines().next().context("no pod")?;
    for (args, why) in [
        (&["exec", id, "true"][..], "ExecSync works (crictl exec -s)"),
        (&["attach", id], "no processes to attach to"),
        (&["port-forward", pod, "80"], "its pods have no network"),
        (&["metricsp"], "the stats calls work"),
    ] {
        let error = bench.fails(args)?;
        ensure!(error.contains("Unimplemented") && error.contains(why), "{error}");
    }
    Ok(())
}

async fn critest_has_the_specs_of_the_baseline(bench: &Bench) -> Result<()> {
    let specs = bench.critest(&["-ginkgo.dry-run".to_owned()])?;
    let baseline = critools::baseline()?;
    let unknown: Vec<&str> = specs
        .keys()
        .map(String::as_str)
        .filter(|&spec| !baseline.contains_key(spec))
        .collect();
    let gone: Vec<&&str> = baseline.keys().filter(|&&spec| !specs.contains_key(spec)).collect();
    ensure!(
        unknown.is_empty() && gone.is_empty(),
        "not in critest.baseline: {unknown:?}; not in critest: {gone:?}"
    );
    Ok(())
}

async fn critest_passes_what_it_passed(bench: &Bench) -> Result<()> {
    if std::env::var("PLEG_CRITEST").is_ok_and(|which| which == "all") {
        return print_all(bench);
    }
    let required = critools::required()?;
    let focus: Vec<String> = required.iter().map(|spec| critools::focus(spec)).collect();
    let ended = bench.critest(&focus)?;
    let failed = required.iter().filter_map(|&spec| {
        let outcome = ended.get(spec)?;
        (outcome.state != "passed").then(|| format!("{spec}: {} {}", outcome.state, outcome.message))
    });
    let failed: Vec<String> = failed.collect();
    ensure!(
        failed.is_empty(),
        "{} of {} specs:\n{}",
        failed.len(),
        required.len(),
        failed.join("\n")
    );
    Ok(())
}

/// For a new baseline: how each spec ended, and in which group it is now.
fn print_all(bench: &Bench) -> Result<()> {
    let baseline = critools::baseline()?;
    let mut out = std::io::stderr().lock();
    for (spec, outcome) in bench.critest(&["-ginkgo.timeout=20m".to_owned()])? {
        let group = baseline.get(spec.as_str()).unwrap_or(&"new");
        let why: String = outcome
            .message
            .chars()
            .take(120)
            .map(|c| if c == '\n' { ' ' } else { c })
            .collect();
        writeln!(out, "{}\t[{group}]\t{spec}\t{why}", outcome.state)?;
    }
    Ok(())
}
