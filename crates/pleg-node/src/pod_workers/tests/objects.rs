//! Files of running pods follow the objects and fields that they come from.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::executor::objects::testing::InMemory;
use crate::manifest::{
    DownwardFile, DownwardValue, ObjectKind, ObjectRef, PodField, ProjectedKind, ProjectedVolume, Projection, Volume,
};

/// A pod with a volume of a config map, and its labels in the same volume.
fn with_files() -> Arc<Pod> {
    let mut pod = pod("containers: [{name: app, image: img}]");
    let object = ObjectRef {
        kind: ObjectKind::ConfigMap,
        name: "map".to_owned(),
        optional: false,
    };
    let labels = DownwardFile {
        path: "labels".to_owned(),
        value: DownwardValue::Field(PodField::Labels),
        mode: None,
    };
    let volume = ProjectedVolume {
        // The only kind that is not in memory, so that no test has to mount anything.
        kind: ProjectedKind::ConfigMap,
        default_mode: 0o644,
        sources: vec![
            Projection::Object {
                object,
                items: Vec::new(),
            },
            Projection::DownwardApi(vec![labels]),
        ],
    };
    let spec = &mut Arc::make_mut(&mut pod).spec;
    spec.volumes.insert("files".to_owned(), Volume::Projected(volume));
    pod
}

fn desired(pod: &Arc<Pod>) -> DesiredPod {
    DesiredPod {
        origin: "test".into(),
        pod: Arc::clone(pod),
    }
}

