//! `pleg sim ctl`: commands to a running simulator or proxy.
#![expect(clippy::doc_markdown, reason = "the comments on arguments are the text of --help")]

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use pleg_cri::Endpoint;
use pleg_sim::control::{
    Add, Down, Exit, Fail, Hang, Object, PodState, Reply, RpcName, Set, Shim, Shims, Storm, Unhang,
};
use pleg_sim::stats::RpcStats;
use pleg_sim::{Command, ControlClient, EventFaults, EventStats, GrpcCode, PodRef, Selector, Span, StatsSnapshot};

use crate::output::{print, print_json};

const EXAMPLES: &str = "\
Examples:
  pleg sim ctl --control unix:///tmp/ctl.sock pods
  pleg sim ctl --control unix:///tmp/ctl.sock exit --pod default/web-3 --container app --exit-code 3
  pleg sim ctl --control unix:///tmp/ctl.sock lock --pod default/web-3 --container app
  pleg sim ctl --control unix:///tmp/ctl.sock set --latency 20ms --rpc ContainerStatus
  pleg sim ctl --control unix:///tmp/ctl.sock down --for 400ms
  pleg sim ctl --control unix:///tmp/ctl.sock stats -o json";

#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct CtlArgs {
    /// The control socket of the simulator or proxy.
    #[arg(
        long,
        value_name = "ENDPOINT",
        global = true,
        default_value = super::CONTROL
    )]
    control: Endpoint,
    #[command(subcommand)]
    verb: Verb,
}

impl CtlArgs {
    #[cfg(test)]
    pub(super) fn control(&self) -> &Endpoint {
        &self.control
    }
}

/// A pod, or one container of it.
#[derive(Debug, Args)]
struct Target {
    /// The pod, as NAMESPACE/NAME.
    #[arg(long, value_name = "NS/NAME")]
    pod: PodRef,
    /// Only this container of it.
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
}

