//! Which lines of the screen belong to what.

use super::state::{Page, State};
use super::view::trouble_lines;

/// Below this, nothing but the size is shown.
pub(super) const SMALLEST: (u16, u16) = (40, 8);

/// Lines of the screen, from top to bottom: header, troubles, pods, events, footer. Other pages fill what is between header and footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Lines with troubles.
    pub(super) troubles: u16,
    /// Rows of pods, below a rule and a head.
    pub(super) pod_rows: u16,
    /// Lines with events, below a rule; none if there is no room for a few.
    pub(super) events: u16,
    /// Lines of the other pages, below a rule.
    pub(super) page: u16,
}

/// Header and footer.
const FRAME: u16 = 2;
/// The rule and the head of the table of pods.
const POD_HEAD: u16 = 2;
/// Events are shown in as many lines at least, or not at all.
const FEWEST_EVENTS: u16 = 3;

impl Layout {
    pub(super) fn of(state: &State) -> Self {
        let (_, lines) = state.size;
        let troubles = match state.page {
            // Counting is cheaper than drawing, but not free.
            Page::Node => u16::try_from(trouble_lines(state).len()).unwrap_or(u16::MAX),
            Page::Pod(_) | Page::Troubles(_) | Page::Events => 0,
        };
        Self::new(lines, troubles)
    }

    fn new(lines: u16, troubles: u16) -> Self {
        let body = lines.saturating_sub(FRAME);
        // A third for the troubles, and of the rest a third for events.
        let troubles = troubles.min(body / 3);
        let rest = body - troubles;
        let events = (rest / 3).saturating_sub(1);
        let events = if events < FEWEST_EVENTS { 0 } else { events };
        let event_rule = u16::from(events > 0);
        Self {
            troubles,
            pod_rows: rest.saturating_sub(POD_HEAD + events + event_rule),
            events,
            page: body.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_belongs_to_something() {
        for lines in SMALLEST.1..200 {
            for troubles in [0, 1, 2, 5, 40, u16::MAX] {
                let layout = Layout::new(lines, troubles);
                let event_rule = u16::from(layout.events > 0);
                let used = FRAME + layout.troubles + POD_HEAD + layout.pod_rows + event_rule + layout.events;
                assert_eq!(used, lines, "{layout:?}");
                assert!(layout.pod_rows >= 2, "{lines} lines: {layout:?}");
            }
        }
    }

    #[test]
    fn a_usual_terminal_shows_all_three() {
        let layout = Layout::new(24, 3);
        assert_eq!((layout.troubles, layout.pod_rows, layout.events), (3, 11, 5));
        assert_eq!(Layout::new(10, 1).events, 0, "no room");
    }
}
