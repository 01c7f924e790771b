//! Pods of an API server: what is read, ignored and refused.

use serde_json::{Value, json};

use super::*;
use crate::manifest::{
    ContainerResource, Dns, DnsConfig, DownwardValue, EnvValue, Medium, ObjectKind, PodField, ProjectedKind,
    Projection, Quantity, Role, Seccomp, Spec, Stdin, SubPath, Volume,
};

/// A pod as an API server has it, with these fields of `spec` changed. Null removes one.
fn object(changes: &Value) -> core::Pod {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-0", "namespace": "shop", "uid": "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b11", "resourceVersion": "77",
            "creationTimestamp": "2030-01-02T03:04:05Z", "generation": 3, "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1"}],
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "containers": [{
                "name": "app", "image": "nginx", "imagePullPolicy": "Always", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true}],
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "nodeName": "n", "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0, "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
            "tolerations": [{"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}],
            "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}]}},
            ]}}],
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    });
    for (key, value) in changes.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_pod_of_a_deployment_is_read() {
    let pod = Pod::from_object(object(&json!({}))).unwrap();
    assert_eq!(pod.id.to_string(), "shop/web-0");
    assert_eq!(pod.object.metadata.managed_fields, None);
    assert_eq!(pod.object.metadata.generation, Some(3));
    assert_eq!((&*pod.labels["app"], pod.deletion), ("web", None));
    let spec = &pod.spec;
    assert_eq!(spec.dns, Dns::ClusterAnd(DnsConfig::default()));
    assert_eq!(spec.service_account.as_deref(), Some("default"));
    assert!(spec.enable_service_links);
    let Volume::Projected(token) = &spec.volumes["token"] else {
        panic!("{:?}", spec.volumes);
    };
    assert_eq!((token.kind, token.default_mode), (ProjectedKind::Projected, 0o644));
    let Projection::ServiceAccountToken { expiration, .. } = &token.sources[0] else {
        panic!("{token:?}");
    };
    assert_eq!(*expiration, Duration::from_secs(3607));
}

fn everything() -> Spec {
    let changes = json!({
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "b.example.com"]}],
        "hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true, "hostIPC": true, "runtimeClassName": "gvisor",
        "overhead": {"cpu": "250m", "memory": "64Mi"}, "readinessGates": [{"conditionType": "example.com/lb"}],
        "imagePullSecrets": [{"name": "registry"}], "priority": 1000, "priorityClassName": "high",
        "securityContext": {
            "fsGroup": 7, "fsGroupChangePolicy": "OnRootMismatch", "supplementalGroups": [8], "supplementalGroupsPolicy": "Merge",
            "sysctls": [{"name": "net/ipv4/tcp_syncookies", "value": "1"}],
            "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/a.json"},
        },
        "containers": [{
            "name": "app", "image": "nginx", "stdin": true, "stdinOnce": true, "tty": true,
            "terminationMessagePath": "/tmp/why", "terminationMessagePolicy": "FallbackToLogsOnError",
            "lifecycle": {"stopSignal": "SIGUSR1"},
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
            "resources": {"limits": {"memory": "1Gi", "ephemeral-storage": "2Gi"}},
            "envFrom": [{"prefix": "C_", "configMapRef": {"name": "settings", "optional": true}}, {"secretRef": {"name": "keys"}}],
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a.b"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "b", "optional": true}}},
                {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "containerName": "app", "divisor": "0"}}},
                {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}},
            ],
            "volumeMounts": [
                {"name": "cache", "mountPath": "cache", "subPath": "a/b"},
                {"name": "settings", "mountPath": "/settings", "subPathExpr": "$(A)", "recursiveReadOnly": "Disabled"},
            ],
        }],
        "ephemeralContainers": [{"name": "debug", "image": "busybox", "targetContainerName": "app", "stdin": true}],
        "volumes": [
            {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "settings", "configMap": {"name": "settings", "defaultMode": 256, "items": [{"key": "a", "path": "x/a", "mode": 384}]}},
            {"name": "keys", "secret": {"secretName": "keys", "optional": true}},
            {"name": "info", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "app", "resource": "limits.cpu"}},
            ]}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
        ],
    });
    Pod::from_object(object(&changes)).unwrap().spec
}