/// Optionally a pod, or one container of it, or an id.
#[derive(Debug, Args)]
struct MaybeTarget {
    /// Only for this pod, as NAMESPACE/NAME.
    #[arg(long, value_name = "NS/NAME")]
    pod: Option<PodRef>,
    /// Only for this container of the pod.
    #[arg(long, value_name = "NAME", requires = "pod")]
    container: Option<String>,
    /// Only for the pod sandbox or container of this id.
    #[arg(long, value_name = "ID", conflicts_with = "pod")]
    id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

#[derive(Debug, Args)]
struct Output {
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make every running container exit now.
    Storm {
        /// The exit code of all of them.
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
        exit_code: i32,
    },
    /// Make the running containers of a pod exit now.
    Exit {
        #[command(flatten)]
        target: Target,
        /// Their exit code.
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
        exit_code: i32,
        /// Report them as OOMKilled, exit code 137.
        #[arg(long)]
        oom: bool,
        /// Leave their processes alive: only the runtime reports the exit, as after its shim was killed (needs --processes).
        #[arg(long)]
        leave_process: bool,
    },
    /// Restart the containers of a pod now, as new attempts.
    Restart {
        #[command(flatten)]
        target: Target,
    },
    /// Remove a pod, or one container of it.
    Remove {
        #[command(flatten)]
        target: Target,
    },
    /// Add pods like the initial ones.
    Add {
        /// How many.
        #[arg(long, value_name = "N")]
        pods: usize,
    },
    /// Hold calls until unhang, or until the client gives up.
    Hang {
        /// The call, such as ContainerStatus.
        #[arg(long, value_name = "NAME")]
        rpc: RpcName,
        #[command(flatten)]
        target: MaybeTarget,
    },
    /// Release held calls: those with the same selectors, or all without a selector.
    Unhang {
        /// The call, such as ContainerStatus.
        #[arg(long, value_name = "NAME")]
        rpc: Option<RpcName>,
        #[command(flatten)]
        target: MaybeTarget,
    },
    /// Lock a container as containerd does: every ListContainers hangs, and every call about it.
    #[command(group = clap::ArgGroup::new("object").required(true).args(["pod", "id"]))]
    Lock {
        #[command(flatten)]
        target: MaybeTarget,
    },
    /// Release locks: those with the same selectors, or all without a selector.
    Unlock {
        #[command(flatten)]
        target: MaybeTarget,
    },
    /// Change latency, churn, or the conditions in Status.
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// How long calls take, as in 5ms.
        #[arg(long, value_name = "DURATION", group = "what")]
        latency: Option<Span>,
        /// The latency of this call only.
        #[arg(long, value_name = "NAME", requires = "latency")]
        rpc: Option<RpcName>,
        /// Add up to this much to the latency.
        #[arg(long, value_name = "DURATION", requires = "latency")]
        jitter: Option<Span>,
        #[command(flatten)]
        target: MaybeTarget,
        /// Changes per second.
        #[arg(long, value_name = "PER_SECOND", group = "what")]
        churn: Option<f64>,
        /// RuntimeReady in Status.
        #[arg(long, value_name = "BOOL", group = "what", action = clap::ArgAction::Set)]
        runtime_ready: Option<bool>,
        /// NetworkReady in Status.
        #[arg(long, value_name = "BOOL", group = "what", action = clap::ArgAction::Set)]
        network_ready: Option<bool>,
        /// An event subscriber that does not read blocks calls that create something.
        #[arg(long, value_name = "BOOL", group = "what", action = clap::ArgAction::Set)]
        block_on_subscribers: Option<bool>,
    },
    /// Answer a share of the calls with an error.
    Fail {
        /// The call, such as ListContainers.
        #[arg(long, value_name = "NAME")]
        rpc: RpcName,
        /// The gRPC code, such as UNAVAILABLE.
        #[arg(long, value_name = "CODE")]
        code: GrpcCode,
        /// Share of the calls, from 0 to 1; 0 ends the fault.
        #[arg(long, value_name = "R", default_value_t = 1.0)]
        rate: f64,
    },
    /// Close the socket and cut all connections for a while.
    Down {
        /// For how long, as in 400ms.
        #[arg(long = "for", value_name = "DURATION")]
        length: Span,
    },
    /// Inject faults into the event stream; options that are not given are reset.
    Events {
        /// The share that never arrives, from 0 to 1.
        #[arg(long, value_name = "R", default_value_t = 0.0)]
        drop: f64,
        /// The share that arrives twice.
        #[arg(long, value_name = "R", default_value_t = 0.0)]
        double: f64,
        /// The share without statuses.
        #[arg(long, value_name = "R", default_value_t = 0.0)]
        half: f64,
        /// The share that arrives after the one that follows it.
        #[arg(long, value_name = "R", default_value_t = 0.0)]
        reorder: f64,
        /// Delay of each event.
        #[arg(long, value_name = "DURATION", default_value = "0s")]
        delay: Span,
    },
    /// Hang a pod's shim: lists and statuses freeze, and changes in the pod are not seen.
    HangShim {
        /// The pod, as NAMESPACE/NAME.
        #[arg(long, value_name = "NS/NAME")]
        pod: PodRef,
    },
    /// Release one hung shim, or all: changes made meanwhile become visible.
    UnhangShim {
        /// Only that of this pod, as NAMESPACE/NAME.
        #[arg(long, value_name = "NS/NAME")]
        pod: Option<PodRef>,
    },
    /// End every fault, latency too.
    Clear,
    /// Show the counters and costs of every call.
    Stats {
        #[command(flatten)]
        output: Output,
    },
    /// Show the pods that can be selected.
    Pods {
        #[command(flatten)]
        output: Output,
    },
}

impl From<Target> for Selector {
    fn from(Target { pod, container }: Target) -> Self {
        Self { pod, container }
    }
}

impl From<MaybeTarget> for Object {
    fn from(MaybeTarget { pod, container, id }: MaybeTarget) -> Self {
        Self { pod, container, id }
    }
}

