//! One trouble, with what was seen of it, where, and what to do.

use pleg::Trouble;
use pleg::health::diagnosis::About;
use serde::Serialize;

/// Objects of one finding beyond this many are counted, not named.
const MOST_OBJECTS: usize = 100;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Broken: a pod, or the node.
    Critical,
    /// Works, and may not for long.
    Warning,
    /// Good to know.
    Info,
}

/// One trouble.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) trouble: Trouble,
    /// What was seen, in one line.
    pub(super) evidence: String,
    /// Where; the first is the one that `next` is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) objects: Vec<Place>,
    /// Places that are not listed because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) more_objects: usize,
    pub(super) means: &'static str,
    pub(super) next: String,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) seen_in: &'static [&'static str],
}

impl Finding {
    /// A trouble at these places; the next step is about `first`.
    pub(super) fn new(
        severity: Severity,
        trouble: Trouble,
        evidence: String,
        mut objects: Vec<Place>,
        first: &Place,
        endpoint: &str,
    ) -> Self {
        let about = About {
            endpoint: Some(endpoint),
            pod: Some(&first.pod),
            container: first.container.as_deref(),
            id: first.id.as_deref(),
            sandbox: Some(&first.sandbox),
            shim_pid: first.shim_pid,
        };
        let next = trouble.remedy(&about);
        let more_objects = objects.len().saturating_sub(MOST_OBJECTS);
        objects.truncate(MOST_OBJECTS);
        Self {
            severity,
            trouble,
            evidence,
            objects,
            more_objects,
            means: trouble.meaning(),
            next,
            seen_in: trouble.seen_in(),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// A container or sandbox that is in trouble.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<String>,
    /// Of the container; none for a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shim_pid: Option<u32>,
    /// As /proc has it: `T` is stopped, `D` waits in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shim_state: Option<char>,
    /// What was seen here.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) detail: String,
}

/// `1 container`, `2 containers`.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `9.3 MiB`
pub(super) fn mebibytes(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
