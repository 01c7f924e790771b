//! The world without a socket: tables and histories.

use std::time::Duration;

use pleg_cri::v1::{ContainerEventType as Event, ContainerState as State};

use super::*;
use crate::selector::PodRef;
use crate::{Clock, Flavour};

const START: i64 = 1_700_000_000_000_000_000;

fn config(pods: usize, clock: &Clock) -> SimConfig {
    SimConfig {
        pods,
        clock: clock.clone(),
        ..Default::default()
    }
}

fn pod(name: &str) -> PodRef {
    name.parse().unwrap()
}

#[test]
fn the_same_seed_and_steps_give_the_same_world() {
    let history = |seed: u64, reads: usize| {
        let clock = Clock::manual(START);
        let mut world = World::new(&SimConfig {
            seed,
            churn: 100.0,
            ..config(20, &clock)
        })
        .unwrap();
        for _ in 0..50 {
            clock.advance(Duration::from_millis(100));
            world.tick();
            // Reading must not change what happens.
            for _ in 0..reads {
                world.list_containers(None);
            }
        }
        world.restart(&pod("default/web-0"), None).ok();
        world.truth()
    };
    let first = history(1, 0);
    assert_eq!(first, history(1, 3));
    assert_ne!(first, history(2, 0));
    // 500 changes later there are still 20 pods, and at most one dead attempt beside each container.
    assert_eq!(first.sandboxes.len(), 20);
    assert!(
        (40..=80).contains(&first.containers.len()),
        "{}",
        first.containers.len()
    );
}

#[test]
fn ids_look_like_a_runtimes() {
    let world = World::new(&config(3, &Clock::manual(START))).unwrap();
    let truth = world.truth();
    for sandbox in &truth.sandboxes {
        assert!(sandbox.id.len() == 64 && sandbox.id.chars().all(|c| c.is_ascii_hexdigit()));
        assert_eq!(
            sandbox.uid.split('-').map(str::len).collect::<Vec<_>>(),
            [8, 4, 4, 4, 12]
        );
        assert_eq!(&sandbox.uid[14..15], "4");
    }
    assert!(
        truth
            .containers
            .iter()
            .all(|c| c.state == State::ContainerRunning && c.started_at >= START)
    );
}

#[test]
fn exits_and_restarts_are_a_kubelets() {
    let clock = Clock::manual(START);
    let mut world = World::new(&config(2, &clock)).unwrap();
    let web = pod("default/web-0");
    assert_eq!(world.exit(&web, Some("app"), Ending::Exit(3)), Ok(1));
    assert_eq!(world.exit(&web, Some("app"), Ending::Exit(4)), Ok(0));
    for attempt in 1..5 {
        assert_eq!(world.restart(&web, Some("app")), Ok(1));
        let truth = world.truth();
        let of_app: Vec<_> = truth
            .containers
            .iter()
            .filter(|c| c.name == "app" && c.attempt > 0)
            .collect();
        assert!(
            of_app
                .iter()
                .any(|c| c.attempt == attempt && c.state == State::ContainerRunning)
        );
        // One dead, one alive; the other pod has its two, and this one its sidecar.
        assert_eq!(truth.containers.len(), 5, "attempt {attempt}");
    }
    assert_eq!(world.storm(Ending::Oom), 4);
    assert!(
        world
            .truth()
            .containers
            .iter()
            .filter(|c| c.reason == "OOMKilled")
            .all(|c| c.exit_code == 137)
    );
    assert_eq!(world.remove(&web, None).map(|gone| gone.len()), Ok(4));
    assert_eq!(
        world.counts(),
        Counts {
            pods: 1,
            sandboxes: 1,
            containers: 2
        }
    );
    assert_eq!(
        world.exit(&web, None, Ending::Exit(0)),
        Err(WorldError::NoPod("default/web-0".into()))
    );
}

#[test]
fn scripts_end_when_the_clock_says_so() {
    let clock = Clock::manual(START);
    let script = Script::ends(Duration::from_secs(5), Ending::Exit(3));
    let mut world = World::new(&SimConfig {
        script,
        ..config(1, &clock)
    })
    .unwrap();
    let running = |world: &World| {
        world
            .truth()
            .containers
            .iter()
            .filter(|c| c.state == State::ContainerRunning)
            .count()
    };
    clock.advance(Duration::from_secs(4));
    world.tick();
    assert_eq!(running(&world), 2);
    assert!(world.next_due().is_some_and(|due| due > clock.now()));
    clock.advance(Duration::from_secs(2));
    world.tick();
    assert_eq!(running(&world), 0);
    // Nothing is left to come, also not for what was removed before its time.
    world.restart(&pod("default/web-0"), None).unwrap();
    world.remove(&pod("default/web-0"), None).unwrap();
    assert_eq!(world.next_due(), None);
}

