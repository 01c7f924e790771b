//! Lifecycle events as log records, with the names of the semantic conventions where they have one.

use std::time::SystemTime;

use pleg::event::Subject;
use pleg::{Event, EventType, Gap, Item, Overflow, Pleg, Start};

use crate::proto::{LogRecord, attribute};
use crate::queue::Queue;

/// Severities, as OTLP numbers them.
const INFO: (i32, &str) = (9, "INFO");
const WARN: (i32, &str) = (13, "WARN");
const ERROR: (i32, &str) = (17, "ERROR");

/// Makes records of all events from now on. While the queue is full the feed keeps them, and then says what it could not keep.
pub(crate) async fn read(pleg: &Pleg, queue: &Queue<LogRecord>) {
    let mut events = pleg.subscribe(Start::AfterFirstRelist, Overflow::Gap);
    while let Some(item) = events.next().await {
        let record = match &item {
            Item::Event(event) => of_event(event),
            Item::Gap(gap) => of_gap(gap),
        };
        queue.has_room().await;
        queue.push(record);
    }
}

fn nanos(at: jiff::Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or_default()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn severity(kind: EventType) -> (i32, &'static str) {
    match kind {
        EventType::PlegNotHealthy => ERROR,
        EventType::PlegDegraded | EventType::TroubleStarted => WARN,
        _ => INFO,
    }
}

fn of_event(event: &Event) -> LogRecord {
    let (severity_number, severity_text) = severity(event.kind);
    let mut attributes = vec![
        attribute("pleg.event.seq", i64::try_from(event.seq).unwrap_or(i64::MAX)),
        attribute("pleg.event.source", event.source.name()),
    ];
    let mut body = event.kind.name().to_owned();
    if let Some(pod) = &event.pod {
        body = format!("{body} {pod}");
        attributes.push(attribute("k8s.namespace.name", &*pod.namespace));
        attributes.push(attribute("k8s.pod.name", &*pod.name));
        attributes.push(attribute("k8s.pod.uid", pod.uid.as_str()));
    }
    match &event.subject {
        Some(Subject::Container(container)) => {
            body = format!("{body} {}", container.name);
            attributes.push(attribute("k8s.container.name", &*container.name));
            attributes.push(attribute("k8s.container.restart_count", i64::from(container.attempt)));
            attributes.push(attribute("container.id", container.id.as_str()));
        }
        Some(Subject::Sandbox { id, state }) => {
            attributes.push(attribute("pleg.sandbox.id", id.as_str()));
            if let Some(state) = state {
                attributes.push(attribute("pleg.sandbox.state", format!("{state:?}").as_str()));
            }
        }
        None => {}
    }
    if let Some(pid) = event.pid {
        attributes.push(attribute("process.pid", i64::from(pid)));
    }
    if let Some(code) = event.exit_code {
        body = format!("{body} {code}");
        attributes.push(attribute("process.exit.code", i64::from(code)));
    }
    if let Some(reason) = &event.reason {
        body = format!("{body} {reason}");
        let key = match event.kind {
            EventType::ContainerDied => "k8s.container.status.last_terminated_reason",
            _ => "pleg.reason",
        };
        attributes.push(attribute(key, &**reason));
    }
    if let Some(trouble) = event.trouble {
        attributes.push(attribute("pleg.trouble", trouble.name()));
    }
    if let Some(lag) = event.lag {
        attributes.push(attribute("pleg.event.lag", lag.as_secs_f64()));
    }
    if let Some(lasted) = event.lasted {
        attributes.push(attribute("pleg.trouble.duration", lasted.as_secs_f64()));
    }
    LogRecord {
        time_unix_nano: nanos(event.time),
        severity_number,
        severity_text: severity_text.to_owned(),
        body: Some(body.as_str().into()),
        attributes,
        observed_time_unix_nano: now(),
        event_name: format!("pleg.{}", event.kind.name()),
    }
}

fn of_gap(gap: &Gap) -> LogRecord {
    let (number, text) = WARN;
    LogRecord {
        time_unix_nano: now(),
        severity_number: number,
        severity_text: text.to_owned(),
        body: Some(format!("events {} to {} were lost", gap.from, gap.to).as_str().into()),
        attributes: Vec::new(),
        observed_time_unix_nano: now(),
        event_name: "pleg.Gap".to_owned(),
    }
}
