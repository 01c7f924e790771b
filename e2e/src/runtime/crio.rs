//! A CRI-O that shares nothing with one of the host.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::home::{Home, OCI_RUNTIME, SOCKET};
use crate::image;
use crate::process::Process;
use crate::version::{self, Version};

const CONFIG: &str = "crio.conf";
/// Settings of the libraries for images and storage, which would read the host's.
const REGISTRIES: &str = "registries.conf";
const STORAGE: &str = "storage.conf";
const POLICY: &str = "policy.json";

/// Writes its configuration.
pub(super) fn prepare(version: Version, home: &Home) -> Result<()> {
    let dir = home.dir();
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    write(CONFIG, &render(version, home)?)?;
    write(POLICY, r#"{"default": [{"type": "insecureAcceptAnything"}]}"#)?;
    // Manifests may say `busybox:1.36`, as they may to the others.
    write(REGISTRIES, "unqualified-search-registries = [\"docker.io\"]\n")?;
    let storage = format!(
        "[storage]\ndriver = \"vfs\"\ngraphroot = \"{0}/root\"\nrunroot = \"{0}/state\"\n",
        dir.display()
    );
    write(STORAGE, &storage)?;
    write(OCI_RUNTIME, &oci_runtime()?)?;
    fs::set_permissions(dir.join(OCI_RUNTIME), Permissions::from_mode(0o755)).context("let runc be executed")
}

/// How it is started.
pub(super) fn command(version: Version, home: &Home) -> Result<Command> {
    let mut command = Command::new(version.bin()?.join("crio"));
    command
        .arg("--config")
        .arg(home.dir().join(CONFIG))
        .args(["--config-dir", "", "--registries-conf"])
        .arg(home.dir().join(REGISTRIES));
    own_settings(&mut command, home)?;
    Ok(command)
}

/// Gives it the images of an archive, by these names. Whether it is up or not does not matter.
pub(super) fn import(home: &Home, archive: &Path, names: &[&str]) -> Result<()> {
    let dir = home.dir();
    for name in names {
        let mut skopeo = Command::new(version::crio_tool("usr/bin/skopeo")?);
        skopeo.arg("--policy").arg(dir.join(POLICY)).arg("--tmpdir").arg(dir);
        skopeo.args(["copy", "--quiet"]);
        skopeo.arg(format!("oci-archive:{}:{name}", archive.display()));
        skopeo.arg(format!(
            "containers-storage:[vfs@{0}/root+{0}/state]{name}",
            dir.display()
        ));
        own_settings(&mut skopeo, home)?;
        // It keeps a cache of blobs in /var, but for a user without privileges in a directory of theirs.
        skopeo
            .env("_CONTAINERS_ROOTLESS_UID", "1")
            .env("XDG_DATA_HOME", dir.join("cache"));
        super::succeed(&mut skopeo, &format!("import {name}"))?;
    }
    Ok(())
}

/// The container of a conmon of the CRI-O that lives there; `None` for other processes, and for the conmon of an exec.
pub(super) fn watched_by<'a>(process: &'a Process, home: &Home) -> Option<&'a str> {
    let ours = || {
        let bundle = process.value_of("-b")?;
        bundle.starts_with(home.dir().to_str()?).then_some(())
    };
    let conmon = process.program() == "conmon" && !process.args.iter().any(|arg| arg == "-e");
    process.value_of("-c").filter(|_| conmon && ours().is_some())
}

/// Neither the host's settings nor its libraries.
fn own_settings(command: &mut Command, home: &Home) -> Result<()> {
    command
        .env("CONTAINERS_REGISTRIES_CONF", home.dir().join(REGISTRIES))
        .env("CONTAINERS_STORAGE_CONF", home.dir().join(STORAGE))
        .env("LD_LIBRARY_PATH", libraries()?);
    Ok(())
}

/// Where `crio/build` has put the shared libraries of conmon and skopeo.
fn libraries() -> Result<String> {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let root = version::cache()?.join("crio-tools");
    Ok(format!("{0}/usr/lib/{triple}:{0}/lib/{triple}", root.display()))
}

