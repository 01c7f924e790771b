use pleg_cri::{InFlight, Rpc, Subject as CallSubject};

use super::*;
use crate::health::{Health, THRESHOLD, Who};
use crate::model::ContainerRef;
use crate::publish::cache::{PodError, Since};

fn pod(n: usize) -> PodRef {
    PodRef {
        uid: format!("u{n}").as_str().into(),
        namespace: "default".into(),
        name: format!("web-{n}").as_str().into(),
    }
}

fn container(n: usize) -> ObjectRef {
    ObjectRef::Container(ContainerRef {
        id: format!("c{n}").as_str().into(),
        name: "app".into(),
        attempt: 2,
    })
}

fn quarantine(health: &Health, n: usize) {
    let object = container(n);
    let error = PodError {
        message: "no answer within 10s".into(),
        trouble: Trouble::StuckInspection,
        rpc: Rpc::ContainerStatus.name().into(),
        container: object.container_name().cloned(),
        id: Some(Arc::clone(object.id())),
        sandbox: None,
        attempts: 1,
        since: Since::ago(Duration::ZERO),
    };
    health.quarantine(&pod(n), &object, Arc::new(error));
}

fn compare(announced: &mut Announced, health: &Health) -> Vec<Event> {
    let report = health.report_in_full();
    let causes: Vec<&Cause> = report.causes.iter().collect();
    let mut events = announced.compare(&causes, Instant::now());
    events.extend(announced.level(&report, Instant::now()));
    events
}

fn lines(events: &[Event]) -> Vec<String> {
    let line = |event: &Event| {
        let trouble = event.trouble.map_or("", Trouble::name);
        let pod = event.pod.as_ref().map_or(String::new(), |pod| format!(" {pod}"));
        format!("{} {trouble}{pod}", event.kind).trim_end().to_owned()
    };
    events.iter().map(line).collect()
}

#[tokio::test(start_paused = true)]
async fn a_trouble_is_reported_when_it_starts_and_when_it_ends() {
    let health = Health::new(THRESHOLD, InFlight::default(), None);
    let mut announced = Announced::default();
    health.relist_complete();
    let before = health.changes();
    assert!(compare(&mut announced, &health).is_empty() && announced.is_quiet());

    quarantine(&health, 1);
    assert_ne!(health.changes(), before);
    let events = compare(&mut announced, &health);
    assert_eq!(
        lines(&events),
        ["TroubleStarted stuck-inspection default/web-1", "PlegDegraded"]
    );
    let Some(Subject::Container(about)) = &events[0].subject else {
        panic!("{events:?}")
    };
    assert_eq!((&*about.name, about.attempt), ("app", 2));
    assert!(events[0].reason.as_ref().unwrap().starts_with("no answer within 10s"));
    assert_eq!(
        events[1].reason.as_deref(),
        Some("PLEG is degraded: no answer within 10s (for 0ms, 1 attempt)")
    );

    // It lasts: nothing more is reported, however often it is tried.
    tokio::time::advance(Duration::from_secs(7)).await;
    let changes = health.changes();
    quarantine(&health, 1);
    assert_eq!(health.changes(), changes);
    assert!(compare(&mut announced, &health).is_empty());

    health.release(&pod(1).uid, container(1).id());
    let events = compare(&mut announced, &health);
    assert_eq!(
        lines(&events),
        ["TroubleEnded stuck-inspection default/web-1", "PlegHealthy"]
    );
    assert_eq!(events[0].lasted, Some(Duration::from_secs(7)));
    assert!(announced.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_reported_in_few_events_and_crowds_nothing_out() {
    let health = Health::new(THRESHOLD, InFlight::default(), None);
    let mut announced = Announced::default();
    health.relist_complete();
    (0..1000).for_each(|n| quarantine(&health, n));
    health.stream(
        crate::evented::ModeReport::default(),
        Some(("gone".into(), Instant::now())),
        None,
    );
    let events = compare(&mut announced, &health);
    // One by one, the stream, those that are announced as one, and the level.
    assert_eq!(events.len(), MOST + 3);
    let all = lines(&events);
    assert_eq!(
        all[MOST..],
        [
            "TroubleStarted stream-down",
            "TroubleStarted stuck-inspection",
            "PlegDegraded"
        ]
    );
    let more = events[MOST + 1].reason.as_ref().unwrap();
    assert!(
        more.starts_with("968 more containers or sandboxes are in trouble"),
        "{more}"
    );
    assert!(compare(&mut announced, &health).is_empty());

    (0..1000).for_each(|n| health.release(&pod(n).uid, container(n).id()));
    let events = compare(&mut announced, &health);
    assert_eq!(events.len(), MOST + 1);
    assert!(events.iter().all(|event| event.kind == EventType::TroubleEnded));
    assert_eq!(announced.open.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hung_list_is_reported_again_when_the_container_behind_it_is_known() {
    let inflight = InFlight::default();
    let health = Health::new(THRESHOLD, inflight.clone(), None);
    let mut announced = Announced::default();
    health.relist_complete();
    let _list = inflight.begin(Rpc::ListContainers, CallSubject::NODE, None);
    tokio::time::advance(SLOW_CALL).await;
    assert_eq!(health.oldest_call().map(|since| since.elapsed()), Some(SLOW_CALL));
    assert_eq!(
        lines(&compare(&mut announced, &health)),
        ["TroubleStarted locked-container", "PlegDegraded"]
    );
    let who = Who {
        pod: Some(pod(1).full_name()),
        container: Some("app".into()),
        id: Some(Arc::clone(container(1).id())),
        about: Some((pod(1), container(1))),
        ..Who::default()
    };
    health.suspects(vec![(who, Instant::now())], true);
    assert_eq!(
        lines(&compare(&mut announced, &health)),
        [
            "TroubleEnded locked-container",
            "TroubleStarted locked-container default/web-1"
        ]
    );
    assert!(compare(&mut announced, &health).is_empty());
}
