//! Blocks: the entries of one batch, encoded so that a reader takes out those of one pod without decoding the others.
//!
//! A block is a protobuf message: small, and a reader skips fields that a later release adds. Pods, containers and texts are written once
//! in a block and referred to by number; ids that are hex digits take half their length. A block needs nothing outside itself, so
//! a damaged one costs its own entries and no others.
//!
//! Notes are rare and have many shapes: they are JSON inside their entry.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerRef, Event, EventType, InstanceId, PodRef, PodUid, SandboxState, Source, Trouble};
use prost::Message;
use rustc_hash::FxHashMap;

use crate::entry::{Entry, FieldChange, Note, PodStatusChanged, Record, What};
use crate::index::type_bit;

/// Entries of one block.
pub(crate) const MOST_ENTRIES: usize = 4096;
/// A block is closed when it is about this large.
pub(crate) const MOST_BYTES: usize = if cfg!(test) { 8 * 1024 } else { 128 * 1024 };
/// Texts longer than this are cut. Those of events are bounded where they are made, by less.
const TEXT_LIMIT: usize = 16 * 1024;
/// Labels of a pod beyond this many bytes are left out.
const LABELS_LIMIT: usize = 4096;

/// An hour, in nanoseconds.
const HOUR: i64 = 3_600_000_000_000;
/// What the sums of an hour take in a footer, without its pods.
const HOUR_BYTES: usize = 8 * 1024;

/// A note, in place of the number of an event's type.
const NOTE: u32 = 64;
/// A note about a pod's status: the changes only, since the pod is the entry's.
const STATUS_NOTE: u32 = 65;

/// Numbers in the file. They never change.
const TYPES: [(u32, EventType); 15] = [
    (1, EventType::ContainerCreated),
    (2, EventType::ContainerStarted),
    (3, EventType::ContainerStopped),
    (4, EventType::ProcessExited),
    (5, EventType::ContainerDied),
    (6, EventType::ContainerRemoved),
    (7, EventType::ContainerChanged),
    (8, EventType::PodSandboxChanged),
    (9, EventType::PodRemoved),
    (10, EventType::PodSync),
    (11, EventType::PlegHealthy),
    (12, EventType::PlegNotHealthy),
    (13, EventType::PlegDegraded),
    (14, EventType::TroubleStarted),
    (15, EventType::TroubleEnded),
];
const SOURCES: [(u32, Source); 4] = [
    (0, Source::Relist),
    (1, Source::Evented),
    (2, Source::Kernel),
    (3, Source::OnDemand),
];

#[derive(Clone, PartialEq, Message)]
struct BlockMessage {
    #[prost(uint64, tag = "1")]
    first_id: u64,
    /// Nanoseconds since 1970; times of entries are relative to it.
    #[prost(int64, tag = "2")]
    base_time: i64,
    #[prost(fixed64, tag = "3")]
    instance: u64,
    /// Numbers of events are relative to it.
    #[prost(uint64, tag = "4")]
    first_seq: u64,
    #[prost(message, repeated, tag = "5")]
    pods: Vec<PodMessage>,
    #[prost(message, repeated, tag = "6")]
    objects: Vec<ObjectMessage>,
    #[prost(string, repeated, tag = "7")]
    texts: Vec<String>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    entries: Vec<Bytes>,
    /// For each entry 1 + the index of its pod, or 0.
    #[prost(uint32, repeated, tag = "9")]
    pod_of: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct PodMessage {
    #[prost(bytes = "vec", tag = "1")]
    uid: Vec<u8>,
    #[prost(uint32, tag = "2")]
    uid_form: u32,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "4")]
    name: String,
    /// The labels are here: in the first block of a segment that has the pod, and where they change.
    #[prost(bool, tag = "5")]
    has_labels: bool,
    /// Name, value, name, value, …
    #[prost(string, repeated, tag = "6")]
    labels: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMessage {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(uint32, tag = "2")]
    id_form: u32,
    /// 1 + the index of the container's name; 0 for a sandbox.
    #[prost(uint32, tag = "3")]
    name: u32,
    #[prost(uint32, tag = "4")]
    attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
