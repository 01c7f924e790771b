//! Pods as a table, and one pod in full.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use pleg_cri::error::seconds;

use super::table::{Cell, Table};
use super::{BOLD, GREEN, PLAIN, RED, YELLOW};
use crate::text::{age, clean, count, short_ids};
use crate::wire::{Container, Pod};

/// What a row says of a pod.
struct Summary {
    running: usize,
    total: usize,
    restarts: u64,
}

/// Counts each container once, by its newest attempt.
fn summary(pod: &Pod) -> Summary {
    let mut newest: BTreeMap<&str, &Container> = BTreeMap::new();
    for container in &pod.containers {
        let known = newest.entry(&container.name).or_insert(container);
        if (container.attempt, container.created_at) >= (known.attempt, known.created_at) {
            *known = container;
        }
    }
    Summary {
        running: newest.values().filter(|container| container.state == "Running").count(),
        total: newest.len(),
        restarts: newest.values().map(|container| u64::from(container.attempt)).sum(),
    }
}

fn state(pod: &Pod) -> (&str, &'static str) {
    match (&pod.error, pod.sandboxes.first()) {
        (Some(_), _) => ("Quarantined", RED),
        (None, Some(sandbox)) if sandbox.state == "Ready" => ("Ready", GREEN),
        (None, Some(sandbox)) => (&sandbox.state, YELLOW),
        (None, None) => ("NoSandbox", YELLOW),
    }
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.sandboxes.iter().filter_map(|sandbox| sandbox.created_at).min()
}

/// The table of pods. What cannot be inspected is told below it.
pub(crate) fn table(pods: &[Pod], wide: bool, now: Timestamp) -> String {
    let mut head = vec!["NAMESPACE", "NAME", "READY", "STATE", "RESTARTS", "IP", "AGE"];
    if wide {
        head.extend(["INSPECTED", "SANDBOX", "UID"]);
    }
    let mut table = Table::new(&head);
    for pod in pods {
        let sum = summary(pod);
        let (state, colour) = state(pod);
        let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let ips: Vec<_> = pod.ips.iter().map(ToString::to_string).collect();
        let mut row: Vec<Cell> = vec![
            dash(clean(&pod.pod.namespace)).into(),
            dash(clean(&pod.pod.name)).into(),
            format!("{}/{}", sum.running, sum.total).into(),
            Cell::coloured(clean(state), colour),
            sum.restarts.to_string().into(),
            dash(if wide {
                ips.join(",")
            } else {
                ips.first().cloned().unwrap_or_default()
            })
            .into(),
            age(created(pod), now).into(),
        ];
        if wide {
            row.push(
                pod.inspected_at
                    .map_or("never".to_owned(), |at| format!("{} ago", age(Some(at), now)))
                    .into(),
            );
            row.push(dash(clean(pod.sandboxes.first().map_or("", |sandbox| &sandbox.id))).into());
            row.push(clean(&pod.pod.uid).into());
        }
        table.row(row);
    }
    let mut text = table.render();
    for pod in pods {
        if let Some(error) = &pod.error {
            let lasted = seconds(Duration::from_secs(error.age_seconds));
            let (name, message) = (clean(&pod.pod.full_name()), short_ids(&clean(&error.message)));
            let _ = writeln!(text, "{RED}{name} in quarantine for {lasted}: {message}{PLAIN}");
        }
    }
    text
}

/// One pod in full, as `kubectl describe` would.
pub(crate) fn describe(pod: &Pod, now: Timestamp) -> String {
    let mut text = String::new();
    let mut field = |indent: usize, name: &str, value: &str| {
        if !value.is_empty() {
            let name = format!("{name}:");
            let width = 16_usize.saturating_sub(indent);
            let _ = writeln!(text, "{:indent$}{BOLD}{name:<width$}{PLAIN} {}", "", clean(value));
        }
    };
    let when = |at: Option<Timestamp>| at.map_or(String::new(), |at| format!("{at} ({} ago)", age(Some(at), now)));
    let sum = summary(pod);
    field(0, "Name", &pod.pod.name);
    field(0, "Namespace", &pod.pod.namespace);
    field(0, "UID", &pod.pod.uid);
    field(0, "State", state(pod).0);
    field(
        0,
        "Running",
        &format!("{} of {}, {}", sum.running, sum.total, count(sum.restarts, "restart")),
    );
    let ips: Vec<_> = pod.ips.iter().map(ToString::to_string).collect();
    field(0, "IPs", &ips.join(", "));
    field(
        0,
        "Inspected",
        &pod.inspected_at.map_or("never".to_owned(), |at| when(Some(at))),
    );
    if let Some(error) = &pod.error {
        let lasted = seconds(Duration::from_secs(error.age_seconds));
        let tries = count(error.attempts, "attempt");
        field(0, "Quarantine", &format!("for {lasted}, {tries}: {}", error.message));
    }
    for sandbox in &pod.sandboxes {
        field(0, "Sandbox", &sandbox.id);
        field(2, "State", &sandbox.state);
        field(2, "Attempt", &sandbox.attempt.to_string());
        field(2, "Created", &when(sandbox.created_at));
        field(2, "Handler", &sandbox.runtime_handler);
    }
    for container in &pod.containers {
        field(0, "Container", &container.name);
        field(2, "ID", &container.id);
        field(2, "State", &container.state);
        field(2, "Attempt", &container.attempt.to_string());
        field(2, "Image", &container.image);
        field(2, "Image ref", &container.image_ref);
        field(2, "Created", &when(container.created_at));
        field(2, "Started", &when(container.started_at));
        field(2, "Finished", &when(container.finished_at));
        field(
            2,
            "Exit code",
            &container.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        );
        field(2, "Reason", &container.reason);
        field(2, "Message", &container.message);
        field(2, "Log", &container.log_path);
        if let Some(limits) = &container.resources {
            let memory = match limits.memory_limit_in_bytes {
                0 => "no limit".to_owned(),
                bytes => format!("{} MiB", bytes / (1 << 20)),
            };
            let cpu = match (limits.cpu_quota, limits.cpu_period) {
                (quota @ 1.., period @ 1..) => format!("{:.2} cores", quota as f64 / period as f64),
                _ => "no limit".to_owned(),
            };
            field(
                2,
                "Limits",
                &format!("cpu {cpu}, shares {}, memory {memory}", limits.cpu_shares),
            );
        }
    }
    text
}
