//! A real directory and the real kernel; tokio's time is paused, so that timeouts pass at once.

use std::os::unix::fs::symlink;
use std::path::Path;

use tokio::sync::mpsc;

use super::*;

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: '{image}'\n"
    )
}

/// A running source.
struct Running {
    snapshots: mpsc::Receiver<Snapshot>,
    _stop: tokio_util::sync::DropGuard,
}

impl Running {
    fn start(directory: &Path) -> Self {
        Self::start_knowing(directory, &[])
    }

    fn start_knowing(directory: &Path, known: &[DesiredPod]) -> Self {
        let source = DirectorySource::new(directory, NodeName::new("n").unwrap()).with_known(known);
        let (sender, snapshots) = mpsc::channel(1);
        let stop = CancellationToken::new();
        tokio::spawn(source.run(sender, stop.clone()));
        Self {
            snapshots,
            _stop: stop.drop_guard(),
        }
    }

    /// Waits until the source desires exactly these, as `file:pod:image`.
    async fn until(&mut self, wanted: &[&str]) -> Snapshot {
        self.until_it(|snapshot| words(snapshot) == wanted, &format!("{wanted:?}"))
            .await
    }

    async fn until_it(&mut self, is: impl Fn(&Snapshot) -> bool, what: &str) -> Snapshot {
        let mut seen = Vec::new();
        for _ in 0..100 {
            let next = tokio::time::timeout(Duration::from_mins(10), self.snapshots.recv()).await;
            let Ok(Some(snapshot)) = next else { break };
            if is(&snapshot) {
                return snapshot;
            }
            seen.push((words(&snapshot), snapshot.problems));
        }
        panic!("{what} did not come: {seen:?}");
    }
}

fn words(snapshot: &Snapshot) -> Vec<String> {
    let word = |desired: &DesiredPod| {
        let origin = desired.origin.to_string();
        let file = origin.rsplit('/').next().unwrap().to_owned();
        format!(
            "{file}:{}:{}",
            desired.pod.id.name, desired.pod.spec.containers[0].image
        )
    };
    snapshot.pods.iter().map(word).collect()
}

fn problems(snapshot: &Snapshot, directory: &Path) -> Vec<String> {
    let prefix = format!("{}/", directory.display());
    snapshot
        .problems
        .iter()
        .map(|c| c.to_string().replace(&prefix, ""))
        .collect()
}

