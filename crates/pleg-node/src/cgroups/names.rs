//! The names of cgroups: paths for the cgroupfs driver, slices for the systemd driver. Pure.

use std::path::PathBuf;

use pleg::PodUid;

use crate::status::QosClass;

/// The cgroup root that stands for the top of the hierarchy, as in a kubelet without `--cgroup-root`.
const TOP: &str = "/";

/// The levels of the cgroup of a class.
pub(crate) fn class(root: &str, class: QosClass) -> Vec<String> {
    let mut levels: Vec<String> = Vec::from([root, "kubepods"].map(str::to_owned));
    levels.retain(|level| level != TOP);
    match class {
        QosClass::Guaranteed => {}
        QosClass::Burstable => levels.push("burstable".to_owned()),
        QosClass::BestEffort => levels.push("besteffort".to_owned()),
    }
    levels
}

/// The levels of the cgroup of a pod.
pub(crate) fn pod(root: &str, of: QosClass, uid: &PodUid) -> Vec<String> {
    let mut levels = class(root, of);
    levels.push(format!("pod{uid}"));
    levels
}

/// Where the cgroup of a pod can be, if its class is not known.
pub(crate) fn everywhere(root: &str, uid: &PodUid) -> [Vec<String>; 3] {
    [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(|class| pod(root, class, uid))
}

/// As a path, which the cgroupfs driver takes.
pub(crate) fn path(levels: &[String]) -> String {
    format!("/{}", levels.join("/"))
}

/// As a slice, which the systemd driver takes.
pub(crate) fn slice(levels: &[String]) -> String {
    // systemd takes dashes for levels.
    let escaped: Vec<String> = levels.iter().map(|level| level.replace('-', "_")).collect();
    format!("{}.slice", escaped.join("-"))
}

/// Where a slice is in the hierarchy.
pub(crate) fn slice_path(levels: &[String]) -> PathBuf {
    (1..=levels.len()).map(|depth| slice(&levels[..depth])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_a_kubelet() {
        let uid = PodUid::from("1-2");
        for (root, class, as_path, as_slice) in [
            ("/", QosClass::Guaranteed, "/kubepods/pod1-2", "kubepods-pod1_2.slice"),
            (
                "/",
                QosClass::Burstable,
                "/kubepods/burstable/pod1-2",
                "kubepods-burstable-pod1_2.slice",
            ),
            (
                "pleg",
                QosClass::BestEffort,
                "/pleg/kubepods/besteffort/pod1-2",
                "pleg-kubepods-besteffort-pod1_2.slice",
            ),
            (
                "my-pods",
                QosClass::Guaranteed,
                "/my-pods/kubepods/pod1-2",
                "my_pods-kubepods-pod1_2.slice",
            ),
        ] {
            let levels = pod(root, class, &uid);
            assert_eq!(
                (path(&levels), slice(&levels)),
                (as_path.to_owned(), as_slice.to_owned())
            );
            assert!(everywhere(root, &uid).contains(&levels));
        }
        assert_eq!(
            slice_path(&pod("/", QosClass::Burstable, &uid)),
            PathBuf::from("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice")
        );
    }
}
