//! The simulator's own pods, managed as a kubelet does: a container is restarted as a new attempt in the same sandbox, and one of its
//! dead attempts is kept.

use std::sync::Arc;
use std::time::Duration;

use pleg_cri::v1;

use super::schedule::DueKey;
use super::{Due, Ending, Script, World, WorldError, template};
use crate::clock::nanos;
use crate::config::SimConfig;
use crate::selector::{PodRef, Selector};

/// Containers of one pod at most.
const MOST_PER_POD: usize = 1000;
/// Dead attempts of a container that are kept, as a kubelet keeps them.
const KEPT_DEAD: usize = 1;
/// A restart that is due while the pod's shim hangs is tried again after this.
const SHIM_RETRY: Duration = Duration::from_secs(1);

/// A container of a pod that the simulator makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its name.
    pub name: String,
    /// Its image, which is pulled if need be.
    pub image: String,
    /// What it does by itself.
    pub script: Script,
    /// Delay after each exit before it is restarted as a new attempt: a crash loop.
    pub restart: Option<Duration>,
}

/// A pod that the simulator makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSpec {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its containers.
    pub containers: Vec<ContainerSpec>,
}

/// What the simulator has to know to restart its own pods' containers.
#[derive(Debug)]
pub(crate) struct Own {
    containers: Vec<(ContainerSpec, Option<DueKey>)>,
}

/// How pods without a specification are made.
#[derive(Debug)]
pub(crate) struct Template {
    containers: usize,
    dead: usize,
    script: Script,
    /// How many were made: the next one's number.
    count: usize,
}

impl Template {
    pub(crate) fn new(config: &SimConfig) -> Self {
        Self {
            containers: config.containers.min(MOST_PER_POD),
            dead: config.dead,
            script: config.script.clone(),
            count: 0,
        }
    }
}

impl World {
    /// Adds pods as the configuration describes them: `default/web-N`.
    pub fn add_pods(&mut self, count: usize) -> Result<(), WorldError> {
        for _ in 0..count {
            let name = format!("web-{}", self.template.count);
            self.template.count += 1;
            let containers = (0..self.template.containers)
                .map(|n| ContainerSpec {
                    name: template::container_name(n),
                    image: template::DEFAULT_IMAGE.to_owned(),
                    script: self.template.script.clone(),
                    restart: None,
                })
                .collect();
            let namespace = "default".to_owned();
            let uid = self.add_pod(PodSpec {
                namespace,
                name,
                containers,
            })?;
            self.add_dead(&uid)?;
        }
        Ok(())
    }

    /// Adds a pod that runs at once. Returns its UID.
    pub fn add_pod(&mut self, spec: PodSpec) -> Result<Arc<str>, WorldError> {
        if spec.containers.len() > MOST_PER_POD {
            return Err(WorldError::Full("containers of one pod", MOST_PER_POD));
        }
        let uid = self.new_uid();
        let seen = self.clock.now();
        self.run_sandbox(template::sandbox(&spec.namespace, &spec.name, &uid, 0, seen), "")?;
        let uid: Arc<str> = uid.into();
        let names: Vec<String> = spec.containers.iter().map(|container| container.name.clone()).collect();
        if let Some(pod) = self.pods.get_mut(&uid) {
            let containers = spec.containers.into_iter().map(|container| (container, None)).collect();
            pod.own = Some(Own { containers });
        }
        for name in names {
            self.start_attempt(&uid, &name, 0)?;
        }
        Ok(uid)
    }

    /// Creates the dead attempts of the configuration, by restarts, and keeps them.
    fn add_dead(&mut self, uid: &Arc<str>) -> Result<(), WorldError> {
        let names = self.container_names(uid);
        for attempt in 1..=self.template.dead {
            for name in &names {
                if let Some(id) = self.latest(uid, name) {
                    self.finish_now(&id, Ending::Exit(1));
                }
                self.start_attempt(uid, name, u32::try_from(attempt).unwrap_or(u32::MAX))?;
            }
        }
        Ok(())
    }

