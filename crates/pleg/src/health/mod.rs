//! Is the generator healthy, and if not, what is it waiting for?
//!
//! The rule is the kubelet's: a complete relist within the threshold. Only [`Level::Unhealthy`] makes a node NotReady; a pod in
//! quarantine makes the generator [`Level::Degraded`], which affects no other pod. Every level below healthy has a cause with names.

mod cause;
mod causes;
mod checks;
pub mod diagnosis;
pub(crate) mod disagreement;
mod ended;
pub(crate) mod monitor;
pub(crate) mod node_health;
mod pods;
pub mod readiness;
mod report;
mod shim;
mod state;
mod stuck;
mod warning;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleg_cri::{Error, InFlight};
use tokio::time::Instant;

use crate::evented::ModeReport;
use crate::evented::trust::Remembered;
use crate::health::diagnosis::Trouble;
use crate::model::{ObjectRef, PodRef, PodUid};
use crate::publish::cache::PodError;
pub use crate::records::snapshot::Oddities;
pub(crate) use cause::of_inspection;
pub use cause::{Cause, Stage, Who};
use cause::{advice, of_list};
use causes::is_generator_rpc;
pub use checks::Check;
pub(crate) use ended::Alive;
pub use pods::CausesByPod;
pub use report::{Level, Report};
pub(crate) use shim::HungShim;
use state::{HealthState, ListFailure, Quarantined};
pub(crate) use stuck::StuckContainer;
pub(crate) use warning::Load;
pub use warning::Warning;

/// The kubelet's threshold.
pub const THRESHOLD: Duration = Duration::from_mins(3);
/// A call in flight for longer than this is worth a word.
pub(crate) const SLOW_CALL: Duration = Duration::from_secs(5);

/// Answers for the generator's health. Clones answer the same.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<Mutex<HealthState>>,
    inflight: InFlight,
    threshold: Duration,
    /// The runtime's, for the commands to type next.
    endpoint: Option<Arc<str>>,
}

impl Health {
    pub(crate) fn new(threshold: Duration, inflight: InFlight, endpoint: Option<Arc<str>>) -> Self {
        Self {
            shared: Arc::default(),
            inflight,
            threshold,
            endpoint,
        }
    }

    /// The calls in flight now.
    pub fn inflight(&self) -> &InFlight {
        &self.inflight
    }

