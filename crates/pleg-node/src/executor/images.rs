//! Images: found in the runtime, or fetched.

use std::time::Duration;

use pleg_cri::{Subject, v1};
use tokio::time::timeout;

use super::{Failed, RuntimeExecutor, failed, subject};
use crate::manifest::{Container, Pod, PullPolicy};

/// Images that are fetched at once.
pub(super) const PULLS: usize = 4;
/// An image that takes longer than this lets the next one begin: a registry that does not answer is not everybody's trouble.
const PULL_SLOT: Duration = Duration::from_secs(30);
/// A pull may take this long. One that does not move at all is ended by the runtime itself, long before.
const LONGEST_PULL: Duration = Duration::from_hours(1);

impl RuntimeExecutor {
    /// The image, fetched if the policy says so.
    pub(super) async fn image(&self, pod: &Pod, container: &Container) -> Result<v1::Image, Failed> {
        let spec = v1::ImageSpec {
            image: container.image.clone(),
            ..Default::default()
        };
        if container.pull_policy != PullPolicy::Always {
            if let Some(image) = self.image_status(&spec).await? {
                return Ok(image);
            }
            if container.pull_policy == PullPolicy::Never {
                return Err(Failed {
                    reason: "ErrImageNeverPull",
                    message: format!(
                        "container image {} is not present and imagePullPolicy is Never",
                        container.image
                    ),
                });
            }
        }
        // Nobody closes it.
        let place = self.pulls.acquire().await;
        let request = v1::PullImageRequest {
            image: Some(spec.clone()),
            auth: None,
            sandbox_config: None,
        };
        let about = Subject {
            container: Some(container.name.as_str().into()),
            ..subject(pod)
        };
        let mut pull = std::pin::pin!(self.call_within(&about, request, LONGEST_PULL));
        let pulled = if let Ok(pulled) = timeout(PULL_SLOT, &mut pull).await {
            pulled
        } else {
            drop(place);
            pull.await
        };
        let pulled = pulled.map_err(failed("ErrImagePull"))?;
        // By what was pulled: the name may mean another image by now.
        let by_ref = v1::ImageSpec {
            image: pulled.image_ref.clone(),
            ..Default::default()
        };
        Ok(self.image_status(&by_ref).await?.unwrap_or(v1::Image {
            id: pulled.image_ref,
            ..Default::default()
        }))
    }

    async fn image_status(&self, spec: &v1::ImageSpec) -> Result<Option<v1::Image>, Failed> {
        let request = v1::ImageStatusRequest {
            image: Some(spec.clone()),
            verbose: false,
        };
        let answer = self
            .call(&Subject::NODE, request)
            .await
            .map_err(failed("ImageInspectError"))?;
        Ok(answer.image.filter(|image| !image.id.is_empty()))
    }
}
