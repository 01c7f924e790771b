//! What the two lists said, in a form that costs nothing to keep: of what is as it was a bit, of the rest all text in one buffer,
//! reused from relist to relist.
//!
//! The lists are two answers, not one snapshot of the runtime. A container may come without its sandbox (its labels name the pod
//! then), a sandbox without its containers. Neither is a death: a container is absent only from a complete list of containers.

use pleg_cri::list::{BATCH, Malformed, glance_container, glance_sandbox, parse_container, parse_sandbox};
use pleg_cri::{ContainerItem, SandboxItem};
use serde::{Deserialize, Serialize};

use crate::records::{Recognised, Seen};

/// An id or name longer than this is not one.
const TEXT_LIMIT: usize = 1024;
/// Room that a reused buffer may keep without use.
const SPARE: usize = 1 << 20;

/// Objects with missing or contradictory metadata. They never stop a relist; they are counted and shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Oddities {
    /// Objects without an id.
    pub empty_id: u32,
    /// Ids that came more than once in one list.
    pub duplicate_id: u32,
    /// Ids or names that are no text, or far too long.
    pub bad_text: u32,
    /// Sandboxes without metadata or UID: not created by Kubernetes.
    pub sandbox_without_pod: u32,
    /// Containers whose pod is unknown, neither by sandbox nor by label.
    pub container_without_pod: u32,
    /// States that CRI does not have.
    pub unknown_state: u32,
    /// Times before 1970.
    pub bad_time: u32,
    /// Containers and sandboxes that are listed, yet not found when asked for by id.
    pub listed_not_found: u32,
}

impl Oddities {
    /// Each count with its name.
    pub fn counts(&self) -> [(&'static str, u32); 8] {
        [
            ("empty_id", self.empty_id),
            ("duplicate_id", self.duplicate_id),
            ("bad_text", self.bad_text),
            ("sandbox_without_pod", self.sandbox_without_pod),
            ("container_without_pod", self.container_without_pod),
            ("unknown_state", self.unknown_state),
            ("bad_time", self.bad_time),
            ("listed_not_found", self.listed_not_found),
        ]
    }

    /// How many in all.
    pub fn total(&self) -> u32 {
        self.counts().iter().map(|(_, n)| n).sum()
    }
}

/// Both lists of one relist.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The content of `ListPodSandbox`.
    pub sandboxes: SandboxList,
    /// The content of `ListContainers`.
    pub containers: ContainerList,
}

/// Text of many items in one buffer.
#[derive(Debug, Default)]
struct Text(Vec<u8>);

/// Where an item's texts stand in the buffer: one after the other from `at`.
#[derive(Debug, Clone, Copy)]
struct Spans<const N: usize> {
    at: usize,
    lens: [u16; N],
}

impl Text {
    /// Keeps the texts; `None` if one is too long to be true.
    fn push<const N: usize>(&mut self, texts: [&[u8]; N]) -> Option<Spans<N>> {
        let mut lens = [0; N];
        for (len, text) in lens.iter_mut().zip(texts) {
            *len = u16::try_from(text.len())
                .ok()
                .filter(|&n| usize::from(n) <= TEXT_LIMIT)?;
        }
        let at = self.0.len();
        for text in texts {
            // Ids and UIDs have these lengths: copied without a call.
            if let Ok(id) = <&[u8; 64]>::try_from(text) {
                self.0.extend_from_slice(id);
            } else if let Ok(uid) = <&[u8; 36]>::try_from(text) {
                self.0.extend_from_slice(uid);
            } else {
                self.0.extend_from_slice(text);
            }
        }
        Some(Spans { at, lens })
    }

    fn get<const N: usize>(&self, spans: &Spans<N>) -> [&[u8]; N] {
        let mut rest = &self.0[spans.at..];
        spans.lens.map(|len| {
            let (text, tail) = rest.split_at(usize::from(len));
            rest = tail;
            text
        })
    }

    fn clear(&mut self) {
        // A buffer that once held a giant list does not stay giant.
        if self.0.capacity() > SPARE && self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to(self.0.len() * 2);
        }
        self.0.clear();
    }
}

