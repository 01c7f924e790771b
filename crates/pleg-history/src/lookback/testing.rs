//! Histories for tests, written as they happened.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerRef, Event, EventType, InstanceId, Level, PodRef, SandboxState, Source, Trouble};

use crate::entry::{
    DaemonStarted, Entry, HealthCause, HealthChanged, MissedEvents, NodeEvent, Note, PodStatusChanged, Previous,
    Record, What,
};

/// A time in seconds.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A pod in the namespace `default`, whose UID is its name.
pub(crate) fn pod(name: &str) -> PodRef {
    PodRef {
        uid: format!("uid-{name}").into(),
        namespace: "default".into(),
        name: name.into(),
    }
}

/// What happened, in order.
#[derive(Debug)]
pub(crate) struct Day {
    entries: Vec<Entry>,
    instance: u64,
    seq: u64,
}

impl Default for Day {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            instance: 1,
            seq: 0,
        }
    }
}

impl Day {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The events that follow are numbered by another daemon.
    pub(crate) fn restart(&mut self) -> &mut Self {
        self.instance += 1;
        self
    }

    fn push(&mut self, record: Record) -> &mut Self {
        let id = 1000 + self.entries.len() as u64;
        self.entries.push(Entry { id, record });
        self
    }

    pub(crate) fn event(
        &mut self,
        second: i64,
        kind: EventType,
        pod: Option<PodRef>,
        subject: Option<Subject>,
    ) -> &mut Self {
        self.seq += 1;
        let event = Event {
            seq: self.seq,
            instance: InstanceId::new(self.instance),
            time: at(second),
            kind,
            pod,
            subject,
            pid: None,
            exit_code: None,
            reason: None,
            initial: false,
            source: Source::Relist,
            lag: None,
            trouble: None,
            lasted: None,
        };
        self.push(Record::Event(Arc::new(event)))
    }

    /// Changes the event that was added last.
    pub(crate) fn change_last(&mut self, change: impl FnOnce(&mut Event)) -> &mut Self {
        if let Some(Entry {
            record: Record::Event(event),
            ..
        }) = self.entries.last_mut()
        {
            change(Arc::make_mut(event));
        }
        self
    }

    pub(crate) fn initial(&mut self) -> &mut Self {
        self.change_last(|event| event.initial = true)
    }

    fn container(name: &str, container: &str, attempt: u32) -> Subject {
        Subject::Container(ContainerRef {
            id: format!("{name}-{container}-{attempt}").as_str().into(),
            name: container.into(),
            attempt,
        })
    }

    pub(crate) fn started(&mut self, second: i64, name: &str, container: &str, attempt: u32) -> &mut Self {
        let subject = Self::container(name, container, attempt);
        self.event(second, EventType::ContainerStarted, Some(pod(name)), Some(subject))
    }

    pub(crate) fn stopped(&mut self, second: i64, name: &str, container: &str, attempt: u32) -> &mut Self {
        let subject = Self::container(name, container, attempt);
        self.event(second, EventType::ContainerStopped, Some(pod(name)), Some(subject))
    }

    pub(crate) fn died(
        &mut self,
        second: i64,
        name: &str,
        container: &str,
        attempt: u32,
        code: i32,
        reason: &str,
    ) -> &mut Self {
        let subject = Self::container(name, container, attempt);
        self.event(second, EventType::ContainerDied, Some(pod(name)), Some(subject));
        self.change_last(|event| {
            event.exit_code = Some(code);
            event.reason = Some(reason.into());
        })
    }

    pub(crate) fn sandbox(&mut self, second: i64, name: &str, state: Option<SandboxState>) -> &mut Self {
        let subject = Subject::Sandbox {
            id: format!("{name}-sandbox").as_str().into(),
            state,
        };
        self.event(second, EventType::PodSandboxChanged, Some(pod(name)), Some(subject))
    }

    pub(crate) fn removed(&mut self, second: i64, name: &str) -> &mut Self {
        self.event(second, EventType::PodRemoved, Some(pod(name)), None)
    }

    /// A trouble of a container, or of the node.
    pub(crate) fn trouble(&mut self, second: i64, name: Option<(&str, &str)>, trouble: Trouble) -> &mut Self {
        let subject = name.map(|(name, container)| Self::container(name, container, 0));
        let pod = name.map(|(name, _)| pod(name));
        self.event(second, EventType::TroubleStarted, pod, subject);
        self.change_last(|event| {
            event.trouble = Some(trouble);
            event.reason = Some("no answer within 10s".into());
        })
    }

    pub(crate) fn trouble_ended(
        &mut self,
        second: i64,
        name: Option<(&str, &str)>,
        trouble: Trouble,
        lasted: u64,
    ) -> &mut Self {
        self.trouble(second, name, trouble);
        self.change_last(|event| {
            event.kind = EventType::TroubleEnded;
            event.lasted = Some(Duration::from_secs(lasted));
        })
    }

    pub(crate) fn note(&mut self, second: i64, what: What) -> &mut Self {
        let note = Note {
            time: at(second),
            instance: InstanceId::new(self.instance),
            what,
        };
        self.push(Record::Note(Arc::new(note)))
    }

    pub(crate) fn health(&mut self, second: i64, level: Level, causes: Vec<HealthCause>) -> &mut Self {
        let headline = match level {
            Level::Healthy => "PLEG is healthy",
            Level::Degraded => "PLEG is degraded",
            Level::Unhealthy => "PLEG is not healthy",
        };
        self.note(
            second,
            What::HealthChanged(HealthChanged {
                level,
                before: None,
                headline: headline.to_owned(),
                causes,
                more_causes: 0,
            }),
        )
    }

    /// Another daemon starts.
    pub(crate) fn daemon_started(&mut self, second: i64, clean: bool) -> &mut Self {
        let last = InstanceId::new(self.instance).at(self.seq);
        self.restart();
        let first_seq = self.seq + 1;
        self.note(
            second,
            What::DaemonStarted(DaemonStarted {
                version: "0.1.0".to_owned(),
                first_seq,
                previous: Some(Previous { last, clean }),
            }),
        )
    }

    pub(crate) fn daemon_stopped(&mut self, second: i64) -> &mut Self {
        let last_seq = self.seq;
        self.note(second, What::DaemonStopped { last_seq })
    }

    pub(crate) fn node_event(&mut self, second: i64, name: &str, reason: &str, message: &str) -> &mut Self {
        self.note(
            second,
            What::NodeEvent(NodeEvent {
                pod: Some(pod(name)),
                container: Some("app".to_owned()),
                warning: true,
                reason: reason.to_owned(),
                message: message.to_owned(),
            }),
        )
    }

    pub(crate) fn gap(&mut self, second: i64, missed: MissedEvents) -> &mut Self {
        self.note(second, What::Gap(missed))
    }

    pub(crate) fn status_changed(&mut self, second: i64, changed: PodStatusChanged) -> &mut Self {
        self.note(second, What::PodStatusChanged(changed))
    }
}
