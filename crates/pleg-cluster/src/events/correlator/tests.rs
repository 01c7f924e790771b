use super::*;
use pleg::PodRef;

fn pod(name: &str) -> PodRef {
    PodRef {
        uid: format!("uid-{name}").as_str().into(),
        namespace: "default".into(),
        name: name.into(),
    }
}

fn event(name: &str, reason: &'static str, message: &str) -> Event {
    Event::pod(&pod(name), EventType::Warning, reason, message)
}

/// Events at times of a test, and what would be written.
struct Case {
    correlator: Correlator,
    start: Instant,
}

impl Case {
    fn new() -> Self {
        Self {
            correlator: Correlator::new("n1"),
            start: Instant::now(),
        }
    }

    fn at(&mut self, seconds: u64, event: Event) -> Observed {
        let wall = Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap();
        self.correlator
            .observe(event, wall, self.start + Duration::from_secs(seconds))
    }

    /// Writes everything that waits: whether it is created, its count and message.
    fn written(&mut self, seconds: u64) -> Vec<(bool, u32, String)> {
        let mut all = Vec::new();
        while let Some(write) = self.correlator.next(self.start + Duration::from_secs(seconds)) {
            self.correlator.set_created(&write.key, true);
            all.push((write.create, write.record.count, write.record.message));
        }
        all
    }
}

#[tokio::test(start_paused = true)]
async fn equal_events_are_counted_up() {
    let mut case = Case::new();
    case.at(0, event("a", "BackOff", "m"));
    assert_eq!(case.written(0), [(true, 1, "m".to_owned())]);
    case.at(1, event("a", "BackOff", "m"));
    // Twice before it is written: once.
    case.at(2, event("a", "BackOff", "m"));
    assert_eq!(case.written(2), [(false, 3, "m".to_owned())]);
    // Each of these is another event.
    case.at(3, event("a", "Failed", "m"));
    case.at(3, event("b", "BackOff", "m"));
    case.at(3, event("a", "BackOff", "other"));
    case.at(3, Event::pod(&pod("a"), EventType::Normal, "BackOff", "m"));
    case.at(3, Event::node(EventType::Normal, "BackOff", "m"));
    let written = case.written(3);
    assert_eq!(written.len(), 5);
    assert!(written.iter().all(|(create, count, _)| *create && *count == 1));
    // Gone from the API server: created again, with its count.
    case.at(4, event("a", "BackOff", "m"));
    let write = case.correlator.next(case.start).unwrap();
    assert!(!write.create);
    case.correlator.set_created(&write.key, false);
    case.correlator.retry(write.key);
    assert_eq!(case.written(4), [(true, 4, "m".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn names_are_unique_and_times_are_those_of_the_first_and_last() {
    let mut case = Case::new();
    case.at(5, event("a", "Failed", "one"));
    case.at(5, event("a", "Failed", "two"));
    case.at(9, event("a", "Failed", "two"));
    let (one, two) = (
        case.correlator.next(case.start).unwrap(),
        case.correlator.next(case.start).unwrap(),
    );
    assert_ne!(one.record.name, two.record.name);
    let seconds = |at: Timestamp| at.as_second();
    assert_eq!((seconds(two.record.first), seconds(two.record.last)), (5, 9));
}

#[tokio::test(start_paused = true)]
async fn similar_events_are_combined() {
    let mut case = Case::new();
    for n in 0..12 {
        case.at(n, event("a", "Unhealthy", &format!("probe {n}")));
    }
    let written = case.written(12);
    assert_eq!(written.len(), 10, "{written:?}");
    assert_eq!(written[8].2, "probe 8");
    assert_eq!(
        written[9],
        (true, 3, "(combined from similar events): probe 11".to_owned())
    );
    // A message that it has is not a new one.
    case.at(13, event("a", "Unhealthy", "probe 0"));
    assert_eq!(case.written(13), [(false, 2, "probe 0".to_owned())]);
    case.at(14, event("a", "Unhealthy", "probe 99"));
    assert_eq!(
        case.written(14),
        [(false, 4, "(combined from similar events): probe 99".to_owned())]
    );
    // After ten minutes of silence, messages count again.
    case.at(14 + 601, event("a", "Unhealthy", "probe 100"));
    assert_eq!(case.written(615), [(true, 1, "probe 100".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn too_many_events_of_one_object_are_counted_and_not_written() {
    let mut case = Case::new();
    let observed: Vec<Observed> = (0..40).map(|_| case.at(0, event("a", "BackOff", "m"))).collect();
    assert_eq!(observed.iter().filter(|one| **one == Observed::Queued).count(), 25);
    assert_eq!(observed[24..26], [Observed::Queued, Observed::Filtered]);
    // Written once: they were all there before.
    assert_eq!(case.written(0), [(true, 40, "m".to_owned())]);
    // Others have their own budget, and so have those of the other type.
    assert_eq!(case.at(1, event("b", "BackOff", "m")), Observed::Queued);
    let normal = Event::pod(&pod("a"), EventType::Normal, "Pulled", "m");
    assert_eq!(case.at(1, normal), Observed::Queued);
    assert_eq!(case.written(1).len(), 2);
    // One more every five minutes, with the right count.
    assert_eq!(case.at(299, event("a", "BackOff", "m")), Observed::Filtered);
    assert_eq!(case.at(300, event("a", "BackOff", "m")), Observed::Queued);
    assert_eq!(case.at(301, event("a", "BackOff", "m")), Observed::Filtered);
    assert_eq!(case.written(301), [(false, 43, "m".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_the_oldest_is_dropped() {
    let mut case = Case::new();
    for n in 0..10_000 {
        case.at(0, event(&format!("p{n}"), "BackOff", "m"));
    }
    assert_eq!(
        (case.correlator.queue.len(), case.correlator.dropped()),
        (MAX_QUEUE, 9000)
    );
    assert_eq!(case.correlator.events.len(), REMEMBERED);
    assert_eq!(case.correlator.similar.len(), REMEMBERED);
    assert_eq!(case.correlator.budgets.len(), REMEMBERED);
    let first = case.correlator.next(case.start).unwrap();
    assert_eq!(first.record.involved.name.as_deref(), Some("p9000"));
    // One that was dropped, and is still remembered, keeps its count.
    case.at(1, event("p8999", "BackOff", "m"));
    let all = case.written(1);
    assert_eq!((all.len(), all.last()), (1000, Some(&(true, 2, "m".to_owned()))));
}

#[tokio::test(start_paused = true)]
async fn what_waited_for_an_hour_is_of_no_use() {
    let mut case = Case::new();
    case.at(0, event("a", "BackOff", "m"));
    case.at(1800, event("b", "BackOff", "m"));
    assert_eq!(case.written(3700).len(), 1);
    assert_eq!(case.correlator.dropped(), 1);
}

#[tokio::test(start_paused = true)]
async fn events_of_the_node_have_its_uid_once_it_is_known() {
    let mut case = Case::new();
    let node = |reason| Event::node(EventType::Normal, reason, "m");
    case.at(0, node("Starting"));
    case.correlator.set_node_uid("u7");
    case.at(0, node("NodeReady"));
    let mut uid = || case.correlator.next(case.start).unwrap().record.involved.uid.unwrap();
    assert_eq!([uid(), uid()], ["n1", "u7"]);
}
