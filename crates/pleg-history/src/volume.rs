//! The file as both halves see it: which segments there are, and how their blocks are read.
//!
//! The writer ([`crate::store`]) changes what is here; readers take what they need under a lock that is held for no I/O, and then read from the
//! file. A segment may lose its slot to a newer one meanwhile: checksums have the segment's number, so a reader then finds nothing,
//! rather than something else.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;
use pleg::InstanceId;

use crate::codec::Block;
use crate::entry::Entry;
use crate::index::{BLOCK_ROW, BlockRow, FooterHead, POD_ROW, PodRow, SegmentIndex, type_bit};
use crate::layout::{EDGE, Extent, FRAME, Head, SLOT, Tail, frame_head, slot_offset, sum};

/// A history with more slots than this is refused: 64 GiB.
pub(crate) const MOST_SLOTS: u32 = 32 * 1024;

/// A segment that is not written to any more.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) slot: u32,
    pub(crate) head: Head,
    pub(crate) extent: Extent,
    index: Index,
}

#[derive(Debug)]
enum Index {
    Footer {
        /// Where it is in the slot, with its frame.
        at: (u32, u32),
        /// Known once its checksum was verified.
        found: OnceLock<Footer>,
    },
    /// Of a segment without a tail.
    Memory(Box<SegmentIndex>),
}

#[derive(Debug)]
enum Footer {
    Good(FooterHead),
    /// Damaged, or cut short by a crash that left the tail whole: made anew from the blocks, which were durable before it was written.
    Remade(Box<SegmentIndex>),
}

/// The segment that is written to.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) slot: u32,
    pub(crate) head: Head,
    pub(crate) index: SegmentIndex,
    /// Where the next frame begins in the slot.
    pub(crate) used: u64,
}

/// All segments, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    pub(crate) sealed: Vec<Arc<Segment>>,
    pub(crate) open: Option<OpenSegment>,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    // Held to look up or to change what there is; never while the file is read or written.
    pub(crate) segments: RwLock<Segments>,
}

impl Volume {
    /// Finds the segments of a file with a good header. Reads the edges of each slot, and the one segment that is not sealed: the time
    /// that takes does not grow with what the file holds beyond its slots.
    pub(crate) fn load(path: &Path, file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let slots = length.saturating_sub(slot_offset(0)).div_ceil(SLOT);
        let slots = u32::try_from(slots).unwrap_or(u32::MAX).min(MOST_SLOTS);
        let mut found = Vec::new();
        for slot in 0..slots {
            let at = slot_offset(slot);
            let Some(head) = read(&file, at, EDGE)?.as_deref().and_then(Head::decode) else {
                continue;
            };
            let tail = read(&file, at + SLOT - EDGE, EDGE)?;
            let tail = tail.as_deref().and_then(Tail::decode);
            found.push((slot, head, tail.filter(|tail| tail.number == head.number)));
        }
        found.sort_unstable_by_key(|(_, head, _)| head.number);
        let mut segments = Segments::default();
        let last = found.len().saturating_sub(1);
        for (n, (slot, head, tail)) in found.into_iter().enumerate() {
            if let Some(tail) = tail {
                segments.sealed.push(Arc::new(Segment::sealed(slot, head, &tail)));
                continue;
            }
            let open = scan(&file, slot, head)?;
            if n == last {
                segments.open = Some(open);
            } else {
                segments.sealed.push(Arc::new(open.in_memory()));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            segments: RwLock::new(segments),
        })
    }

    /// Somebody removed the file.
    pub(crate) fn is_unlinked(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        self.file.metadata().is_ok_and(|data| data.nlink() == 0)
    }

    /// The content of a frame; none if it is damaged or no longer there.
    fn frame(&self, slot: u32, number: u64, offset: u32, length: u32) -> io::Result<Option<Bytes>> {
        let at = slot_offset(slot) + u64::from(offset);
        let Some(bytes) = read(&self.file, at, FRAME + u64::from(length))? else {
            return Ok(None);
        };
        Ok(content(bytes, number))
    }

