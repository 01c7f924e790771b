//! Asking again for pods that changed, also of a daemon that has restarted in between.

use pleg::PodRef;

use crate::connect::{self, Observed, read};
use crate::filter::PodName;
use crate::http::follow::refuses;

/// So often it is tried again whether a daemon that has started has inspected every pod.
const PATIENCE: u32 = 10;

/// What has to be known of a daemon that was gone: until it has completed a relist, a pod that it does not list may be there all the same.
#[derive(Debug, Default)]
pub(crate) struct Restarted {
    /// How often its pods were listed since.
    listed: Option<u32>,
}

impl Restarted {
    /// The daemon was gone.
    pub(crate) fn reconnected(&mut self) {
        self.listed = Some(0);
    }

    /// Whether it is worth listing pods.
    pub(crate) async fn has_relisted(&self, observed: &Observed) -> anyhow::Result<bool> {
        Ok(self.listed.is_none() || observed.known_health().await?.relists > 0)
    }

    /// Whether a list shows what there is.
    pub(crate) fn is_whole(&mut self, pods: &connect::Pods) -> bool {
        self.is_settled(is_inspected(pods))
    }

    /// The same of a list whose pods are all inspected, or not.
    pub(crate) fn is_settled(&mut self, inspected: bool) -> bool {
        match self.listed {
            Some(tried) if !inspected && tried < PATIENCE => {
                self.listed = Some(tried + 1);
                false
            }
            _ => {
                self.listed = None;
                true
            }
        }
    }
}

/// Whether the daemon may answer later what it has not answered now. What cannot be read now cannot be read later either.
pub(crate) fn may_pass(error: &anyhow::Error) -> bool {
    !refuses(error) && !error.chain().any(<dyn std::error::Error>::is::<serde_json::Error>)
}

/// Whether every pod was inspected, or cannot be. Before that its state is not what it will be in a moment.
pub(crate) fn is_inspected(pods: &connect::Pods) -> bool {
    match pods {
        connect::Pods::Runtime(pods) => pods.iter().all(|pod| pod.inspected_at.is_some() || pod.error.is_some()),
        connect::Pods::Node(_) => true,
    }
}

/// Whether a daemon can be asked for this pod by its name. A runtime may have names that Kubernetes does not.
pub(crate) fn can_ask(pod: &PodRef) -> bool {
    PodName::parse(&format!("{}/{}", pod.namespace, pod.name)).is_ok()
}

/// The pods of this name now.
pub(crate) async fn ask(observed: &Observed, pod: &PodRef) -> anyhow::Result<connect::Pods> {
    match observed {
        Observed::Daemon(daemon) => {
            let query = [("pod", format!("{}/{}", pod.namespace, pod.name))];
            connect::of_daemon(daemon, &query).await
        }
        Observed::Runtime(local) => {
            let entry = local.pleg.cache().get(&pod.uid);
            let entries: Vec<_> = entry.into_iter().collect();
            Ok(connect::Pods::Runtime(read(local, &entries)?))
        }
    }
}
