//! What the kernel's announcements make the generator do.
//!
//! ```text
//! a start is committed ──▶ which process? ──▶ watched ──▶ exited: ask the runtime until it agrees
//!  (commit)                 (processes)        (witness)    (confirm)   or name what has missed it (disagree)
//! ```
//!
//! An announcement is a hint like an event of the runtime: the runtime is asked, and its answer is committed. While every running
//! container is watched, and so are the places where cgroups of new ones are made, the announcements are as good as a stream of
//! events, and are trusted by the same rules.

mod confirm;
mod disagree;
mod processes;

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use tokio::time::Instant;

use super::Generator;
use crate::evented::Reached;
use crate::model::event::{Event, EventType, Source, Subject};
use crate::model::{ContainerId, ContainerRef, PodRef, PodUid};
use crate::records::PodKey;
use crate::runtime::Runtime;
use crate::witness::{Announcement, Kernel, Process, Watched, Witness, WitnessMode, WitnessReport};
use confirm::{Announced, Confirmations, Question};
use disagree::Asked;
use processes::Found;

/// So many containers whose process is not known yet leave the witness complete: they have just started.
const MOST_FRESH: usize = 64;

/// The witness, and what is known through it.
#[derive(Debug)]
pub(super) struct KernelWitness {
    /// None: it is switched off.
    witness: Option<Box<dyn Witness>>,
    /// Containers that run, or did a moment ago.
    containers: HashMap<ContainerId, Container>,
    /// Containers whose process is to be asked for.
    wanted: VecDeque<ContainerId>,
    /// Questions for processes.
    finding: FuturesUnordered<BoxFuture<'static, Found>>,
    /// The runtime did not say which process a running container has, so often in a row.
    silent: u32,
    /// Containers that could not be watched because a limit was reached: each has its turn when a watched process is gone.
    refused: VecDeque<ContainerId>,
    /// How many containers cannot be watched, and why one of them cannot.
    unwatched: usize,
    why_unwatched: Option<Arc<str>>,
    /// What the runtime has not confirmed yet.
    unconfirmed: Confirmations,
    /// Containers whose process and whose reported state may disagree, and when to find out.
    doubts: VecDeque<(Instant, ContainerId)>,
    /// Questions that are to settle a doubt.
    asking: FuturesUnordered<BoxFuture<'static, Asked>>,
    /// Every running container is watched.
    complete: bool,
    /// What the last report was made of.
    reported: Option<Reported>,
}

/// What a report is made of. A report is only made if this has changed: most turns of the generator change nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reported {
    watched: Watched,
    unwatched: usize,
    complete: bool,
}

/// A container that is watched, or should be.
#[derive(Debug)]
struct Container {
    pod: PodRef,
    reference: ContainerRef,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Its process is not known yet; the runtime was asked so often.
    Wanted { attempts: u32 },
    /// Its process cannot be watched.
    Unwatched,
    /// Its process lives, as the runtime says.
    Watched(Process),
    /// Its process has exited, and the runtime has not said so yet.
    Exited {
        process: Process,
        since: Instant,
        exit_code: Option<i32>,
        named: bool,
    },
    /// The runtime says that it has ended, and its process lives.
    Outlives {
        process: Process,
        since: Instant,
        named: bool,
    },
}

/// Something that happened to the witness.
#[derive(Debug)]
pub(super) enum Witnessed {
    Announced(Announcement),
    Found(Found),
    Asked(Asked),
}

impl KernelWitness {
    pub(super) fn new(mode: WitnessMode) -> Self {
        let witness = || -> Box<dyn Witness> { Box::new(Kernel::new()) };
        Self {
            witness: (mode == WitnessMode::Auto).then(witness),
            containers: HashMap::new(),
            wanted: VecDeque::new(),
            finding: FuturesUnordered::new(),
            silent: 0,
            refused: VecDeque::new(),
            unwatched: 0,
            why_unwatched: None,
            unconfirmed: Confirmations::default(),
            doubts: VecDeque::new(),
            asking: FuturesUnordered::new(),
            complete: false,
            reported: None,
        }
    }

    /// Uses another witness.
    pub(super) fn replace(&mut self, witness: Box<dyn Witness>) {
        self.witness = Some(witness);
    }

    /// What happens next; never resolves while the witness is off.
    pub(super) async fn next(&mut self) -> Witnessed {
        let Self {
            witness: Some(witness),
            finding,
            asking,
            ..
        } = self
        else {
            return std::future::pending().await;
        };
        tokio::select! {
            announcement = std::future::poll_fn(|cx| witness.poll_next(cx)) => Witnessed::Announced(announcement),
            Some(found) = finding.next() => Witnessed::Found(found),
            Some(asked) = asking.next() => Witnessed::Asked(asked),
        }
    }

