//! Complete requests, as snapshots; and what they must never contain.

use v1::NamespaceMode::{Container as PerContainer, Node as Host, Pod as PerPod};

use super::*;
use crate::executor::objects::Objects;
use crate::executor::volumes;
use crate::testing::pod;

fn node() -> NodeConfig {
    NodeConfig {
        name: NodeName::new("n").unwrap(),
        ips: vec!["192.0.2.1".parse().unwrap()],
        memory: 8 << 30,
        logs: "/var/log/pods".into(),
        log_links: "/var/log/containers".into(),
        pods: "/var/lib/pleg/pods".into(),
        cgroups_per_qos: true,
        cgroups: Cgroups::Path,
        cgroup_root: "pleg".to_owned(),
        cgroup_mount: "/sys/fs/cgroup".into(),
        oom_group: false,
        systemctl: "systemctl".into(),
        dns: DnsConfig {
            servers: vec!["192.0.2.53".parse().unwrap()],
            searches: vec!["example.com".to_owned()],
            options: vec!["ndots:1".to_owned(), "rotate".to_owned()],
        },
        host: HostOptions::default(),
    }
}

/// The configuration of a container, with its environment and the mounts of its volumes.
fn container_config(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    image: &str,
    ips: &[IpAddr],
) -> v1::ContainerConfig {
    let node = node();
    let environment = Environment::of(&node, pod, container, ips, &Objects::default()).unwrap();
    let mounts = volumes::mounts(&node, pod, container, &environment, &Objects::default()).unwrap();
    let inputs = ContainerInputs { environment, mounts };
    node.container_config(pod, container, attempt, image, inputs)
}

/// Maps in a stable order.
fn sorted<K: Clone + Ord, V: Clone>(map: &HashMap<K, V>) -> std::collections::BTreeMap<K, V> {
    map.clone().into_iter().collect()
}

#[test]
fn a_small_pod() {
    let pod = pod("containers: [{name: app, image: img}]");
    let mut config = node().sandbox_config(&pod, 2);
    insta::assert_debug_snapshot!((
        sorted(&std::mem::take(&mut config.labels)),
        sorted(&std::mem::take(&mut config.annotations)),
        config
    ));
    let ips = ["10.0.0.7".parse().unwrap()];
    let mut config = container_config(&pod, &pod.spec.containers[0], 3, "sha256:1", &ips);
    insta::assert_debug_snapshot!((
        sorted(&std::mem::take(&mut config.labels)),
        sorted(&std::mem::take(&mut config.annotations)),
        config
    ));
}

#[test]
fn a_pod_with_everything() {
    let pod = pod(
        "hostname: web, shareProcessNamespace: true, dnsConfig: {nameservers: [192.0.2.54], options: [{name: ndots, value: '5'}]},
         securityContext: {runAsUser: 1000, runAsGroup: 1001, supplementalGroups: [7], seccompProfile: {type: RuntimeDefault}},
         volumes: [{name: tmp, emptyDir: {}}, {name: certs, hostPath: {path: /etc/ssl}}],
         containers: [{name: app, image: img, command: [serve], args: ['--at=$(IP):$(PORT)', '$$(PORT)'], workingDir: /srv,
           env: [{name: PORT, value: '80'}, {name: URL, value: 'http://$(IP):$(PORT)/'}, {name: PORT, value: '81'},
                 {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}},
                 {name: NO, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['no']\"}}}],
           ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}, {containerPort: 53, protocol: UDP}],
           volumeMounts: [{name: tmp, mountPath: /tmp}, {name: certs, mountPath: /certs, readOnly: true, mountPropagation: HostToContainer}],
           resources: {limits: {cpu: 500m, memory: 64Mi}},
           securityContext: {runAsUser: 0, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true,
             capabilities: {add: [NET_ADMIN], drop: [ALL]}, seccompProfile: {type: Unconfined}}}]",
    );
    let mut config = node().sandbox_config(&pod, 0);
    (config.labels, config.annotations) = Default::default();
    insta::assert_debug_snapshot!(config);
    let ips = ["10.0.0.7".parse().unwrap()];
    let mut config = container_config(&pod, &pod.spec.containers[0], 0, "sha256:1", &ips);
    (config.labels, config.annotations) = Default::default();
    let text = |env: v1::KeyValue| format!("{}={}", env.key, String::from_utf8(env.value).unwrap());
    let env: Vec<String> = std::mem::take(&mut config.envs).into_iter().map(text).collect();
    assert_eq!(env, ["URL=http://$(IP):80/", "PORT=81", "IP=10.0.0.7", "NODE=n", "NO="]);
    insta::assert_debug_snapshot!(config);
}

