//! `pleg run`: the daemon.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use pleg::{CriRuntime, EventedConfig, Generator, Metrics, Mode, RecorderConfig, WitnessMode};
use pleg_cri::Deadlines;
use pleg_cri::duration::seconds;
use tokio_util::sync::CancellationToken;

use super::report::ClusterReport;
use crate::about::{Settings, Setup};
use crate::args::{GeneratorArgs, Global, Run};
use crate::history_task::DaemonHistory;
use crate::http::{routes, server};
use crate::systemd::Systemd;
use crate::telemetry::Telemetry;
use crate::{Usage, connect, stale_socket};

pub(crate) async fn run(global: &Global, args: Run, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    let path = args.listen.path()?;
    let mut config = config(&args.generator);
    check(&config)?;
    let report = ClusterReport::open(&args.report, args.generator.probe_round, &shutdown).await?;
    let tcp = args.listen.bind_tcp().await?;
    let metrics = Metrics::new()?;
    let telemetry = Telemetry::from_env()?;
    let observer = telemetry.observer(&metrics);
    let connecting = connect::observed_runtime(global, deadlines(global, &args.generator), observer);
    let client = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(ExitCode::SUCCESS),
        client = connecting => client?,
    };
    let unix = args.listen.bind().await?;

    let history = DaemonHistory::open(&args.history, &metrics).await;
    history.configure(&mut config);
    let generator = Generator::new(CriRuntime::new(client.clone()), config, metrics);
    let mut setup = Setup::new(client.clone(), settings(global, &args, &path));
    let (pleg, task) = generator.spawn();
    let history = history.record(&pleg, &mut setup);
    let reporting = report.map(|report| {
        let (handle, reporting) = report.start(&pleg);
        setup.set_report(handle);
        reporting
    });
    let router = routes::router(pleg.clone(), setup, None, shutdown.clone());
    let also = tcp
        .as_ref()
        .map_or(String::new(), |tcp| format!(" and http://{}", tcp.address()));
    tracing::info!(
        "watching {}, serving on unix://{}{also}",
        client.endpoint(),
        path.display()
    );

    let ended = async {
        let ended = task.run_until(shutdown.cancelled()).await;
        // After a panic the daemon ends too: without its generator it would report old statuses as current ones.
        shutdown.cancel();
        ended
    };
    let reporting = async {
        if let Some(reporting) = reporting {
            reporting.await;
        }
    };
    let systemd = Systemd::of_this_process();
    let runtime_socket = async {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Ok(()),
            error = stale_socket::removed(client.endpoint().path()) => {
                shutdown.cancel();
                Err(error)
            }
        }
    };
    let ((), ended, (), stale, (), ()) = tokio::join!(
        server::serve(unix, tcp, router, &shutdown),
        ended,
        systemd.tell(&pleg, &shutdown),
        runtime_socket,
        reporting,
        telemetry.run(&pleg, &shutdown),
    );
    history.finish().await;
    ended?;
    stale?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Settings that contradict each other are wrong usage, and are named as flags.
fn check(config: &pleg::Config) -> Result<(), Usage> {
    config.validate().map_err(|error| Usage(error.named(flag)))
}

/// A setting of the generator as the command line knows it.
fn flag(setting: &'static str) -> &'static str {
    match setting {
        "period" => "--period",
        "threshold" => "--threshold",
        "list_patience" => "--list-patience",
        "evented.most_period" => "--max-period",
        "probe.round" => "--probe-round",
        "feed_capacity" => "--feed-capacity",
        "recorder.window" => "--recorder-window",
        // Those without a flag stand beside one that has one.
        "settle_grace" => "the grace of a relist",
        "probe.least_pause" => "the least pause between probes",
        other => other,
    }
}

/// Unless it is given, the longest pause fits between the other two settings.
fn most_period(args: &GeneratorArgs) -> Duration {
    let default = EventedConfig::default().most_period.min(args.threshold / 2);
    args.max_period.unwrap_or(default.max(args.period))
}

/// The flags in force, for those who read a bug report.
fn settings(global: &Global, args: &Run, socket: &Path) -> Settings {
    let deadlines = deadlines(global, &args.generator);
    let generator = &args.generator;
    Settings::from([
        ("listen", socket.display().to_string()),
        ("listen-tcp", args.listen.tcp_text()),
        ("mode", Mode::from(generator.mode).to_string()),
        ("witness", WitnessMode::from(generator.witness).to_string()),
        ("period", seconds(generator.period)),
        ("max-period", seconds(most_period(generator))),
        ("threshold", seconds(generator.threshold)),
        ("list-patience", seconds(generator.list_patience)),
        ("probe-round", seconds(generator.probe_round)),
        ("list-timeout", seconds(deadlines.list)),
        ("inspect-timeout", seconds(deadlines.inspect)),
        ("feed-capacity", generator.feed_capacity.to_string()),
        ("recorder-window", seconds(generator.recorder_window)),
        ("recorder-mib", generator.recorder_mib.to_string()),
        ("history", args.history.describe()),
        ("report-to-cluster", args.report.report_to_cluster.to_string()),
        ("report-pod-condition", args.report.report_pod_condition.to_string()),
    ])
}

fn config(args: &GeneratorArgs) -> pleg::Config {
    pleg::Config {
        period: args.period,
        threshold: args.threshold,
        list_patience: args.list_patience,
        evented: EventedConfig {
            mode: args.mode.into(),
            most_period: most_period(args),
            ..EventedConfig::default()
        },
        witness: args.witness.into(),
        probe: pleg::ProbeConfig {
            round: args.probe_round,
            ..pleg::ProbeConfig::default()
        },
        feed_capacity: args.feed_capacity,
        recorder: RecorderConfig {
            window: args.recorder_window,
            limit: args.recorder_mib << 20,
        },
        ..pleg::Config::default()
    }
}

/// `/etc/crictl.yaml`'s time is meant for people at a prompt: a daemon has its own defaults.
fn deadlines(global: &Global, args: &GeneratorArgs) -> Deadlines {
    let base = global.timeout.map_or_else(Deadlines::default, connect::every);
    Deadlines {
        list: args.list_timeout.unwrap_or(base.list),
        inspect: args.inspect_timeout.unwrap_or(base.inspect),
        ..base
    }
}
