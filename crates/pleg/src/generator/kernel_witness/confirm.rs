//! When to ask the runtime about what the kernel has announced.
//!
//! The kernel is ahead: the runtime reports an exit tens of milliseconds after it, and a start some time after the cgroup was made. So
//! the first answer is usually too early, and the question is repeated: in quick succession at first, then less often, until the runtime
//! agrees or it is left to the next full relist. Pure: the caller brings the time.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::Instant;

use crate::evented::Reached;
use crate::model::PodUid;

/// Most announcements that wait. Beyond that, in a storm, they are left to the next full relist.
const LIMIT: usize = 4096;
/// How many lags are remembered.
const LAGS: usize = 8;
/// The first question comes within these bounds, however short or long the usual lag is.
const FIRST: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];
/// The first question about an exit, as long as no lag is known.
const FIRST_UNKNOWN: Duration = Duration::from_millis(5);
/// How long the runtime's own events have to report a start before it is asked for: they come first by far, and a start takes time.
const EVENTS_FIRST: Duration = Duration::from_millis(250);
/// For each start that waits, the questions about all of them are this much further apart: while many containers start, what they
/// need most is a runtime that is not busy with questions.
const SHARE: Duration = Duration::from_millis(10);
/// Not further apart than this, on that account.
const MOST_SHARED: Duration = Duration::from_millis(250);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What is asked, and so how much a question costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// The status of a container that has exited.
    Exit,
    /// The status of a container that is about to start.
    Start,
    /// A list of its pod: no list has shown the object yet, or it is a sandbox.
    ListPod,
    /// The same, but its pod is not known: a list of everything.
    List,
}

impl Question {
    /// The pause before the next question, after so long; none: it is left to the next full relist.
    fn pause(self, waited: Duration) -> Option<Duration> {
        match self {
            Self::Exit if waited < ms(250) => Some(ms(10)),
            Self::Exit if waited < ms(1000) => Some(ms(50)),
            // After that it is a finding: the runtime has missed the exit.
            Self::Exit if waited < ms(2000) => Some(ms(250)),
            Self::Start if waited < ms(1000) => Some(ms(20)),
            Self::Start if waited < ms(5000) => Some(ms(100)),
            Self::Start if waited < ms(30_000) => Some(ms(1000)),
            // CRI-O makes the cgroup long before it lists the container: an overshoot of a quarter of that is not noticed.
            Self::ListPod if waited < ms(500) => Some(ms(20).max(waited / 4)),
            Self::ListPod | Self::List if waited < ms(30_000) => Some(waited.clamp(ms(20), ms(2000))),
            Self::Exit | Self::Start | Self::ListPod | Self::List => None,
        }
    }
}

/// After so long, what its pod's lists do not show is looked for everywhere: a full relist, so only once. CRI-O makes the cgroup of a
/// container long before it lists it, so earlier a full relist would find no more than the list of the pod.
const EVERYWHERE: std::ops::Range<Duration> = ms(1000)..ms(2000);

/// What the kernel announced of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announced {
    /// The object's id.
    pub(super) id: Arc<str>,
    /// Its pod, where that is known.
    pub(super) pod: Option<PodUid>,
    pub(super) reached: Reached,
    pub(super) since: Instant,
}

impl Announced {
    /// It should be found somewhere by now, if not in its pod. The pauses between lists let one of them fall into this time.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        EVERYWHERE.contains(&now.saturating_duration_since(self.since))
    }
}

/// Announcements that the runtime has not confirmed yet.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    due: BTreeSet<(Instant, Arc<str>)>,
    open: HashMap<Arc<str>, (Instant, Announced)>,
    exits: UsualLag,
    starts: UsualLag,
}

impl Confirmations {
    /// Notes what was announced. A state that is further replaces what waits; otherwise that goes on as planned. `by_events`: the
    /// runtime's events report it too, and are trusted.
    pub(super) fn announced(&mut self, announced: Announced, by_events: bool) {
        let first = match announced.reached {
            Reached::Ended => self.exits.first_question().unwrap_or(FIRST_UNKNOWN),
            Reached::Running if by_events => EVENTS_FIRST,
            Reached::Running => self.starts.first_question().unwrap_or_default(),
            Reached::Gone => Duration::ZERO,
        };
        if let Some((_, waiting)) = self.open.get(&announced.id)
            && waiting.reached >= announced.reached
        {
            return;
        }
        self.forget(&announced.id);
        if self.open.len() < LIMIT {
            let at = announced.since + first;
            self.put(at, announced);
        }
    }

    fn put(&mut self, at: Instant, announced: Announced) {
        self.due.insert((at, Arc::clone(&announced.id)));
        self.open.insert(Arc::clone(&announced.id), (at, announced));
    }

