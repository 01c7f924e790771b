//! Entries of a history as lines of a table: events as `pleg watch` prints them, and what is no event in words.

use std::fmt::Write as _;

use pleg_history::{Entry, FieldChange, HealthChanged, Histogram, MissedEvents, MissedReason, Record, What};

use super::event::EventTable;
use crate::text::{lag, zone};
use crate::wire::{Event, Line};

/// Formats entries as lines.
#[derive(Debug)]
pub(crate) struct HistoryTable(EventTable);

impl HistoryTable {
    /// A table for what stdout is.
    pub(crate) fn for_stdout(wide: bool) -> Self {
        Self(EventTable::past(super::columns(), wide, zone()))
    }

    #[cfg(test)]
    fn new(columns: Option<usize>, wide: bool) -> Self {
        Self(EventTable::past(columns, wide, jiff::tz::TimeZone::UTC))
    }

    pub(crate) fn head(&mut self) -> String {
        self.0.head()
    }

    pub(crate) fn row(&mut self, entry: &Entry) -> String {
        match &entry.record {
            Record::Event(event) => self.0.row(&Line::Event(Box::new(Event::from(&**event)))),
            Record::Note(note) => {
                let kind = entry.kind().name();
                let container = match &note.what {
                    What::NodeEvent(event) => event.container.as_deref().unwrap_or_default(),
                    _ => "",
                };
                self.0
                    .message(note.time, kind, entry.pod(), container, &words(&note.what))
            }
        }
    }
}

/// A note in words.
fn words(what: &What) -> String {
    match what {
        What::DaemonStarted(started) => {
            let mut text = format!("pleg {} started", started.version);
            match started.previous {
                Some(previous) if !previous.clean => text.push_str("; the run before it was killed or crashed"),
                _ => {}
            }
            text
        }
        What::DaemonStopped { last_seq } => format!("pleg stopped after event {last_seq}"),
        What::HealthChanged(changed) => health(changed),
        What::PodStatusChanged(changed) => {
            let changes: Vec<_> = changed.changes.iter().map(change).collect();
            changes.join("; ")
        }
        What::Gap(missed) => gap(*missed),
        What::Sample(sample) => {
            let failed = match sample.failed_relists {
                0 => String::new(),
                n => format!(", {n} failed"),
            };
            format!(
                "relists: {}{failed}; lag: {}",
                durations(&sample.relists),
                durations(&sample.lag)
            )
        }
        What::NodeEvent(event) => format!("{}: {}", event.reason, event.message),
        // A newer version of the library may have more.
        _ => String::new(),
    }
}

fn health(changed: &HealthChanged) -> String {
    let mut text = format!("{}: {}", changed.level, changed.headline);
    if let Some(cause) = changed.causes.first() {
        let _ = write!(text, ": {}", cause.text);
    }
    let more = changed.causes.len().saturating_sub(1) as u64 + changed.more_causes;
    if more > 0 {
        let _ = write!(text, " (and {more} more)");
    }
    text
}

fn change(change: &FieldChange) -> String {
    let of = change
        .container
        .as_ref()
        .map(|name| format!("{name} "))
        .unwrap_or_default();
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    format!("{of}{}: {} → {}", change.field, value(&change.from), value(&change.to))
}

fn gap(missed: MissedEvents) -> String {
    let MissedEvents { from, to, reason } = missed;
    let why = match reason {
        MissedReason::NotWritten => "the file could not be written",
        MissedReason::Crashed => "the daemon was killed or crashed",
        _ => "not stored",
    };
    if from <= to {
        format!("events {from} to {to} are missing: {why}")
    } else {
        format!("the events of its last second may be missing: {why}")
    }
}

