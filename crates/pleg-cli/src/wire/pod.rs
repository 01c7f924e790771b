//! A pod of the API.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use pleg::health::CausesByPod;
use pleg::{ContainerStatus, PodEntry, PodRef, PodStatus, SandboxStatus};
use serde::{Deserialize, Serialize};

use super::Cause;

#[expect(clippy::struct_field_names, reason = "the names are the JSON's")]
/// A pod of `/api/v1/pods`: a [`pleg::PodStatus`], what it comes to, when it was inspected, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) pod: PodRef,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) sandboxes: Vec<SandboxStatus>,
    pub(crate) containers: Vec<ContainerStatus>,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) running: usize,
    #[serde(default)]
    pub(crate) total: usize,
    #[serde(default)]
    pub(crate) restarts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inspected_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<PodError>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stale: Vec<StalePart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status_stale: Option<StatusStale>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) causes: Vec<Cause>,
}

impl Pod {
    /// What is left to show of it once the runtime no longer has it.
    pub(crate) fn removed(self) -> Self {
        Self {
            state: crate::node_pod::REMOVED.to_owned(),
            running: 0,
            error: None,
            stale: Vec::new(),
            status_stale: None,
            causes: Vec::new(),
            ..self
        }
    }
}

/// Nothing new is seen of any pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatusStale {
    /// What is shown was true then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) as_of: Option<Timestamp>,
    pub(crate) why: String,
}

/// A [`pleg::StalePart`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StalePart {
    pub(crate) kind: String,
    pub(crate) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) listed: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<PodError>,
}

/// Why a pod is in quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodError {
    pub(crate) message: String,
    pub(crate) trouble: String,
    pub(crate) rpc: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<String>,
    pub(crate) attempts: u32,
    pub(crate) age_seconds: u64,
}

/// A pod, as the API writes it; [`Pod`] reads it.
#[derive(Debug, Serialize)]
pub(crate) struct PodJson<'a> {
    #[serde(flatten)]
    status: &'a PodStatus,
    #[serde(flatten)]
    summary: pleg::status::Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    inspected_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a pleg::cache::PodError>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    stale: &'a [pleg::StalePart],
    #[serde(skip_serializing_if = "Option::is_none")]
    status_stale: Option<&'a StatusStale>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<&'a pleg::health::Cause>,
}

/// What a health report says about pods.
#[derive(Debug)]
pub(crate) struct PodHealth<'a> {
    stale: Option<StatusStale>,
    causes: CausesByPod<'a>,
}

impl<'a> PodHealth<'a> {
    /// From a report with every cause.
    pub(crate) fn of(report: &'a pleg::Report, now: Timestamp) -> Self {
        let last_seen = report.last_seen_seconds;
        let last_seen = last_seen.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            stale: report.why_stale().map(|why| StatusStale {
                as_of: last_seen.and_then(|ago| now.checked_sub(ago).ok()),
                why,
            }),
            causes: report.by_pod(),
        }
    }
}

impl<'a> PodJson<'a> {
    /// A pod with what health says about it.
    pub(crate) fn new(entry: &'a PodEntry, health: &'a PodHealth<'_>) -> Self {
        Self {
            summary: entry.status.summary(),
            status: &entry.status,
            inspected_at: entry.inspected_at,
            error: entry.error.as_deref(),
            stale: &entry.stale,
            status_stale: health.stale.as_ref(),
            causes: health.causes.of(&entry.status),
        }
    }

    /// A pod that the runtime itself was asked for, without a generator and so without health.
    pub(crate) fn asked(status: &'a PodStatus, at: Timestamp) -> Self {
        Self {
            summary: status.summary(),
            status,
            inspected_at: Some(at),
            error: None,
            stale: &[],
            status_stale: None,
            causes: Vec::new(),
        }
    }
}

/// A pod in a few words, for tables of thousands of them: `?summary`.
#[derive(Debug, Serialize)]
pub(crate) struct PodRow<'a> {
    pod: &'a PodRef,
    ips: &'a [IpAddr],
    #[serde(flatten)]
    summary: pleg::status::Summary,
    /// When its first sandbox was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    /// When a container was last made, started or ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_at: Option<Timestamp>,
    /// A container or sandbox of it is in quarantine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    quarantined: bool,
    /// What is wrong with it, if anything: the trouble of its quarantine, or its first cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_stale: Option<&'a StatusStale>,
}

