//! The index of a segment: which blocks it has, in which of them a pod is, and its sums by hour.
//!
//! Of the segment that is written to, it is in memory, bounded by the length of a slot. Of a sealed one, it is the footer, from which a query
//! reads only the parts that it needs: the table of blocks (64 bytes each), the table of pods (24 bytes each, by hash), and single pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pleg::{InstanceId, PodRef, PodUid};
use prost::Message;
use rustc_hash::FxHashMap;

use crate::codec::{Block, Labels, nanos};
use crate::entry::{EntryType, Record};
use crate::histogram::Histogram;
use crate::hours::{Hour, HourSums, PodDeaths, hour_of, start_of};
use crate::layout::{Extent, Fields, Reader};

/// The length of a [`BlockRow`] in the footer.
pub(crate) const BLOCK_ROW: usize = 64;
/// The length of a [`PodRow`] in the footer.
pub(crate) const POD_ROW: usize = 24;
/// The length of a [`FooterHead`].
pub(crate) const FOOTER_HEAD: usize = 16;

/// One block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRow {
    /// Where its frame begins in the slot, and how long its content is.
    pub(crate) frame: (u32, u32),
    pub(crate) first_id: u64,
    pub(crate) count: u32,
    /// A bit for each type of entry in it.
    pub(crate) types: u32,
    /// The earliest and the latest time.
    pub(crate) times: (i64, i64),
    pub(crate) instance: InstanceId,
    /// The numbers of its first and its last event; the second is less if there is none.
    pub(crate) seqs: (u64, u64),
}

impl BlockRow {
    fn encode(&self, into: &mut Fields) {
        into.u32(self.frame.0)
            .u32(self.frame.1)
            .u64(self.first_id)
            .u32(self.count)
            .u32(self.types)
            .u64(self.times.0.cast_unsigned())
            .u64(self.times.1.cast_unsigned())
            .u64(self.instance.number())
            .u64(self.seqs.0)
            .u64(self.seqs.1);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            frame: (reader.u32()?, reader.u32()?),
            first_id: reader.u64()?,
            count: reader.u32()?,
            types: reader.u32()?,
            times: (reader.u64()?.cast_signed(), reader.u64()?.cast_signed()),
            instance: InstanceId::new(reader.u64()?),
            seqs: (reader.u64()?, reader.u64()?),
        })
    }

    /// The id after its last entry.
    pub(crate) fn end_id(&self) -> u64 {
        self.first_id.saturating_add(u64::from(self.count))
    }
}

/// The bit of a type. Types of later releases share the last one.
pub(crate) fn type_bit(kind: EntryType) -> u32 {
    let at = EntryType::all().position(|one| one == kind).unwrap_or(31);
    1 << at.min(31)
}

/// A pod in the table of a footer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodRow {
    pub(crate) uid_hash: u64,
    pub(crate) name_hash: u64,
    /// Where its details are among the details, and how long they are.
    pub(crate) details: (u32, u32),
}

impl PodRow {
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            uid_hash: reader.u64()?,
            name_hash: reader.u64()?,
            details: (reader.u32()?, reader.u32()?),
        })
    }
}

/// How many of what a footer has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FooterHead {
    pub(crate) blocks: u32,
    pub(crate) pods: u32,
    pub(crate) details: u32,
    pub(crate) hours: u32,
}

impl FooterHead {
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(Self {
            blocks: reader.u32()?,
            pods: reader.u32()?,
            details: reader.u32()?,
            hours: reader.u32()?,
        })
    }

    /// Where the table of pods begins in the footer.
    pub(crate) fn pods_at(self) -> usize {
        FOOTER_HEAD + self.blocks as usize * BLOCK_ROW
    }

    pub(crate) fn details_at(self) -> usize {
        self.pods_at() + self.pods as usize * POD_ROW
    }

    pub(crate) fn hours_at(self) -> usize {
        self.details_at() + self.details as usize
    }

    /// How long the footer has to be.
    pub(crate) fn length(self) -> usize {
        self.hours_at() + self.hours as usize
    }
}

