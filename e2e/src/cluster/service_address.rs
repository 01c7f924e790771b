//! How pods reach the API server: by the address of the service `kubernetes`, as in any cluster, where kube-proxy makes it work.
//!
//! There is no kube-proxy here, and the API server listens on the loopback. So this machine has the address itself for a while, and what
//! arrives there is passed on.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::suite::PATIENCE;
use crate::wait::until;

/// What the API server gives the service `kubernetes`: the first address of its range.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The range of all services.
pub(super) const RANGE: &str = "10.96.0.0/16";
const PORT: u16 = 443;
/// A killed run leaves the address for no longer than this.
const LIFETIME: Duration = Duration::from_mins(15);

/// The address works until this is dropped.
#[derive(Debug)]
pub struct ServiceAddress {
    _task: AbortOnDropHandle<()>,
}

impl ServiceAddress {
    /// Passes on to the API server at this URL. Another control plane may use the address now: then it is waited for.
    pub(super) async fn start(server: &str) -> Result<Self> {
        let to: SocketAddr = server
            .trim_start_matches("https://")
            .parse()
            .with_context(|| format!("the address of {server}"))?;
        let listener = until("the address of the service kubernetes", PATIENCE, async || {
            add_address()?;
            anyhow::Ok(TcpListener::bind((ADDRESS, PORT)).await?)
        })
        .await?;
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((mut from, _)) = listener.accept().await {
                open.spawn(async move {
                    let mut to = TcpStream::connect(to).await?;
                    copy_bidirectional(&mut from, &mut to).await
                });
                while open.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            _task: AbortOnDropHandle::new(task),
        })
    }
}

impl Drop for ServiceAddress {
    fn drop(&mut self) {
        // Another process may have begun to use it; it adds it again.
        let _ = Command::new("ip")
            .args(["address", "del", &format!("{ADDRESS}/32"), "dev", "lo"])
            .output();
    }
}

fn add_address() -> Result<()> {
    let seconds = LIFETIME.as_secs().to_string();
    let output = Command::new("ip")
        .args(["address", "replace", &format!("{ADDRESS}/32"), "dev", "lo"])
        .args(["valid_lft", &seconds, "preferred_lft", &seconds])
        .output()
        .context("ip, of iproute2")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
