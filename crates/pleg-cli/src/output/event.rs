//! Events as lines of a table. The names that are still to come are not known, so the widths do not follow them.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pleg::event::Subject;
use pleg::{ContainerRef, PodRef};
use pleg_cri::duration::seconds;

use super::{CYAN, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::text::{ShortNames, clean, clock, columns, lag, pod_name, short_ids, shorten, zone};
use crate::wire::{Event, Gap, Line};

const TIME: usize = 8;
const TYPE: usize = 17;
const POD: usize = 21;
const CONTAINER: usize = 10;
const EXIT: usize = 4;
const REASON: usize = 9;
const LAG: usize = 5;
/// The width of the columns above, with a space between them.
const NARROW: usize = TIME + TYPE + POD + CONTAINER + EXIT + REASON + LAG + 6;

/// Formats events as lines.
#[derive(Debug)]
pub(crate) struct EventTable {
    columns: Option<usize>,
    /// Wider once a time with its date has come.
    time: usize,
    pod: usize,
    container: usize,
    reason: usize,
    /// Names are shortened on a terminal, never in a file or pipe.
    cut: bool,
    wide: bool,
    zone: TimeZone,
    pods: ShortNames,
    containers: ShortNames,
    times: Times,
}

/// How times are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    Plain,
    /// Those of another day or another zone with both.
    Dated,
    /// A short date with every time. What is past has no lag, unless the lines are wide, and ends with the terminal.
    Past,
}

/// A time with a short date: `11-16 18:04:05`.
const PAST_TIME: usize = 14;

impl EventTable {
    /// A table for a terminal of `columns`, or for a file or pipe.
    pub(crate) fn new(columns: Option<usize>, wide: bool, zone: TimeZone) -> Self {
        let mut table = Self {
            columns,
            time: TIME,
            pod: POD,
            container: CONTAINER,
            reason: REASON,
            // Wide output is never shortened.
            cut: columns.is_some() && !wide,
            wide,
            zone,
            pods: ShortNames::default(),
            containers: ShortNames::default(),
            times: Times::Plain,
        };
        table.lay_out(TIME);
        table
    }

    /// A table of what is past.
    pub(crate) fn past(columns: Option<usize>, wide: bool, zone: TimeZone) -> Self {
        let mut table = Self {
            times: Times::Past,
            ..Self::new(columns, wide, zone)
        };
        table.lay_out(PAST_TIME);
        table
    }

    fn is_past(&self) -> bool {
        self.times == Times::Past
    }

    /// Shares out the columns of the terminal, with so many of them for the time.
    fn lay_out(&mut self, time: usize) {
        let lag = if self.is_past() { LAG + 1 } else { 0 };
        let needed = NARROW - TIME - lag + time;
        let columns = self.columns.filter(|_| !self.wide);
        let room = columns.unwrap_or(needed).saturating_sub(needed).min(60);
        let (container, reason) = (room / 4, room / 8);
        self.time = time;
        self.pod = POD + room - container - reason;
        self.container = CONTAINER + container;
        self.reason = REASON + reason;
    }

    /// A table for what stdout is.
    pub(crate) fn for_stdout(wide: bool) -> Self {
        Self::dated(super::columns(), wide, zone())
    }

    /// A table whose times have their date and zone where they need them.
    fn dated(columns: Option<usize>, wide: bool, zone: TimeZone) -> Self {
        let mut table = Self {
            times: Times::Dated,
            ..Self::new(columns, wide, zone)
        };
        // In another zone than the local one every time has a date.
        table.widen(&table.clock(Timestamp::now()));
        table
    }

    /// Makes the times of these lines fit, for those who know all of them before the head.
    pub(crate) fn fit(&mut self, lines: &[Line]) {
        for line in lines {
            if let Line::Event(event) = line {
                self.widen(&self.clock(event.time));
            }
        }
    }

