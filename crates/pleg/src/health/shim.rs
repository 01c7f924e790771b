//! Pods whose shim hangs.

use std::fmt::Write as _;
use std::time::Duration;

use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::cause::Who;
use crate::model::{ObjectRef, PodRef, SandboxId};
use crate::runtime::shim::Shim;

/// A pod whose shim does not answer, while the runtime does.
#[derive(Debug, Clone)]
pub(crate) struct HungShim {
    pub(crate) pod: PodRef,
    pub(crate) sandbox: SandboxId,
    pub(crate) shim: Option<Shim>,
    pub(crate) since: Instant,
    /// What the call took that goes through the shim, and the one that does not.
    pub(crate) took: [Duration; 2],
}

impl HungShim {
    pub(crate) fn who(&self) -> Who {
        Who {
            pod: Some(self.pod.full_name()),
            container: None,
            id: Some(self.sandbox.shared()),
            sandbox: Some(self.sandbox.shared()),
            shim: self.shim,
            about: Some((
                self.pod.clone(),
                ObjectRef::Sandbox {
                    id: self.sandbox.clone(),
                },
            )),
        }
    }

    /// What is seen, in words.
    pub(crate) fn text(&self) -> String {
        let [through, around] = self.took;
        let mut text = format!(
            "the shim of pod {} hangs: PodSandboxStatus took {} through it and {} without",
            self.pod.full_name(),
            seconds(through),
            seconds(around)
        );
        if let Some(shim) = self.shim {
            // Writing to a string cannot fail.
            let _ = write!(text, "; its process {} is {} ({})", shim.pid, shim.word(), shim.state);
        }
        text
    }
}
