//! The health report as text.

use std::fmt::Write as _;
use std::time::Duration;

use pleg_cluster::report::STUCK;
use pleg_cri::duration::seconds;
use pleg_history::HistoryState;

use super::{BOLD, GREEN, PLAIN, RED, YELLOW};
use crate::text::clean;
use crate::wire::Report;

/// The report, for people.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    summary(&mut text, report);
    node_conditions(&mut text, report);
    cluster_report(&mut text, report, jiff::Timestamp::now());
    history(&mut text, report);
    causes(&mut text, report);
    refused_manifests(&mut text, report);
    warnings(&mut text, report);
    odd_objects(&mut text, report);
    text
}

/// The level, the last complete relist, and the mode.
fn summary(text: &mut String, report: &Report) {
    let colour = match report.level.as_str() {
        "Healthy" => GREEN,
        "Degraded" => YELLOW,
        _ => RED,
    };
    let (level, headline) = (&report.level, clean(&report.headline));
    let _ = writeln!(text, "{BOLD}{colour}{level}{PLAIN}: {headline}");
    let seen = match report.last_seen_seconds {
        Some(ago) => format!("{} ago", seconds(Duration::try_from_secs_f64(ago).unwrap_or_default())),
        None => "never".to_owned(),
    };
    let threshold = seconds(Duration::from_secs(report.threshold_seconds));
    let _ = writeln!(
        text,
        "Last complete relist: {seen} (threshold {threshold}), relists so far: {}",
        report.relists
    );
    if let Some(mode) = &report.mode {
        let _ = write!(text, "Mode: {}", clean(&mode.to_string()));
        let _ = match mode.missed_changes {
            0 => writeln!(text),
            1 => writeln!(text, "; 1 change was not announced"),
            n => writeln!(text, "; {n} changes were not announced"),
        };
        let _ = writeln!(text, "Kernel witness: {}", clean(&mode.witness.to_string()));
    }
}

fn node_conditions(text: &mut String, report: &Report) {
    for condition in &report.conditions {
        let status = if condition.status { "True" } else { "False" };
        let _ = write!(text, "Node: {}={status} ({}", condition.kind, condition.reason);
        if !condition.message.starts_with(&report.headline) {
            let _ = write!(text, ": {}", clean(&condition.message));
        }
        text.push_str(")\n");
    }
}

/// What the cluster was told, or why it was not.
fn cluster_report(text: &mut String, report: &Report, now: jiff::Timestamp) {
    let Some(cluster) = &report.reporting else { return };
    let ago = |then: jiff::Timestamp| {
        let age = u64::try_from(now.as_second().saturating_sub(then.as_second())).unwrap_or_default();
        seconds(Duration::from_secs(age))
    };
    let (node, server) = (clean(&cluster.node), clean(&cluster.server));
    let _ = write!(text, "Cluster: node {node} at {server}: ");
    let _ = match (cluster.stuck, cluster.reported_at) {
        (Some(stuck), Some(at)) => {
            let status = if stuck { "True" } else { "False" };
            write!(text, "{STUCK}={status} reported {} ago", ago(at))
        }
        _ => write!(text, "nothing reported yet"),
    };
    if let (Some(error), Some(since)) = (&cluster.error, cluster.failing_since) {
        let _ = write!(text, "; failing for {}: {}", ago(since), clean(error));
    }
    if !cluster.missing_rights.is_empty() {
        let _ = write!(text, "; missing rights: {}", clean(&cluster.missing_rights.join(", ")));
    }
    text.push('\n');
}

/// Why history is not written, if it is not.
fn history(text: &mut String, report: &Report) {
    let Some(history) = &report.history else { return };
    let Some(reason) = &history.reason else { return };
    let what = match history.state {
        HistoryState::On => return,
        HistoryState::Behind => "behind, new entries wait in memory",
        HistoryState::Off => "off",
    };
    let since = history.since.strftime("%Y-%m-%d %H:%M:%SZ");
    let _ = writeln!(text, "History: {YELLOW}{what}{PLAIN} since {since}: {}", clean(reason));
    if history.dropped_events > 0 {
        let _ = writeln!(text, "  {} events are missing in it", history.dropped_events);
    }
}

fn causes(text: &mut String, report: &Report) {
    if !report.causes.is_empty() {
        text.push_str("Causes:\n");
    }
    for cause in &report.causes {
        advice(text, [&cause.text, &cause.means, &cause.next]);
    }
    if report.more_causes > 0 {
        let _ = writeln!(text, "  - and {} more", report.more_causes);
    }
}

fn refused_manifests(text: &mut String, report: &Report) {
    if !report.refused_manifests.is_empty() {
        text.push_str("Manifests refused:\n");
    }
    for problem in &report.refused_manifests {
        let _ = writeln!(text, "  - {}", clean(&problem.to_string()));
    }
}

fn warnings(text: &mut String, report: &Report) {
    if !report.warnings.is_empty() {
        text.push_str("Warnings (harmless to pleg, but not to a kubelet):\n");
    }
    for warning in &report.warnings {
        advice(text, [&warning.text, &warning.means, &warning.next]);
    }
}

/// What is seen, what it usually means, and what to type next.
fn advice(text: &mut String, [seen, means, next]: [&str; 3]) {
    let _ = writeln!(text, "  - {}", clean(seen));
    let _ = writeln!(text, "    Usually: {}", clean(means));
    let _ = writeln!(text, "    Next: {}", clean(next));
}

fn odd_objects(text: &mut String, report: &Report) {
    let odd: Vec<_> = report.odd_objects.iter().filter(|(_, n)| **n > 0).collect();
    if !odd.is_empty() {
        text.push_str("Odd objects in the runtime (counted, otherwise ignored):\n");
        for (kind, n) in odd {
            let _ = writeln!(text, "  - {}: {n}", kind.replace('_', " "));
        }
    }
}
