//! The report about a window of time, as text and as one HTML file.

mod html;
mod svg;

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pleg_cri::duration::seconds;
use pleg_history::{Bucket, NodeReport, Percentiles, PodSummary};

use super::explanation::{exit, lasted, whole};
use super::table::{Cell, Table};
use super::{BOLD, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::text::{age, clean, clock, count, lag, short_ids, shorten, zone};

pub(crate) use html::html;

/// Bars of the text are at most so wide.
const BAR: u64 = 30;
/// Buckets that the text shows one by one: the parts of a short window, and the hours of a day, with the part of one that it begins in.
const SINGLE: usize = 37;
/// More than that are put together, to at most so many rows.
const ROWS: usize = 24;
/// Pods and troubles that the text shows.
const LISTED: usize = 10;
/// Columns of a reason.
const REASON: usize = 60;

/// The report, for people.
pub(crate) fn text(report: &NodeReport, now: Timestamp) -> String {
    let writer = Writer {
        zone: zone(),
        local: TimeZone::system(),
        now,
    };
    writer.text(report)
}

struct Writer {
    zone: TimeZone,
    local: TimeZone,
    now: Timestamp,
}

impl Writer {
    fn text(&self, report: &NodeReport) -> String {
        let mut text = String::new();
        self.head(&mut text, report);
        self.events(&mut text, report);
        self.pods(&mut text, report);
        self.troubles(&mut text, report);
        self.runs(&mut text, report);
        latencies(&mut text, report);
        text
    }

    fn clock(&self, at: Timestamp) -> String {
        clock(at, self.now, &self.zone, &self.local)
    }

    fn head(&self, text: &mut String, report: &NodeReport) {
        let node = clean(report.node.as_deref().unwrap_or("this node"));
        let (from, to) = (self.clock(report.since), self.clock(report.until));
        let _ = writeln!(text, "{BOLD}{node}{PLAIN}: {from} to {to}");
        if let Some(held) = report.held_since {
            let _ = writeln!(text, "{YELLOW}The history begins at {}.{PLAIN}", self.clock(held));
        }
        for note in &report.notes {
            let _ = writeln!(text, "{YELLOW}{}{PLAIN}", clean(note));
        }
        let totals = &report.totals;
        let _ = writeln!(
            text,
            "Events: {}; {} started, {} ({} failed, {}), {}",
            svg::thousands(totals.events),
            count(totals.started, "container"),
            count(totals.deaths, "death"),
            totals.failures,
            count(totals.oom_kills, "OOM kill"),
            format_args!("{} removed", count(totals.pods_removed, "pod"))
        );
        let health = &report.health;
        let whole_window = report.until.duration_since(report.since).as_secs_f64().max(1.0);
        let shares = [
            ("healthy", GREEN, health.healthy_seconds),
            ("degraded", YELLOW, health.degraded_seconds),
            ("unhealthy", RED, health.unhealthy_seconds),
            ("not known", DIM, health.unknown_seconds),
        ];
        let shares: Vec<_> = shares
            .into_iter()
            .filter(|(_, _, secs)| *secs >= 0.5)
            .map(|(name, colour, secs)| {
                let share = percent(secs, whole_window);
                format!("{colour}{name} {share}{PLAIN} ({})", seconds(whole(secs)))
            })
            .collect();
        let _ = writeln!(text, "Health: {}", shares.join(", "));
    }

    fn events(&self, text: &mut String, report: &NodeReport) {
        let (rows, step) = put_together(&report.buckets, report.bucket_seconds);
        let most = rows.iter().map(|row| row.events).max().unwrap_or(0).max(1);
        let step = std::time::Duration::from_secs(step);
        let _ = writeln!(text, "\nEvents by {}:", by(step.as_secs()));
        let mut table = Table::new(&["  FROM", "EVENTS", "STARTED", "FAILED", "TROUBLES", ""]);
        let from = if step.as_secs().is_multiple_of(60) {
            "  %m-%d %H:%M"
        } else {
            "  %m-%d %H:%M:%S"
        };
        for row in rows {
            let bar = row.events.saturating_mul(BAR).div_ceil(most);
            let failed = if row.failed > 0 { RED } else { "" };
            let local = row.start.to_zoned(self.zone.clone());
            table.row(vec![
                local.strftime(from).to_string().into(),
                row.events.to_string().into(),
                row.started.to_string().into(),
                Cell::coloured(row.failed.to_string(), failed),
                row.troubles.to_string().into(),
                Cell::from("█".repeat(usize::try_from(bar).unwrap_or_default())),
            ]);
        }
        text.push_str(&table.render());
        if !report.deaths_by_reason.is_empty() {
            let reasons: Vec<_> = report
                .deaths_by_reason
                .iter()
                .take(LISTED)
                .map(|one| format!("{}× {}", one.count, named(&one.reason)))
                .collect();
            let _ = writeln!(text, "Deaths: {}", reasons.join(", "));
        }
    }

    fn pods(&self, text: &mut String, report: &NodeReport) {
        if report.worst_pods.is_empty() {
            text.push_str("\nNo pod failed.\n");
            return;
        }
        text.push_str("\nWorst pods:\n");
        let mut table = Table::new(&["  NAMESPACE/POD", "FAILED", "OOM", "LAST", "LIVED", "HOW"]);
        for pod in report.worst_pods.iter().take(LISTED) {
            table.row(vec![
                format!("  {}", shorten(&clean(&pod.pod.to_string()), 40)).into(),
                pod.failures.to_string().into(),
                pod.oom_kills.to_string().into(),
                pod.last_death
                    .map_or_else(|| "-".to_owned(), |at| format!("{} ago", age(Some(at), self.now)))
                    .into(),
                lived(pod).into(),
                how(pod).into(),
            ]);
        }
        text.push_str(&table.render());
        let more = report.worst_pods.len().saturating_sub(LISTED) as u64 + report.more_pods;
        if more > 0 {
            let _ = writeln!(text, "  and {}", count(more, "more pod"));
        }
        // A name that means something to a shell is none to paste.
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let worst = report.worst_pods.first().map(|worst| worst.pod.to_string());
        if let Some(name) = worst.filter(|name| name.chars().all(is_word)) {
            let _ = writeln!(text, "Next: pleg why {name}");
        }
    }

    fn troubles(&self, text: &mut String, report: &NodeReport) {
        if report.troubles.is_empty() {
            text.push_str("\nNo troubles.\n");
            return;
        }
        text.push_str("\nTroubles, the longest first:\n");
        let mut table = Table::new(&["  FROM", "FOR", "TROUBLE", "WHERE", "SEEN"]);
        for span in report.troubles.iter().take(LISTED) {
            let local = span.from.to_zoned(self.zone.clone());
            let place = match (&span.pod, &span.container) {
                (Some(pod), Some(container)) => format!("{} {}", clean(pod), clean(container)),
                (Some(pod), None) => clean(pod),
                (None, _) => "the node".to_owned(),
            };
            let reason = span.reason.as_deref().unwrap_or_default();
            table.row(vec![
                local.strftime("  %m-%d %H:%M:%S").to_string().into(),
                lasted(span).into(),
                clean(&span.trouble).into(),
                shorten(&place, 40).into(),
                shorten(&short_ids(&clean(reason)), REASON).into(),
            ]);
        }
        text.push_str(&table.render());
        let more = report.troubles.len().saturating_sub(LISTED) as u64 + report.more_troubles;
        if more > 0 {
            let _ = writeln!(text, "  and {more} more");
        }
    }

    fn runs(&self, text: &mut String, report: &NodeReport) {
        let starts = report.totals.daemon_starts;
        let crashed = report.runs.iter().filter(|run| run.crashed).count() as u64;
        if starts == 0 && crashed == 0 {
            return;
        }
        let _ = writeln!(
            text,
            "\nDaemon: {}, {crashed} ended by a kill or crash",
            count(starts, "start")
        );
        for run in report.runs.iter().rev().take(LISTED).rev() {
            let to = run.to.map_or_else(|| "now".to_owned(), |to| self.clock(to));
            let how = if run.crashed { ", killed or crashed" } else { "" };
            let version = run
                .version
                .as_deref()
                .map(|version| format!(" pleg {}", clean(version)));
            let _ = writeln!(
                text,
                "  {} to {to}{how}{}",
                self.clock(run.from),
                version.unwrap_or_default()
            );
        }
    }
}

fn latencies(text: &mut String, report: &NodeReport) {
    let line = |text: &mut String, name: &str, percentiles: Option<Percentiles>| {
        let _ = match percentiles {
            Some(of) => writeln!(
                text,
                "{name}: p50 {}, p90 {}, p99 {}, longest {} ({})",
                lag(of.p50_seconds),
                lag(of.p90_seconds),
                lag(of.p99_seconds),
                lag(of.max_seconds),
                svg::thousands(of.count)
            ),
            None => writeln!(text, "{name}: not measured"),
        };
    };
    text.push('\n');
    line(text, "Lag of events", report.lag);
    line(text, "Full relists", report.relist);
    if report.totals.failed_relists > 0 {
        let _ = writeln!(
            text,
            "Relists that failed: {}",
            svg::thousands(report.totals.failed_relists)
        );
    }
}

/// A share of the whole: `99.7 %`. Only all of it is 100 %.
fn percent(part: f64, of: f64) -> String {
    let share = part / of * 100.0;
    match share {
        _ if of - part < 1e-6 => "100 %".to_owned(),
        s if s >= 99.95 => format!("{:.2} %", (s * 100.0).floor() / 100.0),
        s => format!("{s:.1} %"),
    }
}

fn named(reason: &str) -> String {
    if reason.is_empty() {
        "no reason".to_owned()
    } else {
        clean(reason)
    }
}

fn lived(pod: &PodSummary) -> String {
    pod.lifetimes
        .map_or_else(|| "-".to_owned(), |lives| seconds(whole(lives.median_seconds)))
}

fn how(pod: &PodSummary) -> String {
    let exits: Vec<_> = pod.exits.iter().take(3).map(exit).collect();
    match (exits.is_empty(), pod.trouble_seconds) {
        (true, secs) if secs > 0.0 => format!("not seen for {}", seconds(whole(secs))),
        (_, secs) if secs > 0.0 => format!("{}; not seen for {}", exits.join(", "), seconds(whole(secs))),
        _ => exits.join(", "),
    }
}

/// `hour`, `10m`.
fn by(secs: u64) -> String {
    match secs {
        3600 => "hour".to_owned(),
        secs if secs % 86_400 == 0 && secs > 0 => count(secs / 86_400, "day"),
        secs if secs % 3600 == 0 => count(secs / 3600, "hour"),
        secs if secs % 60 == 0 => count(secs / 60, "minute"),
        secs => count(secs, "second"),
    }
}

/// Rows for a terminal: neighbouring buckets are added up if there are too many.
fn put_together(buckets: &[Bucket], step: u64) -> (Vec<Row>, u64) {
    let group = if buckets.len() > SINGLE {
        buckets.len().div_ceil(ROWS)
    } else {
        1
    };
    let rows = buckets
        .chunks(group)
        .filter_map(|chunk| {
            let sum = |of: fn(&Bucket) -> u64| chunk.iter().map(of).sum();
            Some(Row {
                start: chunk.first()?.start,
                events: sum(|bucket| bucket.events),
                started: sum(|bucket| bucket.started),
                failed: sum(|bucket| bucket.failed),
                troubles: sum(|bucket| bucket.troubles),
            })
        })
        .collect();
    (rows, step * group as u64)
}

struct Row {
    start: Timestamp,
    events: u64,
    started: u64,
    failed: u64,
    troubles: u64,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A night, with everything that a report may have, and markup in every name.
    pub(in crate::output) fn night() -> NodeReport {
        serde_json::from_str(include_str!("night.json")).unwrap()
    }

    pub(in crate::output) fn now() -> Timestamp {
        "2026-11-18T06:00:00Z".parse().unwrap()
    }

    #[test]
    fn the_night_as_text() {
        let writer = Writer {
            zone: TimeZone::UTC,
            local: TimeZone::UTC,
            now: now(),
        };
        let text = writer.text(&night());
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn many_buckets_become_few_rows() {
        let one = night().buckets.remove(0);
        let (rows, step) = put_together(&vec![one.clone(); 168], 3600);
        assert_eq!((rows.len(), step), (24, 7 * 3600));
        assert_eq!(rows[0].events, 7 * one.events);
        assert_eq!(by(step), "7 hours");
        // A day that begins within an hour is still one of hours.
        let (rows, step) = put_together(&vec![one.clone(); 25], 3600);
        assert_eq!((rows.len(), step), (25, 3600));
        assert_eq!(
            [by(3600), by(600), by(86_400), by(1)],
            ["hour", "10 minutes", "1 day", "1 second"]
        );
    }

    #[test]
    fn only_all_is_all() {
        assert_eq!(
            [
                percent(86_400.0, 86_400.0),
                percent(86_399.0, 86_400.0),
                percent(43_200.0, 86_400.0)
            ],
            ["100 %", "99.99 %", "50.0 %"]
        );
        assert_eq!(percent(86_390.0, 86_400.0), "99.98 %");
    }
}
