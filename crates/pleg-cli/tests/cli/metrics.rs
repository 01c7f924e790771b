//! The metrics, read as strictly as Prometheus' text format 0.0.4 is written.

use std::collections::{BTreeMap, BTreeSet};

use crate::node::{Node, wait_for};

/// Reads every line; returns the samples by series.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let mut helped = BTreeSet::new();
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    let mut samples = BTreeMap::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(
                !help.is_empty() && helped.insert(name.to_owned()),
                "HELP twice or empty: {line}"
            );
            name.clone_into(&mut family);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, family, "TYPE follows its HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(
                types.insert(name.to_owned(), kind.to_owned()).is_none(),
                "TYPE twice: {line}"
            );
        } else {
            assert!(!line.is_empty() && !line.starts_with('#'), "{line:?}");
            let (series, value) = line.rsplit_once(' ').expect(line);
            let value: f64 = value.parse().expect(line);
            let (name, labels) = match series.split_once('{') {
                Some((name, labels)) => (name, labels.strip_suffix('}').expect(line)),
                None => (series, ""),
            };
            let good = |name: &str| {
                let first = name.chars().next().unwrap();
                (first.is_ascii_alphabetic() || first == '_')
                    && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            assert!(good(name), "{line}");
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (key, value) = label.split_once('=').expect(line);
                assert!(
                    good(key) && value.len() >= 2 && value.starts_with('"') && value.ends_with('"'),
                    "{line}"
                );
            }
            let kind = &types[&family];
            let suffixes: &[&str] = if kind == "histogram" {
                &["_bucket", "_sum", "_count"]
            } else {
                &[""]
            };
            assert!(
                suffixes.iter().any(|suffix| name == format!("{family}{suffix}")),
                "{line} outside {family}"
            );
            assert!(kind == "gauge" || value >= 0.0, "{line}");
            assert!(
                samples.insert(series.to_owned(), value).is_none(),
                "series twice: {line}"
            );
        }
    }
    assert_eq!(helped, types.keys().cloned().collect());
    for (name, kind) in &types {
        let of = |suffix: &str| {
            samples
                .range(format!("{name}{suffix}")..)
                .next()
                .is_some_and(|(s, _)| s.starts_with(name.as_str()))
        };
        assert!(
            kind != "histogram" || (of("_bucket") && of("_count") && of("_sum")),
            "{name}"
        );
    }
    buckets(&samples);
    samples
}

/// Buckets only grow, and the last is the count.
fn buckets(samples: &BTreeMap<String, f64>) {
    let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (name, &value) in samples {
        if let Some((family, labels)) = name.split_once("_bucket{") {
            let (rest, le) = labels.trim_end_matches('}').rsplit_once("le=\"").unwrap();
            let le = le.trim_end_matches('"').replace("+Inf", "inf").parse().unwrap();
            let rest = rest.trim_end_matches(',');
            series.entry(format!("{family}|{rest}")).or_default().push((le, value));
        }
    }
    assert!(!series.is_empty());
    for (name, mut buckets) in series {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name}");
        let (family, labels) = name.split_once('|').unwrap();
        let count = if labels.is_empty() {
            format!("{family}_count")
        } else {
            format!("{family}_count{{{labels}}}")
        };
        assert_eq!(buckets.last().unwrap(), &(f64::INFINITY, samples[&count]), "{name}");
    }
}

#[test]
fn every_line_is_right_and_the_kubelets_names_are_there() {
    let node = Node::with_pods(3);
    let daemon = node.daemon(&[]);
    let get = |series: &str| parse(&daemon.get("/metrics").1).get(series).copied();
    wait_for("all pods", || {
        get("pleg_cached_pods") == Some(3.0) && get("kubelet_running_pods") == Some(3.0)
    });
    assert_eq!(
        get("kubelet_running_containers{container_state=\"running\"}"),
        Some(6.0)
    );
    assert_eq!(get("kubelet_running_containers{container_state=\"exited\"}"), Some(0.0));
    assert_eq!(get("kubelet_pleg_discard_events"), Some(0.0));
    assert_eq!(get("pleg_events_total{type=\"ContainerStarted\"}"), Some(6.0));
    for name in [
        "kubelet_pleg_relist_duration_seconds_count",
        "kubelet_pleg_relist_interval_seconds_count",
        "kubelet_pleg_last_seen_seconds",
        "kubelet_runtime_operations_total{operation_type=\"list_containers\"}",
    ] {
        wait_for(name, || get(name).is_some_and(|value| value > 0.0));
    }
}

