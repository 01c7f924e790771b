//! The configuration of a containerd that shares nothing with one of the host.

use std::path::Path;

use crate::home::SOCKET;
use crate::version;

/// Plugins that a test needs not, and that look around on the host.
const DISABLED: [&str; 10] = [
    "io.containerd.nri.v1.nri",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.differ.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
];

/// The text of `config.toml` for a containerd that lives in `dir`. Version 2 of the format is what all three read.
///
/// `restrict_oom_score_adj`: without the right to lower scores every sandbox would fail with an error that does not say so.
/// `netns_mounts_under_state_dir`, `opt`, runc's `Root`: defaults outside of our directories.
pub(super) fn render(dir: &Path, pause_image: &str) -> anyhow::Result<String> {
    let runc = version::tool("usr/sbin/runc")?;
    let cni = version::tool("usr/lib/cni")?;
    let disabled = DISABLED.map(|plugin| format!("\"{plugin}\"")).join(", ");
    let (dir, runc, cni) = (dir.display(), runc.display(), cni.display());
    Ok(format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = [{disabled}]

[grpc]
  address = "{dir}/{SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{pause_image}"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{dir}/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{dir}/runc"
"#,
    ))
}
