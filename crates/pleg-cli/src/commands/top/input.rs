//! What can happen to a [`State`](super::state::State): keys, news, and the passing of time.

use jiff::Timestamp;
use ratatui_crossterm::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::state::{Detail, Row};
use crate::wire::{Line, Report};

/// Maximum number of keys that wait to be read.
const KEYS: usize = 64;

/// Everything that changes a state.
#[derive(Debug)]
pub(super) enum Input {
    Key(Key),
    /// Text from the clipboard. It is no command, whatever it says.
    Paste(String),
    /// Columns and lines.
    Resize(u16, u16),
    Update(Update),
    Tick(Timestamp),
}

/// Keys that mean something somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Esc,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-L.
    Redraw,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-U.
    DeleteLine,
    /// Ctrl-W.
    DeleteWord,
}

/// What is new on the node.
#[derive(Debug)]
pub(super) enum Update {
    /// All pods.
    Pods(Vec<Row>),
    /// Some pods, and the UIDs of those that are gone.
    Changed {
        rows: Vec<Row>,
        gone: Vec<String>,
    },
    Events(Vec<Line>),
    Health(Box<Report>),
    Link(Link),
    Detail(Box<Detail>),
}

/// Whether news comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    Connected,
    /// The daemon is gone: since when, and why this is known.
    Lost {
        since: Timestamp,
        why: String,
    },
}

/// What the terminal sent, if it means something.
pub(super) fn read(event: Event) -> Option<Input> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => self::key(key).map(Input::Key),
        Event::Paste(text) => Some(Input::Paste(text)),
        Event::Resize(columns, lines) => Some(Input::Resize(columns, lines)),
        Event::Key(_) | Event::Mouse(_) | Event::FocusGained | Event::FocusLost => None,
    }
}

fn key(key: KeyEvent) -> Option<Key> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c' | 'd') => Some(Key::Interrupt),
            KeyCode::Char('l') => Some(Key::Redraw),
            KeyCode::Char('z') => Some(Key::Suspend),
            KeyCode::Char('u') => Some(Key::DeleteLine),
            KeyCode::Char('w') => Some(Key::DeleteWord),
            KeyCode::Char('n') => Some(Key::Down),
            KeyCode::Char('p') => Some(Key::Up),
            KeyCode::Char('f') => Some(Key::PageDown),
            KeyCode::Char('b') => Some(Key::PageUp),
            // What some terminals send for Backspace.
            KeyCode::Char('h') => Some(Key::Backspace),
            _ => None,
        };
    }
    if key.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    match key.code {
        KeyCode::Char(c) => Some(Key::Char(c)),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Esc),
        KeyCode::Backspace => Some(Key::Backspace),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::PageUp => Some(Key::PageUp),
        KeyCode::PageDown => Some(Key::PageDown),
        KeyCode::Home => Some(Key::Home),
        KeyCode::End => Some(Key::End),
        _ => None,
    }
}

/// Reads the terminal in a thread of its own, which ends with the process: a read cannot be given up. The channel closes once the terminal
/// is gone.
pub(super) fn listen() -> anyhow::Result<mpsc::Receiver<Input>> {
    let (send, keys) = mpsc::channel(KEYS);
    std::thread::Builder::new().name("terminal".to_owned()).spawn(move || {
        while let Ok(event) = ratatui_crossterm::crossterm::event::read() {
            if let Some(input) = read(event)
                && send.blocking_send(input).is_err()
            {
                return;
            }
        }
    })?;
    Ok(keys)
}
