//! Beside a stock kubelet: tells the cluster what is stuck on this node, and leaves everything else alone.
//!
//! In: the health of the generator ([`Findings`]). Out: one condition of the Node object, whose type is ours alone, Events of the Node and of
//! stuck pods, and if asked for a condition of stuck pods. One task owns it all; it calls the API server once in five minutes at rest. The
//! daemon works without: while the API server is away nothing is queued, and the state of the day is reported when it is back.
//!
//! | module | job | kind |
//! |---|---|---|
//! | `reporter` | the task: when the condition is written, and what is known of the Node | one task |
//! | `finding` | what is stuck, from a health report | pure |
//! | `tracker` | which troubles there are, and what the cluster was told about them | pure |
//! | `condition` | the words of the condition, and its patch | pure |
//! | `pods` | the condition of stuck pods | calls |
//! | `progress` | how reporting goes, for health and metrics | |
//! | `forget` | removes what a reporter leaves behind | calls |

mod condition;
mod finding;
mod forget;
mod pods;
mod progress;
mod reporter;
mod tracker;

pub use condition::{NOTHING_STUCK, STUCK};
pub use finding::{Finding, Findings, of_report};
pub use forget::{Forgotten, forget_all, forget_node};
pub use progress::{ReportHandle, ReportProgress};
pub use reporter::{Reporter, ReporterConfig};

use std::path::PathBuf;

use crate::api::{Api, ApiError};
use crate::connection::{Connection, watch_kubeconfig};

/// Where the credentials of a reporter come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The service account of the pod that this process runs in.
    InCluster,
    /// A kubeconfig. It may appear, or become readable, later.
    Kubeconfig(PathBuf),
}

/// Why there are no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use the service account of this pod: {0}")]
pub struct NotInCluster(String);

impl Credentials {
    /// The API server, and the task that follows changes of the kubeconfig if there is one; it ends with the token.
    pub async fn open(
        self,
        shutdown: tokio_util::sync::CancellationToken,
    ) -> Result<(Api, impl Future<Output = ()> + Send + 'static), NotInCluster> {
        let (api, connection) = match self {
            Self::InCluster => (in_cluster()?, None),
            Self::Kubeconfig(path) => {
                let mut connection = Connection::new(path);
                (connection.open().await, Some(connection))
            }
        };
        let following = api.clone();
        let follow = async move {
            if let Some(connection) = connection {
                watch_kubeconfig(connection, following, shutdown).await;
            }
        };
        Ok((api, follow))
    }
}

fn in_cluster() -> Result<Api, NotInCluster> {
    let config = kube::Config::incluster().map_err(|error| NotInCluster(crate::api::with_causes(&error)))?;
    Api::new(config).map_err(|error: ApiError| NotInCluster(error.to_string()))
}
