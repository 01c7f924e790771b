//! What is wrong at the moment. Rules change while calls run: a call that is held looks again after every change.

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
use crate::selector::{Directory, Selector};

/// Rules of one kind at most.
const MOST_RULES: usize = 1000;

/// Why a fault cannot be set.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// The call has no object in its request.
    #[error("{0} is about no single pod or container: leave out the pod, or take `lock` to hang lists by a container")]
    NoObject(Rpc),
    /// Not a rate.
    #[error("{0} is no rate: write a number from 0 to 1")]
    Rate(f64),
    /// Too many rules.
    #[error("more than {MOST_RULES} faults of one kind: take some back first")]
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
    /// How late each event is.
    pub delay: Span,
}

#[derive(Debug)]
struct Hang {
    rpc: Rpc,
    selector: Option<Selector>,
    /// The ids that the selector meant when the rule was made; all calls if `None`.
    ids: Option<FxHashSet<Arc<str>>>,
}

#[derive(Debug)]
struct Lock {
    selector: Option<Selector>,
    ids: FxHashSet<Arc<str>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Latency {
    base: Duration,
    jitter: Duration,
}

#[derive(Debug, Default)]
struct Rules {
    latency: Latency,
    latency_of: FxHashMap<Rpc, Latency>,
    hangs: Vec<Hang>,
    locks: Vec<Lock>,
    fails: FxHashMap<Rpc, (GrpcCode, f64)>,
    events: EventFaults,
}

/// The faults in force. Clones share them.
#[derive(Debug, Clone)]
pub struct Faults(Arc<Inner>);

#[derive(Debug)]
struct Inner {
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
    /// Some rule may hold this call, depending on the id in it.
    pub(super) by_id: bool,
}

impl Faults {
    /// No faults; rates are drawn from the seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Inner {
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

    /// How long every call takes, or one kind of call; up to `jitter` is added.
    pub fn set_latency(&self, rpc: Option<Rpc>, base: Duration, jitter: Duration) {
        let latency = Latency { base, jitter };
        self.change(|rules| {
            if let Some(rpc) = rpc {
                rules.latency_of.insert(rpc, latency);
            } else {
                rules.latency = latency;
                rules.latency_of.clear();
            }
        });
    }

    /// Holds a kind of call, or only those about one pod or container.
    pub fn hang<D: Directory>(&self, rpc: Rpc, selector: Option<Selector>, directory: &D) -> Result<(), D::Error>
    where
        D::Error: From<FaultError>,
    {
        if selector.is_some() && !has_object(rpc) {
            return Err(FaultError::NoObject(rpc).into());
        }
        let ids = selector.as_ref().map(|selector| directory.ids(selector)).transpose()?;
        let ids = ids.map(|ids| ids.into_iter().collect());
        Ok(self.add_hang(Hang { rpc, selector, ids })?)
    }

    /// Holds calls about one object by its id.
    pub fn hang_id(&self, rpc: Rpc, id: &str) -> Result<(), FaultError> {
        let ids = Some(FxHashSet::from_iter([Arc::from(id)]));
        self.add_hang(Hang {
            rpc,
            selector: None,
            ids,
        })
    }

    fn add_hang(&self, hang: Hang) -> Result<(), FaultError> {
        self.change(|rules| {
            if rules.hangs.len() >= MOST_RULES {
                return Err(FaultError::TooMany);
            }
            rules.hangs.push(hang);
            Ok(())
        })
    }

    /// Lets go what [`Faults::hang`] holds: the rules that have this call and this selector; what is `None` is not compared.
    /// Returns how many rules ended.
    pub fn unhang(&self, rpc: Option<Rpc>, selector: Option<&Selector>) -> usize {
        self.change(|rules| {
            let before = rules.hangs.len();
            rules.hangs.retain(|hang| {
                let same_rpc = rpc.is_none_or(|rpc| rpc == hang.rpc);
                let same_object = selector.is_none_or(|selector| covers(selector, hang.selector.as_ref()));
                !(same_rpc && same_object)
            });
            before - rules.hangs.len()
        })
    }

