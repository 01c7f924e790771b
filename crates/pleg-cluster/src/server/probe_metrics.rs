//! `/metrics/probes`: how often the probes of each container succeeded, in Prometheus' text format, as in a kubelet.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use pleg::PodRef;
use pleg_node::manifest::ProbeKind;
use pleg_node::probes::ProbeCount;

use super::NodeState;

pub(super) async fn probe_metrics(State(state): State<Arc<NodeState>>) -> Response {
    let text = render(&state.reports.probe_counts().all());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Pure. The names of pods and containers need no escaping: they are DNS labels.
fn render(counts: &[(PodRef, String, ProbeKind, ProbeCount)]) -> String {
    let mut text = String::from(
        "# HELP prober_probe_total [BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.\n\
         # TYPE prober_probe_total counter\n",
    );
    for (pod, container, kind, count) in counts {
        let kind = match kind {
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Startup => "Startup",
        };
        let PodRef { uid, namespace, name } = pod;
        for (result, value) in [
            ("failed", count.failed),
            ("successful", count.successful),
            ("unknown", count.unknown),
        ] {
            // As with any counter of the kubelet, what never happened is not there.
            if value > 0 {
                let _ = writeln!(
                    text,
                    "prober_probe_total{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{name}\",pod_uid=\"{uid}\",\
                     probe_type=\"{kind}\",result=\"{result}\"}} {value}",
                    uid = uid.as_str()
                );
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_has_a_sample() {
        let pod = PodRef {
            uid: "u1".into(),
            namespace: "shop".into(),
            name: "web-0".into(),
        };
        let count = ProbeCount {
            successful: 7,
            failed: 2,
            unknown: 0,
        };
        let text = render(&[(pod, "app".to_owned(), ProbeKind::Readiness, count)]);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let labels = r#"container="app",namespace="shop",pod="web-0",pod_uid="u1",probe_type="Readiness""#;
        assert_eq!(
            samples,
            [
                format!("prober_probe_total{{{labels},result=\"failed\"}} 2"),
                format!("prober_probe_total{{{labels},result=\"successful\"}} 7"),
            ]
        );
    }
}