    /// The runtime agrees, or it does not matter any more. Returns what was waiting.
    pub(super) fn forget(&mut self, id: &str) -> Option<Announced> {
        let (at, announced) = self.open.remove(id)?;
        self.due.remove(&(at, Arc::clone(&announced.id)));
        if self.open.is_empty() {
            // Give the room of a storm back.
            self.open = HashMap::new();
        }
        Some(announced)
    }

    /// The runtime has confirmed an exit.
    pub(super) fn exit_confirmed(&mut self, id: &str, now: Instant) {
        if let Some(announced) = self.forget(id).filter(|announced| announced.reached == Reached::Ended) {
            self.exits.confirmed(now.saturating_duration_since(announced.since));
        }
    }

    /// The runtime has confirmed a start.
    pub(super) fn start_confirmed(&mut self, id: &str, now: Instant) {
        if let Some(announced) = self
            .forget(id)
            .filter(|announced| announced.reached == Reached::Running)
        {
            self.starts.confirmed(now.saturating_duration_since(announced.since));
        }
    }

    /// When the next question is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes what is due. `question` says what there is to ask; none if the runtime agrees by now.
    pub(super) fn due(
        &mut self,
        now: Instant,
        question: impl Fn(&Announced) -> Option<Question>,
    ) -> Vec<(Announced, Question)> {
        let mut questions = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            let Some((_, id)) = self.due.pop_first() else { break };
            let Some((_, announced)) = self.open.remove(&id) else {
                continue;
            };
            let Some(question) = question(&announced) else {
                continue;
            };
            let waited = now.saturating_duration_since(announced.since);
            if let Some(pause) = question.pause(waited) {
                // Itself included.
                let waiting = u32::try_from(self.open.len() + 1).unwrap_or(u32::MAX);
                let shared = match question {
                    Question::Exit => Duration::ZERO,
                    Question::Start | Question::ListPod | Question::List => {
                        SHARE.saturating_mul(waiting).min(MOST_SHARED)
                    }
                };
                self.put(now + pause.max(shared), announced.clone());
            }
            questions.push((announced, question));
        }
        questions
    }

    /// The longest of the lags that were seen lately.
    pub(super) fn longest_lag(&self) -> Duration {
        self.exits.recent.iter().copied().max().unwrap_or_default()
    }
}

/// How long after the kernel this runtime reports exits, or starts.
#[derive(Debug, Default)]
struct UsualLag {
    recent: VecDeque<Duration>,
}

impl UsualLag {
    fn confirmed(&mut self, lag: Duration) {
        self.recent.truncate(LAGS - 1);
        self.recent.push_front(lag);
    }

