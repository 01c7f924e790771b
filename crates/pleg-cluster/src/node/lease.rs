//! The lease of the node: renewed every ten seconds, so that the control plane knows that the node is there.
//!
//! It has a task, a client and a deadline of its own: neither a slow list nor a large status delays it. Its timer is tokio's, so a jump of
//! the wall clock changes the time that is written and nothing else; the control plane only looks whether it changes. A node that was
//! deleted has no lease: the task waits until it is registered again.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::PostParams;
use pleg_node::manifest::NodeName;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::NodeObject;
use crate::api::{Api, ApiError, call_within};
use crate::retry::{Backoff, TroubleLog};

/// Where the leases of nodes are.
pub const NAMESPACE: &str = "kube-node-lease";
/// Without a renewal for this long the node is not there.
const DURATION: Duration = Duration::from_secs(40);
/// How often it is renewed, with up to 4 % of jitter.
const PERIOD: Duration = Duration::from_secs(10);
/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pauses after failures.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// Keeps the lease of a node.
#[derive(Debug)]
pub(crate) struct LeaseKeeper {
    api: Api,
    name: NodeName,
    node: NodeObject,
    /// As the API server has it.
    lease: Option<Lease>,
    log: TroubleLog,
}

impl LeaseKeeper {
    pub(crate) fn new(api: Api, name: NodeName, node: NodeObject) -> Self {
        Self {
            api,
            name,
            node,
            lease: None,
            log: TroubleLog::default(),
        }
    }

    /// Renews the lease until shutdown.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&mut self) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let node = self.node.registered().await;
            let started = Instant::now();
            match self.renew(&node).await {
                Ok(lease) => {
                    self.lease = Some(lease);
                    self.api.reach().heartbeat();
                    self.log.fine(format_args!("renewed the lease of node {}", self.name));
                    backoff.reset();
                    sleep_until(started + PERIOD.mul_f64(1.0 + fastrand::f64() * 0.04)).await;
                }
                Err(error) => {
                    let next = if error.is_forbidden() {
                        "Without a lease the node becomes NotReady: allow it to system:node users in kube-node-lease"
                    } else {
                        "It is tried again"
                    };
                    self.log.failed(&error, next);
                    // Someone else has written it, or it is gone: the next attempt starts with what there is.
                    self.lease = None;
                    if !error.is_conflict() {
                        backoff.pause(&self.api, &error).await;
                    }
                }
            }
        }
    }

    async fn renew(&self, node: &Node) -> Result<Lease, ApiError> {
        let leases: kube::Api<Lease> = kube::Api::namespaced(self.api.heartbeats(), NAMESPACE);
        let name = self.name.as_str();
        let known = match self.lease.clone().filter(|lease| is_of(lease, node)) {
            Some(lease) => Some(lease),
            None => call_within(DEADLINE, format!("get lease {NAMESPACE}/{name}"), leases.get_opt(name)).await?,
        };
        let params = PostParams::default();
        match known {
            Some(known) => {
                let next = renewed(known, name, node, Timestamp::now());
                let what = format!("renew lease {NAMESPACE}/{name}");
                call_within(DEADLINE, what, leases.replace(name, &params, &next)).await
            }
            None => {
                let new = renewed(Lease::default(), name, node, Timestamp::now());
                let what = format!("create lease {NAMESPACE}/{name}");
                call_within(DEADLINE, what, leases.create(&params, &new)).await
            }
        }
    }
}

/// The lease of this very node: not of one of that name that was deleted.
fn is_of(lease: &Lease, node: &Node) -> bool {
    let owners = lease.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref())
}

/// The lease with another time. What others have put into it stays.
fn renewed(mut lease: Lease, name: &str, node: &Node, now: Timestamp) -> Lease {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    lease.metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        owner_references: Some(vec![owner]),
        ..lease.metadata
    };
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(name.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        renew_time: Some(MicroTime(now)),
        ..lease.spec.unwrap_or_default()
    });
    lease
}

#[cfg(test)]
mod tests;