impl<'a> PodRow<'a> {
    /// A pod with what health says about it.
    pub(crate) fn new(entry: &'a PodEntry, health: &'a PodHealth<'_>) -> Self {
        let status = &entry.status;
        let quarantine = entry.error.as_deref().map(|error| error.trouble);
        let cause = || health.causes.of(status).first().map(|cause| cause.trouble);
        let times = |container: &ContainerStatus| [container.created_at, container.started_at, container.finished_at];
        Self {
            pod: &status.pod,
            ips: &status.ips,
            summary: status.summary(),
            created_at: status.sandboxes.iter().filter_map(|sandbox| sandbox.created_at).min(),
            changed_at: status.containers.iter().flat_map(times).flatten().max(),
            quarantined: quarantine.is_some(),
            trouble: quarantine.or_else(cause).map(pleg::Trouble::name),
            status_stale: health.stale.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list hangs, and a container of the pod is to blame.
    const REPORT: &str = r#"{
        "level": "Degraded", "headline": "", "message": "", "warnings": [],
        "causes": [{
            "stage": "list", "trouble": "locked-container", "text": "t", "means": "m", "next": "n",
            "rpc": "ListContainers", "id": "c", "age_seconds": 3, "attempts": 1, "last_error": "e"
        }],
        "last_seen_seconds": 3.0, "threshold_seconds": 180, "looks": 1, "odd_objects": {},
        "mode": {
            "mode": "generic", "configured": "auto", "reason": "", "full_look_period_seconds": 1.0, "missed_changes": 0
        }
    }"#;

    /// A pod with every field.
    const ENTRY: &str = r#"{
        "pod": {"uid": "u", "namespace": "ns", "name": "web"},
        "ips": ["10.0.0.7"],
        "sandboxes": [{
            "id": "s", "state": "Ready", "attempt": 1, "created_at": "2023-11-14T22:13:20Z", "ips": ["10.0.0.7"],
            "runtime_handler": "runc", "labels": {"app": "web"}, "annotations": {"note": "a"}
        }],
        "containers": [{
            "id": "c", "name": "app", "attempt": 2, "state": "Exited", "created_at": "2023-11-14T22:13:20Z",
            "started_at": "2023-11-14T22:13:20Z", "finished_at": "2023-11-14T22:13:20Z", "exit_code": 137,
            "reason": "OOMKilled", "message": "m", "image": "i", "image_ref": "r", "log_path": "/l",
            "resources": {
                "cpu_period": 1, "cpu_quota": 2, "cpu_shares": 3, "memory_limit_in_bytes": 4, "oom_score_adj": 5
            }
        }],
        "observed": 0, "fresh": 0, "inspected": 0, "inspected_at": "2023-11-14T22:13:20Z",
        "error": {
            "message": "m", "trouble": "stuck-inspection", "rpc": "ContainerStatus", "container": "app", "id": "c",
            "sandbox": "s", "attempts": 2, "age_seconds": 5
        },
        "stale": [{
            "kind": "container", "id": "c", "name": "app", "attempt": 2, "listed": "Exited",
            "error": {"message": "m", "trouble": "stuck-inspection", "rpc": "ContainerStatus", "attempts": 2, "age_seconds": 5}
        }]
    }"#;

    #[test]
    fn pods_come_back_as_they_went_out() {
        let report: pleg::Report = serde_json::from_str(REPORT).unwrap();
        let entry: PodEntry = serde_json::from_str(ENTRY).unwrap();
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let text = serde_json::to_string(&PodJson::new(&entry, &PodHealth::of(&report, at))).unwrap();
        let read: Pod = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!((read.state.as_str(), read.causes.len()), ("OOMKilled", 1));
        assert_eq!(
            read.status_stale.unwrap().as_of,
            Timestamp::from_second(1_699_999_997).ok()
        );
    }

    #[test]
    fn a_row_agrees_with_the_pod() {
        let report: pleg::Report = serde_json::from_str(REPORT).unwrap();
        let entry: PodEntry = serde_json::from_str(ENTRY).unwrap();
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let row = serde_json::to_value(PodRow::new(&entry, &PodHealth::of(&report, at))).unwrap();
        let pod = serde_json::to_value(PodJson::new(&entry, &PodHealth::of(&report, at))).unwrap();
        for field in ["pod", "ips", "state", "running", "total", "restarts", "status_stale"] {
            assert_eq!(row[field], pod[field], "{field}");
        }
        assert_eq!(
            (&row["trouble"], &row["quarantined"]),
            (&"stuck-inspection".into(), &true.into())
        );
        assert_eq!(row["changed_at"], pod["containers"][0]["finished_at"]);
        let mut calm = entry;
        calm.error = None;
        let row = serde_json::to_value(PodRow::new(&calm, &PodHealth::of(&report, at))).unwrap();
        assert_eq!(
            (&row["trouble"], row.get("quarantined")),
            (&"locked-container".into(), None)
        );
    }
}
