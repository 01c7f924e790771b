//! The list answers of a node, as bytes, with items and labels in another order in every answer: real runtimes range over maps.

use std::collections::HashMap;

use pleg::internals::{Coverage, Records, Snapshot};
use pleg_cri::v1;
use prost::Message;

/// Encoded items of a node with two containers a pod.
pub(crate) struct Node {
    sandboxes: Vec<Vec<u8>>,
    containers: Vec<Vec<u8>>,
}

impl Node {
    pub(crate) fn new(pods: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let mut id = || {
            (0..64)
                .map(|_| char::from_digit(random.u32(0..16), 16).unwrap_or('0'))
                .collect::<String>()
        };
        let (mut sandboxes, mut containers) = (Vec::new(), Vec::new());
        for n in 0..pods {
            let sandbox = id();
            let labels = HashMap::from([
                (
                    "io.kubernetes.pod.uid".to_owned(),
                    format!("{n:08x}-0000-4000-8000-000000000000"),
                ),
                ("io.kubernetes.pod.name".to_owned(), format!("web-{n}")),
                ("io.kubernetes.pod.namespace".to_owned(), "default".to_owned()),
                ("app".to_owned(), "web".to_owned()),
            ]);
            let annotations: HashMap<_, _> = (0..6)
                .map(|k| {
                    (
                        format!("io.kubernetes.container.annotation-{k}"),
                        "some value of usual length".to_owned(),
                    )
                })
                .collect();
            let metadata = v1::PodSandboxMetadata {
                name: format!("web-{n}"),
                uid: labels["io.kubernetes.pod.uid"].clone(),
                namespace: "default".to_owned(),
                attempt: 0,
            };
            for name in ["app", "sidecar"] {
                containers.push(
                    v1::Container {
                        id: id(),
                        pod_sandbox_id: sandbox.clone(),
                        metadata: Some(v1::ContainerMetadata {
                            name: name.to_owned(),
                            attempt: 0,
                        }),
                        state: 1,
                        created_at: 1_700_000_000_000_000_000,
                        labels: labels.clone(),
                        annotations: annotations.clone(),
                        ..Default::default()
                    }
                    .encode_to_vec(),
                );
            }
            sandboxes.push(
                v1::PodSandbox {
                    id: sandbox,
                    metadata: Some(metadata),
                    created_at: 1_700_000_000_000_000_000,
                    labels,
                    annotations,
                    ..Default::default()
                }
                .encode_to_vec(),
            );
        }
        Self { sandboxes, containers }
    }

    pub(crate) fn shuffle(&mut self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        random.shuffle(&mut self.sandboxes);
        random.shuffle(&mut self.containers);
    }

    /// What a relist does with the bytes: decode, and match against the records. Returns how many pods have news.
    pub(crate) fn look(&self, snapshot: &mut Snapshot, records: &mut Records) -> usize {
        records.prepare(snapshot);
        // As a frame of 16 kB brings them.
        for items in self.sandboxes.chunks(20) {
            let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
            assert!(snapshot.sandboxes.push_raw(&items).is_ok());
        }
        for items in self.containers.chunks(20) {
            let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
            assert!(snapshot.containers.push_raw(&items).is_ok());
        }
        let (touched, _) = records.observe(snapshot, Coverage::Full);
        let news = touched.len();
        for &pod in &touched {
            let view = records.listed(pod);
            records.commit(pod, &view);
        }
        records.recycle(touched);
        news
    }
}
