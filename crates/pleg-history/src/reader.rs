//! The read half: pages of entries, pods, and sums by hour. Blocking calls, which a daemon makes on threads of their own.
//!
//! A query finds its blocks by the index of each segment: by id, time, type and pod. It decodes those blocks, and in them only the entries
//! that may match.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use pleg::{LabelSelector, PodRef, PodUid};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::codec::{Labels, nanos};
use crate::entry::Entry;
use crate::file::{HistoryError, open_to_read};
use crate::hours::{Hour, HourSums, hour_of, start_of};
use crate::index::{BlockRow, PodIndex, SegmentIndex, decode_hours, hash, timestamp, type_bit};
use crate::layout::Extent;
use crate::query::{Order, PAGE, Page, PodMatch, Query};
use crate::volume::{Segment, Segments, Volume};

/// Blocks that are decoded for one page. A query that matches little returns a short page, and where to go on.
const MOST_BLOCKS: usize = 4096;
/// Pods that [`HistoryReader::pods`] returns.
const MOST_PODS: usize = 20_000;

/// A pod that the history knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPod {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels, as last seen.
    pub labels: BTreeMap<String, String>,
    /// The time of its first entry.
    pub first: Timestamp,
}

/// The file that is read: none while there is none, which is the text why.
pub(crate) type Source = Arc<RwLock<Result<Arc<Volume>, Arc<str>>>>;

/// Reads a history. Cheap to clone; clones read the same file. Calls block on the disk.
#[derive(Debug, Clone)]
pub struct HistoryReader {
    source: Source,
    /// The id after the newest entry.
    written: watch::Receiver<u64>,
}

impl HistoryReader {
    /// Opens a file to read it, with or without a daemon that writes it. Shows what was in it at this moment.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        let volume = open_to_read(path)?;
        let end = volume.segments.read().next_id().unwrap_or_default();
        let (_, written) = watch::channel(end);
        let source = Arc::new(RwLock::new(Ok(Arc::new(volume))));
        Ok(Self { source, written })
    }

    pub(crate) fn new(source: Source, written: watch::Receiver<u64>) -> Self {
        Self { source, written }
    }

    pub(crate) fn volume(&self) -> Result<Arc<Volume>, HistoryError> {
        self.source.read().clone().map_err(HistoryError::Off)
    }

    /// The id after the newest entry; changes whenever something was written. Closed when nothing will be.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.clone()
    }

    /// The entries of a query that come first, and the query for those after them. A page may be short, even empty, while there are more:
    /// `next` decides.
    pub fn page(&self, query: &Query) -> Result<Page, HistoryError> {
        let volume = self.volume()?;
        let search = Search::new(&volume, query).map_err(|error| failed(&volume, error))?;
        search.page(&volume, query).map_err(|error| failed(&volume, error))
    }

    /// All entries of a query, page by page.
    pub fn entries(&self, query: Query) -> Entries {
        Entries {
            reader: self.clone(),
            page: Vec::new().into_iter(),
            next: Some(Box::new(query)),
        }
    }

    /// The pods that `pod`, `namespace` and `labels` of a query match, by namespace and name; at most its limit or 20,000.
    pub fn pods(&self, query: &Query) -> Result<Vec<HistoryPod>, HistoryError> {
        let volume = self.volume()?;
        let mut found: FxHashMap<PodUid, (PodRef, Option<Labels>, i64)> = FxHashMap::default();
        let most = query.limit.unwrap_or(MOST_PODS).min(MOST_PODS);
        each_pod(&volume, |index| {
            let pod = &index.pod;
            if !matches_pod(query, pod) || (found.len() >= most && !found.contains_key(&pod.uid)) {
                return;
            }
            let known = found
                .entry(pod.uid.clone())
                .or_insert_with(|| (pod.clone(), None, index.first));
            // From the newest segment to the oldest: the first labels are the last ones.
            if known.1.is_none() {
                known.1 = index.labels;
            }
            known.2 = known.2.min(index.first);
        })
        .map_err(|error| failed(&volume, error))?;
        let selected = found
            .into_values()
            .filter(|(_, labels, _)| selects(query.labels.as_ref(), labels.as_ref()));
        let mut pods: Vec<HistoryPod> = selected
            .map(|(pod, labels, first)| HistoryPod {
                uid: pod.uid.to_string(),
                namespace: pod.namespace.to_string(),
                name: pod.name.to_string(),
                labels: labels.as_deref().map(pairs).unwrap_or_default(),
                first: timestamp(first),
            })
            .collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, a.first).cmp(&(&b.namespace, &b.name, b.first)));
        Ok(pods)
    }

    /// The sums of the hours that begin at or after the hour of `since`, and before `until`, oldest first; hours in which nothing
    /// happened are left out.
    pub fn hours(&self, since: Option<Timestamp>, until: Option<Timestamp>) -> Result<Vec<Hour>, HistoryError> {
        let volume = self.volume()?;
        let first = since.map_or(i64::MIN, hour_of);
        let wanted = |hour: i64| hour >= first && until.is_none_or(|until| start_of(hour) < until);
        let sums = self
            .sum_hours(&volume, &wanted)
            .map_err(|error| failed(&volume, error))?;
        let oldest = volume.segments.read().oldest_time().map(timestamp);
        let now = hour_of(Timestamp::now());
        let hours = sums.iter().map(|(&number, sums)| {
            let mut hour = sums.finish(number);
            hour.partial = number >= now || oldest.is_some_and(|oldest| hour.start < oldest);
            hour
        });
        Ok(hours.collect())
    }

    #[expect(clippy::unused_self, reason = "a part of `hours`")]
    fn sum_hours(&self, volume: &Volume, wanted: &dyn Fn(i64) -> bool) -> io::Result<BTreeMap<i64, HourSums>> {
        let mut all: BTreeMap<i64, HourSums> = BTreeMap::new();
        let mut add = |hours: Vec<(i64, Hour)>| {
            for (number, hour) in hours {
                all.entry(number).or_default().merge(hour);
            }
        };
        let sealed = {
            let segments = volume.segments.read();
            if let Some(open) = &segments.open {
                add(open.index.hours().filter(|(number, _)| wanted(*number)).collect());
            }
            segments.sealed.clone()
        };
        for segment in sealed {
            let (from, to) = segment.extent.times;
            let hours = hour_of(timestamp(from))..=hour_of(timestamp(to));
            // A segment covers few hours, unless the clock jumped.
            if !hours.clone().take(24 * 31).any(wanted) && hours.end() - hours.start() < 24 * 31 {
                continue;
            }
            if let Some(index) = volume.memory(&segment)? {
                add(index.hours().filter(|(number, _)| wanted(*number)).collect());
                continue;
            }
            let rows = volume.pod_rows(&segment)?;
            let pod = |place: u32| {
                let row = rows.get(place as usize)?;
                let bytes = volume.pod_detail(&segment, row).ok()??;
                PodIndex::decode(&bytes).map(|index| index.pod)
            };
            add(decode_hours(&volume.hours(&segment)?, wanted, pod).unwrap_or_default());
        }
        Ok(all)
    }
}

