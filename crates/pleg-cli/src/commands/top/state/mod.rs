//! The state of `pleg top`: an input in, the next state out. No clock, no terminal and no I/O.
//!
//! After each input the state is *settled*: rows are sorted, the selection is a row that is shown, and windows are inside of what they
//! show. The view only reads it.

mod events;
mod pod_page;
mod pods;
#[cfg(test)]
mod properties;
mod row;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pleg::PodRef;

pub(super) use events::EventLog;
pub(super) use pod_page::{Detail, POD_EVENTS, PodPage};
pub(super) use pods::PodTable;
pub(super) use row::{Column, Filter, Row, Sort};

use super::input::{Input, Key, Link, Update};
use super::layout::Layout;
use super::view::Theme;
use crate::wire::{Line, Report};

/// What fills the screen.
#[derive(Debug)]
pub(super) enum Page {
    /// Troubles, pods, events.
    Node,
    Pod(Box<PodPage>),
    /// Everything about the troubles; from this line on.
    Troubles(usize),
    Events,
}

/// What is to be done outside of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Quit,
    /// Draw everything, as if nothing were on the screen.
    Redraw,
    Suspend,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) pods: PodTable,
    pub(super) events: EventLog,
    pub(super) report: Option<Box<Report>>,
    pub(super) link: Link,
    pub(super) page: Page,
    /// The filter is being typed; what it was before.
    pub(super) typing: Option<Filter>,
    pub(super) help: bool,
    /// Pods were listed at least once.
    pub(super) listed: bool,
    /// Who is asked.
    pub(super) asked: String,
    pub(super) now: Timestamp,
    /// The zone in which times are shown, and the local one.
    pub(super) zones: [TimeZone; 2],
    /// Columns and lines.
    pub(super) size: (u16, u16),
    pub(super) theme: Theme,
}

impl State {
    pub(super) fn new(asked: String, pods: PodTable, size: (u16, u16), now: Timestamp) -> Self {
        Self {
            pods,
            events: EventLog::default(),
            report: None,
            link: Link::Connected,
            page: Page::Node,
            typing: None,
            help: false,
            listed: false,
            asked,
            now,
            zones: [TimeZone::UTC, TimeZone::UTC],
            size,
            theme: Theme {
                colour: true,
                unicode: true,
            },
        }
    }

    /// The next state.
    pub(super) fn apply(&mut self, input: Input) -> Effect {
        let effect = match input {
            Input::Key(key) => self.key(key),
            Input::Paste(text) => {
                if self.typing.is_some() {
                    let text = format!("{}{text}", self.pods.filter().text());
                    self.pods.filter_by(Filter::new(&text));
                }
                Effect::None
            }
            Input::Resize(columns, lines) => {
                self.size = (columns, lines);
                Effect::None
            }
            Input::Update(update) => {
                self.update(update);
                Effect::None
            }
            Input::Tick(now) => {
                self.now = now;
                Effect::None
            }
        };
        self.settle();
        effect
    }

    /// The pod whose page is open.
    pub(super) fn opened(&self) -> Option<&PodRef> {
        match &self.page {
            Page::Pod(page) => Some(&page.named),
            _ => None,
        }
    }

    fn update(&mut self, update: Update) {
        match update {
            Update::Pods(rows) => {
                self.listed = true;
                self.pods.replace(rows);
            }
            Update::Changed { rows, gone } => {
                self.pods.update(rows);
                for uid in gone {
                    self.pods.remove(&uid);
                }
            }
            Update::Events(lines) => {
                for line in lines {
                    if let (Line::Event(event), Page::Pod(page)) = (&line, &mut self.page) {
                        page.event(event);
                    }
                    self.events.push(line, self.pods.filter());
                }
            }
            Update::Health(report) => self.report = Some(report),
            Update::Link(link) => self.link = link,
            Update::Detail(detail) => {
                if let Page::Pod(page) = &mut self.page {
                    page.learn(*detail);
                }
            }
        }
    }

    fn key(&mut self, key: Key) -> Effect {
        match key {
            Key::Interrupt => return Effect::Quit,
            Key::Redraw => return Effect::Redraw,
            Key::Suspend => return Effect::Suspend,
            _ => {}
        }
        if self.help {
            self.help = false;
            return Effect::None;
        }
        if self.typing.is_some() {
            self.typed(key);
            return Effect::None;
        }
        match key {
            Key::Char('q') if matches!(self.page, Page::Node) => return Effect::Quit,
            Key::Char('q') | Key::Esc | Key::Backspace => self.back(),
            Key::Char('?' | 'h') => self.help = true,
            Key::Char('/') => {
                if !matches!(self.page, Page::Events) {
                    self.page = Page::Node;
                }
                self.typing = Some(self.pods.filter().clone());
            }
            Key::Char('t') => self.page = Page::Troubles(0),
            Key::Char('e') => self.page = Page::Events,
            Key::Enter => self.open(),
            Key::Up | Key::Char('k') => self.go(-1),
            Key::Down | Key::Char('j') => self.go(1),
            Key::PageUp => self.go(-self.page_rows()),
            Key::PageDown | Key::Char(' ') => self.go(self.page_rows()),
            Key::Home | Key::Char('g') => self.go_to_end(false),
            Key::End | Key::Char('G') => self.go_to_end(true),
            Key::Char(c) => self.command(c),
            Key::Interrupt | Key::Redraw | Key::Suspend | Key::DeleteLine | Key::DeleteWord => {}
        }
        Effect::None
    }

