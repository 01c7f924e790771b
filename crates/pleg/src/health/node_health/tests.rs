//! Random states, written as the generator and the monitor write them. Whatever they are, everything that is said about them agrees.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::inflight::Flight;
use pleg_cri::{Endpoint, Error, ErrorKind, InFlight, Rpc, Subject};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tokio::time::{Instant, advance};

use crate::evented::ModeReport;
use crate::evented::trust::Trust;
use crate::health::diagnosis::Trouble;
use crate::health::readiness::Readiness;
use crate::health::{Alive, Health, HungShim, Level, StuckContainer, THRESHOLD, Who};
use crate::model::{ContainerRef, ObjectRef, PodRef};
use crate::publish::cache::{PodError, Since};
use crate::runtime::{RuntimeCondition, RuntimeStatus};

/// The longest that a call may wait before it is a cause.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    RelistComplete,
    RelistFailed(bool),
    ListSent,
    InspectionSent(u8),
    Answered,
    /// From the first of these numbers, so many objects.
    Quarantine(u8, u8),
    Release(u8),
    Suspect(u8),
    Unsuspect,
    ShimHangs(u8),
    ShimAnswers(u8),
    ContainerHangs(u8),
    ContainerAnswers(u8),
    MostContainersHang,
    MostContainersAnswer,
    StreamDown,
    StreamLossy,
    StreamUp,
    Status(Option<bool>, Option<bool>),
    StatusFails,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..4_u8;
    let readiness = || proptest::option::of(any::<bool>());
    prop_oneof![
        6 => prop_oneof![0..10_u64, 20..40_u64, 170..190_u64].prop_map(Step::Pass),
        6 => Just(Step::RelistComplete),
        1 => any::<bool>().prop_map(Step::RelistFailed),
        2 => Just(Step::ListSent),
        2 => n.clone().prop_map(Step::InspectionSent),
        2 => Just(Step::Answered),
        3 => (n.clone(), 1..30_u8).prop_map(|(from, count)| Step::Quarantine(from, count)),
        2 => (0..30_u8).prop_map(Step::Release),
        1 => n.clone().prop_map(Step::Suspect),
        1 => Just(Step::Unsuspect),
        1 => n.clone().prop_map(Step::ShimHangs),
        1 => n.clone().prop_map(Step::ShimAnswers),
        1 => n.clone().prop_map(Step::ContainerHangs),
        1 => n.prop_map(Step::ContainerAnswers),
        1 => Just(Step::MostContainersHang),
        1 => Just(Step::MostContainersAnswer),
        2 => Just(Step::StreamDown),
        1 => Just(Step::StreamLossy),
        2 => Just(Step::StreamUp),
        4 => (readiness(), readiness()).prop_map(|(runtime, network)| Step::Status(runtime, network)),
        1 => Just(Step::StatusFails),
        1 => Just(Step::End),
    ]
}

fn pod(n: u8) -> PodRef {
    PodRef {
        uid: format!("u{n}").as_str().into(),
        namespace: "default".into(),
        name: format!("web-{n}").as_str().into(),
    }
}

fn container(n: u8) -> Arc<str> {
    format!("c{n}").into()
}

fn error(rpc: Rpc) -> Error {
    Error {
        rpc,
        subject: Subject::NODE,
        endpoint: Endpoint::unix("/x.sock"),
        kind: ErrorKind::Deadline(Duration::from_secs(10)),
    }
}

fn condition(kind: &'static str, status: bool) -> RuntimeCondition {
    RuntimeCondition {
        kind,
        status,
        reason: "Why".into(),
        message: "what it says".into(),
    }
}

/// The writers, and what they wrote last.
struct Node {
    health: Health,
    readiness: Readiness,
    inflight: InFlight,
    alive: Option<Alive>,
    /// Calls in flight, and whether each is a list.
    flights: Vec<(Flight, Instant, bool)>,
    quarantined: BTreeMap<u8, PodRef>,
    stream_down: bool,
}

