//! The `/etc/hosts` of a pod, written as the kubelet does: one file per pod, mounted in each container that mounts nothing there itself.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use pleg_cri::v1;

use super::requests::{NodeConfig, hostname, text};
use crate::manifest::{Container, HostAlias, Pod};

/// Where it is mounted.
const CONTAINER_PATH: &str = "/etc/hosts";
/// The first lines, by which people and tools see who wrote the file.
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
/// Names that every host has.
const LOCAL: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
                     fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
/// What is read of the host's file at most.
const MAX_HOST_FILE: u64 = 1 << 20;

/// Why there is no hosts file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the hosts file {}", .path.display())]
pub(crate) struct HostsFileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes the file if its content changed, and returns its mount; none if the container has a mount of its own, or the pod no address.
/// Blocking.
pub(super) fn mount(
    node: &NodeConfig,
    pod: &Pod,
    container: &Container,
    ips: &[IpAddr],
) -> Result<Option<v1::Mount>, HostsFileError> {
    let has_own = container.mounts.iter().any(|mount| mount.path == CONTAINER_PATH);
    if has_own || (ips.is_empty() && !pod.spec.host_network) {
        return Ok(None);
    }
    let path = node.pod_directory(&pod.id.uid).join("etc-hosts");
    let written = content(node, pod, ips).and_then(|content| write(&path, &content));
    if let Err(source) = written {
        return Err(HostsFileError { path, source });
    }
    Ok(Some(v1::Mount {
        container_path: CONTAINER_PATH.to_owned(),
        host_path: text(&path),
        selinux_relabel: node.host.selinux,
        ..Default::default()
    }))
}

fn content(node: &NodeConfig, pod: &Pod, ips: &[IpAddr]) -> io::Result<String> {
    let mut content;
    if pod.spec.host_network {
        content = HEADER_HOST_NETWORK.to_owned();
        let mut bytes = Vec::new();
        let file = fs::File::open(&node.host.hosts_file)?;
        file.take(MAX_HOST_FILE).read_to_end(&mut bytes)?;
        content.push_str(&String::from_utf8_lossy(&bytes));
    } else {
        content = format!("{HEADER}{LOCAL}");
        let name = hostname::short(pod);
        for ip in ips {
            let _ = match hostname::domain(node, pod) {
                Some(domain) => writeln!(content, "{ip}\t{name}.{domain}\t{name}"),
                None => writeln!(content, "{ip}\t{name}"),
            };
        }
    }
    if !pod.spec.host_aliases.is_empty() {
        content.push_str("\n# Entries added by HostAliases.\n");
    }
    for HostAlias { ip, hostnames } in &pod.spec.host_aliases {
        let _ = writeln!(content, "{ip}\t{}", hostnames.join("\t"));
    }
    Ok(content)
}

/// In place: the file is mounted in containers that run.
fn write(path: &Path, content: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == content.as_bytes()) {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(content.as_bytes())?;
    // The umask would take something away from the mode above.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Mount;
    use crate::testing::{node, pod};

    fn with_aliases(spec: &str) -> Pod {
        let mut pod = Pod::clone(&pod(spec));
        let alias = |ip: &str, names: &[&str]| HostAlias {
            ip: ip.parse().unwrap(),
            hostnames: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        pod.spec.host_aliases = vec![alias("10.1.1.1", &["db", "db.local"]), alias("fd00::1", &["six"])];
        pod
    }

    const ALIASES: &str = "\n# Entries added by HostAliases.\n10.1.1.1\tdb\tdb.local\nfd00::1\tsix\n";

    #[test]
    fn names_of_the_pod_come_after_those_of_every_host() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let ips = ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        let mut pod = with_aliases("hostname: web, containers: [{name: a, image: i}]");
        let lines = format!("{HEADER}{LOCAL}10.0.0.7\tweb\nfd00::7\tweb\n{ALIASES}");
        assert_eq!(content(&node, &pod, &ips).unwrap(), lines);
        pod.spec.hostname.subdomain = Some("sub".to_owned());
        pod.spec.host_aliases.clear();
        let lines = format!("{HEADER}{LOCAL}10.0.0.7\tweb.sub.default.svc.cluster.local\tweb\n");
        assert_eq!(content(&node, &pod, &ips[..1]).unwrap(), lines);
        pod.spec.hostname.override_name = Some("other.example".to_owned());
        let lines = format!("{HEADER}{LOCAL}10.0.0.7\tother.example\n");
        assert_eq!(content(&node, &pod, &ips[..1]).unwrap(), lines);
    }

    #[test]
    fn with_the_hosts_network_it_is_the_hosts_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = node(dir.path());
        node.host.hosts_file = dir.path().join("hosts");
        fs::write(&node.host.hosts_file, "127.0.0.1 localhost\n").unwrap();
        let pod = with_aliases("hostNetwork: true, containers: [{name: a, image: i}]");
        let lines = format!("{HEADER_HOST_NETWORK}127.0.0.1 localhost\n{ALIASES}");
        assert_eq!(content(&node, &pod, &[]).unwrap(), lines);
        node.host.hosts_file = dir.path().join("none");
        assert!(mount(&node, &pod, &pod.spec.containers[0], &[]).is_err());
    }

    #[test]
    fn it_is_mounted_unless_the_container_has_its_own() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let ips = ["10.0.0.7".parse().unwrap()];
        let mut pod = with_aliases("volumes: [{name: v, emptyDir: {}}], containers: [{name: a, image: i}]");
        fs::create_dir_all(node.pod_directory(&pod.id.uid)).unwrap();
        let mounted = mount(&node, &pod, &pod.spec.containers[0], &ips).unwrap().unwrap();
        assert_eq!(
            (mounted.container_path.as_str(), mounted.readonly),
            ("/etc/hosts", false)
        );
        let metadata = fs::metadata(&mounted.host_path).unwrap();
        assert_eq!(metadata.mode() & 0o777, 0o644);
        // The same file, which running containers have mounted, even if its content changes.
        let before = fs::read_to_string(&mounted.host_path).unwrap();
        let other = mount(&node, &pod, &pod.spec.containers[0], &["10.0.0.8".parse().unwrap()]);
        let other = other.unwrap().unwrap();
        assert_eq!(fs::metadata(&other.host_path).unwrap().ino(), metadata.ino());
        assert_eq!(
            fs::read_to_string(&other.host_path).unwrap(),
            before.replace("10.0.0.7", "10.0.0.8")
        );

        assert!(mount(&node, &pod, &pod.spec.containers[0], &[]).unwrap().is_none());
        pod.spec.containers[0].mounts.push(Mount {
            volume: "v".to_owned(),
            path: "/etc/hosts".to_owned(),
            sub_path: None,
            read_only: false,
            propagation: crate::manifest::Propagation::None,
        });
        assert!(mount(&node, &pod, &pod.spec.containers[0], &ips).unwrap().is_none());
    }
}
