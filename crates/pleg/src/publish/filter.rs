//! Which events a subscriber reads.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::model::PodUid;
use crate::model::event::{Event, EventType};
use crate::model::selector::LabelSelector;
use crate::publish::cache::Cache;

/// Which events a subscriber reads: those that match every part that is set. Gaps are always read.
///
/// ```
/// use pleg::{EventFilter, EventType};
/// let filter = EventFilter::default()
///     .types([EventType::ContainerDied])
///     .namespaces(["default"])
///     .labels("app=web".parse()?);
/// # Ok::<(), pleg::BadSelector>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    types: Vec<EventType>,
    namespaces: Vec<Arc<str>>,
    labels: Option<LabelSelector>,
}

impl EventFilter {
    /// Only events of these types. A `PodSync` always matches: it stands for missed events of any type.
    #[must_use]
    pub fn types(mut self, types: impl IntoIterator<Item = EventType>) -> Self {
        self.types = types.into_iter().collect();
        self
    }

    /// Only events of pods in these namespaces, and none about the generator itself.
    #[must_use]
    pub fn namespaces<N: Into<Arc<str>>>(mut self, namespaces: impl IntoIterator<Item = N>) -> Self {
        self.namespaces = namespaces.into_iter().map(Into::into).collect();
        self
    }

    /// Only events of pods whose labels match, and none about the generator itself.
    ///
    /// Events carry no labels: they are those in the cache when the event is read. A pod that is gone by then matches if an earlier
    /// event of it that this subscriber read did. So a subscriber that is far behind misses pods that came and went meanwhile.
    #[must_use]
    pub fn labels(mut self, selector: LabelSelector) -> Self {
        self.labels = Some(selector);
        self
    }
}

/// A filter at work.
#[derive(Debug)]
pub(super) struct Filtering {
    filter: EventFilter,
    /// Pods whose labels matched, until they are removed.
    matched: HashSet<PodUid>,
}

impl Filtering {
    pub(super) fn new(filter: EventFilter) -> Self {
        let matched = HashSet::new();
        Self { filter, matched }
    }

    /// Whether the subscriber reads the event, which is the next one of the feed.
    pub(super) fn matches(&mut self, event: &Event, cache: &Cache) -> bool {
        let filter = &self.filter;
        let of_type = filter.types.is_empty() || filter.types.contains(&event.kind) || event.kind == EventType::PodSync;
        let Some(pod) = &event.pod else {
            return of_type && filter.namespaces.is_empty() && filter.labels.is_none();
        };
        if !filter.namespaces.is_empty() && !filter.namespaces.contains(&pod.namespace) {
            return false;
        }
        // Also for types that are not wanted: a later event of the pod may need to know.
        self.labels_match(&pod.uid, event.kind, cache) && of_type
    }

    fn labels_match(&mut self, uid: &PodUid, kind: EventType, cache: &Cache) -> bool {
        let Some(selector) = &self.filter.labels else {
            return true;
        };
        let matches = match cache.get(uid) {
            Some(entry) => selector.matches_pod(&entry.status),
            None => self.matched.contains(uid),
        };
        if matches && kind != EventType::PodRemoved {
            self.matched.insert(uid.clone());
        } else {
            self.matched.remove(uid);
        }
        matches
    }
}