    /// At half of the shortest lag: earlier questions would be in vain, and the next one may be reported sooner. None while no lag is
    /// known.
    fn first_question(&self) -> Option<Duration> {
        let shortest = self.recent.iter().min()?;
        Some((*shortest / 2).clamp(FIRST[0], FIRST[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(id: &str, reached: Reached, since: Instant) -> Announced {
        Announced {
            id: id.into(),
            pod: None,
            reached,
            since,
        }
    }

    /// When the runtime is asked, in milliseconds, if it agrees after so long.
    fn questions(confirmations: &mut Confirmations, what: Question, start: Instant, agrees: u64) -> Vec<u64> {
        let mut asked = Vec::new();
        while let Some(at) = confirmations.next() {
            let elapsed = u64::try_from((at - start).as_millis()).unwrap();
            if elapsed >= agrees && what == Question::Exit {
                confirmations.exit_confirmed("a", at);
                asked.push(elapsed);
                break;
            }
            let due = confirmations.due(at, |_| (elapsed < agrees).then_some(what));
            asked.extend(due.iter().map(|_| elapsed));
        }
        asked
    }

    #[test]
    fn an_exit_is_asked_for_in_quick_succession_and_not_without_end() {
        let start = Instant::now();
        let mut confirmations = Confirmations::default();
        confirmations.announced(announced("a", Reached::Ended, start), false);
        let asked = questions(&mut confirmations, Question::Exit, start, 60);
        assert_eq!(asked, [5, 15, 25, 35, 45, 55, 65]);

        // Now it is known how long the runtime takes.
        confirmations.announced(announced("a", Reached::Ended, start), false);
        assert_eq!(
            questions(&mut confirmations, Question::Exit, start, 60),
            [32, 42, 52, 62]
        );

        confirmations.announced(announced("a", Reached::Ended, start), false);
        let asked = questions(&mut confirmations, Question::Exit, start, u64::MAX);
        assert!(asked.len() < 50 && asked.last().is_some_and(|last| (2000..2300).contains(last)));
        assert!(confirmations.open.is_empty() && confirmations.due.is_empty());
    }

    #[test]
    fn a_start_is_asked_for_until_it_runs_and_lists_less_and_less_often() {
        let start = Instant::now();
        for (question, agrees, expected) in [
            (Question::Start, 70, &[0, 20, 40, 60][..]),
            (Question::List, 500, &[0, 20, 40, 80, 160, 320]),
            (
                Question::ListPod,
                500,
                &[0, 20, 40, 60, 80, 100, 125, 156, 195, 244, 305, 381, 476],
            ),
        ] {
            let mut confirmations = Confirmations::default();
            confirmations.announced(announced("a", Reached::Running, start), false);
            assert_eq!(questions(&mut confirmations, question, start, agrees), expected);
            assert!(confirmations.open.is_empty() && confirmations.due.is_empty());
            confirmations.announced(announced("a", Reached::Running, start), false);
            let asked = questions(&mut confirmations, question, start, u64::MAX);
            assert!(asked.len() < 130 && asked.last().is_some_and(|last| *last >= 30_000));
        }
    }

    #[test]
    fn doubled_announcements_are_one_and_an_end_replaces_a_start() {
        let start = Instant::now();
        let mut confirmations = Confirmations::default();
        confirmations.announced(announced("a", Reached::Running, start), false);
        confirmations.announced(announced("a", Reached::Running, start + ms(1)), false);
        confirmations.announced(announced("a", Reached::Ended, start + ms(2)), false);
        confirmations.announced(announced("a", Reached::Running, start + ms(3)), false);
        assert_eq!(confirmations.next(), Some(start + ms(2) + FIRST_UNKNOWN));
        let due = confirmations.due(start + ms(100), |_| Some(Question::Exit));
        assert_eq!(due, [(announced("a", Reached::Ended, start + ms(2)), Question::Exit)]);
    }

    #[test]
    fn a_storm_leaves_no_more_than_fits() {
        let now = Instant::now();
        let mut confirmations = Confirmations::default();
        for n in 0..3 * LIMIT {
            confirmations.announced(announced(&n.to_string(), Reached::Ended, now), false);
        }
        assert_eq!((confirmations.open.len(), confirmations.due.len()), (LIMIT, LIMIT));
        confirmations.due(now + ms(5), |_| None);
        assert!(confirmations.open.is_empty() && confirmations.due.is_empty());
    }

    #[test]
    fn the_first_question_follows_the_shortest_of_the_last_lags() {
        let mut lag = UsualLag::default();
        assert_eq!(lag.first_question(), None);
        for (seen, expected) in [(80, 40), (40, 20), (400, 20), (1, 2)] {
            lag.confirmed(ms(seen));
            assert_eq!(lag.first_question(), Some(ms(expected)), "{seen}");
        }
        (0..LAGS).for_each(|_| lag.confirmed(ms(1000)));
        assert_eq!((lag.first_question(), lag.recent.len()), (Some(FIRST[1]), LAGS));
    }

    #[test]
    fn a_start_that_events_report_is_left_to_them_first() {
        let start = Instant::now();
        let mut confirmations = Confirmations::default();
        confirmations.announced(announced("a", Reached::Running, start), true);
        assert_eq!(confirmations.next(), Some(start + EVENTS_FIRST));
        // An exit is not: that the runtime has missed it must be found out.
        confirmations.announced(announced("b", Reached::Ended, start), true);
        assert_eq!(confirmations.next(), Some(start + FIRST_UNKNOWN));
    }

    #[test]
    fn a_start_is_first_asked_for_at_half_of_what_starts_take() {
        let start = Instant::now();
        let mut confirmations = Confirmations::default();
        confirmations.announced(announced("a", Reached::Running, start), false);
        assert_eq!(confirmations.next(), Some(start));
        confirmations.start_confirmed("a", start + ms(120));
        confirmations.announced(announced("b", Reached::Running, start), false);
        assert_eq!(confirmations.next(), Some(start + ms(60)));
    }

    #[test]
    fn many_starts_share_the_questions() {
        let start = Instant::now();
        let asked = |count: u32| {
            let mut confirmations = Confirmations::default();
            for n in 0..count {
                confirmations.announced(announced(&n.to_string(), Reached::Running, start), false);
            }
            let mut asked = 0;
            while let Some(at) = confirmations.next().filter(|at| *at < start + ms(1000)) {
                asked += confirmations.due(at, |_| Some(Question::Start)).len();
            }
            asked
        };
        assert_eq!(asked(1), 50);
        // 100 a second, not 50 for each.
        assert!((95..=110).contains(&asked(10)), "{}", asked(10));
    }
}