    /// When there is something to ask.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        // While all places are taken, the next answer is what to wait for.
        let room = self.asking.len() < disagree::AT_ONCE;
        let doubt = self.doubts.front().filter(|_| room).map(|(at, _)| *at);
        [self.unconfirmed.next(), doubt].into_iter().flatten().min()
    }

    fn watched(&self) -> Watched {
        self.witness
            .as_ref()
            .map(|witness| witness.watched())
            .unwrap_or_default()
    }

    /// The container's process lives, by what the kernel says now.
    fn lives(&self, id: &ContainerId) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.lives(id.as_str()))
    }

    /// Everything that happens to containers is announced.
    fn is_complete(&self) -> bool {
        let watched = self.watched();
        let fresh = self.wanted.len() + self.finding.len();
        // It has to prove itself once; then a few starts at a time are no reason for doubt.
        let settled = fresh == 0 || self.complete && fresh <= MOST_FRESH;
        let all = self.unwatched == 0 && self.containers.len() < processes::MOST;
        watched.processes > 0 && watched.cgroups > 0 && !watched.limited && all && settled
    }

    /// What is reported about the witness.
    fn report(&self) -> WitnessReport {
        let Some(witness) = &self.witness else {
            return WitnessReport::off("as configured");
        };
        let watched = witness.watched();
        let report = |on: bool, reason: &str| WitnessReport {
            on,
            complete: self.complete,
            reason: reason.into(),
            processes: watched.processes,
            cgroups: watched.cgroups,
        };
        if let Some(reason) = witness.unavailable() {
            return report(false, &reason);
        }
        let unwatched = self.why_unwatched.as_deref().filter(|_| self.unwatched > 0);
        match (watched.processes, unwatched) {
            (0, Some(reason)) => report(false, reason),
            (0, None) => report(false, "no running container is known"),
            (_, Some(reason)) => {
                let plural = if self.unwatched == 1 { "" } else { "s" };
                let n = self.unwatched;
                report(true, &format!("{n} container{plural} cannot be watched: {reason}"))
            }
            (_, None) if watched.limited => report(
                true,
                "half of fs.inotify.max_user_watches are in use, so not every start is announced",
            ),
            (_, None) if watched.cgroups == 0 => {
                report(true, "their cgroups cannot be watched, so starts are not announced")
            }
            (_, None) => report(true, "every running container is watched"),
        }
    }

    /// Sets the phase of a container, and counts.
    fn set(&mut self, id: &ContainerId, phase: Phase) {
        if let Some(container) = self.containers.get_mut(id) {
            let is = |phase: &Phase| usize::from(matches!(phase, Phase::Unwatched));
            self.unwatched = self.unwatched + is(&phase) - is(&container.phase);
            container.phase = phase;
        }
    }

    fn remove(&mut self, id: &ContainerId) -> Option<Container> {
        let container = self.containers.remove(id)?;
        self.unwatched -= usize::from(matches!(container.phase, Phase::Unwatched));
        if self.containers.is_empty() {
            // Give the room of a full node back.
            self.containers = HashMap::new();
        }
        Some(container)
    }
}

impl<R: Runtime> Generator<R> {
    /// Follows the witness: finds processes, asks about what was announced, and reports how far it can be relied on.
    pub(super) fn follow_witness(&mut self) {
        if self.witness.witness.is_none() {
            if self.witness.reported.is_none() {
                self.witness.reported = Some(Reported::default());
                self.report_witness(self.witness.report());
            }
            return;
        }
        self.find_processes();
        self.ask_about_announcements();
        self.ask_about_doubts();
        let complete = self.witness.is_complete();
        if std::mem::replace(&mut self.witness.complete, complete) != complete {
            self.witness_changed(complete);
        }
        let reported = Reported {
            watched: self.witness.watched(),
            unwatched: self.witness.unwatched,
            complete,
        };
        if self.witness.reported.replace(reported) != Some(reported) {
            let report = self.witness.report();
            self.metrics.witness(&report);
            self.report_witness(report);
        }
    }

    /// Takes in what happened to the witness.
    pub(super) fn witnessed(&mut self, witnessed: Witnessed) {
        match witnessed {
            Witnessed::Announced(announcement) => self.announced(announcement),
            Witnessed::Found(found) => self.process_found(found),
            Witnessed::Asked(asked) => self.doubt_settled(asked),
        }
    }

    fn announced(&mut self, announcement: Announcement) {
        let now = Instant::now();
        match announcement {
            Announcement::Exited { id, pid, at, exit_code } => {
                self.process_exited(&ContainerId::from(&*id), pid, at, exit_code);
            }
            Announcement::CgroupMade { id, pod } => self.hinted(id, pod, Reached::Running, now),
            Announcement::CgroupRemoved { id } => {
                if self.records.pod_of(&id).is_some() {
                    self.hinted(id, None, Reached::Ended, now);
                }
            }
            Announcement::OomKilled { id } => {
                if let Some(key) = self.records.pod_of(&id) {
                    self.note_hint(key, None, now);
                    self.inspect_or_list(HashMap::from([(key, vec![id])]), Source::Kernel);
                }
            }
            Announcement::Overflow => {
                self.stream.hinted.all = true;
                self.stream.misses.hinted_all(now);
            }
        }
    }

