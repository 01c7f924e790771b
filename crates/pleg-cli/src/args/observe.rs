//! Where the commands that only read get their answers from.

use std::path::PathBuf;

use clap::Args;

use crate::address::DaemonAddress;

/// Where the observing commands look.
#[derive(Debug, Clone, Args)]
pub(crate) struct Observe {
    /// Ask the daemon at this socket, or at http://HOST:PORT [default: $PLEG_DAEMON, else /run/pleg/pleg.sock or
    /// $XDG_RUNTIME_DIR/pleg.sock, if one answers there; else the runtime itself]
    #[arg(long, value_name = "ADDRESS", value_parser = DaemonAddress::parse, conflicts_with = "runtime_endpoint")]
    pub(crate) daemon: Option<DaemonAddress>,
}

/// Where a daemon of ours listens unless told otherwise; none for a user without a runtime directory.
pub(crate) fn default_socket() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/run/pleg/pleg.sock".into());
    }
    let dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)?;
    dir.is_absolute().then(|| dir.join("pleg.sock"))
}
