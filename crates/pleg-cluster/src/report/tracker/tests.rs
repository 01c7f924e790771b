//! Troubles that come and go.

use super::*;

fn pod(name: &str) -> PodRef {
    PodRef {
        uid: format!("u-{name}").as_str().into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn finding(trouble: Trouble, name: &str, text: &str, age: u64) -> Finding {
    Finding {
        trouble,
        pod: (!name.is_empty()).then(|| pod(name)),
        text: text.to_owned(),
        age: Duration::from_secs(age),
    }
}

/// A tracker and its clocks.
struct Case {
    tracker: Tracker,
    start: Instant,
    second: u64,
}

impl Case {
    fn new() -> Self {
        Self {
            tracker: Tracker::default(),
            start: Instant::now(),
            second: 0,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.second)
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + self.second.cast_signed()).unwrap()
    }

    /// This is found at that second.
    fn at(&mut self, second: u64, found: &[Finding]) {
        self.second = second;
        let (at, now) = (self.wall(), self.now());
        self.tracker.observe(found.to_vec(), at, now);
    }

    fn stuck(&self) -> Vec<(Trouble, String)> {
        let stuck = self.tracker.stuck(self.now());
        stuck
            .iter()
            .map(|episode| (episode.trouble, episode.text.clone()))
            .collect()
    }

    fn told(&mut self) -> Vec<String> {
        let (at, now) = (self.wall(), self.now());
        let events = self.tracker.tell(at, now);
        let line = |event: Event| format!("{:?} {} {}", event.kind, event.reason, event.message);
        events.into_iter().map(line).collect()
    }
}

const STUCK: Trouble = Trouble::StuckInspection;

#[tokio::test(start_paused = true)]
async fn a_trouble_is_one_pair_of_events() {
    let mut case = Case::new();
    let hang = |age| [finding(STUCK, "web", "c hangs", age)];
    case.at(0, &hang(2));
    assert_eq!((case.stuck(), case.told()), (vec![], vec![]));
    for second in 1..60 {
        case.at(second, &hang(2 + second));
        let expected = usize::from(second == 3);
        assert_eq!(case.told().len(), expected, "{second}");
    }
    assert_eq!(case.stuck(), [(STUCK, "c hangs".to_owned())]);
    // Gone for a moment only.
    case.at(62, &[]);
    assert_eq!((case.stuck().len(), case.told()), (1, vec![]));
    case.at(63, &hang(65));
    case.at(67, &[]);
    assert_eq!((case.stuck().len(), case.told()), (1, vec![]));
    case.at(68, &[]);
    assert_eq!(case.stuck(), []);
    assert_eq!(case.told(), ["Normal Recovered no longer stuck, after 1m10s: c hangs"]);
    assert_eq!(case.told(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_short_trouble_makes_no_noise() {
    let mut case = Case::new();
    case.at(0, &[finding(Trouble::RuntimeDown, "", "no runtime", 1)]);
    case.at(3, &[finding(Trouble::RuntimeDown, "", "no runtime", 4)]);
    case.at(9, &[]);
    assert_eq!((case.stuck(), case.told()), (vec![], vec![]));
    assert!(case.tracker.episodes.is_empty());
    // One without an age that lasts is reported too.
    for second in 10..=15 {
        case.at(second, &[finding(Trouble::NotInspectable, "web", "lost", 0)]);
    }
    assert_eq!(case.stuck().len(), 1);
}

/// The probe of a shim names the pod only; the container that has exited behind it is named all the same, whichever was found first.
#[tokio::test(start_paused = true)]
async fn a_hung_shim_does_not_hide_the_container_that_has_exited() {
    let shim = || finding(Trouble::HungShim, "web", "the shim hangs; its process is stopped", 9);
    let missed = || finding(Trouble::MissedExit, "web", "container app has exited", 9);
    let both = "the shim hangs; its process is stopped; and container app has exited";
    for first in [shim(), missed()] {
        let mut case = Case::new();
        case.at(0, &[first]);
        assert_eq!(case.told().len(), 1);
        for second in 1..4 {
            case.at(second, &[missed(), shim()]);
            assert_eq!(case.stuck(), [(Trouble::HungShim, both.to_owned())]);
            assert_eq!(case.told(), Vec::<String>::new());
        }
    }
}

/// One hung shim shows in many calls.
#[tokio::test(start_paused = true)]
async fn all_that_is_found_of_one_pod_is_one_trouble() {
    let mut case = Case::new();
    let missed = |container: &str| finding(Trouble::MissedExit, "web", container, 9);
    case.at(0, &[missed("b"), missed("a"), finding(STUCK, "db", "db", 8)]);
    assert_eq!(case.told().len(), 2);
    // What was reported stays in its place as long as it is true.
    case.at(1, &[missed("a"), missed("0"), finding(STUCK, "db", "db", 9)]);
    assert_eq!(case.stuck()[0], (Trouble::MissedExit, "a".to_owned()));
    case.at(2, &[missed("b"), missed("c")]);
    assert_eq!(case.stuck()[0], (Trouble::MissedExit, "b".to_owned()));
    // Worse: another reason, and no second event.
    case.at(3, &[missed("b"), finding(Trouble::HungShim, "web", "shim", 9)]);
    assert_eq!(case.stuck()[0], (Trouble::HungShim, "shim; and b".to_owned()));
    assert_eq!(case.told(), Vec::<String>::new());
}

/// While nobody can be told, only the state counts.
#[tokio::test(start_paused = true)]
async fn an_outage_makes_no_backlog() {
    let mut case = Case::new();
    let hang = |name: &str| finding(STUCK, name, name, 9);
    case.at(0, &[hang("before")]);
    assert_eq!(case.told().len(), 1);
    // Nobody is told from here on.
    for second in 1..300 {
        let brief = format!("brief-{}", second.min(290) / 20);
        let both = [hang("new"), hang(&brief)];
        case.at(second, if second < 290 { &both } else { &both[..1] });
    }
    case.at(300, &[hang("new")]);
    let told = case.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("Normal Recovered") && told[0].ends_with("before"),
        "{told:?}"
    );
    assert!(told[1].starts_with("Warning StuckInspection new. "), "{told:?}");
    // One that came back meanwhile was never over.
    case.at(310, &[]);
    case.at(320, &[hang("new")]);
    assert_eq!(case.told(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_restart_tells_nothing_twice_and_forgets_nothing() {
    let mut case = Case::new();
    let (before, until) = (case.wall(), case.now() + Duration::from_mins(1));
    for name in ["still", "well"] {
        case.tracker.restore(pod(name), before, until);
    }
    assert_eq!((case.stuck(), case.told()), (vec![], vec![]));
    case.at(40, &[finding(STUCK, "still", "still", 9)]);
    assert_eq!(case.stuck().len(), 1);
    assert_eq!(case.told(), Vec::<String>::new());
    case.at(64, &[finding(STUCK, "still", "still", 33)]);
    assert_eq!(case.told(), Vec::<String>::new());
    case.at(65, &[finding(STUCK, "still", "still", 34)]);
    let told = case.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("Normal Recovered no longer stuck, after 1m5s"),
        "{told:?}"
    );
    case.at(80, &[]);
    assert!(case.told()[0].starts_with("Normal Recovered no longer stuck, after 1m20s: still"));
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded() {
    let mut case = Case::new();
    let many: Vec<Finding> = (0..5000).map(|n| finding(STUCK, &format!("pod-{n}"), "x", 9)).collect();
    case.at(0, &many);
    assert_eq!((case.stuck().len(), case.tracker.untracked()), (MOST, 5000 - MOST));
    assert_eq!(case.told().len(), MOST);
    case.tracker.restore(pod("another"), case.wall(), case.now());
    assert_eq!(case.tracker.episodes.len(), MOST);
    case.at(20, &[]);
    assert_eq!((case.told().len(), case.tracker.untracked()), (MOST, 0));
    assert!(case.tracker.episodes.is_empty());
}
