//! When each image was first seen and last used, and which may be removed. Pure: callers pass in the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pleg_cri::v1;
use tokio::time::Instant;

/// Most images that are followed. A node with more keeps the rest.
const MAX_IMAGES: usize = 10_000;

/// What is known about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ImageRecord {
    /// Its id, tags and digests.
    names: BTreeSet<String>,
    size: u64,
    pinned: bool,
    first_seen: Instant,
    /// None if it has not been in use since we started.
    last_used: Option<Instant>,
    in_use: bool,
}

/// An image that may be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: String,
    pub(crate) names: BTreeSet<String>,
    pub(crate) size: u64,
}

impl Candidate {
    /// A name that people know, if it has one.
    pub(crate) fn name(&self) -> &str {
        let known = self.names.iter().find(|name| **name != self.id);
        known.unwrap_or(&self.id)
    }
}

/// The images of a runtime, by id.
#[derive(Debug, Default)]
pub(crate) struct ImageRecords(BTreeMap<String, ImageRecord>);

impl ImageRecords {
    /// These images exist now, and containers use these names.
    pub(crate) fn observe(&mut self, images: &[v1::Image], used: &BTreeSet<String>, now: Instant) {
        let mut next = BTreeMap::new();
        for image in images.iter().take(MAX_IMAGES) {
            let tags = image.repo_tags.iter().chain(&image.repo_digests);
            let names: BTreeSet<String> = tags.chain([&image.id]).cloned().collect();
            let before = self.0.remove(&image.id);
            let in_use = names.iter().any(|name| used.contains(name));
            let record = ImageRecord {
                size: image.size,
                pinned: image.pinned,
                first_seen: before.as_ref().map_or(now, |before| before.first_seen),
                last_used: if in_use {
                    Some(now)
                } else {
                    before.and_then(|before| before.last_used)
                },
                in_use,
                names,
            };
            next.insert(image.id.clone(), record);
        }
        self.0 = next;
    }

    /// This image is gone.
    pub(crate) fn forget(&mut self, id: &str) {
        self.0.remove(id);
    }

    /// Unused images that are old enough: the least recently used first, then the one that was seen first.
    pub(crate) fn candidates(&self, now: Instant, minimum_age: Duration) -> Vec<Candidate> {
        let may_go = |(_, record): &(&String, &ImageRecord)| {
            let is_old = now.saturating_duration_since(record.first_seen) >= minimum_age;
            !record.in_use && !record.pinned && is_old
        };
        let mut found: Vec<(&String, &ImageRecord)> = self.0.iter().filter(may_go).collect();
        found.sort_by_key(|(_, record)| (record.last_used, record.first_seen));
        let candidate = |(id, record): (&String, &ImageRecord)| Candidate {
            id: id.clone(),
            names: record.names.clone(),
            size: record.size,
        };
        found.into_iter().map(candidate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str) -> v1::Image {
        v1::Image {
            id: id.to_owned(),
            repo_tags: vec![format!("docker.io/library/{id}:latest")],
            repo_digests: vec![format!("docker.io/library/{id}@sha256:{id}")],
            size: 1,
            ..Default::default()
        }
    }

    fn ids(records: &ImageRecords, at: Instant) -> Vec<String> {
        let found = records.candidates(at, Duration::from_mins(2));
        found.into_iter().map(|candidate| candidate.id).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_recently_used_goes_first() {
        let start = Instant::now();
        let at = |minutes: u64| start + Duration::from_mins(minutes);
        let mut records = ImageRecords::default();
        let all = ["a", "b", "c", "d", "e"].map(image);
        let used = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        // By id, by tag, and by digest.
        let by = ["a", "docker.io/library/b:latest", "docker.io/library/c@sha256:c"];
        records.observe(&all, &used(&by), at(0));
        assert_eq!(ids(&records, at(0)), [""; 0]);
        // An unused image is removed once it is two minutes old.
        assert_eq!(ids(&records, at(1)), [""; 0]);
        assert_eq!(ids(&records, at(2)), ["d", "e"]);
        records.observe(&all, &used(&["b"]), at(5));
        records.observe(&all, &used(&["c"]), at(10));
        // Never used before used long ago.
        assert_eq!(ids(&records, at(10)), ["d", "e", "a", "b"]);
        records.forget("d");
        assert_eq!(ids(&records, at(10)), ["e", "a", "b"]);
        // Gone from the runtime: forgotten, and new when it is back.
        records.observe(&all[1..3], &used(&[]), at(20));
        assert_eq!(ids(&records, at(20)), ["b", "c"]);
        records.observe(&all, &used(&[]), at(21));
        assert_eq!(ids(&records, at(22)), ["b", "c"]);
        assert_eq!(ids(&records, at(23)), ["a", "d", "e", "b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn pinned_images_stay() {
        let mut records = ImageRecords::default();
        let pinned = v1::Image {
            pinned: true,
            ..image("pause")
        };
        records.observe(&[pinned, image("a")], &BTreeSet::new(), Instant::now());
        assert_eq!(ids(&records, Instant::now() + Duration::from_hours(1)), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let mut records = ImageRecords::default();
        let many: Vec<v1::Image> = (0..=MAX_IMAGES).map(|n| image(&n.to_string())).collect();
        records.observe(&many, &BTreeSet::new(), Instant::now());
        assert_eq!(records.0.len(), MAX_IMAGES);
    }
}