impl Node {
    fn new() -> Self {
        let inflight = InFlight::default();
        let health = Health::new(THRESHOLD, inflight.clone(), None);
        Self {
            alive: Some(health.alive()),
            readiness: Readiness::new(health.clone()),
            health,
            inflight,
            flights: Vec::new(),
            quarantined: BTreeMap::new(),
            stream_down: false,
        }
    }

    fn sent(&mut self, rpc: Rpc, subject: Subject, list: bool) {
        let flight = self.inflight.begin(rpc, subject, Some(Duration::from_mins(2)));
        self.flights.push((flight, Instant::now(), list));
    }

    fn stream(&mut self, reason: &str, down: bool, lossy: bool) {
        let now = Instant::now();
        let mut trust = Trust::default();
        for _ in 0..3 {
            trust.missed(1, now);
        }
        let mode = ModeReport {
            reason: reason.into(),
            ..ModeReport::default()
        };
        let missed = trust.lossy().copied().filter(|_| lossy);
        self.health.stream(mode, down.then(|| ("gone".into(), now)), missed);
        self.stream_down = down;
    }

    fn quarantine(&mut self, n: u8) {
        let error = PodError {
            message: "no answer within 10s".into(),
            trouble: Trouble::StuckInspection,
            rpc: Rpc::ContainerStatus.name().into(),
            container: Some("app".into()),
            id: Some(container(n)),
            sandbox: None,
            attempts: 1,
            since: Since::ago(Duration::ZERO),
        };
        let object = ObjectRef::Container(ContainerRef {
            id: (&*container(n)).into(),
            name: "app".into(),
            attempt: 0,
        });
        self.health.quarantine(&pod(n), &object, Arc::new(error));
        self.quarantined.insert(n, pod(n));
    }

    async fn apply(&mut self, step: &Step) {
        let now = Instant::now();
        match *step {
            Step::Pass(seconds) => advance(Duration::from_secs(seconds)).await,
            Step::RelistComplete => drop(self.health.relist_complete()),
            Step::RelistFailed(alone) => {
                self.health.relist_failed(error(Rpc::ListContainers), alone, now);
            }
            Step::ListSent => self.sent(Rpc::ListContainers, Subject::NODE, true),
            Step::InspectionSent(n) => {
                let subject = Subject::container(pod(n).full_name(), "app", container(n));
                self.sent(Rpc::ContainerStatus, subject, false);
            }
            Step::Answered => drop(self.flights.pop()),
            Step::Quarantine(from, count) => (from..from + count).for_each(|n| self.quarantine(n)),
            Step::Release(n) => {
                self.health.release(&pod(n).uid, &container(n));
                self.quarantined.remove(&n);
            }
            Step::Suspect(n) => {
                let who = Who {
                    pod: Some(pod(n).full_name()),
                    container: Some("app".into()),
                    id: Some(container(n)),
                    ..Who::default()
                };
                self.health.suspects(vec![(who, now)], true);
            }
            Step::Unsuspect => self.health.suspects(Vec::new(), false),
            Step::Status(runtime, network) => self.readiness.answered(&RuntimeStatus {
                runtime: runtime.map(|is| condition("RuntimeReady", is)),
                network: network.map(|is| condition("NetworkReady", is)),
            }),
            Step::StatusFails => self.readiness.failed(&error(Rpc::Status)),
            Step::StreamDown => self.stream("the event stream is down: gone", true, false),
            Step::StreamLossy => self.stream("the event stream of x is up", false, true),
            Step::StreamUp => self.stream("the event stream of x is up", false, false),
            Step::End => drop(self.alive.take()),
            _ => self.probed(step),
        }
    }