    /// Makes room for this time. Returns whether there was not enough.
    fn widen(&mut self, time: &str) -> bool {
        let needed = time.chars().count();
        let wider = needed > self.time;
        if wider {
            self.lay_out(needed);
        }
        wider
    }

    pub(crate) fn head(&mut self) -> String {
        let time = if self.is_past() && self.zone == TimeZone::UTC {
            "TIME (UTC)"
        } else {
            "TIME"
        };
        let mut cells = vec![time, "TYPE", "NAMESPACE/POD", "CONTAINER", "EXIT", "REASON", "LAG"];
        if self.wide {
            cells.extend(["SEQ", "SOURCE", "ID", "UID"]);
        } else if self.is_past() {
            cells.truncate(cells.len() - 1);
        }
        self.line(&cells.map_to_strings(), "")
    }

    /// The line of an event or a gap. The head stands before it again if the columns had to move.
    pub(crate) fn row(&mut self, line: &Line) -> String {
        match line {
            Line::Event(event) => {
                let moved = self.widen(&self.clock(event.time));
                let row = self.event(event);
                if moved { format!("{}\n{row}", self.head()) } else { row }
            }
            Line::Gap(gap) => format!("{YELLOW}--- {} ---{PLAIN}", missed(gap)),
            // Not for humans.
            Line::Heartbeat(_) => String::new(),
        }
    }

    fn event(&mut self, event: &Event) -> String {
        let words = Words::of(event, self.wide);
        if event.trouble.is_some() {
            return self.trouble(event, &words);
        }
        let Some(pod) = &event.pod else {
            if self.is_past() {
                return self.message(event.time, &event.kind, None, "", &words.reason);
            }
            // An event about the generator uses the columns of the pod for its message.
            let time = self.time(event);
            let colour = colour(&event.kind);
            return format!("{time} {colour}{:TYPE$}{PLAIN} {}", event.kind, words.reason);
        };
        let mut cells = vec![
            self.time(event),
            event.kind.clone(),
            words.pod,
            words.container,
            words.exit,
            words.reason,
            words.lag,
        ];
        if self.wide {
            let id = match &event.subject {
                Some(Subject::Container(container)) => container.id.as_str(),
                Some(Subject::Sandbox { id, .. }) => id.as_str(),
                None => "",
            };
            cells.extend([
                event.seq.to_string(),
                event.source.clone(),
                clean(id),
                clean(pod.uid.as_str()),
            ]);
        } else if self.is_past() {
            cells.truncate(cells.len() - 1);
        }
        self.line(&cells, colour(&event.kind))
    }

    /// A line with a message in place of the columns after the pod, or after the type if it is about none.
    pub(crate) fn message(
        &mut self,
        at: Timestamp,
        kind: &str,
        pod: Option<&PodRef>,
        container: &str,
        text: &str,
    ) -> String {
        let text = self.ids(clean(text));
        let mut line = format!("{:<2$} {}{kind:TYPE$}{PLAIN} ", self.clock(at), colour(kind), self.time);
        let mut before = self.time + TYPE + 2;
        if let Some(pod) = pod {
            let (mut name, mut container) = (clean(&pod_name(pod)), clean(container));
            if self.cut {
                name = self.pods.shorten(&name, self.pod);
                container = self.containers.shorten(&container, self.container);
            }
            before += name.chars().count().max(self.pod) + container.chars().count().max(self.container) + 2;
            let _ = write!(line, "{name:<0$} {container:<1$} ", self.pod, self.container);
        }
        let room = self.columns.filter(|_| self.is_past() && self.cut);
        match room.map(|columns| columns.saturating_sub(before).max(10)) {
            Some(room) if text.chars().count() > room => {
                line.extend(text.chars().take(room - 1));
                line.push('…');
            }
            _ => line.push_str(&text),
        }
        line
    }

