//! `pleg sim proxy`: the simulator's faults in front of a real runtime.
#![expect(clippy::doc_markdown, reason = "the comments on arguments are the text of --help")]

use std::io::Write;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use pleg_cri::Endpoint;
use pleg_sim::{Proxy, ProxyConfig, ProxyError};

use super::{Ending, same_socket};

const EXAMPLES: &str = "\
Examples:
  Between containerd and its clients at /tmp/cri.sock:
    pleg sim proxy --upstream unix:///run/containerd/containerd.sock --listen unix:///tmp/cri.sock --control unix:///tmp/ctl.sock
    pleg watch -r unix:///tmp/cri.sock

  Then, in another terminal, one container's status hangs, or all lists as if that container were locked:
    pleg sim ctl --control unix:///tmp/ctl.sock hang --rpc ContainerStatus --pod default/web --container app
    pleg sim ctl --control unix:///tmp/ctl.sock lock --pod default/web --container app
    pleg sim ctl --control unix:///tmp/ctl.sock clear

The proxy lists the objects of the runtime to find the ids of named pods. It does not change the runtime.";

#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct ProxyArgs {
    /// The runtime's socket, as in unix:///run/containerd/containerd.sock.
    #[arg(long, value_name = "ENDPOINT", value_parser = Endpoint::parse)]
    upstream: Endpoint,
    /// Serve CRI on this socket (mode 0600; removed at the end).
    #[arg(long, value_name = "ENDPOINT", value_parser = Endpoint::parse)]
    listen: Endpoint,
    /// Accept commands of `pleg sim ctl` on this socket.
    #[arg(long, value_name = "ENDPOINT", value_parser = Endpoint::parse)]
    control: Option<Endpoint>,
    /// Rates and jitter follow from it.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// Runs `pleg sim proxy`.
pub(super) async fn run(args: ProxyArgs) -> anyhow::Result<ExitCode> {
    let ProxyArgs {
        upstream,
        listen,
        control,
        seed,
    } = args;
    same_socket("--upstream", Some(&upstream), &listen)?;
    same_socket("--control", control.as_ref(), &listen)?;
    same_socket("--upstream", Some(&upstream), control.as_ref().unwrap_or(&listen))?;
    let mut ending = Ending::new()?;
    let config = ProxyConfig {
        upstream: upstream.clone(),
        listen,
        control: control.clone(),
        seed,
    };
    let started = tokio::select! {
        started = Proxy::start(config) => started,
        () = ending.come() => return Ok(ExitCode::from(130)),
    };
    let proxy = started.map_err(|error| match error {
        // The same causes, but the socket is named by another flag here.
        ProxyError::Upstream(error) => anyhow!(error.to_string().replace("--runtime-endpoint", "--upstream")),
        error @ ProxyError::Bind(_) => error.into(),
    })?;
    let control = control.map_or(String::new(), |control| format!(", control on {control}"));
    writeln!(
        anstream::stderr(),
        "proxy ready on {} for {upstream}{control}",
        proxy.endpoint()
    )?;
    ending.come().await;
    proxy.shutdown().await;
    Ok(ExitCode::SUCCESS)
}
