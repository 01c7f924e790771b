//! The web pages of the simulated node, served as `pleg run` serves them.

use std::net::SocketAddr;
use std::path::PathBuf;

use pleg::{CriRuntime, PodUid, RuntimeMonitor};
use pleg_history::{History, HistoryWriter, Labels, Limits, PodLabels};
use tokio_util::sync::CancellationToken;

use super::past::Run;
use super::stage::Dir;
use crate::about::{Settings, Setup};
use crate::http::server::{Access, TcpSocket, UnixSocket};
use crate::http::{routes, server};
use crate::local::Local;

/// The labels of a pod are written when a daemon sees it; the past has none.
struct Unlabelled;

impl PodLabels for Unlabelled {
    fn labels(&self, _: &PodUid) -> Option<Labels> {
        None
    }
}

/// A history in `path` that has the past of the node.
pub(super) async fn history(path: PathBuf, past: Vec<Run>) -> anyhow::Result<History> {
    let config = pleg_history::Config {
        path,
        limits: Limits::default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let open = move || {
        for run in past {
            let (mut writer, _) = HistoryWriter::open(&config.path, config.limits, run.instance)?;
            writer.append(&run.records, &Unlabelled)?;
        }
        Ok(History::open(config)?)
    };
    tokio::task::spawn_blocking(open).await?
}

/// Sockets that will be served.
pub(super) struct Web {
    unix: UnixSocket,
    path: PathBuf,
    tcp: TcpSocket,
}

impl Web {
    /// Listens on a loopback address, and on a unix socket for the other commands.
    pub(super) async fn bind(dir: &Dir, address: SocketAddr) -> anyhow::Result<Self> {
        let tcp = TcpSocket::bind(address, false).await?;
        let path = dir.file("pleg.sock");
        let access = Access {
            mode: 0o600,
            group: None,
        };
        let unix = UnixSocket::bind(&path, access).await?;
        Ok(Self { unix, path, tcp })
    }

    /// What to tell.
    pub(super) fn introduction(&self) -> Vec<String> {
        vec![
            format!("open http://{}/ in a browser", self.tcp.address()),
            format!("or at a prompt: pleg pods --daemon unix://{}", self.path.display()),
        ]
    }

    /// Serves until `shutdown`; meanwhile the monitor asks the runtime whether it is ready, as in a daemon.
    pub(super) fn serve(
        self,
        local: &Local,
        monitor: RuntimeMonitor<CriRuntime>,
        history: History,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<impl Future<Output = ()> + use<>> {
        let settings = Settings::from([("listen", self.path.display().to_string())]);
        let mut setup = Setup::new(local.client.clone(), settings);
        setup.set_history(history.reader(), history.monitor());
        history.observe(local.pleg.metrics())?;
        // Its thread ends with the generator; nobody reads the file after that.
        history.record(&local.pleg)?;
        let router = routes::router(local.pleg.clone(), setup, None, shutdown.clone());
        let shutdown = shutdown.clone();
        Ok(async move {
            tokio::join!(
                server::serve(self.unix, Some(self.tcp), router, &shutdown),
                monitor.run(shutdown.clone())
            );
        })
    }
}
