//! Makes a machine that runs pods with `pleg-node` a node of a Kubernetes cluster.
//!
//! This crate contains what needs an API server: the Node object and its lease, pods as a source of `pleg-node`, the objects that pods refer
//! to, statuses and events on their way back, certificates, and the server that `kubectl logs` and `kubectl exec` reach. It must not decide
//! anything about a pod; `pleg-node` does that. Without an API server everything that is known goes on: pods run, statuses wait.
//!
//! # Map
//!
//! | part | job | kind |
//! |---|---|---|
//! | [`cluster`] | all parts, started and ended together | |
//! | [`api`] | the API server: clients, deadlines, errors in words | calls |
//! | [`reach`], [`retry`] | whether the API server can be reached; when to try again, and one line in the log | |
//! | `list_watch`, `pace` | the loop that lists and watches, and how often it asks | |
//! | [`identity`] | whose certificate the node has | pure |
//! | [`connection`] | the kubeconfig, read again whenever it changes | one task |
//! | [`node`] | the Node object: registration, status, conditions, lease | tasks, and pure parts |
//! | [`pods`] | the pods that are bound to this node: watch, admission, mirror pods, the end of a deletion | tasks, and pure parts |
//! | [`objects`] | config maps, secrets, tokens, services and claims that pods refer to | a cache |
//! | [`status`] | pod statuses to the API server, one patch for a pod at a time | one task, and pure parts |
//! | [`events`] | Events with the kubelet's reasons, counted up and rate-limited | one task, and pure parts |
//! | [`certificates`] | bootstrap by a token, and rotation of client and serving certificates | one task, and pure parts |
//! | [`report`] | beside a stock kubelet: a condition and Events about what is stuck on this node | one task, and pure parts |
//! | [`server`] | the node's own HTTPS server: logs, exec, attach, port-forward, statistics | tasks |

pub mod api;
pub mod certificates;
pub mod cluster;
pub mod connection;
pub mod events;
pub mod identity;
mod list_watch;
pub mod node;
pub mod objects;
mod pace;
pub mod pods;
pub mod reach;
pub mod report;
pub mod retry;
pub mod server;
pub mod status;
#[cfg(test)]
mod testing;