#[test]
fn dead_containers_are_kept_when_asked_for() {
    let world = World::new(&SimConfig {
        dead: 10,
        ..config(3, &Clock::manual(START))
    })
    .unwrap();
    let truth = world.truth();
    assert_eq!(truth.containers.len(), 3 * 2 * 11);
    assert_eq!(
        truth
            .containers
            .iter()
            .filter(|c| c.state == State::ContainerExited)
            .count(),
        3 * 2 * 10
    );
}

#[test]
fn a_full_queue_drops_the_newest_and_counts() {
    let clock = Clock::manual(START);
    let mut world = World::new(&SimConfig {
        event_queue: 3,
        event_backlog: 2,
        ..config(0, &clock)
    })
    .unwrap();
    world.add_pods(1).unwrap();
    let counts = |world: &mut World| {
        let stats = world.event_stats();
        (stats.sent, stats.dropped)
    };
    let mut events = world.subscribe().unwrap();
    // Of the six events without a subscriber two were kept.
    assert_eq!(counts(&mut world), (2, 4));
    world.storm(Ending::Exit(0));
    assert_eq!(counts(&mut world), (3, 5));
    let mut kinds = Vec::new();
    while let Some(event) = events.try_recv() {
        kinds.push(event.container_event_type());
    }
    let expected = [
        Event::ContainerCreatedEvent,
        Event::ContainerStartedEvent,
        Event::ContainerStoppedEvent,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn the_bytes_of_what_is_gone_are_given_back() {
    let mut world = World::new(&config(5, &Clock::manual(START))).unwrap();
    world.storm(Ending::Exit(1));
    for n in 0..5 {
        world.remove(&pod(&format!("default/web-{n}")), None).unwrap();
    }
    assert_eq!((world.bytes, world.reserved.len(), world.names.len()), (0, 0, 0));
}

/// As containerd 1.7 does: a second subscriber takes events away from the kubelet.
#[test]
fn events_are_split_where_the_runtime_splits_them() {
    for (flavour, expected) in [(Flavour::Containerd1_7, (5, 5)), (Flavour::Containerd2_1, (10, 10))] {
        let clock = Clock::manual(START);
        let mut world = World::new(&SimConfig {
            flavour,
            ..config(5, &clock)
        })
        .unwrap();
        let mut backlog = world.subscribe().unwrap();
        while backlog.try_recv().is_some() {}
        drop(backlog);
        let (mut one, mut other) = (world.subscribe().unwrap(), world.subscribe().unwrap());
        world.storm(Ending::Exit(1));
        let mut ids = Vec::new();
        let mut drain = |events: &mut Subscription| {
            let before = ids.len();
            while let Some(event) = events.try_recv() {
                ids.push(event.container_id);
            }
            ids.len() - before
        };
        assert_eq!((drain(&mut one), drain(&mut other)), expected, "{flavour}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 10, "every death is reported");
        // The remaining subscriber gets everything.
        drop(one);
        world.remove(&pod("default/web-0"), None).unwrap();
        let mut deleted = None;
        while let Some(event) = other.try_recv() {
            deleted = Some(event);
        }
        let deleted = deleted.unwrap();
        assert_eq!(deleted.container_event_type(), Event::ContainerDeletedEvent);
        assert_eq!(
            deleted.pod_sandbox_status.is_some(),
            flavour == Flavour::Containerd2_1,
            "{flavour}"
        );
    }
}

#[test]
fn a_backlog_waits_for_the_next_subscriber_and_grows_old() {
    let clock = Clock::manual(START);
    let mut world = World::new(&SimConfig {
        flavour: Flavour::Containerd2_1,
        ..config(0, &clock)
    })
    .unwrap();
    let churn = |world: &mut World, rounds: usize| {
        for _ in 0..rounds {
            world.restart(&pod("default/web-0"), None).unwrap();
        }
    };
    world.add_pods(1).unwrap();
    churn(&mut world, 10);
    clock.advance(Duration::from_mins(6));
    churn(&mut world, 1000);
    let waiting = world.event_stats().waiting;
    assert!(waiting > 5000, "{waiting}");
    let mut events = world.subscribe().unwrap();
    let mut count = 0;
    while let Some(event) = events.try_recv() {
        assert!(
            event.created_at >= START + 6 * 60 * 1_000_000_000,
            "older than five minutes"
        );
        count += 1;
    }
    assert_eq!(count, waiting);
    assert_eq!(world.event_stats().longest_wait_ms, 0, "no subscriber was slow");
    drop(events);

    // 1.7 keeps the oldest thousand.
    let mut world = World::new(&SimConfig {
        flavour: Flavour::Containerd1_7,
        ..config(0, &clock)
    })
    .unwrap();
    world.add_pods(1).unwrap();
    churn(&mut world, 1000);
    assert_eq!(world.event_stats().waiting, 1000);
}

#[test]
fn a_slow_subscriber_shows_in_the_longest_wait() {
    let clock = Clock::manual(START);
    let mut world = World::new(&config(2, &clock)).unwrap();
    let mut events = world.subscribe().unwrap();
    world.exit(&pod("default/web-0"), Some("app"), Ending::Exit(1)).unwrap();
    clock.advance(Duration::from_millis(70));
    assert_eq!(world.event_stats().longest_wait_ms, 70, "still waiting");
    events.try_recv().unwrap();
    world.exit(&pod("default/web-1"), Some("app"), Ending::Exit(1)).unwrap();
    clock.advance(Duration::from_millis(20));
    events.try_recv().unwrap();
    assert_eq!(world.event_stats().longest_wait_ms, 70);
    drop(events);
    assert_eq!(world.event_stats().longest_wait_ms, 70, "also after it left");
}

/// Where changes take longer than the churn leaves for them, a step of the world ends in time, and the next one is not longer.
#[test]
fn a_world_that_is_too_slow_for_its_churn_stays_responsive() {
    let clock = Clock::slow(START);
    let mut world = World::new(&SimConfig {
        churn: 100_000.0,
        ..config(50, &clock)
    })
    .unwrap();
    let exits = |world: &World| {
        let truth = world.truth();
        let exited = truth.containers.iter().filter(|c| c.state == State::ContainerExited);
        exited.count()
    };
    let mut most = 0;
    for round in 0..50 {
        let before = clock.now();
        world.tick();
        let took = Duration::from_nanos((clock.now() - before).unsigned_abs());
        // The change with which the time ends, such as a pod that is replaced, reads the clock some more.
        assert!(took < 5 * LONGEST_TICK, "round {round}: {took:?}");
        most = most.max(exits(&world));
    }
    assert!(most > 0);
    // It catches up as soon as it can.
    world.set_churn(0.0);
    while world.next_due().is_some() {
        world.tick();
    }
    let truth = world.truth();
    let running = truth.containers.iter().filter(|c| c.state == State::ContainerRunning);
    assert_eq!(running.count(), 100);
}

/// A restart that was due meanwhile is not forgotten.
#[test]
fn what_churns_under_a_hung_shim_comes_back_later() {
    let clock = Clock::manual(START);
    let mut world = World::new(&SimConfig {
        churn: 20.0,
        ..config(1, &clock)
    })
    .unwrap();
    world.hang_shim(&pod("default/web-0")).unwrap();
    let later = |world: &mut World, seconds: u64| {
        for _ in 0..10 * seconds {
            clock.advance(Duration::from_millis(100));
            world.tick();
        }
    };
    later(&mut world, 1);
    world.set_churn(0.0);
    later(&mut world, 5);
    world.unhang_shim(None).unwrap();
    later(&mut world, 5);
    let truth = world.truth();
    let running = truth.containers.iter().filter(|c| c.state == State::ContainerRunning);
    assert_eq!(running.count(), 2);
}

#[test]
fn what_happens_under_a_hung_shim_is_seen_when_it_goes_on() {
    let clock = Clock::manual(START);
    let mut world = World::new(&config(2, &clock)).unwrap();
    let mut events = world.subscribe().unwrap();
    world.hang_shim(&pod("default/web-0")).unwrap();
    let before = world.truth();
    assert_eq!(
        world.exit(&pod("default/web-0"), Some("app"), Ending::Exit(7)).unwrap(),
        1
    );
    assert_eq!(
        world.exit(&pod("default/web-0"), None, Ending::Exit(1)).unwrap(),
        1,
        "no container dies twice"
    );
    assert_eq!(world.truth(), before);
    assert!(events.try_recv().is_none());
    assert!(world.restart(&pod("default/web-0"), None).is_err());
    clock.advance(Duration::from_secs(5));
    assert_eq!(world.unhang_shim(Some(&pod("default/web-1"))), Ok(0));
    assert_eq!(world.unhang_shim(None), Ok(1));
    let truth = world.truth();
    let mut codes: Vec<i32> = truth
        .containers
        .iter()
        .filter(|c| c.finished_at > 0)
        .map(|c| c.exit_code)
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [1, 7], "each as it ended");
    let finished = truth.containers.iter().map(|c| c.finished_at).max().unwrap();
    assert!(
        finished >= START + 5_000_000_000,
        "containerd takes the time of its own noticing"
    );
    assert!(events.try_recv().is_some());
}
