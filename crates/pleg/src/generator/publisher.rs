//! What readers see: the cache of pod statuses and the feed of events. Here a change becomes its events.

use std::time::Duration;

use hashbrown::HashMap;
use jiff::Timestamp;

use super::Config;
use crate::metrics::Metrics;
use crate::model::cursor::InstanceId;
use crate::model::event::{Event, EventType, Source, Subject};
use crate::model::status::ContainerStatus;
use crate::model::{ContainerId, ContainerRef, PodRef};
use crate::publish::cache::{CacheWriter, Token};
use crate::publish::feed::{Feed, FeedWriter};
use crate::publish::handle::Stops;
use crate::records::diff::Change;

/// A lag beyond this is a clock that was set, not a lag.
const MOST_LAG: Duration = Duration::from_hours(1);

/// The write halves of cache and feed.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) cache: CacheWriter,
    feed: FeedWriter,
    /// Containers that callers are about to stop.
    stops: Stops,
    metrics: Metrics,
}

impl Publisher {
    pub(super) fn new(config: &Config, metrics: &Metrics) -> Self {
        let cache = CacheWriter::default();
        let feed = FeedWriter::new(
            InstanceId::random(),
            config.feed_capacity,
            config.history.clone(),
            cache.reader(),
            metrics.overflows(),
        );
        Self {
            cache,
            feed,
            stops: Stops::default(),
            metrics: metrics.clone(),
        }
    }

    pub(super) fn feed(&self) -> Feed {
        self.feed.reader()
    }

    pub(super) fn stops(&self) -> Stops {
        self.stops.clone()
    }

    /// The newest relist that is complete.
    pub(super) fn complete(&self) -> Token {
        self.cache.reader().complete()
    }

    /// The newest relist, complete or not.
    pub(super) fn token(&self) -> Token {
        self.cache.reader().token()
    }

    /// The number of the last event that was published.
    pub(super) fn newest(&self) -> u64 {
        self.feed.reader().newest()
    }

    pub(super) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        self.feed
            .publish(events.into_iter().inspect(|event| self.metrics.event(event.kind)));
    }

    /// Publishes an event about the generator itself.
    pub(super) fn announce(&self, kind: EventType, reason: &str) {
        self.publish([Event {
            reason: Some(reason.into()),
            ..Event::of_generator(kind)
        }]);
    }

    /// The events of these changes of a pod. The death of a container that a caller announced to stop is preceded by `ContainerStopped`.
    pub(super) fn events(&self, changes: &[Change], context: &EventContext<'_>) -> Vec<Event> {
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            if let Change::Died(container) = change
                && self.stops.announced(&container.id)
            {
                let subject = Subject::Container(container.clone());
                events.push(context.event(EventType::ContainerStopped, Some(subject)));
            }
            if let Change::Removed(container) = change {
                self.stops.forget(&container.id);
            }
            let (kind, subject) = change.event();
            events.push(context.event(kind, subject));
        }
        events
    }
}

/// What the events of one commit have in common.
pub(super) struct EventContext<'a> {
    pub(super) pod: &'a PodRef,
    /// What inspection said just now; nothing for a pod that is gone.
    pub(super) status: HashMap<&'a ContainerId, &'a ContainerStatus>,
    /// What it said before.
    pub(super) known: HashMap<&'a ContainerId, &'a ContainerStatus>,
    pub(super) source: Source,
    pub(super) initial: bool,
    pub(super) now: Timestamp,
}

impl EventContext<'_> {
    fn event(&self, kind: EventType, subject: Option<Subject>) -> Event {
        let container = match &subject {
            Some(Subject::Container(container)) => Some(container),
            _ => None,
        };
        let status = container.and_then(|container| self.container(container));
        let death = matches!(kind, EventType::ContainerDied | EventType::ContainerStopped);
        let happened = status.and_then(|status| match kind {
            EventType::ContainerCreated => status.created_at,
            EventType::ContainerStarted => status.started_at,
            EventType::ContainerDied | EventType::ContainerStopped => status.finished_at,
            _ => None,
        });
        Event {
            // Both are given by the feed.
            seq: 0,
            instance: InstanceId::default(),
            time: self.now,
            kind,
            pod: Some(self.pod.clone()),
            subject,
            pid: None,
            exit_code: status.filter(|_| death).and_then(|status| status.exit_code),
            reason: status
                .filter(|_| death)
                .map(|status| status.reason.clone())
                .filter(|reason| !reason.is_empty()),
            initial: self.initial,
            source: self.source,
            lag: happened.filter(|_| !self.initial).and_then(|at| lag(at, self.now)),
            trouble: None,
            lasted: None,
        }
    }

    /// A container that is gone may have been described before it went.
    fn container(&self, container: &ContainerRef) -> Option<&ContainerStatus> {
        self.status
            .get(&container.id)
            .or_else(|| self.known.get(&container.id))
            .copied()
    }
}

fn lag(from: Timestamp, to: Timestamp) -> Option<Duration> {
    // The two clocks may disagree; a negative lag is none.
    Duration::try_from(to.duration_since(from))
        .ok()
        .filter(|lag| *lag <= MOST_LAG)
}
