//! The table of refusals: one change, one problem, in these words.

use super::{FULL, read_text};

/// What is changed, into what, and what is said then.
const ROWS: &[(&str, &str, &str)] = &[
    // Fields that exist and that we do not have.
    (
        "preStop: {exec: {command: [drain]}}",
        "preStop: {exec: {command: [drain]}, tcpSocket: {port: 80}}",
        "spec.containers[0].lifecycle.preStop.tcpSocket: pleg node does not support this field: remove it",
    ),
    (
        "hostname: shop-1",
        "hostname: shop-1\n  tolerations: []",
        "spec.tolerations: pleg node does not support this field: remove it",
    ),
    (
        "emptyDir: {}",
        "emptyDir: {medium: Memory}",
        "spec.volumes[0].emptyDir.medium: pleg node does not support this field: remove it",
    ),
    (
        "runAsUser: 1000",
        "runAsUser: 1000\n    fsGroup: 5",
        "spec.securityContext.fsGroup: pleg node does not support this field: remove it",
    ),
    (
        "cpu: 250m",
        "cpu: 250m, ephemeral-storage: 1Gi",
        "spec.containers[0].resources.requests.ephemeral-storage: pleg node does not support this field: remove it",
    ),
    (
        "seccompProfile: {type: Unconfined}",
        "seccompProfile: {type: Localhost}",
        "spec.containers[0].securityContext.seccompProfile.type: pleg node does not support profiles of its own: write \
             RuntimeDefault or Unconfined",
    ),
    (
        "hostIPC: false",
        "hostIPC: true",
        "spec.hostIPC: pleg node does not support this: write false, or remove it",
    ),
    (
        "enableServiceLinks: false",
        "enableServiceLinks: true",
        "spec.enableServiceLinks: there is no API server here: write false, or remove it",
    ),
    (
        "status: {}",
        "status: {phase: Running}",
        "status: is ours to say: remove it",
    ),
    (
        "namespace: shop",
        "namespace: shop\n  uid: abc",
        "metadata.uid: is made from the content: remove it",
    ),
    (
        "{type: RuntimeDefault}",
        "{type: RuntimeDefault, localhostProfile: x}",
        "spec.securityContext.seccompProfile.localhostProfile: pleg node does not support this field: remove it",
    ),
    // Fields that nobody has.
    (
        "restartPolicy: OnFailure",
        "restartPolicy: OnFailure\n  restartpolicy: Never",
        "spec.restartpolicy: there is no such field; is restartPolicy meant?",
    ),
    (
        "workingDir: /srv",
        "workdir: /srv",
        "spec.containers[0].workdir: there is no such field",
    ),
    ("kind: Pod", "kind: Pod\nextra: 1", "extra: there is no such field"),
    // Wrong types and values.
    (
        "value: \"8080\"",
        "value: 8080",
        "spec.containers[0].env[0].value: is a number, and has to be a text: write it in quotes",
    ),
    (
        "hostNetwork: true",
        "hostNetwork: \"true\"",
        "spec.hostNetwork: is a text, and has to be true or false",
    ),
    (
        "activeDeadlineSeconds: 3600",
        "activeDeadlineSeconds: 0",
        "spec.activeDeadlineSeconds: is 0, and has to be from 1 to 2147483647",
    ),
    (
        "terminationGracePeriodSeconds: 5",
        "terminationGracePeriodSeconds: 1.5",
        "spec.terminationGracePeriodSeconds: is a number, and has to be a whole number",
    ),
    (
        "restartPolicy: OnFailure",
        "restartPolicy: Sometimes",
        r#"spec.restartPolicy: is "Sometimes", and has to be Always, OnFailure or Never"#,
    ),
    (
        "cpu: 1.5, memory: 128Mi",
        "cpu: 1.5, memory: 128MB",
        r#"spec.containers[0].resources.limits.memory: is "128MB", which is no quantity such as 500m, 2, 128Mi or 1G"#,
    ),
    (
        "cpu: 250m",
        "cpu: 2",
        "spec.containers[0].resources.requests: asks for more cpu than the limit allows",
    ),
    (
        "periodSeconds: 2",
        "periodSeconds: 0",
        "spec.containers[0].livenessProbe.periodSeconds: is 0, and has to be from 1 to 2147483647",
    ),
    (
        "successThreshold: 1",
        "successThreshold: 2",
        "spec.containers[0].livenessProbe.successThreshold: is 2, and has to be from 1 to 1",
    ),
    (
        "successThreshold: 2",
        "terminationGracePeriodSeconds: 2",
        "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: a readiness probe ends nothing, so it has no grace period",
    ),
    (
        "nameservers: [10.0.0.53, \"fd00::53\"]",
        "nameservers: [10.0.0.53, ns1]",
        "spec.dnsConfig.nameservers[1]: is no IP address",
    ),
    (
        "value: \"2\"",
        "value: \"2\\nnameserver 6.6.6.6\"",
        r#"spec.dnsConfig.options[0].value: is "2\nnameserver 6.6.6.6", and has to be one word"#,
    ),
    (
        "scheme: HTTP,",
        "scheme: GOPHER,",
        r#"spec.containers[0].livenessProbe.httpGet.scheme: is "GOPHER", and has to be HTTP or HTTPS"#,
    ),
    // What does not go together.
    (
        "preStop: {exec: {command: [drain]}}",
        "preStop: {exec: {command: [drain]}, httpGet: {port: 80}}",
        "spec.containers[0].lifecycle.preStop: has to have exactly one of exec, httpGet and sleep",
    ),
    (
        "grpc: {port: 9000, service: shop}",
        "grpc: {port: 9000}\n      tcpSocket: {port: 1}",
        "spec.containers[0].readinessProbe: has to have exactly one of exec, httpGet, tcpSocket and grpc",
    ),
    (
        "tcpSocket: {port: http,",
        "tcpSocket: {port: https,",
        r#"spec.containers[0].startupProbe.tcpSocket.port: the container has no port named "https""#,
    ),
    (
        "hostPort: 8080",
        "hostPort: 80",
        "spec.containers[0].ports: with hostNetwork the hostPort 80 has to be the containerPort 8080",
    ),
    (
        "- {containerPort: 53, protocol: UDP}",
        "- {containerPort: 8080, hostPort: 8080, hostIP: 127.0.0.1}",
        "spec.containers[0].ports: the hostPort 8080 is taken twice",
    ),
    (
        "name: prepare",
        "name: app",
        "spec.containers: there are two containers named app",
    ),
    (
        "{name: scratch, mountPath: /tmp}",
        "{name: scratch, mountPath: /etc/./ssl/}",
        r#"spec.containers[0].volumeMounts[1].mountPath: there are two mounts at "/etc/ssl""#,
    ),
    (
        "{name: scratch, mountPath: /tmp}",
        "{name: cache, mountPath: /tmp}",
        r#"spec.containers[0].volumeMounts[0].name: the pod has no volume named "cache""#,
    ),
    (
        "emptyDir: {}",
        "emptyDir:",
        "spec.volumes[0]: has to have exactly one of emptyDir and hostPath (an empty directory is written emptyDir: {})",
    ),
    (
        "image: busybox:1.36",
        "image: busybox:1.36\n    livenessProbe: {exec: {command: [x]}}",
        "spec.initContainers[0].livenessProbe: an init container runs to its end, so it has no probes; sidecars have \
             restartPolicy: Always",
    ),
    (
        "imagePullPolicy: Never",
        "imagePullPolicy: Never\n    restartPolicy: Always",
        "spec.containers[0].restartPolicy: only init containers have a restart policy of their own; the pod's is spec.restartPolicy",
    ),
    (
        "hostPID: true",
        "hostPID: true\n  shareProcessNamespace: true",
        "spec.shareProcessNamespace: with hostPID all processes are shared already",
    ),
    (
        "dnsPolicy: None",
        "dnsPolicy: ClusterFirst",
        "spec.dnsPolicy: there is no cluster DNS here: write Default for the host's, or None with dnsConfig",
    ),
    (
        "priority: 2000001000",
        "priority: 1",
        "spec.priority: has to be the value of priorityClassName: there is nobody here who would sort pods by it",
    ),
    (
        "privileged: false",
        "privileged: true",
        "spec.containers[0].securityContext.allowPrivilegeEscalation: a container that is privileged or has SYS_ADMIN can \
             escalate in any case",
    ),
    (
        "mountPropagation: HostToContainer",
        "mountPropagation: Bidirectional",
        "spec.containers[0].volumeMounts[1].mountPropagation: Bidirectional is for privileged containers only",
    ),
    (
        "value: \"8080\"",
        "value: \"8080\", valueFrom: {fieldRef: {fieldPath: metadata.name}}",
        "spec.containers[0].env[0]: has to have one of value and valueFrom, not both",
    ),
    (
        "fieldPath: metadata.name,",
        "fieldPath: spec.serviceAccountName,",
        r#"spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: is "spec.serviceAccountName", and has to be metadata.name, .namespace, .uid, .labels['…'] or .annotations['…'], spec.nodeName, status.hostIP, .podIP or .podIPs"#,
    ),
    // Names and paths that lead elsewhere.
    (
        "name: web\n",
        "name: ../../etc\n",
        r#"metadata.name: is "../../etc", and has to be 1 to 253 of a-z, 0-9, - and ., each part of it with neither end a -"#,
    ),
    (
        "namespace: shop",
        "namespace: a/b",
        r#"metadata.namespace: is "a/b", and has to be 1 to 63 of a-z, 0-9 and -, with neither end a -"#,
    ),
    (
        "  - name: app\n",
        "  - name: ..\n",
        r#"spec.containers[0].name: is "..", and has to be 1 to 63 of a-z, 0-9 and -, with neither end a -"#,
    ),
    (
        "path: /etc/ssl/certs",
        "path: /srv/../etc/shadow",
        r#"spec.volumes[1].hostPath.path: is "/srv/../etc/shadow", and must not go up with .."#,
    ),
    (
        "path: /etc/ssl/certs",
        "path: etc",
        r#"spec.volumes[1].hostPath.path: is "etc", and has to begin with /"#,
    ),
    (
        "mountPath: /tmp}",
        "mountPath: /tmp/../etc}",
        r#"spec.containers[0].volumeMounts[0].mountPath: is "/tmp/../etc", and must not go up with .."#,
    ),
    (
        "path: healthz?full=1",
        "path: \"/ HTTP/1.1\\r\\nX: y\"",
        r#"spec.containers[0].livenessProbe.httpGet.path: is "/ HTTP/1.1\r\nX: y", and has to be printable ASCII without spaces"#,
    ),
    (
        "args: [\"--port=$(PORT)\"]",
        "args: [\"a\\0b\"]",
        "spec.containers[0].args[0]: holds a NUL byte",
    ),
    (
        "app: web",
        "app: -web",
        r#"metadata.labels.app: is "-web", and has to be at most 63 of A-Z, a-z, 0-9, -, _ and ., with a letter or digit at both ends"#,
    ),
];

/// FULL with one change has exactly one problem, and says so in these words.
#[test]
fn refusals_name_the_field() {
    for (from, to, problem) in ROWS {
        assert_eq!(FULL.matches(from).count(), 1, "{from}");
        let found = read_text(&FULL.replace(from, to));
        assert!(found.pods.is_empty(), "{to}");
        let refused = &found.refused[0];
        let problems: Vec<String> = refused.problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, [*problem], "{to}");
    }
}
