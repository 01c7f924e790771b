//! One pod as a row of the table.

use std::cmp::Ordering;

use jiff::Timestamp;

use crate::commands::pods::Choosable;
use crate::commands::top::tone::Tone;
use crate::{connect, node_pod, output, wire};

/// Names and states longer than this are cut: they come from the runtime, and one is kept for every pod.
const TEXT_LIMIT: usize = 256;

/// What is kept of a pod: enough to show, find and sort it. The rest is asked for when the pod is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) uid: Box<str>,
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) state: Box<str>,
    pub(crate) tone: Tone,
    /// What stands under READY.
    pub(crate) ready: Box<str>,
    pub(crate) is_ready: bool,
    pub(crate) restarts: u64,
    pub(crate) ip: Box<str>,
    pub(crate) created: Option<Timestamp>,
    /// What the filter looks at, in lower case.
    search: Box<str>,
}

impl Row {
    /// The rows of these pods.
    pub(crate) fn all(pods: &connect::Pods) -> Vec<Self> {
        match pods {
            connect::Pods::Runtime(pods) => pods.iter().map(Self::of_runtime).collect(),
            connect::Pods::Node(pods) => pods.iter().map(Self::of_node).collect(),
        }
    }

    pub(crate) fn of_runtime(pod: &wire::Pod) -> Self {
        let ip = pod.ips.first().map(ToString::to_string).unwrap_or_default();
        Self::new(pod, output::pod::colour, &ip)
    }

    fn of_node(pod: &node_pod::Pod) -> Self {
        let ip = node_pod::text(pod.view.status.pod_ip.as_ref());
        Self::new(pod, output::kube::colour, ip)
    }

    fn new<P: Choosable>(pod: &P, colour: fn(&str) -> &'static str, ip: &str) -> Self {
        let [namespace, name, uid] = pod.names();
        let state = pod.state();
        let (namespace, name) = (cut(namespace), cut(name));
        Self {
            uid: uid.into(),
            search: format!("{namespace}/{name} {state} {ip}").to_lowercase().into(),
            namespace,
            name,
            tone: Tone::of(colour(&state)),
            state: cut(&state),
            ready: pod.ready().into(),
            is_ready: pod.is_ready(),
            restarts: pod.restarts(),
            ip: cut(ip),
            created: pod.created(),
        }
    }

    /// As other commands write and take it.
    pub(crate) fn full_name(&self) -> String {
        if self.name.is_empty() {
            format!("uid:{}", self.uid)
        } else {
            format!("{}/{}", self.namespace, self.name)
        }
    }

    /// Whether the filter admits it.
    pub(super) fn matches(&self, filter: &Filter) -> bool {
        filter.admits(&self.search)
    }
}

fn cut(text: &str) -> Box<str> {
    text.chars().take(TEXT_LIMIT).collect::<String>().into()
}

/// What is typed after `/`: words that all have to be there; those after a `!` must not. Upper and lower case are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    text: String,
    words: Vec<String>,
}

impl Filter {
    /// Characters that can be typed.
    pub(crate) const LIMIT: usize = 128;

    pub(crate) fn new(text: &str) -> Self {
        let text: String = text.chars().filter(|c| !c.is_control()).take(Self::LIMIT).collect();
        let words = text.split_whitespace().map(str::to_lowercase);
        Self {
            words: words.filter(|word| word != "!").collect(),
            text,
        }
    }

    /// As it was typed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether it admits what this text, in lower case, describes.
    pub(crate) fn admits(&self, text: &str) -> bool {
        self.words.iter().all(|word| match word.strip_prefix('!') {
            Some(unwanted) => !text.contains(unwanted),
            None => text.contains(word.as_str()),
        })
    }
}

/// The columns that pods can be sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Namespace and name.
    Name,
    /// Those that are not ready first.
    Ready,
    /// The worst first.
    State,
    /// The most first.
    Restarts,
    /// The youngest first.
    Age,
}

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sort {
    pub(crate) by: Column,
    pub(crate) reversed: bool,
}

impl Sort {
    /// Rows that are equal stay in the order of their names, whichever way the column is sorted.
    pub(super) fn compare(self, a: &Row, b: &Row) -> Ordering {
        let column = match self.by {
            Column::Name => (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)),
            Column::Ready => a.is_ready.cmp(&b.is_ready),
            Column::State => b.tone.cmp(&a.tone).then_with(|| a.state.cmp(&b.state)),
            Column::Restarts => b.restarts.cmp(&a.restarts),
            Column::Age => b.created.cmp(&a.created),
        };
        let column = if self.reversed { column.reverse() } else { column };
        column.then_with(|| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)))
    }

    /// What a key makes of it: another column, or the same the other way round.
    pub(super) fn pressed(self, by: Column) -> Self {
        Self {
            by,
            reversed: self.by == by && !self.reversed,
        }
    }
}
