//! What the generator has reported so far: everything that the causes are made of, but for the calls in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::Error;
use tokio::time::Instant;

use super::cause::Who;
use super::disagreement::Disagreement;
use super::ended::Ended;
use super::shim::HungShim;
use super::stuck::StuckContainers;
use super::warning::Load;
use crate::evented::ModeReport;
use crate::evented::trust::Remembered;
use crate::model::{ContainerId, ObjectRef, PodRef, PodUid};
use crate::publish::cache::PodError;
use crate::records::snapshot::Oddities;

/// What is known of the generator's health.
#[derive(Debug, Default)]
pub(super) struct HealthState {
    /// Counts what may be a trouble, or the end of one.
    pub(super) changes: u64,
    pub(super) relists: u64,
    pub(super) last_complete: Option<Instant>,
    /// Relists that failed since the last complete one.
    pub(super) failure: Option<ListFailure>,
    /// What does not answer, by pod and id.
    pub(super) quarantine: BTreeMap<(PodUid, Arc<str>), Quarantined>,
    /// A list that takes longer than this hangs; zero before one has answered.
    pub(super) list_patience: Duration,
    /// Objects that do not answer by id while a list hangs, and since when.
    pub(super) suspects: Vec<(Who, Instant)>,
    /// While a list hangs: some objects answer by id.
    pub(super) others_answer: bool,
    pub(super) hung_shims: BTreeMap<PodUid, HungShim>,
    /// Containers that do not change, and whose status hangs.
    pub(super) stuck: StuckContainers,
    /// Containers about which the kernel and the runtime disagree.
    pub(super) disagreements: BTreeMap<ContainerId, Disagreement>,
    /// What made no sense in the last complete relist.
    pub(super) odd: Oddities,
    /// How much there was in it.
    pub(super) load: Load,
    pub(super) mode: ModeReport,
    /// The event stream should be up and is not: why, and since when.
    pub(super) stream_down: Option<(Arc<str>, Instant)>,
    /// There will be no more relists.
    pub(super) ended: Option<Ended>,
    /// The event stream is up and keeps missing changes.
    pub(super) stream_lossy: Option<Remembered>,
}

/// What does not answer.
#[derive(Debug)]
pub(super) struct Quarantined {
    pub(super) pod: PodRef,
    pub(super) object: ObjectRef,
    pub(super) error: Arc<PodError>,
}

/// Full relists fail.
#[derive(Debug)]
pub(super) struct ListFailure {
    pub(super) since: Instant,
    pub(super) attempts: u32,
    pub(super) error: Error,
    /// The other list was answered.
    pub(super) other_list_ok: bool,
}
