//! A window of time: what happened, when, to which pods, and how well it was seen.
//!
//! In: the sums of its hours ([`ReportBuilder::hour`]), the entries about troubles, health and daemons ([`ReportBuilder::entry`]), and what
//! is to be said about the worst pods ([`ReportBuilder::worst_pods`], [`ReportBuilder::explained`]). Out: one [`NodeReport`], whose JSON is
//! that of `pleg report -o json`. The single events of a day are not read: there may be millions.

mod build;
mod counts;
#[cfg(test)]
#[expect(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small whole numbers"
)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use pleg::PodRef;
use serde::{Deserialize, Serialize};

use super::explain::{ExitCount, Lifetimes, Verdict};
use super::runs::{HealthTimes, Run};
use super::troubles::TroubleSpan;
use super::{Percentiles, is_zero};

pub use build::ReportBuilder;
pub use counts::BucketCounts;

/// Pods that are listed: the worst.
pub const WORST_PODS: usize = 20;
/// Troubles that are listed: the longest.
pub const LISTED_TROUBLES: usize = 100;

/// What a history says about a window of time. Its JSON is that of `pleg report -o json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node, where its name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The beginning of the window: that of its first bucket.
    pub since: Timestamp,
    /// Its end.
    pub until: Timestamp,
    /// The oldest entry of the history, if it is younger than `since`: what happened before it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<Timestamp>,
    /// What the report lacks, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Sums over the window.
    pub totals: Totals,
    /// Events by their type, without those that the first relist of a daemon found.
    pub events_by_type: BTreeMap<String, u64>,
    /// Deaths by reason, the most frequent first.
    pub deaths_by_reason: Vec<ReasonCount>,
    /// The length of one of the `buckets`.
    pub bucket_seconds: u64,
    /// The window in equal parts, the oldest first.
    pub buckets: Vec<Bucket>,
    /// The pods with the most failures and the longest troubles.
    pub worst_pods: Vec<PodSummary>,
    /// Pods with failures or troubles that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_pods: u64,
    /// What could not be seen, and for how long: the longest first.
    pub troubles: Vec<TroubleSpan>,
    /// Troubles that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_troubles: u64,
    /// How long the node was healthy.
    pub health: HealthTimes,
    /// The runs of the daemon, the oldest first.
    pub runs: Vec<Run>,
    /// From the runtime's timestamp of a change to its event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<Percentiles>,
    /// How long full relists took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relist: Option<Percentiles>,
}

/// Sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Totals {
    /// Events, without those that the first relist of a daemon found.
    pub events: u64,
    /// Containers that started.
    pub started: u64,
    /// Containers that died.
    pub deaths: u64,
    /// Deaths whose reason is another than `Completed`.
    pub failures: u64,
    /// Deaths for want of memory.
    pub oom_kills: u64,
    /// Pods that were removed.
    pub pods_removed: u64,
    /// Troubles in the window.
    pub troubles: u64,
    /// Starts of the daemon.
    pub daemon_starts: u64,
    /// Full relists that were measured.
    pub relists: u64,
    /// Relists that failed.
    pub failed_relists: u64,
}

/// Deaths for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonCount {
    /// The runtime's word; empty if it gave none.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// A part of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Bucket {
    /// Its beginning.
    pub start: Timestamp,
    /// The history does not have all of it, or it is not over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Events, without those that the first relist of a daemon found. The next four are some of them.
    pub events: u64,
    /// Containers that started.
    pub started: u64,
    /// Containers that died with the reason `Completed`, or with none.
    pub completed: u64,
    /// Containers that died with another reason.
    pub failed: u64,
    /// Troubles that started.
    pub troubles: u64,
    /// Of the events in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<Percentiles>,
    /// Of the relists in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relist: Option<Percentiles>,
}

/// A pod that did badly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PodSummary {
    /// The pod; the newest of its name.
    pub pod: PodRef,
    /// Containers of it that died.
    pub deaths: u64,
    /// Deaths with another exit code than 0.
    pub failures: u64,
    /// Deaths for want of memory.
    pub oom_kills: u64,
    /// For how long something of it could not be seen, added up.
    pub trouble_seconds: f64,
    /// Deaths in each of the report's buckets.
    pub deaths_by_bucket: Vec<u64>,
    /// Why, as `pleg why` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The same, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Containers of it that started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    /// By reason and exit code, the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exits: Vec<ExitCount>,
    /// The last failure, or else the last death.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_death: Option<Timestamp>,
    /// How long its container with the most deaths lived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetimes: Option<Lifetimes>,
}
