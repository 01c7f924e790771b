//! `/metrics/resource`: what metrics-server and other autoscalers read, in Prometheus' text format. Pure.
//!
//! Each sample has the time when it was measured: metrics-server computes rates from the differences of these times.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::model::Summary;

/// Name, type and help of each metric, in the order of their names.
const METRICS: [(&str, &str, &str); 10] = [
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    ),
    (
        "container_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the container in bytes",
    ),
    (
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
    ),
    (
        "container_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap usage in bytes",
    ),
    (
        "node_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
    ),
    (
        "node_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the node in bytes",
    ),
    (
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    ),
    (
        "pod_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the pod in bytes",
    ),
    (
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    ),
    (
        "scrape_error",
        "gauge",
        "[ALPHA] 1 if there was an error while getting container metrics, 0 otherwise",
    ),
];

/// One metric with its samples.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: String,
}

impl Metric {
    fn sample(&mut self, labels: &str, value: f64, time: Option<Timestamp>) {
        let _ = write!(self.samples, "{}{labels} {value}", self.name);
        let _ = match time {
            Some(time) => writeln!(self.samples, " {}", time.as_millisecond()),
            None => writeln!(self.samples),
        };
    }

    fn render(&self, text: &mut String) {
        if !self.samples.is_empty() {
            let _ = writeln!(
                text,
                "# HELP {} {}\n# TYPE {} {}",
                self.name, self.help, self.name, self.kind
            );
            text.push_str(&self.samples);
        }
    }
}

/// The metrics of a node and its pods. `failed`: something could not be read.
pub(super) fn render(summary: &Summary, failed: bool) -> String {
    let mut all = METRICS.map(|(name, kind, help)| Metric {
        name,
        kind,
        help,
        samples: String::new(),
    });
    let [
        c_cpu,
        c_memory,
        c_start,
        c_swap,
        n_cpu,
        n_memory,
        p_cpu,
        p_memory,
        errors,
        old_errors,
    ] = &mut all;
    if let Some(cpu) = summary.node.cpu {
        n_cpu.sample("", seconds(cpu.usage_core_nano_seconds), Some(cpu.time));
    }
    if let Some(memory) = summary.node.memory {
        n_memory.sample("", memory.working_set_bytes as f64, Some(memory.time));
    }
    for pod in &summary.pods {
        let (namespace, name) = (escape(&pod.pod_ref.namespace), escape(&pod.pod_ref.name));
        for container in &pod.containers {
            let labels = format!(
                "{{container=\"{}\",namespace=\"{namespace}\",pod=\"{name}\"}}",
                escape(&container.name)
            );
            if container.start_time > Timestamp::UNIX_EPOCH {
                c_start.sample(&labels, container.start_time.as_nanosecond() as f64 / 1e9, None);
            }
            if let Some(cpu) = container.cpu {
                c_cpu.sample(&labels, seconds(cpu.usage_core_nano_seconds), Some(cpu.time));
            }
            if let Some(memory) = container.memory {
                c_memory.sample(&labels, memory.working_set_bytes as f64, Some(memory.time));
            }
            if let Some((used, swap)) = container.swap.and_then(|swap| Some((swap.swap_usage_bytes?, swap))) {
                c_swap.sample(&labels, used as f64, Some(swap.time));
            }
        }
        let labels = format!("{{namespace=\"{namespace}\",pod=\"{name}\"}}");
        if let Some(cpu) = pod.cpu {
            p_cpu.sample(&labels, seconds(cpu.usage_core_nano_seconds), Some(cpu.time));
        }
        if let Some(memory) = pod.memory {
            p_memory.sample(&labels, memory.working_set_bytes as f64, Some(memory.time));
        }
    }
    errors.sample("", f64::from(u8::from(failed)), None);
    old_errors.sample("", f64::from(u8::from(failed)), None);
    let mut text = String::new();
    for metric in &all {
        metric.render(&mut text);
    }
    text
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::model::{ContainerStats, CpuStats, MemoryStats, NodeStats, PodReference, PodStats};
    use super::*;

    #[test]
    fn metrics_server_can_read_it() {
        let time: Timestamp = "2026-11-18T00:00:01.5Z".parse().unwrap();
        let cpu = |nanoseconds| {
            Some(CpuStats {
                time,
                usage_nano_cores: None,
                usage_core_nano_seconds: nanoseconds,
            })
        };
        let memory = |working_set_bytes| {
            Some(MemoryStats {
                time,
                available_bytes: None,
                usage_bytes: None,
                working_set_bytes,
                rss_bytes: None,
                page_faults: None,
                major_page_faults: None,
            })
        };
        let summary = Summary {
            node: NodeStats {
                cpu: cpu(2_500_000_000),
                memory: memory(1 << 30),
                ..NodeStats::default()
            },
            pods: vec![PodStats {
                pod_ref: PodReference {
                    name: "web".to_owned(),
                    namespace: "default".to_owned(),
                    uid: "u".to_owned(),
                },
                start_time: time,
                containers: vec![ContainerStats {
                    name: "app".to_owned(),
                    start_time: "2026-11-18T00:00:00Z".parse().unwrap(),
                    cpu: cpu(250_000_000),
                    memory: memory(4096),
                    rootfs: None,
                    swap: None,
                }],
                cpu: cpu(300_000_000),
                memory: memory(8192),
                network: None,
                processes: None,
            }],
        };
        let expected = "\
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container=\"app\",namespace=\"default\",pod=\"web\"} 0.25 1794960001500
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} 4096 1794960001500
# HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container=\"app\",namespace=\"default\",pod=\"web\"} 1794960000
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 2.5 1794960001500
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1073741824 1794960001500
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web\"} 0.3 1794960001500
# HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace=\"default\",pod=\"web\"} 8192 1794960001500
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
# HELP scrape_error [ALPHA] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE scrape_error gauge
scrape_error 0
";
        assert_eq!(render(&summary, false), expected);
        assert_eq!(escape("a\"b\\c\n"), "a\\\"b\\\\c\\n");
    }
}
