//! Troubles from their start to their end.
//!
//! The event of an end says how long the trouble lasted, so its start is known even if it is older than the first entry. A trouble whose
//! daemon ended before it did is cut short there: the next daemon reports it anew if it is still there.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{Cursor, Event, EventType, InstanceId, PodRef};
use serde::{Deserialize, Serialize};

use super::{rounded, seconds_between};
use crate::entry::{Entry, HealthCause, What};

/// A trouble from its start to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TroubleSpan {
    /// Its name, as in health.
    pub trouble: String,
    /// Whose, as `namespace/name`, if it is a pod's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Which container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// What was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it started; before the window for some.
    pub from: Timestamp,
    /// When it ended, or the daemon did; none if it is still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// How long it lasted, or has lasted by the end of the window.
    pub seconds: f64,
    /// The daemon ended before the trouble did: it lasted at least so long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_short: bool,
    /// The event that reported its start; if that is not known, its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Cursor>,
}

/// What makes two reports be about one trouble.
type Key = (String, Option<String>, Option<String>);

/// Puts troubles together.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    open: HashMap<Key, TroubleSpan>,
    ended: Vec<TroubleSpan>,
    /// The daemon that reports them, and when it last did.
    seen: Option<(InstanceId, Timestamp)>,
}

impl Troubles {
    /// What was wrong already when the first entry was written.
    pub(super) fn were(&mut self, time: Timestamp, instance: InstanceId, causes: &[HealthCause]) {
        self.seen = Some((instance, time));
        for cause in causes {
            let from = time.checked_sub(Duration::from_secs(cause.age_seconds)).unwrap_or(time);
            let key = (cause.trouble.clone(), cause.pod.clone(), cause.container.clone());
            self.open.entry(key).or_insert_with(|| TroubleSpan {
                trouble: cause.trouble.clone(),
                pod: cause.pod.clone(),
                container: cause.container.clone(),
                reason: Some(cause.text.clone()),
                from,
                to: None,
                seconds: 0.0,
                cut_short: false,
                event: None,
            });
        }
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        let (instance, time) = (entry.instance(), entry.time());
        if let Some((known, last)) = self.seen
            && known != instance
        {
            self.cut(last);
        }
        self.seen = Some((instance, time));
        if let Some(What::DaemonStopped { .. }) = entry.note() {
            self.cut(time);
        }
        if let Some(event) = entry.event()
            && let Some(trouble) = event.trouble
        {
            let (pod, container) = (event.pod.as_ref().map(PodRef::to_string), container_name(event));
            let key = (trouble.name().to_owned(), pod.clone(), container.clone());
            let span = || TroubleSpan {
                trouble: trouble.name().to_owned(),
                pod,
                container,
                reason: event.reason.as_deref().map(str::to_owned),
                from: event.time,
                to: None,
                seconds: 0.0,
                cut_short: false,
                event: Some(event.cursor()),
            };
            match event.kind {
                EventType::TroubleStarted => {
                    self.open.entry(key).or_insert_with(span);
                }
                EventType::TroubleEnded => self.end(&key, event, span),
                _ => {}
            }
        }
    }

    fn end(&mut self, key: &Key, event: &Event, span: impl FnOnce() -> TroubleSpan) {
        let mut span = self.open.remove(key).unwrap_or_else(|| {
            let mut span = span();
            let lasted = event.lasted.unwrap_or_default();
            span.from = event.time.checked_sub(lasted).unwrap_or(event.time);
            span
        });
        span.to = Some(event.time);
        span.seconds = match event.lasted {
            Some(lasted) => rounded(lasted.as_secs_f64()),
            None => seconds_between(span.from, event.time),
        };
        self.ended.push(span);
    }

    /// Whatever is open is not seen any more from this time on.
    fn cut(&mut self, at: Timestamp) {
        self.ended.extend(self.open.drain().map(|(_, mut span)| {
            span.to = Some(at.max(span.from));
            span.seconds = seconds_between(span.from, at);
            span.cut_short = true;
            span
        }));
    }