    /// Locks containers as containerd does: every `ListContainers` hangs, and every call about them.
    pub fn lock(&self, selector: Option<Selector>, ids: impl IntoIterator<Item = Arc<str>>) -> Result<(), FaultError> {
        let ids = ids.into_iter().collect();
        self.change(|rules| {
            if rules.locks.len() >= MOST_RULES {
                return Err(FaultError::TooMany);
            }
            rules.locks.push(Lock { selector, ids });
            Ok(())
        })
    }

    /// Ends the locks of this selector, or all. Returns how many ended.
    pub fn unlock(&self, selector: Option<&Selector>) -> usize {
        self.change(|rules| {
            let before = rules.locks.len();
            rules
                .locks
                .retain(|lock| selector.is_some_and(|selector| !covers(selector, lock.selector.as_ref())));
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
        [events.drop, events.double, events.half]
            .into_iter()
            .try_for_each(check_rate)?;
        self.change(|rules| rules.events = events);
        Ok(())
    }

    /// These objects are gone: nothing is held for them any more.
    pub fn forget(&self, gone: &[Arc<str>]) {
        self.change(|rules| {
            for ids in rules.hangs.iter_mut().filter_map(|hang| hang.ids.as_mut()) {
                ids.retain(|id| !gone.contains(id));
            }
            for lock in &mut rules.locks {
                lock.ids.retain(|id| !gone.contains(id));
            }
            rules
                .hangs
                .retain(|hang| hang.ids.as_ref().is_none_or(|ids| !ids.is_empty()));
            rules.locks.retain(|lock| !lock.ids.is_empty());
        });
    }

    /// Ends every fault, latency too.
    pub fn clear(&self) {
        self.change(|rules| *rules = Rules::default());
    }

    pub(super) fn plan(&self, rpc: Rpc) -> Plan {
        let rules = self.0.rules.lock();
        let latency = *rules.latency_of.get(&rpc).unwrap_or(&rules.latency);
        let fail = rules.fails.get(&rpc).copied();
        let by_id = has_object(rpc)
            && (!rules.locks.is_empty() || rules.hangs.iter().any(|hang| hang.rpc == rpc && hang.ids.is_some()));
        drop(rules);
        let jitter = match latency.jitter {
            Duration::ZERO => Duration::ZERO,
            most => most.mul_f64(self.0.rng.lock().f64()),
        };
        Plan {
            latency: latency.base + jitter,
            fail: fail.filter(|&(_, rate)| self.happens(rate)).map(|(code, _)| code),
            by_id,
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
    pub(super) async fn pass(&self, rpc: Rpc, id: Option<&str>) {
        self.wait_until(|rules| !rules.holds(rpc, id)).await;
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
        let hangs = |hang: &Hang| {
            let of_object = |ids: &FxHashSet<Arc<str>>| id.is_some_and(|id| ids.contains(id));
            hang.rpc == rpc && hang.ids.as_ref().is_none_or(of_object)
        };
        let locks = |lock: &Lock| match rpc {
            Rpc::ListContainers | Rpc::StreamContainers => true,
            _ => id.is_some_and(|id| lock.ids.contains(id)),
        };
        self.hangs.iter().any(hangs) || self.locks.iter().any(locks)
    }
}

/// True if a rule's selector is `selector`, or a container of the pod that it names.
fn covers(selector: &Selector, rule: Option<&Selector>) -> bool {
    rule.is_some_and(|rule| {
        rule.pod == selector.pod && (selector.container.is_none() || rule.container == selector.container)
    })
}

fn check_rate(rate: f64) -> Result<(), FaultError> {
    match rate {
        0.0..=1.0 => Ok(()),
        _ => Err(FaultError::Rate(rate)),
    }
}

/// Calls whose request has an id in field 1.
pub(super) fn has_object(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::StopPodSandbox
            | Rpc::RemovePodSandbox
            | Rpc::PodSandboxStatus
            | Rpc::CreateContainer
            | Rpc::StartContainer
            | Rpc::StopContainer
            | Rpc::RemoveContainer
            | Rpc::ContainerStatus
            | Rpc::UpdateContainerResources
            | Rpc::ReopenContainerLog
            | Rpc::ExecSync
    )
}
