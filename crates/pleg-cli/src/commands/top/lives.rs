//! The lives of a pod's containers: what the runtime still knows of them, and what events said of those that it has forgotten.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerState, ContainerStatus};

use crate::wire::{self, Event};

/// Maximum number of lives; the oldest are left out.
pub(super) const LIVES: usize = 256;

/// One container, from its creation to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) attempt: u32,
    pub(super) created: Option<Timestamp>,
    pub(super) started: Option<Timestamp>,
    pub(super) ended: Option<Timestamp>,
    pub(super) exit_code: Option<i32>,
    pub(super) reason: String,
    pub(super) state: ContainerState,
    /// The runtime no longer has it.
    pub(super) removed: bool,
}

impl Life {
    fn of(status: &ContainerStatus) -> Self {
        Self {
            id: status.id.to_string(),
            name: status.name.to_string(),
            attempt: status.attempt,
            created: status.created_at,
            started: status.started_at,
            ended: status.finished_at.filter(|_| status.state == ContainerState::Exited),
            exit_code: status.exit_code,
            reason: status.reason.to_string(),
            state: status.state,
            removed: false,
        }
    }

    /// When it began, as far as is known.
    pub(super) fn began(&self) -> Option<Timestamp> {
        self.created.or(self.started).or(self.ended)
    }

    /// It ended badly.
    pub(super) fn failed(&self) -> bool {
        self.state == ContainerState::Exited && self.exit_code != Some(0)
    }

    /// Takes in an event. What the runtime itself says of a container counts before it.
    fn learn(&mut self, event: &Event) {
        let at = happened(event);
        match event.kind.as_str() {
            "ContainerCreated" => self.created = self.created.or(at),
            "ContainerStarted" => {
                self.started = self.started.or(at);
                if self.state == ContainerState::Created && self.removed {
                    self.state = ContainerState::Running;
                }
            }
            "ContainerDied" => {
                self.ended = self.ended.or(at);
                self.exit_code = self.exit_code.or(event.exit_code);
                if self.reason.is_empty() {
                    self.reason = event.reason.clone().unwrap_or_default();
                }
                if self.removed {
                    self.state = ContainerState::Exited;
                }
            }
            // It ended no later than this.
            "ContainerRemoved" if self.state == ContainerState::Running => {
                (self.state, self.ended) = (ContainerState::Exited, self.ended.or(at));
            }
            _ => {}
        }
    }
}

/// When it happened: the runtime's own time where it is known. Of what was found at the start, only that it was before.
fn happened(event: &Event) -> Option<Timestamp> {
    let lag = event.lag.and_then(|lag| Duration::try_from_secs_f64(lag).ok());
    match lag {
        Some(lag) => event.time.checked_sub(lag).ok().or(Some(event.time)),
        None => Some(event.time).filter(|_| !event.initial),
    }
}

/// The lives of the containers of a pod, the oldest first.
pub(super) fn lives<'a>(pod: Option<&wire::Pod>, events: impl IntoIterator<Item = &'a Event>) -> Vec<Life> {
    let containers = pod.map(|pod| pod.containers.as_slice()).unwrap_or_default();
    let mut lives: Vec<Life> = containers.iter().map(Life::of).collect();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, life) in lives.iter().enumerate() {
        places.insert(life.id.clone(), place);
    }
    for event in events {
        let Some(Subject::Container(container)) = &event.subject else {
            continue;
        };
        let place = *places.entry(container.id.to_string()).or_insert_with(|| {
            lives.push(Life {
                id: container.id.to_string(),
                name: container.name.to_string(),
                attempt: container.attempt,
                created: None,
                started: None,
                ended: None,
                exit_code: None,
                reason: String::new(),
                state: ContainerState::Created,
                removed: true,
            });
            lives.len() - 1
        });
        if let Some(life) = lives.get_mut(place) {
            life.learn(event);
        }
    }
    lives.sort_by(|a, b| {
        let key = |life: &Life| (life.began(), life.attempt);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    lives.drain(..lives.len().saturating_sub(LIVES));
    lives
}

/// What a column of the timeline shows of a container; the more important one wins where several fall into one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    Nothing,
    /// Created, not running.
    Created,
    Running,
    Ended,
    Failed,
}

/// The part of time that a timeline shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

impl Window {
    /// The column of a time; none if it is outside.
    fn column(self, at: Timestamp, width: usize) -> Option<usize> {
        if at < self.from || at > self.to || width == 0 {
            return None;
        }
        let whole = self.to.duration_since(self.from).as_secs_f64();
        let part = at.duration_since(self.from).as_secs_f64();
        let share = if whole > 0.0 { part / whole } else { 1.0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of the width"
        )]
        let column = (share * width as f64) as usize;
        Some(column.min(width - 1))
    }

    /// The column of a time, or the edge next to it.
    fn nearest(self, at: Timestamp, width: usize) -> usize {
        let inside = at.clamp(self.from, self.to);
        self.column(inside, width).unwrap_or_default()
    }
}

