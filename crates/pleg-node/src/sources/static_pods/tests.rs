//! Manifests, as tables: what is read, and what is refused with which message.

mod refusals;

use std::time::Duration;

use super::*;
use crate::manifest::{
    Dns, DnsConfig, EmptyDir, EnvValue, Hook, HostPathKind, NodeName, PidNamespace, PodField, ProbeHandler, ProbeKind,
    Propagation, Protocol, PullPolicy, Quantity, RestartPolicy, Role, Volume,
};

fn node() -> NodeName {
    NodeName::new("Node-1").unwrap()
}

fn read_text(text: &str) -> Manifests {
    read(text.as_bytes(), &node(), ConfigSource::File).unwrap()
}

fn one(text: &str) -> Arc<Pod> {
    let mut found = read_text(text);
    assert!(found.refused.is_empty(), "{}", found.refused[0]);
    assert_eq!(found.pods.len(), 1);
    found.pods.remove(0)
}

const SMALL: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: app
    image: nginx
";

/// Every field that is supported, once.
const FULL: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  labels: {app: web, example.com/tier: "1"}
  annotations: {note: "any text, of any length"}
  creationTimestamp: null
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 5
  activeDeadlineSeconds: 3600
  hostNetwork: true
  hostPID: true
  hostIPC: false
  enableServiceLinks: false
  automountServiceAccountToken: false
  hostUsers: true
  os: {name: linux}
  hostname: shop-1
  dnsPolicy: None
  dnsConfig:
    nameservers: [10.0.0.53, "fd00::53"]
    searches: [shop.example.com, example.com.]
    options: [{name: ndots, value: "2"}, {name: edns0}]
  priorityClassName: system-node-critical
  priority: 2000001000
  securityContext:
    runAsUser: 1000
    runAsGroup: 1001
    runAsNonRoot: true
    supplementalGroups: [7, 8]
    seccompProfile: {type: RuntimeDefault}
  volumes:
  - name: scratch
    emptyDir: {}
  - name: certs
    hostPath: {path: /etc/ssl/certs, type: DirectoryOrCreate}
  initContainers:
  - name: prepare
    image: busybox:1.36
    command: [sh, -c, "true"]
  - name: proxy
    image: proxy@sha256:0123
    restartPolicy: Always
    startupProbe: {exec: {command: [check]}}
    lifecycle: {preStop: {sleep: {seconds: 3}}}
  containers:
  - name: app
    image: localhost:5000/app
    imagePullPolicy: Never
    command: [serve]
    args: ["--port=$(PORT)"]
    workingDir: /srv
    env:
    - {name: PORT, value: "8080"}
    - {name: EMPTY}
    - {name: ME, valueFrom: {fieldRef: {fieldPath: metadata.name, apiVersion: v1}}}
    - {name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['example.com/tier']"}}}
    ports:
    - {name: http, containerPort: 8080, hostPort: 8080, hostIP: 127.0.0.1}
    - {containerPort: 53, protocol: UDP}
    volumeMounts:
    - {name: scratch, mountPath: /tmp}
    - {name: certs, mountPath: /etc/ssl, readOnly: true, mountPropagation: HostToContainer}
    resources:
      limits: {cpu: 1.5, memory: 128Mi}
      requests: {cpu: 250m}
    securityContext:
      runAsUser: 0
      runAsGroup: 0
      runAsNonRoot: false
      privileged: false
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {add: [NET_BIND_SERVICE, CAP_CHOWN], drop: [ALL]}
      seccompProfile: {type: Unconfined}
    startupProbe:
      tcpSocket: {port: http, host: 127.0.0.1}
      failureThreshold: 30
    livenessProbe:
      httpGet: {path: healthz?full=1, port: http, scheme: HTTP, httpHeaders: [{name: X-Probe, value: live}]}
      initialDelaySeconds: 1
      periodSeconds: 2
      timeoutSeconds: 3
      successThreshold: 1
      failureThreshold: 4
      terminationGracePeriodSeconds: 6
    readinessProbe:
      grpc: {port: 9000, service: shop}
      successThreshold: 2
    lifecycle:
      postStart: {exec: {command: [warm, up]}}
      preStop: {exec: {command: [drain]}}
status: {}
"#;

#[test]
fn every_supported_field_is_read() {
    let pod = one(FULL);
    assert_eq!(pod.id.to_string(), "shop/web-node-1");
    let spec = &pod.spec;
    assert_eq!(spec.restart_policy, RestartPolicy::OnFailure);
    assert_eq!(spec.termination_grace, Duration::from_secs(5));
    assert_eq!(spec.active_deadline, Some(Duration::from_hours(1)));
    assert_eq!(
        (spec.host_network, spec.processes, spec.priority.is_node_critical()),
        (true, PidNamespace::Host, true)
    );
    assert_eq!(spec.hostname.name.as_deref(), Some("shop-1"));
    let dns = DnsConfig {
        servers: vec!["10.0.0.53".parse().unwrap(), "fd00::53".parse().unwrap()],
        searches: vec!["shop.example.com".into(), "example.com.".into()],
        options: vec!["ndots:2".into(), "edns0".into()],
    };
    assert_eq!(spec.dns, Dns::Own(dns));
    assert_eq!(spec.security.supplemental_groups, [7, 8]);
    assert_eq!(spec.volumes["scratch"], Volume::EmptyDir(EmptyDir::default()));
    let certs = Volume::HostPath {
        path: "/etc/ssl/certs".into(),
        kind: HostPathKind::DirectoryOrCreate,
    };
    assert_eq!(spec.volumes["certs"], certs);
    assert_eq!(spec.init_containers[0].role, Role::Init);
    assert_eq!(spec.init_containers[1].role, Role::Sidecar);
    assert_eq!(
        spec.init_containers[1].pre_stop,
        Some(Hook::Sleep(Duration::from_secs(3)))
    );

    let app = &spec.containers[0];
    assert_eq!((app.role, app.pull_policy), (Role::Main, PullPolicy::Never));
    assert_eq!(app.env[1].value, EnvValue::Text(String::new()));
    assert_eq!(app.env[2].value, EnvValue::Field(PodField::Name));
    assert_eq!(
        app.env[3].value,
        EnvValue::Field(PodField::Label("example.com/tier".into()))
    );
    assert_eq!((app.ports[0].host, app.ports[1].protocol), (Some(8080), Protocol::Udp));
    assert_eq!(app.mounts[1].propagation, Propagation::HostToContainer);
    assert_eq!(app.resources.cpu_limit.unwrap().milli(), 1500);
    assert_eq!(app.resources.cpu_request.unwrap().milli(), 250);
    assert_eq!(app.resources.memory_request, Some(Quantity::whole(128 << 20)));
    assert_eq!(app.security.add_capabilities, ["NET_BIND_SERVICE", "CHOWN"]);
    let startup = app.probe(ProbeKind::Startup).unwrap();
    assert_eq!(
        (startup.failure_threshold, startup.period),
        (30, Duration::from_secs(10))
    );
    let ProbeHandler::Http(get) = &app.liveness.as_ref().unwrap().handler else {
        panic!("{:?}", app.liveness);
    };
    assert_eq!((get.path.as_str(), get.port), ("/healthz?full=1", 8080));
    assert_eq!(
        app.liveness.as_ref().unwrap().termination_grace,
        Some(Duration::from_secs(6))
    );
    assert_eq!(app.readiness.as_ref().unwrap().success_threshold, 2);
    assert_eq!(app.post_start, Some(Hook::Exec(vec!["warm".into(), "up".into()])));
}

#[test]
fn a_hook_may_get_a_page() {
    let hook = "preStop: {httpGet: {path: drain, port: http}}";
    let pod = one(&FULL.replace("preStop: {exec: {command: [drain]}}", hook));
    let Some(Hook::Http(get)) = &pod.spec.containers[0].pre_stop else {
        panic!("{:?}", pod.spec.containers[0].pre_stop);
    };
    assert_eq!((get.path.as_str(), get.port, get.tls), ("/drain", 8080, false));
}

/// A refused pod can be shown by its name.
#[test]
fn a_pod_that_is_refused_has_its_names_if_those_are_good() {
    for (from, to, name) in [
        (
            "hostname: shop-1",
            "hostname: shop-1\n  tolerations: []",
            Some("web-node-1"),
        ),
        ("hostname: shop-1", "hostname: [shop]", Some("web-node-1")),
        ("name: web\n", "name: Web!\n", None),
        ("name: web\n", "name: web\n  uid: mine\n", None),
    ] {
        assert_eq!(FULL.matches(from).count(), 1, "{from}");
        let found = read_text(&FULL.replace(from, to));
        let id = found.refused[0].id.as_ref();
        assert_eq!(id.map(|id| &*id.name), name, "{to}: {:?}", found.refused);
    }
}

#[test]
fn what_is_left_out_is_as_kubernetes_has_it() {
    let pod = one(SMALL);
    assert_eq!(pod.id.to_string(), "default/web-node-1");
    assert_eq!(pod.spec.restart_policy, RestartPolicy::Always);
    assert_eq!(pod.spec.termination_grace, Duration::from_secs(30));
    assert_eq!(pod.spec.dns, Dns::Host);
    for (image, policy) in [
        ("nginx", PullPolicy::Always),
        ("nginx:latest", PullPolicy::Always),
        ("localhost:5000/nginx", PullPolicy::Always),
        ("nginx:1.27", PullPolicy::IfNotPresent),
        ("localhost:5000/nginx:1", PullPolicy::IfNotPresent),
        ("nginx@sha256:00", PullPolicy::IfNotPresent),
    ] {
        let pod = one(&SMALL.replace("nginx", image));
        assert_eq!(pod.spec.containers[0].pull_policy, policy, "{image}");
    }
}

/// A change here replaces every static pod of every node that is upgraded.
#[test]
fn uids_stay_what_they_are() {
    assert_eq!(one(SMALL).id.uid.as_str(), "495340734c9b05cc8a1599fd7ec738fa");
    assert_eq!(one(FULL).id.uid.as_str(), "bff03a1faf7dd7e460860e7f63e3d376");
}

#[test]
fn the_uid_follows_the_content_and_nothing_else() {
    let uid = one(SMALL).id.uid.clone();
    let json = r#"{"spec": {"containers": [{"image": "nginx", "name": "app"}]},
        "metadata": {"name": "web", "labels": null}, "kind": "Pod", "apiVersion": "v1"}"#;
    assert_eq!(one(json).id.uid, uid);
    assert_eq!(one(&format!("# a comment\n{SMALL}")).id.uid, uid);
    assert_ne!(one(&SMALL.replace("nginx", "nginx:1")).id.uid, uid);
    let elsewhere = read(SMALL.as_bytes(), &NodeName::new("node-2").unwrap(), ConfigSource::File).unwrap();
    assert_ne!(elsewhere.pods[0].id.uid, uid);
    assert_eq!(&*elsewhere.pods[0].id.name, "web-node-2");
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = read_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: A}, spec: {containers: [{name: b, images: c}], tolerations: []}}",
    );
    assert_eq!(
        found.refused[0].to_string(),
        "document 1 (pod default/A): metadata.name: \"A\" is not a valid name; expected 1 to 253 characters of a-z, 0-9, - and ., no \
         part starting or ending with -; spec.containers[0].image: required field is missing; spec.containers[0].images: unknown field; did you \
         mean image?; spec.tolerations: field is not supported by pleg node; remove it"
    );
}

