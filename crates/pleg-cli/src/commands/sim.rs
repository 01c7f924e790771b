//! `pleg sim`: a simulated CRI runtime on a real socket, `pleg sim ctl` to control it, and `pleg sim proxy` to inject its faults in front
//! of a real one.

mod ctl;
mod proxy;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use pleg_cri::{ApiVersion, Endpoint};
use pleg_sim::{Flavour, Scenario, Sim, SimConfig, Span};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::text::count;

/// The default socket on which a simulator serves CRI.
const LISTEN: &str = "unix:///tmp/pleg-sim.sock";
/// The default socket on which it accepts commands, also the default of `pleg sim ctl`.
const CONTROL: &str = "unix:///tmp/pleg-sim-ctl.sock";

const EXAMPLES: &str = "\
Examples:
  A node of 100 pods with 2 containers each:
    pleg sim --listen unix:///tmp/cri.sock --pods 100

  The same with churn, latency and a control socket:
    pleg sim --listen unix:///tmp/cri.sock --control unix:///tmp/ctl.sock --pods 100 --churn 50 --latency 5ms

  With the default sockets:
    pleg sim
    pleg sim ctl pods
    pleg pods -r unix:///tmp/pleg-sim.sock

  In another terminal, hang one container's status and see the call counters:
    pleg sim ctl --control unix:///tmp/ctl.sock hang --rpc ContainerStatus --pod default/web-3 --container app
    pleg sim ctl --control unix:///tmp/ctl.sock stats";

/// Run a simulated CRI runtime: real socket, thousands of pods, churn, faults that change while it runs.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = EXAMPLES)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: Option<SimCommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Control a running simulator or proxy, or show its counters.
    Ctl(ctl::CtlArgs),
    /// Inject the simulator's faults in front of a real runtime.
    Proxy(proxy::ProxyArgs),
}

/// Which API is served.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Api {
    V1,
    V1alpha2,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Serve CRI on this socket (mode 0600; removed at the end).
    #[arg(long, value_name = "ENDPOINT", default_value = LISTEN)]
    listen: Endpoint,
    /// Accept commands of `pleg sim ctl` on this socket [default: /tmp/pleg-sim-ctl.sock, if --listen is the default
    /// too; else none].
    #[arg(long, value_name = "ENDPOINT")]
    control: Option<Endpoint>,
    /// Initial number of pods, named default/web-0, default/web-1, … [default: 10].
    #[arg(long, value_name = "N")]
    pods: Option<usize>,
    /// Containers per pod [default: 2].
    #[arg(long, value_name = "M")]
    containers: Option<usize>,
    /// The same seed and the same steps give the same ids and states [default: 1].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Changes per second: containers exit and restart, pods are removed and added [default: 0].
    #[arg(long, value_name = "PER_SECOND")]
    churn: Option<f64>,
    /// Every call takes at least this long, as in 5ms [default: 0s].
    #[arg(long, value_name = "DURATION")]
    latency: Option<Span>,
    /// Add up to this much to the latency, at random.
    #[arg(long, value_name = "DURATION")]
    jitter: Option<Span>,
    /// CRI version to serve; the other one is UNIMPLEMENTED [default: v1].
    #[arg(long, value_enum, value_name = "VERSION")]
    api: Option<Api>,
    /// Which runtime to imitate: sim, containerd-1.6, containerd-1.7, containerd-2.1 or crio [default: sim].
    ///
    /// This sets the reported version and how events behave: 1.6 has none; 1.7 delivers each event to one subscriber only, keeps
    /// 1000 while there is no subscriber, and reports the end of a sandbox without its status; 2.1 keeps five minutes of events.
    #[arg(long, value_name = "NAME")]
    flavour: Option<Flavour>,
    /// Serve the streaming list calls too.
    #[arg(long)]
    streaming_lists: bool,
    /// Give every running container a real process, in a cgroup of its own, so that the kernel can be watched too; needs root or a
    /// delegated cgroup.
    #[arg(long)]
    processes: bool,
    /// With --processes: how long after the death of its process a container ends [default: 60ms, about as containerd 1.7].
    #[arg(long, value_name = "DURATION")]
    exit_lag: Option<Span>,
    /// Load a scenario from this YAML file and run its steps; flags override the file.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