    /// The moment after which the generator is unhealthy unless a relist completes.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.shared.lock().last_complete.map(|last| last + self.threshold)
    }

    /// A full relist is complete. Returns how long relists had failed before, and how often.
    pub(crate) fn relist_complete(&self) -> Option<(Duration, u32)> {
        let mut state = self.shared.lock();
        state.relists += 1;
        state.last_complete = Some(Instant::now());
        let failure = state.failure.take();
        state.changes += u64::from(failure.is_some());
        failure.map(|failure| (failure.since.elapsed(), failure.attempts))
    }

    /// A full relist that `started` then failed; `other_list_ok`: the other list was answered. Returns whether it is the first to fail.
    pub(crate) fn relist_failed(&self, error: Error, other_list_ok: bool, started: Instant) -> bool {
        let mut state = self.shared.lock();
        if let Some(failure) = &mut state.failure {
            failure.attempts += 1;
            (failure.error, failure.other_list_ok) = (error, other_list_ok);
            return false;
        }
        state.changes += 1;
        state.failure = Some(ListFailure {
            since: started,
            attempts: 1,
            error,
            other_list_ok,
        });
        true
    }

    /// How far apart full relists are now.
    pub(crate) fn full_relist_period(&self) -> Duration {
        let seconds = self.shared.lock().mode.full_relist_period_seconds;
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// How changes are found now; why and since when the event stream is down, if it is; and what it missed, if it is lossy. Written
    /// together, so that no reader finds a stream that is down beside no cause for it.
    pub(crate) fn stream(&self, mode: ModeReport, down: Option<(Arc<str>, Instant)>, lossy: Option<Remembered>) {
        let mut state = self.shared.lock();
        let before = (state.stream_down.is_some(), state.stream_lossy.is_some());
        state.changes += u64::from(before != (down.is_some(), lossy.is_some()));
        (state.mode, state.stream_down, state.stream_lossy) = (mode, down, lossy);
    }

    /// How much there was in a complete relist.
    pub(crate) fn load(&self, load: Load) {
        self.shared.lock().load = load;
    }

    /// The objects that do not answer by id while a list hangs, and whether others do.
    pub(crate) fn suspects(&self, suspects: Vec<(Who, Instant)>, others_answer: bool) {
        let mut state = self.shared.lock();
        let ids = |suspects: &[(Who, Instant)]| suspects.iter().map(|(who, _)| who.id.clone()).collect::<Vec<_>>();
        let same = ids(&state.suspects) == ids(&suspects) && state.others_answer == others_answer;
        state.changes += u64::from(!same);
        (state.suspects, state.others_answer) = (suspects, others_answer);
    }

    pub(crate) fn shim_hangs(&self, hung: HungShim) {
        let mut state = self.shared.lock();
        state.changes += 1;
        state.hung_shims.insert(hung.pod.uid.clone(), hung);
    }

    /// The pod's shim answers, or the pod is gone. Returns since when it did not.
    pub(crate) fn shim_answers(&self, uid: &PodUid) -> Option<Instant> {
        let mut state = self.shared.lock();
        let hung = state.hung_shims.remove(uid)?;
        state.changes += 1;
        Some(hung.since)
    }

    /// What a trouble usually means and what to type next: the words that the report has, for the log.
    pub(crate) fn advice(&self, trouble: Trouble, who: &Who) -> String {
        advice(trouble, who, self.endpoint.as_deref())
    }

    /// What a failed relist usually means and what to type next.
    pub(crate) fn advice_on(&self, error: &Error, other_list_ok: bool) -> String {
        self.advice(of_list(error, other_list_ok), &Who::default())
    }

    /// The last full relist failed.
    pub(crate) fn relists_fail(&self) -> bool {
        self.shared.lock().failure.is_some()
    }

    /// Takes in what made no sense in a complete relist. Returns whether that is news.
    pub(crate) fn odd(&self, odd: Oddities) -> bool {
        std::mem::replace(&mut self.shared.lock().odd, odd) != odd
    }

    /// A container or sandbox of the pod does not answer.
    pub(crate) fn quarantine(&self, pod: &PodRef, object: &ObjectRef, error: Arc<PodError>) {
        let key = (pod.uid.clone(), Arc::clone(object.id()));
        let held = Quarantined {
            pod: pod.clone(),
            object: object.clone(),
            error,
        };
        let mut state = self.shared.lock();
        let before = state.quarantine.insert(key, held);
        state.changes += u64::from(before.is_none());
    }

    /// It answers, or is gone.
    pub(crate) fn release(&self, uid: &PodUid, id: &Arc<str>) {
        let mut state = self.shared.lock();
        let before = state.quarantine.remove(&(uid.clone(), Arc::clone(id)));
        state.changes += u64::from(before.is_some());
    }

    /// A number that is another one whenever a trouble may have begun or ended, other than by calls that are late.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.lock().changes
    }

    /// When the oldest call of the generator itself was sent.
    pub(crate) fn oldest_call(&self) -> Option<Instant> {
        self.inflight.oldest(is_generator_rpc)
    }

    /// A list that takes longer than this hangs.
    pub(crate) fn list_patience(&self, patience: Duration) {
        self.shared.lock().list_patience = patience;
    }
}

#[cfg(test)]
mod tests {
    use pleg_cri::{Rpc, Subject};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_relists_that_wait_are_a_cause() {
        let inflight = InFlight::default();
        let health = Health::new(THRESHOLD, inflight.clone(), None);
        health.relist_complete();
        let long = Some(Duration::from_mins(4));
        let _pull = inflight.begin(Rpc::PullImage, Subject::NODE, long);
        let _stop = inflight.begin(Rpc::StopContainer, Subject::id("c"), long);
        let _events = inflight.begin(Rpc::GetContainerEvents, Subject::NODE, None);
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(health.report().level, Level::Healthy);

        let _list = inflight.begin(Rpc::ListContainers, Subject::NODE, long);
        tokio::time::advance(SLOW_CALL).await;
        let report = health.report();
        assert_eq!((report.level, report.causes.len()), (Level::Degraded, 1));
        assert_eq!(report.causes[0].rpc, "ListContainers");
    }
}