struct EntryMessage {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(sint64, tag = "2")]
    time: i64,
    #[prost(sint64, tag = "3")]
    seq: i64,
    /// 1 + an index; so are `reason` and `trouble`.
    #[prost(uint32, tag = "4")]
    object: u32,
    /// 1: ready, 2: not ready.
    #[prost(uint32, tag = "5")]
    sandbox_state: u32,
    #[prost(uint32, optional, tag = "6")]
    pid: Option<u32>,
    #[prost(sint32, optional, tag = "7")]
    exit_code: Option<i32>,
    #[prost(uint32, tag = "8")]
    reason: u32,
    #[prost(bool, tag = "9")]
    initial: bool,
    #[prost(uint32, tag = "10")]
    source: u32,
    /// Nanoseconds; so is `lasted`.
    #[prost(uint64, optional, tag = "11")]
    lag: Option<u64>,
    #[prost(uint32, tag = "12")]
    trouble: u32,
    #[prost(uint64, optional, tag = "13")]
    lasted: Option<u64>,
    #[prost(bytes = "vec", tag = "14")]
    note: Vec<u8>,
}

/// The labels of a pod: names with values, in the order of names.
pub type Labels = Arc<[(Box<str>, Box<str>)]>;

/// A block in the making.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    message: BlockMessage,
    pods: FxHashMap<PodUid, u32>,
    objects: FxHashMap<Arc<str>, u32>,
    texts: FxHashMap<Arc<str>, u32>,
    size: usize,
    /// The earliest and the latest time.
    pub(crate) times: (i64, i64),
    /// A bit for each type of entry.
    pub(crate) types: u32,
    /// The numbers of the first and the last event; none without one.
    pub(crate) seqs: Option<(u64, u64)>,
}

impl BlockBuilder {
    /// A block whose first entry has this id, and whose next event has this number.
    pub(crate) fn new(first_id: u64, instance: InstanceId, next_seq: u64) -> Self {
        let message = BlockMessage {
            first_id,
            instance: instance.number(),
            first_seq: next_seq,
            ..BlockMessage::default()
        };
        Self {
            message,
            pods: FxHashMap::default(),
            objects: FxHashMap::default(),
            texts: FxHashMap::default(),
            size: 0,
            times: (i64::MAX, i64::MIN),
            types: 0,
            seqs: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.message.entries.len()
    }

    /// Another entry should go to another block.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= MOST_ENTRIES || self.size >= MOST_BYTES
    }

    /// About how many bytes it adds to the footer of its segment, at most.
    pub(crate) fn footer_size(&self) -> usize {
        // Names, UIDs and labels are in it once. An hour that is new has its own sums, with the pods that died in it.
        let span = self.times.1.saturating_sub(self.times.0).max(0) / HOUR;
        let hours = usize::try_from(span)
            .unwrap_or(usize::MAX)
            .saturating_add(2)
            .min(self.len().max(1));
        self.size + self.message.pods.len() * 128 + self.len() * 24 + hours * HOUR_BYTES
    }

    /// Adds an entry. `labels`: those of its pod, if this block has to have them.
    pub(crate) fn push(&mut self, record: &Record, labels: Option<&Labels>) {
        let pod = record.pod().map_or(0, |pod| self.pod(pod, labels));
        let mut entry = match record {
            Record::Event(event) => self.event(event),
            Record::Note(note) => encode_note(note),
        };
        let time = match record {
            Record::Event(event) => nanos(event.time),
            Record::Note(note) => nanos(note.time),
        };
        if self.message.entries.is_empty() {
            self.message.base_time = time;
        }
        self.times = (self.times.0.min(time), self.times.1.max(time));
        self.types |= type_bit(record.kind());
        entry.time = time.wrapping_sub(self.message.base_time);
        let bytes = entry.encode_to_vec();
        self.size += bytes.len() + 4;
        self.message.entries.push(bytes.into());
        self.message.pod_of.push(pod);
    }

    fn event(&mut self, event: &Event) -> EntryMessage {
        let (first, _) = *self.seqs.get_or_insert((event.seq, event.seq));
        self.seqs = Some((first, event.seq));
        self.message.first_seq = first;
        let (object, sandbox_state) = match &event.subject {
            None => (0, 0),
            Some(Subject::Container(container)) => (self.container(container), 0),
            Some(Subject::Sandbox { id, state }) => {
                let state = match state {
                    None => 0,
                    Some(SandboxState::Ready) => 1,
                    Some(SandboxState::NotReady) => 2,
                };
                (self.object(&id.shared(), 0, 0), state)
            }
        };
        EntryMessage {
            kind: number(&TYPES, event.kind),
            time: 0,
            seq: event.seq.wrapping_sub(first).cast_signed(),
            object,
            sandbox_state,
            pid: event.pid,
            exit_code: event.exit_code,
            reason: event.reason.as_ref().map_or(0, |reason| self.text(reason)),
            initial: event.initial,
            source: number(&SOURCES, event.source),
            lag: event.lag.map(duration),
            trouble: event.trouble.map_or(0, |trouble| self.text(&Arc::from(trouble.name()))),
            lasted: event.lasted.map(duration),
            note: Vec::new(),
        }
    }

