//! Which objects a pod refers to. Pure.

use std::collections::BTreeSet;

use super::TokenRequest;
use crate::manifest::{Container, EnvValue, KeyRef, ObjectKind, ObjectRef, Pod, Projection, Volume};

/// References to objects of the pod's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    /// Config maps and secrets, by name.
    pub data: BTreeSet<(ObjectKind, String)>,
    /// Tokens of the pod's service account.
    pub tokens: BTreeSet<TokenRequest>,
    /// Persistent volume claims, by name.
    pub claims: BTreeSet<String>,
}

impl References {
    /// Of the volumes of a pod: what their files contain follows these objects.
    pub fn of_volumes(pod: &Pod) -> Self {
        let mut found = Self::default();
        for volume in pod.spec.volumes.values() {
            match volume {
                Volume::Projected(volume) => volume.sources.iter().for_each(|source| found.add_source(source)),
                Volume::PersistentVolumeClaim { claim, .. } => _ = found.claims.insert(claim.clone()),
                Volume::EmptyDir(_) | Volume::HostPath { .. } => {}
            }
        }
        found
    }

    /// Of the environment of a container: read when it is started.
    pub fn of_environment(container: &Container) -> Self {
        let mut found = Self::default();
        for from in &container.env_from {
            found.add(&from.source);
        }
        for var in &container.env {
            match &var.value {
                EnvValue::ConfigMapKey(key) => found.add_key(ObjectKind::ConfigMap, key),
                EnvValue::SecretKey(key) => found.add_key(ObjectKind::Secret, key),
                EnvValue::Text(_) | EnvValue::Field(_) | EnvValue::Resource(_) => {}
            }
        }
        found
    }

    /// All that a pod refers to: its volumes, the environment of its containers, its image pull secrets.
    pub fn of_pod(pod: &Pod) -> Self {
        let mut found = Self::of_volumes(pod);
        for container in pod.spec.all_containers().chain(&pod.spec.ephemeral_containers) {
            found.data.extend(Self::of_environment(container).data);
        }
        let secrets = pod.spec.image_pull_secrets.iter();
        found
            .data
            .extend(secrets.map(|secret| (ObjectKind::Secret, secret.clone())));
        found
    }

    fn add(&mut self, object: &ObjectRef) {
        self.data.insert((object.kind, object.name.clone()));
    }

    fn add_key(&mut self, kind: ObjectKind, key: &KeyRef) {
        self.data.insert((kind, key.name.clone()));
    }

    fn add_source(&mut self, source: &Projection) {
        match source {
            Projection::Object { object, .. } => self.add(object),
            Projection::ServiceAccountToken {
                audience, expiration, ..
            } => {
                self.tokens.insert(TokenRequest {
                    audience: audience.clone(),
                    expiration: *expiration,
                });
            }
            Projection::DownwardApi(_) => {}
        }
    }
}
