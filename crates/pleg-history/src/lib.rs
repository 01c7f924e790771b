//! What happened on a node, kept in one file that is bounded by size and age.
//!
//! A daemon opens a [`History`] before its generator, gives [`History::feed`] to the generator's configuration, and records with
//! [`History::record`] what that publishes. [`HistoryReader`] answers a [`Query`] with [`Entry`]s, in the daemon or, with no daemon, from the file.
//!
//! # Why its own format
//!
//! What is written is a log: appended once a second, read by time and by pod, and dropped from its oldest end. A general store (redb, which
//! `pleg-node` uses for its state, or `SQLite`) does all of that, at a price that a node agent pays every second: a copy-on-write
//! tree writes several pages and two syncs for each batch if its opening after a crash is not to depend on its size, its file does not
//! shrink, an error of the disk closes it, and a reader needs the daemon's lock. A ring of segments needs one sequential write and
//! one `fdatasync` for a batch, is found by reading the edges of its slots, reuses space without moving anything, goes on after an error by
//! writing the same bytes again, and can be read beside the daemon. The cost is this crate, which is small, and whose crashes are
//! tested by property tests.
//!
//! # Map
//!
//! | part | job | kind |
//! |---|---|---|
//! | [`Entry`], [`Query`], [`Histogram`], [`Hour`] | what is stored, asked for, and added up | data |
//! | `layout` | where things are in the file: header, slots, heads, tails, frames, checksums | pure |
//! | `codec` | the entries of a batch as one block | pure |
//! | `index` | the blocks, pods and hours of a segment; its footer | pure |
//! | `file`, `volume` | opens the file, or moves it aside; finds its segments; reads blocks | I/O |
//! | `store` | the write half: appends, seals, drops | I/O |
//! | `reader` | the read half: pages, pods, hours | I/O |
//! | `past` | what the feed reads on from | I/O, on tokio's blocking threads |
//! | `recorder`, `status_changes` | the thread that reads feed, cache and health, and writes | one thread |
//! | `health` | metrics, and what the health report says | |
//!
//! One thread writes, under no lock; readers see a batch once it is durable. The lock of `volume` guards the list of segments and the index
//! of the newest one, and is held for no I/O.

mod codec;
mod entry;
mod file;
mod health;
mod histogram;
mod history;
mod hours;
mod index;
mod layout;
mod lookback;
mod node_events;
mod past;
mod query;
mod reader;
mod recorder;
mod status_changes;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod volume;

pub use codec::Labels;
pub use entry::{
    DaemonStarted, Entry, EntryType, FieldChange, HealthCause, HealthChanged, MissedEvents, MissedReason, NodeEvent,
    Note, PodStatusChanged, Previous, Record, Sample, What,
};
pub use file::HistoryError;
pub use health::{HistoryState, HistoryStatus};
pub use histogram::Histogram;
pub use history::{Config, History, HistoryMonitor, HistoryTask, HistoryWriter};
pub use hours::{Hour, MOST_PODS, PodDeaths};
pub use lookback::{
    Bucket, BucketCounts, ContainerSummary, Death, Evidence, EvidenceKind, ExitCount, Explanation, HealthSpan,
    HealthTimes, LISTED_TROUBLES, LONGEST_BEFORE, Lifetimes, NodeReport, Percentiles, PodSummary, ReasonCount,
    ReportBuilder, Run, Totals, TroubleSpan, Verdict, WORST_PODS, Window, explain,
};
pub use node_events::NodeEvents;
pub use query::{Order, PAGE, Page, PodMatch, Query};
pub use reader::{Entries, HistoryPod, HistoryReader};
pub use store::{LEAST_SIZE, Limits, PodLabels};
