//! The report in words: what is wrong first, then what was found.

use std::fmt::Write as _;
use std::time::Duration;

use pleg::shim::Shim;

use super::facts::{Runtime, Socket};
use super::finding::{Finding, Place, Severity, counted, mebibytes};
use super::kubelet::rounded;
use super::report::{CallStats, Counts, Report};
use crate::output::table::{Cell, Table};
use crate::output::{BOLD, CYAN, GREEN, PLAIN, RED, YELLOW};
use crate::text::{clean, short_ids};

/// Places of a finding that are shown without `-o wide`.
const FEW: usize = 5;

/// The report, for people.
pub(super) fn text(report: &Report, wide: bool) -> String {
    let mut text = head(report);
    for finding in &report.findings {
        self::finding(&mut text, finding, wide);
    }
    text.push('\n');
    found(&mut text, report);
    calls(&mut text, &report.calls);
    if wide {
        dead(&mut text, report);
    }
    text
}

fn head(report: &Report) -> String {
    let name = match &report.runtime {
        Some(runtime) => format!("{} {} at {}", runtime.name, runtime.version, report.endpoint),
        None => format!("The runtime at {}", report.endpoint),
    };
    let count = |severity: Severity| report.findings.iter().filter(|f| f.severity == severity).count();
    let counts = [
        (Severity::Critical, "critical"),
        (Severity::Warning, "warning"),
        (Severity::Info, "note"),
    ];
    let counts: Vec<_> = counts
        .into_iter()
        .filter(|(severity, _)| count(*severity) > 0)
        .map(|(severity, word)| match (severity, count(severity)) {
            (Severity::Critical, n) => format!("{n} {word}"),
            (_, n) => counted(n, word),
        })
        .collect();
    let (colour, verdict) = match report.severity {
        Some(Severity::Critical) => (RED, counts.join(", ")),
        Some(Severity::Warning) => (YELLOW, counts.join(", ")),
        _ if idle(report) => {
            let containers = report.counts.as_ref().and_then(|counts| counts.containers).unwrap_or(0);
            let mut parts = vec![format!(
                "the runtime answers, but none of {} runs",
                counted(containers, "container")
            )];
            parts.extend(counts);
            (YELLOW, parts.join(", "))
        }
        Some(Severity::Info) => (GREEN, format!("no problems found, {}", counts.join(", "))),
        None => (GREEN, "no problems found".to_owned()),
    };
    let took = rounded(Duration::try_from_secs_f64(report.took_seconds).unwrap_or_default());
    let mut text = format!(
        "{}: {BOLD}{colour}{verdict}{PLAIN} (examined in {took})\n",
        clean(&name)
    );
    for what in &report.left_out {
        let budget = rounded(Duration::try_from_secs_f64(report.budget_seconds).unwrap_or_default());
        let _ = writeln!(
            text,
            "{YELLOW}Not examined{PLAIN} within the budget of {budget}: {what}"
        );
    }
    text
}

/// There are containers, and none of them runs: whatever the cause, that is not well.
fn idle(report: &Report) -> bool {
    let counts = report.counts.as_ref();
    counts.is_some_and(|counts| counts.running == 0 && counts.containers.is_some_and(|containers| containers > 0))
}

fn finding(text: &mut String, finding: &Finding, wide: bool) {
    let (colour, word) = match finding.severity {
        Severity::Critical => (RED, "CRITICAL"),
        Severity::Warning => (YELLOW, "WARNING"),
        Severity::Info => (CYAN, "INFO"),
    };
    let _ = writeln!(
        text,
        "\n{BOLD}{colour}{word}{PLAIN} {BOLD}{}{PLAIN}: {}",
        finding.trouble,
        short_ids(&clean(&finding.evidence))
    );
    let shown = if wide { finding.objects.len() } else { FEW };
    for place in finding.objects.iter().take(shown) {
        let place = clean(&described(place));
        let _ = writeln!(text, "  - {}", if wide { place } else { short_ids(&place) });
    }
    match finding.objects.len().saturating_sub(shown) + finding.more_objects {
        0 => {}
        n if wide => {
            let _ = writeln!(text, "  - and {n} more");
        }
        n => {
            let _ = writeln!(text, "  - and {n} more (-o wide)");
        }
    }
    let _ = writeln!(text, "  Means: {}", finding.means);
    for (n, step) in steps(&finding.next).into_iter().enumerate() {
        let _ = writeln!(text, "  {:<6} {step}", if n == 0 { "Next:" } else { "" });
    }
    if !finding.seen_in.is_empty() {
        let _ = writeln!(text, "  Known: {}", finding.seen_in.join(", "));
    }
}

/// A line for each sentence, so that a command is found and copied at a glance. What is in backticks stays whole.
fn steps(next: &str) -> Vec<&str> {
    let mut quoted = false;
    let mut steps = Vec::new();
    let mut from = 0;
    for (at, c) in next.char_indices() {
        quoted ^= c == '`';
        if c == ' ' && !quoted && next[..at].ends_with('.') {
            steps.push(&next[from..at]);
            from = at + 1;
        }
    }
    steps.push(&next[from..]);
    steps
}