    /// Starts the given attempt of a container of one of our own pods, in its newest sandbox.
    fn start_attempt(&mut self, uid: &Arc<str>, name: &str, attempt: u32) -> Result<Arc<str>, WorldError> {
        let missing = || WorldError::NoPod(uid.to_string());
        let pod = self.pods.get(uid).ok_or_else(missing)?;
        let sandbox = pod
            .sandboxes
            .last()
            .and_then(|id| self.sandboxes.get(id))
            .ok_or_else(missing)?;
        let spec = pod
            .own
            .as_ref()
            .and_then(|own| own.containers.iter().find(|(spec, _)| spec.name == name));
        let (image, script) = match spec {
            Some((spec, _)) => (spec.image.clone(), spec.script.clone()),
            None => (template::DEFAULT_IMAGE.to_owned(), Script::default()),
        };
        let (sandbox, metadata) = (Arc::clone(&sandbox.id), sandbox.metadata.clone());
        let image_id = self.pull_image(&image)?;
        let config = template::container(&metadata, name, attempt, &image, &image_id);
        let id = self.create_scripted(&sandbox, config, script)?;
        self.start_container(&id)?;
        Ok(id)
    }

    /// The key of the pod of that name.
    pub(super) fn find_pod(&self, pod: &PodRef) -> Result<Arc<str>, WorldError> {
        self.names
            .get(pod.as_str())
            .cloned()
            .ok_or_else(|| WorldError::NoPod(pod.to_string()))
    }

    fn container_names(&self, key: &str) -> Vec<String> {
        let containers = self.pods.get(key).map_or(&[][..], |pod| &pod.containers);
        let mut names: Vec<String> = Vec::new();
        for container in containers.iter().filter_map(|id| self.containers.get(id)) {
            if !names.contains(&container.metadata.name) {
                names.push(container.metadata.name.clone());
            }
        }
        names
    }

    /// The newest attempt of a container.
    fn latest(&self, key: &str, name: &str) -> Option<Arc<str>> {
        let containers = self
            .pods
            .get(key)?
            .containers
            .iter()
            .filter_map(|id| self.containers.get(id));
        let latest = containers
            .filter(|c| c.metadata.name == name)
            .max_by_key(|c| (c.metadata.attempt, c.created_at))?;
        Some(Arc::clone(&latest.id))
    }

    /// Ids of what a selector names: the pod's sandboxes and containers, or all attempts of one container.
    pub fn select(&self, pod: &PodRef, container: Option<&str>) -> Result<Vec<Arc<str>>, WorldError> {
        let key = self.find_pod(pod)?;
        let Some(entry) = self.pods.get(&key) else {
            return Err(WorldError::NoPod(pod.to_string()));
        };
        let Some(name) = container else {
            return Ok(entry.sandboxes.iter().chain(&entry.containers).cloned().collect());
        };
        let named = |id: &&Arc<str>| self.containers.get(id).is_some_and(|c| c.metadata.name == name);
        let ids: Vec<Arc<str>> = entry.containers.iter().filter(named).cloned().collect();
        if ids.is_empty() {
            return Err(WorldError::NoContainer {
                pod: pod.to_string(),
                container: name.chars().take(80).collect(),
                has: match self.container_names(&key).join(", ") {
                    names if names.is_empty() => "none".to_owned(),
                    names => names,
                },
            });
        }
        Ok(ids)
    }

    /// The ids of what a selector names.
    pub fn ids(&self, selector: &Selector) -> Result<Vec<Arc<str>>, WorldError> {
        self.select(&selector.pod, selector.container.as_deref())
    }

    /// Every container of the pod, or the named one, exits now. Returns how many did.
    pub fn exit(&mut self, pod: &PodRef, container: Option<&str>, ending: Ending) -> Result<usize, WorldError> {
        let ids = self.select(pod, container)?;
        Ok(ids.iter().filter(|id| self.finish(id, ending)).count())
    }

