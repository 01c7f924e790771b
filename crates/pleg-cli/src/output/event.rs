//! Events as lines of a table. The widths are fixed: nobody knows the names that are still to come.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pleg_cri::error::seconds;

use super::{CYAN, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::text::{ShortNames, clean, clock, lag, shorten, zone};
use crate::wire::{Event, Gap, Line, Subject};

const TIME: usize = 8;
const TYPE: usize = 17;
const POD: usize = 21;
const CONTAINER: usize = 10;
const EXIT: usize = 4;
const REASON: usize = 9;
const LAG: usize = 5;
/// What the columns above take, with a space between each.
const NARROW: usize = TIME + TYPE + POD + CONTAINER + EXIT + REASON + LAG + 6;

/// How events become lines.
#[derive(Debug, Clone)]
pub(crate) struct EventTable {
    pod: usize,
    container: usize,
    reason: usize,
    /// On a terminal what is too long is cut; in a file or pipe it is not.
    cut: bool,
    wide: bool,
    zone: TimeZone,
    pods: Arc<ShortNames>,
    /// Times that are not of today or not of this zone have both with them.
    dated: bool,
}

impl EventTable {
    /// A table for a terminal of `columns`, or for a file or pipe.
    pub(crate) fn new(columns: Option<usize>, wide: bool, zone: TimeZone) -> Self {
        // Wide lines are meant to be wide: they are not cut.
        let room = columns
            .filter(|_| !wide)
            .unwrap_or(NARROW)
            .saturating_sub(NARROW)
            .min(60);
        let container = room / 4;
        let reason = room / 8;
        Self {
            pod: POD + room - container - reason,
            container: CONTAINER + container,
            reason: REASON + reason,
            cut: columns.is_some() && !wide,
            wide,
            zone,
            pods: Arc::default(),
            dated: false,
        }
    }

    /// A table for what stdout is.
    pub(crate) fn for_stdout(wide: bool) -> Self {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0);
        Self {
            dated: true,
            ..Self::new(columns, wide, zone())
        }
    }

    pub(crate) fn head(&self) -> String {
        let mut cells = vec!["TIME", "TYPE", "NAMESPACE/POD", "CONTAINER", "EXIT", "REASON", "LAG"];
        if self.wide {
            cells.extend(["SEQ", "SOURCE", "ID", "UID"]);
        }
        self.line(&cells.map_to_strings(), "")
    }

    pub(crate) fn row(&self, line: &Line) -> String {
        match line {
            Line::Event(event) => self.event(event),
            Line::Gap(gap) => format!("{YELLOW}--- {} ---{PLAIN}", missed(gap)),
            // Not for people.
            Line::Heartbeat(_) => String::new(),
        }
    }

    fn event(&self, event: &Event) -> String {
        let (id, container) = match &event.subject {
            Some(Subject::Container { id, name, attempt: 0 }) => (id.as_str(), name.clone()),
            Some(Subject::Container { id, name, attempt }) => (id.as_str(), format!("{name}#{attempt}")),
            Some(Subject::Sandbox { id, .. }) => (id.as_str(), String::new()),
            None => ("", String::new()),
        };
        // A sandbox has no reason, but a state it changed to.
        let state = match &event.subject {
            Some(Subject::Sandbox { state, .. }) => state.as_deref(),
            _ => None,
        };
        let reason = clean(event.reason.as_deref().or(state).unwrap_or_default());
        if let Some(trouble) = &event.trouble {
            return self.trouble(event, trouble, &container, &reason);
        }
        let Some(pod) = &event.pod else {
            // The generator's own words need the room of the pod.
            let time = self.time(event);
            let colour = colour(&event.kind);
            return format!("{time} {colour}{:TYPE$}{PLAIN} {reason}", event.kind);
        };
        let mut cells = vec![
            self.time(event),
            event.kind.clone(),
            clean(&pod.full_name()),
            clean(&container),
            event.exit_code.map(|code| code.to_string()).unwrap_or_default(),
            reason,
            match event.lag {
                Some(seconds) => lag(seconds),
                None if event.initial => "init".to_owned(),
                None => String::new(),
            },
        ];
        if self.wide {
            cells.extend([event.seq.to_string(), event.source.clone(), clean(id), clean(&pod.uid)]);
        }
        self.line(&cells, colour(&event.kind))
    }

    /// What is seen of a trouble needs the room of the columns that it has no use for.
    fn trouble(&self, event: &Event, trouble: &str, container: &str, reason: &str) -> String {
        let mut words = vec![
            self.time(event),
            format!("{}{:TYPE$}{PLAIN}", colour(&event.kind), event.kind),
        ];
        if let Some(pod) = &event.pod {
            words.push(format!("{:1$}", clean(&pod.full_name()), self.pod));
            words.push(format!("{:1$}", clean(container), self.container));
        }
        let mut text = clean(trouble);
        if let Some(lasted) = event.lasted {
            let lasted = Duration::try_from_secs_f64(lasted).unwrap_or_default();
            let _ = write!(text, ", after {}", seconds(Duration::from_secs(lasted.as_secs())));
        }
        if !reason.is_empty() {
            let _ = write!(text, ": {reason}");
        }
        words.push(text);
        words.join(" ")
    }

    fn time(&self, event: &Event) -> String {
        let time = if self.dated {
            clock(event.time, Timestamp::now(), &self.zone, &TimeZone::system())
        } else {
            event.time.to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string()
        };
        format!("{time:<TIME$}")
    }

    fn line(&self, cells: &[String], colour: &str) -> String {
        let widths = [
            TIME,
            TYPE,
            self.pod,
            self.container,
            EXIT,
            self.reason,
            LAG,
            6,
            9,
            64,
            36,
        ];
        let mut line = String::new();
        for (n, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let cell = match n {
                _ if !self.cut => cell.clone(),
                // A pod that looks like another one helps nobody.
                2 => self.pods.shorten(cell, width),
                _ => shorten(cell, width),
            };
            if n > 0 {
                line.push(' ');
            }
            let pad = width.saturating_sub(cell.chars().count());
            if n == 1 && !colour.is_empty() {
                let _ = write!(line, "{colour}{cell}{PLAIN}");
            } else {
                line.push_str(&cell);
            }
            line.extend(std::iter::repeat_n(' ', pad));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// What a reader missed, in words.
fn missed(gap: &Gap) -> String {
    let Gap { from, to, .. } = gap;
    let range = (from <= to).then(|| format!("{from} to {to}"));
    if gap.is_restart() {
        let last = gap.after.map_or(0, |cursor| cursor.seq);
        let also = range.map_or(String::new(), |range| format!(", and {range} of this run"));
        return format!("pleg restarted; missed: what followed event {last}{also}");
    }
    match (to + 1).saturating_sub(*from) {
        1 => format!("1 event missed: {from} is no longer held"),
        count => {
            let range = range.unwrap_or_else(|| "none".to_owned());
            format!("{count} events missed: {range} are no longer held")
        }
    }
}

fn colour(kind: &str) -> &'static str {
    match kind {
        "ContainerStarted" | "PlegHealthy" | "TroubleEnded" => GREEN,
        "ContainerDied" | "PlegNotHealthy" => RED,
        "ContainerStopped" | "ContainerChanged" | "PlegDegraded" | "TroubleStarted" => YELLOW,
        "ContainerCreated" | "PodSandboxChanged" => CYAN,
        _ => DIM,
    }
}

trait MapToStrings {
    fn map_to_strings(&self) -> Vec<String>;
}

impl MapToStrings for Vec<&str> {
    fn map_to_strings(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PodRef;

    fn died(pod: &str, container: &str) -> Line {
        Line::Event(Box::new(Event {
            seq: 12,
            instance: None,
            time: "2026-01-02T03:04:05.678Z".parse().unwrap(),
            kind: "ContainerDied".to_owned(),
            pod: Some(PodRef {
                uid: "8f3c1c1e".to_owned(),
                namespace: "default".to_owned(),
                name: pod.to_owned(),
            }),
            subject: Some(Subject::Container {
                id: "c0ffee".to_owned(),
                name: container.to_owned(),
                attempt: 2,
            }),
            exit_code: Some(137),
            reason: Some("OOMKilled".to_owned()),
            initial: false,
            source: "relist".to_owned(),
            lag: Some(0.352),
            trouble: None,
            lasted: None,
        }))
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn lines_fit_eighty_columns() {
        let table = EventTable::new(Some(80), false, TimeZone::UTC);
        let gap = |json: &str| plain(&table.row(&serde_json::from_str(json).unwrap()));
        let lines = [
            table.head(),
            plain(&table.row(&died("web", "app"))),
            plain(&table.row(&died("web-7d4b9c6f5-abcde-and-more", "a-long-container-name"))),
            gap(r#"{"type":"Gap","from":3,"to":9}"#),
            gap(r#"{"type":"Gap","from":1,"to":0,"reason":"restarted","after":"5f0c2a9be1d34c77-15"}"#),
            gap(r#"{"type":"Gap","from":1,"to":40,"reason":"restarted","after":"5f0c2a9be1d34c77-15"}"#),
        ];
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        insta::assert_snapshot!(lines.join("\n"), @r"
        TIME     TYPE              NAMESPACE/POD         CONTAINER  EXIT REASON    LAG
        03:04:05 ContainerDied     default/web           app#2      137  OOMKilled 352ms
        03:04:05 ContainerDied     default/we…e-and-more a-lon…me#2 137  OOMKilled 352ms
        --- 7 events missed: 3 to 9 are no longer held ---
        --- pleg restarted; missed: what followed event 15 ---
        --- pleg restarted; missed: what followed event 15, and 1 to 40 of this run ---
        ");
    }

    #[test]
    fn troubles_are_told_in_words() {
        let table = EventTable::new(None, false, TimeZone::UTC);
        let row = |json: &str| plain(&table.row(&serde_json::from_str(json).unwrap()));
        let started = r#"{"seq":9,"time":"2026-01-02T03:04:05Z","type":"TroubleStarted","pod":{"uid":"u","namespace":"default","name":"web-1"},"subject":{"kind":"container","id":"c","name":"app","attempt":0},"reason":"no answer within 10s","initial":false,"source":"relist","trouble":"stuck-inspection"}"#;
        let ended = r#"{"seq":9,"time":"2026-01-02T03:04:47Z","type":"TroubleEnded","initial":false,"source":"relist","trouble":"stream-down","lasted":41.5}"#;
        insta::assert_snapshot!([row(started), row(ended)].join("\n"), @r"
        03:04:05 TroubleStarted    default/web-1         app        stuck-inspection: no answer within 10s
        03:04:47 TroubleEnded      stream-down, after 41s
        ");
    }

    #[test]
    fn a_pipe_gets_everything() {
        let table = EventTable::new(None, false, TimeZone::UTC);
        let line = plain(&table.row(&died("web-7d4b9c6f5-abcde-and-more", "a-long-container-name")));
        assert!(line.contains("default/web-7d4b9c6f5-abcde-and-more a-long-container-name#2 137"));
        let wide = EventTable::new(None, true, TimeZone::UTC);
        assert!(plain(&wide.row(&died("web", "app"))).contains("12     relist    c0ffee"));
    }
}
