//! Images: found in the runtime, or pulled.

use std::time::Duration;

use pleg_cri::{Subject, v1};
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::error::call_failed;
use super::objects::pull_secrets;
use super::pull_credentials::{Credential, Keyring};
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
        let credentials = self.credentials(pod, container).await;
        let message = format!("Pulling image \"{}\"", container.image);
        self.events.container_normal(pod, &container.name, "Pulling", &message);
        let requested = Instant::now();
        // An error means that the semaphore is closed, which it never is.
        let permit = self.pulls.acquire().await;
        let began = Instant::now();
        let about = Subject {
            container: Some(container.name.as_str().into()),
            ..subject(pod)
        };
        let mut pull = std::pin::pin!(self.pull_with(&about, &spec, credentials));
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

    /// Pulls with each of these credentials in turn, until one is accepted; without any if there are none.
    async fn pull_with(
        &self,
        about: &Subject,
        spec: &v1::ImageSpec,
        credentials: Vec<Credential>,
    ) -> Result<v1::PullImageResponse, pleg_cri::Error> {
        let request = |auth| v1::PullImageRequest {
            image: Some(spec.clone()),
            auth,
            sandbox_config: None,
        };
        let mut all = credentials.into_iter().map(v1::AuthConfig::from);
        let mut auth = all.next();
        loop {
            let pulled = self.call_within(about, request(auth), PULL_DEADLINE).await;
            auth = all.next();
            match pulled {
                // Others may be better, unless it was no answer of a registry.
                Err(error) if auth.is_some() && !error.kind.is_unreachable() && !error.kind.is_deadline() => {}
                pulled => return pulled,
            }
        }
    }

    /// The credentials for an image, from the image pull secrets of the pod.
    async fn credentials(&self, pod: &Pod, container: &Container) -> Vec<Credential> {
        let mut keyring = Keyring::default();
        let mut missing = Vec::new();
        for (name, secret) in pull_secrets(&*self.objects, pod).await {
            let problems = match secret {
                Ok(Some(secret)) => keyring.add(&secret),
                Ok(None) => vec!["does not exist".to_owned()],
                Err(error) => vec![error.to_string()],
            };
            for problem in &problems {
                warn!(pod = %pod.id, secret = name, "cannot use an image pull secret, pulling without it: {problem}");
            }
            if !problems.is_empty() {
                missing.push(name);
            }
        }
        if !missing.is_empty() {
            let message = wording::missing_pull_secrets(&missing);
            self.events
                .pod_warning(pod, "FailedToRetrieveImagePullSecret", &message);
        }
        keyring.lookup(&container.image)
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
