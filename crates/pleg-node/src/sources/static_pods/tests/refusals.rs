//! The table of refusals: one change, one problem, with this message.

use super::{FULL, read_text};

/// What is changed, into what, and the problem.
const ROWS: &[(&str, &str, &str)] = &[
    // Fields of Kubernetes that are not supported.
    (
        "preStop: {exec: {command: [drain]}}",
        "preStop: {exec: {command: [drain]}, tcpSocket: {port: 80}}",
        "spec.containers[0].lifecycle.preStop.tcpSocket: field is not supported by pleg node; remove it",
    ),
    (
        "hostname: shop-1",
        "hostname: shop-1\n  tolerations: []",
        "spec.tolerations: field is not supported by pleg node; remove it",
    ),
    (
        "emptyDir: {}",
        "emptyDir: {mode: 511}",
        "spec.volumes[0].emptyDir.mode: field is not supported by pleg node; remove it",
    ),
    (
        "runAsUser: 1000",
        "runAsUser: 1000\n    seLinuxOptions: {level: s0}",
        "spec.securityContext.seLinuxOptions: field is not supported by pleg node; remove it",
    ),
    (
        "cpu: 250m",
        "cpu: 250m, hugepages-2Mi: 1Gi",
        "spec.containers[0].resources.requests.hugepages-2Mi: field is not supported by pleg node; remove it",
    ),
    (
        "seccompProfile: {type: Unconfined}",
        "seccompProfile: {type: Localhost}",
        "spec.containers[0].securityContext.seccompProfile.localhostProfile: required field is missing",
    ),
    (
        "hostUsers: true",
        "hostUsers: false",
        "spec.hostUsers: user namespaces are not supported by pleg node; set it to true or remove it",
    ),
    (
        "enableServiceLinks: false",
        "enableServiceLinks: true",
        "spec.enableServiceLinks: requires an API server; set it to false or remove it",
    ),
    (
        "status: {}",
        "status: {phase: Running}",
        "status: set by pleg node; remove it",
    ),
    (
        "namespace: shop",
        "namespace: shop\n  uid: abc",
        "metadata.uid: computed from the manifest; remove it",
    ),
    (
        "{type: RuntimeDefault}",
        "{type: RuntimeDefault, localhostProfile: x}",
        "spec.securityContext.seccompProfile.localhostProfile: must be set only with type Localhost; remove it",
    ),
    (
        "fieldPath: metadata.name,",
        "fieldPath: metadata.labels,",
        r#"spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: "metadata.labels" is not supported; expected metadata.name, .namespace, .uid, .labels['…'] or .annotations['…'], spec.nodeName or .serviceAccountName, status.hostIP, .hostIPs, .podIP or .podIPs"#,
    ),
    (
        "imagePullPolicy: Never",
        "imagePullPolicy: Never\n    volumeDevices: []",
        "spec.containers[0].volumeDevices: field is not supported by pleg node; remove it",
    ),
    (
        "emptyDir: {}",
        "nfs: {server: a, path: /b}",
        "spec.volumes[0].nfs: field is not supported by pleg node; remove it",
    ),
    // What only an API server has.
    (
        "emptyDir: {}",
        "configMap: {name: settings}",
        "spec.volumes[0].configMap: requires an API server: a static pod cannot refer to API objects; remove it",
    ),
    (
        "emptyDir: {}",
        "projected: {sources: [{serviceAccountToken: {path: token}}]}",
        "spec.volumes[0].projected.sources[0].serviceAccountToken: requires an API server: a static pod cannot refer to API objects; remove it",
    ),
    (
        "hostname: shop-1",
        "hostname: shop-1\n  serviceAccountName: robot",
        "spec.serviceAccountName: requires an API server: a static pod cannot refer to API objects; remove it",
    ),
    (
        "value: \"8080\"",
        "valueFrom: {secretKeyRef: {name: a, key: b}}",
        "spec.containers[0].env[0].valueFrom.secretKeyRef: requires an API server: a static pod cannot refer to API objects; remove it",
    ),
    // Unknown fields.
    (
        "restartPolicy: OnFailure",
        "restartPolicy: OnFailure\n  restartpolicy: Never",
        "spec.restartpolicy: unknown field; did you mean restartPolicy?",
    ),
    (
        "workingDir: /srv",
        "workdir: /srv",
        "spec.containers[0].workdir: unknown field",
    ),
    ("kind: Pod", "kind: Pod\nextra: 1", "extra: unknown field"),
    // Wrong types and values.
    (
        "value: \"8080\"",
        "value: 8080",
        "spec.containers[0].env[0].value: expected a string, found a number; put it in quotes",
    ),
    (
        "hostNetwork: true",
        "hostNetwork: \"true\"",
        "spec.hostNetwork: expected true or false, found a string",
    ),
    (
        "activeDeadlineSeconds: 3600",
        "activeDeadlineSeconds: 0",
        "spec.activeDeadlineSeconds: 0 is out of range; expected 1 to 2147483647",
    ),
    (
        "terminationGracePeriodSeconds: 5",
        "terminationGracePeriodSeconds: 1.5",
        "spec.terminationGracePeriodSeconds: expected an integer, found a number",
    ),
    (
        "restartPolicy: OnFailure",
        "restartPolicy: Sometimes",
        r#"spec.restartPolicy: "Sometimes" is not valid; expected Always, OnFailure or Never"#,
    ),
    (
        "cpu: 1.5, memory: 128Mi",
        "cpu: 1.5, memory: 128MB",
        r#"spec.containers[0].resources.limits.memory: "128MB" is not a quantity; expected a value such as 500m, 2, 128Mi or 1G"#,
    ),
    (
        "cpu: 250m",
        "cpu: 2",
        "spec.containers[0].resources.requests: requests more cpu than the limit allows",
    ),
    (
        "periodSeconds: 2",
        "periodSeconds: 0",
        "spec.containers[0].livenessProbe.periodSeconds: 0 is out of range; expected 1 to 2147483647",
    ),
    (
        "successThreshold: 1",
        "successThreshold: 2",
        "spec.containers[0].livenessProbe.successThreshold: 2 is out of range; expected 1 to 1",
    ),
    (
        "successThreshold: 2",
        "terminationGracePeriodSeconds: 2",
        "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: a readiness probe does not terminate the container, so it has no grace period",
    ),
    (
        "nameservers: [10.0.0.53, \"fd00::53\"]",
        "nameservers: [10.0.0.53, ns1]",
        "spec.dnsConfig.nameservers[1]: is not an IP address",
    ),
    (
        "value: \"2\"",
        "value: \"2\\nnameserver 6.6.6.6\"",
        r#"spec.dnsConfig.options[0].value: "2\nnameserver 6.6.6.6" must be a single word"#,
    ),
    (
        "scheme: HTTP,",
        "scheme: GOPHER,",
        r#"spec.containers[0].livenessProbe.httpGet.scheme: "GOPHER" is not valid; expected HTTP or HTTPS"#,
    ),
    (
        "runAsUser: 1000",
        "runAsUser: 1000\n    sysctls: [{name: '', value: \"1\"}]",
        "spec.securityContext.sysctls[0].name: required field is missing",
    ),
    (
        "cpu: 250m",
        "cpu: 250m, example.com/gpu: 1",
        "spec.containers[0].resources.requests['example.com/gpu']: unknown resource; pleg node has no device plugins: expected cpu, memory or ephemeral-storage",
    ),
    (
        "emptyDir: {}",
        "emptyDir: {medium: HugePages}",
        r#"spec.volumes[0].emptyDir.medium: "HugePages" is not valid; expected Memory"#,
    ),
    (
        "imagePullPolicy: Never",
        "imagePullPolicy: Never\n    terminationMessagePolicy: Log",
        r#"spec.containers[0].terminationMessagePolicy: "Log" is not valid; expected File or FallbackToLogsOnError"#,
    ),
    (
        "{name: scratch, mountPath: /tmp}",
        "{name: scratch, mountPath: /tmp, subPath: ../etc}",
        r#"spec.containers[0].volumeMounts[0].subPath: "../etc" must not contain .."#,
    ),
    (
        "{name: scratch, mountPath: /tmp}",
        "{name: scratch, mountPath: /tmp, subPath: a, subPathExpr: b}",
        "spec.containers[0].volumeMounts[0]: subPath and subPathExpr must not both be set",
    ),
    // Combinations that are not valid.
    (
        "preStop: {exec: {command: [drain]}}",
        "preStop: {exec: {command: [drain]}, httpGet: {port: 80}}",
        "spec.containers[0].lifecycle.preStop: exactly one of exec, httpGet and sleep must be set",
    ),
    (
        "grpc: {port: 9000, service: shop}",
        "grpc: {port: 9000}\n      tcpSocket: {port: 1}",
        "spec.containers[0].readinessProbe: exactly one of exec, httpGet, tcpSocket and grpc must be set",
    ),
    (
        "tcpSocket: {port: http,",
        "tcpSocket: {port: https,",
        r#"spec.containers[0].startupProbe.tcpSocket.port: the container has no port named "https""#,
    ),
    (
        "hostPort: 8080",
        "hostPort: 80",
        "spec.containers[0].ports: with hostNetwork, hostPort 80 must equal containerPort 8080",
    ),
    (
        "- {containerPort: 53, protocol: UDP}",
        "- {containerPort: 8080, hostPort: 8080, hostIP: 127.0.0.1}",
        "spec.containers[0].ports: duplicate hostPort 8080",
    ),
    (
        "name: prepare",
        "name: app",
        "spec.containers: duplicate container name app",
    ),
    (
        "{name: scratch, mountPath: /tmp}",
        "{name: scratch, mountPath: /etc/./ssl/}",
        r#"spec.containers[0].volumeMounts[1].mountPath: duplicate mount at "/etc/ssl""#,
    ),
    (
        "{name: scratch, mountPath: /tmp}",
        "{name: cache, mountPath: /tmp}",
        r#"spec.containers[0].volumeMounts[0].name: the pod has no volume named "cache""#,
    ),
    (
        "emptyDir: {}",
        "emptyDir:",
        "spec.volumes[0]: exactly one of emptyDir, hostPath, downwardAPI and projected must be set (write emptyDir: {} for an empty directory)",
    ),
    (
        "image: busybox:1.36",
        "image: busybox:1.36\n    livenessProbe: {exec: {command: [x]}}",
        "spec.initContainers[0].livenessProbe: an init container cannot have probes unless it is a \
             sidecar (restartPolicy: Always)",
    ),
    (
        "imagePullPolicy: Never",
        "imagePullPolicy: Never\n    restartPolicy: Sometimes",
        r#"spec.containers[0].restartPolicy: "Sometimes" is not valid; expected Always, OnFailure or Never"#,
    ),
    (
        "imagePullPolicy: Never",
        "imagePullPolicy: Never\n    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]",
        "spec.containers[0].restartPolicyRules: restartPolicy must be set too",
    ),
    (
        "imagePullPolicy: Never",
        "imagePullPolicy: Never\n    restartPolicy: Never\n    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]",
        "spec.containers[0].restartPolicyRules[0].action: RestartAllContainers is not supported by pleg node",
    ),
    (
        "imagePullPolicy: Never",
        "imagePullPolicy: Never\n    restartPolicy: Never\n    restartPolicyRules: [{action: Restart}]",
        "spec.containers[0].restartPolicyRules[0].exitCodes: required field is missing",
    ),
    (
        "hostPID: true",
        "hostPID: true\n  shareProcessNamespace: true",
        "spec.shareProcessNamespace: must not be set together with hostPID",
    ),
    (
        "dnsPolicy: None",
        "dnsPolicy: ClusterFirst",
        "spec.dnsPolicy: cluster DNS is not available; use Default (the host's DNS) or None with dnsConfig",
    ),
    (
        "priority: 2000001000",
        "priority: 1",
        "spec.priority: must match priorityClassName; pleg node does not schedule by priority",
    ),
    (
        "privileged: false",
        "privileged: true",
        "spec.containers[0].securityContext.allowPrivilegeEscalation: must not be false in a container \
             that is privileged or has SYS_ADMIN",
    ),
    (
        "mountPropagation: HostToContainer",
        "mountPropagation: Bidirectional",
        "spec.containers[0].volumeMounts[1].mountPropagation: Bidirectional requires a privileged container",
    ),
    (
        "value: \"8080\"",
        "value: \"8080\", valueFrom: {fieldRef: {fieldPath: metadata.name}}",
        "spec.containers[0].env[0]: value and valueFrom must not both be set",
    ),
    (
        "fieldPath: metadata.name,",
        "fieldPath: spec.hostname,",
        r#"spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: "spec.hostname" is not supported; expected metadata.name, .namespace, .uid, .labels['…'] or .annotations['…'], spec.nodeName or .serviceAccountName, status.hostIP, .hostIPs, .podIP or .podIPs"#,
    ),
    // Names and paths that would lead elsewhere.
    (
        "name: web\n",
        "name: ../../etc\n",
        r#"metadata.name: "../../etc" is not a valid name; expected 1 to 253 characters of a-z, 0-9, - and ., no part starting or ending with -"#,
    ),
    (
        "namespace: shop",
        "namespace: a/b",
        r#"metadata.namespace: "a/b" is not a valid name; expected 1 to 63 characters of a-z, 0-9 and -, not starting or ending with -"#,
    ),
    (
        "  - name: app\n",
        "  - name: ..\n",
        r#"spec.containers[0].name: ".." is not a valid name; expected 1 to 63 characters of a-z, 0-9 and -, not starting or ending with -"#,
    ),
    (
        "path: /etc/ssl/certs",
        "path: /srv/../etc/shadow",
        r#"spec.volumes[1].hostPath.path: "/srv/../etc/shadow" must not contain .."#,
    ),
    (
        "path: /etc/ssl/certs",
        "path: etc",
        r#"spec.volumes[1].hostPath.path: "etc" is not absolute; expected a path that starts with /"#,
    ),
    (
        "mountPath: /tmp}",
        "mountPath: /tmp/../etc}",
        r#"spec.containers[0].volumeMounts[0].mountPath: "/tmp/../etc" must not contain .."#,
    ),
    (
        "path: healthz?full=1",
        "path: \"/ HTTP/1.1\\r\\nX: y\"",
        r#"spec.containers[0].livenessProbe.httpGet.path: "/ HTTP/1.1\r\nX: y" is not valid; expected printable ASCII without spaces"#,
    ),
    (
        "args: [\"--port=$(PORT)\"]",
        "args: [\"a\\0b\"]",
        "spec.containers[0].args[0]: must not contain a NUL byte",
    ),
    (
        "app: web",
        "app: -web",
        r#"metadata.labels.app: "-web" is not a valid label value; expected at most 63 characters of A-Z, a-z, 0-9, -, _ and ., starting and ending with a letter or digit"#,
    ),
];

/// FULL with one change has exactly one problem, with this message.
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
