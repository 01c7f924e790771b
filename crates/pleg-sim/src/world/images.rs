//! The image store.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use pleg_cri::v1;
use rustc_hash::FxHasher;

use super::{World, WorldError};

/// Images at most.
const MOST_IMAGES: usize = 10_000;
/// Maximum length of a name.
const LONGEST_NAME: usize = 512;

/// Images by their full name.
#[derive(Debug, Default)]
pub(crate) struct Images(BTreeMap<String, Stored>);

#[derive(Debug)]
pub(super) struct Stored {
    pub(super) id: String,
    size: u64,
}

impl Images {
    pub(crate) fn add(&mut self, name: &str) -> String {
        let name = full_name(name);
        let stored = self.0.entry(name).or_insert_with_key(|name| Stored {
            id: format!("sha256:{}", digest(name)),
            size: 4 << 20,
        });
        stored.id.clone()
    }

    /// The image of that name or id.
    pub(super) fn find(&self, name: &str) -> Option<(&String, &Stored)> {
        self.0.get_key_value(&full_name(name)).or_else(|| {
            self.0
                .iter()
                .find(|(_, stored)| stored.id == name || stored.id[7..] == *name)
        })
    }
}

/// 64 hexadecimal digits that follow from the name.
fn digest(name: &str) -> String {
    let part = |salt: u64| {
        let mut hasher = FxHasher::default();
        (salt, name).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}{:016x}{:016x}", part(0), part(1), part(2), part(3))
}

/// A name with registry and tag, as runtimes store it: `busybox` is `docker.io/library/busybox:latest`.
fn full_name(name: &str) -> String {
    let host = name.split_once('/').map(|(host, _)| host);
    let registry = match host {
        None => "docker.io/library/",
        Some(host) if host.contains(['.', ':']) || host == "localhost" => "",
        Some(_) => "docker.io/",
    };
    let last = name.rsplit('/').next().unwrap_or(name);
    let tag = if last.contains([':', '@']) { "" } else { ":latest" };
    format!("{registry}{name}{tag}")
}

fn message(name: &str, stored: &Stored) -> v1::Image {
    let repository = name.rsplit_once(':').map_or(name, |(repository, _)| repository);
    v1::Image {
        id: stored.id.clone(),
        repo_tags: vec![name.to_owned()],
        repo_digests: vec![format!("{repository}@{}", stored.id)],
        size: stored.size,
        spec: Some(v1::ImageSpec {
            image: name.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

impl World {
    /// All images, or the one that the filter names.
    pub fn images(&self, filter: &str) -> Vec<v1::Image> {
        if filter.is_empty() {
            return self
                .images
                .0
                .iter()
                .map(|(name, stored)| message(name, stored))
                .collect();
        }
        self.image(filter).into_iter().collect()
    }

    /// The image of that name or id.
    pub fn image(&self, name: &str) -> Option<v1::Image> {
        self.images.find(name).map(|(name, stored)| message(name, stored))
    }

    /// Pulls an image: every name exists except those that contain `missing`.
    pub fn pull_image(&mut self, name: &str) -> Result<String, WorldError> {
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(char::is_whitespace) {
            return Err(WorldError::Invalid(format!(
                "image name of {} bytes: expected 1 to {LONGEST_NAME} without spaces",
                name.len()
            )));
        }
        if name.contains("missing") {
            return Err(WorldError::NotFound {
                kind: "image",
                name: full_name(name),
            });
        }
        if self.images.0.len() >= MOST_IMAGES && self.images.find(name).is_none() {
            return Err(WorldError::Full("images", MOST_IMAGES));
        }
        Ok(self.images.add(name))
    }

    /// Removes an image; succeeds if there is none.
    pub fn remove_image(&mut self, name: &str) {
        if let Some(name) = self.images.find(name).map(|(name, _)| name.clone()) {
            self.images.0.remove(&name);
        }
    }

    /// Bytes and files of all images.
    pub fn image_usage(&self) -> (u64, u64) {
        (
            self.images.0.values().map(|stored| stored.size).sum(),
            self.images.0.len() as u64 * 100,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimConfig;

    #[test]
    fn names_are_completed_as_runtimes_do() {
        for (name, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("me/app", "docker.io/me/app:latest"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost/x", "localhost/x:latest"),
            ("host:5000/x", "host:5000/x:latest"),
        ] {
            assert_eq!(full_name(name), full);
        }
    }

    #[test]
    fn images_come_and_go() {
        let mut world = World::new(&SimConfig::default()).unwrap();
        assert_eq!(world.image("busybox"), None);
        let id = world.pull_image("busybox").unwrap();
        assert_eq!(world.pull_image("docker.io/library/busybox:latest").unwrap(), id);
        assert_eq!(
            world.image(&id).unwrap().repo_tags,
            ["docker.io/library/busybox:latest"]
        );
        assert!(matches!(
            world.pull_image("missing/x"),
            Err(WorldError::NotFound { .. })
        ));
        world.remove_image("busybox");
        world.remove_image("busybox");
        assert_eq!(world.images("busybox"), []);
    }
}
