//! The objects of a fake API server, with paused time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::testing::{Answer, FakeApi, Request};

/// The part of an API server that these tests need.
#[derive(Default)]
struct Server {
    /// By path.
    objects: Mutex<BTreeMap<String, Value>>,
    /// Watches of objects, by their paths; of collections, by theirs.
    watches: Mutex<Vec<(String, mpsc::UnboundedSender<Value>)>>,
    away: AtomicBool,
    forbids: AtomicBool,
    cuts_watches: AtomicBool,
    tokens: AtomicU64,
}

const MAP: &str = "/api/v1/namespaces/shop/configmaps/map";
const SECRET: &str = "/api/v1/namespaces/shop/secrets/env";
const TOKEN: &str = "/api/v1/namespaces/shop/serviceaccounts/web/token";

impl Server {
    fn start() -> (Arc<Self>, FakeApi) {
        let server = Arc::new(Self::default());
        let answering = Arc::clone(&server);
        let fake = FakeApi::start(move |request| answering.answer(request));
        (server, fake)
    }

    fn answer(&self, request: &Request) -> Answer {
        if self.away.load(Ordering::SeqCst) {
            return Answer::Fail("no route to host");
        }
        if self.forbids.load(Ordering::SeqCst) {
            return Answer::refuse(403, "Forbidden", "no relationship found between node and this object");
        }
        let path = request.path.clone();
        if request.method == "POST" {
            let number = self.tokens.fetch_add(1, Ordering::SeqCst);
            let status = json!({"token": format!("token-{number}"), "expirationTimestamp": "2030-01-01T00:00:00Z"});
            return Answer::ok(&json!({"spec": request.body["spec"], "status": status}));
        }
        let name = request
            .query
            .split('&')
            .find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"));
        let of = name.map_or_else(|| path.clone(), |name| format!("{path}/{name}"));
        if request.is_watch() {
            let (sender, events) = mpsc::unbounded_channel();
            if !self.cuts_watches.load(Ordering::SeqCst) {
                self.watches.lock().push((of, sender));
            }
            return Answer::Watch(events);
        }
        let objects = self.objects.lock();
        let is_list = name.is_some() || path.ends_with("/services");
        if !is_list {
            return objects.get(&path).map_or_else(Answer::not_found, Answer::ok);
        }
        let items: Vec<&Value> = match name {
            Some(_) => objects.get(&of).into_iter().collect(),
            None => objects
                .iter()
                .filter(|(at, _)| at.contains("/services/"))
                .map(|(_, item)| item)
                .collect(),
        };
        Answer::ok(&json!({"metadata": {"resourceVersion": "7"}, "items": items}))
    }

    /// Creates or changes an object.
    fn set(&self, path: &str, object: Value) {
        let event = json!({"type": "MODIFIED", "object": object});
        self.objects.lock().insert(path.to_owned(), object);
        for (_, watch) in self.watches.lock().iter().filter(|(of, _)| of == path) {
            let _ = watch.send(event.clone());
        }
    }

    fn cut_watches(&self) {
        self.watches.lock().clear();
    }
}

fn map(value: &str) -> Value {
    json!({"metadata": {"name": "map", "namespace": "shop", "resourceVersion": "8"}, "data": {"key": value}})
}

fn secret(value: &str) -> Value {
    let data = serde_json::to_value(k8s_openapi::ByteString(value.into())).unwrap();
    json!({"metadata": {"name": "env", "namespace": "shop"}, "data": {"key": data}})
}

/// A pod with the config map `map` in a volume, the secret `env` in its environment, and a token.
fn pod(uid: &str) -> Pod {
    let sources = json!([
        {"configMap": {"name": "map"}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600, "audience": "vault"}},
    ]);
    let object = json!({
        "metadata": {"name": "web-0", "namespace": "shop", "uid": uid},
        "spec": {
            "nodeName": "n", "serviceAccountName": "web", "enableServiceLinks": true,
            "containers": [{"name": "app", "image": "i", "envFrom": [{"secretRef": {"name": "env"}}]}],
            "volumes": [{"name": "v", "projected": {"sources": sources}}],
        },
    });
    Pod::from_object(serde_json::from_value(object).unwrap()).unwrap()
}

/// The value of an object's only entry; `-` if it does not exist.
async fn get(objects: &ClusterObjects, kind: ObjectKind, name: &str) -> String {
    match objects.data("shop", kind, name).await {
        Ok(Some(data)) => String::from_utf8(data["key"].clone()).unwrap(),
        Ok(None) => "-".to_owned(),
        Err(error) => error.to_string(),
    }
}