/// runc, but a machine may forbid what CRI-O asks of it: to lower a score of the out-of-memory killer, and to limit huge pages. Both
/// leave the bundle before runc sees it. A script of the shell, because this is all that can be counted on.
fn oci_runtime() -> Result<String> {
    let runc = version::tool("usr/sbin/runc")?;
    // CRI-O writes one field a line; -z makes one line of all.
    let blank = "[[:space:]]*";
    let without = |field: &str| format!("-e 's/{field}{blank},//' -e 's/,{blank}{field}//' -e 's/{field}//'");
    Ok(format!(
        r#"#!/bin/sh
before=
for arg; do
  case "$before" in
    --bundle | -b) sed -z -i {} {} "$arg/config.json" ;;
  esac
  before=$arg
done
exec {} "$@"
"#,
        without(r#""oomScoreAdj": *-[0-9]*"#),
        without(r#""hugepageLimits": *\[[^]]*\]"#),
        runc.display()
    ))
}

/// The text of `crio.conf`. Everything that lies outside of our directory by default is named.
fn render(version: Version, home: &Home) -> Result<String> {
    let conmon = version::crio_tool("usr/bin/conmon")?;
    let pinns = version.bin()?.join("pinns");
    let cni = version::tool("usr/lib/cni")?;
    let (dir, conmon, pinns, cni) = (home.dir().display(), conmon.display(), pinns.display(), cni.display());
    let libraries = libraries()?;
    let (events, pause_image) = (version.has_events(), image::NAME);
    Ok(format!(
        r#"[crio]
root = "{dir}/root"
runroot = "{dir}/state"
storage_driver = "vfs"
log_dir = "{dir}/crio-logs"
version_file = "{dir}/version"
version_file_persist = "{dir}/version-persist"
clean_shutdown_file = "{dir}/clean.shutdown"

[crio.api]
listen = "{dir}/{SOCKET}"
stream_address = "127.0.0.1"
stream_port = "0"

[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
selinux = false
apparmor_profile = "unconfined"
hooks_dir = ["{dir}/hooks"]
cdi_spec_dirs = ["{dir}/cdi"]
container_exits_dir = "{dir}/exits"
container_attach_socket_dir = "{dir}/attach"
namespaces_dir = "{dir}/ns"
irqbalance_config_file = "{dir}/irqbalance"
irqbalance_config_restore_file = "disable"
pinns_path = "{pinns}"
enable_pod_events = {events}
disable_hostport_mapping = true

[crio.runtime.runtimes.runc]
runtime_path = "{dir}/{OCI_RUNTIME}"
runtime_type = "oci"
runtime_root = "{dir}/runc"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
monitor_env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH={libraries}"]

[crio.image]
pause_image = "{pause_image}"
pause_command = "/tool pause"
signature_policy = "{dir}/{POLICY}"
signature_policy_dir = "{dir}/policies"

[crio.network]
network_dir = "{dir}/cni"
plugin_dirs = ["{cni}"]

[crio.nri]
enable_nri = false
nri_listen = "{dir}/nri.sock"
"#,
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use super::*;

    /// The wrapper's expressions, wherever the fields stand.
    #[test]
    fn what_the_machine_forbids_leaves_the_bundle() {
        let script = oci_runtime().unwrap_or_default();
        let Some(line) = script.lines().find(|line| line.contains("sed -z -i")) else {
            // Nothing was fetched on this machine, so there is no runc to wrap.
            return;
        };
        let (_, expressions) = line.split_once("sed -z -i ").unwrap();
        let (expressions, _) = expressions.split_once(" \"$arg").unwrap();
        for (given, left) in [
            (r#"{"a":1,"oomScoreAdj":-998,"b":2}"#, r#"{"a":1,"b":2}"#),
            (r#"{"a":1,"oomScoreAdj":-1}"#, r#"{"a":1}"#),
            ("{\n \"a\": 1,\n \"oomScoreAdj\": -997\n}", "{\n \"a\": 1\n}"),
            (r#"{"oomScoreAdj":1000}"#, r#"{"oomScoreAdj":1000}"#),
            (r#"{"hugepageLimits":[{"limit":0}],"b":2}"#, r#"{"b":2}"#),
            (r#"{"hugepageLimits":[{"limit":0},{"limit":0}]}"#, "{}"),
        ] {
            let mut sed = Command::new("sh")
                .args(["-c", &format!("sed -z {expressions}")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            sed.stdin.take().unwrap().write_all(given.as_bytes()).unwrap();
            let output = sed.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), left);
        }
    }
}
