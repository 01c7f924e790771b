//! The write half: appends batches, seals segments, and gives the slots of the oldest to new ones.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{Cursor, InstanceId, PodRef, PodUid};
use rustc_hash::FxHashSet;
use rustix::fs::{FallocateFlags, fallocate};

use crate::codec::{BlockBuilder, Labels, nanos};
use crate::entry::{EntryType, Previous, Record, What};
use crate::index::{BlockRow, SegmentIndex};
use crate::layout::{EDGE, FRAME, HEADER, Head, SLOT, Tail, frame, slot_offset};
use crate::volume::{MOST_SLOTS, OpenSegment, Segment, Volume};

/// The least size that is useful: a few segments.
pub const LEAST_SIZE: u64 = 8 << 20;
/// A segment is sealed when it is this part of the age old, so that the age holds on a node where little happens.
const PARTS_OF_AGE: i64 = 8;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The file is at most this large; at least [`LEAST_SIZE`].
    pub size: u64,
    /// Entries older than this are dropped, a segment at a time, when others are written.
    pub age: Duration,
}

impl Default for Limits {
    /// 256 MiB, 7 days.
    fn default() -> Self {
        Self {
            size: 256 << 20,
            age: Duration::from_hours(7 * 24),
        }
    }
}

impl Limits {
    fn slots(&self) -> usize {
        let slots = self.size.max(LEAST_SIZE).saturating_sub(HEADER) / SLOT;
        usize::try_from(slots).unwrap_or(usize::MAX).min(MOST_SLOTS as usize)
    }

    fn age(&self) -> i64 {
        i64::try_from(self.age.as_nanos()).unwrap_or(i64::MAX)
    }
}

/// What is written with the first entry of a pod in a segment.
pub trait PodLabels {
    /// The labels of a pod, if they are known.
    fn labels(&self, uid: &PodUid) -> Option<Labels>;
}

/// The write half of a [`Volume`].
#[derive(Debug)]
pub(crate) struct Store {
    volume: Arc<Volume>,
    limits: Limits,
    instance: InstanceId,
    /// The number of the next event.
    next_seq: u64,
}

