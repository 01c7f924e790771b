//! Watches the generator's health, and publishes what goes wrong and when it is over: `PlegNotHealthy`, `PlegDegraded`,
//! `PlegHealthy`, `TroubleStarted` and `TroubleEnded`.
//!
//! There is one source, the health report: its causes are compared with those that were announced. So the feed says what `health` says, and
//! no part of the generator has to remember to announce its own trouble. A healthy generator compares nothing: [`Health`] counts what
//! may be a trouble, and as long as that number stays and no call is late there is no report to make.
//!
//! [`Health`]: crate::Health

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::Generator;
use crate::health::diagnosis::Trouble;
use crate::health::{Cause, Health, Level, Report, SLOW_CALL, Stage};
use crate::model::event::{Event, EventType, Subject};
use crate::model::{ObjectRef, PodRef};
use crate::recorder::line::Turn;
use crate::runtime::Runtime;

/// Comparisons are at least this far apart, so that a storm costs few of them.
const PAUSE: Duration = Duration::from_millis(250);
/// While something is wrong, what only time can show is checked this often.
const AGAIN: Duration = Duration::from_secs(1);
/// Troubles of containers and sandboxes that are announced one by one; what is beyond is announced as one.
const MOST: usize = 32;

/// Which trouble it is, while it lasts. What usually lies behind it may become clearer meanwhile.
type Key = (Stage, Option<Arc<str>>);

/// A trouble that was announced.
#[derive(Debug)]
struct Open {
    trouble: Trouble,
    about: Option<(PodRef, ObjectRef)>,
    since: Instant,
}

/// The generator's health as it was last announced.
#[derive(Debug)]
pub(super) struct HealthWatch {
    health: Health,
    threshold: Duration,
    started: Instant,
    /// Since when the generator is reported unhealthy.
    unhealthy_since: Option<Instant>,
    announced: Announced,
}

impl HealthWatch {
    pub(super) fn new(health: Health, threshold: Duration, now: Instant) -> Self {
        Self {
            health,
            threshold,
            started: now,
            unhealthy_since: None,
            announced: Announced::default(),
        }
    }

    /// When the health is next to be announced, if nothing else happens.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let expiry = self.unhealthy_since.is_none().then(|| self.expires());
        [expiry, self.compare_at()].into_iter().flatten().min()
    }

    /// The first moment that is *beyond* the threshold, as the kubelet's rule wants it.
    fn expires(&self) -> Instant {
        self.health.expires().unwrap_or(self.started + self.threshold) + Duration::from_millis(1)
    }

    /// The threshold has passed without a complete relist. Returns the report, once.
    fn turned_unhealthy(&mut self, now: Instant) -> Option<Report> {
        if self.unhealthy_since.is_some() || now < self.expires() {
            return None;
        }
        self.unhealthy_since = Some(now);
        // Unhealthy is more than degraded.
        self.announced.degraded_since = None;
        Some(self.health.report())
    }

    /// Relists are complete again. Returns for how long they were not, once.
    fn recovered(&mut self) -> Option<Duration> {
        self.unhealthy_since.take().map(|since| since.elapsed())
    }

    /// When troubles are next to be compared with what was announced; none while all is well and no call is in flight.
    fn compare_at(&self) -> Option<Instant> {
        let announced = &self.announced;
        let after = |pause: Duration| announced.compared.map_or(self.started, |compared| compared + pause);
        if self.health.changes() != announced.changes {
            Some(after(PAUSE))
        } else if announced.is_quiet() {
            let late = self.health.oldest_call()? + SLOW_CALL;
            Some(late.max(after(AGAIN)))
        } else {
            Some(after(AGAIN))
        }
    }

    /// Compares the health with what was announced, if it is time to. Returns the events that announce the difference. `hang_logged`:
    /// a list hangs, and the object that blocks it is known, or known not to be found.
    fn compare(&mut self, now: Instant, hang_logged: bool) -> Vec<Event> {
        if self.compare_at().is_none_or(|at| now < at) {
            return Vec::new();
        }
        // Before the report: what changes after it is found by the next comparison.
        self.announced.changes = self.health.changes();
        self.announced.compared = Some(now);
        let report = self.health.report_in_full();
        let worth_announcing = |cause: &&Cause| match cause.stage {
            // A list that hangs is announced together with the object that blocks it, once that is known, or known not to be found.
            Stage::List => cause.attempts > 0 || hang_logged,
            // A status call that is late answers, or its object is in quarantine soon.
            Stage::Inspect => cause.attempts > 0,
            Stage::Generator | Stage::Probe | Stage::Stream | Stage::Witness => true,
        };
        let causes: Vec<&Cause> = report.causes.iter().filter(worth_announcing).collect();
        let mut events = self.announced.compare(&causes, now);
        if self.unhealthy_since.is_none() {
            events.extend(self.announced.level(&report, now));
        }
        events
    }
}

/// What readers of the feed know of troubles.
#[derive(Debug, Default)]
struct Announced {
    /// What [`crate::Health`] had counted at the last comparison, and when that was.
    changes: u64,
    compared: Option<Instant>,
    open: BTreeMap<Key, Open>,
    /// There are more than [`MOST`].
    more: Option<Open>,
    degraded_since: Option<Instant>,
}

impl Announced {
    fn is_quiet(&self) -> bool {
        self.open.is_empty() && self.more.is_none() && self.degraded_since.is_none()
    }

