//! `pleg top`.

use clap::Args;

use super::{ModeArg, Observe, SortBy, WitnessArg};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg top                                        This node, from its daemon or its runtime
  pleg top -n kube-system --sort-by restarts
  pleg top --filter 'web !Running'                Pods with web in their names that do not run
  pleg top --daemon http://127.0.0.1:10350
  pleg top -r unix:///run/crio/crio.sock          Without a daemon

Troubles stand at the top, with what to type next; then the pods, then the newest events. Keys:
  Up Down j k PgUp PgDn Home End   select a pod, or scroll
  Enter                            the selected pod: the lives of its containers and its events; + and - zoom
  /                                filter pods and events: words in name, state or IP; !word must not occur
  n y s r a                        sort by name, ready, state, restarts, age; once more reverses
  t                                troubles in full
  e                                all events that are kept
  Esc q                            back; Esc also takes the filter off
  ?                                help
  q Ctrl-C                         quit

It needs a terminal of at least 40x8. If the daemon stops, it says so, reconnects and goes on. The log is
written only if stderr is not a terminal: pleg top 2>top.log")]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// Only this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// The filter to start with, as typed after /
    #[arg(long, value_name = "WORDS")]
    pub(crate) filter: Option<String>,
    /// The order to start with
    #[arg(long, value_name = "BY", default_value = "state")]
    pub(crate) sort_by: SortBy,
    /// How changes are found without a daemon: by relisting once a second (generic), by the runtime's events (evented), or by
    /// events if no kubelet on the node would lose any (auto)
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: ModeArg,
    /// Whether the kernel is used as a witness without a daemon, where it can be: auto or off
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) witness: WitnessArg,
}
