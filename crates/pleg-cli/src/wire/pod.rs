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
            state: crate::kube::REMOVED.to_owned(),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A list hangs, and a container of the pod is to blame.
    fn report() -> pleg::Report {
        let cause = pleg::health::Cause {
            stage: pleg::health::Stage::List,
            trouble: pleg::Trouble::LockedContainer,
            text: "t".to_owned(),
            means: "m".into(),
            next: "n".to_owned(),
            rpc: "ListContainers".into(),
            who: pleg::health::Who {
                id: Some("c".into()),
                ..pleg::health::Who::default()
            },
            age_seconds: 3,
            attempts: 1,
            last_error: Some("e".into()),
        };
        pleg::Report {
            level: pleg::Level::Degraded,
            headline: String::new(),
            message: String::new(),
            causes: vec![cause],
            more_causes: 0,
            warnings: Vec::new(),
            last_seen_seconds: Some(3.0),
            threshold_seconds: 180,
            mode: pleg::ModeReport::default(),
            relists: 1,
            odd_objects: pleg::health::Oddities::default(),
        }
    }

    #[test]
    fn pods_come_back_as_they_went_out() {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let sandbox = SandboxStatus {
            id: "s".into(),
            state: pleg::SandboxState::Ready,
            attempt: 1,
            created_at: Some(at),
            ips: [IpAddr::from([10, 0, 0, 7])].into(),
            runtime_handler: "runc".into(),
            labels: pleg::status::Pairs::new(&[("app".to_owned(), "web".to_owned())].into()),
            annotations: pleg::status::Pairs::default(),
        };
        let container = ContainerStatus {
            id: "c".into(),
            name: "app".into(),
            attempt: 2,
            state: pleg::ContainerState::Exited,
            created_at: Some(at),
            started_at: Some(at),
            finished_at: Some(at),
            exit_code: Some(137),
            reason: "OOMKilled".into(),
            message: "m".into(),
            image: "i".into(),
            image_ref: "r".into(),
            log_path: "/l".into(),
            resources: Some(Box::new(pleg::status::Resources {
                cpu_period: 1,
                cpu_quota: 2,
                cpu_shares: 3,
                memory_limit_in_bytes: 4,
                oom_score_adj: 5,
            })),
        };
        let error = Arc::new(pleg::cache::PodError {
            trouble: pleg::Trouble::StuckInspection,
            message: "m".into(),
            rpc: "ContainerStatus".into(),
            container: Some("app".into()),
            id: Some("c".into()),
            sandbox: Some("s".into()),
            attempts: 2,
            since: pleg::cache::Since::ago(Duration::from_secs(5)),
        });
        let part = pleg::StalePart {
            object: pleg::model::ObjectRef::Container(pleg::ContainerRef {
                id: "c".into(),
                name: "app".into(),
                attempt: 2,
            }),
            listed: Some(pleg::model::ObjectState::Container(pleg::ContainerState::Exited)),
            error: Some(Arc::clone(&error)),
        };
        let entry = PodEntry {
            status: Arc::new(PodStatus {
                ips: [IpAddr::from([10, 0, 0, 7])].into(),
                sandboxes: [sandbox].into(),
                containers: [container].into(),
                ..PodStatus::empty(PodRef {
                    uid: "u".into(),
                    namespace: "ns".into(),
                    name: "web".into(),
                })
            }),
            observed: pleg::Token::default(),
            fresh: pleg::Token::default(),
            inspected: pleg::Token::default(),
            inspected_at: Some(at),
            error: Some(error),
            stale: [part].into(),
        };
        let report = report();
        let text = serde_json::to_string(&PodJson::new(&entry, &PodHealth::of(&report, at))).unwrap();
        let read: Pod = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!((read.state.as_str(), read.causes.len()), ("OOMKilled", 1));
        assert_eq!(
            read.status_stale.unwrap().as_of,
            Timestamp::from_second(1_699_999_997).ok()
        );
    }
}
