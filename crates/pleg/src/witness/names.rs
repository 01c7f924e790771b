//! What the names of cgroups say: whose they are. Names are bytes that anybody may have chosen.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::model::PodUid;

/// The length of a container's id. A UID without dashes has 32 digits, so nothing shorter is one.
const ID_DIGITS: usize = 64;

/// Whose cgroup a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner<'a> {
    /// A container's or a sandbox's, by its id: `ID`, `cri-containerd-ID.scope`, `crio-ID`, `crio-ID.scope`.
    Container(&'a str),
    /// The process of CRI-O that monitors a container: `crio-conmon-ID.scope`.
    Monitor,
    /// A pod's, a `QoS` class's, or of something else.
    Other,
}

impl<'a> Owner<'a> {
    pub(super) fn of(name: &'a OsStr) -> Self {
        let name = name.as_bytes();
        let run = name
            .split(|byte| !byte.is_ascii_hexdigit())
            .find(|run| run.len() == ID_DIGITS);
        match run.and_then(|run| std::str::from_utf8(run).ok()) {
            Some(_) if name.windows(6).any(|part| part == b"conmon") => Self::Monitor,
            Some(id) => Self::Container(id),
            None => Self::Other,
        }
    }
}

/// The pod in the name of its cgroup, as the kubelet writes it: `podUID`, `kubepods-podUID.slice`, `kubepods-burstable-podUID.slice`,
/// the latter with underscores instead of dashes.
pub(super) fn pod_uid(name: &OsStr) -> Option<PodUid> {
    let name = name.to_str()?;
    let (name, is_slice) = name.strip_suffix(".slice").map_or((name, false), |name| (name, true));
    let (before, uid) = name.rsplit_once("pod")?;
    if !(before.is_empty() || before.ends_with('-')) {
        return None;
    }
    let uid = if is_slice {
        uid.replace('_', "-")
    } else {
        uid.to_owned()
    };
    is_uid(&uid).then(|| PodUid::from(uid))
}

/// With dashes, or the hash of a static pod's manifest without any.
fn is_uid(text: &str) -> bool {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.len() {
        32 => digits(text),
        36 => text.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && text.split('-').all(digits),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c4d5e6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f";

    #[test]
    fn the_names_that_runtimes_give_to_cgroups() {
        for name in [
            "ID",
            "cri-containerd-ID.scope",
            "crio-ID",
            "crio-ID.scope",
            "docker-ID.scope",
        ] {
            let name = name.replace("ID", ID);
            assert_eq!(Owner::of(OsStr::new(&name)), Owner::Container(ID), "{name}");
        }
        for name in ["crio-conmon-ID.scope", "crio-conmon-ID", "libpod-conmon-ID.scope"] {
            let name = name.replace("ID", ID);
            assert_eq!(Owner::of(OsStr::new(&name)), Owner::Monitor, "{name}");
        }
        let (long, short) = (format!("{ID}0"), &ID[1..]);
        let static_pod = format!("pod{}", &ID[..32]);
        for name in ["kubepods", "burstable", "system.slice", "", &long, short, &static_pod] {
            assert_eq!(Owner::of(OsStr::new(name)), Owner::Other, "{name}");
        }
        let hostile = [b"\xff\n".as_slice(), ID.as_bytes(), b"\xfe"].concat();
        assert_eq!(Owner::of(OsStr::from_bytes(&hostile)), Owner::Container(ID));
        assert_eq!(Owner::of(OsStr::from_bytes(&b"\xff".repeat(100_000))), Owner::Other);
    }

    #[test]
    fn the_pod_in_the_kubelets_names() {
        let (uid, hash) = (
            "7c1e3a52-0d4b-4c8e-9f10-2b3c4d5e6f70",
            "3f1c4d5e6a7b8c9d0e1f2a3b4c5d6e7f",
        );
        let slice = uid.replace('-', "_");
        for name in [
            format!("pod{uid}"),
            format!("kubepods-pod{slice}.slice"),
            format!("kubepods-burstable-pod{slice}.slice"),
            format!("kubelet-kubepods-besteffort-pod{slice}.slice"),
        ] {
            assert_eq!(pod_uid(OsStr::new(&name)), Some(uid.into()), "{name}");
        }
        for name in [format!("pod{hash}"), format!("kubepods-burstable-pod{hash}.slice")] {
            assert_eq!(pod_uid(OsStr::new(&name)), Some(hash.into()), "{name}");
        }
        for name in [
            "pod".to_owned(),
            "kubepods".to_owned(),
            "kubepods-burstable.slice".to_owned(),
            format!("tripod{uid}"),
            format!("pod{slice}"),
            format!("pod{uid}0"),
            format!("pod{}", uid.replace('7', "g")),
            format!("pod{}", "-".repeat(36)),
            format!("pod\n{uid}"),
            "podé".repeat(9),
        ] {
            assert_eq!(pod_uid(OsStr::new(&name)), None, "{name}");
        }
        assert_eq!(pod_uid(OsStr::from_bytes(b"pod\xff")), None);
    }
}