    /// Keys of one page only.
    fn command(&mut self, c: char) {
        match (&mut self.page, c) {
            (Page::Node, 'n') => self.pods.sort_by(Column::Name),
            (Page::Node, 'y') => self.pods.sort_by(Column::Ready),
            (Page::Node, 's') => self.pods.sort_by(Column::State),
            (Page::Node, 'r') => self.pods.sort_by(Column::Restarts),
            (Page::Node, 'a') => self.pods.sort_by(Column::Age),
            (Page::Pod(page), '+' | '=') => page.zoom(false),
            (Page::Pod(page), '-') => page.zoom(true),
            _ => {}
        }
    }

    /// The previous page; from the first one, a filter is taken off.
    fn back(&mut self) {
        match self.page {
            Page::Node => self.pods.filter_by(Filter::default()),
            Page::Pod(_) | Page::Troubles(_) | Page::Events => self.page = Page::Node,
        }
    }

    fn open(&mut self) {
        if let (Page::Node, Some(row)) = (&self.page, self.pods.selected()) {
            self.page = Page::Pod(Box::new(PodPage::open(PodRef {
                uid: (&*row.uid).into(),
                namespace: (&*row.namespace).into(),
                name: (&*row.name).into(),
            })));
        }
    }

    /// A key while the filter is typed, which applies to what is shown at once.
    fn typed(&mut self, key: Key) {
        let mut text = self.pods.filter().text().to_owned();
        match key {
            Key::Enter => self.typing = None,
            Key::Esc => self.typing.take().unwrap_or_default().text().clone_into(&mut text),
            // As in other programs, there is nothing left to type then.
            Key::Backspace if text.is_empty() => self.typing = None,
            Key::Backspace => drop(text.pop()),
            Key::DeleteLine => text.clear(),
            Key::DeleteWord => {
                let rest = text.trim_end();
                let end = rest.rfind(char::is_whitespace).map_or(0, |space| space + 1);
                text.truncate(end);
            }
            Key::Char(c) => text.push(c),
            Key::Up => self.go(-1),
            Key::Down => self.go(1),
            Key::PageUp => self.go(-self.page_rows()),
            Key::PageDown => self.go(self.page_rows()),
            Key::Home | Key::End | Key::Interrupt | Key::Redraw | Key::Suspend => {}
        }
        self.pods.filter_by(Filter::new(&text));
    }

    /// Moves the selection or the window.
    fn go(&mut self, by: isize) {
        match &mut self.page {
            Page::Node => self.pods.go(by),
            Page::Pod(page) => page.scroll = page.scroll.saturating_add_signed(by),
            Page::Troubles(scroll) => *scroll = scroll.saturating_add_signed(by),
            Page::Events => self.events.go(by),
        }
    }

    fn go_to_end(&mut self, end: bool) {
        let place = if end { usize::MAX } else { 0 };
        match &mut self.page {
            Page::Node => self.pods.go_to(place),
            Page::Pod(page) => page.scroll = place,
            Page::Troubles(scroll) => *scroll = place,
            Page::Events => self.events.go_to(!end),
        }
    }

    /// The rows of a page, as a step.
    fn page_rows(&self) -> isize {
        let layout = Layout::of(self);
        let rows = match self.page {
            Page::Node => layout.pod_rows,
            Page::Pod(_) | Page::Troubles(_) | Page::Events => layout.page,
        };
        isize::from(i16::try_from(rows).unwrap_or(i16::MAX)).max(1)
    }

    fn settle(&mut self) {
        let layout = Layout::of(self);
        self.pods.settle(usize::from(layout.pod_rows));
        let filter = self.pods.filter().clone();
        self.events.settle(&filter, usize::from(layout.page));
        let lines = match &self.page {
            Page::Pod(_) | Page::Troubles(_) => super::view::document(self).len(),
            Page::Node | Page::Events => return,
        };
        let last = lines.saturating_sub(usize::from(layout.page));
        match &mut self.page {
            Page::Pod(page) => page.scroll = page.scroll.min(last),
            Page::Troubles(scroll) => *scroll = (*scroll).min(last),
            Page::Node | Page::Events => {}
        }
    }
}