    fn probed(&self, step: &Step) {
        let now = Instant::now();
        let around = Duration::from_millis(5);
        match *step {
            Step::ShimHangs(n) => self.health.shim_hangs(HungShim {
                pod: pod(n),
                sandbox: "s".into(),
                shim: None,
                since: now,
                took: [PATIENCE, around],
            }),
            Step::ShimAnswers(n) => drop(self.health.shim_answers(&pod(n).uid)),
            Step::ContainerHangs(n) => self.health.container_stuck(StuckContainer {
                pod: pod(n),
                sandbox: "s".into(),
                container: ContainerRef {
                    id: (&*container(n)).into(),
                    name: "app".into(),
                    attempt: 0,
                },
                slow: PATIENCE,
                since: now,
                around,
            }),
            Step::ContainerAnswers(n) => drop(self.health.container_answers(&(&*container(n)).into())),
            Step::MostContainersHang => drop(self.health.no_container_answers(now, PATIENCE)),
            Step::MostContainersAnswer => drop(self.health.containers_answer()),
            _ => {}
        }
    }

    /// Level, causes, checks, condition and JSON say the same.
    fn agrees(&self) -> Result<(), TestCaseError> {
        let node = self.readiness.observe();
        let report = &node.report;
        let checks = node.checks();
        let failed = |name: &str| {
            let mut found = checks.iter().filter(|check| check.name == name);
            let failed = found.next().and_then(|check| check.failed.clone());
            assert!(found.next().is_none(), "{name} is there twice");
            failed
        };

        // The level and the causes.
        let unhealthy = report.level == Level::Unhealthy;
        prop_assert!(unhealthy || (report.level == Level::Degraded) != report.causes.is_empty());
        prop_assert!(report.more_causes == 0 || !report.causes.is_empty());
        prop_assert_eq!(report.passes(), !unhealthy);
        prop_assert_eq!(failed("pleg"), unhealthy.then(|| report.message.clone()));

        // A check of the report fails if and only if there is a cause of it, also among those that are not listed.
        let all = self.health.report_in_full();
        prop_assert_eq!(all.causes.len(), report.causes.len() + report.more_causes);
        let names = |checks: Vec<crate::health::Check>| -> Vec<_> {
            let failed = checks.into_iter().filter(|check| check.failed.is_some());
            failed.map(|check| check.name).collect()
        };
        prop_assert_eq!(names(all.checks()), names(report.checks()));
        for cause in report.causes.iter().filter(|_| self.alive.is_some()) {
            let told = checks
                .iter()
                .filter(|check| check.name != "pleg")
                .filter(|check| check.failed.as_ref().is_some_and(|text| text.contains(&cause.full())));
            prop_assert_eq!(told.count(), 1, "{}", cause);
        }

        // The node's condition.
        let of_node = ["pleg", "runtime-status", "runtime-ready", "network-ready"];
        let not_ready: Vec<_> = of_node.iter().filter_map(|name| failed(name)).collect();
        prop_assert_eq!(node.ready.status, not_ready.is_empty(), "{:?}", not_ready);
        prop_assert_eq!(node.ready.status, node.not_ready_because().is_empty());
        prop_assert_eq!(node.ready.message.contains("PLEG is not healthy"), unhealthy);
        prop_assert!(!unhealthy || node.ready.message.contains(&report.message));

        // The JSON.
        let json = serde_json::to_value(report).unwrap();
        prop_assert_eq!(json["level"].as_str(), Some(&*format!("{:?}", report.level)));
        prop_assert_eq!(json["causes"].as_array().map(Vec::len), Some(report.causes.len()));

        // What was written is in there.
        if self.alive.is_none() {
            prop_assert!(unhealthy);
            return Ok(());
        }
        let hangs = |list: bool| {
            self.flights
                .iter()
                .any(|(_, since, is_list)| *is_list == list && since.elapsed() >= PATIENCE)
        };
        prop_assert!(!hangs(true) || failed("runtime-lists").is_some());
        prop_assert!(!hangs(false) || !report.causes.is_empty());
        prop_assert_eq!(self.quarantined.is_empty(), failed("quarantined-pods").is_none());
        prop_assert!(!self.stream_down || failed("event-stream").is_some());
        prop_assert_eq!(self.stream_down, report.mode.reason.contains("is down"));
        Ok(())
    }
}

async fn history(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut node = Node::new();
    node.agrees()?;
    for step in &steps {
        node.apply(step).await;
        node.agrees()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_state_everything_said_about_it_agrees(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(history(steps))?;
    }
}
