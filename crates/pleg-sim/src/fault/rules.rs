//! The faults in force. Rules change while calls run: a call that is held checks the rules again after every change.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use pleg_cri::Rpc;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::code::GrpcCode;
use crate::duration::Span;
use crate::selector::Selector;

/// Limit of the rules of one kind.
const MOST_RULES: usize = 1000;

/// Why a fault cannot be set.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// The call has no object in its request.
    #[error("{0} does not take a pod or container: omit --pod, or use `lock` to make one container hang the lists")]
    NoObject(Rpc),
    /// Not a rate.
    #[error("{0} is not a rate; expected a number from 0 to 1")]
    Rate(f64),
    /// Too many rules.
    #[error("more than {MOST_RULES} faults of one kind: remove some first")]
    TooMany,
}

/// Faults of the event stream, each with its rate from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventFaults {
    /// Events that never arrive.
    pub drop: f64,
    /// Events that arrive twice.
    pub double: f64,
    /// Events without the pod's and the containers' statuses.
    pub half: f64,
    /// Events that arrive after the one that follows them.
    pub reorder: f64,
    /// How late each event is.
    pub delay: Span,
}

/// What a rule is about: the ids that its names meant when it was made.
#[derive(Debug)]
struct Objects {
    /// `None` for an object that was named by its id.
    selector: Option<Selector>,
    ids: FxHashSet<Arc<str>>,
}

#[derive(Debug)]
struct Hang {
    rpc: Rpc,
    /// All calls if `None`.
    about: Option<Objects>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Latency {
    base: Duration,
    jitter: Duration,
}

/// Latency of the calls about some objects.
#[derive(Debug)]
struct Slow {
    /// Every call about them if `None`.
    rpc: Option<Rpc>,
    about: Objects,
    latency: Latency,
}

#[derive(Debug, Default)]
struct Rules {
    latency: Latency,
    latency_of: FxHashMap<Rpc, Latency>,
    slow: Vec<Slow>,
    hangs: Vec<Hang>,
    locks: Vec<Objects>,
    fails: FxHashMap<Rpc, (GrpcCode, f64)>,
    events: EventFaults,
}

/// The faults in force. Clones share them.
#[derive(Debug, Clone)]
pub struct Faults(Arc<FaultState>);

#[derive(Debug)]
struct FaultState {
    rules: Mutex<Rules>,
    /// Rates and jitter.
    rng: Mutex<Rng>,
    /// Counts changes, so that what is held can wait for the next one.
    changes: watch::Sender<u64>,
}

/// What the layer does with a call before it reaches the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) latency: Duration,
    pub(super) fail: Option<GrpcCode>,
}

