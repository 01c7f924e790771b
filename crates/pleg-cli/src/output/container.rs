//! Containers as a table.

use jiff::Timestamp;
use pleg::ContainerStatus;

use super::pod::{Style, dash};
use super::table::Cell;
use super::{GREEN, RED, YELLOW};
use crate::text::{age, clean, short_ids};
use crate::wire::{Pod, StalePart};

/// A container and its pod.
pub(crate) struct Row<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a ContainerStatus,
}

pub(crate) fn table(rows: &[Row<'_>], style: Style, now: Timestamp) -> String {
    let mut head = vec![
        "CONTAINER",
        "NAMESPACE",
        "POD",
        "NAME",
        "STATE",
        "ATTEMPT",
        "EXIT",
        "REASON",
        "AGE",
    ];
    if style.wide {
        head.extend(["IMAGE", "SANDBOX ID"]);
    }
    let mut table = style.table(&head);
    for Row { pod, container } in rows {
        let state = state(pod, container);
        let id = clean(container.id.as_str());
        let mut row: Vec<Cell> = vec![
            if style.wide { id } else { short_ids(&id) }.into(),
            dash(clean(&pod.pod.namespace)).into(),
            dash(clean(&pod.pod.name)).into(),
            dash(clean(&container.name)).into(),
            Cell::coloured(clean(&state), colour(&state, container.exit_code)),
            container.attempt.to_string().into(),
            dash(container.exit_code.map(|code| code.to_string()).unwrap_or_default()).into(),
            dash(clean(&container.reason)).into(),
            age(container.created_at, now).into(),
        ];
        if style.wide {
            row.push(dash(clean(&container.image)).into());
            row.push(dash(clean(pod.sandboxes.first().map_or("", |sandbox| sandbox.id.as_str()))).into());
        }
        table.row(row);
    }
    table.render()
}

/// The state of a container, or that it is stale.
fn state(pod: &Pod, container: &ContainerStatus) -> String {
    if pod.status_stale.is_some() {
        return pleg_node::status::STALE.to_owned();
    }
    let failed = |part: &StalePart| part.id == container.id.as_str() && part.error.is_some();
    if pod.stale.iter().any(failed) {
        return "Quarantined".to_owned();
    }
    container.state.to_string()
}

fn colour(state: &str, exit_code: Option<i32>) -> &'static str {
    match (state, exit_code) {
        ("Running", _) | ("Exited", Some(0)) => GREEN,
        ("Created", _) | ("Exited", None) => YELLOW,
        _ => RED,
    }
}