    /// A block of a segment; none if it is damaged or no longer there.
    pub(crate) fn block(&self, slot: u32, number: u64, row: &BlockRow) -> io::Result<Option<Block>> {
        let (offset, length) = row.frame;
        let bytes = self.frame(slot, number, offset, length)?;
        Ok(bytes
            .and_then(Block::decode)
            .filter(|block| block.first_id() == row.first_id && block.len() == row.count as usize))
    }

    /// The newest entry.
    pub(crate) fn last_entry(&self) -> io::Result<Option<Entry>> {
        let (open, sealed) = {
            let segments = self.segments.read();
            let open = segments.open.as_ref();
            let open = open.and_then(|open| Some((open.slot, open.head.number, *open.index.blocks.last()?)));
            (open, segments.sealed.last().cloned())
        };
        let (slot, number, row) = match (open, sealed) {
            (Some(place), _) => place,
            (None, None) => return Ok(None),
            (None, Some(segment)) => {
                let rows = self.blocks(&segment)?;
                let Some(row) = rows.last() else {
                    return Ok(None);
                };
                (segment.slot, segment.head.number, *row)
            }
        };
        let block = self.block(slot, number, &row)?;
        Ok(block.and_then(|block| block.entry(block.len().checked_sub(1)?)))
    }

    /// The last block of all.
    pub(crate) fn last_row(&self) -> io::Result<Option<BlockRow>> {
        let newest = {
            let segments = self.segments.read();
            if let Some(row) = segments.open.as_ref().and_then(|open| open.index.blocks.last()) {
                return Ok(Some(*row));
            }
            segments.sealed.last().cloned()
        };
        match newest {
            Some(segment) => Ok(self.blocks(&segment)?.last().copied()),
            None => Ok(None),
        }
    }

    /// The blocks of a segment.
    pub(crate) fn blocks(&self, segment: &Segment) -> io::Result<Vec<BlockRow>> {
        if let Some(index) = self.memory(segment)? {
            return Ok(index.blocks.clone());
        }
        let Some(head) = self.footer(segment)? else {
            return Ok(Vec::new());
        };
        let length = head.blocks as usize * BLOCK_ROW;
        let bytes = self.footer_part(segment, crate::index::FOOTER_HEAD, length)?;
        let bytes = bytes.unwrap_or_default();
        let mut reader = crate::layout::Reader(&bytes);
        Ok(std::iter::from_fn(|| BlockRow::decode(&mut reader)).collect())
    }

