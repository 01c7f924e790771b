//! A containerd that shares nothing with one of the host.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use pleg_cri::Endpoint;

use crate::home::{Home, SOCKET};
use crate::image;
use crate::process::Process;
use crate::version::{self, Version};

const CONFIG: &str = "config.toml";

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

/// Writes its configuration.
pub(super) fn prepare(home: &Home) -> Result<()> {
    fs::write(home.dir().join(CONFIG), render(home.dir())?).context("write containerd's configuration")
}

/// How it is started.
pub(super) fn command(version: Version, home: &Home) -> Result<Command> {
    let bin = version.bin()?;
    let mut command = Command::new(bin.join("containerd"));
    // It looks for its shim in PATH, and the host may have another one.
    command
        .arg("--config")
        .arg(home.dir().join(CONFIG))
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
    Ok(command)
}

/// Gives it the images of an archive. It has to be up.
pub(super) fn import(version: Version, home: &Home, archive: &Path) -> Result<()> {
    let mut ctr = Command::new(version.bin()?.join("ctr"));
    ctr.arg("--address").arg(home.dir().join(SOCKET));
    ctr.args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
    super::succeed(&mut ctr, "import images")
}

/// The sandbox of a shim of the containerd that listens there; `None` for other processes.
pub(super) fn watched_by<'a>(process: &'a Process, endpoint: &Endpoint) -> Option<&'a str> {
    let ours = process.value_of("-address").map(Path::new) == Some(endpoint.path());
    let shim = ours && process.program().starts_with("containerd-shim");
    process.value_of("-id").filter(|_| shim)
}

/// The text of `config.toml` for a containerd that lives in `dir`. Version 2 of the format is what all three read.
///
/// `restrict_oom_score_adj`: without the right to lower scores every sandbox would fail with an error that does not say so.
/// `netns_mounts_under_state_dir`, `opt`, runc's `Root`: defaults outside of our directories.
fn render(dir: &Path) -> Result<String> {
    let runc = version::tool("usr/sbin/runc")?;
    let cni = version::tool("usr/lib/cni")?;
    let disabled = DISABLED.map(|plugin| format!("\"{plugin}\"")).join(", ");
    let pause_image = image::NAME;
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
