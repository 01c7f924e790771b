//! The health report as text.

use std::fmt::Write as _;
use std::time::Duration;

use pleg_cri::duration::seconds;

use super::{BOLD, GREEN, PLAIN, RED, YELLOW};
use crate::text::clean;
use crate::wire::{Cause, Report};

/// The report, for people.
pub(crate) fn text(report: &Report) -> String {
    let colour = match report.level.as_str() {
        "Healthy" => GREEN,
        "Degraded" => YELLOW,
        _ => RED,
    };
    let mut text = format!("{BOLD}{colour}{}{PLAIN}: {}\n", report.level, clean(&report.headline));
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
            1 => writeln!(text, "; no event reported 1 change"),
            n => writeln!(text, "; no event reported {n} changes"),
        };
    }
    for condition in &report.conditions {
        let _ = write!(
            text,
            "Node: {}={} ({}",
            condition.kind,
            if condition.status { "True" } else { "False" },
            condition.reason
        );
        if !condition.message.starts_with(&report.headline) {
            let _ = write!(text, ": {}", clean(&condition.message));
        }
        text.push_str(")\n");
    }
    if !report.causes.is_empty() {
        text.push_str("Causes:\n");
    }
    for cause in &report.causes {
        let Cause {
            text: seen,
            means,
            next,
            ..
        } = cause;
        let _ = writeln!(text, "  - {}", clean(seen));
        let _ = writeln!(text, "    Usually: {}", clean(means));
        let _ = writeln!(text, "    Next: {}", clean(next));
    }
    if report.more_causes > 0 {
        let _ = writeln!(text, "  - and {} more", report.more_causes);
    }
    if !report.refused_manifests.is_empty() {
        text.push_str("Manifests refused:\n");
    }
    for complaint in &report.refused_manifests {
        let _ = writeln!(
            text,
            "  - {}: {}",
            clean(&complaint.origin.to_string()),
            clean(&complaint.what)
        );
    }
    if !report.warnings.is_empty() {
        text.push_str("Warnings (harmless to pleg, but not to a kubelet):\n");
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "  - {}", clean(&warning.text));
        let _ = writeln!(text, "    Usually: {}", clean(&warning.means));
        let _ = writeln!(text, "    Next: {}", clean(&warning.next));
    }
    let odd: Vec<_> = report.odd_objects.iter().filter(|(_, n)| **n > 0).collect();
    if !odd.is_empty() {
        text.push_str("Odd objects in the runtime (counted, otherwise ignored):\n");
        for (kind, n) in odd {
            let _ = writeln!(text, "  - {}: {n}", kind.replace('_', " "));
        }
    }
    text
}
