//! The services of the cluster, for the environment of containers: one list and watch of all, as in the kubelet, of which only addresses are
//! kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use parking_lot::RwLock;
use pleg_node::executor::objects::ObjectsError;
use pleg_node::manifest::Pod;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::LONGEST_PAUSE;
use super::service_variables::ServiceAddress;
use crate::api::{Api, ApiError};
use crate::list_watch::{Follower, Selection, follow};

/// How long a container waits for the first list. Shorter than what callers wait.
const FIRST_LIST: Duration = Duration::from_secs(8);
/// The most services that are kept.
const MAX_SERVICES: usize = 50_000;
/// The service of the API server itself.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

/// Addresses, by namespace and name.
type Addresses = BTreeMap<String, BTreeMap<String, ServiceAddress>>;

/// The services of the cluster.
#[derive(Debug)]
pub(super) struct Services {
    // Held for a lookup or a change; never across an await.
    addresses: Arc<RwLock<Addresses>>,
    /// True from the first complete list on.
    listed: watch::Receiver<bool>,
    _task: AbortOnDropHandle<()>,
}

impl Services {
    /// Starts to follow them.
    pub(super) fn start(api: Api) -> Self {
        let addresses = Arc::new(RwLock::default());
        let (is_listed, listed) = watch::channel(false);
        let selection = Selection::all("services").one_of_many(LONGEST_PAUSE);
        let follower = ServiceFollower {
            addresses: Arc::clone(&addresses),
            listing: None,
            is_listed,
            is_full: false,
        };
        let task = tokio::spawn(follow::<Service>(api, selection, follower));
        Self {
            addresses,
            listed,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// The variables of a pod: of the API server, and of the services of its namespace if it wants them.
    ///
    /// A pod of the API server waits until the services are known. A static pod does not: it may be what the API server runs in.
    pub(super) async fn variables(&self, pod: &Pod) -> Result<Vec<(String, String)>, ObjectsError> {
        if pod.document.is_none() {
            let mut listed = self.listed.clone();
            // Its sender lives as long as the task, which lives as long as we do.
            let waited = timeout(FIRST_LIST, listed.wait_for(|listed| *listed)).await;
            waited
                .map_err(|_| ObjectsError::Timeout {
                    what: "the services of the cluster".to_owned(),
                    within: FIRST_LIST,
                })?
                .map_err(|_| ObjectsError::Failed {
                    what: "the services of the cluster".to_owned(),
                    why: "they are not followed any more".to_owned(),
                })?;
        }
        let addresses = self.addresses.read();
        Ok(variables(&addresses, &pod.id.namespace, pod.spec.enable_service_links))
    }
}

/// The variables for pods of a namespace, by the names of services.
fn variables(addresses: &Addresses, namespace: &str, links: bool) -> Vec<(String, String)> {
    let mut chosen: BTreeMap<&str, &ServiceAddress> = BTreeMap::new();
    let own = addresses.get(namespace).filter(|_| links);
    chosen.extend(own.into_iter().flatten().map(|(name, address)| (&**name, address)));
    let (api_namespace, api_name) = API_SERVICE;
    if let Some(api) = addresses.get(api_namespace).and_then(|all| all.get(api_name)) {
        // A service of the pod's namespace that has its name is meant instead.
        chosen.entry(api_name).or_insert(api);
    }
    chosen.into_values().flat_map(ServiceAddress::variables).collect()
}

struct ServiceFollower {
    addresses: Arc<RwLock<Addresses>>,
    /// What a list has had so far; replaces the addresses when it is complete.
    listing: Option<Addresses>,
    is_listed: watch::Sender<bool>,
    /// It was logged that some are left out.
    is_full: bool,
}

impl Follower<Service> for ServiceFollower {
    fn begin(&mut self) {
        self.listing = Some(Addresses::new());
    }

    fn set(&mut self, service: Service) {
        let Some(namespace) = service.metadata.namespace.clone() else {
            return;
        };
        let name = service.metadata.name.clone().unwrap_or_default();
        let address = ServiceAddress::of(service);
        let is_left_out = match &mut self.listing {
            Some(listing) => put(listing, namespace, name, address),
            None => put(&mut self.addresses.write(), namespace, name, address),
        };
        if is_left_out && !std::mem::replace(&mut self.is_full, true) {
            warn!("more than {MAX_SERVICES} services: containers have no variables for the others");
        }
    }

    fn remove(&mut self, service: &Service) {
        let (Some(namespace), Some(name)) = (&service.metadata.namespace, &service.metadata.name) else {
            return;
        };
        put(&mut self.addresses.write(), namespace.clone(), name.clone(), None);
    }

    fn listed(&mut self, _version: &str) {
        if let Some(listing) = self.listing.take() {
            *self.addresses.write() = listing;
        }
        self.is_listed.send_replace(true);
    }

    fn failed(&mut self, error: &ApiError) {
        self.listing = None;
        debug!(%error, "cannot follow services; using the last known");
    }
}

/// Sets or removes an address. Returns whether there is no room for it.
fn put(addresses: &mut Addresses, namespace: String, name: String, address: Option<ServiceAddress>) -> bool {
    let Some(address) = address else {
        if let Some(all) = addresses.get_mut(&namespace) {
            all.remove(&name);
            if all.is_empty() {
                addresses.remove(&namespace);
            }
        }
        return false;
    };
    let is_known = addresses.get(&namespace).is_some_and(|all| all.contains_key(&name));
    if !is_known && addresses.values().map(BTreeMap::len).sum::<usize>() >= MAX_SERVICES {
        return true;
    }
    addresses.entry(namespace).or_default().insert(name, address);
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn addresses(services: &[(&str, &str, &str)]) -> Addresses {
        let mut addresses = Addresses::new();
        for (namespace, name, ip) in services {
            let service = json!({"metadata": {"name": name}, "spec": {"clusterIP": ip, "ports": [{"port": 443}]}});
            let address = ServiceAddress::of(serde_json::from_value(service).unwrap());
            put(&mut addresses, (*namespace).to_owned(), (*name).to_owned(), address);
        }
        addresses
    }

    /// The hosts of the services that a pod of namespace `shop` has variables for.
    fn hosts(addresses: &Addresses, links: bool) -> Vec<String> {
        let all = variables(addresses, "shop", links).into_iter();
        let hosts = all.filter(|(name, _)| name.ends_with("_SERVICE_HOST"));
        hosts.map(|(name, ip)| format!("{name}={ip}")).collect()
    }

    #[test]
    fn links_are_of_the_namespace_and_the_api_server_is_always_there() {
        let all = addresses(&[
            ("default", "kubernetes", "10.0.0.1"),
            ("default", "other", "10.0.0.2"),
            ("shop", "web", "10.0.0.3"),
        ]);
        let api = "KUBERNETES_SERVICE_HOST=10.0.0.1";
        assert_eq!(hosts(&all, true), [api, "WEB_SERVICE_HOST=10.0.0.3"]);
        assert_eq!(hosts(&all, false), [api]);
        let own = addresses(&[
            ("default", "kubernetes", "10.0.0.1"),
            ("shop", "kubernetes", "10.0.0.9"),
        ]);
        assert_eq!(hosts(&own, true), ["KUBERNETES_SERVICE_HOST=10.0.0.9"]);
        assert_eq!(hosts(&own, false), [api]);
        assert_eq!(hosts(&Addresses::new(), true), Vec::<String>::new());
    }
}