impl Verb {
    /// The command, and the format of its reply.
    fn command(self) -> (Command, Format) {
        let command = match self {
            Self::Stats { output } => return (Command::Stats {}, output.output),
            Self::Pods { output } => return (Command::Pods {}, output.output),
            Self::Storm { exit_code } => Command::Storm(Storm { exit_code }),
            Self::Exit {
                target: Target { pod, container },
                exit_code,
                oom,
                leave_process,
            } => Command::Exit(Exit {
                pod,
                container,
                exit_code,
                oom,
                leave_process,
            }),
            Self::Restart { target } => Command::Restart(target.into()),
            Self::Remove { target } => Command::Remove(target.into()),
            Self::Add { pods } => Command::Add(Add { pods }),
            Self::Hang {
                rpc,
                target: MaybeTarget { pod, container, id },
            } => Command::Hang(Hang {
                rpc,
                pod,
                container,
                id,
            }),
            Self::Unhang {
                rpc,
                target: MaybeTarget { pod, container, id },
            } => Command::Unhang(Unhang {
                rpc,
                pod,
                container,
                id,
            }),
            Self::Lock { target } => Command::Lock(target.into()),
            Self::Unlock { target } => Command::Unlock(target.into()),
            Self::Set {
                latency,
                rpc,
                jitter,
                target: MaybeTarget { pod, container, id },
                churn,
                runtime_ready,
                network_ready,
                block_on_subscribers,
            } => Command::Set(Set {
                latency,
                jitter,
                rpc,
                pod,
                container,
                id,
                churn,
                runtime_ready,
                network_ready,
                block_on_subscribers,
            }),
            Self::Events {
                drop,
                double,
                half,
                reorder,
                delay,
            } => Command::Events(EventFaults {
                drop,
                double,
                half,
                reorder,
                delay,
            }),
            Self::HangShim { pod } => Command::HangShim(Shim { pod }),
            Self::UnhangShim { pod } => Command::UnhangShim(Shims { pod }),
            Self::Clear => Command::Clear {},
            Self::Fail { rpc, code, rate } => Command::Fail(Fail { rpc, code, rate }),
            Self::Down { length } => Command::Down(Down { length }),
        };
        (command, Format::Table)
    }
}

/// Sends the command and prints its reply.
pub(super) async fn run(args: CtlArgs) -> anyhow::Result<ExitCode> {
    let (command, format) = args.verb.command();
    let reply = ControlClient::new(args.control).send(&command).await?;
    match (reply, format) {
        (Reply::Done(words), _) => print(&format!("{words}\n"))?,
        (Reply::Stats(stats), Format::Json) => print_json(&stats)?,
        (Reply::Pods(pods), Format::Json) => print_json(&pods)?,
        (Reply::Stats(stats), Format::Table) => {
            let events = stats.events.filter(|&events| events != EventStats::default());
            let events = events.map_or(String::new(), events_line);
            print(&format!("{}\n{events}", stats_table(&stats).trim_fmt()))?;
        }
        (Reply::Pods(pods), Format::Table) if pods.is_empty() => crate::connect::tell("No pods found."),
        (Reply::Pods(pods), Format::Table) => print(&format!("{}\n", pods_table(&pods).trim_fmt()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn events_line(events: EventStats) -> String {
    let EventStats {
        subscribers,
        sent,
        dropped,
        waiting,
        longest_wait_ms,
    } = events;
    format!(
        "events: {sent} sent, {dropped} dropped, {waiting} waiting, {}, longest wait {longest_wait_ms}ms\n",
        crate::text::count(subscribers, "subscriber")
    )
}

fn stats_table(stats: &StatsSnapshot) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "RPC",
        "CALLS",
        "ERRORS",
        "ABANDONED",
        "IN FLIGHT",
        "MOST AT ONCE",
        "BYTES",
    ]);
    let total = std::iter::once(("total", &stats.total));
    for (name, stats) in stats
        .rpcs
        .iter()
        .map(|(name, stats)| (name.as_str(), stats))
        .chain(total)
    {
        let &RpcStats {
            calls,
            errors,
            abandoned,
            in_flight,
            most_in_flight,
            bytes,
        } = stats;
        let numbers = [calls, errors, abandoned, in_flight, most_in_flight, bytes].map(|number| number.to_string());
        table.add_row(std::iter::once(name.to_owned()).chain(numbers));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    flush_left(table)
}

fn pods_table(pods: &[PodState]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["POD", "CONTAINERS"]);
    for PodState { pod, containers } in pods {
        let containers: Vec<String> = containers
            .iter()
            .map(|(name, state)| format!("{name} ({state})"))
            .collect();
        table.add_row([pod.to_string(), containers.join(", ")]);
    }
    flush_left(table)
}

/// Left-aligned columns, two spaces apart, as in kubectl.
fn flush_left(mut table: Table) -> Table {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}