/// One line of the timeline: the lives of all containers of one name.
pub(super) fn lane<'a>(lives: impl IntoIterator<Item = &'a Life>, window: Window, width: usize) -> Vec<Mark> {
    let mut marks = vec![Mark::Nothing; width];
    let mut mark = |columns: std::ops::RangeInclusive<usize>, with: Mark| {
        for place in marks.get_mut(columns).into_iter().flatten() {
            *place = with.max(*place);
        }
    };
    for life in lives {
        let end = match life.state {
            ContainerState::Exited => life.ended,
            ContainerState::Created | ContainerState::Running | ContainerState::Unknown => Some(window.to),
        };
        let Some((began, end)) = life.began().zip(end) else {
            continue;
        };
        if end < window.from || began > window.to {
            continue;
        }
        mark(window.nearest(began, width)..=window.nearest(end, width), Mark::Created);
        if let Some(started) = life.started.filter(|started| *started <= window.to) {
            mark(
                window.nearest(started, width)..=window.nearest(end, width),
                Mark::Running,
            );
        }
        if life.state == ContainerState::Exited
            && let Some(column) = window.column(end, width)
        {
            mark(column..=column, if life.failed() { Mark::Failed } else { Mark::Ended });
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::super::testing::{event, second, wire_pod};
    use super::*;

    fn container(id: &str, state: &str, [created, started, finished]: [Option<i64>; 3]) -> ContainerStatus {
        let [created, started, finished] = [created, started, finished].map(|at| at.map(second));
        serde_json::from_value(serde_json::json!({
            "id": id, "name": "app", "attempt": 0, "state": state, "image": "",
            "created_at": created, "started_at": started, "finished_at": finished,
            "exit_code": (state == "Exited").then_some(0),
        }))
        .unwrap()
    }

    fn pod(containers: Vec<ContainerStatus>) -> wire::Pod {
        wire::Pod {
            containers,
            ..wire_pod("default", "web", "Running", 0, 9)
        }
    }

    #[test]
    fn a_life_that_the_runtime_forgot_is_known_by_its_events() {
        let events = [
            event("ContainerCreated", "web", 1, 4, second(1)),
            event("ContainerStarted", "web", 2, 4, second(2)),
            event("ContainerDied", "web", 3, 4, second(9)),
            event("ContainerRemoved", "web", 4, 4, second(10)),
        ];
        let all = lives(None, &events);
        let [life] = &*all else { panic!("{all:?}") };
        assert_eq!(
            (
                life.created,
                life.started,
                life.ended,
                life.exit_code,
                life.reason.as_str()
            ),
            (
                Some(second(1)),
                Some(second(2)),
                Some(second(9)),
                Some(137),
                "OOMKilled"
            )
        );
        assert!(life.removed && life.failed());
        // Its death was missed.
        let all = lives(None, [&events[0], &events[1], &events[3]]);
        assert_eq!((all[0].state, all[0].ended), (ContainerState::Exited, Some(second(10))));
    }

    #[test]
    fn what_the_runtime_says_counts_before_events() {
        let status = container("c4", "Running", [Some(1), Some(3), None]);
        let all = lives(
            Some(&pod(vec![status])),
            &[event("ContainerStarted", "web", 2, 4, second(2))],
        );
        assert_eq!((all.len(), all[0].started, all[0].removed), (1, Some(second(3)), false));
        assert_eq!(all[0].state, ContainerState::Running);
    }

    #[test]
    fn times_are_the_runtimes() {
        let mut died = event("ContainerDied", "web", 3, 4, second(9));
        died.lag = Some(4.0);
        assert_eq!(lives(None, [&died])[0].ended, Some(second(5)));
        // Found at the start, nobody knows when it was.
        (died.lag, died.initial) = (None, true);
        assert_eq!(lives(None, [&died])[0].ended, None);
        (died.lag, died.initial) = (Some(f64::INFINITY), false);
        assert_eq!(lives(None, [&died])[0].ended, Some(second(9)));
    }

    #[test]
    fn lives_are_bounded() {
        let many: Vec<Event> = (0..1000)
            .map(|n| event("ContainerStarted", "web", u64::from(n), n, second(i64::from(n))))
            .collect();
        let all = lives(None, &many);
        assert_eq!((all.len(), all[0].attempt), (LIVES, 744));
    }

    #[test]
    fn a_lane_shows_lives_in_their_columns() {
        let window = Window {
            from: second(0),
            to: second(10),
        };
        for (state, times, shown) in [
            ("Running", [Some(0), Some(2), None], "..########"),
            ("Running", [Some(-50), Some(-40), None], "##########"),
            ("Exited", [Some(1), Some(2), Some(5)], " .###o    "),
            ("Exited", [Some(1), None, Some(5)], " ....o    "),
            ("Exited", [Some(-9), Some(-8), Some(-7)], "          "),
            ("Exited", [Some(-9), Some(-8), Some(0)], "o         "),
            ("Created", [Some(7), None, None], "       ..."),
            ("Created", [None, None, None], "          "),
            ("Running", [Some(70), Some(80), None], "          "),
        ] {
            let life = Life::of(&container("c", state, times));
            let marks = lane([&life], window, 10);
            let text: String = marks
                .iter()
                .map(|mark| match mark {
                    Mark::Nothing => ' ',
                    Mark::Created => '.',
                    Mark::Running => '#',
                    Mark::Ended => 'o',
                    Mark::Failed => 'x',
                })
                .collect();
            assert_eq!(text, shown, "{state} {times:?}");
        }
        assert!(lane([&Life::of(&container("c", "Running", [Some(0); 3]))], window, 0).is_empty());
    }
}