#[test]
fn every_field_that_a_node_acts_on_is_read() {
    let spec = everything();
    assert_eq!(spec.host_aliases[0].hostnames, ["a", "b.example.com"]);
    assert_eq!(spec.hostname.subdomain.as_deref(), Some("s"));
    assert!(spec.hostname.set_as_fqdn && spec.host_ipc);
    assert_eq!(spec.runtime_class.as_deref(), Some("gvisor"));
    assert_eq!(spec.overhead.cpu.map(Quantity::milli), Some(250));
    assert_eq!(
        (spec.priority.value, spec.readiness_gates.as_slice()),
        (1000, &["example.com/lb".to_owned()][..])
    );
    assert_eq!(spec.image_pull_secrets, ["registry"]);
    let fs_group = spec.security.fs_group.unwrap();
    assert_eq!((fs_group.gid, fs_group.on_root_mismatch), (7, true));
    assert_eq!(
        spec.security.sysctls,
        [("net.ipv4.tcp_syncookies".to_owned(), "1".to_owned())]
    );
    assert_eq!(
        spec.security.seccomp,
        Some(Seccomp::Localhost("profiles/a.json".into()))
    );
    let app = &spec.containers[0];
    assert_eq!(
        (app.stdin, app.tty, app.stop_signal.as_deref()),
        (Stdin::Once, true, Some("SIGUSR1"))
    );
    assert_eq!(
        (
            &*app.termination_message.path,
            app.termination_message.fall_back_to_logs
        ),
        ("/tmp/why", true)
    );
    assert_eq!(
        app.resources.ephemeral_storage_request.map(Quantity::units),
        Some(2 << 30)
    );
    assert_eq!(
        (&*app.env_from[0].prefix, app.env_from[1].source.kind),
        ("C_", ObjectKind::Secret)
    );
    assert!(matches!(&app.env[0].value, EnvValue::ConfigMapKey(key) if key.key == "a.b" && !key.optional));
    assert!(matches!(&app.env[1].value, EnvValue::SecretKey(key) if key.optional));
    assert!(matches!(&app.env[2].value, EnvValue::Resource(field)
        if field.resource == ContainerResource::MemoryLimit && field.divisor.units() == 1 << 20));
    assert!(matches!(&app.env[3].value, EnvValue::Resource(field) if field.divisor == Quantity::ONE));
    assert_eq!(app.env[4].value, EnvValue::Field(PodField::HostIps));
    assert_eq!(
        (&*app.mounts[0].path, &app.mounts[0].sub_path),
        ("/cache", &Some(SubPath::Path("a/b".into())))
    );
    assert_eq!(app.mounts[1].sub_path, Some(SubPath::Expression("$(A)".into())));
    let debug = spec.container("debug").unwrap();
    assert_eq!((debug.role, debug.target.as_deref()), (Role::Ephemeral, Some("app")));
    assert!(matches!(&spec.volumes["cache"], Volume::EmptyDir(empty)
        if empty.medium == Medium::Memory && empty.size_limit.map(Quantity::units) == Some(64 << 20)));
    assert!(
        matches!(&spec.volumes["settings"], Volume::Projected(volume) if volume.default_mode == 0o400
        && matches!(&volume.sources[0], Projection::Object { items, .. } if items[0].mode == Some(0o600)))
    );
    assert!(
        matches!(&spec.volumes["info"], Volume::Projected(volume) if matches!(&volume.sources[0],
        Projection::DownwardApi(files) if files[0].value == DownwardValue::Field(PodField::Labels)))
    );
    assert!(
        matches!(&spec.volumes["data"], Volume::PersistentVolumeClaim { claim, read_only: false } if claim == "data-0")
    );
}

#[test]
fn what_would_run_another_pod_is_refused_by_name() {
    for (changes, problem) in [
        (
            json!({"hostUsers": false}),
            "spec.hostUsers: user namespaces are not supported by pleg node",
        ),
        (
            json!({"resources": {"limits": {"cpu": "1"}}}),
            "spec.resources: field is not supported by pleg node",
        ),
        (
            json!({"resourceClaims": [{"name": "gpu"}]}),
            "spec.resourceClaims: field is not supported by pleg node",
        ),
        (json!({"os": {"name": "windows"}}), "spec.os.name: must be linux"),
        (
            json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}),
            "spec.securityContext.appArmorProfile: field is not supported by pleg node",
        ),
        (
            json!({"volumes": [{"name": "token", "csi": {"driver": "x"}}]}),
            "spec.volumes[0].csi: field is not supported by pleg node",
        ),
        (
            json!({"volumes": [{"name": "token", "image": {"reference": "x"}}]}),
            "spec.volumes[0].image: field is not supported by pleg node",
        ),
        (
            json!({"containers": [{"name": "a", "image": "b", "volumeDevices": [{"name": "c", "devicePath": "/d"}]}]}),
            "spec.containers[0].volumeDevices: field is not supported by pleg node",
        ),
    ] {
        let refused = Pod::from_object(object(&changes)).unwrap_err();
        assert_eq!(
            refused.id.as_ref().map(ToString::to_string).as_deref(),
            Some("shop/web-0")
        );
        let message = refused.to_string();
        assert!(
            message.starts_with(&format!("Pod was rejected: {problem}")),
            "{message}"
        );
        assert_eq!(refused.problems.len(), 1, "{changes}: {message}");
    }
}

#[test]
fn a_deletion_has_its_end_and_its_grace() {
    let mut pod = object(&json!({}));
    pod.metadata.deletion_timestamp = Some("2030-01-02T03:04:35Z".parse::<jiff::Timestamp>().unwrap().into());
    assert_eq!(
        Pod::from_object(pod.clone()).unwrap().deletion.unwrap().grace,
        Duration::from_secs(30)
    );
    pod.metadata.deletion_grace_period_seconds = Some(0);
    assert_eq!(Pod::from_object(pod).unwrap().deletion.unwrap().grace, Duration::ZERO);
}

/// A UID or a name that is no file name has no identity here.
#[test]
fn names_that_would_lead_elsewhere_are_refused() {
    for (name, uid) in [("../x", "1"), ("x", "../../etc"), ("", "1"), ("x", "")] {
        let mut pod = object(&json!({}));
        (pod.metadata.name, pod.metadata.uid) = (Some(name.to_owned()), Some(uid.to_owned()));
        assert_eq!(Pod::from_object(pod).unwrap_err().id, None, "{name} {uid}");
    }
}
