//! Pods of `pleg node` as kubectl shows them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::pod::{Style, dash};
use super::table::{Cell, Table};
use super::{BOLD, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::node_pod::{Pod, REMOVED, View, text, time};
use crate::text::{age, clean, when};

/// The colour of a status.
pub(crate) fn colour(word: &str) -> &'static str {
    match word {
        "Running" | "Completed" | "Succeeded" => GREEN,
        REMOVED => DIM,
        "Pending" | "ContainerCreating" | "PodInitializing" | "Terminating" | "NotReady" => YELLOW,
        word if word.starts_with("Init:") && word.ends_with(|c: char| c.is_ascii_digit()) => YELLOW,
        _ => RED,
    }
}

/// The table of pods; with their namespaces unless one was asked for. Lines below it say what is old.
pub(crate) fn table(pods: &[Pod], namespaces: bool, style: Style, now: Timestamp) -> String {
    rows(pods, namespaces, style, now).render() + &stale(pods, now)
}

/// The table alone.
pub(crate) fn rows(pods: &[Pod], namespaces: bool, style: Style, now: Timestamp) -> Table {
    let mut head = vec!["NAME", "READY", "STATUS", "RESTARTS", "AGE"];
    if namespaces {
        head.insert(0, "NAMESPACE");
    }
    if style.wide {
        head.extend(["IP", "UID"]);
    }
    let mut table = style.table(&head);
    for pod in pods {
        let view = &pod.view;
        let ((ready, total), (restarts, last), word) = (view.ready(), view.restarts(), view.word());
        let restarts = match last {
            Some(_) => format!("{restarts} ({} ago)", age(last, now)),
            None => restarts.to_string(),
        };
        let mut row: Vec<Cell> = vec![
            clean(view.name()).into(),
            format!("{ready}/{total}").into(),
            Cell::coloured(clean(&word), colour(&word)),
            restarts.into(),
            age(time(view.metadata.creation_timestamp.as_ref()), now).into(),
        ];
        if namespaces {
            row.insert(0, clean(view.namespace()).into());
        }
        if style.wide {
            row.push(dash(ips(view)).into());
            row.push(clean(view.uid()).into());
        }
        table.row(row);
    }
    table
}

/// Which of these pods have not been seen for a while, a line each.
pub(crate) fn stale(pods: &[Pod], now: Timestamp) -> String {
    let mut text = String::new();
    for view in pods.iter().map(|pod| &pod.view) {
        if let Some((since, sentence)) = view.stale() {
            let old = since.map_or(String::new(), |since| format!(" for {}", age(Some(since), now)));
            let (name, sentence) = (clean(&view.full_name()), clean(sentence));
            let _ = writeln!(text, "{RED}{name} has not been seen{old}. {sentence}{PLAIN}");
        }
    }
    text
}

fn ips(view: &View) -> String {
    let ips: Vec<String> = view.status.pod_ips.iter().flatten().map(|ip| clean(&ip.ip)).collect();
    ips.join(",")
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
            let width = 18_usize.saturating_sub(indent);
            let _ = writeln!(self.0, "{:indent$}{BOLD}{name:<width$}{PLAIN} {}", "", clean(value));
        }
    }

    fn pairs(&mut self, name: &str, pairs: Option<&BTreeMap<String, String>>) {
        for (n, (key, value)) in pairs.into_iter().flatten().enumerate() {
            self.field(0, if n == 0 { name } else { "" }, &format!("{key}={value}"));
        }
    }
}

