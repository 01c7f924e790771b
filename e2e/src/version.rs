//! Which runtimes there are, and where `containerd/fetch` and `crio/build` put them.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A runtime and its generation. The exact version of a containerd is whatever the distribution had on the day; that of CRI-O is in
/// `crio/go.mod`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// containerd 1.6: no `GetContainerEvents`; speaks v1alpha2 as well.
    V1_6,
    /// containerd 1.7: hands each event to one subscriber only.
    V1_7,
    /// containerd 2.1 or whatever came after it.
    V2_1,
    /// CRI-O as it is by default: it ends a stream of events at once.
    Crio,
    /// CRI-O with `enable_pod_events`.
    CrioEvents,
}

impl Version {
    /// The containerds, oldest first.
    pub const CONTAINERD: [Self; 3] = [Self::V1_6, Self::V1_7, Self::V2_1];
    /// One of each, oldest first, as they come.
    pub const ALL: [Self; 4] = [Self::V1_6, Self::V1_7, Self::V2_1, Self::Crio];
    /// One of each, with events where it can have them.
    pub const EVENTED: [Self; 4] = [Self::V1_6, Self::V1_7, Self::V2_1, Self::CrioEvents];

    /// As people write it: `1.6`, `crio`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1_6 => "1.6",
            Self::V1_7 => "1.7",
            Self::V2_1 => "2.1",
            Self::Crio => "crio",
            Self::CrioEvents => "crio-events",
        }
    }

    /// The version of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = Self::ALL.into_iter().chain([Self::CrioEvents]);
        all.into_iter().find(|version| version.name() == name)
    }

    /// CRI-O, with events or without.
    pub const fn is_crio(self) -> bool {
        matches!(self, Self::Crio | Self::CrioEvents)
    }

    /// Whether `GetContainerEvents` yields events.
    pub const fn has_events(self) -> bool {
        !matches!(self, Self::V1_6 | Self::Crio)
    }

    /// Where its programs are.
    pub fn bin(self) -> Result<PathBuf> {
        let (bin, program, script) = if self.is_crio() {
            (crio()?.join("bin"), "crio", "crio/build")
        } else {
            let bin = cache()?.join(format!("containerd-{}/usr/bin", self.name()));
            (bin, "containerd", "containerd/fetch")
        };
        present(&bin.join(program), script)?;
        Ok(bin)
    }

    /// Why it cannot run here, if so.
    pub fn obstacle(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("not root: a runtime needs to mount and to make cgroups".to_owned());
        }
        let tools = ["usr/sbin/runc", "bin/busybox"].into_iter().map(tool);
        let of_crio = ["usr/bin/conmon", "usr/bin/skopeo"].into_iter().map(crio_tool);
        let of_crio = of_crio.filter(|_| self.is_crio());
        let mut parts = std::iter::once(self.bin()).chain(tools).chain(of_crio);
        parts.find_map(|part| part.err().map(|error| error.to_string()))
    }
}

/// With the runtime's name: `containerd 1.6`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crio => f.write_str("CRI-O"),
            Self::CrioEvents => f.write_str("CRI-O with events"),
            _ => write!(f, "containerd {}", self.name()),
        }
    }
}

/// Where the scripts put things: `PLEG_CACHE`, else the user's cache directory. They have to agree with this.
pub fn cache() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("PLEG_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("pleg")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/pleg")))
        .context("neither PLEG_CACHE nor HOME is set: where are the runtimes?")
}

/// A program that all runtimes share, such as `usr/sbin/runc`.
pub fn tool(path: &str) -> Result<PathBuf> {
    let tool = cache()?.join("tools").join(path);
    present(&tool, "containerd/fetch")?;
    Ok(tool)
}

/// A program that CRI-O needs beside those, such as `usr/bin/conmon`.
pub fn crio_tool(path: &str) -> Result<PathBuf> {
    let tool = cache()?.join("crio-tools").join(path);
    present(&tool, "crio/build")?;
    Ok(tool)
}

/// A program that the images of upstream's tests need, such as `bin/bash-static`.
pub fn upstream_tool(path: &str) -> Result<PathBuf> {
    let tool = cache()?.join("upstream-tools").join(path);
    present(&tool, "upstream/build")?;
    Ok(tool)
}

/// What was built of the CRI-O that `crio/go.mod` names.
fn crio() -> Result<PathBuf> {
    let line = include_str!("../crio/go.mod")
        .lines()
        .find_map(|line| line.strip_prefix("require github.com/cri-o/cri-o v"));
    let version = line.context("e2e/crio/go.mod does not name CRI-O")?;
    Ok(cache()?.join(format!("crio-{version}")))
}

fn present(path: &Path, script: &str) -> Result<()> {
    if !path.exists() {
        bail!("{} is missing: run e2e/{script}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for version in Version::ALL.into_iter().chain(Version::EVENTED) {
            assert_eq!(Version::from_name(version.name()), Some(version));
        }
        assert_eq!(Version::from_name("3"), None);
    }

    #[test]
    fn crio_has_the_version_of_its_module() {
        let prefix = crio().unwrap();
        let name = prefix.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("crio-1."), "{name}");
    }
}
