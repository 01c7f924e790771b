//! Against a fake API server, with paused time.

use std::sync::atomic::{AtomicU16, Ordering};

use pleg::PodRef;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Answer, FakeApi, Request};

fn event(pod: &str, message: &str) -> Event {
    let id = PodRef {
        uid: format!("uid-{pod}").as_str().into(),
        namespace: "shop".into(),
        name: pod.into(),
    };
    Event::pod(&id, EventType::Warning, "BackOff", message)
}

/// A recorder that writes to a fake.
struct Case {
    recorder: EventRecorder,
    fake: FakeApi,
    activity: Activity,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Case {
    fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let fake = FakeApi::start(answer);
        let (recorder, shutdown) = (EventRecorder::new("n1"), CancellationToken::new());
        let activity = Activity::default();
        let task = recorder.clone().run(fake.api(), activity.clone(), shutdown.clone());
        Self {
            task: tokio::spawn(task),
            recorder,
            fake,
            activity,
            shutdown,
        }
    }

    async fn until(&self, requests: usize) -> Vec<Request> {
        let waited = timeout(Duration::from_hours(2), self.fake.wait_for(|all| all.len() >= requests));
        assert!(waited.await.is_ok(), "{:?}", self.fake.lines());
        self.fake.requests()
    }
}

fn echo(request: &Request) -> Answer {
    Answer::Json(200, request.body.clone())
}

fn is_create(request: &Request) -> bool {
    request.method == "POST"
}

#[tokio::test(start_paused = true)]
async fn events_are_created_and_then_counted_up() {
    let case = Case::start(echo);
    case.recorder.record(event("web", "m"));
    case.until(1).await;
    for _ in 0..3 {
        case.recorder.record(event("web", "m"));
    }
    let requests = case.until(2).await;
    assert_eq!(requests[0].line(), "POST /api/v1/namespaces/shop/events");
    let name = requests[0].body["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        requests[1].line(),
        format!("PATCH /api/v1/namespaces/shop/events/{name}")
    );
    assert_eq!(requests[1].content_type, "application/strategic-merge-patch+json");
    assert_eq!(requests[1].body["count"], json!(4));
    case.recorder
        .record_node(EventType::Normal, "Starting", "Starting kubelet.");
    let requests = case.until(3).await;
    assert_eq!(requests[2].line(), "POST /api/v1/namespaces/default/events");
    case.shutdown.cancel();
    case.task.await.unwrap();
}

/// A counted-up event that the API server has forgotten is created again, with its count; one whose answer was lost is not.
#[tokio::test(start_paused = true)]
async fn what_is_gone_is_created_again_and_what_exists_is_not() {
    let case = Case::start(|request| match request.method.as_str() {
        "PATCH" => Answer::not_found(),
        _ => echo(request),
    });
    case.recorder.record(event("web", "m"));
    case.until(1).await;
    case.recorder.record(event("web", "m"));
    let requests = case.until(3).await;
    assert!(is_create(&requests[2]));
    assert_eq!(requests[2].body["count"], json!(2));

    let case = Case::start(|request| match request.method.as_str() {
        "POST" => Answer::refuse(409, "AlreadyExists", "exists"),
        _ => echo(request),
    });
    case.recorder.record(event("web", "m"));
    case.recorder.record(event("web", "m"));
    let requests = case.until(2).await;
    assert_eq!(
        (requests[1].method.as_str(), &requests[1].body["count"]),
        ("PATCH", &json!(2))
    );
    assert_eq!(case.recorder.dropped(), 0);
}

/// Ten minutes without an API server: few requests, nothing lost, and equal events are one.
#[tokio::test(start_paused = true)]
async fn an_outage_loses_nothing_and_makes_no_hot_loop() {
    for failure in [
        || Answer::Fail("connection refused"),
        || Answer::Hang,
        || Answer::refuse(500, "InternalError", "no"),
        || Answer::refuse(429, "TooManyRequests", "later"),
        || Answer::refuse(401, "Unauthorized", "no"),
    ] {
        let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let is_away = Arc::clone(&away);
        let case = Case::start(move |request| {
            if is_away.load(Ordering::Relaxed) {
                failure()
            } else {
                echo(request)
            }
        });
        for n in 0..60 {
            for pod in ["a", "b", "c"] {
                case.recorder.record(event(pod, "m"));
            }
            if n % 6 == 0 {
                case.recorder.record(event("d", &format!("{n}")));
            }
            sleep(Duration::from_secs(10)).await;
        }
        let tried = case.fake.requests().len();
        assert!((25..=65).contains(&tried), "{tried} requests in ten minutes");
        away.store(false, Ordering::Relaxed);
        let done = |all: &[Request]| {
            let names = all[tried..].iter().filter(|request| is_create(request));
            let names: std::collections::BTreeSet<String> = names.map(|one| one.body["metadata"].to_string()).collect();
            names.len() >= 12
        };
        let waited = timeout(Duration::from_secs(30), case.fake.wait_for(done)).await;
        assert!(waited.is_ok(), "{:?}", case.fake.lines());
        let requests = case.fake.requests();
        let of = |pod: &str| {
            let mut found = requests[tried..]
                .iter()
                .filter(|one| one.body["involvedObject"]["name"] == *pod);
            found.next().unwrap().body["count"].clone()
        };
        assert_eq!(
            [of("a"), of("b"), of("c")],
            [json!(60), json!(60), json!(60)] as [Value; 3]
        );
        assert_eq!(case.recorder.dropped(), 0);
        case.shutdown.cancel();
        case.task.await.unwrap();
    }
}