/// A hash that is the same on every machine and in every release: FNV-1a.
pub(crate) fn hash(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// A pod of a segment.
#[derive(Debug, Clone)]
pub(crate) struct PodIndex {
    pub(crate) pod: PodRef,
    pub(crate) labels: Option<Labels>,
    /// The time of its first entry.
    pub(crate) first: i64,
    /// The blocks that it is in, by their place in the table.
    pub(crate) blocks: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct PodDetails {
    #[prost(string, tag = "1")]
    uid: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(bool, tag = "4")]
    has_labels: bool,
    #[prost(string, repeated, tag = "5")]
    labels: Vec<String>,
    #[prost(int64, tag = "6")]
    first: i64,
    /// The first block, and the steps to the next ones.
    #[prost(uint32, repeated, tag = "7")]
    blocks: Vec<u32>,
}

impl PodIndex {
    fn encode(&self) -> Vec<u8> {
        let labels = self.labels.as_deref().unwrap_or_default();
        let mut before = 0;
        let steps = self
            .blocks
            .iter()
            .map(|&block| block - std::mem::replace(&mut before, block));
        let message = PodDetails {
            uid: self.pod.uid.to_string(),
            namespace: self.pod.namespace.to_string(),
            name: self.pod.name.to_string(),
            has_labels: self.labels.is_some(),
            labels: labels
                .iter()
                .flat_map(|(name, value)| [name.to_string(), value.to_string()])
                .collect(),
            first: self.first,
            blocks: steps.collect(),
        };
        message.encode_to_vec()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let message = PodDetails::decode(bytes).ok()?;
        let pairs = message.labels.chunks_exact(2).filter_map(|pair| match pair {
            [name, value] => Some((name.as_str().into(), value.as_str().into())),
            _ => None,
        });
        let mut before = 0_u32;
        let blocks = message.blocks.iter().map(|&step| {
            before = before.saturating_add(step);
            before
        });
        Some(Self {
            pod: PodRef {
                uid: message.uid.as_str().into(),
                namespace: message.namespace.as_str().into(),
                name: message.name.as_str().into(),
            },
            labels: message.has_labels.then(|| pairs.collect()),
            first: message.first,
            blocks: blocks.collect(),
        })
    }

    /// A bound for how many bytes it takes in a footer, without its blocks.
    fn footer_size(pod: &PodRef, labels: Option<&Labels>) -> usize {
        let labels = labels.map(|labels| {
            let pairs = labels.iter();
            pairs.map(|(name, value)| name.len() + value.len() + 6).sum::<usize>()
        });
        POD_ROW + pod.uid.as_str().len() + pod.namespace.len() + pod.name.len() + labels.unwrap_or_default() + 32
    }
}

/// The index of the segment that is written to.
#[derive(Debug, Default)]
pub(crate) struct SegmentIndex {
    pub(crate) blocks: Vec<BlockRow>,
    pub(crate) pods: FxHashMap<PodUid, PodIndex>,
    hours: BTreeMap<i64, HourSums>,
    /// A bound for the details of pods and the places of their blocks.
    pods_size: usize,
}

impl SegmentIndex {
    /// A bound for the length of the footer.
    pub(crate) fn footer_size(&self) -> usize {
        let hours: usize = self.hours.values().map(HourSums::footer_size).sum();
        FOOTER_HEAD + self.blocks.len() * BLOCK_ROW + self.pods_size + hours
    }

    /// What the tail of the segment says.
    pub(crate) fn extent(&self, first_id: u64) -> Extent {
        let times = self.blocks.iter().fold((i64::MAX, i64::MIN), |times, block| {
            (times.0.min(block.times.0), times.1.max(block.times.1))
        });
        let instance = |block: Option<&BlockRow>| block.map_or(0, |block| block.instance.number());
        Extent {
            end_id: self.blocks.last().map_or(first_id, BlockRow::end_id),
            times,
            instances: (instance(self.blocks.first()), instance(self.blocks.last())),
        }
    }

    /// Whether a block with an entry about this pod has to have its labels.
    pub(crate) fn needs_labels(&self, pod: &PodRef) -> bool {
        self.pods.get(&pod.uid).is_none_or(|known| known.labels.is_none())
    }

    /// Takes in a block that was written, with its records in their order.
    pub(crate) fn add<'a>(&mut self, row: BlockRow, records: impl Iterator<Item = (&'a Record, Option<&'a Labels>)>) {
        let at = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        for (record, labels) in records {
            let time = match record {
                Record::Event(event) => event.time,
                Record::Note(note) => note.time,
            };
            self.hours.entry(hour_of(time)).or_default().add(record);
            if let Some(pod) = record.pod() {
                self.add_pod(pod, labels, at, nanos(time));
            }
        }
        self.blocks.push(row);
    }

    fn add_pod(&mut self, pod: &PodRef, labels: Option<&Labels>, block: u32, time: i64) {
        if !self.pods.contains_key(&pod.uid) {
            self.pods_size += PodIndex::footer_size(pod, None);
            let index = PodIndex {
                pod: pod.clone(),
                labels: None,
                first: time,
                blocks: Vec::new(),
            };
            self.pods.insert(pod.uid.clone(), index);
        }
        let Some(index) = self.pods.get_mut(&pod.uid) else {
            return;
        };
        if let Some(labels) = labels {
            self.pods_size += PodIndex::footer_size(pod, Some(labels));
            index.labels = Some(labels.clone());
        }
        if index.blocks.last() != Some(&block) {
            index.blocks.push(block);
            self.pods_size += 5;
        }
    }

    /// Takes in a block that was found in the file.
    pub(crate) fn add_block(&mut self, row: BlockRow, block: &Block) {
        let labels: FxHashMap<&PodUid, Labels> = block
            .pods()
            .filter_map(|(pod, labels)| Some((&pod.uid, labels?)))
            .collect();
        let entries: Vec<_> = (0..block.len()).filter_map(|at| block.entry(at)).collect();
        let records = entries.iter().map(|entry| {
            let labels = entry.pod().and_then(|pod| labels.get(&pod.uid));
            (&entry.record, labels)
        });
        self.add(row, records);
    }

    /// The sums of the hours of the segment, with their numbers.
    pub(crate) fn hours(&self) -> impl Iterator<Item = (i64, Hour)> {
        self.hours.iter().map(|(&number, sums)| (number, sums.finish(number)))
    }

    /// The footer.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut pods: Vec<_> = self
            .pods
            .values()
            .map(|pod| (hash(pod.pod.uid.as_str()), pod))
            .collect();
        pods.sort_unstable_by(|a, b| (a.0, &a.1.pod.uid).cmp(&(b.0, &b.1.pod.uid)));
        let places: FxHashMap<&str, u32> = pods
            .iter()
            .zip(0..)
            .map(|((_, pod), at)| (pod.pod.uid.as_str(), at))
            .collect();
        let (mut rows, mut details) = (Fields::default(), Vec::new());
        for (uid_hash, pod) in &pods {
            let bytes = pod.encode();
            rows.u64(*uid_hash)
                .u64(hash(&pod.pod.name))
                .u32(u32::try_from(details.len()).unwrap_or(u32::MAX))
                .u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            details.extend_from_slice(&bytes);
        }
        let hours = HoursMessage {
            hours: self
                .hours()
                .map(|(number, hour)| encode_hour(number, &hour, &places))
                .collect(),
        };
        let hours = hours.encode_to_vec();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut footer = Fields::default();
        footer
            .u32(count(self.blocks.len()))
            .u32(count(pods.len()))
            .u32(count(details.len()))
            .u32(count(hours.len()));
        for block in &self.blocks {
            block.encode(&mut footer);
        }
        footer.bytes(&rows.0).bytes(&details).bytes(&hours);
        footer.0
    }
}

