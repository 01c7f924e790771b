//! The part of an API server that a node needs, in memory: its Node, its lease, and watches.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::testing::{Answer, FakeApi, Request};

/// The name of the node under test.
pub(crate) const NAME: &str = "a";

/// What the server has.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) node: Option<Value>,
    pub(crate) lease: Option<Value>,
    version: u64,
    uids: u64,
    watches: Vec<mpsc::UnboundedSender<Value>>,
    /// Answers every request, while it is set.
    pub(crate) fault: Option<fn(&Request) -> Option<Answer>>,
}

/// The server. Clones are the same one.
#[derive(Clone)]
pub(crate) struct FakeCluster {
    pub(crate) objects: Arc<Mutex<Objects>>,
    pub(crate) fake: FakeApi,
}

impl FakeCluster {
    pub(crate) fn start() -> Self {
        let objects: Arc<Mutex<Objects>> = Arc::default();
        let server = Arc::clone(&objects);
        let fake = FakeApi::start(move |request| {
            let mut objects = server.lock();
            let fault = objects.fault.and_then(|fault| fault(request));
            fault.unwrap_or_else(|| objects.answer(request))
        });
        Self { objects, fake }
    }

    pub(crate) fn node(&self) -> Option<Node> {
        let node = self.objects.lock().node.clone();
        node.map(|node| serde_json::from_value(node).unwrap())
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        let lease = self.objects.lock().lease.clone();
        lease.map(|lease| serde_json::from_value(lease).unwrap())
    }

    /// Somebody else changes the node.
    pub(crate) fn change_node(&self, change: impl FnOnce(&mut Value)) {
        let mut objects = self.objects.lock();
        let mut node = objects.node.clone().unwrap();
        change(&mut node);
        objects.store_node(node);
    }

    /// As `kubectl delete node` does.
    pub(crate) fn delete_node(&self) {
        let mut objects = self.objects.lock();
        let node = objects.node.take().unwrap();
        objects.send(&json!({"type": "DELETED", "object": node}));
    }

    /// How many requests of this method and path there were.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.fake.lines().iter().filter(|seen| *seen == line).count()
    }

    /// Waits until there were that many requests of this method and path.
    pub(crate) async fn wait_for(&self, line: &str, count: usize) {
        let is = |request: &&Request| request.line() == line;
        self.fake
            .wait_for(|requests| requests.iter().filter(is).count() >= count)
            .await;
    }
}

impl Objects {
    fn answer(&mut self, request: &Request) -> Answer {
        let node = format!("/api/v1/nodes/{NAME}");
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let lease = format!("{leases}/{NAME}");
        match (request.method.as_str(), request.path.as_str()) {
            ("POST", "/api/v1/nodes") if self.node.is_some() => {
                Answer::refuse(409, "AlreadyExists", "nodes \"a\" already exists")
            }
            ("POST", "/api/v1/nodes") => {
                let mut new = request.body.clone();
                self.uids += 1;
                new["metadata"]["uid"] = format!("uid-{}", self.uids).into();
                Answer::Json(201, self.store_node(new))
            }
            ("GET", "/api/v1/nodes") if request.is_watch() => {
                let (sender, events) = mpsc::unbounded_channel();
                self.watches.push(sender);
                Answer::Watch(events)
            }
            ("GET", "/api/v1/nodes") => {
                let items: Vec<&Value> = self.node.iter().collect();
                let metadata = json!({"resourceVersion": self.version.to_string()});
                Answer::ok(&json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items}))
            }
            ("GET", path) if path == node => found(self.node.as_ref()),
            ("PATCH", path) if path == format!("{node}/status") => self.patch(&request.body),
            ("GET", path) if path == lease => found(self.lease.as_ref()),
            ("POST", path) if path == leases => self.store_lease(201, request.body.clone()),
            ("PUT", path) if path == lease => {
                let Some(known) = &self.lease else {
                    return Answer::not_found();
                };
                if known["metadata"]["resourceVersion"] != request.body["metadata"]["resourceVersion"] {
                    return Answer::refuse(409, "Conflict", "the object has been modified");
                }
                self.store_lease(200, request.body.clone())
            }
            _ => Answer::not_found(),
        }
    }

    fn patch(&mut self, patch: &Value) -> Answer {
        let Some(mut node) = self.node.clone() else {
            return Answer::not_found();
        };
        if patch["metadata"]["uid"] != node["metadata"]["uid"] {
            return Answer::refuse(409, "Conflict", "precondition failed: UID");
        }
        merge(&mut node, patch);
        Answer::Json(200, self.store_node(node))
    }

    fn store_node(&mut self, mut node: Value) -> Value {
        self.version += 1;
        node["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.node = Some(node.clone());
        self.send(&json!({"type": "MODIFIED", "object": node}));
        node
    }

    fn store_lease(&mut self, code: u16, mut lease: Value) -> Answer {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        Answer::Json(code, lease)
    }

    fn send(&mut self, event: &Value) {
        self.watches.retain(|watch| watch.send(event.clone()).is_ok());
    }
}

fn found(object: Option<&Value>) -> Answer {
    object.map_or_else(Answer::not_found, |object| Answer::Json(200, object.clone()))
}

/// A strategic merge, as far as nodes need one: lists of conditions and addresses by type, others as a whole.
fn merge(into: &mut Value, patch: &Value) {
    let (Some(target), Some(fields)) = (into.as_object_mut(), patch.as_object()) else {
        *into = patch.clone();
        return;
    };
    for (name, value) in fields {
        let entry = target.entry(name.clone()).or_insert(Value::Null);
        match value.as_array() {
            Some(items) if name == "conditions" || name == "addresses" => merge_list(entry, items),
            _ => merge(entry, value),
        }
    }
}

fn merge_list(into: &mut Value, patch: &[Value]) {
    let replaces = patch.iter().any(|item| item["$patch"] == "replace");
    let mut items = if replaces {
        Vec::new()
    } else {
        into.as_array().cloned().unwrap_or_default()
    };
    for item in patch.iter().filter(|item| item.get("$patch").is_none()) {
        let known = items
            .iter_mut()
            .find(|known| !replaces && known["type"] == item["type"]);
        match known {
            Some(known) => merge(known, item),
            None => items.push(item.clone()),
        }
    }
    *into = Value::Array(items);
}
