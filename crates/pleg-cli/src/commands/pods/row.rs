//! What `pleg pods -w` has to know of a pod, be it of a runtime or of a node.

use jiff::Timestamp;

use super::choose::Choosable;
use crate::args::Pods;
use crate::output::pod::Style;
use crate::output::table::Table;
use crate::{connect, node_pod, output, wire};

pub(super) trait Row: Choosable + Clone {
    /// It changes without an event, so that all pods have to be listed again and again.
    const CHANGES_WITHOUT_EVENTS: bool;
    /// It is gone when so many lists in a row do not have it.
    const LISTS_WITHOUT_IT: u32;

    /// These pods, if they are of this kind.
    fn of(pods: connect::Pods) -> anyhow::Result<Vec<Self>>;
    /// All of it, on one line.
    fn json(&self) -> String;
    /// The same, but for when it was asked.
    fn said(&self) -> String;
    /// What is left to show of it once it is gone.
    fn removed(self) -> Self;
    fn rows(pods: &[Self], args: &Pods, style: Style, now: Timestamp) -> Table;
    /// The lines below the table.
    fn below(pods: &[Self], now: Timestamp) -> String;
}

impl Row for wire::Pod {
    const CHANGES_WITHOUT_EVENTS: bool = false;
    const LISTS_WITHOUT_IT: u32 = 1;

    fn of(pods: connect::Pods) -> anyhow::Result<Vec<Self>> {
        match pods {
            connect::Pods::Runtime(pods) => Ok(pods),
            connect::Pods::Node(_) => {
                anyhow::bail!("the daemon is a pleg node now, which it was not before: run this command again")
            }
        }
    }

    fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn said(&self) -> String {
        let pod = Self {
            inspected_at: None,
            ..self.clone()
        };
        pod.json()
    }

    fn removed(self) -> Self {
        self.removed()
    }

    fn rows(pods: &[Self], _: &Pods, style: Style, now: Timestamp) -> Table {
        output::pod::rows(pods, style, now)
    }

    fn below(pods: &[Self], now: Timestamp) -> String {
        output::pod::troubles(pods, now)
    }
}

impl Row for node_pod::Pod {
    /// Probes, deletions and refused manifests are no events of a runtime.
    const CHANGES_WITHOUT_EVENTS: bool = true;
    /// A node that has just started lists a pod once it has read its manifest.
    const LISTS_WITHOUT_IT: u32 = 2;

    fn of(pods: connect::Pods) -> anyhow::Result<Vec<Self>> {
        match pods {
            connect::Pods::Node(pods) => Ok(pods),
            connect::Pods::Runtime(_) => anyhow::bail!("the daemon is no longer a pleg node: run this command again"),
        }
    }

    fn json(&self) -> String {
        self.raw.to_string()
    }

    fn said(&self) -> String {
        self.json()
    }

    fn removed(self) -> Self {
        self.removed()
    }

    fn rows(pods: &[Self], args: &Pods, style: Style, now: Timestamp) -> Table {
        output::kube::rows(pods, args.namespace.is_none(), style, now)
    }

    fn below(pods: &[Self], now: Timestamp) -> String {
        output::kube::stale(pods, now)
    }
}