fn durations(histogram: &Histogram) -> String {
    let at = |share| histogram.quantile(share).map(lag);
    match (at(0.5), at(0.99)) {
        (Some(p50), Some(p99)) => format!("{} (p50 {p50}, p99 {p99})", histogram.count),
        _ => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(json: &str) -> Entry {
        serde_json::from_str(json).unwrap()
    }

    const HEAD: &str = r#""id":1,"instance":"5f0c2a9be1d34c77","time":"2026-11-16T18:04:05Z""#;
    const POD: &str = r#""pod":{"uid":"8f3c","namespace":"default","name":"web-7d4b9c6f5-abcde"}"#;

    fn entries() -> Vec<Entry> {
        [
            format!(
                r#"{{{HEAD},"seq":1,"type":"ContainerDied",{POD},"subject":{{"kind":"container","id":"c0ffee","name":"app","attempt":2}},"exit_code":137,"reason":"OOMKilled","initial":false,"source":"relist","lag":0.352}}"#
            ),
            format!(
                r#"{{{HEAD},"seq":2,"type":"TroubleEnded",{POD},"subject":{{"kind":"container","id":"c0ffee","name":"app","attempt":2}},"reason":"ContainerStatus: no answer within 10s","initial":false,"source":"relist","trouble":"stuck-inspection","lasted":41.5}}"#
            ),
            format!(r#"{{{HEAD},"seq":3,"type":"PlegDegraded","reason":"PLEG is degraded","initial":false,"source":"relist"}}"#),
            format!(
                r#"{{{HEAD},"type":"DaemonStarted","version":"0.1.0","first_seq":4,"previous":{{"last":"5f0c2a9be1d34c77-3","clean":false}}}}"#
            ),
            format!(r#"{{{HEAD},"type":"DaemonStopped","last_seq":3}}"#),
            format!(
                r#"{{{HEAD},"type":"HealthChanged","level":"Degraded","headline":"PLEG is degraded","causes":[{{"trouble":"hung-shim","text":"the shim of pod default/web does not answer","next":"n","age_seconds":3,"attempts":1}}],"more_causes":2}}"#
            ),
            format!(
                r#"{{{HEAD},"type":"PodStatusChanged",{POD},"changes":[{{"container":"app","field":"memory_limit_in_bytes","from":"100","to":"200"}},{{"field":"ips","to":"10.0.0.7"}}]}}"#
            ),
            format!(
                r#"{{{HEAD},"type":"NodeEvent",{POD},"container":"app","warning":true,"reason":"Unhealthy","message":"Liveness probe failed: HTTP probe failed with statuscode: 503"}}"#
            ),
            format!(r#"{{{HEAD},"type":"Gap","from":3,"to":9,"reason":"not-written"}}"#),
            format!(r#"{{{HEAD},"type":"Gap","from":3,"to":2,"reason":"crashed"}}"#),
            format!(
                r#"{{{HEAD},"type":"Sample","from":"2026-11-16T18:03:05Z","relists":{{"count":60,"max_seconds":0.01,"buckets":{{"53":60}}}},"failed_relists":1,"lag":{{"count":0,"max_seconds":0,"buckets":{{}}}}}}"#
            ),
        ]
        .iter()
        .map(|json| entry(json))
        .collect()
    }

    fn lines(mut table: HistoryTable) -> Vec<String> {
        let head = table.head();
        let rows = entries();
        let rows = rows.iter().map(|entry| table.row(entry));
        std::iter::once(head)
            .chain(rows)
            .map(|line| anstream::adapter::strip_str(&line).to_string())
            .collect()
    }

    #[test]
    fn lines_fit_eighty_columns() {
        let lines = lines(HistoryTable::new(Some(80), false));
        for line in &lines {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert_eq!(lines.len(), entries().len() + 1);
        assert!(
            lines[0].starts_with("TIME (UTC)     TYPE") && lines[0].ends_with("EXIT REASON"),
            "{}",
            lines[0]
        );
        assert_eq!(
            lines[1],
            "11-16 18:04:05 ContainerDied     default/we…c6f5-abcde app#2      137  OOMKilled"
        );
        // What does not fit ends with a mark.
        assert!(
            lines[2].contains("TroubleEnded") && lines[2].ends_with('…'),
            "{}",
            lines[2]
        );
    }

    #[test]
    fn nothing_is_cut_in_a_pipe() {
        let lines = lines(HistoryTable::new(None, true));
        assert!(lines[0].ends_with("UID"), "{}", lines[0]);
        for (line, end) in lines.iter().skip(2).zip([
            "stuck-inspection, after 41s: ContainerStatus: no answer within 10s",
            "PLEG is degraded",
            "pleg 0.1.0 started; the run before it was killed or crashed",
            "pleg stopped after event 3",
            "Degraded: PLEG is degraded: the shim of pod default/web does not answer (and 2 more)",
            "app memory_limit_in_bytes: 100 → 200; ips: none → 10.0.0.7",
            "Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 503",
            "events 3 to 9 are missing: the file could not be written",
            "the events of its last second may be missing: the daemon was killed or crashed",
            "relists: 60 (p50 10ms, p99 10ms), 1 failed; lag: none",
        ]) {
            assert!(line.starts_with("11-16 18:04:05 ") && line.ends_with(end), "{line}");
        }
    }
}
