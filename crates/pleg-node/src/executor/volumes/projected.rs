//! The files of `configMap`, `secret`, `downwardAPI` and `projected` volumes. Pure: `atomic_writer` writes them.

use super::atomic_writer::{File, Files};
use crate::executor::objects::{Objects, TokenRequest, describe};
use crate::executor::requests::{NodeConfig, fields};
use crate::manifest::{
    DownwardFile, DownwardValue, Medium, ObjectFile, ObjectRef, Pod, ProjectedKind, ProjectedVolume, Projection,
};

/// The mode of a token, if the volume has an owner that may read it.
const OWN_TOKEN: u32 = 0o600;

/// Why a file of a volume has no content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The object does not exist.
    #[error("{0} not found")]
    NoObject(String),
    /// The object has no such entry.
    #[error("{object} has no key {key}")]
    NoKey {
        /// The object.
        object: String,
        /// The key.
        key: String,
    },
    /// A file refers to a container that the pod does not have.
    #[error("the pod has no container {0}")]
    NoContainer(String),
    /// A token was not fetched.
    #[error("the service account token is missing")]
    NoToken,
}

/// What a volume is stored on: as in the kubelet, all but config maps are in memory.
pub(super) fn medium(kind: ProjectedKind) -> Medium {
    match kind {
        ProjectedKind::ConfigMap => Medium::Disk,
        ProjectedKind::Secret | ProjectedKind::DownwardApi | ProjectedKind::Projected => Medium::Memory,
    }
}

/// The files of a volume. Of two with one path, the later one counts.
pub(super) fn files(
    node: &NodeConfig,
    pod: &Pod,
    volume: &ProjectedVolume,
    objects: &Objects,
) -> Result<Files, ContentError> {
    let mut files = Files::new();
    let file = |content: Vec<u8>, mode: Option<u32>| File {
        content,
        mode: mode.unwrap_or(volume.default_mode),
        user: None,
    };
    for source in &volume.sources {
        match source {
            Projection::Object { object, items } => {
                for (path, content, mode) in entries(pod, object, items, objects)? {
                    files.insert(path, file(content, mode));
                }
            }
            Projection::DownwardApi(items) => {
                for item in items {
                    let content = downward(node, pod, item)?.into_bytes();
                    files.insert(item.path.clone(), file(content, item.mode));
                }
            }
            Projection::ServiceAccountToken {
                audience,
                expiration,
                path,
            } => {
                let wanted = TokenRequest {
                    audience: audience.clone(),
                    expiration: *expiration,
                };
                let token = objects.token(&wanted).ok_or(ContentError::NoToken)?;
                let user = only_user(pod);
                let is_owned = user.is_some() || pod.spec.security.fs_group.is_some();
                let mode = is_owned.then_some(OWN_TOKEN);
                let token = File {
                    user,
                    ..file(token.as_bytes().to_vec(), mode)
                };
                files.insert(path.clone(), token);
            }
        }
    }
    Ok(files)
}

/// Path, content and mode of the files of an object.
type Entry = (String, Vec<u8>, Option<u32>);

