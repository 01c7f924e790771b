//! Images: found in the runtime, or pulled.

use std::time::Duration;

use pleg_cri::{Subject, v1};
use tokio::time::{Instant, timeout};

use super::error::call_failed;
use super::{ActionError, RuntimeExecutor, subject};
use crate::events::wording;
use crate::manifest::{Container, Pod, PullPolicy};

/// How many images are pulled at once.
pub(super) const CONCURRENT_PULLS: usize = 4;
/// A pull that takes longer than this lets the next one start: a registry that does not answer delays only its own images.
const PULL_SLOT: Duration = Duration::from_secs(30);
/// Deadline of a pull. The runtime itself gives up much earlier on one that makes no progress.
const PULL_DEADLINE: Duration = Duration::from_hours(1);

impl RuntimeExecutor {
    /// The image of a container, pulled if the policy says so.
    pub(super) async fn image(&self, pod: &Pod, container: &Container) -> Result<v1::Image, ActionError> {
        let spec = v1::ImageSpec {
            image: container.image.clone(),
            ..Default::default()
        };
        if container.pull_policy != PullPolicy::Always {
            if let Some(image) = self.image_status(&spec).await? {
                let message = format!("Container image \"{}\" already present on machine", container.image);
                self.events.container_normal(pod, &container.name, "Pulled", &message);
                return Ok(image);
            }
            if container.pull_policy == PullPolicy::Never {
                return Err(ActionError::ImageNeverPull(container.image.clone()));
            }
        }
        self.pull(pod, container, spec).await
    }

    async fn pull(&self, pod: &Pod, container: &Container, spec: v1::ImageSpec) -> Result<v1::Image, ActionError> {
        let message = format!("Pulling image \"{}\"", container.image);
        self.events.container_normal(pod, &container.name, "Pulling", &message);
        let requested = Instant::now();
        // An error means that the semaphore is closed, which it never is.
        let permit = self.pulls.acquire().await;
        let began = Instant::now();
        let request = v1::PullImageRequest {
            image: Some(spec),
            auth: None,
            sandbox_config: None,
        };
        let about = Subject {
            container: Some(container.name.as_str().into()),
            ..subject(pod)
        };
        let mut pull = std::pin::pin!(self.call_within(&about, request, PULL_DEADLINE));
        let pulled = if let Ok(pulled) = timeout(PULL_SLOT, &mut pull).await {
            pulled
        } else {
            drop(permit);
            pull.await
        };
        let pulled = pulled.map_err(call_failed("ErrImagePull"))?;
        let (pull, with_waiting) = (began.elapsed(), requested.elapsed());
        // By the reference that was pulled: the name may already mean another image.
        let by_ref = v1::ImageSpec {
            image: pulled.image_ref.clone(),
            ..Default::default()
        };
        let image = self.image_status(&by_ref).await?.unwrap_or(v1::Image {
            id: pulled.image_ref,
            ..Default::default()
        });
        let message = wording::pulled(&container.image, pull, with_waiting, image.size);
        self.events.container_normal(pod, &container.name, "Pulled", &message);
        Ok(image)
    }

    async fn image_status(&self, spec: &v1::ImageSpec) -> Result<Option<v1::Image>, ActionError> {
        let request = v1::ImageStatusRequest {
            image: Some(spec.clone()),
            verbose: false,
        };
        let answer = self.call(&Subject::NODE, request).await;
        let answer = answer.map_err(call_failed("ImageInspectError"))?;
        Ok(answer.image.filter(|image| !image.id.is_empty()))
    }
}