    /// Every container of the pod, or the named one, has exited by what the runtime says, and its process lives on. Returns how many.
    pub fn exit_leaving_process(
        &mut self,
        pod: &PodRef,
        container: Option<&str>,
        ending: Ending,
    ) -> Result<usize, WorldError> {
        if self.processes.is_none() {
            let words = "the containers have no processes to leave: start the simulator with --processes";
            return Err(WorldError::Refused(words.to_owned()));
        }
        let ids = self.select(pod, container)?;
        Ok(ids.iter().filter(|id| self.finish_leaving(id, ending, true)).count())
    }

    /// Every container of the pod, or the named one, is restarted now as a new attempt. Returns how many were.
    pub fn restart(&mut self, pod: &PodRef, container: Option<&str>) -> Result<usize, WorldError> {
        self.select(pod, container)?;
        let key = self.find_pod(pod)?;
        let names = container.map_or_else(|| self.container_names(&key), |name| vec![name.to_owned()]);
        for name in &names {
            self.restart_container(&key, name)?;
        }
        Ok(names.len())
    }

    /// Removes the pod with all its sandboxes, or all attempts of the container named. Returns the ids that are gone.
    pub fn remove(&mut self, pod: &PodRef, container: Option<&str>) -> Result<Vec<Arc<str>>, WorldError> {
        let ids = self.select(pod, container)?;
        if container.is_some() {
            for id in &ids {
                self.remove_container(id);
            }
        } else {
            self.remove_pod(&self.find_pod(pod)?);
        }
        Ok(ids)
    }

    pub(super) fn remove_pod(&mut self, key: &str) {
        let Some(pod) = self.pods.get(key) else { return };
        let (sandboxes, containers) = (pod.sandboxes.clone(), pod.containers.clone());
        for id in &containers {
            self.stop_container(id, Duration::from_secs(1));
        }
        for id in sandboxes {
            self.remove_sandbox(&id);
        }
        // Containers whose sandbox had been removed before.
        for id in containers {
            self.remove_container(&id);
        }
    }

    /// Every running container exits now. Returns how many did.
    pub fn storm(&mut self, ending: Ending) -> usize {
        let running: Vec<Arc<str>> = self
            .containers
            .iter()
            .filter(|c| c.running())
            .map(|c| Arc::clone(&c.id))
            .collect();
        running.iter().filter(|id| self.finish(id, ending)).count()
    }

    /// The next attempt of a container, with a kubelet's clean-up of older ones.
    fn restart_container(&mut self, key: &Arc<str>, name: &str) -> Result<(), WorldError> {
        let Some(latest) = self.latest(key, name) else {
            return Ok(());
        };
        if self.shim_hangs(&latest) {
            return Err(WorldError::Refused(format!(
                "the shim of container {name} hangs: it cannot be restarted"
            )));
        }
        self.finish_now(&latest, Ending::Exit(143));
        let attempt = self
            .containers
            .get(&latest)
            .map_or(0, |c| c.metadata.attempt.saturating_add(1));
        let pod = self.pods.get(key).map_or(&[][..], |pod| &pod.containers);
        let dead = |id: &&Arc<str>| {
            self.containers
                .get(id)
                .is_some_and(|c| c.exited() && c.metadata.name == name)
        };
        let dead: Vec<Arc<str>> = pod.iter().filter(dead).cloned().collect();
        for id in &dead[..dead.len().saturating_sub(KEPT_DEAD)] {
            self.remove_container(id);
        }
        self.start_attempt(key, name, attempt)?;
        Ok(())
    }

    /// A scheduled restart is due.
    pub(super) fn restart_due(&mut self, key: &Arc<str>, name: &str) {
        if let Some(due) = self.own_due(key, name) {
            *due = None;
        }
        if self.latest(key, name).is_some_and(|latest| self.shim_hangs(&latest)) {
            self.plan_restart(key, name, SHIM_RETRY);
            return;
        }
        // A pod that is being taken down has no ready sandbox: then there is nothing to restart in.
        if let Err(error) = self.restart_container(key, name) {
            tracing::debug!(pod = %key, container = name, %error, "container not restarted");
        }
    }