    /// All of them, the oldest first. Those that are still there have lasted until `until`, if a daemon still runs.
    pub(super) fn finish(mut self, until: Timestamp, running: bool) -> Vec<TroubleSpan> {
        if let Some((_, last)) = self.seen
            && !running
        {
            self.cut(last);
        }
        let mut all = self.ended;
        all.extend(self.open.into_values().map(|mut span| {
            span.seconds = seconds_between(span.from, until);
            span
        }));
        all.sort_by(|a, b| {
            let names = |span: &TroubleSpan| (span.trouble.clone(), span.pod.clone(), span.container.clone());
            a.from.cmp(&b.from).then_with(|| names(a).cmp(&names(b)))
        });
        all
    }
}

/// The container an event is about.
pub(super) fn container_name(event: &Event) -> Option<String> {
    match &event.subject {
        Some(Subject::Container(container)) => Some(container.name.as_ref().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pleg::Trouble;

    use super::*;
    use crate::lookback::testing::{Day, at};

    /// Trouble, pod, from, to, how long, cut short.
    type Row = (String, Option<String>, i64, Option<i64>, f64, bool);

    fn spans(day: &Day, running: bool) -> Vec<Row> {
        let mut troubles = Troubles::default();
        day.entries().iter().for_each(|entry| troubles.add(entry));
        let second = |time: Timestamp| time.duration_since(at(0)).as_secs();
        let spans = troubles.finish(at(1000), running);
        spans
            .into_iter()
            .map(|span| {
                (
                    span.trouble,
                    span.pod,
                    second(span.from),
                    span.to.map(second),
                    span.seconds,
                    span.cut_short,
                )
            })
            .collect()
    }

    fn row(trouble: &str, pod: Option<&str>, from: i64, to: Option<i64>, seconds: f64, cut: bool) -> Row {
        (trouble.to_owned(), pod.map(str::to_owned), from, to, seconds, cut)
    }

    #[test]
    fn starts_and_ends_belong_together() {
        let mut day = Day::default();
        day.trouble(10, Some(("web", "app")), Trouble::StuckInspection);
        day.trouble(20, Some(("db", "app")), Trouble::StuckInspection);
        day.trouble_ended(30, Some(("web", "app")), Trouble::StuckInspection, 25);
        assert_eq!(
            spans(&day, true),
            [
                row("stuck-inspection", Some("default/web"), 10, Some(30), 25.0, false),
                row("stuck-inspection", Some("default/db"), 20, None, 980.0, false),
            ]
        );
    }

    #[test]
    fn an_end_alone_tells_the_start() {
        let mut day = Day::default();
        day.trouble_ended(30, None, Trouble::RuntimeDown, 100);
        assert_eq!(
            spans(&day, true),
            [row("runtime-down", None, -70, Some(30), 100.0, false)]
        );
    }

    #[test]
    fn a_daemon_that_ends_cuts_them_short() {
        let mut day = Day::default();
        day.trouble(10, None, Trouble::RuntimeDown);
        day.health(15, pleg::Level::Degraded, Vec::new());
        day.daemon_started(60, false);
        day.trouble(61, None, Trouble::RuntimeDown);
        assert_eq!(
            spans(&day, true),
            [
                row("runtime-down", None, 10, Some(15), 5.0, true),
                row("runtime-down", None, 61, None, 939.0, false),
            ]
        );
        // From a file alone nobody knows what came after its last entry.
        assert_eq!(
            spans(&day, false)[1],
            row("runtime-down", None, 61, Some(61), 0.0, true)
        );
    }

    #[test]
    fn what_was_wrong_before_is_not_forgotten() {
        let mut troubles = Troubles::default();
        let cause = HealthCause {
            trouble: "hung-shim".to_owned(),
            text: "t".to_owned(),
            next: "n".to_owned(),
            pod: Some("default/web".to_owned()),
            container: Some("app".to_owned()),
            age_seconds: 50,
            attempts: 2,
        };
        troubles.were(at(0), InstanceId::new(1), &[cause]);
        let mut day = Day::default();
        day.trouble_ended(100, Some(("web", "app")), Trouble::HungShim, 150);
        troubles.add(&day.entries()[0]);
        let spans = troubles.finish(at(1000), true);
        assert_eq!(spans.len(), 1);
        assert_eq!((spans[0].from, spans[0].to), (at(-50), Some(at(100))));
    }
}
