//! Objects that no runtime should have and some have had: for clients that must survive them.

use serde::{Deserialize, Serialize};

use super::encode::{Item, list_item, put_bytes};
use super::{World, WorldError};

/// An enum value that CRI does not know.
pub(crate) const UNKNOWN_STATE: i32 = 99;
/// Padding is sent in pieces of this size, all of them the same memory.
const PIECE: usize = 64 * 1024;
/// A list is never padded beyond this.
const MOST_PADDING: usize = 1 << 30;
/// A name that a browser must show as it is.
pub(crate) const MARKUP: &str = "<img src=x onerror=\"window.hacked=1\">#?%41&'";
/// Odd objects are few.
const MOST_EXTRA: usize = 1000;

/// An oddity that can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Odd {
    /// A sandbox without metadata: no name, no namespace, no UID.
    SandboxWithoutMetadata,
    /// A container without metadata.
    ContainerWithoutMetadata,
    /// A running container whose sandbox is gone.
    OrphanContainer,
    /// A sandbox and a container with empty ids (only in lists).
    EmptyIds,
    /// A sandbox and a container that are listed twice.
    DuplicateIds,
    /// A sandbox and a container in a state that CRI does not know.
    UnknownState,
    /// A sandbox and a container from before 1970.
    NegativeTimes,
    /// A sandbox and a container from the year 2262.
    AbsurdTimes,
    /// A sandbox and a container with a label that is no UTF-8 (in lists; statuses leave it out).
    BadUtf8,
    /// A pod and a container whose names are markup that a careless page would run, with characters that mean something in an address.
    MarkupNames,
}

/// What is wrong with one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quirk {
    NoMetadata,
    UnknownState,
    NegativeTimes,
    AbsurdTimes,
    BadUtf8,
}

impl Quirk {
    /// The timestamp that is shown instead of the real one.
    pub(crate) fn time(self, real: i64) -> i64 {
        match self {
            Self::NegativeTimes => -1_000_000_007,
            Self::AbsurdTimes => i64::MAX,
            _ => real,
        }
    }
}

/// Raw additions to the lists.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) sandboxes: Vec<Item>,
    pub(crate) containers: Vec<Item>,
    /// The same piece again and again: an unknown field, which decoders skip.
    pub(crate) padding: Vec<Item>,
}

impl World {
    /// Adds odd objects. Each call adds them again.
    pub fn add_odd(&mut self, odd: Odd) -> Result<(), WorldError> {
        if self.extra.sandboxes.len() + self.extra.containers.len() >= MOST_EXTRA {
            return Err(WorldError::Full("odd objects", MOST_EXTRA));
        }
        match odd {
            Odd::SandboxWithoutMetadata => self.add_quirk(Some(Quirk::NoMetadata), None),
            Odd::ContainerWithoutMetadata => self.add_quirk(None, Some(Quirk::NoMetadata)),
            Odd::UnknownState => self.add_quirk(Some(Quirk::UnknownState), Some(Quirk::UnknownState)),
            Odd::NegativeTimes => self.add_quirk(Some(Quirk::NegativeTimes), Some(Quirk::NegativeTimes)),
            Odd::AbsurdTimes => self.add_quirk(Some(Quirk::AbsurdTimes), Some(Quirk::AbsurdTimes)),
            Odd::BadUtf8 => self.add_quirk(Some(Quirk::BadUtf8), Some(Quirk::BadUtf8)),
            Odd::OrphanContainer => {
                let (sandbox, _) = self.odd_pod()?;
                self.forget_sandbox(&sandbox);
                Ok(())
            }
            Odd::EmptyIds => {
                let mut nameless = Vec::new();
                put_bytes(&mut nameless, 1, b"");
                self.extra.sandboxes.push(list_item(&nameless));
                self.extra.containers.push(list_item(&nameless));
                Ok(())
            }
            Odd::DuplicateIds => {
                let (sandbox, container) = self.odd_pod()?;
                if let Some(sandbox) = self.sandboxes.get(&sandbox) {
                    self.extra
                        .sandboxes
                        .push(sandbox.encoded.any(&mut self.shuffle).clone());
                }
                if let Some(container) = self.containers.get(&container) {
                    self.extra
                        .containers
                        .push(container.encoded.any(&mut self.shuffle).clone());
                }
                Ok(())
            }
            Odd::MarkupNames => self.markup_pod(),
        }
    }

    /// Makes both unfiltered lists at least `bytes` longer; 0 ends it.
    pub fn pad_lists(&mut self, bytes: usize) {
        let mut field = Vec::with_capacity(PIECE + 8);
        put_bytes(&mut field, 15, &vec![0; PIECE]);
        let piece: Item = field.into();
        self.extra.padding = vec![piece; bytes.min(MOST_PADDING).div_ceil(PIECE)];
    }

    fn add_quirk(&mut self, sandbox: Option<Quirk>, container: Option<Quirk>) -> Result<(), WorldError> {
        let (sandbox_id, container_id) = self.odd_pod()?;
        if let Some(object) = self.sandboxes.get_mut(&sandbox_id) {
            object.quirk = sandbox;
            object.encode(&mut self.shuffle);
        }
        if let Some(object) = self.containers.get_mut(&container_id) {
            object.quirk = container;
            object.encode(&mut self.shuffle);
        }
        Ok(())
    }
}