    /// Plans the restart of a container of one of our own pods, unless one is planned.
    pub(super) fn plan_restart(&mut self, key: &Arc<str>, name: &str, after: Duration) {
        let at = self.clock.now().saturating_add(nanos(after));
        let Some(slot) = self.own_due(key, name) else { return };
        if slot.is_some() {
            return;
        }
        let due = self.schedule.add(
            at,
            Due::Restart {
                pod: Arc::clone(key),
                container: name.to_owned(),
            },
        );
        if let Some(slot) = self.own_due(key, name) {
            *slot = Some(due);
        }
    }

    /// After a container ended: plans its restart, if its pod says so.
    pub(super) fn crash_loop(&mut self, key: &Arc<str>, name: &str) {
        let own = self.pods.get(key).and_then(|pod| pod.own.as_ref());
        let spec = own.and_then(|own| own.containers.iter().find(|(spec, _)| spec.name == name));
        if let Some(after) = spec.and_then(|(spec, _)| spec.restart) {
            self.plan_restart(key, name, after);
        }
    }

    fn own_due(&mut self, key: &str, name: &str) -> Option<&mut Option<DueKey>> {
        let own = self.pods.get_mut(key)?.own.as_mut()?;
        own.containers
            .iter_mut()
            .find(|(spec, _)| spec.name == name)
            .map(|(_, due)| due)
    }

    pub(super) fn cancel_restarts(&mut self, own: Option<&Own>) {
        for &(_, due) in own.map_or(&[][..], |own| &own.containers) {
            if let Some(due) = due {
                self.schedule.cancel(due);
            }
        }
    }

    /// A pod for [`World::add_odd`]: one sandbox, one running container.
    pub(super) fn odd_pod(&mut self) -> Result<(Arc<str>, Arc<str>), WorldError> {
        let number = self.template.count;
        self.template.count += 1;
        let uid = self.add_pod(PodSpec {
            namespace: "default".to_owned(),
            name: format!("odd-{number}"),
            containers: vec![ContainerSpec {
                name: template::container_name(0),
                image: template::DEFAULT_IMAGE.to_owned(),
                script: Script::default(),
                restart: None,
            }],
        })?;
        let pod = self.pods.get(&uid).ok_or_else(|| WorldError::NoPod(uid.to_string()))?;
        match (pod.sandboxes.first(), pod.containers.first()) {
            (Some(sandbox), Some(container)) => Ok((Arc::clone(sandbox), Arc::clone(container))),
            _ => Err(WorldError::NoPod(uid.to_string())),
        }
    }

    /// A pod for [`super::Odd::MarkupNames`].
    pub(super) fn markup_pod(&mut self) -> Result<(), WorldError> {
        let number = self.template.count;
        self.template.count += 1;
        self.add_pod(PodSpec {
            namespace: "<i>odd".to_owned(),
            name: format!("{}{number}", super::odd::MARKUP),
            containers: vec![ContainerSpec {
                name: "<script>window.hacked=2</script>".to_owned(),
                image: template::DEFAULT_IMAGE.to_owned(),
                script: Script::default(),
                restart: None,
            }],
        })?;
        Ok(())
    }

    /// Every pod with its containers' names and states, sorted by name: what a person can select.
    pub fn pod_names(&self) -> Vec<(PodRef, Vec<(String, v1::ContainerState)>)> {
        let mut pods: Vec<_> = self
            .names
            .iter()
            .map(|(name, key)| {
                let names = self.container_names(key).into_iter();
                let state = |name: &str| {
                    self.latest(key, name)
                        .and_then(|id| self.containers.get(&id))
                        .map(|c| c.state)
                };
                let containers = names
                    .filter_map(|name| state(&name).map(|state| (name, state)))
                    .collect();
                (PodRef::from_parts(name), containers)
            })
            .collect();
        pods.sort_unstable_by(|(a, _), (b, _)| natural(a.as_str()).cmp(&natural(b.as_str())));
        pods
    }
}

/// Sorts `web-9` before `web-10`.
fn natural(name: &str) -> (&str, usize, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name.len(), &name[stem.len()..])
}