#[test]
fn the_host_is_shared_only_if_asked_for() {
    let spec = "containers: [{name: app, image: img, ports: [{containerPort: 80, hostPort: 80}],
        env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]";
    let own = node().sandbox_config(&pod(spec), 0);
    let options = |config: &v1::PodSandboxConfig| {
        let security = config.linux.as_ref().unwrap().security_context.as_ref().unwrap();
        let options = security.namespace_options.as_ref().unwrap();
        (options.network(), options.pid(), options.ipc(), security.privileged)
    };
    assert_eq!(options(&own), (PerPod, PerContainer, PerPod, false));
    assert_eq!((own.port_mappings.len(), own.hostname.as_str()), (1, "p-n"));

    let host = pod(&format!("hostNetwork: true, hostPID: true, {spec}"));
    let config = node().sandbox_config(&host, 0);
    assert_eq!(options(&config), (Host, Host, PerPod, false));
    assert_eq!((config.port_mappings.len(), config.hostname.as_str()), (0, ""));
    let container = container_config(&host, &host.spec.containers[0], 0, "i", &[]);
    assert_eq!(container.envs[0].value, b"192.0.2.1");

    let privileged = pod("containers: [{name: a, image: i}, {name: b, image: i, securityContext: {privileged: true}}]");
    assert!(options(&node().sandbox_config(&privileged, 0)).3);
    let masked = |n: usize| {
        let config = container_config(&privileged, &privileged.spec.containers[n], 0, "i", &[]);
        config.linux.unwrap().security_context.unwrap().masked_paths.len()
    };
    assert_eq!((masked(0), masked(1)), (12, 0));
}

/// An ephemeral container sees the processes of its target, unless all containers of the pod, or of the host, see each other's.
#[test]
fn processes_of_a_target_are_shared() {
    for (spec, wanted) in [
        ("", (v1::NamespaceMode::Target, "app0")),
        ("shareProcessNamespace: true,", (PerPod, "")),
        ("hostPID: true,", (Host, "")),
    ] {
        let pod = pod(&format!("{spec} containers: [{{name: app, image: i}}]"));
        let mut config = container_config(&pod, &pod.spec.containers[0], 0, "i", &[]);
        security::share_processes(&mut config, &"app0".into());
        let options = config
            .linux
            .unwrap()
            .security_context
            .unwrap()
            .namespace_options
            .unwrap();
        assert_eq!((options.pid(), options.target_id.as_str()), wanted, "{spec}");
    }
}

/// A manifest cannot set the label of the owner.
#[test]
fn labels_of_ours_cannot_be_taken() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: p, labels: {io.kubernetes.pod.uid: stolen, io.pleg.node: other, app: x}}, \
                spec: {containers: [{name: a, image: i}]}}";
    let pod = crate::sources::static_pods::read(
        text.as_bytes(),
        &NodeName::new("n").unwrap(),
        crate::sources::static_pods::ConfigSource::File,
    )
    .unwrap()
    .pods
    .remove(0);
    let config = node().sandbox_config(&pod, 0);
    assert_eq!(config.labels[POD_UID], pod.id.uid.as_str());
    assert_eq!(
        (config.labels[NODE_LABEL].as_str(), config.labels["app"].as_str()),
        ("n", "x")
    );
    let container = container_config(&pod, &pod.spec.containers[0], 0, "i", &[]);
    assert_eq!(
        (container.labels.get("app"), container.labels[POD_UID].as_str()),
        (None, pod.id.uid.as_str())
    );
}

#[test]
fn host_names_fit() {
    let long = format!("{}-x", "a".repeat(62));
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {long}}}, spec: {{containers: [{{name: a, image: i}}]}}}}"
    );
    let pod = crate::sources::static_pods::read(
        text.as_bytes(),
        &NodeName::new("n").unwrap(),
        crate::sources::static_pods::ConfigSource::File,
    )
    .unwrap()
    .pods
    .remove(0);
    assert_eq!(node().sandbox_config(&pod, 0).hostname, "a".repeat(62));
}