impl RunArgs {
    /// The defaults, then the file, then the flags.
    fn config(&self) -> anyhow::Result<SimConfig> {
        let mut config = SimConfig {
            pods: 10,
            ..Default::default()
        };
        if let Some(file) = &self.scenario {
            Scenario::read(file)?.apply(&mut config);
        }
        config.pods = self.pods.unwrap_or(config.pods);
        config.containers = self.containers.unwrap_or(config.containers);
        config.seed = self.seed.unwrap_or(config.seed);
        config.churn = self.churn.unwrap_or(config.churn);
        config.latency = self.latency.map_or(config.latency, |span| span.0);
        config.jitter = self.jitter.map_or(config.jitter, |span| span.0);
        config.flavour = self.flavour.unwrap_or(config.flavour);
        config.streaming_lists |= self.streaming_lists;
        config.processes |= self.processes;
        config.exit_lag = self.exit_lag.map_or(config.exit_lag, |span| span.0);
        config.api = self.api.map_or(config.api, |api| match api {
            Api::V1 => ApiVersion::V1,
            Api::V1alpha2 => ApiVersion::V1Alpha2,
        });
        config.control = match &self.control {
            Some(control) => Some(control.clone()),
            // Several simulators may run, each on its own socket; only one can have the default.
            None if self.listen.to_string() == LISTEN => Some(Endpoint::parse(CONTROL)?),
            None => None,
        };
        same_socket("--control", config.control.as_ref(), &self.listen)?;
        Ok(config)
    }
}

fn same_socket(flag: &str, one: Option<&Endpoint>, other: &Endpoint) -> anyhow::Result<()> {
    if one == Some(other) {
        let words = format!("{flag} {other} is already used by another flag: choose different sockets");
        return Err(crate::Usage(words).into());
    }
    Ok(())
}

/// Ctrl-C or SIGTERM, which shut down in order from now on.
struct Ending {
    interrupt: Signal,
    terminate: Signal,
}

impl Ending {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?,
        })
    }

    async fn come(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs `pleg sim`.
pub(crate) async fn run(args: SimArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(SimCommand::Ctl(ctl)) => return ctl::run(ctl).await,
        Some(SimCommand::Proxy(proxy)) => return proxy::run(proxy).await,
        None => {}
    }
    let config = args.run.config()?;
    // Before the socket is there.
    let mut ending = Ending::new()?;
    let control = config.control.clone();
    let sim = Sim::start(config, args.run.listen).await?;
    let counts = sim.world().counts();
    let control = control.map_or(String::new(), |control| format!(", control on {control}"));
    writeln!(
        anstream::stderr(),
        "simulated runtime ready on {}: {}, {}{control}",
        sim.endpoint(),
        count(counts.pods, "pod"),
        count(counts.containers, "container")
    )?;
    ending.come().await;
    sim.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Typed {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn control(args: &[&str]) -> Option<String> {
        let typed = Typed::parse_from([&["sim"], args].concat());
        let config = typed.sim.run.config().unwrap();
        config.control.map(|control| control.to_string())
    }

    /// `pleg sim` and `pleg sim ctl` meet without a flag.
    #[test]
    fn the_default_sockets_meet() {
        assert_eq!(control(&[]).as_deref(), Some(CONTROL));
        assert_eq!(control(&["--listen", "unix:///tmp/x.sock"]), None);
        assert_eq!(
            control(&["--control", "unix:///tmp/y.sock"]).as_deref(),
            Some("unix:///tmp/y.sock")
        );
        let ctl = Typed::parse_from(["sim", "ctl", "pods"]);
        let Some(SimCommand::Ctl(ctl)) = ctl.sim.command else {
            panic!("not ctl")
        };
        assert_eq!(ctl.control().to_string(), CONTROL);
    }
}
