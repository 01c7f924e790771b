//! The image store.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use pleg_cri::v1;
use rustc_hash::FxHasher;

use super::{World, WorldError};

/// Images at most.
const MOST_IMAGES: usize = 10_000;
/// Maximum length of a name.
const LONGEST_NAME: usize = 512;

/// Images by their full name. Several names may be those of one image.
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
            id: format!("sha256:{}", digest(content(name))),
            size: 4 << 20,
        });
        stored.id.clone()
    }

    /// The image of that name, id or digest.
    pub(super) fn find(&self, name: &str) -> Option<(&String, &Stored)> {
        let by_id = |stored: &Stored| stored.id == name || stored.id[7..] == *name;
        let by_digest = |own: &str, stored: &Stored| repo_digest(own, stored) == name;
        self.0.get_key_value(&full_name(name)).or_else(|| {
            self.0
                .iter()
                .find(|(own, stored)| by_id(stored) || by_digest(own, stored))
        })
    }

    /// The names of each image, by its id.
    fn by_id(&self) -> BTreeMap<&str, Vec<(&String, &Stored)>> {
        let mut images: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for (name, stored) in &self.0 {
            images.entry(&stored.id).or_default().push((name, stored));
        }
        images
    }

    /// An image as a message, from all its names.
    fn message(names: &[(&String, &Stored)]) -> Option<v1::Image> {
        let (first, stored) = *names.first()?;
        let digests: BTreeSet<String> = names.iter().map(|(name, stored)| repo_digest(name, stored)).collect();
        let tags = names.iter().filter(|(name, _)| !name.contains('@'));
        Some(v1::Image {
            id: stored.id.clone(),
            repo_tags: tags.map(|&(name, _)| name.clone()).collect(),
            repo_digests: digests.into_iter().collect(),
            size: stored.size,
            spec: Some(v1::ImageSpec {
                image: first.clone(),
                ..Default::default()
            }),
            ..Default::default()
        })
    }
}

/// What an image is made of: the same behind the same path and tag, whichever registry serves it.
fn content(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, path)| path)
}

/// The name by which its registry knows exactly this image.
fn repo_digest(name: &str, stored: &Stored) -> String {
    if name.contains('@') {
        return name.to_owned();
    }
    let repository = name.rsplit_once(':').map_or(name, |(repository, _)| repository);
    format!("{repository}@{}", stored.id)
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

impl World {
    /// All images, or the one that the filter names.
    pub fn images(&self, filter: &str) -> Vec<v1::Image> {
        if filter.is_empty() {
            let images = self.images.by_id();
            return images.values().filter_map(|names| Images::message(names)).collect();
        }
        self.image(filter).into_iter().collect()
    }

    /// The image of that name, id or digest.
    pub fn image(&self, name: &str) -> Option<v1::Image> {
        let (_, stored) = self.images.find(name)?;
        let names: Vec<_> = self.images.0.iter().filter(|(_, one)| one.id == stored.id).collect();
        Images::message(&names)
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

    /// Removes an image with all its names, as containerd does; succeeds if there is none.
    pub fn remove_image(&mut self, name: &str) {
        if let Some(id) = self.images.find(name).map(|(_, stored)| stored.id.clone()) {
            self.images.0.retain(|_, stored| stored.id != id);
        }
    }

    /// Bytes and files of all images.
    pub fn image_usage(&self) -> (u64, u64) {
        let images = self.images.by_id();
        let sizes = images
            .values()
            .filter_map(|names| names.first())
            .map(|(_, stored)| stored.size);
        (sizes.sum(), images.len() as u64 * 100)
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

    #[test]
    fn an_image_is_found_by_all_its_names() {
        let mut world = World::new(&SimConfig::default()).unwrap();
        let id = world.pull_image("registry.k8s.io/pause:3.9").unwrap();
        assert_eq!(
            world.pull_image("mirror.example.com/pause:3.9").unwrap(),
            id,
            "a mirror has the same image"
        );
        let image = world.image(&id).unwrap();
        assert_eq!(
            image.repo_tags,
            ["mirror.example.com/pause:3.9", "registry.k8s.io/pause:3.9"]
        );
        for name in image.repo_tags.iter().chain(&image.repo_digests).chain([&id]) {
            assert_eq!(world.image(name).as_ref(), Some(&image), "{name}");
        }
        assert_eq!(world.images("").iter().filter(|one| one.id == id).count(), 1);
        world.remove_image("registry.k8s.io/pause:3.9");
        assert_eq!(world.image(&id), None);
    }

    #[test]
    fn an_image_pulled_by_digest_has_no_tag() {
        let mut world = World::new(&SimConfig::default()).unwrap();
        let name = format!("registry.example.com/app@sha256:{}", "5".repeat(64));
        world.pull_image(&name).unwrap();
        let image = world.image(&name).unwrap();
        assert_eq!((image.repo_tags, image.repo_digests), (vec![], vec![name]));
    }
}