impl Faults {
    /// No faults; rates are drawn from the seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(FaultState {
            rules: Mutex::default(),
            rng: Mutex::new(Rng::with_seed(seed)),
            changes: watch::Sender::new(0),
        }))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Rules) -> T) -> T {
        let result = change(&mut self.0.rules.lock());
        self.0.changes.send_modify(|count| *count += 1);
        result
    }

    /// How long every call takes, or one kind of call; up to `jitter` is added. Without a kind it replaces all latencies.
    pub fn set_latency(&self, rpc: Option<Rpc>, base: Duration, jitter: Duration) {
        let latency = Latency { base, jitter };
        self.change(|rules| {
            if let Some(rpc) = rpc {
                rules.latency_of.insert(rpc, latency);
            } else {
                rules.latency = latency;
                rules.latency_of.clear();
                rules.slow.clear();
            }
        });
    }

    /// How long calls about these objects take, or one kind of them, before what every call takes; zero ends it.
    pub fn set_latency_of(
        &self,
        rpc: Option<Rpc>,
        selector: Option<Selector>,
        ids: Vec<Arc<str>>,
        base: Duration,
        jitter: Duration,
    ) -> Result<(), FaultError> {
        check_object(rpc)?;
        let about = Objects::new(selector, ids);
        self.change(|rules| {
            rules.slow.retain(|slow| !(slow.rpc == rpc && slow.about.same(&about)));
            if base.is_zero() && jitter.is_zero() {
                return Ok(());
            }
            let latency = Latency { base, jitter };
            push(&mut rules.slow, Slow { rpc, about, latency })
        })
    }

    /// Holds a kind of call, or only those about some objects: `ids` are what the selector means now.
    pub fn hang(&self, rpc: Rpc, selector: Option<Selector>, ids: Option<Vec<Arc<str>>>) -> Result<(), FaultError> {
        if ids.is_some() {
            check_object(Some(rpc))?;
        }
        let about = ids.map(|ids| Objects::new(selector, ids));
        self.change(|rules| push(&mut rules.hangs, Hang { rpc, about }))
    }

    /// Holds calls about one object by its id.
    pub fn hang_id(&self, rpc: Rpc, id: &str) -> Result<(), FaultError> {
        self.hang(rpc, None, Some(vec![id.into()]))
    }

    /// Releases the calls that [`Faults::hang`] holds: the rules that have this call and this selector; what is `None` is not compared.
    /// Returns how many rules ended.
    pub fn unhang(&self, rpc: Option<Rpc>, selector: Option<&Selector>) -> usize {
        self.end_hangs(rpc, |about| {
            selector.is_none_or(|selector| about.is_some_and(|about| about.within(selector)))
        })
    }

    /// Releases the calls that [`Faults::hang_id`] holds. Returns how many rules ended.
    pub fn unhang_id(&self, rpc: Option<Rpc>, id: &str) -> usize {
        self.end_hangs(rpc, |about| about.is_some_and(|about| about.is(id)))
    }

    fn end_hangs(&self, rpc: Option<Rpc>, ends: impl Fn(Option<&Objects>) -> bool) -> usize {
        self.change(|rules| {
            let before = rules.hangs.len();
            let same = |of: Rpc| rpc.is_none_or(|rpc| rpc == of);
            rules
                .hangs
                .retain(|hang| !(same(hang.rpc) && ends(hang.about.as_ref())));
            before - rules.hangs.len()
        })
    }

    /// Locks containers as containerd does: every `ListContainers` hangs, and every call about them.
    pub fn lock(&self, selector: Option<Selector>, ids: impl IntoIterator<Item = Arc<str>>) -> Result<(), FaultError> {
        let lock = Objects::new(selector, ids);
        self.change(|rules| push(&mut rules.locks, lock))
    }

    /// Ends the locks of this selector, or all. Returns how many ended.
    pub fn unlock(&self, selector: Option<&Selector>) -> usize {
        self.end_locks(|lock| selector.is_none_or(|selector| lock.within(selector)))
    }

    /// Ends the locks of a container that was named by its id. Returns how many ended.
    pub fn unlock_id(&self, id: &str) -> usize {
        self.end_locks(|lock| lock.is(id))
    }

    fn end_locks(&self, ends: impl Fn(&Objects) -> bool) -> usize {
        self.change(|rules| {
            let before = rules.locks.len();
            rules.locks.retain(|lock| !ends(lock));
            before - rules.locks.len()
        })
    }

    /// Answers a share of the calls with an error; a rate of 0 ends it.
    pub fn fail(&self, rpc: Rpc, code: GrpcCode, rate: f64) -> Result<(), FaultError> {
        check_rate(rate)?;
        self.change(|rules| {
            if rate > 0.0 {
                rules.fails.insert(rpc, (code, rate));
            } else {
                rules.fails.remove(&rpc);
            }
        });
        Ok(())
    }

    /// Faults of the event stream, also of those that are open.
    pub fn set_events(&self, events: EventFaults) -> Result<(), FaultError> {
        [events.drop, events.double, events.half, events.reorder]
            .into_iter()
            .try_for_each(check_rate)?;
        self.change(|rules| rules.events = events);
        Ok(())
    }

    /// These objects are gone: nothing is held for them any more.
    pub fn forget(&self, gone: &[Arc<str>]) {
        self.change(|rules| {
            rules
                .hangs
                .retain_mut(|hang| hang.about.as_mut().is_none_or(|about| about.keep(gone)));
            rules.locks.retain_mut(|lock| lock.keep(gone));
            rules.slow.retain_mut(|slow| slow.about.keep(gone));
        });
    }

    /// Ends every fault, latency too.
    pub fn clear(&self) {
        self.change(|rules| *rules = Rules::default());
    }

    /// Some rule is about the object of such a call: its id has to be read.
    pub(super) fn by_id(&self, rpc: Rpc) -> bool {
        let rules = self.0.rules.lock();
        rpc.has_object()
            && (!rules.locks.is_empty()
                || rules.hangs.iter().any(|hang| hang.rpc == rpc && hang.about.is_some())
                || rules.slow.iter().any(|slow| slow.rpc.is_none_or(|of| of == rpc)))
    }

    pub(super) fn plan(&self, rpc: Rpc, id: Option<&str>) -> Plan {
        let rules = self.0.rules.lock();
        let slow = rules
            .slow
            .iter()
            .rev()
            .find(|slow| slow.rpc.is_none_or(|of| of == rpc) && slow.about.has(id));
        let general = || *rules.latency_of.get(&rpc).unwrap_or(&rules.latency);
        let latency = slow.map_or_else(general, |slow| slow.latency);
        let fail = rules.fails.get(&rpc).copied();
        drop(rules);
        let jitter = match latency.jitter {
            Duration::ZERO => Duration::ZERO,
            most => most.mul_f64(self.0.rng.lock().f64()),
        };
        Plan {
            latency: latency.base + jitter,
            fail: fail.filter(|&(_, rate)| self.happens(rate)).map(|(code, _)| code),
        }
    }

    /// True with the given rate.
    pub(super) fn happens(&self, rate: f64) -> bool {
        rate > 0.0 && self.0.rng.lock().f64() < rate
    }

    pub(super) fn events(&self) -> EventFaults {
        self.0.rules.lock().events
    }

    /// Waits until nothing holds a call about `id`.
    pub(super) async fn wait_while_held(&self, rpc: Rpc, id: Option<&str>) {
        self.wait_until(|rules| !rules.holds(rpc, id)).await;
    }

    /// Some container is locked.
    pub(super) fn locked(&self) -> bool {
        !self.0.rules.lock().locks.is_empty()
    }

    /// Waits until no container is locked.
    pub(super) async fn unlocked(&self) {
        self.wait_until(|rules| rules.locks.is_empty()).await;
    }

    async fn wait_until(&self, free: impl Fn(&Rules) -> bool) {
        if free(&self.0.rules.lock()) {
            return;
        }
        let mut changes = self.0.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if free(&self.0.rules.lock()) {
                return;
            }
            // The sender lives as long as `self`.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Rules {
    fn holds(&self, rpc: Rpc, id: Option<&str>) -> bool {
        let hangs = |hang: &Hang| hang.rpc == rpc && hang.about.as_ref().is_none_or(|about| about.has(id));
        let locks = |lock: &Objects| match rpc {
            Rpc::ListContainers | Rpc::StreamContainers => true,
            _ => lock.has(id),
        };
        self.hangs.iter().any(hangs) || self.locks.iter().any(locks)
    }
}

