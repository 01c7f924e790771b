//! Shims that hang: the lists stay green, and what happens in the pod is not seen until its shim goes on.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Ending, Pod, World, WorldError};
use crate::selector::PodRef;

/// The shim of a pod.
#[derive(Debug, Default)]
pub(super) enum Shim {
    /// It does its work.
    #[default]
    Runs,
    /// Stopped, or stuck in the kernel. What ended meanwhile, and how.
    Hangs(Vec<(Arc<str>, Ending)>),
}

impl Pod {
    fn shim_hangs(&self) -> bool {
        matches!(self.shim, Shim::Hangs(_))
    }
}

impl World {
    /// The pod's shim hangs, as one that was stopped with SIGSTOP: statuses and lists show what was, deaths in the pod are not
    /// seen, and calls that need the shim hang with it.
    pub fn hang_shim(&mut self, pod: &PodRef) -> Result<(), WorldError> {
        let key = self.find_pod(pod)?;
        if let Some(pod) = self.pods.get_mut(&key)
            && !pod.shim_hangs()
        {
            pod.shim = Shim::Hangs(Vec::new());
        }
        self.shims.send_replace(());
        Ok(())
    }

    /// The pod's shim goes on, or all that hang: what ended meanwhile ends now. Returns how many did hang.
    pub fn unhang_shim(&mut self, pod: Option<&PodRef>) -> Result<usize, WorldError> {
        let keys: Vec<Arc<str>> = match pod {
            Some(pod) => vec![self.find_pod(pod)?],
            None => self.pods.keys().cloned().collect(),
        };
        let mut count = 0;
        for key in keys {
            let shim = self.pods.get_mut(&key).map(|pod| std::mem::take(&mut pod.shim));
            if let Some(Shim::Hangs(ended)) = shim {
                count += 1;
                for (id, ending) in ended {
                    self.finish_now(&id, ending);
                }
            }
        }
        self.shims.send_replace(());
        Ok(count)
    }

    /// The shim behind this sandbox or container hangs.
    pub(crate) fn shim_hangs(&self, id: &str) -> bool {
        let of_container = || self.containers.get(id).map(|container| &container.pod);
        let pod = self.sandboxes.get(id).map(|sandbox| &sandbox.pod).or_else(of_container);
        pod.and_then(|pod| self.pods.get(pod)).is_some_and(Pod::shim_hangs)
    }

    /// Any shim hangs.
    pub(crate) fn any_shim_hangs(&self) -> bool {
        self.pods.values().any(Pod::shim_hangs)
    }

    /// Ending this needs the shim: it is a ready sandbox or a running container, and its shim hangs.
    pub(crate) fn waits_for_shim(&self, id: &str) -> bool {
        let lives = self.sandboxes.get(id).is_some_and(|sandbox| sandbox.ready)
            || self.containers.get(id).is_some_and(super::object::Container::running);
        lives && self.shim_hangs(id)
    }

    /// Changes when [`World::shim_hangs`] may have.
    pub(crate) fn shims(&self) -> watch::Receiver<()> {
        self.shims.subscribe()
    }

    /// Keeps the end of a running container for later if its shim hangs. `None` if it does not.
    pub(super) fn end_unseen(&mut self, pod: &str, id: &str, ending: Ending) -> Option<bool> {
        let Shim::Hangs(ended) = &mut self.pods.get_mut(pod)?.shim else {
            return None;
        };
        let known = ended.iter().any(|(other, _)| **other == *id);
        if !known {
            ended.push((id.into(), ending));
        }
        Some(!known)
    }
}
