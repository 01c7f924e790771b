//! The past of the simulated node: its world lives through some hours in a moment, on a clock that is moved, and what a generator would
//! have published and a history kept meanwhile is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerRef, Event, EventType, InstanceId, Level, PodRef, SandboxState, Source, Trouble};
use pleg_cri::v1::ContainerState;
use pleg_history::{DaemonStarted, HealthCause, HealthChanged, Histogram, Note, Previous, Record, Sample, What};
use pleg_sim::world::{ContainerTruth, SandboxTruth};
use pleg_sim::{Clock, Sim, World};

use super::cast;

/// A minute in nanoseconds, as the simulator counts.
const MINUTE: i64 = 60_000_000_000;

/// How long the past is.
pub(super) const LENGTH: Duration = Duration::from_hours(6);

/// A time in which no daemon ran, counted back from now.
const AWAY: (i64, i64) = (-95 * MINUTE, -91 * MINUTE);

/// Something that was wrong, from when to when, counted back from now.
struct Incident {
    from: i64,
    to: i64,
    pod: (&'static str, &'static str),
    trouble: Trouble,
    seen: &'static str,
}

static INCIDENTS: [Incident; 2] = [
    Incident {
        from: -245 * MINUTE,
        to: -231 * MINUTE,
        pod: cast::HUNG_SHIM,
        trouble: Trouble::HungShim,
        seen: "the shim of the pod does not answer: a verbose PodSandboxStatus took longer than 5s",
    },
    Incident {
        from: -52 * MINUTE,
        to: -44 * MINUTE,
        pod: cast::WAS_STUCK,
        trouble: Trouble::StuckInspection,
        seen: "ContainerStatus: no answer within 10s",
    },
];

/// What one daemon recorded, the oldest first.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) instance: InstanceId,
    pub(super) records: Vec<Record>,
}

/// Lets the world of `sim` live until now, on its `clock`, which stands [`LENGTH`] before now; then the clock runs. Returns what two
/// daemons recorded, one after the other.
pub(super) fn live_through(sim: &Sim, clock: &Clock, seed: u64) -> Vec<Run> {
    let mut recorder = Recorder::new(seed);
    let about_now = clock.now().saturating_add(nanos(LENGTH));
    let mut cues: Vec<(i64, Cue)> = Vec::new();
    for incident in &INCIDENTS {
        cues.push((about_now + incident.from, Cue::Starts(incident)));
        cues.push((about_now + incident.to, Cue::Ends(incident)));
    }
    cues.push((about_now + AWAY.0, Cue::Stop));
    cues.push((about_now + AWAY.1, Cue::Start));
    cues.extend(
        (1..LENGTH.as_secs() / 60).map(|n| (clock.now() + i64::try_from(n).unwrap_or(0) * MINUTE, Cue::Sample)),
    );
    cues.sort_by_key(|(at, _)| *at);
    let mut cues = cues.into_iter().peekable();
    let mut world = sim.world();
    recorder.start(&world, clock.now());
    loop {
        // This takes a moment, too.
        let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
        let due = world.next_due().filter(|at| *at < now).unwrap_or(now);
        while let Some((at, cue)) = cues.next_if(|(at, _)| *at <= due) {
            match cue {
                Cue::Starts(incident) => recorder.incident(&world, at, true, incident),
                Cue::Ends(incident) => recorder.incident(&world, at, false, incident),
                Cue::Stop => recorder.stop(at),
                Cue::Start => recorder.start(&world, at),
                Cue::Sample => recorder.sample(at),
            }
        }
        move_to(clock, due);
        if due >= now {
            break;
        }
        world.tick();
        recorder.observe(&world, due, false);
    }
    recorder.stop(clock.now());
    clock.run();
    // The driver of the simulator has to look at the clock again.
    world.set_churn(0.0);
    recorder.runs
}

