//! Unused images are removed when their filesystem becomes full, as a kubelet does.
//!
//! In: the images and containers of the runtime, the image filesystem, every five minutes or when the eviction manager asks. Out: removed
//! images, least recently used first. [`ImageCollector`] is one task and owns the records: when each image was first seen and last used. An
//! image that any container has, a pinned image and the pause image are never removed.
//!
//! | module | job |
//! |---|---|
//! | [`records`] | which images may go, and in which order: pure |
//! | this one | the task, its calls, and its requests |

pub(crate) mod records;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::{Client, v1};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::records::{Candidate, ImageRecords};
use crate::error::with_causes;
use crate::events::Events;
use crate::host::resources::{Filesystem, HostResources};
use crate::metrics::NodeMetrics;

/// How often images are checked.
const PERIOD: Duration = Duration::from_mins(5);
/// Requests that wait. There is one caller.
const REQUESTS: usize = 1;

/// When images are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// Images are removed once this much of their filesystem is in use, in percent; 100 for never.
    pub high_threshold: u8,
    /// They are removed until no more than this much is in use, in percent.
    pub low_threshold: u8,
    /// An image is kept at least this long after it was first seen.
    pub minimum_age: Duration,
}

impl Default for ImageGcPolicy {
    /// The kubelet's defaults.
    fn default() -> Self {
        Self {
            high_threshold: 85,
            low_threshold: 80,
            minimum_age: Duration::from_mins(2),
        }
    }
}

impl ImageGcPolicy {
    /// How many bytes have to be freed; none below the threshold.
    fn bytes_to_free(&self, disk: &Filesystem) -> Option<u64> {
        let available = disk.available.min(disk.capacity);
        let percent = |of: u64, percent: u64| u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(of);
        let used = 100_u128.saturating_sub(u128::from(available) * 100 / u128::from(disk.capacity.max(1)));
        if self.high_threshold >= 100 || used < u128::from(self.high_threshold) {
            return None;
        }
        let wanted = percent(disk.capacity, 100 - u64::from(self.low_threshold.min(100)));
        Some(wanted.saturating_sub(available)).filter(|bytes| *bytes > 0)
    }
}

/// Why images could not be collected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageGcError {
    /// The runtime cannot be asked.
    #[error("cannot collect images")]
    Call(#[from] pleg_cri::Error),
    /// The image filesystem cannot be examined.
    #[error("cannot examine the image filesystem at {}", .path.display())]
    Filesystem {
        /// Where it is mounted.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It has no size.
    #[error("the runtime names no image filesystem, or one without a size")]
    NoCapacity,
    /// Too little could be removed.
    #[error(
        "failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {freed} bytes eligible to free"
    )]
    NotEnough {
        /// What was needed.
        wanted: u64,
        /// What was freed.
        freed: u64,
    },
}

/// Asks the collector to remove all images that are not in use. The answer is the number of bytes freed.
pub(crate) type DeleteUnused = oneshot::Sender<u64>;

/// Removes unused images.
#[derive(Debug)]
pub(crate) struct ImageCollector {
    client: Client,
    host: Arc<dyn HostResources>,
    metrics: NodeMetrics,
    events: Events,
    policy: ImageGcPolicy,
    records: ImageRecords,
    requests: mpsc::Receiver<DeleteUnused>,
    /// The last failure, until the next success.
    failed: Option<String>,
    /// It was logged.
    logged: bool,
}