/// An event that always fails does not hold up the others.
#[tokio::test(start_paused = true)]
async fn one_bad_event_delays_no_other() {
    let case = Case::start(|request| match request.body["involvedObject"]["name"].as_str() {
        Some("bad") => Answer::refuse(500, "InternalError", "webhook"),
        _ => echo(request),
    });
    case.recorder.record(event("bad", "m"));
    case.recorder.record(event("good", "m"));
    let requests = case.until(2).await;
    assert_eq!(requests[1].body["involvedObject"]["name"], json!("good"));
    // It is given up when it is too old to be of use.
    sleep(Duration::from_hours(2)).await;
    assert_eq!(case.recorder.dropped(), 1);
    let before = case.fake.requests().len();
    sleep(Duration::from_hours(2)).await;
    assert_eq!(case.fake.requests().len(), before);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_does_not_want_is_dropped() {
    let code = Arc::new(AtomicU16::new(0));
    let answers = Arc::clone(&code);
    let case = Case::start(move |_| match answers.load(Ordering::Relaxed) {
        1 => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "namespace shop is being terminated",
                "details": {"causes": [{"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}]},
            });
            Answer::Json(403, status)
        }
        2 => Answer::not_found(),
        3 => Answer::refuse(422, "Invalid", "bad name"),
        _ => Answer::refuse(403, "Forbidden", "no"),
    });
    // Not worth a word: the namespace is going, or gone.
    for (answer, dropped) in [(1, 0), (2, 0), (3, 1), (4, 2)] {
        code.store(answer, Ordering::Relaxed);
        case.recorder.record(event("web", &format!("{answer}")));
        case.until(usize::from(answer)).await;
        sleep(Duration::from_mins(1)).await;
        assert_eq!(
            (case.fake.requests().len(), case.recorder.dropped()),
            (usize::from(answer), dropped)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_at_once_and_then_fifty_each_second() {
    let case = Case::start(echo);
    let begin = Instant::now();
    for n in 0..600 {
        case.recorder.record(event(&format!("p{n}"), "m"));
    }
    case.until(100).await;
    assert!(begin.elapsed() < Duration::from_millis(20));
    case.until(600).await;
    let took = begin.elapsed();
    assert!((9.9..10.2).contains(&took.as_secs_f64()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_waits_at_shutdown_is_still_written_but_not_for_ever() {
    let case = Case::start(echo);
    case.recorder.record(event("a", "m"));
    case.recorder.record(event("b", "m"));
    case.shutdown.cancel();
    case.task.await.unwrap();
    assert_eq!(case.fake.requests().len(), 2);

    let case = Case::start(|_| Answer::Hang);
    case.recorder.record(event("a", "m"));
    case.until(1).await;
    case.recorder.record(event("b", "m"));
    let began = Instant::now();
    case.shutdown.cancel();
    case.task.await.unwrap();
    assert!(began.elapsed() <= DRAIN + Duration::from_secs(1));
}

/// Statuses of pods that start need the API server more than what is told about them; and nothing is lost for it.
#[tokio::test(start_paused = true)]
async fn while_many_pods_start_events_are_written_slowly() {
    let case = Case::start(echo);
    let burst: Vec<_> = (0..8).map(|_| case.activity.begin()).collect();
    let began = Instant::now();
    for pod in 0..90 {
        case.recorder.record(event(&format!("web-{pod}"), "m"));
    }
    sleep(Duration::from_millis(1990)).await;
    assert_eq!(case.fake.requests().len(), 19, "ten at once, and then five a second");
    drop(burst);
    case.until(90).await;
    assert!(began.elapsed() < Duration::from_millis(2100), "{:?}", began.elapsed());

    // Not if so many wait that some would be lost.
    let _burst: Vec<_> = (0..8).map(|_| case.activity.begin()).collect();
    sleep(Duration::from_secs(10)).await;
    for pod in 0..900 {
        case.recorder.record(event(&format!("api-{pod}"), "m"));
    }
    sleep(Duration::from_secs(9)).await;
    assert!(case.fake.requests().len() >= 90 + 400, "{}", case.fake.requests().len());
    assert_eq!(case.recorder.dropped(), 0);
}

#[tokio::test(start_paused = true)]
async fn lost_events_are_counted_by_cause() {
    let case = Case::start(|_| Answer::refuse(403, "Forbidden", "no"));
    case.recorder.record(event("web", "m"));
    case.until(1).await;
    let registry = Registry::new();
    // Also those that were lost before.
    tokio::task::yield_now().await;
    while case.recorder.dropped() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    case.recorder.register(&registry).unwrap();
    case.recorder.record(event("web", "other"));
    case.until(2).await;
    while case.recorder.dropped() == 1 {
        sleep(Duration::from_millis(1)).await;
    }
    let found: Vec<(String, f64)> = registry.gather()[0]
        .get_metric()
        .iter()
        .map(|metric| {
            (
                metric.get_label()[0].value().to_owned(),
                metric.get_counter().get_value(),
            )
        })
        .collect();
    let wanted = [("refused", 2.0), ("too-many", 0.0), ("too-old", 0.0)];
    assert_eq!(found, wanted.map(|(reason, count)| (reason.to_owned(), count)));
}