    /// The index of a segment, if it is in memory and not in the file.
    pub(crate) fn memory<'a>(&self, segment: &'a Segment) -> io::Result<Option<&'a SegmentIndex>> {
        match &segment.index {
            Index::Memory(index) => Ok(Some(index)),
            Index::Footer { at, found } => match self.find_footer(segment, *at, found)? {
                Footer::Remade(index) => Ok(Some(index)),
                Footer::Good(_) => Ok(None),
            },
        }
    }

    /// The table of pods of a sealed segment.
    pub(crate) fn pod_rows(&self, segment: &Segment) -> io::Result<Vec<PodRow>> {
        let Some(head) = self.footer(segment)? else {
            return Ok(Vec::new());
        };
        let bytes = self.footer_part(segment, head.pods_at(), head.pods as usize * POD_ROW)?;
        let bytes = bytes.unwrap_or_default();
        let mut reader = crate::layout::Reader(&bytes);
        Ok(std::iter::from_fn(|| PodRow::decode(&mut reader)).collect())
    }

    /// The details of all pods of a sealed segment.
    pub(crate) fn pod_details(&self, segment: &Segment) -> io::Result<Vec<u8>> {
        let Some(head) = self.footer(segment)? else {
            return Ok(Vec::new());
        };
        let bytes = self.footer_part(segment, head.details_at(), head.details as usize)?;
        Ok(bytes.unwrap_or_default())
    }

    /// The details of one pod of a sealed segment.
    pub(crate) fn pod_detail(&self, segment: &Segment, row: &PodRow) -> io::Result<Option<Vec<u8>>> {
        let Some(head) = self.footer(segment)? else {
            return Ok(None);
        };
        let at = head.details_at() + row.details.0 as usize;
        self.footer_part(segment, at, row.details.1 as usize)
    }

    /// The sums by hour of a sealed segment.
    pub(crate) fn hours(&self, segment: &Segment) -> io::Result<Vec<u8>> {
        let Some(head) = self.footer(segment)? else {
            return Ok(Vec::new());
        };
        let bytes = self.footer_part(segment, head.hours_at(), head.hours as usize)?;
        Ok(bytes.unwrap_or_default())
    }

    /// What the footer of a sealed segment has; none if its index is in memory.
    fn footer(&self, segment: &Segment) -> io::Result<Option<FooterHead>> {
        let Index::Footer { at, found } = &segment.index else {
            return Ok(None);
        };
        match self.find_footer(segment, *at, found)? {
            Footer::Good(head) => Ok(Some(*head)),
            Footer::Remade(_) => Ok(None),
        }
    }

    /// Verifies the whole footer when it is first used; later parts of it are read alone.
    fn find_footer<'a>(
        &self,
        segment: &Segment,
        (offset, length): (u32, u32),
        found: &'a OnceLock<Footer>,
    ) -> io::Result<&'a Footer> {
        if let Some(found) = found.get() {
            return Ok(found);
        }
        let length = length.saturating_sub(u32::try_from(FRAME).unwrap_or_default());
        let bytes = self.frame(segment.slot, segment.head.number, offset, length)?;
        let head = bytes.and_then(|bytes| {
            let head = FooterHead::decode(&bytes)?;
            (head.length() == bytes.len()).then_some(head)
        });
        let footer = if let Some(head) = head {
            Footer::Good(head)
        } else {
            // Blocks of another segment that has the slot by now are not found.
            let index = scan(&self.file, segment.slot, segment.head)?.index;
            tracing::warn!(
                file = %self.path.display(),
                segment = segment.head.number,
                blocks = index.blocks.len(),
                "an index of the history is damaged or gone; reading its part from the beginning"
            );
            Footer::Remade(Box::new(index))
        };
        Ok(found.get_or_init(|| footer))
    }

    fn footer_part(&self, segment: &Segment, at: usize, length: usize) -> io::Result<Option<Vec<u8>>> {
        let Index::Footer { at: footer, .. } = &segment.index else {
            return Ok(None);
        };
        let at = slot_offset(segment.slot) + u64::from(footer.0) + FRAME + at as u64;
        read(&self.file, at, length as u64)
    }
}

impl Segment {
    /// A segment that was just sealed.
    pub(crate) fn sealed(slot: u32, head: Head, tail: &Tail) -> Self {
        Self {
            slot,
            head,
            extent: tail.extent,
            index: Index::Footer {
                at: tail.footer,
                found: OnceLock::new(),
            },
        }
    }
}

impl OpenSegment {
    pub(crate) fn in_memory(self) -> Segment {
        Segment {
            slot: self.slot,
            head: self.head,
            extent: self.index.extent(self.head.first_id),
            index: Index::Memory(Box::new(self.index)),
        }
    }

    /// The id of the next entry.
    pub(crate) fn next_id(&self) -> u64 {
        self.index.blocks.last().map_or(self.head.first_id, BlockRow::end_id)
    }
}

impl Segments {
    /// The id of the next entry; none in an empty file.
    pub(crate) fn next_id(&self) -> Option<u64> {
        let sealed = self.sealed.last().map(|segment| segment.extent.end_id);
        self.open.as_ref().map(OpenSegment::next_id).or(sealed)
    }