#[derive(Debug, Clone, Copy)]
struct Row<const N: usize> {
    spans: Spans<N>,
    created_at: i64,
    attempt: u32,
    state: i32,
    has_metadata: bool,
}

/// The content of `ListPodSandbox`.
#[derive(Debug, Default)]
pub struct SandboxList {
    text: Text,
    rows: Vec<Row<5>>,
    pub(crate) seen: Seen,
    odd: Oddities,
}

/// The content of `ListContainers`.
#[derive(Debug, Default)]
pub struct ContainerList {
    text: Text,
    rows: Vec<Row<6>>,
    pub(crate) seen: Seen,
    odd: Oddities,
}

/// Counts what one item alone shows; false if the item cannot be tracked.
fn check(odd: &mut Oddities, id: &[u8], created_at: i64, known_state: bool) -> bool {
    odd.bad_time += u32::from(created_at < 0);
    odd.unknown_state += u32::from(!known_state);
    odd.empty_id += u32::from(id.is_empty());
    !id.is_empty()
}

impl SandboxList {
    /// Adds items as they are on the wire, [`BATCH`] at a time. They are read only as far as it takes to see that they are as they
    /// were.
    pub fn push_raw(&mut self, items: &[&[u8]]) -> Result<(), Malformed> {
        for batch in items.chunks(BATCH) {
            let mut glances = [None; BATCH];
            for (glance, item) in glances.iter_mut().zip(batch) {
                *glance = glance_sandbox(item);
            }
            for (item, recognised) in batch.iter().zip(self.seen.recognise(&glances)) {
                match recognised {
                    Recognised::Same => {}
                    Recognised::Again => self.odd.duplicate_id += 1,
                    Recognised::No => self.keep(&parse_sandbox(item)?),
                }
            }
        }
        Ok(())
    }

    /// Adds an item.
    pub fn push(&mut self, item: &SandboxItem<'_>) {
        match self.seen.recognise(&[Some((item.id, item.state))]) {
            [Recognised::Same] => {}
            [Recognised::Again] => self.odd.duplicate_id += 1,
            [Recognised::No] => self.keep(item),
        }
    }

    fn keep(&mut self, item: &SandboxItem<'_>) {
        if !check(&mut self.odd, item.id, item.created_at, (0..2).contains(&item.state)) {
            return;
        }
        let &SandboxItem {
            has_metadata,
            attempt,
            state,
            created_at,
            ..
        } = item;
        match self
            .text
            .push([item.id, item.uid, item.namespace, item.name, item.pod_uid_label])
        {
            Some(spans) => self.rows.push(Row {
                spans,
                created_at,
                attempt,
                state,
                has_metadata,
            }),
            None => self.odd.bad_text += 1,
        }
    }

    /// How many items there are that are not as they were.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// No such items.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The item at a place below [`len`](Self::len).
    pub fn item(&self, i: usize) -> SandboxItem<'_> {
        let &Row {
            spans,
            created_at,
            attempt,
            state,
            has_metadata,
        } = &self.rows[i];
        let [id, uid, namespace, name, pod_uid_label] = self.text.get(&spans);
        SandboxItem {
            id,
            has_metadata,
            uid,
            namespace,
            name,
            attempt,
            state,
            created_at,
            pod_uid_label,
        }
    }

    /// What was odd about items taken one by one.
    pub(crate) fn oddities(&self) -> Oddities {
        self.odd
    }

    /// Forgets the items, keeps the room.
    pub fn clear(&mut self) {
        self.text.clear();
        self.rows.clear();
        self.seen.clear();
        self.odd = Oddities::default();
    }
}

impl ContainerList {
    /// Adds items as they are on the wire, [`BATCH`] at a time. They are read only as far as it takes to see that they are as they
    /// were.
    pub fn push_raw(&mut self, items: &[&[u8]]) -> Result<(), Malformed> {
        for batch in items.chunks(BATCH) {
            let mut glances = [None; BATCH];
            for (glance, item) in glances.iter_mut().zip(batch) {
                *glance = glance_container(item);
            }
            for (item, recognised) in batch.iter().zip(self.seen.recognise(&glances)) {
                match recognised {
                    Recognised::Same => {}
                    Recognised::Again => self.odd.duplicate_id += 1,
                    Recognised::No => self.keep(&parse_container(item)?),
                }
            }
        }
        Ok(())
    }