    /// A trouble uses the columns that it does not need for its message.
    fn trouble(&mut self, event: &Event, words: &Words) -> String {
        if self.is_past() {
            return self.message(
                event.time,
                &event.kind,
                event.pod.as_ref(),
                &words.container,
                &words.sentence,
            );
        }
        let mut cells = vec![
            self.time(event),
            format!("{}{:TYPE$}{PLAIN}", colour(&event.kind), event.kind),
        ];
        if event.pod.is_some() {
            cells.push(format!("{:1$}", words.pod, self.pod));
            cells.push(format!("{:1$}", words.container, self.container));
        }
        cells.push(words.sentence.clone());
        cells.join(" ")
    }

    /// Ids in running text, whole only in wide lines.
    fn ids(&self, text: String) -> String {
        if self.wide { text } else { short_ids(&text) }
    }

    fn clock(&self, at: Timestamp) -> String {
        if self.is_past() {
            at.to_zoned(self.zone.clone()).strftime("%m-%d %H:%M:%S").to_string()
        } else if self.times == Times::Dated {
            clock(at, Timestamp::now(), &self.zone, &TimeZone::system())
        } else {
            at.to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string()
        }
    }

    fn time(&self, event: &Event) -> String {
        format!("{:<1$}", self.clock(event.time), self.time)
    }

