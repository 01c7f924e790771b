//! Checks manifests without a node: the same parsing, merging and messages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use super::files::{SUBDIRECTORY, read_once};
use super::scan::{SETTLE, ScannedFile, scan, scan_file};
use super::{DesiredPod, DesiredState, Origin, Snapshot};
use crate::manifest::{NodeName, Pod};

/// The result for one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The file.
    pub origin: Origin,
    /// The pods that would run, as `namespace/name`.
    pub pods: Vec<String>,
    /// What would be refused, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Reads files and directories of manifests, as the source of a directory would, and merges their pods. Blocking.
pub fn check(paths: &[PathBuf], node: &NodeName) -> Vec<Checked> {
    let (mut checked, mut desired) = (Vec::new(), Vec::new());
    for path in paths {
        for (path, found) in find(path) {
            let origin: Origin = path.display().to_string().into();
            let (pods, problem) = read(found, node, &origin);
            let names = pods.iter().map(|pod| pod.id.full_name().to_string());
            checked.push(Checked {
                origin: origin.clone(),
                pods: names.collect(),
                problems: problem.into_iter().collect(),
            });
            desired.extend(pods.into_iter().map(|pod| DesiredPod {
                origin: origin.clone(),
                pod,
            }));
        }
    }
    let snapshot = Snapshot {
        source: "check".into(),
        pods: desired,
        problems: Vec::new(),
        refused: Vec::new(),
        complete: true,
    };
    for conflict in DesiredState::default().apply(snapshot, |_| false).new_conflicts {
        let file = checked.iter_mut().find(|file| file.origin == conflict.origin);
        if let Some(file) = file {
            file.problems.push(conflict.what);
        }
    }
    checked
}

/// What is at a path: a file, or the files of a directory. The caller has finished writing, so no file is taken for half written.
fn find(path: &Path) -> Vec<(PathBuf, ScannedFile)> {
    let now = SystemTime::now() + SETTLE;
    match scan_file(path, None, true, now) {
        ScannedFile::Directory => match scan(path, &BTreeMap::new(), &BTreeSet::new(), now) {
            Ok(found) => found
                .into_iter()
                .map(|(name, found)| (path.join(name), found))
                .collect(),
            Err(error) => vec![(
                path.to_owned(),
                ScannedFile::Unusable(None, format!("cannot be listed: {error}")),
            )],
        },
        found => vec![(path.to_owned(), found)],
    }
}

fn read(found: ScannedFile, node: &NodeName, origin: &Origin) -> (Vec<Arc<Pod>>, Option<String>) {
    match found {
        ScannedFile::Text(_, text) => read_once(&text, node, origin),
        ScannedFile::Directory => (Vec::new(), Some(SUBDIRECTORY.to_owned())),
        ScannedFile::Unusable(_, what) => (Vec::new(), Some(what)),
        ScannedFile::Same | ScannedFile::Unsettled => {
            (Vec::new(), Some("is being written: check it again later".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_a_node_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let pod = |name: &str| {
            format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: i}}]}}}}"
            )
        };
        write("a.yaml", &pod("web"));
        write("b.yaml", &format!("{}\n---\n{}", pod("db"), pod("Bad Name")));
        write("c.yaml", &pod("web"));
        write("d.txt", "not a manifest");
        std::fs::create_dir(dir.path().join("more")).unwrap();
        let node = NodeName::new("n").unwrap();
        let checked = check(&[dir.path().to_owned()], &node);
        let short: Vec<_> = checked
            .iter()
            .map(|file| {
                let name = file.origin.to_string();
                let name = name.rsplit('/').next().unwrap().to_owned();
                (name, file.pods.join(","), file.problems.len())
            })
            .collect();
        let expected = [
            ("a.yaml", "default/web-n", 0),
            ("b.yaml", "default/db-n", 1),
            ("c.yaml", "default/web-n", 1),
            ("more", "", 1),
        ];
        assert_eq!(
            short,
            expected.map(|(name, pods, problems)| (name.to_owned(), pods.to_owned(), problems))
        );
        assert!(
            checked[2].problems[0].contains("already defines a pod of this name"),
            "{checked:?}"
        );
        // A file that is named is read whatever its extension.
        let checked = check(&[dir.path().join("d.txt"), dir.path().join("none.yaml")], &node);
        assert_eq!(
            checked.iter().map(|file| file.problems.len()).collect::<Vec<_>>(),
            [1, 1]
        );
    }
}