    fn pod(&mut self, pod: &PodRef, labels: Option<&Labels>) -> u32 {
        let known = self.pods.get(&pod.uid).copied();
        let at = known.unwrap_or_else(|| {
            let (uid, uid_form) = pack(pod.uid.as_str());
            self.size += uid.len() + pod.namespace.len() + pod.name.len() + 12;
            self.message.pods.push(PodMessage {
                uid,
                uid_form,
                namespace: cut(&pod.namespace).to_owned(),
                name: cut(&pod.name).to_owned(),
                has_labels: false,
                labels: Vec::new(),
            });
            let at = index(self.message.pods.len());
            self.pods.insert(pod.uid.clone(), at);
            at
        });
        if let (Some(labels), Some(message)) = (labels, self.message.pods.get_mut(at as usize - 1)) {
            let mut left = LABELS_LIMIT;
            message.has_labels = true;
            message.labels.clear();
            for (name, value) in &**labels {
                let Some(rest) = left.checked_sub(name.len() + value.len() + 4) else {
                    break;
                };
                left = rest;
                message.labels.extend([name.to_string(), value.to_string()]);
            }
            self.size += LABELS_LIMIT - left;
        }
        at
    }

    fn container(&mut self, container: &ContainerRef) -> u32 {
        let name = self.text(&container.name);
        self.object(&container.id.shared(), name, container.attempt)
    }

    fn object(&mut self, id: &Arc<str>, name: u32, attempt: u32) -> u32 {
        if let Some(&at) = self.objects.get(id)
            && let Some(known) = self.message.objects.get(at as usize - 1)
            && (known.name, known.attempt) == (name, attempt)
        {
            return at;
        }
        let (packed, id_form) = pack(id);
        self.size += packed.len() + 10;
        self.message.objects.push(ObjectMessage {
            id: packed,
            id_form,
            name,
            attempt,
        });
        let at = index(self.message.objects.len());
        self.objects.insert(Arc::clone(id), at);
        at
    }

    fn text(&mut self, text: &Arc<str>) -> u32 {
        if let Some(&at) = self.texts.get(text) {
            return at;
        }
        let cut = cut(text);
        self.size += cut.len() + 2;
        self.message.texts.push(cut.to_owned());
        let at = index(self.message.texts.len());
        self.texts.insert(Arc::clone(text), at);
        at
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }
}

/// A block that was read.
#[derive(Debug)]
pub(crate) struct Block {
    message: BlockMessage,
    pods: Vec<PodRef>,
    /// Containers with their names, or sandboxes.
    objects: Vec<DecodedObject>,
    texts: Vec<Arc<str>>,
}

#[derive(Debug)]
enum DecodedObject {
    Container(ContainerRef),
    Sandbox(Arc<str>),
}