#[test]
fn one_bad_document_leaves_the_others() {
    let other = SMALL.replace("web", "other");
    let bad = SMALL.replace("image:", "imag:");
    let found = read_text(&format!(
        "{SMALL}---\n{bad}---\n{other}---\n{SMALL}---\nkind: ConfigMap\napiVersion: v1\n---\n[1, 2]\n"
    ));
    let names: Vec<&str> = found.pods.iter().map(|pod| &*pod.id.name).collect();
    assert_eq!(names, ["web-node-1", "other-node-1"]);
    let refused: Vec<String> = found.refused.iter().map(ToString::to_string).collect();
    assert_eq!(
        refused,
        [
            "document 2 (pod default/web): spec.containers[0].imag: unknown field; did you mean image?; spec.containers[0].image: \
             required field is missing",
            "document 4 (pod default/web): metadata.name: document 1 already has a pod of this name",
            "document 5: kind: \"ConfigMap\" (apiVersion \"v1\") is not supported; expected Pod (apiVersion v1)",
            "document 6: kind: required field is missing; expected Pod (apiVersion v1)",
        ]
    );
}

#[test]
fn lists_are_their_pods() {
    let item = |name: &str| format!("{{metadata: {{name: {name}}}, spec: {{containers: [{{name: a, image: b}}]}}}}");
    let found = read_text(&format!(
        "{{apiVersion: v1, kind: PodList, metadata: {{}}, items: [{}, {}, {{kind: Secret}}]}}",
        item("a"),
        item("b")
    ));
    assert_eq!((found.pods.len(), found.refused.len()), (2, 1));
    let alone = one(&format!("{{apiVersion: v1, kind: Pod, {}", &item("a")[1..]));
    assert_eq!(found.pods[0].id, alone.id);
    // In a List each item must have a kind.
    let found = read_text(&format!("{{apiVersion: v1, kind: List, items: [{}]}}", item("a")));
    assert_eq!((found.pods.len(), found.refused.len()), (0, 1));
    let found = read_text("{apiVersion: v2, kind: List, item: []}");
    assert_eq!(
        found.refused[0].to_string(),
        "document 1: apiVersion: \"v2\" is not valid; expected v1; item: unknown field; did you mean items?; items: required field is missing"
    );
}