/// Waits until a file contains this.
async fn until_file(path: &Path, wanted: &str) {
    let waited = tokio::time::timeout(Duration::from_mins(10), async {
        while fs::read_to_string(path).unwrap_or_default() != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "{} is not {wanted:?}", path.display());
}

struct Files {
    machine: Machine,
    api: Arc<InMemory>,
    pod: Arc<Pod>,
    volume: PathBuf,
}

/// A machine with that pod, which runs.
async fn running() -> Files {
    let mut machine = Machine::start().await;
    let api = Arc::new(InMemory::default());
    machine.workers.context.executor.set_objects(api.clone());
    api.set(ObjectKind::ConfigMap, "map", &[("key", "1")]);
    let pod = with_files();
    let volume = machine
        .workers
        .context
        .executor
        .node()
        .volume_path(&pod, "files")
        .unwrap();
    machine.workers.start_pod(desired(&pod), true);
    let uid = pod.id.uid.clone();
    machine.until(|reports| restarts(reports, &uid) == Some(0)).await;
    Files {
        machine,
        api,
        pod,
        volume,
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_reaches_the_files_of_a_running_pod() {
    let Files {
        mut machine,
        api,
        mut pod,
        volume,
    } = running().await;
    let (key, version) = (volume.join("key"), || fs::read_link(volume.join("..data")).unwrap());
    until_file(&key, "1").await;
    let before = version();
    let edited = tokio::time::Instant::now();
    api.set(ObjectKind::ConfigMap, "map", &[("key", "2")]);
    until_file(&key, "2").await;
    assert!(edited.elapsed() < Duration::from_secs(1), "{:?}", edited.elapsed());
    assert_ne!(version(), before);

    // Labels are files too.
    Arc::make_mut(&mut pod)
        .labels
        .insert("app".to_owned(), "web".to_owned());
    machine.workers.update(desired(&pod));
    until_file(&volume.join("labels"), "app=\"web\"").await;

    // The same content again: nothing is written.
    let before = version();
    api.set(ObjectKind::ConfigMap, "map", &[("key", "2")]);
    api.set(ObjectKind::ConfigMap, "other", &[]);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(version(), before);
    assert_eq!(
        restarts(&machine.reports, &pod.id.uid),
        Some(0),
        "nothing is restarted for it"
    );

    machine.workers.terminate(&pod.id.uid);
    machine.until(|reports| reports.pods().is_empty()).await;
    assert!(api.pods.lock().is_empty() && !volume.exists());
}

/// An object that is gone leaves its files alone; once it is back, they follow.
#[tokio::test(start_paused = true)]
async fn files_stay_while_their_object_is_missing() {
    let running = running().await;
    let (api, key) = (&running.api, running.volume.join("key"));
    until_file(&key, "1").await;
    let removed = std::mem::take(&mut *api.data.lock());
    assert_eq!(removed.len(), 1);
    api.set(ObjectKind::ConfigMap, "other", &[]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fs::read_to_string(&key).unwrap(), "1");
    // Nobody tells the pod: its own retry finds it.
    let entries = [("key".to_owned(), b"3".to_vec())];
    let object = ("default".to_owned(), ObjectKind::ConfigMap, "map".to_owned());
    api.data.lock().insert(object, entries.into());
    until_file(&key, "3").await;
}

/// What changed while no worker looked after the pod is written when it is adopted.
#[tokio::test(start_paused = true)]
async fn an_adopted_pod_gets_what_changed_meanwhile() {
    let Files {
        mut machine,
        api,
        pod,
        volume,
    } = running().await;
    until_file(&volume.join("key"), "1").await;
    machine.panic(&pod.id.uid).await;
    api.pods.lock().clear();
    api.set(ObjectKind::ConfigMap, "map", &[("key", "4")]);
    until_file(&volume.join("key"), "4").await;
    assert_eq!(restarts(&machine.reports, &pod.id.uid), Some(0));
}

/// One that is wrong, one that does not exist, one that is not meant for this registry, and the right one.
#[tokio::test(start_paused = true)]
async fn image_pull_secrets_are_tried_in_turn() {
    let mut machine = Machine::start().await;
    let api = Arc::new(InMemory::default());
    machine.workers.context.executor.set_objects(api.clone());
    let secret = |name: &str, registry: &str, password: &str| {
        let text = format!(r#"{{"auths": {{"{registry}": {{"username": "me", "password": "{password}"}}}}}}"#);
        api.set(ObjectKind::Secret, name, &[(".dockerconfigjson", &text)]);
    };
    secret("wrong", "private.example.com", "shut");
    secret("other", "example.com", "open");
    let mut pod = pod("containers: [{name: app, image: private.example.com/app}]");
    let names = ["wrong", "none", "other"].map(str::to_owned);
    Arc::make_mut(&mut pod).spec.image_pull_secrets = names.into();
    let uid = pod.id.uid.clone();
    machine.workers.start_pod(desired(&pod), true);
    let waits_for = |reason: &'static str| {
        let uid = uid.clone();
        move |reports: &PodReports| {
            let report = reports.get(&uid);
            let state = report.and_then(|report| report.containers().first()?.state.clone()?.waiting?.reason);
            state.as_deref() == Some(reason)
        }
    };
    machine.until(waits_for("ErrImagePull")).await;
    // The next pull has it.
    secret("none", "*.example.com", "open");
    machine.until(|reports| restarts(reports, &uid) == Some(0)).await;
}

/// A pod that waits for an object is started when the object is there, however long it has waited.
#[tokio::test(start_paused = true)]
async fn a_pod_starts_as_soon_as_its_object_is_there() {
    let mut machine = Machine::start().await;
    let api = Arc::new(InMemory::default());
    machine.workers.context.executor.set_objects(api.clone());
    let pod = with_files();
    let uid = pod.id.uid.clone();
    machine.workers.start_pod(desired(&pod), true);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(machine.sim.truth().sandboxes.is_empty());
    let created = tokio::time::Instant::now();
    api.set(ObjectKind::ConfigMap, "map", &[("key", "1")]);
    machine.until(|reports| restarts(reports, &uid) == Some(0)).await;
    assert!(created.elapsed() < Duration::from_secs(5), "{:?}", created.elapsed());
}
