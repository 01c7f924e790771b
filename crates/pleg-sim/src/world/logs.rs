//! What containers write to their logs. The world only says what is written; the server has the files.

use std::sync::Arc;

use super::schedule::Due;
use super::{World, WorldError};
use crate::clock::nanos;

/// Texts that may wait for their files: they are taken after every call and every change.
const MOST_TEXTS: usize = 10_000;

/// Something written to a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogText {
    pub(crate) path: String,
    pub(crate) at: i64,
    pub(crate) text: String,
}

impl World {
    /// A running container writes what its script has it write, and does so again later if the script says so.
    pub(super) fn write_log(&mut self, id: &str) {
        let now = self.clock.now();
        let Some(container) = self
            .containers
            .get(id)
            .filter(|container| container.logs && container.running())
        else {
            return;
        };
        let output = container.script.output.as_ref();
        if self.log_texts.len() < MOST_TEXTS {
            self.log_texts.push(LogText {
                path: container.log_path.clone(),
                at: now,
                // A container that is silent has a log too.
                text: output.map_or_else(String::new, |output| output.text.clone()),
            });
        }
        if let Some(every) = output.and_then(|output| output.every) {
            let id = Arc::clone(&container.id);
            self.schedule.add(now.saturating_add(nanos(every)), Due::Write { id });
        }
    }

    /// What was written since the last call.
    pub(crate) fn take_log_texts(&mut self) -> Vec<LogText> {
        std::mem::take(&mut self.log_texts)
    }

    /// The log of a running container, if it has a file.
    pub(crate) fn log_of(&self, id: &str) -> Result<Option<String>, WorldError> {
        self.check_running(id)?;
        let container = self.containers.get(id).filter(|container| container.logs);
        Ok(container.map(|container| container.log_path.clone()))
    }
}