#[test]
fn run_as_non_root_is_enforced() {
    let image = |uid: Option<i64>, username: &str| v1::Image {
        uid: uid.map(|value| v1::Int64Value { value }),
        username: username.to_owned(),
        ..Default::default()
    };
    let allowed = |security: &str, image: &v1::Image| {
        let pod = pod(&format!(
            "securityContext: {{runAsNonRoot: true}}, containers: [{{name: a, image: i, securityContext: {{{security}}}}}]"
        ));
        check_user(&pod, &pod.spec.containers[0], image).is_ok()
    };
    assert!(!allowed("", &image(None, "")));
    assert!(!allowed("", &image(Some(0), "")));
    assert!(!allowed("", &image(None, "nobody")));
    assert!(allowed("", &image(Some(65_534), "")));
    assert!(!allowed("runAsUser: 0", &image(Some(65_534), "")));
    assert!(allowed("runAsUser: 7", &image(None, "")));
    assert!(allowed("runAsNonRoot: false", &image(None, "")));
}

/// Fields that are passed on as they are.
#[test]
fn fields_that_are_passed_to_the_runtime() {
    let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
    let spec = &mut pod.spec;
    spec.host_ipc = true;
    spec.security.sysctls = vec![("kernel/shm_rmid_forced".to_owned(), "1".to_owned())];
    spec.security.supplemental_groups = vec![7];
    spec.security.fs_group = Some(crate::manifest::FsGroup {
        gid: 5,
        on_root_mismatch: false,
    });
    let container = &mut spec.containers[0];
    container.security.seccomp = Some(crate::manifest::Seccomp::Localhost("web/strict.json".to_owned()));
    (container.stdin, container.tty) = (Stdin::Once, true);
    container.stop_signal = Some("SIGRTMIN+3".to_owned());
    let sandbox = node().sandbox_config(&pod, 0).linux.unwrap();
    assert_eq!(sandbox.sysctls["kernel.shm_rmid_forced"], "1");
    let security = sandbox.security_context.unwrap();
    assert_eq!(security.namespace_options.unwrap().ipc(), Host);
    assert_eq!(security.supplemental_groups, [5, 7]);

    let config = container_config(&pod, &pod.spec.containers[0], 0, "i", &[]);
    assert_eq!((config.stdin, config.stdin_once, config.tty), (true, true, true));
    assert_eq!(config.stop_signal(), v1::Signal::Sigrtminplus3);
    let security = config.linux.unwrap().security_context.unwrap();
    let seccomp = security.seccomp.unwrap();
    assert_eq!(seccomp.localhost_ref, "/var/lib/pleg/seccomp/web/strict.json");
    assert_eq!(security.supplemental_groups, [5, 7]);
}

#[test]
fn a_runtime_class_is_a_handler() {
    let mut node = node();
    node.host.runtime_handlers = [("gvisor".to_owned(), "runsc".to_owned())].into();
    let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
    for (class, handler) in [(None, ""), (Some("gvisor"), "runsc"), (Some("kata"), "kata")] {
        pod.spec.runtime_class = class.map(str::to_owned);
        assert_eq!(node.runtime_handler(&pod), handler);
    }
}

#[test]
fn volumes_are_relabelled_where_selinux_is() {
    let pod = pod(
        "volumes: [{name: tmp, emptyDir: {}}, {name: host, hostPath: {path: /etc}}],
         containers: [{name: a, image: i, volumeMounts: [{name: tmp, mountPath: /tmp}, {name: host, mountPath: /host}]}]",
    );
    for selinux in [false, true] {
        let mut node = node();
        node.host.selinux = selinux;
        let mounts = volumes::mounts(
            &node,
            &pod,
            &pod.spec.containers[0],
            &Environment::default(),
            &Objects::default(),
        )
        .unwrap();
        let relabelled: Vec<bool> = mounts.iter().map(|mount| mount.selinux_relabel).collect();
        // A path of the host has a label of its own, which others rely on.
        assert_eq!(relabelled, [selinux, false]);
    }
}

/// As a kubelet: with version 2 of cgroups, an OOM kill ends the whole container instead of leaving it without one of its processes.
#[test]
fn a_container_is_killed_as_a_whole_where_the_kernel_can() {
    let pod = pod("containers: [{name: app, image: img}]");
    for oom_group in [false, true] {
        let node = NodeConfig { oom_group, ..node() };
        let config = node.container_config(&pod, &pod.spec.containers[0], 0, "sha256:1", ContainerInputs::default());
        let unified = config.linux.unwrap().resources.unwrap().unified;
        let expected = if oom_group { Some("1") } else { None };
        assert_eq!(unified.get("memory.oom.group").map(String::as_str), expected);
    }
}
