//! Container ids from a running daemon, for a runtime that does not list its containers.

use std::time::Duration;

use pleg_cri::Endpoint;
use tokio::time::timeout;

use super::facts::Object;
use crate::address::DaemonAddress;
use crate::args::default_socket;
use crate::http::client::Daemon;
use crate::wire;

/// Deadline of the daemon; a healthy one answers at once.
pub(super) const DAEMON_ANSWERS: Duration = Duration::from_secs(2);

/// The containers that a daemon knows: the named one, or the one at the default address. `None` if no daemon answers. Ids of another
/// runtime do no harm: this one does not find them.
pub(super) async fn to_daemon(named: Option<&DaemonAddress>) -> Option<Vec<Object>> {
    let address = match named {
        Some(address) => address.clone(),
        None => Endpoint::unix(default_socket().filter(|path| path.exists())?).into(),
    };
    let daemon = Daemon::new(address, DAEMON_ANSWERS);
    let pods: Vec<wire::Pod> = timeout(DAEMON_ANSWERS, daemon.get_json("/api/v1/runtime/pods"))
        .await
        .ok()?
        .ok()?;
    let objects = pods.into_iter().flat_map(|pod| {
        let (name, sandbox) = (
            pod.pod.full_name(),
            pod.sandboxes.first().map(|sandbox| sandbox.id.clone()),
        );
        pod.containers.into_iter().map(move |container| Object {
            pod: name.clone(),
            container: Some(container.name),
            id: container.id,
            sandbox: sandbox.clone().unwrap_or_default(),
            alive: container.state == "Running",
        })
    });
    Some(objects.collect())
}
