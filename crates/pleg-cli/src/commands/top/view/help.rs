//! The keys.

use super::canvas::Piece;
use crate::commands::top::tone::Tone;

/// Keys and what they do. An empty key continues the line above.
pub(crate) const KEYS: [(&str, &str); 18] = [
    ("Up Down j k", "select a pod, or scroll"),
    ("PgUp PgDn Space", "a page up or down"),
    ("Home End g G", "the first, the last"),
    ("Enter", "the selected pod: its containers' lives and its events"),
    ("+ -", "on a pod's page: show less or more of the past"),
    ("/", "filter pods and events: words that all have to occur in"),
    ("", "the name, state or IP; !word must not occur"),
    ("n", "sort by namespace and name"),
    ("y", "sort by ready: those that are not come first"),
    ("s", "sort by state: the worst come first"),
    ("r", "sort by restarts: the most come first"),
    ("a", "sort by age: the youngest come first"),
    ("", "the same key again reverses the order"),
    ("t", "troubles in full: what is seen, what it means, what to type"),
    ("e", "all events that are kept"),
    ("Esc q", "back; Esc also takes the filter off"),
    ("q Ctrl-C", "quit"),
    ("Ctrl-L Ctrl-Z", "draw the screen again; suspend"),
];

pub(super) fn page() -> Vec<Vec<Piece>> {
    let head = vec![
        Piece::bold("pleg top", Tone::Plain),
        Piece::plain(": any key closes this help"),
    ];
    let keys = KEYS
        .iter()
        .map(|(key, what)| vec![Piece::bold(format!("  {key:<16}"), Tone::Note), Piece::plain(*what)]);
    std::iter::once(head).chain(keys).collect()
}
