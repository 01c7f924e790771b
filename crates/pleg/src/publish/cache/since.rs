//! A moment by its age.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::time::Instant;

/// A moment that is written as its age, and does not jump with the wall clock. In whole seconds on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since(Instant);

impl Since {
    /// The moment that was so long ago.
    pub fn ago(age: Duration) -> Self {
        let now = Instant::now();
        Self(now.checked_sub(age).unwrap_or(now))
    }

    /// How long ago it was.
    pub fn age(self) -> Duration {
        self.0.elapsed()
    }

    pub(crate) fn at(at: Instant) -> Self {
        Self(at)
    }

    pub(crate) fn instant(self) -> Instant {
        self.0
    }
}

impl Serialize for Since {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.age().as_secs())
    }
}

impl<'de> Deserialize<'de> for Since {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(|seconds| Self::ago(Duration::from_secs(seconds)))
    }
}