#[derive(Clone, PartialEq, Message)]
struct HoursMessage {
    #[prost(message, repeated, tag = "1")]
    hours: Vec<HourMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct HourMessage {
    #[prost(sint64, tag = "1")]
    number: i64,
    #[prost(btree_map = "string, uint64", tag = "2")]
    types: BTreeMap<String, u64>,
    #[prost(uint64, tag = "3")]
    initial: u64,
    #[prost(btree_map = "string, uint64", tag = "4")]
    deaths: BTreeMap<String, u64>,
    /// Place in the table of pods, deaths, failures, OOM kills, and again.
    #[prost(uint64, repeated, tag = "5")]
    pods: Vec<u64>,
    #[prost(uint64, tag = "6")]
    other_pods: u64,
    #[prost(uint64, tag = "7")]
    other_deaths: u64,
    #[prost(btree_map = "string, message", tag = "8")]
    troubles: BTreeMap<String, HistogramMessage>,
    #[prost(message, optional, tag = "9")]
    relists: Option<HistogramMessage>,
    #[prost(uint64, tag = "10")]
    failed_relists: u64,
    #[prost(message, optional, tag = "11")]
    lag: Option<HistogramMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramMessage {
    #[prost(uint64, tag = "1")]
    count: u64,
    #[prost(double, tag = "2")]
    max_seconds: f64,
    /// Bucket, count, and again.
    #[prost(uint64, repeated, tag = "3")]
    buckets: Vec<u64>,
}

impl From<&Histogram> for HistogramMessage {
    fn from(histogram: &Histogram) -> Self {
        let pairs = histogram.buckets.iter();
        Self {
            count: histogram.count,
            max_seconds: histogram.max_seconds,
            buckets: pairs.flat_map(|(&bucket, &count)| [u64::from(bucket), count]).collect(),
        }
    }
}

impl From<HistogramMessage> for Histogram {
    fn from(message: HistogramMessage) -> Self {
        let pairs = message.buckets.chunks_exact(2).filter_map(|pair| match *pair {
            [bucket, count] => Some((u8::try_from(bucket).ok()?, count)),
            _ => None,
        });
        Self {
            count: message.count,
            max_seconds: message.max_seconds,
            buckets: pairs.collect(),
        }
    }
}

fn encode_hour(number: i64, hour: &Hour, places: &FxHashMap<&str, u32>) -> HourMessage {
    let pods = hour.pods.iter().filter_map(|pod| {
        let place = places.get(pod.uid.as_str())?;
        Some([u64::from(*place), pod.deaths, pod.failures, pod.oom_kills])
    });
    HourMessage {
        number,
        types: hour.types.clone(),
        initial: hour.initial,
        deaths: hour.deaths.clone(),
        pods: pods.flatten().collect(),
        other_pods: hour.other_pods,
        other_deaths: hour.other_deaths,
        troubles: hour
            .troubles
            .iter()
            .map(|(name, lasted)| (name.clone(), lasted.into()))
            .collect(),
        relists: Some((&hour.relists).into()),
        failed_relists: hour.failed_relists,
        lag: Some((&hour.lag).into()),
    }
}

/// The hours of a footer that are wanted; `pod` finds a pod by its place in the table.
pub(crate) fn decode_hours(
    bytes: &[u8],
    wanted: impl Fn(i64) -> bool,
    pod: impl Fn(u32) -> Option<PodRef>,
) -> Option<Vec<(i64, Hour)>> {
    let message = HoursMessage::decode(bytes).ok()?;
    let hours = message
        .hours
        .into_iter()
        .filter(|hour| wanted(hour.number))
        .map(|hour| {
            let pods = hour.pods.chunks_exact(4).filter_map(|fields| match *fields {
                [place, deaths, failures, oom_kills] => {
                    let pod = pod(u32::try_from(place).ok()?)?;
                    Some(PodDeaths {
                        uid: pod.uid.to_string(),
                        namespace: pod.namespace.to_string(),
                        name: pod.name.to_string(),
                        deaths,
                        failures,
                        oom_kills,
                    })
                }
                _ => None,
            });
            let pods = pods.collect();
            let sums = Hour {
                start: start_of(hour.number),
                partial: false,
                types: hour.types,
                initial: hour.initial,
                deaths: hour.deaths,
                pods,
                other_pods: hour.other_pods,
                other_deaths: hour.other_deaths,
                troubles: hour
                    .troubles
                    .into_iter()
                    .map(|(name, lasted)| (name, lasted.into()))
                    .collect(),
                relists: hour.relists.unwrap_or_default().into(),
                failed_relists: hour.failed_relists,
                lag: hour.lag.unwrap_or_default().into(),
            };
            (hour.number, sums)
        });
    Some(hours.collect())
}

/// A time of the index.
pub(crate) fn timestamp(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default()
}