#[test]
fn a_text_without_a_document_is_no_pod() {
    for text in ["", "\n", "# soon\n", "---\n---\n", "null"] {
        assert_eq!(
            read(text.as_bytes(), &node(), ConfigSource::File).unwrap_err(),
            ManifestError::Empty,
            "{text:?}"
        );
    }
    assert_eq!(
        read(&vec![b'#'; 10 << 20], &node(), ConfigSource::File).unwrap_err(),
        ManifestError::TooLarge
    );
}

#[test]
fn names_fit_into_the_log_directory() {
    let name = "x".repeat(210);
    let found = read_text(&SMALL.replace("web", &name));
    assert!(
        found.refused[0].to_string().contains("is too long"),
        "{}",
        found.refused[0]
    );
    let pod = one(&SMALL.replace("web", &name[..200]));
    assert!(format!("{}_{}_{}", pod.id.namespace, pod.id.name, pod.id.uid).len() <= 255);
    assert!(NodeName::new("").is_err() && NodeName::new("a/b").is_err() && NodeName::new("-").is_err());
}

proptest::proptest! {
    /// However a manifest is mutated, it is a pod or a refusal with a problem.
    #[test]
    fn no_bent_manifest_makes_it_panic(at in 0..FULL.len(), to in "[\\x00-\\x7f]{0,6}", cut in 0..40_usize) {
        let mut text = FULL.as_bytes().to_vec();
        text.splice(at..(at + cut).min(FULL.len()), to.bytes());
        if let Ok(found) = read(&text, &node(), ConfigSource::File) {
            for refused in found.refused {
                proptest::prop_assert!(!refused.problems.is_empty());
            }
        }
    }
}

