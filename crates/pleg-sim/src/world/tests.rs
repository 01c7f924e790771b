//! The world without a socket: tables and histories.

use std::time::Duration;

use pleg_cri::v1::{ContainerEventType as Event, ContainerState as State};

use super::*;
use crate::Clock;
use crate::selector::PodRef;

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
    let mut events = world.subscribe().unwrap();
    // Of the six events without a subscriber two were kept.
    assert_eq!(world.event_counts(), (2, 4));
    world.storm(Ending::Exit(0));
    assert_eq!(world.event_counts(), (3, 5));
    let mut kinds = Vec::new();
    while let Ok(event) = events.try_recv() {
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
