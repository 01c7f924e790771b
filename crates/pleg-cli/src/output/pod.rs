//! Pods of a runtime as a table, and one pod in full.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use pleg::status::Pairs;
use pleg::{ContainerStatus, SandboxStatus};
use pleg_cri::duration::seconds;

use super::table::{Cell, Table};
use super::{BOLD, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::node_pod::REMOVED;
use crate::text::{self, age, clean, count, pod_name, short_ids};
use crate::wire::Pod;

/// How a table is printed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    pub(crate) wide: bool,
    pub(crate) no_headers: bool,
}

impl Style {
    /// A table with this head, or without one.
    pub(crate) fn table(self, head: &[&str]) -> Table {
        if self.no_headers {
            Table::without_head()
        } else {
            Table::new(head)
        }
    }
}

/// The STATE of a pod: stale, else the trouble in observing it, else its own state.
pub(crate) fn state(pod: &Pod) -> String {
    if pod.status_stale.is_some() {
        return pleg_node::status::STALE.to_owned();
    }
    if pod.error.is_some() {
        return "Quarantined".to_owned();
    }
    match pod.causes.first() {
        Some(cause) => camel_case(&cause.trouble),
        None => pod.state.clone(),
    }
}

/// `hung-shim` in the style of Kubernetes' reasons: `HungShim`.
fn camel_case(trouble: &str) -> String {
    let capital = |part: &str| {
        let mut chars = part.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(chars).collect::<String>()
    };
    trouble.split('-').map(capital).collect()
}

/// The colour of a state.
pub(crate) fn colour(state: &str) -> &'static str {
    match state {
        "Running" | "Completed" => GREEN,
        REMOVED => DIM,
        "Created" | "Exited" | "NoContainers" | "NotReady" => YELLOW,
        _ => RED,
    }
}

/// The pod's creation time: that of its oldest remaining sandbox.
pub(crate) fn created(pod: &Pod) -> Option<Timestamp> {
    pod.sandboxes.iter().filter_map(|sandbox| sandbox.created_at).min()
}

pub(super) fn dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// The table of pods, followed by the troubles in observing them.
pub(crate) fn table(pods: &[Pod], style: Style, now: Timestamp) -> String {
    rows(pods, style, now).render() + &troubles(pods, now)
}

/// The table alone.
pub(crate) fn rows(pods: &[Pod], style: Style, now: Timestamp) -> Table {
    let mut head = vec!["NAMESPACE", "NAME", "READY", "STATE", "RESTARTS", "IP", "AGE"];
    if style.wide {
        head.extend(["INSPECTED", "SANDBOX", "HANDLER", "IMAGES", "SANDBOX ID", "UID"]);
    }
    let mut table = style.table(&head);
    for pod in pods {
        let state = state(pod);
        let ips: Vec<_> = pod.ips.iter().map(ToString::to_string).collect();
        let ips = if style.wide {
            ips.join(",")
        } else {
            ips.first().cloned().unwrap_or_default()
        };
        let mut row: Vec<Cell> = vec![
            dash(clean(&pod.pod.namespace)).into(),
            dash(clean(&pod.pod.name)).into(),
            format!("{}/{}", pod.running, pod.total).into(),
            Cell::coloured(clean(&state), colour(&state)),
            pod.restarts.to_string().into(),
            dash(ips).into(),
            age(created(pod), now).into(),
        ];
        if style.wide {
            let sandbox =
                |of: fn(&SandboxStatus) -> String| dash(clean(&pod.sandboxes.first().map_or_else(String::new, of)));
            let inspected = pod.inspected_at;
            row.extend([
                Cell::from(inspected.map_or("never".to_owned(), |at| format!("{} ago", age(Some(at), now)))),
                sandbox(|sandbox| sandbox.state.to_string()).into(),
                sandbox(|sandbox| sandbox.runtime_handler.to_string()).into(),
                dash(clean(&images(pod).join(","))).into(),
                sandbox(|sandbox| sandbox.id.to_string()).into(),
                clean(pod.pod.uid.as_str()).into(),
            ]);
        }
        table.row(row);
    }
    table
}

/// The distinct images of a pod, in the order of its containers.
fn images(pod: &Pod) -> Vec<&str> {
    let mut images: Vec<&str> = Vec::new();
    for container in &pod.containers {
        if !container.image.is_empty() && !images.contains(&&*container.image) {
            images.push(&container.image);
        }
    }
    images
}

/// The troubles in observing these pods, one line each: first that all are stale, then those of single pods.
pub(crate) fn troubles(pods: &[Pod], now: Timestamp) -> String {
    let mut text = String::new();
    if let Some(stale) = pods.iter().find_map(|pod| pod.status_stale.as_ref()) {
        let _ = writeln!(text, "{RED}{}{PLAIN}", stale_line(stale, now));
    }
    for pod in pods {
        let name = clean(&pod_name(&pod.pod));
        for line in trouble_lines(pod) {
            let _ = writeln!(text, "{RED}{name}: {}{PLAIN}", short_ids(&clean(&line)));
        }
    }
    text
}

/// That nothing new is seen.
pub(crate) fn stale_line(stale: &crate::wire::StatusStale, now: Timestamp) -> String {
    let why = short_ids(&clean(&stale.why));
    match stale.as_of {
        Some(at) => format!("Nothing new has been seen of any pod for {}: {why}", age(Some(at), now)),
        None => format!("Nothing has been seen of any pod yet: {why}"),
    }
}

