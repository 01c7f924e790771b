//! Why a pod's containers died, in a few lines.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pleg_cri::duration::seconds;
use pleg_history::{ContainerSummary, Death, ExitCount, Explanation, TroubleSpan, Verdict};

use super::{BOLD, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::text::{age, clean, clock, count, short_ids, zone};

/// Troubles that are shown: the newest.
const TROUBLES: usize = 5;

/// The explanation, for people.
pub(crate) fn text(explanation: &Explanation, now: Timestamp) -> String {
    let writer = Writer {
        zone: zone(),
        local: TimeZone::system(),
        now,
    };
    writer.text(explanation)
}

struct Writer {
    zone: TimeZone,
    local: TimeZone,
    now: Timestamp,
}

impl Writer {
    fn text(&self, explanation: &Explanation) -> String {
        let mut text = String::new();
        let colour = match explanation.verdict {
            Verdict::Quiet | Verdict::Completed => GREEN,
            Verdict::Stopped | Verdict::Stuck => YELLOW,
            _ => RED,
        };
        let pod = clean(&explanation.pod.to_string());
        let summary = clean(&explanation.summary);
        let _ = writeln!(text, "{BOLD}{pod}{PLAIN}: {colour}{summary}{PLAIN}");
        let _ = writeln!(text, "Usually: {}", explanation.means);
        if explanation.uids.len() > 1 {
            let _ = writeln!(text, "Pods of this name: {}, one after another", explanation.uids.len());
        }
        for container in &explanation.containers {
            self.container(&mut text, container);
        }
        if let Some(removed) = explanation.removed_at {
            let _ = writeln!(text, "Removed: {}", self.when(removed));
        }
        if let Some(death) = &explanation.last_death {
            self.death(&mut text, death);
        }
        self.troubles(&mut text, &explanation.troubles);
        for (place, command) in explanation.next.iter().enumerate() {
            let head = if place == 0 { "Next:" } else { "     " };
            let _ = writeln!(text, "{head} {}", clean(command));
        }
        let window = seconds(whole(explanation.until.duration_since(explanation.since).as_secs_f64()));
        let since = match explanation.held_since {
            Some(held) => format!("; the history begins at {}", self.when(held)),
            None => format!(", since {}", self.clock(explanation.since)),
        };
        let _ = writeln!(text, "{DIM}Window: {window}{since}{PLAIN}");
        text
    }

    fn container(&self, text: &mut String, container: &ContainerSummary) {
        let _ = write!(
            text,
            "Container {}: {}",
            clean(&container.name),
            count(container.deaths, "death")
        );
        let _ = write!(text, ", {}", count(container.restarts, "restart"));
        if !container.exits.is_empty() {
            let exits: Vec<_> = container.exits.iter().map(exit).collect();
            let _ = write!(text, "; {}", exits.join(", "));
        }
        if let Some(lives) = container.lifetimes {
            let span = |secs: f64| seconds(whole(secs));
            let _ = match lives.count {
                1 => write!(text, "; lived {}", span(lives.longest_seconds)),
                _ => write!(
                    text,
                    "; lived {} to {}, median {}",
                    span(lives.shortest_seconds),
                    span(lives.longest_seconds),
                    span(lives.median_seconds)
                ),
            };
        }
        match (container.running, container.running_since) {
            (true, Some(since)) => {
                let _ = write!(text, "; running for {}", age(Some(since), self.now));
            }
            (true, None) => text.push_str("; running"),
            (false, _) => text.push_str("; not running"),
        }
        text.push('\n');
    }

    fn death(&self, text: &mut String, death: &Death) {
        let _ = write!(
            text,
            "Last death: {}, container {}",
            self.when(death.time),
            clean(&death.container)
        );
        if death.attempt > 0 {
            let _ = write!(text, "#{}", death.attempt);
        }
        let words = [
            death.exit_code.map(|code| format!("exit code {code}")),
            death.signal.clone(),
            death.reason.as_deref().map(clean),
            death
                .lived_seconds
                .map(|lived| format!("after {}", seconds(whole(lived)))),
            death.found_later.then(|| "found when pleg started".to_owned()),
        ];
        for word in words.into_iter().flatten() {
            let _ = write!(text, ", {word}");
        }
        let _ = writeln!(text, " {DIM}[event {}]{PLAIN}", death.event.seq);
        if death.before.is_empty() {
            text.push_str("Before it: nothing else was seen\n");
            return;
        }
        text.push_str("Before it:\n");
        for evidence in &death.before {
            let ago = match evidence.seconds_before {
                s if s < 0.5 => "at the same time".to_owned(),
                s => format!("{} before", seconds(whole(s))),
            };
            let _ = write!(
                text,
                "  {}  {ago:<16}  {}",
                self.clock(evidence.time),
                short_ids(&clean(&evidence.text))
            );
            let _ = match (evidence.event, evidence.id) {
                (Some(event), _) => writeln!(text, " {DIM}[event {}]{PLAIN}", event.seq),
                (None, Some(id)) => writeln!(text, " {DIM}[entry {id}]{PLAIN}"),
                (None, None) => writeln!(text),
            };
        }
    }

    fn troubles(&self, text: &mut String, troubles: &[TroubleSpan]) {
        if troubles.is_empty() {
            return;
        }
        let more = troubles.len().saturating_sub(TROUBLES);
        let _ = writeln!(
            text,
            "Not seen in this window: {}",
            count(troubles.len() as u64, "time")
        );
        for span in troubles.iter().skip(more) {
            let _ = write!(
                text,
                "  {}  for {}: {}",
                self.clock(span.from),
                lasted(span),
                clean(&span.trouble)
            );
            if let Some(container) = &span.container {
                let _ = write!(text, " of container {}", clean(container));
            }
            if let Some(reason) = &span.reason {
                let _ = write!(text, ": {}", short_ids(&clean(reason)));
            }
            text.push('\n');
        }
    }

    fn clock(&self, at: Timestamp) -> String {
        clock(at, self.now, &self.zone, &self.local)
    }

    fn when(&self, at: Timestamp) -> String {
        format!("{} ({} ago)", self.clock(at), age(Some(at), self.now))
    }
}

/// How long a trouble lasted, as far as is known.
pub(super) fn lasted(span: &TroubleSpan) -> String {
    let how_long = seconds(whole(span.seconds));
    match span {
        TroubleSpan { cut_short: true, .. } => format!("{how_long} or longer"),
        TroubleSpan { to: None, .. } => format!("{how_long} so far"),
        _ => how_long,
    }
}

/// `6× OOMKilled (137)`.
pub(super) fn exit(exit: &ExitCount) -> String {
    let reason = exit.reason.as_deref().map_or_else(|| "no reason".to_owned(), clean);
    match exit.exit_code {
        Some(code) => format!("{}× {reason} ({code})", exit.count),
        None => format!("{}× {reason}", exit.count),
    }
}

/// Seconds without a fraction, unless there are few.
pub(super) fn whole(secs: f64) -> Duration {
    let exact = Duration::try_from_secs_f64(secs).unwrap_or_default();
    if secs < 10.0 {
        Duration::from_millis(u64::try_from(exact.as_millis()).unwrap_or_default() / 100 * 100)
    } else {
        Duration::from_secs(exact.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OOM: &str = r#"{
        "pod": {"uid": "u", "namespace": "default", "name": "web-0"}, "uids": ["old", "u"],
        "since": "2026-11-17T03:00:00Z", "until": "2026-11-18T03:00:00Z",
        "verdict": "oom-killed", "summary": "container app ran out of memory (OOMKilled, exit code 137); 7 deaths in this window",
        "means": "It needed more memory.", "next": ["kubectl describe pod -n default web-0", "pleg history default/web-0"],
        "restarts": 7, "deaths": 7,
        "containers": [
            {
                "name": "app", "restarts": 7, "deaths": 7,
                "exits": [{"reason": "OOMKilled", "exit_code": 137, "count": 6}, {"reason": "Error", "exit_code": 1, "count": 1}],
                "lifetimes": {"count": 7, "shortest_seconds": 4.25, "median_seconds": 730, "longest_seconds": 5000.5},
                "running": true, "running_since": "2026-11-18T02:55:00Z"
            },
            {"name": "side\u001b[2J", "restarts": 0, "deaths": 0, "exits": [], "running": true}
        ],
        "last_death": {
            "time": "2026-11-18T02:54:50Z", "container": "app", "container_id": "c0ffee", "attempt": 6, "exit_code": 137,
            "signal": "SIGKILL", "reason": "OOMKilled", "lived_seconds": 730.0, "event": "5f0c2a9be1d34c77-4711",
            "before": [
                {"time": "2026-11-18T02:50:00Z", "seconds_before": 290, "kind": "node-trouble", "text": "runtime-slow (lasted 40s)", "event": "5f0c2a9be1d34c77-4700"},
                {"time": "2026-11-18T02:54:50Z", "seconds_before": 0, "kind": "sandbox-lost", "text": "the pod's sandbox is gone", "id": 9}
            ]
        },
        "troubles": [{"trouble": "hung-shim", "pod": "default/web-0", "container": "app", "reason": "r", "from": "2026-11-18T02:00:00Z", "seconds": 3300.0}]
    }"#;

    #[test]
    fn a_few_lines_explain_a_pod() {
        let explanation: Explanation = serde_json::from_str(OOM).unwrap();
        let writer = Writer {
            zone: TimeZone::UTC,
            local: TimeZone::UTC,
            now: "2026-11-18T03:00:00Z".parse().unwrap(),
        };
        let text = writer.text(&explanation);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn lengths_are_short() {
        let shown = [0.04, 4.25, 9.99, 730.9].map(|secs| seconds(whole(secs)));
        assert_eq!(shown, ["0ms", "4.2s", "9.9s", "12m10s"]);
    }
}