    /// Adds an item.
    pub fn push(&mut self, item: &ContainerItem<'_>) {
        match self.seen.recognise(&[Some((item.id, item.state))]) {
            [Recognised::Same] => {}
            [Recognised::Again] => self.odd.duplicate_id += 1,
            [Recognised::No] => self.keep(item),
        }
    }

    fn keep(&mut self, item: &ContainerItem<'_>) {
        if !check(&mut self.odd, item.id, item.created_at, (0..4).contains(&item.state)) {
            return;
        }
        let &ContainerItem {
            attempt,
            state,
            created_at,
            ..
        } = item;
        let texts = [
            item.id,
            item.pod_sandbox_id,
            item.name,
            item.pod_uid_label,
            item.pod_namespace_label,
            item.pod_name_label,
        ];
        match self.text.push(texts) {
            Some(spans) => self.rows.push(Row {
                spans,
                created_at,
                attempt,
                state,
                has_metadata: true,
            }),
            None => self.odd.bad_text += 1,
        }
    }

    /// How many items there are that are not as they were.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// No such items.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The item at a place below [`len`](Self::len).
    pub fn item(&self, i: usize) -> ContainerItem<'_> {
        let &Row {
            spans,
            created_at,
            attempt,
            state,
            ..
        } = &self.rows[i];
        let [
            id,
            pod_sandbox_id,
            name,
            pod_uid_label,
            pod_namespace_label,
            pod_name_label,
        ] = self.text.get(&spans);
        ContainerItem {
            id,
            pod_sandbox_id,
            name,
            attempt,
            state,
            created_at,
            pod_uid_label,
            pod_name_label,
            pod_namespace_label,
        }
    }

    /// What was odd about items taken one by one.
    pub(crate) fn oddities(&self) -> Oddities {
        self.odd
    }

    /// Forgets the items, keeps the room.
    pub fn clear(&mut self) {
        self.text.clear();
        self.rows.clear();
        self.seen.clear();
        self.odd = Oddities::default();
    }
}

impl Snapshot {
    /// Forgets the items, keeps the room.
    pub fn clear(&mut self) {
        self.sandboxes.clear();
        self.containers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_back_as_they_went_in() {
        let sandbox = SandboxItem {
            id: b"s1",
            has_metadata: true,
            uid: b"u",
            namespace: b"ns",
            name: b"web",
            attempt: 2,
            state: 1,
            created_at: 5,
            pod_uid_label: b"u",
        };
        let container = ContainerItem {
            id: b"c1",
            pod_sandbox_id: b"s1",
            name: b"app",
            attempt: 3,
            state: 2,
            created_at: 6,
            pod_uid_label: b"u",
            pod_name_label: b"web",
            pod_namespace_label: b"ns",
        };
        let mut snapshot = Snapshot::default();
        for _ in 0..3 {
            snapshot.clear();
            snapshot.sandboxes.push(&sandbox);
            snapshot.sandboxes.push(&SandboxItem {
                id: b"s2",
                ..Default::default()
            });
            snapshot.containers.push(&container);
            assert_eq!(snapshot.sandboxes.item(0), sandbox);
            assert_eq!(snapshot.sandboxes.len(), 2);
            assert_eq!((snapshot.containers.len(), snapshot.containers.item(0)), (1, container));
        }
    }

    #[test]
    fn objects_that_cannot_be_tracked_are_counted() {
        let mut list = ContainerList::default();
        let long = [b'x'; TEXT_LIMIT + 1];
        list.push(&ContainerItem::default());
        list.push(&ContainerItem {
            id: &long,
            ..Default::default()
        });
        list.push(&ContainerItem {
            id: b"c",
            state: 9,
            created_at: -1,
            ..Default::default()
        });
        assert_eq!(
            list.odd,
            Oddities {
                empty_id: 1,
                bad_text: 1,
                unknown_state: 1,
                bad_time: 1,
                ..Default::default()
            }
        );
        assert_eq!(list.len(), 1);
    }
}
