//! Container ids from a running daemon, for a runtime that does not list its containers.

use std::time::Duration;

use pleg::ContainerState;
use pleg_cri::Endpoint;
use tokio::time::timeout;

use super::facts::Object;
use crate::address::DaemonAddress;
use crate::args::default_socket;
use crate::http::client::Daemon;
use crate::text::pod_name;
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
            pod_name(&pod.pod),
            pod.sandboxes.first().map(|sandbox| sandbox.id.as_str().to_owned()),
        );
        pod.containers.into_iter().map(move |container| Object {
            pod: name.clone(),
            container: Some(container.name.as_ref().to_owned()),
            id: container.id.as_str().to_owned(),
            sandbox: sandbox.clone().unwrap_or_default(),
            alive: container.state == ContainerState::Running,
        })
    });
    Some(objects.collect())
}