impl ImageCollector {
    /// A collector, and where it is asked to remove all unused images.
    pub(crate) fn new(
        client: Client,
        host: Arc<dyn HostResources>,
        metrics: NodeMetrics,
        events: Events,
        policy: ImageGcPolicy,
    ) -> (Self, mpsc::Sender<DeleteUnused>) {
        let (sender, requests) = mpsc::channel(REQUESTS);
        let collector = Self {
            client,
            host,
            metrics,
            events,
            policy,
            records: ImageRecords::default(),
            requests,
            failed: None,
            logged: false,
        };
        (collector, sender)
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        // At once, so that the age of images counts from the start.
        let mut tick = interval_at(Instant::now(), PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(answer) = self.requests.recv() => {
                    let Some(freed) = shutdown.run_until_cancelled(self.delete_unused()).await else { break };
                    // The caller may have given up.
                    let _ = answer.send(freed);
                }
                _ = tick.tick() => {
                    if shutdown.run_until_cancelled(self.check()).await.is_none() {
                        break;
                    }
                }
            }
        }
    }

    async fn check(&mut self) {
        match self.collect().await {
            Ok(()) => {
                self.failed = None;
                self.logged = false;
            }
            Err(error) => self.log_failure(with_causes(&error)),
        }
    }

    /// As in a kubelet, the first failure in a row does not count. The same failure is logged once.
    fn log_failure(&mut self, error: String) {
        self.metrics.image_gc_failure();
        match &self.failed {
            None => debug!("image collection failed once: {error}"),
            Some(before) if *before == error && self.logged => {}
            Some(_) => {
                warn!(reason = "ImageGCFailed", "{error}");
                self.events.node_warning("ImageGCFailed", &error);
                self.logged = true;
            }
        }
        self.failed = Some(error);
    }

    /// Removes images if their filesystem is too full.
    async fn collect(&mut self) -> Result<(), ImageGcError> {
        self.observe().await?;
        if self.policy.high_threshold >= 100 {
            return Ok(());
        }
        let disk = self.image_filesystem().await?;
        let Some(wanted) = self.policy.bytes_to_free(&disk) else {
            return Ok(());
        };
        info!(
            wanted,
            available = disk.available,
            "image filesystem is too full; removing unused images"
        );
        let freed = self.free(wanted).await?;
        if freed < wanted {
            let message = format!(
                "Insufficient free disk space on the node's image filesystem ({} of {} bytes available). \
                 Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
                 Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
                disk.available, disk.capacity
            );
            self.events.node_warning("FreeDiskSpaceFailed", &message);
            return Err(ImageGcError::NotEnough { wanted, freed });
        }
        Ok(())
    }

    /// Removes all unused images, whatever the thresholds say.
    async fn delete_unused(&mut self) -> u64 {
        let freed = async {
            self.observe().await?;
            self.free(u64::MAX).await
        };
        freed.await.unwrap_or_else(|error: ImageGcError| {
            warn!(reason = "ImageGCFailed", "{}", with_causes(&error));
            0
        })
    }

    /// Updates the records: which images exist, and which are in use.
    async fn observe(&mut self) -> Result<(), ImageGcError> {
        let images = self.client.call(v1::ListImagesRequest::default()).await?.images;
        let mut used = self.images_of_containers().await?;
        used.extend(self.pause_image().await);
        self.records.observe(&images, &used, Instant::now());
        Ok(())
    }

    /// Every name by which a container knows its image. Listed here and not read from the cache, which has only containers of pods.
    async fn images_of_containers(&self) -> Result<BTreeSet<String>, ImageGcError> {
        let listed = self.client.call(v1::ListContainersRequest::default()).await?;
        let names = listed.containers.into_iter().flat_map(|container| {
            let spec = container.image.unwrap_or_default();
            [
                container.image_id,
                container.image_ref,
                spec.image,
                spec.user_specified_image,
            ]
        });
        Ok(names.filter(|name| !name.is_empty()).collect())
    }

    /// The image of sandboxes. Newer runtimes pin it; older ones only name it.
    async fn pause_image(&self) -> Option<String> {
        let status = self.client.call(v1::StatusRequest { verbose: true }).await.ok()?;
        let config: serde_json::Value = serde_json::from_str(status.info.get("config")?).ok()?;
        Some(config.get("sandboxImage")?.as_str()?.to_owned())
    }

    async fn image_filesystem(&self) -> Result<Filesystem, ImageGcError> {
        let path = image_mount_point(&self.client).await?.ok_or(ImageGcError::NoCapacity)?;
        let (host, at) = (Arc::clone(&self.host), path.clone());
        let found = tokio::task::spawn_blocking(move || host.filesystem(&at)).await;
        let found = found.map_err(io::Error::from).flatten();
        let found = found.map_err(|source| ImageGcError::Filesystem { path, source })?;
        if found.capacity == 0 {
            return Err(ImageGcError::NoCapacity);
        }
        Ok(found)
    }

    /// Removes images until that many bytes are free. Returns how many are.
    async fn free(&mut self, wanted: u64) -> Result<u64, ImageGcError> {
        let mut freed = 0_u64;
        let mut failed = None;
        for candidate in self.records.candidates(Instant::now(), self.policy.minimum_age) {
            if freed >= wanted {
                break;
            }
            match self.remove(&candidate).await {
                Ok(true) => freed = freed.saturating_add(candidate.size),
                Ok(false) => {}
                // The others may still go.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if freed < wanted && wanted != u64::MAX => Err(error.into()),
            _ => Ok(freed),
        }
    }

    /// Removes an image, unless a container has been created from it meanwhile.
    async fn remove(&mut self, image: &Candidate) -> Result<bool, pleg_cri::Error> {
        let used = match self.images_of_containers().await {
            Ok(used) => used,
            Err(ImageGcError::Call(error)) => return Err(error),
            Err(_) => return Ok(false),
        };
        if image.names.iter().any(|name| used.contains(name)) {
            debug!(image = image.name(), "image is in use again");
            return Ok(false);
        }
        let spec = v1::ImageSpec {
            image: image.id.clone(),
            ..Default::default()
        };
        let request = v1::RemoveImageRequest { image: Some(spec) };
        match self.client.call(request).await {
            Err(error) if !error.kind.is_not_found() => {
                warn!(
                    image = image.name(),
                    "cannot remove unused image: {}",
                    with_causes(&error)
                );
                return Err(error);
            }
            _ => {}
        }
        self.records.forget(&image.id);
        self.metrics.image_collected();
        info!(
            image = image.name(),
            id = image.id,
            bytes = image.size,
            "removed unused image"
        );
        Ok(true)
    }
}

