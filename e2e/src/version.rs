//! Which containerds there are, and where `containerd/fetch` put them.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A generation of containerd. The exact version is whatever the distribution had on the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// 1.6: no `GetContainerEvents`; speaks v1alpha2 as well.
    V1_6,
    /// 1.7: hands each event to one subscriber only.
    V1_7,
    /// 2.1 or whatever came after it.
    V2_1,
}

impl Version {
    /// Oldest first.
    pub const ALL: [Self; 3] = [Self::V1_6, Self::V1_7, Self::V2_1];

    /// As people write it: `1.6`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1_6 => "1.6",
            Self::V1_7 => "1.7",
            Self::V2_1 => "2.1",
        }
    }

    /// The version of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }

    /// Whether this generation has `GetContainerEvents`.
    pub const fn has_events(self) -> bool {
        !matches!(self, Self::V1_6)
    }

    /// Where its programs are.
    pub fn bin(self) -> Result<PathBuf> {
        let bin = cache()?.join(format!("containerd-{self}/usr/bin"));
        present(&bin.join("containerd"))?;
        Ok(bin)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where `containerd/fetch` puts things: `PLEG_CACHE`, else the user's cache directory. Both have to agree.
pub fn cache() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("PLEG_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("pleg")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/pleg")))
        .context("neither PLEG_CACHE nor HOME is set: where are the containerds?")
}

/// A program that all versions share, such as `usr/sbin/runc`.
pub fn tool(path: &str) -> Result<PathBuf> {
    let tool = cache()?.join("tools").join(path);
    present(&tool)?;
    Ok(tool)
}

fn present(path: &Path) -> Result<()> {
    if !path.exists() {
        bail!("{} is missing: run e2e/containerd/fetch", path.display());
    }
    Ok(())
}

/// Why real containerds cannot run here, if so.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root: containerd needs to mount and to make cgroups".to_owned());
    }
    let parts = Version::ALL.into_iter().map(|version| version.bin().map(|_| ()));
    let tools = ["usr/sbin/runc", "bin/busybox"]
        .into_iter()
        .map(|path| tool(path).map(|_| ()));
    parts
        .chain(tools)
        .find_map(|part| part.err().map(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for version in Version::ALL {
            assert_eq!(Version::from_name(version.name()), Some(version));
        }
        assert_eq!(Version::from_name("3"), None);
    }
}
