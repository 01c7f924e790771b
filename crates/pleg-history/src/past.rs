//! What the feed reads on from: the events after a cursor, of its instance and of later ones.

use std::io;
use std::time::Duration;

use pleg::{Cursor, EventHistory, Gap, GapReason, Item, Past, PastFuture};
use tokio::time::{Instant, timeout_at};

use crate::entry::{DaemonStarted, Entry, EntryType, Record, What};
use crate::file::HistoryError;
use crate::index::BlockRow;
use crate::query::Query;
use crate::reader::HistoryReader;
use crate::recorder::Running;
use crate::volume::Volume;

/// Entries that one call returns.
const BATCH: usize = 512;
/// How long events are waited for that the feed has dropped and that are not written yet: longer than between two writes.
const PATIENCE: Duration = Duration::from_secs(3);

/// The history, as the feed of a running generator uses it.
#[derive(Debug, Clone)]
pub(crate) struct FeedSource {
    pub(crate) reader: HistoryReader,
    pub(crate) running: Running,
}

impl EventHistory for FeedSource {
    fn after(&self, cursor: Cursor, place: u64) -> PastFuture {
        let source = self.clone();
        Box::pin(async move {
            let mut written = source.reader.written();
            let until = Instant::now() + PATIENCE;
            loop {
                written.borrow_and_update();
                let found = source.read_aside(cursor, place).await;
                let is_behind = found
                    .as_ref()
                    .is_some_and(|past| past.items.is_empty() && past.next == cursor && source.is_running(cursor));
                // What the feed has already dropped is about to be written.
                if !is_behind || !matches!(timeout_at(until, written.changed()).await, Ok(Ok(()))) {
                    return found;
                }
            }
        })
    }
}

impl FeedSource {
    /// Reads on another thread: it reads from the disk, and callers may share the generator's.
    async fn read_aside(&self, cursor: Cursor, place: u64) -> Option<Past> {
        let source = self.clone();
        let read = tokio::task::spawn_blocking(move || source.read(cursor, place)).await;
        match read {
            Ok(Ok(past)) => past,
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot read older events from the history"
                );
                None
            }
            Err(_) => None,
        }
    }

    fn is_running(&self, cursor: Cursor) -> bool {
        let running = self.running.get();
        running.is_some_and(|(instance, _)| instance == cursor.instance)
    }

    fn read(&self, cursor: Cursor, place: u64) -> Result<Option<Past>, HistoryError> {
        let volume = self.reader.volume()?;
        let (at, place) = match place {
            0 => match self.locate(&volume, cursor) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(None),
                Err(error) => return Err(HistoryError::io("read", &volume.path, error)),
            },
            place => (cursor, place),
        };
        let mut reading = Reading {
            at,
            place,
            items: Vec::new(),
        };
        let types: Vec<EntryType> = EntryType::all().filter(|&kind| wants(kind)).collect();
        // Until there is something for the reader: it may be in the middle of a block, or at the end of an instance.
        let is_end = loop {
            let page = self.reader.page(&Query {
                after: Some(reading.place),
                types: types.clone(),
                limit: Some(BATCH),
                ..Query::default()
            })?;
            for entry in &page.entries {
                reading.take(entry);
            }
            let is_end = page.next.is_none() && page.entries.len() < BATCH;
            let looked = page.next.and_then(|next| next.after).unwrap_or_default();
            reading.place = reading.place.max(looked);
            if is_end || !reading.items.is_empty() {
                break is_end;
            }
        };
        if is_end && let Some((instance, started)) = self.running.get() {
            // What the running instance has written begins with its start, unless it has not written yet.
            if reading.at.instance != instance {
                reading.started(instance, &started);
            }
        }
        Ok(Some(Past {
            items: reading.items,
            next: reading.at,
            place: reading.place,
        }))
    }

    /// Where a cursor is: itself, or the cursor that it stands for, and the id after which to read. None if its instance is not known.
    fn locate(&self, volume: &Volume, cursor: Cursor) -> io::Result<Option<(Cursor, u64)>> {
        let running = self.running.get();
        let is_number = running
            .as_ref()
            .is_some_and(|(instance, started)| cursor.instance == *instance && cursor.seq + 1 < started.first_seq);
        let fits = |row: &BlockRow| {
            if is_number {
                // Of several instances with the number, the newest.
                row.instance != cursor.instance && row.seqs.0 <= cursor.seq && cursor.seq <= row.seqs.1
            } else {
                row.instance == cursor.instance
            }
        };
        let (open, sealed) = {
            let segments = volume.segments.read();
            let open = segments.open.as_ref().map(|open| open.index.blocks.clone());
            (open.unwrap_or_default(), segments.sealed.clone())
        };
        let mut found: Option<BlockRow> = None;
        // The oldest block that has a later event of the instance; else the newest block of the instance.
        let mut visit = |rows: &[BlockRow]| {
            for row in rows.iter().rev().filter(|row| fits(row)) {
                if found.is_none() || (!is_number && row.seqs.1 > cursor.seq) {
                    found = Some(*row);
                }
            }
        };
        visit(&open);
        for segment in sealed.iter().rev() {
            let (first, last) = segment.extent.instances;
            let wanted = cursor.instance.number();
            // Other instances may lie between the first and the last.
            if is_number || first != last || first == wanted {
                visit(&volume.blocks(segment)?);
            }
        }
        if let (None, Some((instance, started))) = (found, &running)
            && cursor.instance == *instance
            && cursor.seq + 1 == started.first_seq
        {
            // Nothing is written yet.
            let end = volume.segments.read().next_id().unwrap_or(1);
            return Ok(Some((cursor, end.saturating_sub(1))));
        }
        Ok(found.map(|row| {
            let at = row.instance.at(cursor.seq);
            let after = if row.seqs.1 > cursor.seq {
                row.first_id.saturating_sub(1)
            } else {
                row.end_id().saturating_sub(1)
            };
            (at, after)
        }))
    }
}

