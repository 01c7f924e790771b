//! The lives of containers: each from its start to its death, put together from events.
//!
//! A daemon that starts reports what is there as initial events. Those of a container that is already known add nothing; a death among
//! them happened while no daemon ran. A death that is initial and of a container that was never seen alive is older than the history.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerId, ContainerRef, Cursor, Event, EventType, PodUid};

use super::{between, happened};

/// One life of one container.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Life {
    pub(super) pod: PodUid,
    pub(super) container: ContainerRef,
    /// When it started; none if it started before it was first seen.
    pub(super) started: Option<Timestamp>,
    /// The caller of a stop announced it.
    pub(super) stopped: bool,
    pub(super) death: Option<Ending>,
    /// The runtime no longer has it.
    pub(super) removed: bool,
    /// A container of the same name and pod was there before it.
    pub(super) is_restart: bool,
}

/// How a life ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    pub(super) time: Timestamp,
    pub(super) exit_code: Option<i32>,
    pub(super) reason: Option<String>,
    pub(super) event: Cursor,
    /// The place of its entry in the history.
    pub(super) id: u64,
    /// It happened while no daemon ran, so its time is not known: this is when it was found.
    pub(super) found_later: bool,
}

impl Ending {
    /// Another code than 0, or a reason that says so.
    pub(super) fn is_failure(&self) -> bool {
        match self.exit_code {
            Some(code) => code != 0,
            None => self.reason.as_deref().is_some_and(|reason| reason != "Completed"),
        }
    }
}

impl Life {
    /// It runs, as far as is known.
    pub(super) fn is_running(&self) -> bool {
        self.death.is_none() && !self.removed
    }

    /// How long it was, where both ends are known.
    pub(super) fn lasted(&self) -> Option<Duration> {
        let death = self.death.as_ref().filter(|death| !death.found_later)?;
        Some(between(self.started?, death.time))
    }
}

/// Lives in the order in which they were first seen.
#[derive(Debug, Default)]
pub(super) struct Lives {
    lives: Vec<Life>,
    by_id: HashMap<ContainerId, usize>,
}

impl Lives {
    pub(super) fn all(&self) -> &[Life] {
        &self.lives
    }

    /// Takes in an event of a container; others are ignored.
    pub(super) fn add(&mut self, id: u64, event: &Event) {
        let (Some(pod), Some(Subject::Container(container))) = (&event.pod, &event.subject) else {
            return;
        };
        let found = self.by_id.get(&container.id).copied();
        match event.kind {
            EventType::ContainerCreated | EventType::ContainerStarted => {
                let started = event.kind == EventType::ContainerStarted && !event.initial;
                let at = found.unwrap_or_else(|| self.insert(&pod.uid, container));
                if let Some(life) = self.lives.get_mut(at)
                    && started
                {
                    life.started.get_or_insert(happened(event));
                }
            }
            EventType::ContainerStopped => {
                let at = found.unwrap_or_else(|| self.insert(&pod.uid, container));
                if let Some(life) = self.lives.get_mut(at) {
                    life.stopped = true;
                }
            }
            EventType::ContainerDied => {
                if event.initial && found.is_none() {
                    return;
                }
                let at = found.unwrap_or_else(|| self.insert(&pod.uid, container));
                if let Some(life) = self.lives.get_mut(at)
                    && life.death.is_none()
                {
                    life.death = Some(Ending {
                        time: happened(event),
                        exit_code: event.exit_code,
                        reason: event.reason.as_deref().map(str::to_owned),
                        event: event.cursor(),
                        id,
                        found_later: event.initial,
                    });
                }
            }
            EventType::ContainerRemoved => {
                if let Some(life) = found.and_then(|at| self.lives.get_mut(at)) {
                    life.removed = true;
                }
            }
            _ => {}
        }
    }

    /// The runtime no longer has anything of this pod.
    pub(super) fn pod_removed(&mut self, pod: &PodUid) {
        for life in self.lives.iter_mut().filter(|life| life.pod == *pod) {
            life.removed = true;
        }
    }

    fn insert(&mut self, pod: &PodUid, container: &ContainerRef) -> usize {
        let same = |life: &Life| life.pod == *pod && life.container.name == container.name;
        self.lives.push(Life {
            pod: pod.clone(),
            container: container.clone(),
            started: None,
            stopped: false,
            death: None,
            removed: false,
            is_restart: container.attempt > 0 || self.lives.iter().rev().any(same),
        });
        let at = self.lives.len() - 1;
        self.by_id.insert(container.id.clone(), at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookback::testing::{Day, at};

    fn lives(day: &Day) -> Vec<Life> {
        let mut lives = Lives::default();
        for entry in day.entries() {
            lives.add(entry.id, entry.event().unwrap());
        }
        lives.lives
    }

    #[test]
    fn a_life_is_from_start_to_death() {
        let mut day = Day::default();
        day.started(10, "web", "app", 0);
        day.died(70, "web", "app", 0, 3, "Error");
        day.started(80, "web", "app", 1);
        let lives = lives(&day);
        assert_eq!(lives.len(), 2);
        assert_eq!(lives[0].lasted(), Some(Duration::from_mins(1)));
        assert!(!lives[0].is_restart && lives[0].death.as_ref().unwrap().is_failure());
        assert_eq!((lives[1].started, &lives[1].death), (Some(at(80)), &None));
        assert!(lives[1].is_restart);
    }

    #[test]
    fn times_are_those_of_the_runtime() {
        let mut day = Day::default();
        day.started(10, "web", "app", 0);
        day.died(70, "web", "app", 0, 3, "Error");
        day.change_last(|event| event.lag = Some(Duration::from_secs(20)));
        assert_eq!(lives(&day)[0].lasted(), Some(Duration::from_secs(40)));
    }

    /// After a restart of the daemon everything is reported again.
    #[test]
    fn what_is_known_is_not_counted_again() {
        let mut day = Day::default();
        day.started(10, "web", "app", 0);
        day.started(11, "web", "side", 0);
        day.died(20, "web", "app", 0, 3, "Error");
        day.restart();
        day.died(50, "web", "app", 0, 3, "Error").initial();
        day.died(50, "web", "side", 0, 137, "OOMKilled").initial();
        day.died(50, "web", "old", 4, 1, "Error").initial();
        day.started(50, "web", "new", 0).initial();
        let lives = lives(&day);
        let shown: Vec<_> = lives
            .iter()
            .map(|life| {
                (
                    &*life.container.name,
                    life.started,
                    life.lasted(),
                    life.death.as_ref().map(|end| end.found_later),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("app", Some(at(10)), Some(Duration::from_secs(10)), Some(false)),
                ("side", Some(at(11)), None, Some(true)),
                ("new", None, None, None),
            ]
        );
    }

    #[test]
    fn a_clock_that_goes_back_makes_no_negative_life() {
        let mut day = Day::default();
        day.started(100, "web", "app", 0);
        day.died(70, "web", "app", 0, 0, "Completed");
        assert_eq!(lives(&day)[0].lasted(), Some(Duration::ZERO));
        assert!(!lives(&day)[0].death.as_ref().unwrap().is_failure());
    }

    #[test]
    fn without_a_code_the_reason_decides() {
        let mut day = Day::default();
        day.died(10, "web", "app", 0, 0, "Error");
        day.change_last(|event| event.exit_code = None);
        assert!(lives(&day)[0].death.as_ref().unwrap().is_failure());
        day.change_last(|event| event.reason = None);
        assert!(!lives(&day)[0].death.as_ref().unwrap().is_failure());
    }
}
