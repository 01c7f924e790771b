//! The seams between the stream, the generator and waiting callers: what is reported is relisted, what is asked for is answered, and
//! no task sleeps while there is something to do, in whatever order the threads run.
//!
//! The very files of the crate are compiled here, with the primitives of [`sync`] instead of those of `src/sync.rs`. That needs neither a
//! feature, which users of the crate would see, nor a `--cfg`, for which everything would have to be built once more.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../src/publish/cache/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "a part of it is used here")]
mod cache;
#[path = "../../src/evented/link.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod link;
#[path = "../../src/generator/requests.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod requests;
mod sync;

mod generator {
    pub(crate) use super::requests;
}
mod publish {
    pub(crate) use super::cache;
}

/// The rest of the crate, as those files name it.
mod evented {
    pub(crate) use pleg::Reached;
}
mod health {
    pub(crate) mod diagnosis {
        pub(crate) use pleg::health::diagnosis::Trouble;
    }
}
mod model {
    pub(crate) use pleg::model::{ContainerId, ObjectRef, ObjectState, PodRef, PodUid};

    pub(crate) mod event {
        pub(crate) use pleg::event::Source;
    }
    pub(crate) mod status {
        pub(crate) use pleg::status::PodStatus;
    }
}
mod runtime {
    pub(crate) use pleg::runtime::RuntimeEvent;
}

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use generator::requests::RelistRequests;
use jiff::Timestamp;
use link::{Link, StreamState};
use model::event::Source;
use model::status::PodStatus;
use model::{PodRef, PodUid};
use publish::cache::{Cache, CacheWriter, Committed, PodEntry, Token, WaitError};
use runtime::RuntimeEvent;
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use sync::{Mutex, Notify, scheduled};

const PODS: usize = 2;

fn uid(pod: usize) -> PodUid {
    PodUid::from(format!("{pod}"))
}

fn reference(pod: usize, version: u64) -> PodRef {
    PodRef {
        uid: uid(pod),
        namespace: "".into(),
        // What inspection finds out about a pod, in these tests.
        name: version.to_string().into(),
    }
}

fn version(entry: &PodEntry) -> u64 {
    entry.status.pod.name.parse().unwrap_or(0)
}

/// A node: what the runtime is, and what the generator knows of it.
struct Node {
    /// How often each pod has changed.
    runtime: Mutex<[u64; PODS]>,
    requests: RelistRequests,
    link: Link,
    cache: Cache,
    records: Mutex<Records>,
    /// There are inspections to make.
    work: Notify,
    /// Something was committed or followed.
    moved: Notify,
}

/// The generator's own. In the crate one task has it; the lock is that task.
#[derive(Debug, Default)]
struct Records {
    listed: [u64; PODS],
    committed: [u64; PODS],
    queue: VecDeque<(usize, Token)>,
    /// The state of the stream that was followed.
    followed: Option<StreamState>,
    over: bool,
}

impl Node {
    fn new(writer: &CacheWriter) -> Self {
        let cache = writer.reader();
        Self {
            runtime: Mutex::default(),
            requests: RelistRequests::new(cache.clone()),
            link: Link::new(StreamState::Asking),
            cache,
            records: Mutex::default(),
            work: Notify::new(),
            moved: Notify::new(),
        }
    }

    /// Something happens to a pod.
    fn change(&self, pod: usize) -> u64 {
        let mut runtime = self.runtime.lock();
        runtime[pod] += 1;
        runtime[pod]
    }

    /// Waits until the records are so. If that never comes to be, shuttle finds everybody asleep.
    fn until(&self, so: impl Fn(&Records) -> bool) {
        block_on(async {
            loop {
                let moved = self.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                if so(&self.records.lock()) {
                    return;
                }
                moved.await;
            }
        });
    }

    /// As the task that reads the stream does.
    fn turn(&self, state: StreamState) {
        if self.link.set(state) {
            self.requests.wake();
        }
    }