impl Store {
    /// Writes for this instance, whose next event has this number.
    pub(crate) fn new(volume: Arc<Volume>, limits: Limits, instance: InstanceId, next_seq: u64) -> Self {
        Self {
            volume,
            limits,
            instance,
            next_seq,
        }
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The instance that wrote last, before this one.
    pub(crate) fn previous(volume: &Volume) -> io::Result<Option<Previous>> {
        let Some(row) = volume.last_row()? else {
            return Ok(None);
        };
        let last = Cursor {
            instance: row.instance,
            seq: row.seqs.1,
        };
        let clean = match volume.last_entry()?.as_ref().and_then(|entry| entry.note()) {
            Some(What::DaemonStopped { last_seq }) => *last_seq == last.seq,
            _ => false,
        };
        Ok(Some(Previous { last, clean }))
    }

    /// Writes records, and makes them durable with one sync. Returns how many were written: fewer than there are if a segment became full,
    /// so that a batch never needs a second sync. After an error none were, as far as readers are concerned, and the same records
    /// can be tried again.
    pub(crate) fn append(&mut self, records: &[Record], pods: &dyn PodLabels) -> io::Result<usize> {
        let now = nanos(Timestamp::now());
        self.drop_old(now);
        let mut draft = match self.continue_segment(now) {
            Some(draft) => draft,
            None => self.new_segment(now)?,
        };
        self.fill(&mut draft, records, pods);
        if draft.rows.is_empty() && !records.is_empty() && !draft.is_new {
            draft = self.new_segment(now)?;
            self.fill(&mut draft, records, pods);
        }
        let file = &self.volume.file;
        file.write_all_at(&draft.bytes, slot_offset(draft.slot) + draft.start)?;
        file.sync_data()?;
        Ok(self.commit(draft, records))
    }

    /// The segment that is written to; none if there is none, or it is to be sealed because of its age.
    fn continue_segment(&self, now: i64) -> Option<Draft> {
        let segments = self.volume.segments.read();
        let open = segments.open.as_ref()?;
        let is_old = now.saturating_sub(open.head.created) > self.limits.age() / PARTS_OF_AGE;
        (!is_old || open.index.blocks.is_empty()).then(|| Draft {
            slot: open.slot,
            head: open.head,
            is_new: false,
            start: open.used,
            bytes: Vec::new(),
            next_id: open.next_id(),
            footer_size: open.index.footer_size(),
            labelled: FxHashSet::default(),
            rows: Vec::new(),
        })
    }

    /// Seals the segment that is written to, and begins the next one. Its head is written with its first block.
    fn new_segment(&self, now: i64) -> io::Result<Draft> {
        self.seal()?;
        let mut segments = self.volume.segments.write();
        let slots = self.limits.slots();
        let mut dropped = Vec::new();
        while segments.sealed.len() >= slots {
            dropped.push(segments.sealed.remove(0));
        }
        let number = segments.sealed.last().map_or(1, |last| last.head.number + 1);
        let used: FxHashSet<u32> = segments.sealed.iter().map(|segment| segment.slot).collect();
        let slot = (0..MOST_SLOTS).find(|slot| !used.contains(slot)).unwrap_or_default();
        let next_id = segments
            .next_id()
            .or(dropped.last().map(|segment| segment.extent.end_id))
            .unwrap_or_else(|| u64::try_from(now / 1000).unwrap_or(1));
        drop(segments);
        // The limit may be lower than it was.
        for segment in dropped.iter().filter(|segment| segment.slot != slot) {
            self.release(segment.slot);
        }
        let head = Head {
            number,
            first_id: next_id,
            created: now,
        };
        Ok(Draft {
            slot,
            head,
            is_new: true,
            start: 0,
            bytes: head.encode(),
            next_id,
            footer_size: 0,
            labelled: FxHashSet::default(),
            rows: Vec::new(),
        })
    }

    /// Writes the footer and the tail of the segment that is written to. Its blocks are durable already, so that a crash costs no
    /// more than the footer, which readers make anew: also if the tail reached the disk, and the footer did not.
    fn seal(&self) -> io::Result<()> {
        let sealed = {
            let segments = self.volume.segments.read();
            let Some(open) = &segments.open else {
                return Ok(());
            };
            let mut footer = Vec::new();
            frame(open.head.number, &open.index.encode(), &mut footer);
            let at = |offset: u64| u32::try_from(offset).unwrap_or(u32::MAX);
            let tail = Tail {
                number: open.head.number,
                footer: (at(open.used), at(footer.len() as u64)),
                extent: open.index.extent(open.head.first_id),
            };
            (open.slot, open.head, open.used, footer, tail)
        };
        let (slot, head, used, footer, tail) = sealed;
        let fits = used + footer.len() as u64 <= SLOT - EDGE;
        if fits {
            let (file, at) = (&self.volume.file, slot_offset(slot));
            file.write_all_at(&footer, at + used)?;
            file.write_all_at(&tail.encode(), at + SLOT - EDGE)?;
        }
        let mut segments = self.volume.segments.write();
        if let Some(open) = segments.open.take() {
            // The bound of a footer is generous. Should it be wrong, the segment is as one whose footer is damaged.
            let segment = if fits {
                Segment::sealed(slot, head, &tail)
            } else {
                open.in_memory()
            };
            segments.sealed.push(Arc::new(segment));
        }
        Ok(())
    }

    /// Adds blocks of the records to the draft, as many as fit.
    fn fill(&self, draft: &mut Draft, records: &[Record], pods: &dyn PodLabels) {
        let segments = self.volume.segments.read();
        let index = segments.open.as_ref().filter(|_| !draft.is_new).map(|open| &open.index);
        let mut next_seq = self.next_seq;
        let mut written = 0;
        while written < records.len() {
            let mut block = BlockBuilder::new(draft.next_id, self.instance, next_seq);
            let mut labels = Vec::new();
            for record in &records[written..] {
                if block.is_full() {
                    break;
                }
                let found = record.pod().and_then(|pod| draft.labels(pod, record, index, pods));
                block.push(record, found.as_ref());
                labels.push(found);
            }
            let content = block.encode();
            let needed = content.len() + draft.footer_size + block.footer_size();
            let room = usize::try_from((SLOT - EDGE - 2 * FRAME).saturating_sub(draft.end())).unwrap_or_default();
            // A segment without any block takes whatever comes: the largest block is far smaller than a slot.
            if needed > room && !(draft.is_new && draft.rows.is_empty()) {
                break;
            }
            let seqs = block.seqs.unwrap_or((next_seq, next_seq.saturating_sub(1)));
            let row = BlockRow {
                frame: (
                    u32::try_from(draft.end()).unwrap_or(u32::MAX),
                    u32::try_from(content.len()).unwrap_or(u32::MAX),
                ),
                first_id: draft.next_id,
                count: u32::try_from(block.len()).unwrap_or(u32::MAX),
                types: block.types,
                times: block.times,
                instance: self.instance,
                seqs,
            };
            frame(draft.head.number, &content, &mut draft.bytes);
            draft.footer_size += block.footer_size();
            draft.next_id += block.len() as u64;
            next_seq = seqs.1 + 1;
            written += block.len();
            draft.rows.push((row, labels));
        }
    }

    /// Readers see what was written.
    fn commit(&mut self, draft: Draft, records: &[Record]) -> usize {
        let mut segments = self.volume.segments.write();
        let used = draft.end();
        if draft.is_new {
            segments.open = Some(OpenSegment {
                slot: draft.slot,
                head: draft.head,
                index: SegmentIndex::default(),
                used,
            });
        }
        let Some(open) = &mut segments.open else {
            return 0;
        };
        open.used = used;
        let mut written = 0;
        for (row, labels) in draft.rows {
            let batch = &records[written..written + labels.len()];
            written += labels.len();
            open.index.add(row, batch.iter().zip(labels.iter().map(Option::as_ref)));
            self.next_seq = row.seqs.1 + 1;
        }
        written
    }

    /// Drops segments whose newest entry is too old. Best effort: what cannot be dropped now is dropped later.
    fn drop_old(&self, now: i64) {
        let limit = now.saturating_sub(self.limits.age());
        loop {
            let slot = {
                let mut segments = self.volume.segments.write();
                match segments.sealed.first() {
                    Some(oldest) if oldest.extent.times.1 < limit => segments.sealed.remove(0).slot,
                    _ => return,
                }
            };
            self.release(slot);
        }
    }

    /// Gives the space of a slot back: the file has a hole there, or ends before it.
    fn release(&self, slot: u32) {
        let (file, at) = (&self.volume.file, slot_offset(slot));
        // Without its head a segment is gone, whatever else is left of it.
        let head = file.write_all_at(&[0; 128], at);
        if let Err(error) = head {
            tracing::warn!(file = %self.volume.path.display(), %error, "cannot drop an old part of the history");
            return;
        }
        let last = {
            let segments = self.volume.segments.read();
            let sealed = segments.sealed.iter().map(|segment| segment.slot);
            sealed.chain(segments.open.as_ref().map(|open| open.slot)).max()
        };
        let end = last.map_or(HEADER, |last| slot_offset(last) + SLOT);
        // Not every file system can make holes; then the space is used again later.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = if end <= at {
            file.set_len(end)
        } else {
            fallocate(file, flags, at, SLOT).map_err(Into::into)
        };
    }
}

