//! Objects in memory, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pleg::PodUid;
use tokio::sync::Notify;

use super::{ApiObjects, ClaimedVolume, ObjectData, ObjectsError, TokenRequest};
use crate::manifest::{ObjectKind, Pod};

#[derive(Debug, Default)]
pub(crate) struct InMemory {
    pub(crate) data: Mutex<BTreeMap<(String, ObjectKind, String), ObjectData>>,
    pub(crate) services: Vec<(String, String)>,
    pub(crate) claims: BTreeMap<String, ClaimedVolume>,
    pub(crate) hangs: bool,
    /// Pods that are registered.
    pub(crate) pods: Mutex<BTreeMap<PodUid, Arc<Notify>>>,
}

impl InMemory {
    /// Sets an object of the namespace `default`, and tells all pods.
    pub(crate) fn set(&self, kind: ObjectKind, name: &str, entries: &[(&str, &str)]) {
        let entries = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()));
        let key = ("default".to_owned(), kind, name.to_owned());
        self.data.lock().insert(key, entries.collect());
        self.pods.lock().values().for_each(|changed| changed.notify_one());
    }
}

impl ApiObjects for InMemory {
    fn register(&self, pod: &Pod, changed: &Arc<Notify>) {
        self.pods.lock().insert(pod.id.uid.clone(), Arc::clone(changed));
    }

    fn unregister(&self, uid: &PodUid) {
        self.pods.lock().remove(uid);
    }

    fn data<'a>(
        &'a self,
        namespace: &'a str,
        kind: ObjectKind,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ObjectData>>, ObjectsError>> {
        Box::pin(async move {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            let key = (namespace.to_owned(), kind, name.to_owned());
            Ok(self.data.lock().get(&key).cloned().map(Arc::new))
        })
    }

    fn token<'a>(&'a self, pod: &'a Pod, wanted: &'a TokenRequest) -> BoxFuture<'a, Result<String, ObjectsError>> {
        let audience = wanted.audience.as_deref().unwrap_or("api");
        let token = format!("token of {} for {audience}", pod.id.name);
        Box::pin(async { Ok(token) })
    }

    fn service_variables<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Vec<(String, String)>, ObjectsError>> {
        let links = pod.spec.enable_service_links;
        let all = self.services.iter();
        let all = all.filter(|(name, _)| links || name.starts_with("KUBERNETES_"));
        let all = all.cloned().collect();
        Box::pin(async { Ok(all) })
    }

    fn claim<'a>(&'a self, pod: &'a Pod, claim: &'a str) -> BoxFuture<'a, Result<ClaimedVolume, ObjectsError>> {
        let found = self.claims.get(claim).cloned().ok_or_else(|| ObjectsError::Claim {
            claim: format!("{}/{claim}", pod.id.namespace),
            why: "is not bound to a volume".to_owned(),
        });
        Box::pin(async { found })
    }
}