/// Where the runtime keeps its images.
pub(crate) async fn image_mount_point(client: &Client) -> Result<Option<PathBuf>, pleg_cri::Error> {
    let info = client.call(v1::ImageFsInfoRequest {}).await?;
    let first = info.image_filesystems.into_iter().next();
    let place = first.and_then(|usage| usage.fs_id).map(|id| id.mountpoint);
    Ok(place.filter(|place| !place.is_empty()).map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_has_to_go() {
        let policy = ImageGcPolicy::default();
        let never = ImageGcPolicy {
            high_threshold: 100,
            ..policy
        };
        for (policy, capacity, available, expected) in [
            (policy, 1000, 1000, None),
            (policy, 1000, 160, None),
            // Percentages are whole numbers, as in the kubelet: 15.1 % available are 15 %.
            (policy, 1000, 151, Some(49)),
            // Exactly 85 % are in use: down to 80 %.
            (policy, 1000, 150, Some(50)),
            (policy, 1000, 0, Some(200)),
            (policy, 1000, 5000, None),
            (never, 1000, 0, None),
            (policy, u64::MAX, 0, Some(u64::MAX / 5)),
            (
                ImageGcPolicy {
                    high_threshold: 0,
                    low_threshold: 0,
                    ..policy
                },
                1000,
                400,
                Some(600),
            ),
        ] {
            let disk = Filesystem {
                capacity,
                available,
                ..Filesystem::default()
            };
            assert_eq!(policy.bytes_to_free(&disk), expected, "{available} of {capacity}");
        }
    }
}
