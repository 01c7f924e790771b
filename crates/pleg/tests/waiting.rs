//! How new an entry of the cache is, what a refresh finds, and waits for a condition. Paused time.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::{Config, ContainerState, PodEntry, PodUid, WaitError};
use tokio::time::{Instant, sleep};

fn uid(pod: &str) -> PodUid {
    PodUid::from(pod)
}

fn limit(entry: &PodEntry, id: &str) -> Option<i64> {
    let container = entry.status.container(&id.into()).unwrap();
    container
        .resources
        .as_ref()
        .map(|resources| resources.memory_limit_in_bytes)
}

/// `UpdateContainerResources`, a new IP: no list shows it. Relists say so by leaving `inspected` where it was; a refresh finds it.
#[tokio::test(start_paused = true)]
async fn a_refresh_finds_what_no_list_shows() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a", "b"]);
    fake.world().add_container("p", "s-p", "old", ContainerState::Exited);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let before = rig.pleg.cache().get(&uid("p")).unwrap();
    assert!(before.inspected.number() > 0 && before.inspected <= before.observed);

    fake.world().limits.insert("a".into(), 4096);
    fake.world().sandboxes.get_mut("s-p").unwrap().ip = Some("10.0.0.2");
    let token = rig.pleg.cache().token();
    let listed = rig
        .pleg
        .cache()
        .newer_than(&uid("p"), token, Duration::MAX)
        .await
        .unwrap();
    assert!(listed.observed >= token);
    assert_eq!(listed.inspected, before.inspected, "the details were not asked for");
    assert_eq!(limit(&listed, "a"), None);

    fake.world().status_calls.clear();
    let token = rig.pleg.cache().token();
    let fresh = rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap();
    assert!(fresh.observed >= token && fresh.inspected >= token, "{fresh:?}");
    assert_eq!(limit(&fresh, "a"), Some(4096));
    assert_eq!(fresh.status.ips[0].to_string(), "10.0.0.2");
    // What has exited does not change.
    let mut asked = fake.world().status_calls.clone();
    asked.sort();
    assert_eq!(asked, ["a", "b", "s-p"]);
}

/// An inspection that takes its time is as old as its beginning, whatever relists say of the pod's states meanwhile.
#[tokio::test(start_paused = true)]
async fn an_inspection_is_as_new_as_its_beginning() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    fake.world().slow_ends_well = true;
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().add_container("p", "s-p", "b", ContainerState::Running);
    fake.world().hung.insert("b".into());
    let complete = rig.pleg.cache().complete();
    rig.seen().await;
    sleep(Duration::from_secs(11)).await;
    let entry = rig.pleg.cache().get(&uid("p")).unwrap();
    assert_eq!(entry.status.containers.len(), 2);
    assert!(entry.observed.number() >= complete.number() + 8, "{entry:?}");
    assert!(entry.inspected.number() <= complete.number() + 2, "{entry:?}");
}

/// By its event, one container is asked for: the details of the others are no newer for it.
#[tokio::test(start_paused = true)]
async fn a_part_that_was_inspected_does_not_vouch_for_the_rest() {
    let fake = Fake::default();
    {
        let mut world = fake.world();
        world.has_events = true;
        (world.version.name, world.version.version) = ("containerd".into(), "2.1.9".into());
        world.add_pod("p", &["a", "b"]);
    }
    let rig = Rig::start(&fake, Config::default());
    sleep(Duration::from_secs(100)).await;
    let before = rig.pleg.cache().get(&uid("p")).unwrap();
    fake.world().limits.insert("b".into(), 1);
    fake.world().exit("a", 3);
    fake.world().tell_of("a", Some("p"));
    sleep(Duration::from_millis(50)).await;
    let after = rig.pleg.cache().get(&uid("p")).unwrap();
    assert_eq!(after.status.container(&"a".into()).unwrap().exit_code, Some(3));
    assert_eq!((limit(&after, "b"), after.inspected), (None, before.inspected));
    let fresh = rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap();
    assert!(limit(&fresh, "b") == Some(1) && fresh.inspected > before.inspected);
}