fn entries(pod: &Pod, object: &ObjectRef, items: &[ObjectFile], objects: &Objects) -> Result<Vec<Entry>, ContentError> {
    let name = || describe(&pod.id.namespace, object.kind, &object.name);
    let Some(data) = objects.data(object.kind, &object.name) else {
        return if object.optional {
            Ok(Vec::new())
        } else {
            Err(ContentError::NoObject(name()))
        };
    };
    if items.is_empty() {
        let all = data.iter().map(|(key, content)| (key.clone(), content.clone(), None));
        return Ok(all.collect());
    }
    let mut found = Vec::new();
    for item in items {
        match data.get(&item.key) {
            Some(content) => found.push((item.path.clone(), content.clone(), item.mode)),
            None if object.optional => {}
            None => {
                return Err(ContentError::NoKey {
                    object: name(),
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(found)
}

fn downward(node: &NodeConfig, pod: &Pod, file: &DownwardFile) -> Result<String, ContentError> {
    match &file.value {
        // Only metadata, so the addresses do not matter.
        DownwardValue::Field(field) => Ok(fields::field(node, pod, field, &[])),
        DownwardValue::Resource(field) => {
            let missing = || ContentError::NoContainer(field.container.clone().unwrap_or_default());
            fields::resource(node, pod, None, field).ok_or_else(missing)
        }
    }
}

/// The user of all containers, if they have one and the same.
fn only_user(pod: &Pod) -> Option<u32> {
    let shared = pod.spec.security.run_as_user;
    let mut users = pod
        .spec
        .all_containers()
        .chain(&pod.spec.ephemeral_containers)
        .map(|container| container.security.run_as_user.or(shared));
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::executor::objects::for_volumes;
    use crate::executor::objects::testing::InMemory;
    use crate::manifest::{ContainerResource, FsGroup, ObjectKind, PodField, Quantity, ResourceField, Volume};
    use crate::testing::{node, pod};

    fn object(name: &str, optional: bool, items: &[(&str, &str, Option<u32>)]) -> Projection {
        let item = |(key, path, mode): &(&str, &str, Option<u32>)| ObjectFile {
            key: (*key).to_owned(),
            path: (*path).to_owned(),
            mode: *mode,
        };
        Projection::Object {
            object: ObjectRef {
                kind: ObjectKind::ConfigMap,
                name: name.to_owned(),
                optional,
            },
            items: items.iter().map(item).collect(),
        }
    }

    fn with(sources: Vec<Projection>) -> Pod {
        let mut pod = Pod::clone(&pod(
            "containers: [{name: a, image: i, resources: {limits: {cpu: 1500m}}}]",
        ));
        pod.labels.insert("app".to_owned(), "\"x\"\ny".to_owned());
        pod.labels.insert("b".to_owned(), "é\u{1}".to_owned());
        let volume = ProjectedVolume {
            kind: ProjectedKind::Projected,
            default_mode: 0o644,
            sources,
        };
        pod.spec.volumes.insert("v".to_owned(), Volume::Projected(volume));
        pod
    }

    /// `path mode content` of each file, or the error.
    async fn read(pod: &Pod) -> Result<Vec<String>, String> {
        let api = InMemory::default();
        api.set(ObjectKind::ConfigMap, "map", &[("one", "1"), ("two", "2")]);
        let objects = for_volumes(&api, pod).await.unwrap();
        let Volume::Projected(volume) = &pod.spec.volumes["v"] else {
            panic!()
        };
        let files = files(&node(Path::new("/x")), pod, volume, &objects).map_err(|error| error.to_string())?;
        let line = |(path, file): (&String, &File)| {
            let content = String::from_utf8_lossy(&file.content);
            format!("{path} {:o} {content}", file.mode)
        };
        Ok(files.iter().map(line).collect())
    }

    #[tokio::test]
    async fn entries_of_objects_are_files() {
        let all = with(vec![object("map", false, &[])]);
        assert_eq!(read(&all).await.unwrap(), ["one 644 1", "two 644 2"]);
        let some = with(vec![object("map", false, &[("two", "dir/file", Some(0o400))])]);
        assert_eq!(read(&some).await.unwrap(), ["dir/file 400 2"]);
        // The later one counts.
        let both = with(vec![
            object("map", false, &[]),
            object("map", false, &[("one", "two", None)]),
        ]);
        assert_eq!(read(&both).await.unwrap(), ["one 644 1", "two 644 1"]);
    }

    #[tokio::test]
    async fn what_is_missing_is_an_error_unless_it_is_optional() {
        let error = read(&with(vec![object("none", false, &[])])).await.unwrap_err();
        assert_eq!(error, "configmap default/none not found");
        let error = read(&with(vec![object("map", false, &[("x", "x", None)])]))
            .await
            .unwrap_err();
        assert_eq!(error, "configmap default/map has no key x");
        for optional in [object("none", true, &[]), object("map", true, &[("x", "x", None)])] {
            assert!(read(&with(vec![optional])).await.unwrap().is_empty());
        }
    }

    #[tokio::test]
    async fn fields_of_the_pod_are_files() {
        let file = |path: &str, value: DownwardValue| DownwardFile {
            path: path.to_owned(),
            value,
            mode: None,
        };
        let cpu = |container: &str| {
            DownwardValue::Resource(ResourceField {
                container: Some(container.to_owned()),
                resource: ContainerResource::CpuLimit,
                divisor: Quantity::parse("1m").unwrap(),
            })
        };
        let pod = with(vec![Projection::DownwardApi(vec![
            file("labels", DownwardValue::Field(PodField::Labels)),
            file("name", DownwardValue::Field(PodField::Name)),
            file("cpu", cpu("a")),
        ])]);
        let labels = "labels 644 app=\"\\\"x\\\"\\ny\"\nb=\"é\\x01\"";
        assert_eq!(read(&pod).await.unwrap(), ["cpu 644 1500", labels, "name 644 p-n"]);
        let wrong = with(vec![Projection::DownwardApi(vec![file("cpu", cpu("none"))])]);
        assert_eq!(read(&wrong).await.unwrap_err(), "the pod has no container none");
    }

    /// Only the users of the pod may read a token, where they are known.
    #[tokio::test]
    async fn a_token_belongs_to_its_user() {
        let token = Projection::ServiceAccountToken {
            audience: Some("vault".to_owned()),
            expiration: Duration::from_hours(1),
            path: "token".to_owned(),
        };
        let mut pod = with(vec![token]);
        assert_eq!(read(&pod).await.unwrap(), ["token 644 token of p-n for vault"]);
        pod.spec.security.run_as_user = Some(7);
        assert_eq!(only_user(&pod), Some(7));
        assert_eq!(read(&pod).await.unwrap(), ["token 600 token of p-n for vault"]);
        pod.spec.containers.push(pod.spec.containers[0].clone());
        pod.spec.containers[1].security.run_as_user = Some(8);
        assert_eq!(only_user(&pod), None);
        pod.spec.security.fs_group = Some(FsGroup {
            gid: 9,
            on_root_mismatch: false,
        });
        assert_eq!(read(&pod).await.unwrap(), ["token 600 token of p-n for vault"]);
    }
}
