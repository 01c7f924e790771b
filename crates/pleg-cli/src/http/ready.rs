//! Readiness, check by check, in the words of the kube-apiserver.

use std::fmt::Write as _;
use std::time::Duration;

use http::StatusCode;
use pleg::Level;
use pleg::health::{Cause, Stage};
use pleg_cri::error::seconds;

use super::routes::App;
use crate::text::count;

/// The answer of `/readyz`. Only the generator itself being unhealthy fails it; the other checks say what is degraded.
pub(super) fn answer(app: &App, verbose: bool) -> (StatusCode, String) {
    let pleg = &app.pleg;
    let report = pleg.health().report();
    let ready = report.level != Level::Unhealthy;
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    if !verbose {
        let text = if ready {
            "ok".to_owned()
        } else {
            format!("{}\n", report.message)
        };
        return (status, text);
    }

    let mut text = String::from("[+]ping ok\n");
    let mut check = |name: &str, failed: Option<String>| {
        let _ = match failed {
            None => writeln!(text, "[+]{name} ok"),
            Some(reason) => writeln!(text, "[-]{name} failed: {reason}"),
        };
    };
    check("pleg", (!ready).then(|| report.message.clone()));
    let runtime = pleg.readiness().checks();
    check("runtime-status", runtime.status);
    check("runtime-ready", runtime.runtime);
    check("network-ready", runtime.network);
    let of_stage = |stage: Stage, tried: bool| {
        let found: Vec<_> = report
            .causes
            .iter()
            .filter(|cause| cause.stage == stage && (cause.attempts > 0) == tried)
            .map(Cause::full)
            .collect();
        (!found.is_empty()).then(|| found.join("; "))
    };
    check("runtime-lists", of_stage(Stage::List, true));
    check("quarantined-pods", of_stage(Stage::Inspect, true));
    check("shims", of_stage(Stage::Probe, false));
    check("event-stream", of_stage(Stage::Stream, false));
    let waiting = [of_stage(Stage::List, false), of_stage(Stage::Inspect, false)];
    let waiting: Vec<_> = waiting.into_iter().flatten().collect();
    check(
        "runtime-calls-in-flight",
        (!waiting.is_empty()).then(|| waiting.join("; ")),
    );
    if let Some(board) = &app.board {
        let complaints: Vec<String> = board.complaints().iter().map(ToString::to_string).collect();
        check("manifests", (!complaints.is_empty()).then(|| complaints.join("; ")));
    }

    let _ = writeln!(text, "mode: {}", report.mode);
    let calls = pleg.health().inflight().calls();
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
    let _ = match report.level {
        Level::Healthy => writeln!(text, "readyz check passed"),
        Level::Degraded => writeln!(
            text,
            "readyz check passed (degraded: the node works, but not all of it is seen)"
        ),
        Level::Unhealthy => writeln!(text, "readyz check failed"),
    };
    (status, text)
}