/// One pod in full, as `kubectl describe` does.
pub(crate) fn describe(pod: &Pod, now: Timestamp) -> String {
    let (view, mut lines) = (&pod.view, Lines::default());
    let (metadata, status) = (&view.metadata, &view.status);
    let when = |at: Option<&Time>| when(time(at), now);
    lines.field(0, "Name", view.name());
    lines.field(0, "Namespace", view.namespace());
    lines.field(0, "UID", view.uid());
    lines.field(0, "Start Time", &when(status.start_time.as_ref()));
    lines.pairs("Labels", metadata.labels.as_ref());
    lines.pairs("Annotations", metadata.annotations.as_ref());
    lines.field(0, "Status", &view.word());
    lines.field(0, "Phase", text(status.phase.as_ref()));
    lines.field(
        0,
        "Terminates by",
        &time(metadata.deletion_timestamp.as_ref()).map_or(String::new(), |at| at.to_string()),
    );
    lines.field(0, "Reason", text(status.reason.as_ref()));
    lines.field(0, "Message", text(status.message.as_ref()));
    lines.field(0, "IPs", &ips(view));
    lines.field(0, "Node IP", text(status.host_ip.as_ref()));
    lines.field(0, "QoS Class", text(status.qos_class.as_ref()));
    for (kind, containers) in [
        ("Init Container", view.init_containers()),
        ("Container", view.containers()),
        ("Ephemeral", view.ephemeral_containers()),
    ] {
        for container in containers {
            lines.field(0, kind, &container.name);
            describe_container(&mut lines, container, &when);
        }
    }
    for condition in view.conditions() {
        let why = match (&condition.reason, &condition.message) {
            (Some(reason), Some(message)) => format!(" ({reason}: {message})"),
            (Some(reason), None) => format!(" ({reason})"),
            _ => String::new(),
        };
        let since = time(condition.last_transition_time.as_ref());
        let since = since.map_or(String::new(), |since| format!(", for {}", age(Some(since), now)));
        lines.field(
            0,
            "Condition",
            &format!("{}={}{since}{why}", condition.type_, condition.status),
        );
    }
    lines.0
}

fn describe_container(lines: &mut Lines, container: &core::ContainerStatus, when: &dyn Fn(Option<&Time>) -> String) {
    lines.field(2, "Container ID", text(container.container_id.as_ref()));
    lines.field(2, "Image", &container.image);
    lines.field(2, "Image ID", &container.image_id);
    for (name, state) in [
        ("State", container.state.as_ref()),
        ("Last State", container.last_state.as_ref()),
    ] {
        let Some(core::ContainerState {
            waiting,
            running,
            terminated,
        }) = state
        else {
            continue;
        };
        if let Some(waiting) = waiting {
            lines.field(2, name, "Waiting");
            lines.field(4, "Reason", text(waiting.reason.as_ref()));
            lines.field(4, "Message", text(waiting.message.as_ref()));
        }
        if let Some(running) = running {
            lines.field(2, name, "Running");
            lines.field(4, "Started", &when(running.started_at.as_ref()));
        }
        if let Some(ended) = terminated {
            lines.field(2, name, "Terminated");
            lines.field(4, "Reason", text(ended.reason.as_ref()));
            lines.field(4, "Message", text(ended.message.as_ref()));
            lines.field(4, "Exit Code", &ended.exit_code.to_string());
            lines.field(4, "Started", &when(ended.started_at.as_ref()));
            lines.field(4, "Finished", &when(ended.finished_at.as_ref()));
        }
    }
    lines.field(2, "Ready", if container.ready { "True" } else { "False" });
    lines.field(2, "Restart Count", &container.restart_count.to_string());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// In the order in which kubectl shows them.
    #[test]
    fn all_kinds_of_containers_are_described() {
        let status = |name: &str| {
            json!([{"name": name, "ready": true, "restartCount": 0, "image": "i", "imageID": "",
            "state": {"running": {}}}])
        };
        let raw = json!({
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"containers": []},
            "status": {
                "initContainerStatuses": status("first"),
                "containerStatuses": status("main"),
                "ephemeralContainerStatuses": status("debug"),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let text = describe(&Pod::read(raw).unwrap(), Timestamp::UNIX_EPOCH);
        let plain = text.replace(BOLD, "").replace(PLAIN, "");
        let heads: Vec<&str> = plain.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(
            heads[2..],
            [
                "Init Container:    first",
                "Container:         main",
                "Ephemeral:         debug",
                "Condition:         Ready=True",
            ],
            "{plain}"
        );
        assert_eq!(plain.matches("State:           Running").count(), 3, "{plain}");
    }
}