    /// The kernel shows that an object has come this far: the runtime is asked until it agrees.
    fn hinted(&mut self, id: Arc<str>, pod: Option<PodUid>, reached: Reached, now: Instant) {
        match (self.records.pod_of(&id), &pod) {
            (Some(key), _) => self.note_hint(key, Some(reached), now),
            (None, Some(uid)) => self.stream.misses.hinted(uid, now),
            (None, None) => self.stream.misses.hinted_all(now),
        }
        let announced = Announced {
            id,
            pod,
            reached,
            since: now,
        };
        let by_events = self.stream.is_trusted();
        self.witness.unconfirmed.announced(announced, by_events);
    }

    /// The kernel announced something about the pod.
    fn note_hint(&mut self, key: PodKey, reached: Option<Reached>, now: Instant) {
        self.stream.trust_reported();
        if let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) {
            self.stream.misses.hinted(&uid, now);
            if reached == Some(Reached::Ended) {
                self.stream.ended(&uid, now);
            }
        }
    }

    /// Asks the runtime about what was announced and is not so yet.
    fn ask_about_announcements(&mut self) {
        let now = Instant::now();
        if self.witness.unconfirmed.next().is_none_or(|at| now < at) {
            return;
        }
        let records = &self.records;
        let questions = self.witness.unconfirmed.due(now, |announced| {
            let known = records.pod_of(&announced.id).is_some();
            match announced.reached {
                Reached::Running if !known && announced.pod.is_none() => Some(Question::List),
                Reached::Running if !known => Some(Question::ListPod),
                reached if records.has_reached(&announced.id, reached) => None,
                _ if records.is_sandbox(&announced.id) => Some(Question::ListPod),
                Reached::Running => Some(Question::Start),
                Reached::Ended | Reached::Gone => Some(Question::Exit),
            }
        });
        let mut by_id: HashMap<PodKey, Vec<Arc<str>>> = HashMap::new();
        for (announced, question) in questions {
            match (self.records.pod_of(&announced.id), question) {
                (Some(key), Question::Exit | Question::Start) => by_id.entry(key).or_default().push(announced.id),
                (Some(key), Question::ListPod | Question::List) => {
                    let uid = self.records.pod(key).map(|pod| pod.uid.clone());
                    self.stream.hinted.want(uid.or(announced.pod), None);
                }
                (None, _) => {
                    let id = Some(&announced.id).filter(|_| announced.is_overdue(now)).cloned();
                    self.stream.hinted.want(announced.pod, id);
                }
            }
        }
        self.inspect_or_list(by_id, Source::Kernel);
    }

    /// A commit changed the states of containers.
    pub(super) fn witness_commit(&mut self, events: &[Event]) {
        if self.witness.witness.is_none() {
            return;
        }
        for event in events {
            let (Some(pod), Some(Subject::Container(container))) = (&event.pod, &event.subject) else {
                continue;
            };
            match event.kind {
                EventType::ContainerStarted => self.container_runs(pod, container),
                EventType::ContainerDied | EventType::ContainerRemoved => self.container_ended(&container.id),
                _ => {}
            }
        }
    }

    /// The process of a container has exited. The runtime is going to say so, or it has missed it.
    fn process_exited(&mut self, id: &ContainerId, pid: u32, at: jiff::Timestamp, exit_code: Option<i32>) {
        let now = Instant::now();
        self.room_for_one();
        let Some(known) = self.witness.containers.get(id) else {
            return;
        };
        match known.phase {
            Phase::Watched(process) if process.pid == pid => {
                let event = Event {
                    time: at,
                    pod: Some(known.pod.clone()),
                    subject: Some(Subject::Container(known.reference.clone())),
                    exit_code,
                    pid: Some(pid),
                    source: Source::Kernel,
                    ..Event::of_generator(EventType::ProcessExited)
                };
                self.witness.set(
                    id,
                    Phase::Exited {
                        process,
                        since: now,
                        exit_code,
                        named: false,
                    },
                );
                self.publisher.publish([event]);
                self.hinted(id.shared(), None, Reached::Ended, now);
                self.doubt(id);
            }
            // What was left over is over, too.
            Phase::Outlives { process, named, .. } if process.pid == pid => {
                self.witness.remove(id);
                if named {
                    self.agree(id);
                }
            }
            _ => {}
        }
    }

    /// The container has ended, by what the runtime says.
    fn container_ended(&mut self, id: &ContainerId) {
        let now = Instant::now();
        self.witness.unconfirmed.exit_confirmed(id.as_str(), now);
        let Some(known) = self.witness.containers.get(id) else {
            return;
        };
        match known.phase {
            Phase::Watched(process) => {
                self.witness.set(
                    id,
                    Phase::Outlives {
                        process,
                        since: now,
                        named: false,
                    },
                );
                self.doubt(id);
            }
            Phase::Outlives { .. } => {}
            Phase::Exited { named, .. } => {
                self.witness.remove(id);
                if named {
                    self.agree(id);
                }
            }
            Phase::Wanted { .. } | Phase::Unwatched => _ = self.witness.remove(id),
        }
    }
}