async fn get_map(objects: &ClusterObjects) -> String {
    get(objects, ObjectKind::ConfigMap, "map").await
}

async fn get_secret(objects: &ClusterObjects) -> String {
    get(objects, ObjectKind::Secret, "env").await
}

/// Both, as `map secret`.
async fn get_both(objects: &ClusterObjects) -> String {
    format!("{} {}", get_map(objects).await, get_secret(objects).await)
}

/// How often the object was asked for, in any way.
fn requests(fake: &FakeApi, what: &str) -> usize {
    fake.requests()
        .iter()
        .filter(|request| request.path.contains(what))
        .count()
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_a_volumes_object_wakes_its_pods() {
    let (server, fake) = Server::start();
    server.set(MAP, map("1"));
    let objects = ClusterObjects::start(fake.api());
    let (pod, changed) = (pod("u"), Arc::new(Notify::new()));
    objects.register(&pod, &changed);
    assert_eq!(get_map(&objects).await, "1");
    fake.wait_for(|requests| {
        requests
            .iter()
            .any(|request| request.is_watch() && request.path.contains("configmaps"))
    })
    .await;
    // One list and one watch, of that object alone: the node authorizer allows no other.
    let asked: Vec<Request> = fake
        .requests()
        .into_iter()
        .filter(|request| request.path.contains("configmaps"))
        .collect();
    assert_eq!(asked.len(), 2);
    assert!(
        asked
            .iter()
            .all(|request| request.query.contains("fieldSelector=metadata.name%3Dmap"))
    );

    let edited = tokio::time::Instant::now();
    server.set(MAP, map("2"));
    changed.notified().await;
    assert_eq!(get_map(&objects).await, "2");
    assert!(edited.elapsed() < Duration::from_secs(1));
    // The same content again is no news.
    server.set(MAP, map("2"));
    sleep(Duration::from_mins(1)).await;
    assert!(changed.notified().now_or_never().is_none());
    assert_eq!(requests(&fake, "configmaps"), 2);
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_the_last_known_is_used() {
    let (server, fake) = Server::start();
    server.set(MAP, map("1"));
    server.set(SECRET, secret("a"));
    let objects = ClusterObjects::start(fake.api());
    let (pod, changed) = (pod("u"), Arc::new(Notify::new()));
    objects.register(&pod, &changed);
    assert_eq!(get_both(&objects).await, "1 a");
    // What only starting containers need is fetched for each.
    server.set(SECRET, secret("b"));
    assert_eq!(get_secret(&objects).await, "b");

    server.away.store(true, Ordering::SeqCst);
    server.cut_watches();
    sleep(Duration::from_mins(2)).await;
    assert_eq!(get_both(&objects).await, "1 b");
    let other = get(&objects, ObjectKind::Secret, "other").await;
    assert!(
        other.contains("no route to host") && other.starts_with("cannot get secret shop/other"),
        "{other}"
    );

    // Back, and changed meanwhile.
    server.objects.lock().insert(MAP.to_owned(), map("9"));
    server.away.store(false, Ordering::SeqCst);
    let back = tokio::time::Instant::now();
    changed.notified().await;
    assert!(back.elapsed() < Duration::from_secs(15), "{:?}", back.elapsed());
    assert_eq!(get_map(&objects).await, "9");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_exist_is_no_error_and_appears_when_it_is_created() {
    let (server, fake) = Server::start();
    let objects = ClusterObjects::start(fake.api());
    let (pod, changed) = (pod("u"), Arc::new(Notify::new()));
    objects.register(&pod, &changed);
    assert_eq!(get_both(&objects).await, "- -");
    fake.wait_for(|requests| {
        requests
            .iter()
            .any(|request| request.is_watch() && request.path.contains("configmaps"))
    })
    .await;
    server.set(MAP, map("1"));
    changed.notified().await;
    assert_eq!(get_map(&objects).await, "1");
}

/// The node authorizer learns of a pod a moment after the node does.
#[tokio::test(start_paused = true)]
async fn a_refusal_right_after_the_pod_arrived_is_tried_again() {
    let (server, fake) = Server::start();
    server.set(MAP, map("1"));
    server.set(SECRET, secret("a"));
    let objects = ClusterObjects::start(fake.api());
    server.forbids.store(true, Ordering::SeqCst);
    objects.register(&pod("u"), &Arc::new(Notify::new()));
    let allow = async {
        sleep(Duration::from_millis(500)).await;
        server.forbids.store(false, Ordering::SeqCst);
    };
    let (map, secret, ()) = tokio::join!(get_map(&objects), get_secret(&objects), allow);
    assert_eq!((&*map, &*secret), ("1", "a"));
    // For good, it is an error, and soon.
    server.forbids.store(true, Ordering::SeqCst);
    let error = get(&objects, ObjectKind::Secret, "other").await;
    assert!(error.contains("no relationship found"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_immutable_object_is_fetched_once() {
    let (server, fake) = Server::start();
    let mut fixed = map("1");
    fixed["immutable"] = true.into();
    server.set(MAP, fixed);
    let mut fixed = secret("a");
    fixed["immutable"] = true.into();
    server.set(SECRET, fixed);
    let objects = ClusterObjects::start(fake.api());
    let changed = Arc::new(Notify::new());
    for uid in ["u", "v"] {
        objects.register(&pod(uid), &changed);
        assert_eq!(get_both(&objects).await, "1 a");
        sleep(Duration::from_mins(30)).await;
    }
    assert_eq!((requests(&fake, "configmaps"), requests(&fake, "secrets")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_no_pod_refers_to_is_forgotten() {
    let (server, fake) = Server::start();
    server.set(MAP, map("1"));
    let objects = ClusterObjects::start(fake.api());
    let changed = Arc::new(Notify::new());
    for uid in ["u", "v"] {
        objects.register(&pod(uid), &changed);
    }
    assert_eq!(get_map(&objects).await, "1");
    objects.unregister(&"u".into());
    assert_eq!(objects.data.len(), 2);
    objects.unregister(&"v".into());
    assert_eq!(objects.data.len(), 0);
    let before = requests(&fake, "configmaps");
    server.cut_watches();
    sleep(Duration::from_mins(30)).await;
    assert_eq!(requests(&fake, "configmaps"), before, "nobody follows it");
}

/// A server that ends each watch at once is not asked in a hot loop.
#[tokio::test(start_paused = true)]
async fn watches_that_are_cut_at_once_cost_little() {
    let (server, fake) = Server::start();
    server.set(MAP, map("1"));
    server.cuts_watches.store(true, Ordering::SeqCst);
    let objects = ClusterObjects::start(fake.api());
    objects.register(&pod("u"), &Arc::new(Notify::new()));
    assert_eq!(get_map(&objects).await, "1");
    sleep(Duration::from_mins(10)).await;
    let count = requests(&fake, "configmaps");
    assert!((60..100).contains(&count), "{count} requests in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_bound_to_its_pod_kept_and_replaced() {
    let (server, fake) = Server::start();
    let objects = ClusterObjects::start(fake.api());
    let (pod, changed) = (pod("u"), Arc::new(Notify::new()));
    objects.register(&pod, &changed);
    let wanted = TokenRequest {
        audience: Some("vault".to_owned()),
        expiration: Duration::from_hours(1),
    };
    let token = async || objects.token(&pod, &wanted).await.map_err(|error| error.to_string());
    assert_eq!(token().await.unwrap(), "token-0");
    let request = fake
        .requests()
        .into_iter()
        .find(|request| request.path == TOKEN)
        .unwrap();
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "u"});
    let spec = json!({"audiences": ["vault"], "boundObjectRef": bound, "expirationSeconds": 3600});
    assert_eq!(request.body["spec"], spec);

    // The pod is woken after 80 % of an hour.
    let issued = tokio::time::Instant::now();
    assert_eq!(token().await.unwrap(), "token-0");
    changed.notified().await;
    let age = issued.elapsed().as_secs();
    assert!((2869..=2881).contains(&age), "{age}");
    assert_eq!(token().await.unwrap(), "token-1");

    // Cannot be replaced: the old token is used until it expires, and the pod is woken to try again.
    server.away.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        changed.notified().await;
        assert_eq!(token().await.unwrap(), "token-1");
    }
    sleep(Duration::from_hours(1)).await;
    let error = token().await.unwrap_err();
    assert!(
        error.starts_with("cannot get a service account token for pod shop/web-0"),
        "{error}"
    );
    server.away.store(false, Ordering::SeqCst);
    assert_eq!(token().await.unwrap(), "token-2");

    // Dropped with the pod: another one asks anew.
    objects.unregister(&pod.id.uid);
    objects.register(&pod, &changed);
    assert_eq!(token().await.unwrap(), "token-3");
}

#[tokio::test(start_paused = true)]
async fn containers_wait_for_services_and_static_pods_do_not() {
    let (server, fake) = Server::start();
    server.away.store(true, Ordering::SeqCst);
    let service = json!({
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]},
    });
    server.set("/api/v1/namespaces/default/services/kubernetes", service);
    let objects = ClusterObjects::start(fake.api());
    let mut pod = pod("u");
    let error = objects.service_variables(&pod).await.unwrap_err().to_string();
    assert_eq!(error, "cannot get the services of the cluster: no answer within 8s");
    server.away.store(false, Ordering::SeqCst);
    let host = ("KUBERNETES_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned());
    sleep(Duration::from_secs(15)).await;
    assert_eq!(objects.service_variables(&pod).await.unwrap()[0], host);

    let web = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.2", "ports": [{"port": 80}]},
    });
    let event = json!({"type": "ADDED", "object": web});
    let send = |event: &Value| {
        let watches = server.watches.lock();
        let (_, services) = watches.iter().find(|(of, _)| of.ends_with("/services")).unwrap();
        services.send(event.clone()).unwrap();
    };
    fake.wait_for(|requests| requests.iter().any(Request::is_watch)).await;
    send(&event);
    sleep(Duration::from_secs(1)).await;
    let names = async |pod: &Pod| {
        let all = objects.service_variables(pod).await.unwrap().into_iter();
        all.filter(|(name, _)| name.ends_with("_HOST"))
            .map(|(_, ip)| ip)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&pod).await, ["10.0.0.1", "10.0.0.2"]);
    pod.spec.enable_service_links = false;
    assert_eq!(names(&pod).await, ["10.0.0.1"]);
    pod.spec.enable_service_links = true;
    send(&json!({"type": "DELETED", "object": web}));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(names(&pod).await, ["10.0.0.1"]);

    let (server, fake) = Server::start();
    server.away.store(true, Ordering::SeqCst);
    let objects = ClusterObjects::start(fake.api());
    let text = b"{apiVersion: v1, kind: Pod, metadata: {name: s}, spec: {containers: [{name: a, image: i}]}}";
    let name = pleg_node::manifest::NodeName::new("n").unwrap();
    let source = pleg_node::sources::static_pods::ConfigSource::File;
    let found = pleg_node::sources::static_pods::read(text, &name, source).unwrap();
    let variables = objects.service_variables(&found.pods[0]).now_or_never();
    assert_eq!(variables.unwrap().unwrap(), Vec::new());
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_asked_for_until_it_is_bound_and_then_never_again() {
    let (server, fake) = Server::start();
    let objects = ClusterObjects::start(fake.api());
    let object = json!({
        "metadata": {"name": "db-0", "namespace": "shop", "uid": "u"},
        "spec": {
            "nodeName": "n", "containers": [{"name": "app", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    let pod = Pod::from_object(serde_json::from_value(object).unwrap()).unwrap();
    objects.register(&pod, &Arc::new(Notify::new()));
    let claim = async || objects.claim(&pod, "data").await.map_err(|error| error.to_string());
    assert_eq!(claim().await.unwrap_err(), "persistentvolumeclaim shop/data not found");
    let mut object =
        json!({"metadata": {"name": "data", "namespace": "shop", "uid": "1"}, "status": {"phase": "Pending"}});
    let path = "/api/v1/namespaces/shop/persistentvolumeclaims/data";
    server.set(path, object.clone());
    let error = claim().await.unwrap_err();
    assert_eq!(
        error,
        "persistentvolumeclaim shop/data is not bound to a volume yet (phase Pending)"
    );
    object["spec"]["volumeName"] = "pv".into();
    object["status"]["phase"] = "Bound".into();
    server.set(path, object);
    let error = claim().await.unwrap_err();
    assert_eq!(
        error,
        "persistentvolumeclaim shop/data is bound to volume pv, which does not exist"
    );
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "1"}, "local": {"path": "/mnt/a"}}});
    server.set("/api/v1/persistentvolumes/pv", volume);
    assert_eq!(claim().await.unwrap().path, std::path::Path::new("/mnt/a"));
    server.away.store(true, Ordering::SeqCst);
    assert_eq!(claim().await.unwrap().volume, "pv");
}