/// The fields that came with Kubernetes' own types, as far as they need no API server.
#[test]
fn fields_that_need_no_api_server_are_read() {
    let pod = one(r"
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostAliases: [{ip: 10.0.0.1, hostnames: [a]}]
  subdomain: s
  setHostnameAsFQDN: true
  hostIPC: true
  runtimeClassName: gvisor
  readinessGates: [{conditionType: example.com/lb}]
  securityContext: {fsGroup: 7, sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}
  volumes:
  - {name: cache, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
  - {name: info, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.annotations}}]}}
  - {name: all, projected: {sources: [{downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.uid}}]}}]}}
  containers:
  - name: app
    image: nginx
    stdin: true
    tty: true
    terminationMessagePath: /tmp/why
    lifecycle: {stopSignal: SIGUSR1}
    env: [{name: M, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]
    volumeMounts: [{name: cache, mountPath: /c, subPathExpr: $(M)}]
    securityContext: {seccompProfile: {type: Localhost, localhostProfile: a.json}}
");
    assert_eq!(pod.spec.volumes.len(), 3);
    assert!(pod.spec.host_ipc && !pod.spec.enable_service_links);
}

#[test]
fn static_pods_say_where_they_come_from() {
    for (source, name) in [(ConfigSource::File, "file"), (ConfigSource::Http, "http")] {
        let pod = read(SMALL.as_bytes(), &node(), source).unwrap().pods.remove(0);
        assert_eq!(pod.annotations["kubernetes.io/config.source"], name);
        assert_eq!(pod.annotations["kubernetes.io/config.hash"], pod.id.uid.as_str());
        let metadata = &pod.object.metadata;
        assert_eq!(metadata.name.as_deref(), Some("web-node-1"));
        assert_eq!(metadata.uid.as_deref(), Some(pod.id.uid.as_str()));
    }
    assert_eq!(ConfigSource::of(&"https://example.com/x".into()), ConfigSource::Http);
    assert_eq!(ConfigSource::of(&"/etc/http/x.yaml".into()), ConfigSource::File);
}