fn runs(entry: Option<&PodEntry>) -> bool {
    entry.is_some_and(|entry| {
        let mut containers = entry.status.containers.iter();
        containers.any(|container| container.state == ContainerState::Running)
    })
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_waited_for_until_a_commit_meets_it() {
    let fake = Fake::default();
    let rig = Rig::start(&fake, Config::default());
    let (cache, p) = (rig.pleg.cache().clone(), uid("p"));
    // Before the first relist a pod that is not in the cache is not known to be absent.
    let gone = cache.wait_for(&p, |pod| pod.is_none(), Duration::from_secs(5)).await;
    assert!(gone.unwrap().is_none() && cache.complete().number() > 0);

    let waiting = tokio::spawn({
        let (cache, p) = (cache.clone(), p.clone());
        async move {
            let mut asked = 0;
            let condition = |pod: Option<&PodEntry>| {
                asked += 1;
                runs(pod)
            };
            let met = cache.wait_for(&p, condition, Duration::from_mins(5)).await;
            (met, asked)
        }
    });
    sleep(Duration::from_secs(10)).await;
    let wait = &cache.waits()[0];
    assert_eq!((wait.uid.as_ref(), wait.waiters, wait.token.number()), (Some(&p), 1, 0));
    fake.world().add_pod("p", &["a"]);
    let started = Instant::now();
    let (met, asked) = waiting.await.unwrap();
    assert!(runs(met.unwrap().as_ref()));
    assert!(started.elapsed() <= Duration::from_secs(1));
    // Woken by relists and commits, not by a timer of its own.
    assert!(asked <= 15, "{asked}");
    assert!(cache.waits().is_empty());

    fake.world().remove_pod("p");
    let gone = cache.wait_for(&p, |pod| pod.is_none(), Duration::from_secs(5)).await;
    assert!(gone.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_deadline_and_says_what_was_there() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let (cache, p) = (rig.pleg.cache().clone(), uid("p"));
    let started = Instant::now();
    let exits = |pod: Option<&PodEntry>| pod.is_some() && !runs(pod);
    let error = cache
        .wait_for(&p, exits, Duration::from_millis(2500))
        .await
        .unwrap_err();
    assert_eq!(started.elapsed(), Duration::from_millis(2500));
    let text = error.to_string();
    assert!(
        text.starts_with(
            "pod p did not meet the condition within 2.5s; last seen: default/p (name-a Running), as of relist "
        ),
        "{text}"
    );
    assert!(matches!(&error, WaitError::Deadline { last: Some(_), .. }));
    let unknown = cache
        .wait_for(&uid("q"), runs, Duration::from_secs(1))
        .await
        .unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "pod q did not meet the condition within 1s; last seen: nothing"
    );
    assert!(cache.waits().is_empty());

    // Dropped at any time, it leaves nothing behind.
    let dropped = tokio::time::timeout(Duration::from_secs(1), cache.wait_for(&p, exits, Duration::MAX)).await;
    assert!(dropped.is_err() && cache.waits().is_empty());

    let waiting = tokio::spawn(async move { cache.wait_for(&p, exits, Duration::from_hours(1)).await });
    rig.settle().await;
    rig.shutdown.cancel();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, WaitError::Ended { .. }), "{error}");
}

/// With events full relists are rare. A wait for a condition may last for hours, and does not change that.
#[tokio::test(start_paused = true)]
async fn a_long_wait_leaves_the_generator_at_rest() {
    let fake = Fake::default();
    {
        let mut world = fake.world();
        world.has_events = true;
        (world.version.name, world.version.version) = ("containerd".into(), "2.1.9".into());
        world.add_pod("p", &["a"]);
    }
    let rig = Rig::start(&fake, Config::default());
    sleep(Duration::from_secs(200)).await;
    let cache = rig.pleg.cache().clone();
    let waiting = tokio::spawn(async move {
        let exits = |pod: Option<&PodEntry>| pod.is_some() && !runs(pod);
        cache.wait_for(&uid("p"), exits, Duration::from_hours(1)).await
    });
    let relists = rig.pleg.health().report().relists;
    sleep(Duration::from_mins(10)).await;
    let relists = rig.pleg.health().report().relists - relists;
    assert!(relists <= 11, "{relists}");
    fake.world().exit("a", 0);
    fake.world().tell_of("a", Some("p"));
    let started = Instant::now();
    waiting.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn a_complete_relist_can_be_waited_for() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let cache = rig.pleg.cache().clone();
    let token = cache.token();
    assert!(cache.complete() < token);
    let waiting = tokio::spawn({
        let cache = cache.clone();
        async move { cache.synced(token, Duration::from_secs(5)).await }
    });
    tokio::task::yield_now().await;
    let wait = &cache.waits()[0];
    assert_eq!((wait.uid.as_ref(), wait.waiters, wait.token), (None, 1, token));
    waiting.await.unwrap().unwrap();
    assert!(cache.complete() >= token && cache.waits().is_empty());
    // What is so already is not waited for.
    cache.synced(token, Duration::ZERO).await.unwrap();

    rig.shutdown.cancel();
    rig.settle().await;
    let error = cache.synced(cache.token(), Duration::MAX).await.unwrap_err();
    assert_eq!(error.to_string(), "no relist completed before the generator ended");
    let error = cache
        .newer_than(&uid("p"), cache.token(), Duration::MAX)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("pod p was not observed again before the generator ended; last seen: default/p "),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_relist_have_deadlines() {
    let fake = Fake::default();
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let cache = rig.pleg.cache();
    let far = {
        fake.world().list_hangs = true;
        rig.pleg.request_all()
    };
    let started = Instant::now();
    let error = cache.synced(far, Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(
        (error.to_string(), started.elapsed()),
        ("no relist completed within 3s".to_owned(), Duration::from_secs(3))
    );
    let error = rig.pleg.refresh(&uid("p"), Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod p was not observed again within 2s; last seen: nothing"
    );
    assert!(matches!(error, WaitError::Deadline { last: None, .. }));
    assert!(cache.waits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_are_found_by_name_and_by_container() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    fake.world().add_pod("q", &["b", "c"]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let cache = rig.pleg.cache();
    let found = |entry: Option<PodEntry>| entry.map(|entry| entry.status.pod.uid.clone());
    assert_eq!(found(cache.find("default", "q")), Some(uid("q")));
    assert_eq!(found(cache.find("other", "q")), None);
    assert_eq!(found(cache.find_container(&"c".into())), Some(uid("q")));
    assert_eq!(found(cache.find_container(&"x".into())), None);
}