/// What one batch adds to a segment.
#[derive(Debug)]
struct Draft {
    slot: u32,
    head: Head,
    /// The segment is not in the file yet.
    is_new: bool,
    /// Where the bytes go in the slot.
    start: u64,
    bytes: Vec<u8>,
    next_id: u64,
    /// A bound for the footer with these blocks.
    footer_size: usize,
    /// Pods whose labels the batch has.
    labelled: FxHashSet<PodUid>,
    /// Blocks, each with the labels of its entries' pods where they were written.
    rows: Vec<(BlockRow, Vec<Option<Labels>>)>,
}

impl Draft {
    /// Where the next frame begins in the slot.
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// The labels of a record's pod, if they have to be written with it: for the first entry of a pod in the segment, and if they changed.
    fn labels(
        &mut self,
        pod: &PodRef,
        record: &Record,
        index: Option<&SegmentIndex>,
        pods: &dyn PodLabels,
    ) -> Option<Labels> {
        let known = self.labelled.contains(&pod.uid) || index.is_some_and(|index| !index.needs_labels(pod));
        if known && record.kind() != EntryType::PodStatusChanged {
            return None;
        }
        let labels = pods.labels(&pod.uid)?;
        self.labelled.insert(pod.uid.clone());
        Some(labels)
    }
}