fn described(place: &Place) -> String {
    let pod = match place.pod.as_str() {
        "" => "no pod".to_owned(),
        pod => format!("pod {pod}"),
    };
    let mut text = match (&place.container, &place.id) {
        (Some(name), Some(id)) if name.is_empty() => format!("container {id} in {pod}"),
        (Some(name), Some(id)) => format!("container {name} ({id}) in {pod}"),
        _ if place.sandbox.is_empty() => pod,
        _ => format!("{pod} (sandbox {})", place.sandbox),
    };
    if !place.detail.is_empty() {
        let _ = write!(text, ": {}", place.detail);
    }
    if let (Some(pid), Some(state)) = (place.shim_pid, place.shim_state) {
        let _ = write!(text, "; its shim {pid} is {} ({state})", Shim { pid, state }.word());
    }
    text
}

/// The facts, one line each.
fn found(text: &mut String, report: &Report) {
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{BOLD}{name:<9}{PLAIN}{}", clean(&value));
    };
    if let Some(runtime) = &report.runtime {
        line("Runtime", about_runtime(runtime));
        line("Events", report.events.says.clone());
        line("Kernel", report.witness.says.clone());
    }
    if let Some(socket) = &report.socket {
        line("Socket", about_socket(socket));
    }
    if let Some(counts) = &report.counts {
        line("Node", about_node(counts));
    }
    let lists = report.lists.iter().map(|list| {
        let items = counted(list.items, "item");
        format!("{} {} ({items})", list.rpc, mebibytes(list.bytes))
    });
    let lists: Vec<_> = lists.collect();
    if !lists.is_empty() {
        line("Lists", format!("{}; a kubelet accepts up to 16 MiB", lists.join(", ")));
    }
    line("Kubelet", report.kubelet.says.clone());
}

fn about_runtime(runtime: &Runtime) -> String {
    let yes = |known: Option<bool>| match known {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    format!(
        "{} {}, CRI {}; streaming lists: {}, RuntimeConfig: {}",
        runtime.name,
        runtime.version,
        runtime.api,
        yes(runtime.streaming_lists),
        yes(runtime.runtime_config)
    )
}

fn about_socket(socket: &Socket) -> String {
    let who = if socket.world_accessible {
        "every user can"
    } else {
        "other users cannot"
    };
    format!(
        "{}, mode {}, uid {}, gid {}: {who} open it",
        socket.path, socket.mode, socket.uid, socket.gid
    )
}

fn about_node(counts: &Counts) -> String {
    let containers = match counts.containers {
        Some(n) => format!(
            "{} ({} running, {} dead)",
            counted(n, "container"),
            counts.running,
            counts.dead
        ),
        None => "containers not listed".to_owned(),
    };
    format!(
        "{}, {containers}, {}, {}",
        counted(counts.pods, "pod"),
        counted(counts.orphans, "orphan"),
        counted(counts.odd_objects.total() as usize, "odd object")
    )
}

fn calls(text: &mut String, calls: &[CallStats]) {
    if calls.is_empty() {
        return;
    }
    let mut table = Table::new(&["RPC", "CALLS", "FAILED", "UNANSWERED", "P50", "P99", "WORST", "SLOWEST"]);
    for call in calls {
        let bad = |n: usize| match n {
            0 => Cell::from("0"),
            n => Cell::coloured(n.to_string(), RED),
        };
        let worst = match (&call.worst_pod, &call.worst_container) {
            (Some(pod), Some(container)) => format!("{container} in {pod}"),
            (Some(pod), None) => pod.clone(),
            _ => String::new(),
        };
        let rpc = if call.verbose {
            format!("{} (verbose)", call.rpc)
        } else {
            call.rpc.to_owned()
        };
        table.row(vec![
            rpc.into(),
            call.calls.to_string().into(),
            bad(call.failed),
            bad(call.unanswered),
            millis(call.p50_ms).into(),
            millis(call.p99_ms).into(),
            millis(call.worst_ms).into(),
            clean(&worst).into(),
        ]);
    }
    text.push('\n');
    // A row whose last cell is empty ends in blanks.
    for line in table.render().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn millis(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.1}ms")
    } else {
        rounded(Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default())
    }
}

fn dead(text: &mut String, report: &Report) {
    let Some(counts) = report.counts.as_ref().filter(|counts| counts.dead > 0) else {
        return;
    };
    let mut table = Table::new(&["POD", "DEAD"]);
    for of in &counts.dead_by_pod {
        let pod = if of.pod.is_empty() { "(none)" } else { &of.pod };
        table.row(vec![clean(pod).into(), of.dead.to_string().into()]);
    }
    text.push('\n');
    text.push_str(&table.render());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_in_one_piece() {
        assert_eq!(
            steps("Ask: `ls . a`. Then `cat 1.5 x`, and wait. Done."),
            ["Ask: `ls . a`.", "Then `cat 1.5 x`, and wait.", "Done."]
        );
        assert_eq!(steps("One"), ["One"]);
    }
}
