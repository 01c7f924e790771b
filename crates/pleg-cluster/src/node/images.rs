//! The images that the node's status lists: the largest ones, for the scheduler's image locality.

use std::cmp::Reverse;
use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerImage;
use pleg_cri::{Client, Subject, v1};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// How often images are listed.
const PERIOD: Duration = Duration::from_mins(1);
/// How long the runtime may take. A list that hangs delays nothing else.
const DEADLINE: Duration = Duration::from_secs(30);
/// Most images of a status.
const MOST_IMAGES: usize = 50;
/// Most names of one image.
const MOST_NAMES: usize = 5;

/// Lists images until shutdown.
pub(crate) async fn run(runtime: Client, images: watch::Sender<Vec<ContainerImage>>, shutdown: CancellationToken) {
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let listing = async {
        loop {
            tick.tick().await;
            let request = v1::ListImagesRequest::default();
            match runtime.call_within(&Subject::NODE, request, DEADLINE).await {
                Ok(answer) => _ = images.send_if_modified(|known| replace(known, largest(answer.images))),
                // The list from before stays. What ails the runtime is reported by the generator.
                Err(error) => debug!("cannot list images for the node's status: {error}"),
            }
        }
    };
    shutdown.run_until_cancelled(listing).await;
}

fn replace(known: &mut Vec<ContainerImage>, next: Vec<ContainerImage>) -> bool {
    let changed = *known != next;
    *known = next;
    changed
}

/// The largest images, in an order that does not depend on the runtime's.
fn largest(images: Vec<v1::Image>) -> Vec<ContainerImage> {
    let mut all: Vec<ContainerImage> = images
        .into_iter()
        .map(|image| {
            // Digests first, as in a kubelet.
            let mut names: Vec<String> = image.repo_digests.into_iter().chain(image.repo_tags).collect();
            names.truncate(MOST_NAMES);
            ContainerImage {
                names: Some(names),
                size_bytes: i64::try_from(image.size).ok(),
            }
        })
        .filter(|image| image.names.as_ref().is_some_and(|names| !names.is_empty()))
        .collect();
    all.sort_by(|a, b| (Reverse(a.size_bytes), &a.names).cmp(&(Reverse(b.size_bytes), &b.names)));
    all.truncate(MOST_IMAGES);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(tags: &[&str], size: u64) -> v1::Image {
        v1::Image {
            repo_tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            repo_digests: vec![],
            size,
            ..v1::Image::default()
        }
    }

    #[test]
    fn the_largest_images_are_listed() {
        let mut images: Vec<v1::Image> = (0..60).map(|n| image(&[&format!("i:{n}")], n)).collect();
        images.push(image(&[], 1000));
        images.push(image(&["a", "b", "c", "d", "e", "f"], 500));
        images.reverse();
        let listed = largest(images);
        assert_eq!(listed.len(), 50);
        assert_eq!(
            (listed[0].size_bytes, listed[0].names.as_ref().unwrap().len()),
            (Some(500), 5)
        );
        assert_eq!(listed[1].names.as_deref(), Some(&["i:59".to_owned()][..]));
        assert!(replace(&mut Vec::new(), listed.clone()) && !replace(&mut listed.clone(), listed));
    }
}
