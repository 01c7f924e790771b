use pleg_cri::{Endpoint, ErrorKind, InFlight, Subject};
use tokio::time::advance;

use super::*;
use crate::health::THRESHOLD;
use crate::runtime::RuntimeCondition;

const NEVER: &str = "container runtime status check may not have completed yet";
const DOWN: &str = "container runtime is down";
const PLEG: &str = "PLEG is not healthy: pleg has yet to be successful";

fn condition(kind: &'static str, status: bool) -> RuntimeCondition {
    RuntimeCondition {
        kind,
        status,
        reason: "Why".into(),
        message: "what it says".into(),
    }
}

fn status(runtime: Option<bool>, network: Option<bool>) -> RuntimeStatus {
    RuntimeStatus {
        runtime: runtime.map(|is| condition("RuntimeReady", is)),
        network: network.map(|is| condition("NetworkReady", is)),
    }
}

type Row<'a> = (&'a [(Option<RuntimeStatus>, u64)], bool, &'a [&'a str]);

/// Every branch: the answers so far with the seconds after each, whether the PLEG check fails, and what keeps the node from
/// being ready.
#[tokio::test(start_paused = true)]
async fn the_table() {
    const RUNTIME: &str = "container runtime not ready: RuntimeReady=false reason:Why message:what it says";
    const NETWORK: &str = "container runtime network not ready: NetworkReady=false reason:Why message:what it says";
    const NO_RUNTIME: &str = "container runtime not ready: <nil>";
    const NO_NETWORK: &str = "container runtime network not ready: <nil>";
    let (yes, no) = (Some(true), Some(false));
    let answer = |runtime, network| Some(status(runtime, network));
    // An answer of none is a call that failed.
    let table: [Row<'_>; 17] = [
        (&[], false, &[NEVER, NETWORK_UNKNOWN]),
        (&[], true, &[NEVER, PLEG, NETWORK_UNKNOWN]),
        (&[(None, 0)], false, &[NEVER, NETWORK_UNKNOWN]),
        (&[(None, 60)], false, &[NEVER, NETWORK_UNKNOWN]),
        (&[(answer(yes, yes), 0)], false, &[]),
        (&[(answer(yes, yes), 0)], true, &[PLEG]),
        (&[(answer(yes, yes), 29)], false, &[]),
        (&[(answer(yes, yes), 30)], false, &[DOWN]),
        (&[(answer(yes, yes), 30)], true, &[DOWN, PLEG]),
        // What the last answer said stays until there is another.
        (&[(answer(yes, no), 29), (None, 0)], false, &[NETWORK]),
        (&[(answer(yes, no), 29), (None, 1)], true, &[DOWN, PLEG, NETWORK]),
        (&[(answer(yes, None), 0)], false, &[NO_NETWORK]),
        // A runtime that is not ready gives no sign of life, however promptly it says so.
        (&[(answer(no, yes), 0)], false, &[NEVER, RUNTIME]),
        (&[(answer(yes, yes), 5), (answer(no, yes), 24)], false, &[RUNTIME]),
        (
            &[(answer(yes, yes), 5), (answer(None, None), 25)],
            true,
            &[DOWN, PLEG, NO_RUNTIME, NO_NETWORK],
        ),
        (&[(answer(no, no), 0), (answer(yes, yes), 0)], false, &[]),
        (&[(answer(yes, yes), 99), (answer(yes, yes), 0)], false, &[]),
    ];
    for (n, (answers, unhealthy, expected)) in table.iter().enumerate() {
        let mut state = RuntimeState::default();
        for (answer, then) in *answers {
            match answer {
                Some(status) => state.answered(status, Instant::now()),
                None => state.failed("late".to_owned(), Instant::now()),
            }
            advance(Duration::from_secs(*then)).await;
        }
        let pleg = unhealthy.then(|| PLEG.to_owned());
        assert_eq!(state.errors(pleg, Instant::now()), *expected, "row {n}");
    }
}

#[test]
fn errors_are_joined_as_the_kubelet_joins_them() {
    for (errors, message) in [
        (&["a"][..], "a"),
        (&["a", "b"], "[a, b]"),
        (&["a", "b", "a"], "[a, b]"),
        (&["a", "a"], "a"),
    ] {
        let errors: Vec<_> = errors.iter().map(|&error| error.to_owned()).collect();
        assert_eq!(joined(&errors), message);
    }
}

#[test]
fn only_a_transition_moves_its_time() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let errors = |text: &str| [text.to_owned()];
    let one = NodeCondition::ready(None, &errors("a"), at(1));
    assert_eq!(
        (one.status, &*one.reason, &*one.message),
        (false, "KubeletNotReady", "a")
    );
    assert_eq!((one.last_heartbeat_time, one.last_transition_time), (at(1), at(1)));
    let two = NodeCondition::ready(Some(&one), &errors("b"), at(2));
    assert_eq!(&*two.message, "b");
    assert_eq!((two.last_heartbeat_time, two.last_transition_time), (at(2), at(1)));
    let three = NodeCondition::ready(Some(&two), &[], at(3));
    assert_eq!((three.status, &*three.reason), (true, "KubeletReady"));
    assert_eq!(&*three.message, "kubelet is posting ready status");
    assert_eq!((three.last_heartbeat_time, three.last_transition_time), (at(3), at(3)));
    let four = NodeCondition::ready(Some(&three), &[], at(4));
    assert_eq!((four.last_heartbeat_time, four.last_transition_time), (at(4), at(3)));
}

#[tokio::test(start_paused = true)]
async fn the_checks_tell_what_fails_and_for_how_long() {
    let inflight = InFlight::default();
    let health = Health::new(THRESHOLD, inflight.clone(), None);
    let readiness = Readiness::new(health.clone());
    health.relist_complete();
    readiness.answered(&status(Some(true), Some(true)));
    assert!(readiness.ready().status);
    let fine = RuntimeChecks {
        status: None,
        runtime: None,
        network: None,
        late: None,
        silence: None,
    };
    assert_eq!(readiness.observe().runtime, fine);

    let error = Error {
        rpc: Rpc::Status,
        subject: Subject::NODE,
        endpoint: Endpoint::unix("/x.sock"),
        kind: ErrorKind::Deadline(Duration::from_secs(10)),
    };
    readiness.failed(&error);
    advance(Duration::from_secs(12)).await;
    let late = Some("Status on unix:///x.sock: no answer within 10s (for 12s, 1 attempt)".to_owned());
    assert_eq!(readiness.observe().runtime, RuntimeChecks { late, ..fine });
    advance(Duration::from_secs(19)).await;
    readiness.failed(&error);
    let _waiting = inflight.begin(Rpc::Status, Subject::NODE, None);
    advance(Duration::from_secs(6)).await;
    assert_eq!(
        readiness.observe().runtime.status.unwrap(),
        "container runtime is down; Status on unix:///x.sock: no answer within 10s (for 37s, 2 attempts); \
         Status has been waiting for an answer for 6s"
    );
    assert_eq!(
        readiness.observe().runtime.silence.unwrap(),
        "container runtime is down: Status on unix:///x.sock: no answer within 10s"
    );
    assert_eq!(readiness.ready().message, DOWN);
    readiness.answered(&status(Some(true), Some(true)));
    assert!(readiness.ready().status);
}