impl Block {
    /// Reads a block; none if it is none of ours. The file is checked by sums, but nothing here trusts that.
    pub(crate) fn decode(bytes: Bytes) -> Option<Self> {
        let mut message = BlockMessage::decode(bytes).ok()?;
        if message.pod_of.len() != message.entries.len() {
            return None;
        }
        let texts: Vec<Arc<str>> = std::mem::take(&mut message.texts).into_iter().map(Arc::from).collect();
        let pods = message.pods.iter().map(|pod| PodRef {
            uid: unpack(&pod.uid, pod.uid_form).as_str().into(),
            namespace: pod.namespace.as_str().into(),
            name: pod.name.as_str().into(),
        });
        let objects = message.objects.iter().map(|object| {
            let id = unpack(&object.id, object.id_form);
            match object.name {
                0 => DecodedObject::Sandbox(id.into()),
                name => DecodedObject::Container(ContainerRef {
                    id: id.as_str().into(),
                    name: get(&texts, name).cloned().unwrap_or_default(),
                    attempt: object.attempt,
                }),
            }
        });
        Some(Self {
            pods: pods.collect(),
            objects: objects.collect(),
            texts,
            message,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.message.entries.len()
    }

    pub(crate) fn first_id(&self) -> u64 {
        self.message.first_id
    }

    pub(crate) fn instance(&self) -> InstanceId {
        InstanceId::new(self.message.instance)
    }

    /// The number of its first event; of a block without events, that of the next one.
    pub(crate) fn next_seq(&self) -> u64 {
        self.message.first_seq
    }

    /// The pods, with the labels of those that have them here.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (&PodRef, Option<Labels>)> {
        self.pods.iter().zip(&self.message.pods).map(|(pod, message)| {
            let pairs = message.labels.chunks_exact(2);
            let pairs = pairs.filter_map(|pair| match pair {
                [name, value] => Some((name.as_str().into(), value.as_str().into())),
                _ => None,
            });
            (pod, message.has_labels.then(|| pairs.collect()))
        })
    }

    /// The pod of an entry, before it is decoded.
    pub(crate) fn pod_of(&self, entry: usize) -> Option<&PodRef> {
        get(&self.pods, *self.message.pod_of.get(entry)?)
    }

    /// Decodes an entry; none if another release wrote it.
    pub(crate) fn entry(&self, at: usize) -> Option<Entry> {
        let entry = EntryMessage::decode(self.message.entries.get(at)?.clone()).ok()?;
        let time = self.message.base_time.checked_add(entry.time)?;
        let time = Timestamp::from_nanosecond(i128::from(time)).ok()?;
        let id = self.message.first_id.checked_add(at as u64)?;
        let pod = self.pod_of(at).cloned();
        let instance = self.instance();
        let what = match entry.kind {
            NOTE => serde_json::from_slice(&entry.note).ok()?,
            STATUS_NOTE => What::PodStatusChanged(PodStatusChanged {
                pod: pod?,
                changes: serde_json::from_slice::<Vec<FieldChange>>(&entry.note).ok()?,
            }),
            _ => {
                let record = Record::Event(Arc::new(self.event(&entry, time, pod)?));
                return Some(Entry { id, record });
            }
        };
        let record = Record::Note(Arc::new(Note { time, instance, what }));
        Some(Entry { id, record })
    }

    fn event(&self, entry: &EntryMessage, time: Timestamp, pod: Option<PodRef>) -> Option<Event> {
        let subject = get(&self.objects, entry.object).map(|object| match object {
            DecodedObject::Container(container) => Subject::Container(container.clone()),
            DecodedObject::Sandbox(id) => Subject::Sandbox {
                id: (&**id).into(),
                state: match entry.sandbox_state {
                    1 => Some(SandboxState::Ready),
                    2 => Some(SandboxState::NotReady),
                    _ => None,
                },
            },
        });
        Some(Event {
            seq: self.message.first_seq.checked_add_signed(entry.seq)?,
            instance: self.instance(),
            time,
            kind: value(&TYPES, entry.kind)?,
            pod,
            subject,
            pid: entry.pid,
            exit_code: entry.exit_code,
            reason: get(&self.texts, entry.reason).cloned(),
            initial: entry.initial,
            source: value(&SOURCES, entry.source)?,
            lag: entry.lag.map(Duration::from_nanos),
            trouble: get(&self.texts, entry.trouble).and_then(|name| Trouble::parse(name)),
            lasted: entry.lasted.map(Duration::from_nanos),
        })
    }
}

fn encode_note(note: &Note) -> EntryMessage {
    let (kind, json) = match &note.what {
        What::PodStatusChanged(changed) => (STATUS_NOTE, serde_json::to_vec(&changed.changes)),
        what => (NOTE, serde_json::to_vec(what)),
    };
    EntryMessage {
        kind,
        // Cannot fail: notes are texts and numbers.
        note: json.unwrap_or_default(),
        ..EntryMessage::default()
    }
}

/// Nanoseconds since 1970. Clocks beyond the year 2262 are at its end.
pub(crate) fn nanos(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

fn duration(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn number<T: PartialEq + Copy>(table: &[(u32, T)], wanted: T) -> u32 {
    table
        .iter()
        .find(|(_, value)| *value == wanted)
        .map_or(u32::MAX, |(number, _)| *number)
}

fn value<T: Copy>(table: &[(u32, T)], wanted: u32) -> Option<T> {
    table
        .iter()
        .find(|(number, _)| *number == wanted)
        .map(|(_, value)| *value)
}

/// The element with this number, which counts from 1.
fn get<T>(table: &[T], number: u32) -> Option<&T> {
    table.get((number as usize).checked_sub(1)?)
}

/// A block has far fewer elements.
fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_LIMIT)]
}