/// Entries that matter to a reader of events.
fn wants(kind: EntryType) -> bool {
    matches!(kind, EntryType::Event(_) | EntryType::DaemonStarted)
}

/// A reader of the history, on its way.
#[derive(Debug)]
struct Reading {
    at: Cursor,
    /// The id of the last entry that was read.
    place: u64,
    items: Vec<Item>,
}

impl Reading {
    fn take(&mut self, entry: &Entry) {
        self.place = entry.id;
        match &entry.record {
            Record::Event(event) => {
                if event.instance != self.at.instance {
                    // The beginning of that instance was lost with a damaged part of the file.
                    self.restarted(event.instance.at(event.seq.saturating_sub(1)));
                }
                if event.seq <= self.at.seq {
                    return;
                }
                if event.seq > self.at.seq + 1 {
                    self.items.push(Item::Gap(Gap {
                        from: self.at.seq + 1,
                        to: event.seq - 1,
                        instance: event.instance,
                        reason: GapReason::Overflow,
                        after: None,
                    }));
                }
                self.at = event.cursor();
                self.items.push(Item::Event(event.clone()));
            }
            Record::Note(note) => {
                if let What::DaemonStarted(started) = &note.what
                    && note.instance != self.at.instance
                {
                    self.started(note.instance, started);
                }
            }
        }
    }

    /// The next instance begins. Nothing is missing if the one before it ended cleanly where the reader is.
    fn started(&mut self, instance: pleg::InstanceId, started: &DaemonStarted) {
        let begin = instance.at(started.first_seq.saturating_sub(1));
        let whole = started
            .previous
            .is_some_and(|previous| previous.clean && previous.last == self.at);
        if whole {
            self.at = begin;
        } else {
            self.restarted(begin);
        }
    }

    fn restarted(&mut self, begin: Cursor) {
        self.items.push(Item::Gap(Gap {
            from: begin.seq + 1,
            to: begin.seq,
            instance: begin.instance,
            reason: GapReason::Restarted,
            after: Some(self.at),
        }));
        self.at = begin;
    }
}