/// The stream of events is one call that lasts for ever: no reason for an alert about calls that are stuck.
#[test]
fn the_event_stream_is_no_call_that_is_stuck() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&["--mode", "evented"]);
    let get = |series: &str| parse(&daemon.get("/metrics").1).get(series).copied();
    // Until it is answered, it is a call like any other.
    wait_for("the stream", || {
        get("pleg_inflight_calls{rpc=\"GetContainerEvents\"}") == Some(1.0)
            && get("pleg_inflight_oldest_seconds{rpc=\"GetContainerEvents\"}").is_none()
    });
}

#[test]
fn the_process_is_told_about() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    let samples = parse(&daemon.get("/metrics").1);
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let (_, one) = samples
        .iter()
        .find(|(name, _)| name.starts_with("pleg_build_info{") && name.contains(&version))
        .unwrap();
    assert!((one - 1.0).abs() < f64::EPSILON);
    let now = jiff::Timestamp::now().as_second() as f64;
    for (name, least, most) in [
        ("process_cpu_seconds_total", 0.001, 60.0),
        ("process_resident_memory_bytes", 1e6, 1e9),
        ("process_virtual_memory_bytes", 1e6, 1e12),
        ("process_open_fds", 5.0, 200.0),
        ("process_max_fds", 64.0, 1e10),
        ("process_start_time_seconds", now - 60.0, now + 1.0),
    ] {
        let value = samples.get(name).copied().unwrap_or_else(|| panic!("no {name}"));
        assert!((least..=most).contains(&value), "{name}: {value}");
    }
}

/// What a daemon and a node export from their start.
fn exported() -> String {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&["--mode", "evented"]);
    let mut there = daemon.get("/metrics").1;
    drop(daemon);
    let other = Node::with_pods(0);
    there += &crate::manifests::start(&other, &[]).0.get("/metrics").1;
    there
}

fn root() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every metric in a query is exported, or the query would never find anything.
fn assert_exported(there: &str, what: &str, expr: &str) {
    let words = expr.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metrics: Vec<&str> = words
        .filter(|word| {
            ["pleg_", "kubelet_", "process_"]
                .iter()
                .any(|start| word.starts_with(start))
        })
        .collect();
    assert!(!metrics.is_empty(), "{expr}");
    for metric in metrics {
        let metric = metric.trim_end_matches("_bucket");
        // Of calls in flight, and of what failed, there is nothing to tell while there is none.
        let told = there.contains(&format!("# TYPE {metric} "))
            || metric.starts_with("pleg_inflight_")
            || metric.ends_with("_errors_total");
        assert!(told, "{what}: no daemon has {metric}");
    }
}

#[test]
fn alerts_are_about_metrics_that_exist() {
    let there = exported();
    let rules = std::fs::read_to_string(root().join("deploy/prometheus/pleg.rules.yaml")).unwrap();
    let rules: serde_json::Value = serde_saphyr::from_str(&rules).unwrap();
    let docs = ["docs/operating.md", "docs/node.md"].map(|name| std::fs::read_to_string(root().join(name)).unwrap());
    let mut alerts = 0;
    for rule in rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        let (name, expr) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        alerts += 1;
        assert!(
            docs.iter().any(|text| text.contains(&format!("`{name}`"))),
            "no document tells of {name}"
        );
        assert_exported(&there, name, expr);
    }
    assert!(alerts >= 10, "{alerts}");
}

#[test]
fn the_dashboard_is_about_metrics_that_exist() {
    let there = exported();
    let dashboard = std::fs::read_to_string(root().join("deploy/grafana/pleg.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_exported(
                &there,
                panel["title"].as_str().unwrap(),
                target["expr"].as_str().unwrap(),
            );
            queries += 1;
        }
    }
    assert!(queries >= 15, "{queries}");
}