    /// Reports changes in every way, without ever asking: whatever is reported is committed. Then the stream is lost, and asked for again
    /// when the generator says so.
    fn stream(&self) {
        let runtime = "sim".into();
        self.turn(StreamState::Up { runtime, splits: false });
        let told = [(Some("c"), Some(0)), (None, Some(1)), (None, None), (Some("c"), None)];
        for (id, pod) in told {
            let changed = pod.unwrap_or(0);
            let version = self.change(changed);
            self.requests.add_event(RuntimeEvent {
                id: id.map(Into::into),
                pod: pod.map(uid),
                ..RuntimeEvent::default()
            });
            if id.is_none() {
                self.until(|records| records.committed[changed] >= version);
            }
        }
        let all = *self.runtime.lock();
        self.until(|records| records.committed[0] >= all[0] && records.committed[1] >= all[1]);
        let off = StreamState::Off { reason: "lost".into() };
        self.turn(off.clone());
        block_on(self.link.back());
        self.until(|records| records.followed.as_ref() == Some(&off));
    }

    /// Changes something and waits for a status that knows of it. `all`: asks for everything.
    fn call(&self, pod: usize, all: bool) {
        let version_then = self.change(pod);
        let token = if all {
            self.requests.all(Source::OnDemand)
        } else {
            self.requests.pod(&uid(pod), Source::OnDemand)
        };
        let uid = uid(pod);
        let newer = || self.cache.newer(&uid, token);
        let entry = block_on(self.cache.woken_until(Some(&uid), Some(token), newer)).unwrap();
        assert!(entry.observed >= token);
        assert!(
            version(&entry) >= version_then,
            "{entry:?} is older than {version_then}"
        );
    }

    /// Changes something and waits for an entry that shows it. The wait itself asks for nothing.
    fn wait_for(&self, pod: usize) {
        let version_then = self.change(pod);
        self.requests.pod(&uid(pod), Source::OnDemand);
        let shows = |entry: Option<&PodEntry>| entry.is_some_and(|entry| version(entry) >= version_then);
        let uid = uid(pod);
        let check = || self.cache.satisfied(&uid, &mut { shows });
        let met = block_on(self.cache.woken_until(Some(&uid), None, check));
        assert!(shows(met.unwrap().as_ref()));
    }

