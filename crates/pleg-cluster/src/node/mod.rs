//! The Node object and its lease.
//!
//! In: the machine, the generator's health, the pressure on the machine, the operator's settings. Out: the Node object of the API server,
//! its status and its lease. [`NodeManager`] is the task that owns the object: it registers the node, follows the object, and patches the
//! status when it changes. A second task renews the lease, so that neither waits for the other.
//!
//! | module | job |
//! |---|---|
//! | [`settings`] | what the operator says: pure |
//! | [`machine`] | what identifies this machine: blocking |
//! | [`resources`] | capacity and allocatable: pure |
//! | [`conditions`] | Ready and pressure: pure |
//! | [`object`] | what the object should be, and the patch that makes it so: pure |
//! | [`taken`] | whether another machine has this name: pure |
//! | `follower` | shows the object as it is listed and watched |
//! | [`manager`] | the task of the object |
//! | [`lease`] | the task of the lease |
//! | [`images`] | the task that lists images |

pub mod conditions;
mod follower;
pub mod images;
pub mod lease;
pub mod machine;
pub mod manager;
pub mod object;
pub mod resources;
pub mod settings;
pub mod taken;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

pub use manager::NodeManager;

/// The Node object as the API server has it, once it is ours. Clones share it.
#[derive(Debug, Clone)]
pub struct NodeObject(watch::Receiver<Option<Arc<Node>>>);

impl NodeObject {
    /// A cell, and who fills it.
    pub(crate) fn new() -> (watch::Sender<Option<Arc<Node>>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// The object; none before registration, and while there is none. At most as old as the last answer or event of the API server.
    pub fn get(&self) -> Option<Arc<Node>> {
        self.0.borrow().clone()
    }

    /// Waits until this machine is a node of the cluster. Whoever acts for the cluster waits for it first: before that, the pods of this
    /// name may be those of another machine. Never returns if the node is shut down before. Cancel-safe.
    pub async fn registered(&mut self) -> Arc<Node> {
        if let Ok(object) = self.0.wait_for(Option::is_some).await
            && let Some(node) = object.as_ref()
        {
            return Arc::clone(node);
        }
        std::future::pending().await
    }

    /// Waits for the next change. Never returns after shutdown. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