const FORM_TEXT: u32 = 0;
const FORM_HEX: u32 = 1;
const FORM_UUID: u32 = 2;
/// Where a UUID has its hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// An id, in half its length if it is hex digits or a UUID in lower case.
fn pack(id: &str) -> (Vec<u8>, u32) {
    let is_uuid = id.len() == 36 && HYPHENS.iter().all(|&at| id.as_bytes().get(at) == Some(&b'-'));
    let packed = if is_uuid {
        unhex(id.bytes().filter(|&byte| byte != b'-')).filter(|bytes| bytes.len() == 16)
    } else {
        unhex(id.bytes()).filter(|bytes| !bytes.is_empty())
    };
    match packed {
        Some(bytes) if is_uuid => (bytes, FORM_UUID),
        Some(bytes) => (bytes, FORM_HEX),
        None => (cut(id).as_bytes().to_vec(), FORM_TEXT),
    }
}

fn unpack(bytes: &[u8], form: u32) -> String {
    let hex = |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0'));
    match form {
        FORM_HEX => bytes.iter().flat_map(hex).collect(),
        FORM_UUID => {
            let mut text: String = bytes.iter().flat_map(hex).collect();
            for at in HYPHENS {
                if text.len() >= at {
                    text.insert(at, '-');
                }
            }
            text
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn unhex(mut digits: impl Iterator<Item = u8>) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = Vec::new();
    while let Some(high) = digits.next() {
        bytes.push(digit(high)? << 4 | digit(digits.next()?)?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{event, pod};

    #[test]
    fn every_type_and_source_has_a_number() {
        for kind in EventType::ALL {
            assert_eq!(value(&TYPES, number(&TYPES, kind)), Some(kind));
        }
        for (_, source) in SOURCES {
            assert_eq!(value(&SOURCES, number(&SOURCES, source)), Some(source));
        }
    }

    #[test]
    fn ids_come_back_as_they_were() {
        let hex = "0123456789abcdef".repeat(4);
        for (id, length) in [
            (hex.as_str(), 32),
            ("5f0c2a9b-e1d3-4c77-9d5a-0123456789ab", 16),
            ("abc", 3),
            ("ABCD", 4),
            ("", 0),
            ("sandbox-7", 9),
            ("5f0c2a9b-e1d3-4c77-9d5a-0123456789xy", 36),
            ("-f0c2a9be1d3-4c77-9d5a-0123456789ab1", 36),
        ] {
            let (packed, form) = pack(id);
            assert_eq!(unpack(&packed, form), id);
            assert_eq!(packed.len(), length, "{id}");
        }
    }

    #[test]
    fn events_come_back_as_they_were() {
        let mut builder = BlockBuilder::new(100, InstanceId::new(7), 41);
        let events: Vec<_> = (0..200).map(|n| Arc::new(event(InstanceId::new(7), 41 + n))).collect();
        let labels: Labels = Arc::from([("app".into(), "web".into())]);
        for event in &events {
            builder.push(&Record::Event(Arc::clone(event)), Some(&labels));
        }
        let block = Block::decode(builder.encode().into()).unwrap();
        assert_eq!((block.len(), block.first_id()), (200, 100));
        for (n, event) in events.iter().enumerate() {
            let entry = block.entry(n).unwrap();
            assert_eq!(entry.id, 100 + n as u64);
            assert_eq!(entry.event(), Some(event));
            assert_eq!(block.pod_of(n), event.pod.as_ref());
        }
        assert!(block.pods().all(|(_, found)| found.as_ref() == Some(&labels)));
        assert_eq!(builder.seqs, Some((41, 240)));
    }

    #[test]
    fn notes_come_back_as_they_were() {
        let mut builder = BlockBuilder::new(1, InstanceId::new(7), 1);
        let change = FieldChange {
            container: Some("app".into()),
            field: "image".into(),
            from: None,
            to: Some("nginx".into()),
        };
        let notes = [
            What::DaemonStopped { last_seq: 9 },
            What::PodStatusChanged(PodStatusChanged {
                pod: pod(3),
                changes: vec![change],
            }),
        ]
        .map(|what| {
            let time = Timestamp::from_second(1_700_000_000).unwrap();
            let instance = InstanceId::new(7);
            Record::Note(Arc::new(Note { time, instance, what }))
        });
        for note in &notes {
            builder.push(note, None);
        }
        let block = Block::decode(builder.encode().into()).unwrap();
        let read: Vec<_> = (0..2).map(|n| block.entry(n).unwrap().record).collect();
        assert_eq!(read, notes);
    }

    #[test]
    fn garbage_is_refused() {
        for bytes in [&[0xff; 40][..], b"\x0a", &[]] {
            let block = Block::decode(Bytes::copy_from_slice(bytes));
            assert!(block.is_none_or(|block| block.entry(0).is_none()));
        }
    }
}
