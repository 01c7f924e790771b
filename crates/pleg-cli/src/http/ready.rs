//! Readiness, check by check, in the words of the kube-apiserver. A projection of [`NodeHealth`]: nothing is judged here.

use std::fmt::Write as _;
use std::time::Duration;

use http::StatusCode;
use pleg::{Level, NodeHealth};
use pleg_cri::duration::seconds;

use super::routes::App;
use crate::text::count;

/// The answer of `/readyz`. Only the generator itself being unhealthy fails it; the other checks say what is degraded.
pub(super) fn answer(app: &App, verbose: bool) -> (StatusCode, String) {
    let node = app.pleg.observe();
    let status = if node.report.passes() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let text = match (verbose, node.report.passes()) {
        (true, _) => details(app, &node),
        (false, true) => "ok".to_owned(),
        (false, false) => format!("{}\n", node.report.message),
    };
    (status, text)
}

fn details(app: &App, node: &NodeHealth) -> String {
    let mut text = String::from("[+]ping ok\n");
    let mut check = |name: &str, failed: Option<String>| {
        let _ = match failed {
            None => writeln!(text, "[+]{name} ok"),
            Some(reason) => writeln!(text, "[-]{name} failed: {reason}"),
        };
    };
    for of_node in node.checks() {
        check(&of_node.name, of_node.failed);
    }
    if let Some(board) = &app.board {
        let complaints: Vec<String> = board.problems().iter().map(ToString::to_string).collect();
        check("manifests", (!complaints.is_empty()).then(|| complaints.join("; ")));
    }
    if let Some(report) = app.setup.report() {
        check("cluster-report", report.error);
    }
    if let Some(history) = app.setup.history_status() {
        check("history", history.reason);
    }

    let _ = writeln!(text, "mode: {}", node.report.mode);
    if let Some(late) = &node.runtime.late {
        let _ = writeln!(text, "{late}");
    }
    let calls = app.pleg.health().inflight().calls();
    if let Some(oldest) = calls.iter().find(|call| call.deadline.is_some()) {
        let age = Duration::from_millis(u64::try_from(oldest.since.elapsed().as_millis()).unwrap_or(u64::MAX));
        let _ = writeln!(
            text,
            "{} in flight, the oldest {} for {}",
            count(calls.len(), "call"),
            oldest.rpc,
            seconds(age)
        );
    }
    let ready = if node.ready.status { "True" } else { "False" };
    let _ = writeln!(text, "node: Ready={ready} ({})", node.ready.reason);
    let _ = writeln!(text, "{}", verdict(node.report.level, node.ready.status));
    text
}

/// The last line: whether the check passed, and what that does not say.
fn verdict(level: Level, ready: bool) -> &'static str {
    match (level, ready) {
        (Level::Unhealthy, _) => "readyz check failed",
        (_, false) => "readyz check passed for pleg only: the node is not ready",
        (Level::Degraded, true) => "readyz check passed (degraded: the node works, but pleg does not see all of it)",
        (Level::Healthy, true) => "readyz check passed",
    }
}