    /// Compares the causes with what was announced. Returns the events that announce the difference.
    fn compare(&mut self, causes: &[&Cause], now: Instant) -> Vec<Event> {
        let current: BTreeMap<Key, &Cause> = causes.iter().map(|cause| (key(cause), *cause)).collect();
        let mut events = Vec::new();
        self.open.retain(|key, open| {
            // A trouble that has been given a name is announced once more, under that name.
            let lasts = current
                .get(key)
                .is_some_and(|cause| open.about.is_some() || cause.who.about.is_none());
            if !lasts {
                events.push(open.ended(now));
            }
            lasts
        });
        let mut room = MOST.saturating_sub(self.open.keys().filter(|key| is_of_object(key)).count());
        let mut left_out = Vec::new();
        for (key, cause) in current {
            if self.open.contains_key(&key) {
                continue;
            }
            if is_of_object(&key) {
                if room == 0 {
                    left_out.push(cause);
                    continue;
                }
                room -= 1;
            }
            events.push(started(cause.trouble, cause.who.about.clone(), &cause.text));
            self.open.insert(key, Open::of(cause, now));
        }
        match (&self.more, left_out.first()) {
            (None, Some(first)) => {
                let text = format!(
                    "{} more containers or sandboxes are in trouble; each is reported when there are fewer than {MOST}",
                    left_out.len()
                );
                events.push(started(first.trouble, None, &text));
                self.more = Some(Open {
                    about: None,
                    ..Open::of(first, now)
                });
            }
            (Some(more), None) => {
                events.push(more.ended(now));
                self.more = None;
            }
            _ => {}
        }
        events
    }

    /// The event of a change of level, if the level has changed.
    fn level(&mut self, report: &Report, now: Instant) -> Option<Event> {
        match (report.level, self.degraded_since) {
            (Level::Degraded, None) => {
                self.degraded_since = Some(now);
                let mut event = Event::of_generator(EventType::PlegDegraded);
                event.reason = Some(report.short().into());
                Some(event)
            }
            (Level::Healthy, Some(since)) => {
                self.degraded_since = None;
                let mut event = Event::of_generator(EventType::PlegHealthy);
                let lasted = whole(now - since);
                event.reason = Some(format!("PLEG is healthy again: it was degraded for {}", seconds(lasted)).into());
                Some(event)
            }
            _ => None,
        }
    }
}

impl Open {
    fn of(cause: &Cause, now: Instant) -> Self {
        let age = Duration::from_secs(cause.age_seconds);
        Self {
            trouble: cause.trouble,
            about: cause.who.about.clone(),
            since: now.checked_sub(age).unwrap_or(now),
        }
    }

    fn ended(&self, now: Instant) -> Event {
        Event {
            lasted: Some(now.saturating_duration_since(self.since)),
            ..trouble(EventType::TroubleEnded, self.trouble, self.about.clone())
        }
    }
}

fn started(what: Trouble, about: Option<(PodRef, ObjectRef)>, text: &str) -> Event {
    Event {
        reason: Some(text.into()),
        ..trouble(EventType::TroubleStarted, what, about)
    }
}

fn trouble(kind: EventType, what: Trouble, about: Option<(PodRef, ObjectRef)>) -> Event {
    let (pod, object) = about.unzip();
    Event {
        trouble: Some(what),
        pod,
        subject: object.map(|object| match object {
            ObjectRef::Container(container) => Subject::Container(container),
            ObjectRef::Sandbox { id } => Subject::Sandbox { id, state: None },
        }),
        ..Event::of_generator(kind)
    }
}

/// The lists are one trouble, whichever object blocks them; a trouble of one object is keyed by that object.
fn key(cause: &Cause) -> Key {
    let id = cause.who.id.clone().filter(|_| !cause.is_of_list());
    (cause.stage, id)
}

fn is_of_object((stage, id): &Key) -> bool {
    matches!(stage, Stage::Inspect | Stage::Probe | Stage::Witness) && id.is_some()
}

fn whole(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

impl<R: Runtime> Generator<R> {
    /// Announces once that the threshold has passed without a complete relist.
    pub(super) fn check_health(&mut self) {
        let Some(report) = self.health_watch.turned_unhealthy(Instant::now()) else {
            return;
        };
        let message = &report.message;
        tracing::error!("{}", report.short());
        if let Some(first) = report.causes.first() {
            tracing::debug!("{} {}", first.means, first.next);
        }
        self.recorder.transition(Turn::Unhealthy, None, Some(message), None);
        self.publisher.announce(EventType::PlegNotHealthy, message);
        self.reset_period("unhealthy");
    }

    /// Announces once that relists are complete again.
    pub(super) fn check_recovery(&mut self) {
        let Some(lasted) = self.health_watch.recovered() else {
            return;
        };
        let message = format!("PLEG is healthy again, after {}", seconds(lasted));
        tracing::info!("{message}");
        self.recorder.transition(Turn::Healthy, None, None, Some(lasted));
        self.publisher.announce(EventType::PlegHealthy, &message);
    }

    /// Announces what has gone wrong, and what is over.
    pub(super) fn announce_troubles(&mut self) {
        let hang_logged = self.stuck_list.is_logged();
        let events = self.health_watch.compare(Instant::now(), hang_logged);
        if !events.is_empty() {
            self.publisher.publish(events);
        }
    }
}

#[cfg(test)]
mod tests;