    /// Begins to wait and gives up.
    fn give_up(&self, pod: usize) {
        let token = self.requests.pod(&uid(pod), Source::OnDemand);
        let uid = uid(pod);
        let newer = || self.cache.newer(&uid, token);
        let waiting = self.cache.woken_until(Some(&uid), Some(token), newer);
        tokio::pin!(waiting);
        let _ = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Follows the stream, plans relists, lists, and hands over what is to be inspected. So many relists fail first.
    fn plan(&self, writer: &CacheWriter, mut failures: usize) {
        let (mut turn, mut wanted, mut everything) = (self.link.turns(), BTreeSet::new(), false);
        loop {
            let turns = self.link.turns();
            if std::mem::replace(&mut turn, turns) != turns {
                let state = self.link.state();
                if matches!(state, StreamState::Off { .. }) {
                    self.link.runtime_back();
                }
                self.records.lock().followed = Some(state);
                self.moved.notify_waiters();
                self.requests.all(Source::Relist);
            }
            let stirred = self.requests.take_event_hints();
            everything |= stirred.all || stirred.objects.values().any(|stir| stir.pod.is_none());
            let pods = stirred.objects.into_values().filter_map(|stir| stir.pod);
            wanted.extend(pods.chain(stirred.pods));
            if self.requests.is_empty() && wanted.is_empty() && !everything {
                if self.records.lock().over {
                    return;
                }
                block_on(self.requests.wait());
                continue;
            }
            let (asked, token) = self.requests.take(|| writer.start_relist());
            let list = *self.runtime.lock();
            if failures > 0 {
                failures -= 1;
                self.requests.put_back(asked);
                continue;
            }
            let full = std::mem::take(&mut everything) || asked.all.is_some();
            let mut records = self.records.lock();
            for (pod, &listed) in list.iter().enumerate() {
                let (uid, named) = (uid(pod), asked.pods.contains_key(&uid(pod)));
                let covered = full || named || wanted.contains(&uid);
                if covered && (named || listed > records.listed[pod]) {
                    writer.hold(&reference(pod, 0), || {
                        (PodStatus::empty(reference(pod, 0)), Arc::default())
                    });
                    records.listed[pod] = listed;
                    records.queue.push_back((pod, token));
                }
            }
            if full {
                writer.complete_relist(token);
            }
            drop(records);
            wanted.clear();
            self.work.notify_one();
        }
    }

    /// Inspects and commits.
    fn inspect(&self, writer: &CacheWriter) {
        loop {
            let next = self.records.lock().queue.front().copied();
            let Some((pod, token)) = next else {
                if self.records.lock().over {
                    return;
                }
                block_on(self.work.notified());
                continue;
            };
            let found = self.runtime.lock()[pod];
            let mut records = self.records.lock();
            records.queue.pop_front();
            records.committed[pod] = found;
            let held = records.queue.iter().any(|(queued, _)| *queued == pod);
            let committed = Committed {
                token,
                at: Timestamp::UNIX_EPOCH,
                stale: Arc::default(),
                held,
                inspecting: held,
            };
            writer.commit(PodStatus::empty(reference(pod, found)), committed);
            drop(records);
            self.moved.notify_waiters();
        }
    }
}

/// What a thread does.
type Part = Box<dyn FnOnce(&Node, &CacheWriter) + Send>;

/// The threads of a node, until all is quiet.
fn node(failures: usize) {
    let writer = Arc::new(CacheWriter::default());
    let node = Arc::new(Node::new(&writer));
    let spawn = |part: Part| {
        let (node, writer) = (Arc::clone(&node), Arc::clone(&writer));
        thread::spawn(move || part(&node, &writer))
    };
    let generator = [
        spawn(Box::new(move |node, writer| node.plan(writer, failures))),
        spawn(Box::new(Node::inspect)),
    ];
    let others = [
        spawn(Box::new(|node, _| node.stream())),
        spawn(Box::new(|node, _| node.call(0, false))),
        spawn(Box::new(|node, _| {
            node.give_up(1);
            node.call(1, true);
            node.wait_for(0);
        })),
    ];
    for thread in others {
        thread.join().unwrap();
    }
    assert!(node.cache.waits().is_empty());
    node.records.lock().over = true;
    node.requests.wake();
    node.work.notify_one();
    for thread in generator {
        thread.join().unwrap();
    }
    assert_eq!(node.records.lock().committed, *node.runtime.lock());
}

/// A caller that waits while the generator ends gets an error.
fn end() {
    let writer = CacheWriter::default();
    let (cache, token) = (writer.reader(), writer.reader().token());
    let waiting = thread::spawn(move || {
        let newer = || cache.newer(&uid(0), token);
        block_on(cache.woken_until(Some(&uid(0)), Some(token), newer))
    });
    drop(writer);
    assert!(matches!(waiting.join().unwrap(), Err(WaitError::Ended { .. })));
}

fn run(scheduler: impl Scheduler + 'static, scenario: fn()) {
    let mut config = shuttle::Config::new();
    config.stack_size = 0x4_0000;
    scheduled(scenario, |scenario| {
        shuttle::Runner::new(scheduler, config).run(scenario);
    });
}

#[test]
fn nothing_is_lost_in_any_order() {
    run(RandomScheduler::new(3000), || node(0));
    run(PctScheduler::new(3, 3000), || node(0));
}

#[test]
fn nothing_is_lost_when_relists_fail() {
    run(RandomScheduler::new(1000), || node(2));
    run(PctScheduler::new(3, 1000), || node(2));
}

#[test]
fn no_caller_waits_for_a_generator_that_has_ended() {
    run(RandomScheduler::new(1000), end);
    run(PctScheduler::new(3, 1000), end);
}
