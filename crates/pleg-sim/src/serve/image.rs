//! The image service.

use std::sync::Arc;

use pleg_cri::v1;
use pleg_cri::v1::image_service_server::ImageService;
use tonic::{Request, Response, Status};

use super::runtime::status;
use crate::sim::Simulation;
use crate::world::IMAGE_ROOT;

/// The registry that has images for one password only.
const PRIVATE_REGISTRY: &str = "private.example.com/";
const PRIVATE_PASSWORD: &str = "open";

/// The image service over the shared world.
#[derive(Debug)]
pub(super) struct Image {
    shared: Arc<Simulation>,
}

impl Image {
    pub(super) fn new(shared: Arc<Simulation>) -> Self {
        Self { shared }
    }
}

fn name(image: Option<v1::ImageSpec>) -> String {
    image.unwrap_or_default().image
}

#[tonic::async_trait]
impl ImageService for Image {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let filter = request.into_inner().filter.and_then(|filter| filter.image);
        let images = self.shared.world().images(&name(filter));
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        // An image that is not there is an answer without one, not an error.
        let image = self.shared.world().image(&name(request.into_inner().image));
        let info = std::collections::HashMap::new();
        Ok(Response::new(v1::ImageStatusResponse { image, info }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        if !self.shared.config.pull_time.is_zero() {
            tokio::time::sleep(self.shared.config.pull_time).await;
        }
        let v1::PullImageRequest { image, auth, .. } = request.into_inner();
        let name = name(image);
        if name.starts_with(PRIVATE_REGISTRY) && auth.unwrap_or_default().password != PRIVATE_PASSWORD {
            // As containerd has it: without a code that says so.
            return Err(Status::unknown(format!(
                "failed to pull {name:?}: failed to authorize: 401 Unauthorized"
            )));
        }
        let image_ref = self.shared.world().pull_image(&name).map_err(|e| status(&e))?;
        Ok(Response::new(v1::PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        self.shared.world().remove_image(&name(request.into_inner().image));
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let world = self.shared.world();
        let (bytes, inodes) = world.image_usage();
        let usage = v1::FilesystemUsage {
            timestamp: world.clock().now(),
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: IMAGE_ROOT.to_owned(),
            }),
            used_bytes: Some(v1::UInt64Value { value: bytes }),
            inodes_used: Some(v1::UInt64Value { value: inodes }),
        };
        Ok(Response::new(v1::ImageFsInfoResponse {
            image_filesystems: vec![usage.clone()],
            container_filesystems: vec![usage],
        }))
    }
}
