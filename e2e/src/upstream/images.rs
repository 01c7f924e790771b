//! Stand-ins for the images that upstream's tests use: there is no registry to pull them from.
//!
//! All have one layer, with what any of them needs: agnhost, built from its source, Debian's busybox and a shell. They differ in how
//! their containers start.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tar::{Builder, EntryType};

use super::program;
use crate::image::{Image, entry, header, layout};
use crate::version;

/// What the tests find in every image.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Ends when it is asked to, as the pause program does.
const PAUSE: &str = "trap 'exit 0' TERM INT; while :; do sleep 1000000 & wait; done";

/// Images, by the names that the tests use, and the archive that has them.
#[derive(Debug)]
pub struct Images {
    /// For the runtime to import.
    pub archive: Vec<u8>,
    /// Their names.
    pub names: Vec<String>,
}

/// Makes all images that the tests name and that can be stood in for.
pub fn make() -> Result<Images> {
    let listed = Command::new(program("e2e.test")?).arg("--list-images").output();
    let listed = listed.context("run e2e.test --list-images")?;
    ensure!(listed.status.success(), "e2e.test --list-images: {}", listed.status);
    let images = stand_ins(&String::from_utf8_lossy(&listed.stdout));
    let layer = layer(&fs::read(program("agnhost")?)?)?;
    Ok(Images {
        archive: layout(&layer, &images)?,
        names: images.into_iter().flat_map(|image| image.names).collect(),
    })
}

/// How containers of an image start; none if nothing stands in for it.
fn config(name: &str) -> Option<Value> {
    let start = match name {
        "agnhost" => json!({ "Entrypoint": ["/agnhost"], "Cmd": ["pause"] }),
        "busybox" | "glibc-dns-testing" => json!({ "Cmd": ["sh"] }),
        "nginx" => json!({ "Cmd": ["httpd", "-f", "-p", "80", "-h", "/www"] }),
        "nonewprivs" => json!({ "Cmd": ["/usr/local/bin/nnp", "nonewprivs"] }),
        "nonroot" => json!({ "Cmd": ["sh"], "User": "1234" }),
        "pause" => json!({ "Entrypoint": ["/bin/busybox", "sh", "-c", PAUSE] }),
        _ => return None,
    };
    let mut config = start;
    config["Env"] = json!([PATH]);
    Some(config)
}

/// The images of a list of names, one a line.
fn stand_ins(listed: &str) -> Vec<Image> {
    let images = listed.split_whitespace().filter_map(|name| {
        let (_, last) = name.rsplit_once('/')?;
        let config = config(last.split(':').next()?)?;
        // Tests that pull it want to fail without a password.
        let is_private = name.contains("authenticated");
        (!is_private).then(|| Image {
            names: vec![name.to_owned()],
            config,
        })
    });
    images.collect()
}

fn layer(agnhost: &[u8]) -> Result<Vec<u8>> {
    let busybox = version::tool("bin/busybox")?;
    let applets = Command::new(&busybox).arg("--list").output().context("list busybox")?;
    let applets = String::from_utf8_lossy(&applets.stdout).into_owned();
    let mut tar = Builder::new(Vec::new());
    for dir in [
        "bin",
        "etc",
        "home",
        "root",
        "uploads",
        "usr",
        "usr/local",
        "usr/local/bin",
        "var",
        "www",
    ] {
        entry(&mut tar, dir, EntryType::Directory, 0o755, &[])?;
    }
    entry(&mut tar, "tmp", EntryType::Directory, 0o1777, &[])?;
    entry(&mut tar, "www/index.html", EntryType::Regular, 0o644, b"hello\n")?;
    entry(&mut tar, "etc/passwd", EntryType::Regular, 0o644, PASSWD)?;
    // Names of the pod come before those of DNS.
    entry(
        &mut tar,
        "etc/nsswitch.conf",
        EntryType::Regular,
        0o644,
        b"hosts: files dns\n",
    )?;
    entry(&mut tar, "etc/group", EntryType::Regular, 0o644, GROUP)?;
    entry(&mut tar, "bin/busybox", EntryType::Regular, 0o755, &fs::read(&busybox)?)?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        link(&mut tar, &format!("bin/{applet}"), "busybox")?;
    }
    // busybox's shell drops variables whose names it could not use itself, such as data-1.
    let bash = fs::read(version::upstream_tool("bin/bash-static")?)?;
    entry(&mut tar, "usr/local/bin/bash", EntryType::Regular, 0o755, &bash)?;
    link(&mut tar, "usr/local/bin/sh", "bash")?;
    link(&mut tar, "bin/bash", "/usr/local/bin/bash")?;
    entry(&mut tar, "usr/local/bin/curl", EntryType::Regular, 0o755, CURL)?;
    for file in ["localhost.crt", "localhost.key"] {
        entry(&mut tar, file, EntryType::Regular, 0o644, &fs::read(program(file)?)?)?;
    }
    entry(&mut tar, "agnhost", EntryType::Regular, 0o755, agnhost)?;
    link(&mut tar, "agnhost-2", "agnhost")?;
    // It says who it runs as, and would run as root if it may.
    entry(&mut tar, "usr/local/bin/nnp", EntryType::Regular, 0o6755, agnhost)?;
    Ok(tar.into_inner()?)
}

/// Of curl, the tests use no more than this.
const CURL: &[u8] = b"#!/bin/busybox sh\nexec /bin/busybox wget -q -O - \"$@\"\n";
const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &[u8] = b"root:x:0:\ngroup-defined-in-image:x:50000:user-defined-in-image\nnobody:x:65534:\n";

fn link(tar: &mut Builder<Vec<u8>>, path: &str, target: &str) -> Result<()> {
    let mut header = header(EntryType::Symlink, 0o777, 0);
    tar.append_link(&mut header, path, target)
        .with_context(|| format!("pack {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_by_the_last_part_of_their_names() {
        let listed = "reg.test/e2e/agnhost:2.66.1\nreg.test/pause:3.10\n\nreg.test/k8s-authenticated-test/agnhost:2.6\nreg.test/e2e/perl:5\n";
        let images = stand_ins(listed);
        let names: Vec<&String> = images.iter().flat_map(|image| &image.names).collect();
        assert_eq!(names, ["reg.test/e2e/agnhost:2.66.1", "reg.test/pause:3.10"]);
        assert_eq!(images[0].config["Entrypoint"][0], "/agnhost");
    }
}
