//! The test image, made without a registry.
//!
//! An OCI layout is a tar of a few JSON files and one layer; with the annotation `io.containerd.image.name` containerd takes it as
//! if it had been pulled under that name, and skopeo finds it by `org.opencontainers.image.ref.name`. The one image serves as pause image and for all containers: our own small program, and
//! busybox for the one thing that it cannot do, which is to answer a signal.

use std::fs;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::version;

/// What containers ask for.
pub const NAME: &str = "pleg.test/tool:1";
/// The name under which the examples' manifests know it: they need of busybox what is in here too.
const EXAMPLES: &str = "docker.io/library/busybox:1.36";

/// Both.
pub(crate) const NAMES: [&str; 2] = [NAME, EXAMPLES];

/// The static build of `tool/main.rs`.
static TOOL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tool"));

/// Commands of busybox that get a name in `/bin`.
const APPLETS: [&str; 10] = [
    "sh", "cat", "true", "false", "wget", "httpd", "touch", "test", "sleep", "tar",
];

/// What a container of the test image should do. Each is a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// Stay until killed. It has no signal handler and is process 1, so the kernel keeps SIGTERM from it: only SIGKILL ends it.
    Stubborn,
    /// Say `ready`, then end with this code on SIGTERM.
    Polite(u8),
    /// End with this code after so many milliseconds.
    Exit(u8, u32),
    /// Hold so many MiB, then stay.
    Eat(u32),
    /// Print a line and end with 0.
    Echo(String),
    /// Answer HTTP on this port of 127.0.0.1.
    Serve(u16),
    /// A script.
    Shell(String),
    /// A program that the image does not have.
    Absent,
}

impl Program {
    /// The command and its arguments.
    pub fn command(&self) -> Vec<String> {
        let tool = |args: &[&str]| {
            std::iter::once(&"/tool")
                .chain(args)
                .map(|&arg| arg.to_owned())
                .collect()
        };
        match self {
            Self::Stubborn => tool(&["pause"]),
            Self::Polite(code) => {
                let script = format!("trap 'exit {code}' TERM; echo ready; /tool pause & wait");
                vec!["/bin/sh".to_owned(), "-c".to_owned(), script]
            }
            Self::Exit(code, millis) => tool(&["exit", &code.to_string(), &millis.to_string()]),
            Self::Eat(mib) => tool(&["eat", &mib.to_string()]),
            Self::Echo(text) => tool(&["echo", text]),
            Self::Serve(port) => tool(&["serve", &port.to_string()]),
            Self::Shell(script) => vec!["/bin/sh".to_owned(), "-c".to_owned(), script.clone()],
            Self::Absent => vec!["/no-such-program".to_owned()],
        }
    }
}

/// The archive that `ctr images import` and `skopeo copy` read. Made once.
pub fn archive() -> Result<&'static [u8]> {
    static ARCHIVE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(archive) = ARCHIVE.get() {
        return Ok(archive);
    }
    let busybox = fs::read(version::tool("bin/busybox")?).context("read busybox")?;
    let made = layout(&layer(&busybox)?, &[test_image()])?;
    Ok(ARCHIVE.get_or_init(|| made))
}

fn layer(busybox: &[u8]) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for dir in ["bin", "tmp"] {
        entry(&mut tar, dir, EntryType::Directory, 0o755, &[])?;
    }
    entry(&mut tar, "tool", EntryType::Regular, 0o755, TOOL)?;
    entry(&mut tar, "bin/busybox", EntryType::Regular, 0o755, busybox)?;
    for applet in APPLETS {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox")?;
    }
    Ok(tar.into_inner()?)
}

/// An image of an archive.
#[derive(Debug)]
pub(crate) struct Image {
    /// What containers may ask for.
    pub(crate) names: Vec<String>,
    /// How they start: `config` of the OCI image configuration.
    pub(crate) config: Value,
}

fn test_image() -> Image {
    Image {
        names: NAMES.map(str::to_owned).to_vec(),
        config: json!({ "Cmd": ["/tool", "pause"], "Env": ["PATH=/bin"] }),
    }
}

/// An archive of images that all have this one layer.
pub(crate) fn layout(layer: &[u8], images: &[Image]) -> Result<Vec<u8>> {
    let layer_descriptor = descriptor("application/vnd.oci.image.layer.v1.tar", layer);
    let mut blobs = Vec::new();
    let mut manifests = Vec::new();
    for image in images {
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": image.config,
            "rootfs": { "type": "layers", "diff_ids": [layer_descriptor["digest"]] },
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
            "layers": [layer_descriptor],
        })
        .to_string();
        for name in &image.names {
            let mut named = descriptor("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
            named["annotations"] =
                json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": name });
            manifests.push(named);
        }
        blobs.extend([config, manifest]);
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    })
    .to_string();

    let mut tar = Builder::new(Vec::new());
    entry(
        &mut tar,
        "oci-layout",
        EntryType::Regular,
        0o644,
        br#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    entry(&mut tar, "index.json", EntryType::Regular, 0o644, index.as_bytes())?;
    let layer_digest = layer_descriptor["digest"].as_str().unwrap_or_default().to_owned();
    let small = blobs.iter().map(|blob| (digest(blob.as_bytes()), blob.as_bytes()));
    for (digest, blob) in std::iter::once((layer_digest, layer)).chain(small) {
        let path = format!("blobs/{}", digest.replace(':', "/"));
        entry(&mut tar, &path, EntryType::Regular, 0o644, blob)?;
    }
    Ok(tar.into_inner()?)
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

fn digest(blob: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(blob))
}

/// As Go, and so every image, calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn entry(tar: &mut Builder<Vec<u8>>, path: &str, kind: EntryType, mode: u32, data: &[u8]) -> Result<()> {
    let mut header = header(kind, mode, data.len());
    tar.append_data(&mut header, path, data)
        .with_context(|| format!("pack {path}"))
}

/// No times and no owners: the same content gives the same image.
pub(crate) fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_names_the_image_and_holds_what_it_points_at() {
        let layer = layer(b"busybox").unwrap();
        let archive = layout(&layer, &[test_image()]).unwrap();
        let mut names = Vec::new();
        let mut index = Value::Null;
        for file in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let file = file.unwrap();
            let path = file.path().unwrap().display().to_string();
            if path == "index.json" {
                index = serde_json::from_reader(file).unwrap();
            }
            names.push(path);
        }
        let manifest = &index["manifests"][0];
        assert_eq!(manifest["annotations"]["io.containerd.image.name"], NAME);
        let blob = manifest["digest"].as_str().unwrap().replace(':', "/");
        assert!(names.contains(&format!("blobs/{blob}")), "{names:?}");
        assert_eq!(archive, layout(&layer, &[test_image()]).unwrap(), "the same each time");
    }
}
