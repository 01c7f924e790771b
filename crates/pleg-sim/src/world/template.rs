//! What the simulator's own pods look like: labels and annotations of the kinds and sizes that a kubelet sets, so that the
//! bytes of a list are those of a real node (about 2.1 kB for a pod with two containers).

use std::collections::HashMap;

use pleg_cri::list::{POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL};
use pleg_cri::v1;

/// Images that are there from the start.
pub(crate) const IMAGES: [&str; 3] = [
    "registry.k8s.io/pause:3.10",
    "docker.io/library/nginx:1.29",
    "docker.io/library/busybox:1.36",
];

/// What the containers of a pod without a specification run.
pub(crate) const DEFAULT_IMAGE: &str = IMAGES[1];

/// Names of the first containers of a pod.
const NAMES: [&str; 3] = ["app", "sidecar", "agent"];

pub(crate) fn container_name(n: usize) -> String {
    NAMES
        .get(n)
        .map_or_else(|| format!("extra-{n}"), |&name| name.to_owned())
}

fn texts<const N: usize>(pairs: [(&str, String); N]) -> HashMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The configuration of a sandbox, as the kubelet sends it.
pub(crate) fn sandbox(namespace: &str, name: &str, uid: &str, attempt: u32, seen: i64) -> v1::PodSandboxConfig {
    let app = name.rsplit_once('-').map_or(name, |(app, _)| app);
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            attempt,
        }),
        hostname: name.to_owned(),
        log_directory: format!("/var/log/pods/{namespace}_{name}_{uid}"),
        labels: texts([
            ("app.kubernetes.io/name", app.to_owned()),
            ("pod-template-hash", uid.chars().take(10).collect()),
            (POD_NAME_LABEL, name.to_owned()),
            (POD_NAMESPACE_LABEL, namespace.to_owned()),
            (POD_UID_LABEL, uid.to_owned()),
        ]),
        annotations: texts([
            ("kubernetes.io/config.seen", format!("{seen}")),
            ("kubernetes.io/config.source", "api".to_owned()),
        ]),
        ..Default::default()
    }
}

/// The configuration of a container, as the kubelet sends it.
pub(crate) fn container(
    pod: &v1::PodSandboxMetadata,
    name: &str,
    attempt: u32,
    image: &str,
    image_id: &str,
) -> v1::ContainerConfig {
    let hash: String = pod.uid.chars().filter(char::is_ascii_hexdigit).rev().take(8).collect();
    let mut config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: name.to_owned(),
            attempt,
        }),
        image: Some(v1::ImageSpec {
            image: image_id.to_owned(),
            user_specified_image: image.to_owned(),
            ..Default::default()
        }),
        labels: texts([
            ("io.kubernetes.container.name", name.to_owned()),
            (POD_NAME_LABEL, pod.name.clone()),
            (POD_NAMESPACE_LABEL, pod.namespace.clone()),
            (POD_UID_LABEL, pod.uid.clone()),
        ]),
        annotations: texts([
            ("io.kubernetes.container.hash", hash),
            ("io.kubernetes.container.restartCount", attempt.to_string()),
            (
                "io.kubernetes.container.terminationMessagePath",
                "/dev/termination-log".to_owned(),
            ),
            ("io.kubernetes.container.terminationMessagePolicy", "File".to_owned()),
            ("io.kubernetes.pod.terminationGracePeriod", "30".to_owned()),
        ]),
        log_path: format!("{name}/{attempt}.log"),
        ..Default::default()
    };
    // As in most pods, one container has the port.
    if name == NAMES[0] {
        let ports = r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#;
        let key = "io.kubernetes.container.ports".to_owned();
        config.annotations.insert(key, ports.to_owned());
    }
    config
}