    /// The id of the oldest entry.
    pub(crate) fn first_id(&self) -> Option<u64> {
        let open = self.open.as_ref().map(|open| open.head.first_id);
        self.sealed.first().map(|segment| segment.head.first_id).or(open)
    }

    /// The time of the oldest entry.
    pub(crate) fn oldest_time(&self) -> Option<i64> {
        let sealed = self.sealed.first().map(|segment| segment.extent.times.0);
        sealed.or_else(|| {
            let open = self.open.as_ref()?;
            open.index.blocks.first().map(|row| row.times.0)
        })
    }
}

/// Reads the blocks of a segment that is not sealed, up to the first that a crash cut short.
fn scan(file: &File, slot: u32, head: Head) -> io::Result<OpenSegment> {
    let mut open = OpenSegment {
        slot,
        head,
        index: SegmentIndex::default(),
        used: EDGE,
    };
    // The whole slot at once: it is small, and most of it is to be read.
    let bytes = read_up_to(file, slot_offset(slot), SLOT - EDGE)?;
    let bytes = Bytes::from(bytes);
    loop {
        let at = usize::try_from(open.used).unwrap_or(usize::MAX);
        let Some(start) = bytes.get(at..at + 8).and_then(|start| start.try_into().ok()) else {
            break;
        };
        let (length, _) = frame_head(start);
        let end = at + 8 + length as usize;
        if length == 0 || end > bytes.len() {
            break;
        }
        let Some(content) = content(bytes.slice(at..end), head.number) else {
            break;
        };
        // A footer without a tail is no block either.
        let Some(block) = Block::decode(content).filter(|block| block.first_id() == open.next_id()) else {
            break;
        };
        let offset = u32::try_from(at).unwrap_or(u32::MAX);
        let Some(row) = describe(&block, (offset, length), open.index.blocks.last()) else {
            break;
        };
        open.index.add_block(row, &block);
        open.used = end as u64;
    }
    Ok(open)
}

/// The row of a block that was read. None if it is empty.
fn describe(block: &Block, frame: (u32, u32), before: Option<&BlockRow>) -> Option<BlockRow> {
    let count = u32::try_from(block.len()).ok().filter(|&count| count > 0)?;
    let (mut times, mut types, mut seqs) = ((i64::MAX, i64::MIN), 0, None);
    for entry in (0..block.len()).filter_map(|at| block.entry(at)) {
        let time = crate::codec::nanos(entry.time());
        times = (times.0.min(time), times.1.max(time));
        types |= type_bit(entry.kind());
        if let Some(event) = entry.event() {
            let (first, _) = *seqs.get_or_insert((event.seq, event.seq));
            seqs = Some((first, event.seq));
        }
    }
    let instance = block.instance();
    Some(BlockRow {
        frame,
        first_id: block.first_id(),
        count,
        types,
        times,
        instance,
        seqs: seqs.unwrap_or_else(|| no_events(block.next_seq(), instance, before)),
    })
}

/// The numbers of a block without events: the next one, and the last one before it.
fn no_events(stored: u64, instance: InstanceId, before: Option<&BlockRow>) -> (u64, u64) {
    let next = match before {
        Some(before) if before.instance == instance => before.seqs.1.saturating_add(1),
        _ => stored.max(1),
    };
    (next, next.saturating_sub(1))
}

fn content(bytes: impl Into<Bytes>, number: u64) -> Option<Bytes> {
    let bytes = bytes.into();
    let (length, wanted) = frame_head(bytes.get(..8)?.try_into().ok()?);
    let content = bytes.slice(8..);
    (content.len() == length as usize && sum(&content, number) == wanted).then_some(content)
}

/// Reads so many bytes; none if the file ends before that.
pub(crate) fn read(file: &File, at: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
    if length > SLOT {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    match file.read_exact_at(&mut bytes, at) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads so many bytes, or those up to the end of the file.
fn read_up_to(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