    fn line(&mut self, cells: &[String], colour: &str) -> String {
        let widths = [
            self.time,
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
                // A name that looks like another one misleads.
                2 => self.pods.shorten(cell, width),
                3 => self.containers.shorten(cell, width),
                _ => shorten(cell, width),
            };
            if n > 0 {
                line.push(' ');
            }
            let pad = width.saturating_sub(columns(&cell));
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

/// What an event says, column by column; safe for a terminal. What it does not say is empty.
#[derive(Debug, Clone, Default)]
pub(crate) struct Words {
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) exit: String,
    pub(crate) reason: String,
    pub(crate) lag: String,
    /// A trouble, in place of the columns from `exit` on.
    pub(crate) sentence: String,
}

impl Words {
    /// Ids in running text are whole, or as short as crictl's.
    pub(crate) fn of(event: &Event, whole_ids: bool) -> Self {
        let ids = |text: String| if whole_ids { text } else { short_ids(&text) };
        // A sandbox has no reason; its new state takes that place.
        let (container, state) = match &event.subject {
            Some(Subject::Container(container)) => (attempt_name(container), None),
            Some(Subject::Sandbox { state, .. }) => (String::new(), state.map(|state| state.to_string())),
            None => (String::new(), None),
        };
        // Nor has the exit of a process: it has its number.
        let state = state.or_else(|| event.pid.map(|pid| format!("pid {pid}")));
        let reason = ids(clean(event.reason.as_deref().or(state.as_deref()).unwrap_or_default()));
        Self {
            pod: event.pod.as_ref().map(|pod| clean(&pod_name(pod))).unwrap_or_default(),
            container: clean(&container),
            exit: event.exit_code.map(|code| code.to_string()).unwrap_or_default(),
            lag: match event.lag {
                Some(seconds) => lag(seconds),
                None if event.initial => "init".to_owned(),
                None => String::new(),
            },
            sentence: match &event.trouble {
                Some(trouble) => sentence(ids(clean(trouble)), event.lasted, &reason),
                None => String::new(),
            },
            reason,
        }
    }
}

/// A trouble, how long it lasted, and what was seen of it.
fn sentence(trouble: String, lasted: Option<f64>, reason: &str) -> String {
    let mut text = trouble;
    if let Some(lasted) = lasted {
        let lasted = Duration::try_from_secs_f64(lasted).unwrap_or_default();
        let _ = write!(text, ", after {}", seconds(Duration::from_secs(lasted.as_secs())));
    }
    if !reason.is_empty() {
        let _ = write!(text, ": {reason}");
    }
    text
}

/// A container's name, with its attempt if it is not the first.
fn attempt_name(container: &ContainerRef) -> String {
    match container.attempt {
        0 => container.name.to_string(),
        attempt => format!("{}#{attempt}", container.name),
    }
}

/// Describes a gap.
pub(crate) fn missed(gap: &Gap) -> String {
    let Gap { from, to, .. } = gap;
    let range = (from <= to).then(|| format!("{from} to {to}"));
    if gap.is_restart() {
        let last = gap.after.map_or(0, |cursor| cursor.seq);
        let also = range.map_or(String::new(), |range| format!(", and {range} of this run"));
        return format!("pleg restarted; missed: events after {last}{also}");
    }
    match (to + 1).saturating_sub(*from) {
        1 => format!("1 event missed: {from} is no longer held"),
        count => {
            let range = range.unwrap_or_else(|| "none".to_owned());
            format!("{count} events missed: {range} are no longer held")
        }
    }
}

pub(crate) fn colour(kind: &str) -> &'static str {
    match kind {
        "ContainerStarted" | "PlegHealthy" | "TroubleEnded" | "DaemonStarted" => GREEN,
        "ContainerDied" | "PlegNotHealthy" => RED,
        "ContainerStopped" | "ContainerChanged" | "PlegDegraded" | "TroubleStarted" | "HealthChanged" | "Gap" => YELLOW,
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

    fn died(pod: &str, container: &str) -> Line {
        Line::Event(Box::new(Event {
            seq: 12,
            instance: None,
            time: "2026-01-02T03:04:05.678Z".parse().unwrap(),
            kind: "ContainerDied".to_owned(),
            pod: Some(PodRef {
                uid: "8f3c1c1e".into(),
                namespace: "default".into(),
                name: pod.into(),
            }),
            subject: Some(Subject::Container(ContainerRef {
                id: "c0ffee".into(),
                name: container.into(),
                attempt: 2,
            })),
            pid: None,
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

    fn row(table: &mut EventTable, json: &str) -> String {
        plain(&table.row(&serde_json::from_str(json).unwrap()))
    }

    #[test]
    fn lines_fit_eighty_columns() {
        let mut table = EventTable::new(Some(80), false, TimeZone::UTC);
        let lines = [
            table.head(),
            plain(&table.row(&died("web", "app"))),
            plain(&table.row(&died("web-7d4b9c6f5-abcde-and-more", "a-long-container-name"))),
            row(&mut table, r#"{"type":"Gap","from":3,"to":9}"#),
            row(
                &mut table,
                r#"{"type":"Gap","from":1,"to":0,"reason":"restarted","after":"5f0c2a9be1d34c77-15"}"#,
            ),
            row(
                &mut table,
                r#"{"type":"Gap","from":1,"to":40,"reason":"restarted","after":"5f0c2a9be1d34c77-15"}"#,
            ),
        ];
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        insta::assert_snapshot!(lines.join("\n"), @r"
        TIME     TYPE              NAMESPACE/POD         CONTAINER  EXIT REASON    LAG
        03:04:05 ContainerDied     default/web           app#2      137  OOMKilled 352ms
        03:04:05 ContainerDied     default/we…e-and-more a-lon…me#2 137  OOMKilled 352ms
        --- 7 events missed: 3 to 9 are no longer held ---
        --- pleg restarted; missed: events after 15 ---
        --- pleg restarted; missed: events after 15, and 1 to 40 of this run ---
        ");
    }

    #[test]
    fn troubles_are_told_in_words() {
        let mut table = EventTable::new(None, false, TimeZone::UTC);
        let started = r#"{"seq":9,"time":"2026-01-02T03:04:05Z","type":"TroubleStarted","pod":{"uid":"u","namespace":"default","name":"web-1"},"subject":{"kind":"container","id":"c","name":"app","attempt":0},"reason":"no answer within 10s","initial":false,"source":"relist","trouble":"stuck-inspection"}"#;
        let ended = r#"{"seq":9,"time":"2026-01-02T03:04:47Z","type":"TroubleEnded","initial":false,"source":"relist","trouble":"stream-down","lasted":41.5}"#;
        insta::assert_snapshot!([row(&mut table, started), row(&mut table, ended)].join("\n"), @r"
        03:04:05 TroubleStarted    default/web-1         app        stuck-inspection: no answer within 10s
        03:04:47 TroubleEnded      stream-down, after 41s
        ");
    }

    #[test]
    fn no_two_containers_look_the_same() {
        let mut table = EventTable::new(Some(80), false, TimeZone::UTC);
        let mut container = |name: &str| plain(&table.row(&died("web", name)));
        assert!(container("istio-proxy-first").contains(" istio…st#2 137 "));
        assert!(container("istio-other-first").contains(" istio-other-first#2 137 "));
        assert!(container("istio-proxy-first").contains(" istio…st#2 137 "));
    }

    #[test]
    fn ids_are_short_but_in_wide_lines() {
        let id = "0123456789abcdef".repeat(4);
        let degraded = format!(
            r#"{{"seq":9,"time":"2026-01-02T03:04:05Z","type":"PlegDegraded","reason":"PLEG is degraded: app ({id})","initial":false,"source":"relist"}}"#
        );
        let started = format!(
            r#"{{"seq":9,"time":"2026-01-02T03:04:05Z","type":"TroubleStarted","reason":"no answer about {id}","initial":false,"source":"relist","trouble":"stuck-inspection"}}"#
        );
        let mut table = EventTable::new(None, false, TimeZone::UTC);
        assert!(row(&mut table, &degraded).ends_with("PLEG is degraded: app (0123456789abc)"));
        assert!(row(&mut table, &started).ends_with("stuck-inspection: no answer about 0123456789abc"));
        let mut wide = EventTable::new(None, true, TimeZone::UTC);
        assert!(row(&mut wide, &started).ends_with(&id));
    }

    /// Every row is below the head that stands before it, whatever its time takes.
    #[test]
    fn times_with_a_date_keep_the_columns_under_the_head() {
        let under = |head: &str, row: &str| head.find("TYPE") == row.find("ContainerDied");
        // Nowhere is it this late: each time needs a date.
        let far = TimeZone::fixed(jiff::tz::Offset::constant(20));
        for columns in [None, Some(80), Some(120)] {
            let mut table = EventTable::dated(columns, false, far.clone());
            let (head, row) = (table.head(), plain(&table.row(&died("web", "app"))));
            assert!(row.starts_with("2026-01-02 23:04:05 +20:00 ContainerDied "), "{row}");
            assert!(under(&head, &row), "{head}\n{row}");
        }
        // A time of another day comes as a surprise.
        let mut table = EventTable::dated(None, false, TimeZone::system());
        let head = table.head();
        let text = plain(&table.row(&died("web", "app")));
        let (again, row) = text.split_once('\n').unwrap();
        assert!(head.starts_with("TIME     TYPE"), "{head}");
        assert!(again.starts_with("TIME  ") && under(again, row), "{text}");
        // The second one does not.
        assert_eq!(plain(&table.row(&died("web", "app"))), row);
        // Those who know the lines before need no second head.
        let mut table = EventTable::dated(None, false, TimeZone::system());
        table.fit(&[died("web", "app")]);
        assert_eq!(
            (table.head(), plain(&table.row(&died("web", "app")))),
            (again.to_owned(), row.to_owned())
        );
    }

    #[test]
    fn a_pipe_gets_everything() {
        let mut table = EventTable::new(None, false, TimeZone::UTC);
        let line = plain(&table.row(&died("web-7d4b9c6f5-abcde-and-more", "a-long-container-name")));
        assert!(line.contains("default/web-7d4b9c6f5-abcde-and-more a-long-container-name#2 137"));
        let mut wide = EventTable::new(None, true, TimeZone::UTC);
        assert!(plain(&wide.row(&died("web", "app"))).contains("12     relist    c0ffee"));
    }
}