/// What happens at a certain time, beside what the world does by itself.
enum Cue {
    Starts(&'static Incident),
    Ends(&'static Incident),
    Stop,
    Start,
    Sample,
}

fn move_to(clock: &Clock, at: i64) {
    let by = u64::try_from(at.saturating_sub(clock.now())).unwrap_or(0);
    clock.advance(Duration::from_nanos(by));
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Compares what there is with what there was, as a generator does, and notes what a history notes.
struct Recorder {
    runs: Vec<Run>,
    running: bool,
    seed: u64,
    seq: u64,
    lag: Histogram,
    sampled: i64,
    pods: BTreeMap<String, PodRef>,
    sandboxes: BTreeMap<Arc<str>, SandboxTruth>,
    containers: BTreeMap<Arc<str>, ContainerTruth>,
    rng: Lags,
}

/// Small numbers that look like the lags of a runtime, from a seed.
struct Lags(u64);

impl Lags {
    fn next(&mut self) -> Duration {
        // A linear congruential generator: it only has to look uneven.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bits = self.0 >> 40;
        let micros = 900 + bits % 4_000;
        // One in forty had to wait for something.
        Duration::from_micros(if bits.is_multiple_of(41) { micros * 40 } else { micros })
    }
}

impl Recorder {
    fn new(seed: u64) -> Self {
        Self {
            runs: Vec::new(),
            running: false,
            seed,
            seq: 0,
            lag: Histogram::default(),
            sampled: 0,
            pods: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            rng: Lags(seed),
        }
    }

    fn instance(&self) -> InstanceId {
        self.runs.last().map_or_else(InstanceId::default, |run| run.instance)
    }

    fn note(&mut self, at: i64, what: What) {
        let note = Note {
            time: time(at, Duration::ZERO),
            instance: self.instance(),
            what,
        };
        if let Some(run) = self.runs.last_mut() {
            run.records.push(Record::Note(Arc::new(note)));
        }
    }

    /// A daemon starts, and finds what there is.
    fn start(&mut self, world: &World, at: i64) {
        let previous = self.runs.last().map(|run| Previous {
            last: run.instance.at(self.seq),
            clean: true,
        });
        let number = (self.seed + self.runs.len() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.runs.push(Run {
            instance: InstanceId::new(number),
            records: Vec::new(),
        });
        self.running = true;
        self.sampled = at;
        let started = DaemonStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            first_seq: self.seq + 1,
            previous,
        };
        self.note(at, What::DaemonStarted(started));
        self.sandboxes.clear();
        self.containers.clear();
        self.observe(world, at, true);
    }

    fn stop(&mut self, at: i64) {
        self.sample(at);
        self.note(at, What::DaemonStopped { last_seq: self.seq });
        self.running = false;
    }

    /// How long relists took in the last minute: one, as while events are trusted.
    fn sample(&mut self, at: i64) {
        if !self.running {
            return;
        }
        let mut relists = Histogram::default();
        relists.add(Duration::from_millis(6) + self.rng.next());
        let sample = Sample {
            from: time(std::mem::replace(&mut self.sampled, at), Duration::ZERO),
            relists,
            failed_relists: 0,
            lag: std::mem::take(&mut self.lag),
        };
        self.note(at, What::Sample(sample));
    }

    fn observe(&mut self, world: &World, now: i64, initial: bool) {
        if !self.running {
            return; // What happens while no daemon runs nobody sees.
        }
        let truth = world.truth();
        for sandbox in truth.sandboxes {
            let pod = PodRef {
                uid: sandbox.uid.as_str().into(),
                namespace: sandbox.namespace.as_str().into(),
                name: sandbox.name.as_str().into(),
            };
            self.pods.insert(sandbox.uid.clone(), pod);
            if self.sandboxes.get(&sandbox.id).map(|known| known.ready) != Some(sandbox.ready) {
                let state = if sandbox.ready {
                    SandboxState::Ready
                } else {
                    SandboxState::NotReady
                };
                let subject = Subject::Sandbox {
                    id: sandbox.id.as_ref().into(),
                    state: Some(state),
                };
                let event = self.event(EventType::PodSandboxChanged, now, initial, &sandbox.uid, subject);
                self.publish(event);
            }
            self.sandboxes.insert(Arc::clone(&sandbox.id), sandbox);
        }
        let gone: Vec<ContainerTruth> = self
            .containers
            .values()
            .filter(|known| truth.containers.iter().all(|container| container.id != known.id))
            .cloned()
            .collect();
        for container in truth.containers {
            let before = self.containers.insert(Arc::clone(&container.id), container.clone());
            self.container(before.as_ref(), &container, now, initial);
        }
        for container in gone {
            self.containers.remove(&container.id);
            let event = self.event(
                EventType::ContainerRemoved,
                now,
                initial,
                &container.uid,
                subject(&container),
            );
            self.publish(event);
        }
    }

    fn container(&mut self, before: Option<&ContainerTruth>, container: &ContainerTruth, now: i64, initial: bool) {
        if before.map(|before| before.state) == Some(container.state) {
            return;
        }
        let (kind, at) = match container.state {
            ContainerState::ContainerExited => (EventType::ContainerDied, container.finished_at),
            ContainerState::ContainerRunning => (EventType::ContainerStarted, container.started_at),
            _ => return,
        };
        let mut event = self.event(kind, now, initial, &container.uid, subject(container));
        if kind == EventType::ContainerDied {
            event.exit_code = Some(container.exit_code);
            event.reason = Some(container.reason.into());
        }
        let lag = self.rng.next();
        let late = Duration::from_nanos(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
        event.time = time(now, lag);
        // What the first relist finds happened whenever.
        if !initial {
            event.lag = Some(late + lag);
            self.lag.add(late + lag);
        }
        self.publish(event);
    }

    fn event(&self, kind: EventType, now: i64, initial: bool, uid: &str, subject: Subject) -> Event {
        Event {
            seq: 0,
            instance: self.instance(),
            time: time(now, Duration::ZERO),
            kind,
            pod: self.pods.get(uid).cloned(),
            subject: Some(subject),
            pid: None,
            exit_code: None,
            reason: None,
            initial,
            source: if initial { Source::Relist } else { Source::Evented },
            lag: None,
            trouble: None,
            lasted: None,
        }
    }

    fn publish(&mut self, mut event: Event) {
        self.seq += 1;
        event.seq = self.seq;
        if let Some(run) = self.runs.last_mut() {
            run.records.push(Record::Event(Arc::new(event)));
        }
    }

    /// A trouble starts or ends, and the health of the node with it.
    fn incident(&mut self, world: &World, at: i64, starts: bool, incident: &Incident) {
        let (namespace, name) = incident.pod;
        let truth = world.truth();
        let found = |sandbox: &&SandboxTruth| sandbox.namespace == namespace && sandbox.name == name;
        let Some(sandbox) = truth.sandboxes.iter().find(found) else {
            return;
        };
        let container = truth.containers.iter().find(|container| *container.uid == *sandbox.uid);
        let about = match (incident.trouble, container) {
            (Trouble::StuckInspection, Some(container)) => subject(container),
            _ => Subject::Sandbox {
                id: sandbox.id.as_ref().into(),
                state: None,
            },
        };
        let kind = if starts {
            EventType::TroubleStarted
        } else {
            EventType::TroubleEnded
        };
        let lasted = Duration::from_nanos(u64::try_from(incident.to - incident.from).unwrap_or(0));
        let text = format!("{} of pod {namespace}/{name}", incident.seen);
        let mut event = self.event(kind, at, false, &sandbox.uid, about);
        event.source = Source::Relist;
        event.trouble = Some(incident.trouble);
        event.lasted = (!starts).then_some(lasted);
        event.reason = starts.then(|| text.as_str().into());
        let level = Event {
            kind: if starts {
                EventType::PlegDegraded
            } else {
                EventType::PlegHealthy
            },
            pod: None,
            subject: None,
            trouble: None,
            lasted: None,
            ..event.clone()
        };
        self.publish(event);
        self.publish(level);
        let cause = HealthCause {
            trouble: incident.trouble.name().to_owned(),
            text,
            next: format!("`pleg inspect {namespace}/{name}`"),
            pod: Some(format!("{namespace}/{name}")),
            container: None,
            age_seconds: 10,
            attempts: 1,
        };
        let (level, before) = if starts {
            (Level::Degraded, Level::Healthy)
        } else {
            (Level::Healthy, Level::Degraded)
        };
        let changed = HealthChanged {
            level,
            before: Some(before),
            headline: if starts { "PLEG is degraded" } else { "PLEG is healthy" }.to_owned(),
            causes: if starts { vec![cause] } else { Vec::new() },
            more_causes: 0,
        };
        self.note(at, What::HealthChanged(changed));
    }
}

fn subject(container: &ContainerTruth) -> Subject {
    Subject::Container(ContainerRef {
        id: container.id.as_ref().into(),
        name: container.name.as_str().into(),
        attempt: container.attempt,
    })
}

fn time(nanos: i64, later: Duration) -> Timestamp {
    let at = i128::from(nanos) + i128::try_from(later.as_nanos()).unwrap_or(0);
    Timestamp::from_nanosecond(at).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use pleg_cri::Endpoint;
    use pleg_sim::SimConfig;

    use super::*;

    /// What a history must have: numbers without gaps, times that do not go back, and a pause between two runs.
    #[tokio::test]
    async fn the_past_is_one_that_daemons_could_have_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let begin = Timestamp::now().saturating_sub(LENGTH).unwrap();
        let clock = Clock::manual(i64::try_from(begin.as_nanosecond()).unwrap());
        let config = SimConfig {
            clock: clock.clone(),
            ..SimConfig::default()
        };
        let sim = Sim::start(config, Endpoint::unix(dir.path().join("cri.sock")))
            .await
            .unwrap();
        for pod in cast::pods(30) {
            sim.world().add_pod(pod).unwrap();
        }
        let runs = live_through(&sim, &clock, 1);
        assert_eq!(runs.len(), 2);
        let events: Vec<_> = runs
            .iter()
            .flat_map(|run| &run.records)
            .filter_map(|record| match record {
                Record::Event(event) => Some(event),
                Record::Note(_) => None,
            })
            .collect();
        for (event, seq) in events.iter().zip(1..) {
            assert_eq!(event.seq, seq);
            assert!(event.time >= begin && event.time <= Timestamp::now(), "{event:?}");
        }
        let count = |kind| events.iter().filter(|event| event.kind == kind).count();
        assert!(count(EventType::ContainerDied) > 500, "{}", events.len());
        assert_eq!(
            (count(EventType::TroubleStarted), count(EventType::TroubleEnded)),
            (2, 2)
        );
        let oom = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("OOMKilled"))
            .count();
        assert!(oom > 5, "{oom}");
        sim.shutdown().await;
    }
}