impl Objects {
    fn new(selector: Option<Selector>, ids: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self {
            selector,
            ids: ids.into_iter().collect(),
        }
    }

    fn has(&self, id: Option<&str>) -> bool {
        id.is_some_and(|id| self.ids.contains(id))
    }

    /// Named by this id.
    fn is(&self, id: &str) -> bool {
        self.selector.is_none() && self.ids.len() == 1 && self.has(Some(id))
    }

    /// Named in the same way.
    fn same(&self, other: &Self) -> bool {
        self.selector == other.selector && (self.selector.is_some() || self.ids == other.ids)
    }

    /// Named by `selector`, or a container of the pod that it names.
    fn within(&self, selector: &Selector) -> bool {
        let same = |own: &Selector| {
            own.pod == selector.pod && (selector.container.is_none() || own.container == selector.container)
        };
        self.selector.as_ref().is_some_and(same)
    }

    /// Without those that are gone; false if none is left.
    fn keep(&mut self, gone: &[Arc<str>]) -> bool {
        self.ids.retain(|id| !gone.contains(id));
        !self.ids.is_empty()
    }
}

fn push<T>(rules: &mut Vec<T>, rule: T) -> Result<(), FaultError> {
    if rules.len() >= MOST_RULES {
        return Err(FaultError::TooMany);
    }
    rules.push(rule);
    Ok(())
}

fn check_object(rpc: Option<Rpc>) -> Result<(), FaultError> {
    match rpc.filter(|rpc| !rpc.has_object()) {
        Some(rpc) => Err(FaultError::NoObject(rpc)),
        None => Ok(()),
    }
}

fn check_rate(rate: f64) -> Result<(), FaultError> {
    match rate {
        0.0..=1.0 => Ok(()),
        _ => Err(FaultError::Rate(rate)),
    }
}
