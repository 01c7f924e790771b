//! The page of one pod.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use pleg::PodRef;

use crate::commands::top::lives::{Life, Window, lives};
use crate::wire::{Event, Pod};

/// Maximum number of events of the pod that are kept.
pub(crate) const POD_EVENTS: usize = 500;

/// What is asked for when a page opens, and again when its pod changes.
#[derive(Debug)]
pub(crate) struct Detail {
    pub(crate) uid: String,
    /// None once the runtime no longer has it.
    pub(crate) pod: Option<Pod>,
    /// The held events of the pod, the oldest first; only the first time.
    pub(crate) events: Option<Vec<Event>>,
}

/// How much of the past a timeline shows.
const SPANS: [Option<Duration>; 7] = [
    Some(Duration::from_mins(1)),
    Some(Duration::from_mins(5)),
    Some(Duration::from_mins(15)),
    Some(Duration::from_hours(1)),
    Some(Duration::from_hours(6)),
    Some(Duration::from_hours(24)),
    // Everything that is known.
    None,
];

#[derive(Debug)]
pub(crate) struct PodPage {
    pub(crate) named: PodRef,
    pub(crate) pod: Option<Pod>,
    /// An answer has come.
    pub(crate) answered: bool,
    events: VecDeque<Event>,
    lives: Vec<Life>,
    span: usize,
    /// The first line that is shown.
    pub(crate) scroll: usize,
}

impl PodPage {
    pub(super) fn open(named: PodRef) -> Self {
        Self {
            named,
            pod: None,
            answered: false,
            events: VecDeque::new(),
            lives: Vec::new(),
            span: SPANS.len() - 1,
            scroll: 0,
        }
    }

    pub(super) fn learn(&mut self, detail: Detail) {
        if detail.uid != self.named.uid.as_str() {
            return;
        }
        self.answered = true;
        // What was known of a removed pod is shown on.
        if detail.pod.is_some() {
            self.pod = detail.pod;
        }
        if let Some(held) = detail.events {
            let newest = held.last().map(|event| (event.instance, event.seq));
            let news = std::mem::take(&mut self.events);
            self.events.extend(held);
            let is_news = |event: &Event| newest.is_none_or(|(of, seq)| event.instance != of || event.seq > seq);
            self.events.extend(news.into_iter().filter(is_news));
        }
        self.settle();
    }

    /// Takes in an event if it is one of this pod.
    pub(super) fn event(&mut self, event: &Event) {
        if event.pod.as_ref().is_some_and(|pod| pod.uid == self.named.uid) {
            self.events.push_back(event.clone());
            self.settle();
        }
    }

    fn settle(&mut self) {
        let over = self.events.len().saturating_sub(POD_EVENTS);
        self.events.drain(..over);
        self.lives = lives(self.pod.as_ref(), &self.events);
    }

    /// Shows more of the past, or less.
    pub(super) fn zoom(&mut self, out: bool) {
        self.span = if out {
            (self.span + 1).min(SPANS.len() - 1)
        } else {
            self.span.saturating_sub(1)
        };
    }

    /// The part of time that the timeline shows.
    pub(crate) fn window(&self, now: Timestamp) -> Window {
        let all = || self.lives.iter().filter_map(Life::began).min();
        let from = match SPANS.get(self.span).copied().flatten() {
            Some(span) => now.checked_sub(span).ok(),
            None => all(),
        };
        Window {
            from: from.unwrap_or(now).min(now),
            to: now,
        }
    }

    pub(crate) fn shows_all(&self) -> bool {
        SPANS.get(self.span).copied().flatten().is_none()
    }

    pub(crate) fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// The oldest first.
    pub(crate) fn events(&self) -> impl DoubleEndedIterator<Item = &Event> + ExactSizeIterator {
        self.events.iter()
    }
}
