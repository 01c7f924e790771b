//! The newest events, in a buffer of fixed size.

use std::collections::VecDeque;

use super::row::Filter;
use crate::output::event::Words;
use crate::wire::Line;

/// Maximum number of events that are kept.
pub(crate) const EVENTS: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// The oldest first; events and gaps.
    lines: VecDeque<Line>,
    /// How many of those that are shown are newer than the last one of the window. Zero follows the newest.
    back: usize,
}

impl EventLog {
    /// Appends what is news. What was there before the first relist is in the table of pods.
    pub(super) fn push(&mut self, line: Line, filter: &Filter) {
        match &line {
            Line::Event(event) if event.initial => return,
            Line::Heartbeat(_) => return,
            Line::Event(_) | Line::Gap(_) => {}
        }
        // A window that was moved back stays where it is.
        if self.back > 0 && admits(filter, &line) {
            self.back += 1;
        }
        if self.lines.len() == EVENTS {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Moves the window by so many events, towards older ones if negative.
    pub(super) fn go(&mut self, events: isize) {
        self.back = self.back.saturating_add_signed(events.saturating_neg());
    }

    /// Moves the window to the oldest or the newest.
    pub(super) fn go_to(&mut self, oldest: bool) {
        self.back = if oldest { usize::MAX } else { 0 };
    }

    /// Keeps a window of `height` inside of what is shown.
    pub(super) fn settle(&mut self, filter: &Filter, height: usize) {
        if self.back > 0 {
            self.back = self.back.min(self.shown(filter).saturating_sub(height));
        }
    }

    fn shown(&self, filter: &Filter) -> usize {
        if filter.is_empty() {
            return self.lines.len();
        }
        self.lines.iter().filter(|line| admits(filter, line)).count()
    }

    /// The last events that the filter admits, the oldest first: those of the window, or the newest.
    pub(crate) fn window(&self, filter: &Filter, height: usize, follow: bool) -> Vec<&Line> {
        let back = if follow { 0 } else { self.back };
        let newest = self.lines.iter().rev().filter(|line| admits(filter, line));
        let mut lines: Vec<&Line> = newest.skip(back).take(height).collect();
        lines.reverse();
        lines
    }

    /// How far the window is moved back.
    pub(crate) fn back(&self) -> usize {
        self.back
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }
}

/// The filter of the pods is also that of their events. A gap concerns all of them.
fn admits(filter: &Filter, line: &Line) -> bool {
    let Line::Event(event) = line else {
        return true;
    };
    if filter.is_empty() {
        return true;
    }
    let words = Words::of(event, true);
    let text = [
        &event.kind,
        &words.pod,
        &words.container,
        &words.reason,
        &words.sentence,
    ];
    let text: Vec<&str> = text.iter().map(|word| word.as_str()).collect();
    filter.admits(&text.join(" ").to_lowercase())
}
