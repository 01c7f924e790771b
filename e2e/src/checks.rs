//! What scenarios of `pleg node` check beside its statuses: what web servers answer, and what a pod leaves behind.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::wait::PATIENCE;
use crate::{Context, Node};

/// A port that nobody has. Somebody else may take it a moment later, which is not likely.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// What a web server says.
pub async fn page(address: String) -> Result<String> {
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(&address).with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        anyhow::Ok(answer)
    });
    asked.await?
}

/// The UID of a pod.
pub fn uid(pod: &Value) -> Result<String> {
    Ok(pod["metadata"]["uid"]
        .as_str()
        .context("a pod without a UID")?
        .to_owned())
}

/// Nothing of any pod is left: neither in the runtime nor on the disk nor among the cgroups.
pub async fn nothing_is_left(context: &Context, node: &Node) -> Result<()> {
    let truth = context.truth().await?;
    ensure!(truth.pods.is_empty(), "{truth}");
    for dir in ["logs", "pods", "containers"] {
        let left: Vec<_> = std::fs::read_dir(node.dir().join(dir)).into_iter().flatten().collect();
        ensure!(left.is_empty(), "{dir}: {left:?}");
    }
    let top = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(top)?
        .flatten()
        .map(|entry| entry.path())
        .chain([top.to_owned()]);
    for hierarchy in hierarchies {
        // The cgroups of the classes stay, as a kubelet's do.
        for class in ["kubepods", "kubepods/burstable", "kubepods/besteffort"] {
            let group = hierarchy.join(context.runtime.home().cgroup()).join(class);
            let groups = std::fs::read_dir(&group)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path());
            let is_pod = |path: &std::path::PathBuf| {
                let name = path.file_name().unwrap_or_default();
                path.is_dir() && name.to_string_lossy().starts_with("pod")
            };
            let left: Vec<_> = groups.filter(is_pod).collect();
            ensure!(left.is_empty(), "cgroups: {left:?}");
        }
    }
    Ok(())
}