/// Makes a file look as if it was written long ago.
fn old(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_mins(1)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn files_come_change_and_go() {
    let dir = tempfile::tempdir().unwrap();
    old(&dir.path().join("a.yaml"), &manifest("web", "1"));
    let mut source = Running::start(dir.path());
    let first = source.snapshots.recv().await.unwrap();
    assert_eq!(
        (words(&first), first.complete),
        (vec!["a.yaml:web-n:1".to_owned()], true)
    );

    std::fs::write(dir.path().join("b.json"), manifest("db", "1")).unwrap();
    source.until(&["a.yaml:web-n:1", "b.json:db-n:1"]).await;
    std::fs::write(dir.path().join("a.yaml"), manifest("web", "2")).unwrap();
    source.until(&["a.yaml:web-n:2", "b.json:db-n:1"]).await;
    std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
    source.until(&["b.json:db-n:1"]).await;
    let two = format!("{}---\n{}", manifest("x", "1"), manifest("y", "1"));
    std::fs::write(dir.path().join("b.json"), two).unwrap();
    source.until(&["b.json:x-n:1", "b.json:y-n:1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_file_keeps_its_pods_and_stops_no_other_pod() {
    let dir = tempfile::tempdir().unwrap();
    old(&dir.path().join("a.yaml"), &manifest("web", "1"));
    let mut source = Running::start(dir.path());
    source.until(&["a.yaml:web-n:1"]).await;
    std::fs::write(dir.path().join("a.yaml"), "apiVersion: [").unwrap();
    let told = |snapshot: &Snapshot| problems(snapshot, dir.path());
    let broken = source.until_it(|s| !s.problems.is_empty(), "a problem").await;
    assert_eq!(words(&broken), ["a.yaml:web-n:1"]);
    assert!(broken.complete, "all pods of it are known from before");
    let problem = &told(&broken)[0];
    assert!(problem.starts_with("a.yaml: is neither YAML nor JSON: "), "{problem}");
    assert!(problem.ends_with("Pod default/web-n is kept as it was"), "{problem}");

    // A file that was never valid: the name of its pod is known.
    std::fs::write(
        dir.path().join("b.yaml"),
        manifest("db", "1").replace("image:", "imag:"),
    )
    .unwrap();
    let broken = source.until_it(|s| s.problems.len() == 2, "two problems").await;
    assert!(broken.complete);
    assert_eq!(
        told(&broken)[1],
        "b.yaml: document 1 (pod default/db): spec.containers[0].imag: unknown field; did you mean image?; \
         spec.containers[0].image: required field is missing"
    );
    // Other pods run, and so do fixed ones.
    std::fs::write(dir.path().join("c.yaml"), manifest("job", "1")).unwrap();
    source.until(&["a.yaml:web-n:1", "c.yaml:job-n:1"]).await;
    std::fs::write(dir.path().join("b.yaml"), manifest("db", "1")).unwrap();
    std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
    let mended = source.until(&["b.yaml:db-n:1", "c.yaml:job-n:1"]).await;
    assert_eq!((mended.problems.len(), mended.complete), (0, true));
}

/// After a restart of `pleg node`: pods of broken files are kept, and pods of removed files are not desired.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_broken_while_we_were_away_keeps_its_pods() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["a.yaml", "b.yaml", "c.yaml"] {
        old(&dir.path().join(file), &manifest(&file[..1], "1"));
    }
    let mut source = Running::start(dir.path());
    let before = source.until(&["a.yaml:a-n:1", "b.yaml:b-n:1", "c.yaml:c-n:1"]).await;
    drop(source);
    old(&dir.path().join("a.yaml"), "apiVersion: [");
    std::fs::remove_file(dir.path().join("b.yaml")).unwrap();
    old(&dir.path().join("c.yaml"), &manifest("c", "2"));
    let mut source = Running::start_knowing(dir.path(), &before.pods);
    let first = source.snapshots.recv().await.unwrap();
    assert_eq!(words(&first), ["a.yaml:a-n:1", "c.yaml:c-n:2"]);
    assert!(first.complete, "all that may run of them is known");
    let told = problems(&first, dir.path());
    assert!(told[0].ends_with("Pod default/a-n is kept as it was"), "{told:?}");
    // Files of another directory do not belong to this source.
    let other = tempfile::tempdir().unwrap();
    let mut source = Running::start_knowing(other.path(), &before.pods);
    assert_eq!(source.snapshots.recv().await.unwrap().pods, []);
}

/// The store may be older than what runs, if we were killed in between: no pod is replaced before its file is read.
#[tokio::test(start_paused = true)]
async fn the_stored_version_of_an_edited_file_replaces_no_pod() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    old(&file, &manifest("a", "1"));
    let mut source = Running::start(dir.path());
    let before = source.until(&["a.yaml:a-n:1"]).await;
    drop(source);
    std::fs::write(&file, manifest("a", "2")).unwrap();
    let mut source = Running::start_knowing(dir.path(), &before.pods);
    let first = source.snapshots.recv().await.unwrap();
    assert_eq!((words(&first).len(), first.complete), (0, false));
    // Its writer has closed it, as the kernel reports.
    std::fs::write(&file, manifest("a", "2")).unwrap();
    let read = source.until(&["a.yaml:a-n:2"]).await;
    assert!(read.complete);
}

#[tokio::test(start_paused = true)]
async fn one_bad_document_keeps_the_pods_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    old(&file, &format!("{}---\n{}", manifest("x", "1"), manifest("y", "1")));
    let mut source = Running::start(dir.path());
    source.until(&["a.yaml:x-n:1", "a.yaml:y-n:1"]).await;
    std::fs::write(
        &file,
        format!("{}---\n{}", manifest("x", "2"), manifest("y", "1").replace("'1'", "[]")),
    )
    .unwrap();
    let half = source.until(&["a.yaml:x-n:2", "a.yaml:y-n:1"]).await;
    assert_eq!(
        problems(&half, dir.path()),
        [
            "a.yaml: document 2 (pod default/y): spec.containers[0].image: expected a string, found a list. Pod default/y-n \
          is kept as it was"
        ]
    );
}

