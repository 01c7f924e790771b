//! `/configz` of the node's server: the flags in force, in the fields of a kubelet's configuration.
//!
//! Tools that read it (the test framework of Kubernetes, inventories) look for a few fields. What a kubelet does not have is not there.

use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use pleg_node::executor::requests::{Cgroups, NodeConfig};
use serde_json::{Map, Value, json};

use super::NodeArgs;

/// The configuration, as `/configz` answers.
pub(super) fn configz(args: &NodeArgs, endpoint: &str, node: &NodeConfig) -> Value {
    let mut config = json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "containerRuntimeEndpoint": endpoint,
        "port": args.server.port().unwrap_or_default(),
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook"},
        "clusterDomain": args.cluster_domain,
        "clusterDNS": args.cluster_dns,
        "podLogsDir": args.log_dir,
        "containerLogMaxSize": args.container_log_max_size.to_string(),
        "containerLogMaxFiles": args.container_log_max_files,
        "imageGCHighThresholdPercent": args.image_gc_high_threshold,
        "imageGCLowThresholdPercent": args.image_gc_low_threshold,
        "imageMinimumGCAge": go_duration(args.image_minimum_gc_age),
        "evictionHard": pairs(&args.eviction_hard, '<'),
        "evictionSoft": pairs(&args.eviction_soft, '<'),
        "evictionSoftGracePeriod": pairs(&args.eviction_soft_grace_period, '='),
        "evictionMaxPodGracePeriod": args.eviction_max_pod_grace_period.as_secs(),
        "evictionPressureTransitionPeriod": go_duration(args.eviction_pressure_transition_period),
        "shutdownGracePeriod": go_duration(args.shutdown_grace_period.unwrap_or_default()),
        "shutdownGracePeriodCriticalPods": go_duration(args.shutdown_grace_period_critical_pods),
        "cgroupRoot": args.cgroup_root,
        "cgroupsPerQOS": node.cgroups_per_qos,
        "cgroupDriver": match node.cgroups {
            Cgroups::Path => "cgroupfs",
            Cgroups::Systemd => "systemd",
        },
        "allowedUnsafeSysctls": args.allowed_unsafe_sysctls,
        "maxPods": args.cluster.max_pods(),
        "syncFrequency": "1m0s",
        "nodeStatusUpdateFrequency": "10s",
        "nodeLeaseDurationSeconds": 40,
        "serializeImagePulls": false,
        "rotateCertificates": true,
    });
    if let Some(directory) = &args.manifests {
        config["staticPodPath"] = json!(directory);
    }
    if let Some(url) = &args.manifest_url {
        config["staticPodURL"] = json!(url);
    }
    json!({"kubeletconfig": config})
}

/// What a router serves, and `/configz`.
pub(super) fn serve(router: &Router, configz: Value) -> Router {
    let configz = get(move || std::future::ready(Json(configz.clone())));
    router.clone().route("/configz", configz)
}

/// A list of a flag, such as `memory.available<100Mi,pid.available<5%`, which was checked before.
fn pairs(list: &str, separator: char) -> Value {
    let pairs = list.split(',').filter_map(|item| item.split_once(separator));
    let pairs = pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().into()));
    Value::Object(pairs.collect::<Map<String, Value>>())
}

/// Whole seconds as Go prints a duration: `2m0s`.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_maps() {
        let found = pairs("memory.available<100Mi, pid.available<5%", '<');
        assert_eq!(found, json!({"memory.available": "100Mi", "pid.available": "5%"}));
        assert_eq!(pairs("", '='), json!({}));
    }

    #[test]
    fn durations_are_those_of_go() {
        for (seconds, text) in [(0, "0s"), (45, "45s"), (120, "2m0s"), (300, "5m0s"), (3661, "1h1m1s")] {
            assert_eq!(go_duration(Duration::from_secs(seconds)), text);
        }
    }
}
