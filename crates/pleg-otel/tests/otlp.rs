//! A generator on a simulated runtime, and a collector made from the published messages of OTLP.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use pleg::{Config, CriRuntime, EventedConfig, Generator, Metrics, Mode, Pleg, PlegTask, WitnessMode};
use pleg_cri::{Client, Endpoint, InFlight};
use pleg_otel::Telemetry;
use pleg_sim::{Ending, Sim, SimConfig};
use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a collector got.
#[derive(Debug, Default)]
struct Got {
    spans: Vec<Span>,
    records: Vec<LogRecord>,
    resources: BTreeSet<String>,
    headers: Vec<HeaderMap>,
}

#[derive(Clone)]
struct Collector {
    got: Arc<watch::Sender<Got>>,
    /// What it answers.
    status: Arc<AtomicU16>,
}

impl Collector {
    async fn start() -> (Self, SocketAddr) {
        let collector = Self {
            got: Arc::new(watch::Sender::new(Got::default())),
            status: Arc::new(AtomicU16::new(200)),
        };
        let router = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/logs", post(logs))
            .with_state(collector.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (collector, address)
    }

    fn answer(&self, headers: HeaderMap, take: impl FnOnce(&mut Got)) -> StatusCode {
        let status = StatusCode::from_u16(self.status.load(Ordering::Relaxed)).unwrap();
        if status.is_success() {
            self.got.send_modify(|got| {
                got.headers.push(headers);
                take(got);
            });
        }
        status
    }

    /// Waits until it got this.
    async fn until(&self, what: &str, is: impl Fn(&Got) -> bool) {
        let mut got = self.got.subscribe();
        let waited = tokio::time::timeout(Duration::from_mins(1), got.wait_for(is)).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.got.borrow());
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    let value = found.and_then(|found| found.value.clone()?.value);
    match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

async fn traces(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    collector.answer(headers, |got| {
        for resource in request.resource_spans {
            got.resources
                .insert(text(&resource.resource.unwrap().attributes, "service.name"));
            got.spans
                .extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    })
}

async fn logs(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let request = ExportLogsServiceRequest::decode(body).unwrap();
    collector.answer(headers, |got| {
        for resource in request.resource_logs {
            got.resources
                .insert(text(&resource.resource.unwrap().attributes, "service.name"));
            got.records
                .extend(resource.scope_logs.into_iter().flat_map(|scope| scope.log_records));
        }
    })
}

struct Case {
    sim: Sim,
    pleg: Pleg,
    metrics: Metrics,
    shutdown: CancellationToken,
    sending: JoinHandle<()>,
    _task: PlegTask,
    _dir: tempfile::TempDir,
}

/// A generator whose telemetry goes to this address.
async fn start(address: SocketAddr, more: &[(&str, &str)]) -> Case {
    let dir = tempfile::tempdir().unwrap();
    let pods = SimConfig {
        pods: 3,
        ..SimConfig::default()
    };
    let sim = Sim::start(pods, Endpoint::unix(dir.path().join("cri.sock")))
        .await
        .unwrap();
    let endpoint = format!("http://{address}");
    let variables: BTreeMap<&str, &str> = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "50"),
    ]
    .into_iter()
    .chain(more.iter().copied())
    .collect();
    let telemetry = Telemetry::from_env(|name| variables.get(name).map(|value| (*value).to_owned()));
    let telemetry = telemetry.unwrap().unwrap();
    let metrics = Metrics::new().unwrap();
    let client = pleg_cri::Config {
        inflight: InFlight::observed_by(telemetry.observe(&metrics)),
        ..pleg_cri::Config::default()
    };
    telemetry.register(metrics.registry()).unwrap();
    let client = Client::connect(sim.endpoint().clone(), client).await.unwrap();
    let config = Config {
        period: Duration::from_millis(50),
        // Relists stay frequent.
        evented: EventedConfig {
            mode: Mode::Generic,
            ..EventedConfig::default()
        },
        witness: WitnessMode::Off,
        ..Config::default()
    };
    let (pleg, task) = Generator::new(CriRuntime::new(client), config, metrics.clone()).spawn();
    let shutdown = CancellationToken::new();
    let sending = tokio::spawn(telemetry.run(pleg.clone(), shutdown.clone()));
    Case {
        sim,
        pleg,
        metrics,
        shutdown,
        sending,
        _task: task,
        _dir: dir,
    }
}

async fn kill_app(case: &Case) {
    case.pleg
        .cache()
        .synced(case.pleg.request_all(), Duration::from_secs(30))
        .await
        .unwrap();
    let pod = "default/web-1".parse().unwrap();
    case.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
}

#[tokio::test]
async fn a_relist_is_a_trace_and_an_event_is_a_record() {
    let (collector, address) = Collector::start().await;
    let case = start(address, &[("OTEL_SERVICE_NAME", "mine")]).await;
    kill_app(&case).await;
    collector
        .until("the record of a death", |got| {
            got.records
                .iter()
                .any(|record| record.event_name == "pleg.ContainerDied")
        })
        .await;
    collector
        .until("the span of its inspection", |got| {
            let is = |span: &Span| span.name == "ContainerStatus" && text(&span.attributes, "k8s.pod.name") == "web-1";
            got.spans.iter().any(is)
        })
        .await;
    // A relist that was sent whole: its lists have its trace, and it as their parent.
    let list_of = |got: &Got, root: &Span, name: &str| {
        let is = |span: &&Span| span.trace_id == root.trace_id && span.name == name;
        got.spans.iter().find(is).cloned()
    };
    collector
        .until("a relist with its lists", |got| {
            let mut roots = got.spans.iter().filter(|span| span.name == "relist");
            roots.any(|root| {
                let lists = ["ListPodSandbox", "ListContainers"].map(|name| list_of(got, root, name));
                root.parent_span_id.is_empty()
                    && lists.into_iter().all(|list| {
                        list.is_some_and(|list| {
                            list.parent_span_id == root.span_id
                                && list.start_time_unix_nano + 2_000_000 >= root.start_time_unix_nano
                                && list.end_time_unix_nano <= root.end_time_unix_nano + 2_000_000
                        })
                    })
            })
        })
        .await;
    let got = collector.got.borrow();
    let died = got
        .records
        .iter()
        .find(|record| record.event_name == "pleg.ContainerDied")
        .unwrap();
    for (key, value) in [
        ("k8s.namespace.name", "default"),
        ("k8s.pod.name", "web-1"),
        ("k8s.container.name", "app"),
        ("k8s.container.status.last_terminated_reason", "Error"),
        ("process.exit.code", "3"),
    ] {
        assert_eq!(text(&died.attributes, key), value, "{died:?}");
    }
    for key in ["k8s.pod.uid", "container.id", "pleg.event.seq"] {
        assert!(!text(&died.attributes, key).is_empty(), "{key}: {died:?}");
    }
    assert_eq!((died.severity_number, died.severity_text.as_str()), (9, "INFO"));
    assert!(died.time_unix_nano > 1_700_000_000_000_000_000 && died.observed_time_unix_nano >= died.time_unix_nano);
    assert_eq!(got.resources, BTreeSet::from(["mine".to_owned()]));
    assert!(got.headers.iter().all(|headers| {
        headers["authorization"] == "Bearer x" && headers["content-type"] == "application/x-protobuf"
    }));
    let ids: BTreeSet<&[u8]> = got.spans.iter().map(|span| span.span_id.as_slice()).collect();
    assert_eq!(ids.len(), got.spans.len(), "ids are unique");
    assert!(
        got.spans
            .iter()
            .all(|span| span.trace_id.len() == 16 && span.span_id.len() == 8)
    );
    drop(got);
    case.shutdown.cancel();
    case.sending.await.unwrap();
}

/// A collector that is away costs what does not fit, and nothing else.
#[tokio::test]
async fn a_collector_that_is_away_is_tried_again() {
    let (collector, address) = Collector::start().await;
    collector.status.store(503, Ordering::Relaxed);
    let case = start(
        address,
        &[
            ("OTEL_BSP_MAX_QUEUE_SIZE", "16"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8"),
        ],
    )
    .await;
    kill_app(&case).await;
    let dropped = || {
        let text = case.pleg.render_metrics().unwrap();
        let line = r#"pleg_otel_items_total{result="dropped",signal="traces"} "#;
        let found = text.lines().find_map(|one| one.strip_prefix(line)?.parse::<f64>().ok());
        found.unwrap_or_default()
    };
    let waited = tokio::time::timeout(Duration::from_mins(1), async {
        while dropped() < 50.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "{}", dropped());
    collector.status.store(200, Ordering::Relaxed);
    collector
        .until("what happened meanwhile", |got| {
            let died = got
                .records
                .iter()
                .any(|record| record.event_name == "pleg.ContainerDied");
            died && !got.spans.is_empty()
        })
        .await;
    case.shutdown.cancel();
    case.sending.await.unwrap();
    drop(case.metrics);
}

/// What a collector refuses for good is not sent again.
#[tokio::test]
async fn what_is_refused_is_dropped() {
    let (collector, address) = Collector::start().await;
    collector.status.store(400, Ordering::Relaxed);
    let case = start(address, &[("OTEL_LOGS_EXPORTER", "none")]).await;
    kill_app(&case).await;
    let waited = tokio::time::timeout(Duration::from_mins(1), async {
        while !case
            .pleg
            .render_metrics()
            .unwrap()
            .contains(r#"{result="dropped",signal="traces"}"#)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok());
    collector.status.store(200, Ordering::Relaxed);
    collector.until("spans", |got| !got.spans.is_empty()).await;
    assert!(collector.got.borrow().records.is_empty());
}
