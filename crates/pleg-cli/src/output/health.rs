//! The health report in words.

use std::fmt::Write as _;
use std::time::Duration;

use pleg_cri::error::seconds;

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
    let mut text = format!("{BOLD}{colour}{}{PLAIN}: {}\n", report.level, clean(&report.message));
    let seen = match report.last_seen_seconds {
        Some(ago) => format!("{} ago", seconds(Duration::try_from_secs_f64(ago).unwrap_or_default())),
        None => "never".to_owned(),
    };
    let threshold = seconds(Duration::from_secs(report.threshold_seconds));
    let _ = writeln!(
        text,
        "Last complete look: {seen} (threshold {threshold}), looks so far: {}",
        report.looks
    );
    for condition in &report.conditions {
        let _ = write!(
            text,
            "Node: {}={} ({}",
            condition.kind, condition.status, condition.reason
        );
        if condition.message != report.message {
            let _ = write!(text, ": {}", clean(&condition.message));
        }
        text.push_str(")\n");
    }
    if !report.causes.is_empty() {
        text.push_str("Causes:\n");
    }
    for cause in &report.causes {
        let _ = writeln!(text, "  - {}", clean(&words(cause)));
    }
    if report.more_causes > 0 {
        let _ = writeln!(text, "  - and {} more", report.more_causes);
    }
    let odd: Vec<_> = report.odd_objects.iter().filter(|(_, n)| **n > 0).collect();
    if !odd.is_empty() {
        text.push_str("Odd objects in the runtime (counted, never in the way):\n");
        for (kind, n) in odd {
            let _ = writeln!(text, "  - {}: {n}", kind.replace('_', " "));
        }
    }
    text
}

fn words(cause: &Cause) -> String {
    // What failed names its object; what is still in flight does not.
    let about = match (&cause.pod, &cause.container) {
        (Some(pod), Some(container)) => format!(" of container {container} in pod {pod}"),
        (Some(pod), None) => format!(" of the sandbox of pod {pod}"),
        _ => String::new(),
    };
    let tries = if cause.attempts == 1 { "attempt" } else { "attempts" };
    let age = seconds(Duration::from_secs(cause.age_seconds));
    match &cause.last_error {
        Some(error) => format!("{error} (for {age}, {} {tries})", cause.attempts),
        None => format!("{}{about}: waiting for an answer for {age}", cause.rpc),
    }
}
