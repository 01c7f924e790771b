//! Which entries a reader wants.

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{LabelSelector, PodUid};

use crate::entry::{Entry, EntryType, Record, What};

/// Entries on one page, unless the query says less.
pub const PAGE: usize = 1000;

/// Which entries a reader wants: those that match every part that is set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// Only entries about these pods.
    pub pod: Option<PodMatch>,
    /// Only entries about pods in this namespace.
    pub namespace: Option<String>,
    /// Only entries about pods whose labels, as last seen, match.
    pub labels: Option<LabelSelector>,
    /// Only entries about this container: its name, or its id or the beginning of it (at least 4 characters).
    pub container: Option<String>,
    /// Only entries at or after this time.
    pub since: Option<Timestamp>,
    /// Only entries before this time.
    pub until: Option<Timestamp>,
    /// Only entries of these types. Empty: all but [`EntryType::Sample`].
    pub types: Vec<EntryType>,
    /// Only events with one of these reasons (`OOMKilled`, `Error`, …) or troubles (`hung-shim`, …), in any case.
    pub reasons: Vec<String>,
    /// Only entries with a greater [`Entry::id`].
    pub after: Option<u64>,
    /// Only entries with a smaller [`Entry::id`].
    pub before: Option<u64>,
    /// At most this many in all.
    pub limit: Option<usize>,
    /// In which order.
    pub order: Order,
}

/// In which order entries are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// As they happened.
    #[default]
    OldestFirst,
    /// The last first.
    NewestFirst,
}

/// Which pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodMatch {
    /// By UID.
    Uid(PodUid),
    /// By name; in any namespace if none is given. Several UIDs may have had the name.
    Name {
        /// The namespace.
        namespace: Option<String>,
        /// The whole name.
        name: String,
    },
    /// By the beginning of the name or of the UID.
    Prefix {
        /// The namespace.
        namespace: Option<String>,
        /// The beginning.
        prefix: String,
    },
}

impl PodMatch {
    /// What people type: `NAME`, `NAMESPACE/NAME`, or either with a `*` at its end for a prefix.
    pub fn parse(text: &str) -> Self {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, text),
        };
        match name.strip_suffix('*') {
            Some(prefix) => Self::Prefix {
                namespace,
                prefix: prefix.to_owned(),
            },
            None => Self::Name {
                namespace,
                name: name.to_owned(),
            },
        }
    }

    /// Whether it is this pod.
    pub fn matches(&self, uid: &str, namespace: &str, name: &str) -> bool {
        let within = |wanted: &Option<String>| wanted.as_deref().is_none_or(|wanted| wanted == namespace);
        match self {
            Self::Uid(wanted) => wanted.as_str() == uid,
            Self::Name {
                namespace,
                name: wanted,
            } => within(namespace) && wanted == name,
            Self::Prefix { namespace, prefix } => {
                within(namespace) && (name.starts_with(prefix.as_str()) || uid.starts_with(prefix.as_str()))
            }
        }
    }
}

impl Query {
    /// It asks for entries about pods only.
    pub(crate) fn is_about_pods(&self) -> bool {
        self.pod.is_some() || self.namespace.is_some() || self.labels.is_some()
    }

    /// Whether it wants entries of this type.
    pub(crate) fn wants_type(&self, kind: EntryType) -> bool {
        if self.types.is_empty() {
            kind != EntryType::Sample
        } else {
            self.types.contains(&kind)
        }
    }

    /// Whether it wants this entry, apart from its pod's labels, which an entry does not have.
    pub fn matches(&self, entry: &Entry) -> bool {
        let time = entry.time();
        self.after.is_none_or(|after| entry.id > after)
            && self.before.is_none_or(|before| entry.id < before)
            && self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time < until)
            && self.wants_type(entry.kind())
            && self.matches_pod(entry)
            && self.matches_container(entry)
            && self.matches_reason(entry)
    }

    fn matches_pod(&self, entry: &Entry) -> bool {
        let Some(pod) = entry.pod() else {
            return !self.is_about_pods();
        };
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == &*pod.namespace)
            && self
                .pod
                .as_ref()
                .is_none_or(|wanted| wanted.matches(pod.uid.as_str(), &pod.namespace, &pod.name))
    }

    fn matches_container(&self, entry: &Entry) -> bool {
        let Some(wanted) = self.container.as_deref() else {
            return true;
        };
        match &entry.record {
            Record::Event(event) => match &event.subject {
                Some(Subject::Container(container)) => {
                    *container.name == *wanted || (wanted.len() >= 4 && container.id.as_str().starts_with(wanted))
                }
                _ => false,
            },
            Record::Note(note) => match &note.what {
                What::PodStatusChanged(changed) => changed
                    .changes
                    .iter()
                    .any(|change| change.container.as_deref() == Some(wanted)),
                What::NodeEvent(event) => event.container.as_deref() == Some(wanted),
                _ => false,
            },
        }
    }

    fn matches_reason(&self, entry: &Entry) -> bool {
        if self.reasons.is_empty() {
            return true;
        }
        let words = match (entry.event(), entry.note()) {
            (Some(event), _) => [event.reason.as_deref(), event.trouble.map(pleg::Trouble::name)],
            (_, Some(What::NodeEvent(event))) => [Some(event.reason.as_str()), None],
            _ => return false,
        };
        words
            .into_iter()
            .flatten()
            .any(|word| self.reasons.iter().any(|wanted| wanted.eq_ignore_ascii_case(word)))
    }
}

/// Some entries, and where the next ones begin.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// In the order of the query.
    pub entries: Vec<Entry>,
    /// There are more: the query for them, which has its own cursor and what is left of the limit.
    pub next: Option<Box<Query>>,
}