/// A file that was never valid does not keep orphaned pods alive, if the names of its pods are known.
#[tokio::test(start_paused = true)]
async fn a_refused_pod_with_a_known_name_keeps_no_orphans() {
    for (text, complete, refused) in [
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n".to_owned(),
            true,
            None,
        ),
        (manifest("web", "1") + "  tolerations: []\n", true, Some("web-n")),
        // These may define any pod.
        (manifest("Web!", "1"), false, None),
        ("kind: [".to_owned(), false, None),
        ("apiVersion: v1\n".to_owned(), false, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        old(&dir.path().join("a.yaml"), &text);
        let mut source = Running::start(dir.path());
        let snapshot = source.snapshots.recv().await.unwrap();
        let names: Vec<&str> = snapshot.refused.iter().map(|refused| &*refused.id.name).collect();
        assert_eq!(
            (snapshot.complete, names),
            (complete, Vec::from_iter(refused)),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_reported_twice() {
    let dir = tempfile::tempdir().unwrap();
    old(&dir.path().join("a.yaml"), "kind: Deployment\napiVersion: apps/v1\n");
    symlink("nowhere", dir.path().join("gone.yaml")).unwrap();
    let mut source = Running::start(dir.path());
    let first = source.snapshots.recv().await.unwrap();
    assert_eq!(first.problems.len(), 2);
    let more = tokio::time::timeout(Duration::from_mins(10), source.snapshots.recv()).await;
    assert!(more.is_err(), "{more:?}");
    // Touched, and still not valid: that is a change.
    std::fs::write(dir.path().join("a.yaml"), "kind: Job\napiVersion: batch/v1\n").unwrap();
    source
        .until_it(|s| s.problems[0].what.contains("Job"), "the new problem")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_renamed_or_replaced_keeps_its_pod() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    old(&a, &manifest("web", "1"));
    let mut source = Running::start(dir.path());
    source.until(&["a.yaml:web-n:1"]).await;
    std::fs::rename(&a, &b).unwrap();
    let moved = source.snapshots.recv().await.unwrap();
    assert_eq!(
        (words(&moved), moved.problems.len()),
        (vec!["b.yaml:web-n:1".to_owned()], 0)
    );

    // As vim does it: the old file is moved away, then the new one is written.
    std::fs::rename(&b, dir.path().join("b.yaml~")).unwrap();
    tokio::task::yield_now().await;
    let half = std::fs::File::create(&b).unwrap();
    tokio::task::yield_now().await;
    std::fs::write(&b, manifest("web", "2")).unwrap();
    drop(half);
    let mut seen = Vec::new();
    loop {
        let snapshot = source.snapshots.recv().await.unwrap();
        seen.extend(words(&snapshot));
        assert_eq!(snapshot.pods.len(), 1, "{seen:?}");
        if words(&snapshot) == ["b.yaml:web-n:2"] {
            break;
        }
    }
}

/// The atomic updates of mounted volumes: a symbolic link is pointed to another directory.
#[tokio::test(start_paused = true)]
async fn the_directory_may_be_a_link_that_turns() {
    let dir = tempfile::tempdir().unwrap();
    for (version, image) in [("v1", "1"), ("v2", "2")] {
        std::fs::create_dir(dir.path().join(version)).unwrap();
        old(&dir.path().join(version).join("a.yaml"), &manifest("web", image));
    }
    let link = dir.path().join("current");
    symlink("v1", &link).unwrap();
    let mut source = Running::start(&link);
    source.until(&["a.yaml:web-n:1"]).await;
    symlink("v2", dir.path().join("next")).unwrap();
    std::fs::rename(dir.path().join("next"), &link).unwrap();
    source.until(&["a.yaml:web-n:2"]).await;
    // The watch follows it.
    std::fs::write(dir.path().join("v2/a.yaml"), manifest("web", "3")).unwrap();
    source.until(&["a.yaml:web-n:3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_directory_removes_no_pod() {
    let dir = tempfile::tempdir().unwrap();
    let (here, away) = (dir.path().join("here"), dir.path().join("away"));
    let mut source = Running::start(&here);
    let none = source.snapshots.recv().await.unwrap();
    assert_eq!((none.pods.len(), none.complete), (0, false));
    assert!(none.problems[0].what.starts_with("cannot be listed: "), "{none:?}");
    std::fs::create_dir(&here).unwrap();
    old(&here.join("a.yaml"), &manifest("web", "1"));
    source.until(&["a.yaml:web-n:1"]).await;
    std::fs::rename(&here, &away).unwrap();
    let gone = source.until_it(|s| !s.problems.is_empty(), "a problem").await;
    assert_eq!(words(&gone), ["a.yaml:web-n:1"]);
    std::fs::rename(&away, &here).unwrap();
    let back = source.until_it(|s| s.problems.is_empty(), "no problem").await;
    assert_eq!((words(&back), back.complete), (vec!["a.yaml:web-n:1".to_owned()], true));
}