/// The troubles of a pod, one sentence each.
pub(crate) fn trouble_lines(pod: &Pod) -> Vec<String> {
    let mut lines = Vec::new();
    let parts = pod.stale.iter().filter_map(|part| part.error.as_ref());
    // An older daemon reports only the first.
    let errors = parts.chain(pod.error.as_ref().filter(|_| pod.stale.is_empty()));
    for error in errors {
        let lasted = seconds(Duration::from_secs(error.age_seconds));
        let tries = count(error.attempts, "attempt");
        lines.push(format!("in quarantine for {lasted}, {tries}: {}", error.message));
    }
    let known = |id: &Option<String>| {
        pod.stale
            .iter()
            .any(|part| part.error.is_some() && Some(&part.id) == id.as_ref())
    };
    let causes = pod.causes.iter().filter(|cause| !known(&cause.id));
    lines.extend(causes.map(|cause| cause.text.clone()));
    lines
}

/// Lines of names and values.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn field(&mut self, indent: usize, name: &str, value: &str) {
        if !value.is_empty() {
            // Continuation lines have no name of their own.
            let name = if name.is_empty() {
                String::new()
            } else {
                format!("{name}:")
            };
            let width = 16_usize.saturating_sub(indent);
            let _ = writeln!(self.0, "{:indent$}{BOLD}{name:<width$}{PLAIN} {}", "", clean(value));
        }
    }

    fn pairs(&mut self, name: &str, pairs: &Pairs) {
        for (n, (key, value)) in pairs.iter().enumerate() {
            self.field(0, if n == 0 { name } else { "" }, &format!("{key}={value}"));
        }
    }
}

/// One pod in full, as `kubectl describe` prints it. Troubles come first.
pub(crate) fn describe(pod: &Pod, now: Timestamp) -> String {
    let mut lines = Lines::default();
    if let Some(stale) = &pod.status_stale {
        let _ = writeln!(lines.0, "{RED}{}{PLAIN}", stale_line(stale, now));
    }
    for line in trouble_lines(pod) {
        let _ = writeln!(lines.0, "{RED}Trouble: {}{PLAIN}", clean(&line));
    }
    let mut told = Vec::new();
    for cause in &pod.causes {
        if !told.contains(&&cause.next) {
            let _ = writeln!(
                lines.0,
                "Usually: {}\nNext: {}",
                clean(&cause.means),
                clean(&cause.next)
            );
            told.push(&cause.next);
        }
    }
    let when = |at: Option<Timestamp>| text::when(at, now);
    lines.field(0, "Name", &pod.pod.name);
    lines.field(0, "Namespace", &pod.pod.namespace);
    lines.field(0, "UID", pod.pod.uid.as_str());
    if let Some(sandbox) = pod.sandboxes.first() {
        lines.pairs("Labels", &sandbox.labels);
        lines.pairs("Annotations", &sandbox.annotations);
    }
    lines.field(0, "State", &state(pod));
    lines.field(
        0,
        "Running",
        &format!("{} of {}, {}", pod.running, pod.total, count(pod.restarts, "restart")),
    );
    let ips: Vec<_> = pod.ips.iter().map(ToString::to_string).collect();
    lines.field(0, "IPs", &ips.join(", "));
    let inspected = pod.inspected_at;
    lines.field(
        0,
        "Inspected",
        &inspected.map_or("never".to_owned(), |at| when(Some(at))),
    );
    for sandbox in &pod.sandboxes {
        lines.field(0, "Sandbox", sandbox.id.as_str());
        lines.field(2, "State", &sandbox.state.to_string());
        lines.field(2, "Attempt", &sandbox.attempt.to_string());
        lines.field(2, "Created", &when(sandbox.created_at));
        lines.field(2, "Handler", &sandbox.runtime_handler);
    }
    for container in &pod.containers {
        lines.field(0, "Container", &container.name);
        let stale = pod.stale.iter().any(|part| part.id == container.id.as_str());
        describe_container(&mut lines, container, stale, &when);
    }
    lines.0
}

fn describe_container(
    lines: &mut Lines,
    container: &ContainerStatus,
    stale: bool,
    when: &dyn Fn(Option<Timestamp>) -> String,
) {
    lines.field(2, "ID", container.id.as_str());
    let old = if stale { " (not inspected since it changed)" } else { "" };
    lines.field(2, "State", &format!("{}{old}", container.state));
    lines.field(2, "Attempt", &container.attempt.to_string());
    lines.field(2, "Image", &container.image);
    lines.field(2, "Image ref", &container.image_ref);
    lines.field(2, "Created", &when(container.created_at));
    lines.field(2, "Started", &when(container.started_at));
    lines.field(2, "Finished", &when(container.finished_at));
    let code = container.exit_code;
    lines.field(2, "Exit code", &code.map(|code| code.to_string()).unwrap_or_default());
    lines.field(2, "Reason", &container.reason);
    lines.field(2, "Message", &container.message);
    lines.field(2, "Log", &container.log_path);
    if let Some(limits) = &container.resources {
        let memory = match limits.memory_limit_in_bytes {
            0 => "no limit".to_owned(),
            bytes => format!("{} MiB", bytes / (1 << 20)),
        };
        let cpu = match (limits.cpu_quota, limits.cpu_period) {
            (quota @ 1.., period @ 1..) => format!("{:.2} cores", quota as f64 / period as f64),
            _ => "no limit".to_owned(),
        };
        let limits = format!("cpu {cpu}, shares {}, memory {memory}", limits.cpu_shares);
        lines.field(2, "Limits", &limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_words_of_kubernetes() {
        assert_eq!(camel_case("hung-shim"), "HungShim");
        assert_eq!(camel_case(""), "");
    }
}