/// All entries of a query. See [`HistoryReader::entries`].
#[derive(Debug)]
pub struct Entries {
    reader: HistoryReader,
    page: std::vec::IntoIter<Entry>,
    next: Option<Box<Query>>,
}

impl Iterator for Entries {
    type Item = Result<Entry, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                return Some(Ok(entry));
            }
            let query = self.next.take()?;
            match self.reader.page(&query) {
                Ok(page) => {
                    self.page = page.entries.into_iter();
                    self.next = page.next;
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Where blocks are.
#[derive(Debug, Clone)]
enum Place {
    Sealed(Arc<Segment>),
    Open { slot: u32, number: u64 },
}

impl Place {
    fn slot_and_number(&self) -> (u32, u64) {
        match self {
            Self::Sealed(segment) => (segment.slot, segment.head.number),
            Self::Open { slot, number } => (*slot, *number),
        }
    }
}

/// A query with what it takes to find its blocks.
#[derive(Debug)]
struct Search {
    types: u32,
    since: i64,
    until: i64,
    /// Ids from the first, up to but without the second.
    ids: (u64, u64),
    /// The pods whose labels match.
    selected: Option<FxHashSet<PodUid>>,
}

impl Search {
    fn new(volume: &Volume, query: &Query) -> io::Result<Self> {
        let wanted = crate::entry::EntryType::all().filter(|&kind| query.wants_type(kind));
        let selected = match &query.labels {
            Some(selector) => Some(labelled(volume, selector)?),
            None => None,
        };
        Ok(Self {
            types: wanted.map(type_bit).fold(0, |types, bit| types | bit),
            since: query.since.map_or(i64::MIN, nanos),
            until: query.until.map_or(i64::MAX, nanos),
            ids: (
                query.after.map_or(0, |after| after.saturating_add(1)),
                query.before.unwrap_or(u64::MAX),
            ),
            selected,
        })
    }

    fn page(&self, volume: &Volume, query: &Query) -> io::Result<Page> {
        let most = query.limit.unwrap_or(PAGE).min(PAGE);
        let newest_first = query.order == Order::NewestFirst;
        let mut places = self.places(&volume.segments.read());
        if newest_first {
            places.reverse();
        }
        let (mut page, mut decoded) = (Page::default(), 0);
        for place in places {
            let (slot, number) = place.slot_and_number();
            let mut rows = self.rows(volume, &place, query)?;
            if newest_first {
                rows.reverse();
            }
            for row in rows {
                if decoded == MOST_BLOCKS {
                    // Everything before this block, in the order of the query, was looked at.
                    let looked = if newest_first {
                        row.end_id()
                    } else {
                        row.first_id.saturating_sub(1)
                    };
                    page.next = Some(Box::new(rest(query, looked, page.entries.len())));
                    return Ok(page);
                }
                decoded += 1;
                let Some(block) = volume.block(slot, number, &row)? else {
                    continue;
                };
                let count = block.len();
                for n in 0..count {
                    let at = if newest_first { count - 1 - n } else { n };
                    if !self.may_match(query, block.pod_of(at)) {
                        continue;
                    }
                    let Some(entry) = block.entry(at).filter(|entry| query.matches(entry)) else {
                        continue;
                    };
                    if page.entries.len() == most {
                        let last = page.entries.last().map_or(0, |last| last.id);
                        let full = query.limit.is_some_and(|limit| limit <= most);
                        page.next = (!full).then(|| Box::new(rest(query, last, most)));
                        return Ok(page);
                    }
                    page.entries.push(entry);
                }
            }
        }
        Ok(page)
    }

    /// Whether an entry about this pod may match, before it is decoded.
    fn may_match(&self, query: &Query, pod: Option<&PodRef>) -> bool {
        match pod {
            None => !query.is_about_pods(),
            Some(pod) => {
                matches_pod(query, pod)
                    && self
                        .selected
                        .as_ref()
                        .is_none_or(|selected| selected.contains(&pod.uid))
            }
        }
    }

    /// The segments that may have matches, oldest first.
    fn places(&self, segments: &Segments) -> Vec<Place> {
        let fits = |first_id: u64, extent: &Extent| {
            extent.end_id > self.ids.0
                && first_id < self.ids.1
                && extent.times.1 >= self.since
                && extent.times.0 < self.until
        };
        let sealed = segments
            .sealed
            .iter()
            .filter(|segment| fits(segment.head.first_id, &segment.extent));
        let mut places: Vec<Place> = sealed.map(|segment| Place::Sealed(Arc::clone(segment))).collect();
        if let Some(open) = &segments.open {
            places.push(Place::Open {
                slot: open.slot,
                number: open.head.number,
            });
        }
        places
    }

    /// The blocks of a segment that may have matches, oldest first.
    fn rows(&self, volume: &Volume, place: &Place, query: &Query) -> io::Result<Vec<BlockRow>> {
        match place {
            Place::Open { number, .. } => {
                let segments = volume.segments.read();
                let open = segments.open.as_ref().filter(|open| open.head.number == *number);
                if let Some(open) = open {
                    return Ok(self.rows_in_memory(&open.index, query));
                }
                // It was sealed meanwhile.
                let sealed = segments.sealed.iter().find(|segment| segment.head.number == *number);
                let Some(segment) = sealed.cloned() else {
                    return Ok(Vec::new());
                };
                drop(segments);
                self.rows_of(volume, &segment, query)
            }
            Place::Sealed(segment) => self.rows_of(volume, segment, query),
        }
    }

    fn rows_of(&self, volume: &Volume, segment: &Segment, query: &Query) -> io::Result<Vec<BlockRow>> {
        if let Some(index) = volume.memory(segment)? {
            return Ok(self.rows_in_memory(index, query));
        }
        if !query.is_about_pods() {
            let rows = volume.blocks(segment)?;
            return Ok(rows.into_iter().filter(|row| self.fits(row)).collect());
        }
        // First the pods: most segments do not have a given one.
        let mut blocks = Vec::new();
        for_pods(volume, segment, query.pod.as_ref(), |index| {
            if self.may_match(query, Some(&index.pod)) {
                blocks.extend(index.blocks);
            }
        })?;
        if blocks.is_empty() {
            return Ok(Vec::new());
        }
        blocks.sort_unstable();
        blocks.dedup();
        let rows = volume.blocks(segment)?;
        let rows = blocks.iter().filter_map(|&block| rows.get(block as usize));
        Ok(rows.filter(|row| self.fits(row)).copied().collect())
    }

    fn rows_in_memory(&self, index: &SegmentIndex, query: &Query) -> Vec<BlockRow> {
        if !query.is_about_pods() {
            return index.blocks.iter().filter(|row| self.fits(row)).copied().collect();
        }
        let pods: Vec<&PodIndex> = if let Some(PodMatch::Uid(uid)) = &query.pod {
            index.pods.get(uid).into_iter().collect()
        } else {
            index.pods.values().collect()
        };
        let wanted = pods.into_iter().filter(|pod| self.may_match(query, Some(&pod.pod)));
        let mut blocks: Vec<u32> = wanted.flat_map(|pod| pod.blocks.iter().copied()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let rows = blocks.iter().filter_map(|&block| index.blocks.get(block as usize));
        rows.filter(|row| self.fits(row)).copied().collect()
    }

    fn fits(&self, row: &BlockRow) -> bool {
        row.end_id() > self.ids.0
            && row.first_id < self.ids.1
            && row.times.1 >= self.since
            && row.times.0 < self.until
            && row.types & self.types != 0
    }
}

/// The query for what is left after everything up to `looked` was looked at, of which `taken` matched.
fn rest(query: &Query, looked: u64, taken: usize) -> Query {
    let mut rest = query.clone();
    match query.order {
        Order::OldestFirst => rest.after = Some(looked),
        Order::NewestFirst => rest.before = Some(looked),
    }
    rest.limit = query.limit.map(|limit| limit.saturating_sub(taken));
    rest
}

fn matches_pod(query: &Query, pod: &PodRef) -> bool {
    let namespace = query.namespace.as_deref();
    let wanted = query.pod.as_ref();
    namespace.is_none_or(|namespace| *pod.namespace == *namespace)
        && wanted.is_none_or(|wanted| wanted.matches(pod.uid.as_str(), &pod.namespace, &pod.name))
}

fn selects(selector: Option<&LabelSelector>, labels: Option<&Labels>) -> bool {
    let labels = labels.map(|labels| &**labels).unwrap_or_default();
    let value = |name: &str| {
        labels
            .iter()
            .find(|(known, _)| **known == *name)
            .map(|(_, value)| &**value)
    };
    selector.is_none_or(|selector| selector.matches(value))
}

fn pairs(labels: &[(Box<str>, Box<str>)]) -> BTreeMap<String, String> {
    labels
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

/// The pods whose labels, as last seen, match.
fn labelled(volume: &Volume, selector: &LabelSelector) -> io::Result<FxHashSet<PodUid>> {
    let mut last: FxHashMap<PodUid, Option<Labels>> = FxHashMap::default();
    each_pod(volume, |index| {
        let known = last.entry(index.pod.uid).or_default();
        if known.is_none() {
            *known = index.labels;
        }
    })?;
    let matching = last
        .into_iter()
        .filter(|(_, labels)| selects(Some(selector), labels.as_ref()));
    Ok(matching.map(|(uid, _)| uid).collect())
}

/// Every pod of every segment, from the newest segment to the oldest.
fn each_pod(volume: &Volume, mut visit: impl FnMut(PodIndex)) -> io::Result<()> {
    let sealed = {
        let segments = volume.segments.read();
        if let Some(open) = &segments.open {
            open.index.pods.values().cloned().for_each(&mut visit);
        }
        segments.sealed.clone()
    };
    for segment in sealed.iter().rev() {
        for_pods(volume, segment, None, &mut visit)?;
    }
    Ok(())
}

/// The pods of a segment that may be the wanted ones.
fn for_pods(
    volume: &Volume,
    segment: &Segment,
    wanted: Option<&PodMatch>,
    mut visit: impl FnMut(PodIndex),
) -> io::Result<()> {
    if let Some(index) = volume.memory(segment)? {
        index.pods.values().cloned().for_each(visit);
        return Ok(());
    }
    let rows = volume.pod_rows(segment)?;
    let (uid, name) = match wanted {
        Some(PodMatch::Uid(uid)) => (Some(hash(uid.as_str())), None),
        Some(PodMatch::Name { name, .. }) => (None, Some(hash(name))),
        Some(PodMatch::Prefix { .. }) | None => {
            let details = volume.pod_details(segment)?;
            for row in rows {
                let (at, length) = (row.details.0 as usize, row.details.1 as usize);
                let bytes = details.get(at..at.saturating_add(length)).unwrap_or_default();
                if let Some(index) = PodIndex::decode(bytes) {
                    visit(index);
                }
            }
            return Ok(());
        }
    };
    for row in rows {
        if uid == Some(row.uid_hash) || name == Some(row.name_hash) {
            let bytes = volume.pod_detail(segment, &row)?;
            if let Some(index) = bytes.as_deref().and_then(PodIndex::decode) {
                visit(index);
            }
        }
    }
    Ok(())
}

fn failed(volume: &Volume, error: io::Error) -> HistoryError {
    HistoryError::io("read", &volume.path, error)
}
