//! What CRI calls do. Behaviour and idempotence are containerd's: stopping or removing what is not there succeeds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::error::quoted;
use pleg_cri::v1::{self, ContainerEventType as Event, ContainerState as State};

use super::object::{Container, Pairs, Sandbox};
use super::{Due, Ending, MOST_BYTES, MOST_CONTAINERS, MOST_SANDBOXES, MOST_TEXT, Pod, Script, World, WorldError};
use crate::clock::nanos;

/// How far a stop got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    /// It is stopped.
    Done,
    /// It ignores SIGTERM: kill it after this time.
    KillAfter(Duration),
}

/// Reads a map in an order that does not depend on the process: the world is deterministic.
fn pairs(map: HashMap<String, String>) -> Result<Pairs, WorldError> {
    let size: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MOST_TEXT {
        return Err(WorldError::Full(
            "bytes of labels or annotations of one object",
            MOST_TEXT,
        ));
    }
    let mut pairs: Pairs = map.into_iter().collect();
    pairs.sort_unstable();
    Ok(pairs)
}

/// The metadata of a new sandbox, which must name its pod.
fn checked(metadata: Option<v1::PodSandboxMetadata>) -> Result<v1::PodSandboxMetadata, WorldError> {
    let metadata = metadata.ok_or_else(|| WorldError::Invalid("sandbox config must include metadata".into()))?;
    if metadata.name.is_empty() || metadata.namespace.is_empty() {
        return Err(WorldError::Invalid(
            "sandbox metadata must have a name and a namespace".into(),
        ));
    }
    Ok(metadata)
}

/// A group belongs to a user: runtimes refuse one without the other.
fn check_user(linux: Option<&v1::LinuxContainerConfig>) -> Result<(), WorldError> {
    let context = linux.and_then(|linux| linux.security_context.as_ref());
    let alone = |context: &v1::LinuxContainerSecurityContext| {
        context.run_as_group.is_some() && context.run_as_user.is_none() && context.run_as_username.is_empty()
    };
    if context.is_some_and(alone) {
        return Err(WorldError::Invalid(
            "run_as_group is set without run_as_user or run_as_username".into(),
        ));
    }
    Ok(())
}

pub(super) fn not_found(kind: &'static str, id: &str) -> WorldError {
    let name = id.chars().take(80).collect();
    WorldError::NotFound { kind, name }
}

impl World {
    /// `RunPodSandbox`.
    pub fn run_sandbox(&mut self, config: v1::PodSandboxConfig, handler: &str) -> Result<Arc<str>, WorldError> {
        let metadata = checked(config.metadata)?;
        if self.sandboxes.len() >= MOST_SANDBOXES {
            return Err(WorldError::Full("sandboxes", MOST_SANDBOXES));
        }
        self.check_room()?;
        let (labels, annotations) = (pairs(config.labels)?, pairs(config.annotations)?);
        let id = self.new_id();
        self.reserve(sandbox_name(&metadata), &id)?;
        let host_network = config
            .linux
            .and_then(|linux| linux.security_context)
            .and_then(|context| context.namespace_options)
            .is_some_and(|options| options.network() == v1::NamespaceMode::Node);
        let address = self.pod_cidr.address(self.rng.u32(..));
        let ip = if host_network {
            String::new()
        } else {
            address.to_string()
        };
        let mut sandbox = Sandbox {
            id: Arc::clone(&id),
            pod: self.enter(&id, &metadata),
            metadata,
            ready: true,
            created_at: self.stamp(),
            ip,
            host_network,
            handler: handler.to_owned(),
            log_directory: config.log_directory,
            labels,
            annotations,
            quirk: None,
            encoded: super::encode::Variants::default(),
            told: std::cell::OnceCell::new(),
            size: 0,
        };
        if let Some(processes) = &mut self.processes {
            processes.add_sandbox(&sandbox.pod, &id)?;
        }
        sandbox.encode(&mut self.shuffle);
        sandbox.size = sandbox.encoded.bytes();
        self.bytes += sandbox.size;
        self.sandboxes.insert(sandbox);
        self.emit(Event::ContainerCreatedEvent, &id, &id);
        self.emit(Event::ContainerStartedEvent, &id, &id);
        Ok(id)
    }

    /// Enters a sandbox in its pod, which it may create. Returns the pod's key.
    fn enter(&mut self, sandbox: &Arc<str>, metadata: &v1::PodSandboxMetadata) -> Arc<str> {
        let full_name = format!("{}/{}", metadata.namespace, metadata.name);
        let key: Arc<str> = match &*metadata.uid {
            "" => full_name.as_str().into(),
            uid => uid.into(),
        };
        let pod = self.pods.entry(Arc::clone(&key)).or_insert_with(|| Pod {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            own: None,
            shim: super::shim::Shim::default(),
        });
        pod.sandboxes.push(Arc::clone(sandbox));
        self.names.insert(full_name, Arc::clone(&key));
        key
    }

    /// `StopPodSandbox`: kills its containers, then it is not ready.
    pub fn stop_sandbox(&mut self, id: &str) {
        for container in self.containers_of(id) {
            self.kill_container(&container);
        }
        let Some(sandbox) = self.sandboxes.get_mut(id).filter(|sandbox| sandbox.ready) else {
            return;
        };
        sandbox.ready = false;
        sandbox.encode(&mut self.shuffle);
        if let Some(processes) = &self.processes {
            processes.remove_cgroup(&sandbox.pod, Some(id));
        }
        self.emit(Event::ContainerStoppedEvent, id, id);
    }

    /// `RemovePodSandbox`: stops it if need be, and removes its containers.
    pub fn remove_sandbox(&mut self, id: &str) {
        self.stop_sandbox(id);
        for container in self.containers_of(id) {
            self.remove_container(&container);
        }
        let status = self.sandboxes.get(id).map(Sandbox::status);
        if status.is_some() {
            self.forget_sandbox(id);
            self.emit_deleted(id, status.as_ref());
        }
    }

    /// Removes a sandbox, whatever its containers do.
    pub(super) fn forget_sandbox(&mut self, id: &str) {
        let Some(sandbox) = self.sandboxes.remove(id) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(sandbox.size);
        self.reserved.remove(&sandbox_name(&sandbox.metadata));
        if let Some(pod) = self.pods.get_mut(&sandbox.pod) {
            pod.sandboxes.retain(|other| **other != *id);
        }
        self.forget_empty_pod(&sandbox.pod);
    }

    /// `CreateContainer`.
    pub fn create_container(&mut self, sandbox: &str, config: v1::ContainerConfig) -> Result<Arc<str>, WorldError> {
        check_user(config.linux.as_ref())?;
        let words = config.command.iter().chain(&config.args).map(String::as_str);
        let script = Script::parse(words);
        let id = self.create_scripted(sandbox, config, script)?;
        if let Some(container) = self.containers.get_mut(&id) {
            container.logs = !container.log_path.is_empty();
        }
        Ok(id)
    }

    /// `CreateContainer` of a container whose script is known.
    pub(super) fn create_scripted(
        &mut self,
        sandbox: &str,
        config: v1::ContainerConfig,
        script: Script,
    ) -> Result<Arc<str>, WorldError> {
        let owner = self
            .sandboxes
            .get(sandbox)
            .ok_or_else(|| not_found("sandbox", sandbox))?;
        if !owner.ready {
            return Err(not_found("running task of sandbox", sandbox));
        }
        let metadata = config
            .metadata
            .ok_or_else(|| WorldError::Invalid("container config must include metadata".into()))?;
        let image = config.image.unwrap_or_default().image;
        let found = self.images.find(&image).map(|(_, stored)| stored.id.clone());
        let image_ref = found.ok_or_else(|| not_found("image (pull it first)", &image))?;
        if self.containers.len() >= MOST_CONTAINERS {
            return Err(WorldError::Full("containers", MOST_CONTAINERS));
        }
        self.check_room()?;
        let (labels, annotations) = (pairs(config.labels)?, pairs(config.annotations)?);
        let (pod, sandbox) = (Arc::clone(&owner.pod), Arc::clone(&owner.id));
        let name = container_name(&owner.metadata, &metadata);
        let log_path = super::object::log_path(&owner.log_directory, &config.log_path);
        let id = self.new_id();
        self.reserve(name.clone(), &id)?;
        let mut container = Container {
            id: Arc::clone(&id),
            reserved: name,
            sandbox: Arc::clone(&sandbox),
            pod: Arc::clone(&pod),
            metadata,
            state: State::ContainerCreated,
            created_at: self.stamp(),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: "",
            message: String::new(),
            image,
            image_ref,
            labels,
            annotations,
            log_path,
            logs: false,
            mounts: config.mounts,
            resources: config.linux.and_then(|linux| linux.resources),
            script,
            process: None,
            due: None,
            quirk: None,
            encoded: super::encode::Variants::default(),
            told: std::cell::OnceCell::new(),
            size: 0,
        };
        container.encode(&mut self.shuffle);
        container.size = container.encoded.bytes();
        self.bytes += container.size;
        self.containers.insert(container);
        if let Some(pod) = self.pods.get_mut(&pod) {
            pod.containers.push(Arc::clone(&id));
        }
        self.emit(Event::ContainerCreatedEvent, &id, &sandbox);
        Ok(id)
    }

    /// `StartContainer`.
    pub fn start_container(&mut self, id: &str) -> Result<(), WorldError> {
        let now = self.stamp();
        let container = self.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        if container.state != State::ContainerCreated {
            let state = container.state.as_str_name();
            return Err(WorldError::Refused(format!(
                "container {} is in {state} state",
                quoted(id)
            )));
        }
        let sandbox = Arc::clone(&container.sandbox);
        if self.sandboxes.get(&sandbox).is_none_or(|sandbox| !sandbox.ready) {
            return Err(WorldError::Refused(format!(
                "sandbox container {} is not running",
                quoted(&sandbox)
            )));
        }
        if container.script.start_fails {
            return Err(self.fail_start(id, "exec: no such file or directory"));
        }
        if let Err(error) = self.start_process(id) {
            return Err(self.fail_start(id, &error.to_string()));
        }
        let container = self.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        container.state = State::ContainerRunning;
        container.started_at = now;
        container.encode(&mut self.shuffle);
        if let Some((after, ending)) = container.script.ends {
            let due = Due::End {
                id: Arc::clone(&container.id),
                ending,
            };
            container.due = Some(self.schedule.add(now.saturating_add(nanos(after)), due));
        }
        self.emit(Event::ContainerStartedEvent, id, &sandbox);
        self.write_log(id);
        Ok(())
    }

    /// A created container cannot be started. As on containerd: exited, and no event ever says so.
    pub(crate) fn fail_start(&mut self, id: &str, why: &str) -> WorldError {
        let now = self.stamp();
        if let Some(container) = self.containers.get_mut(id) {
            container.state = State::ContainerExited;
            (container.exit_code, container.reason) = (128, "StartError");
            container.message = format!("failed to create containerd task: {why}");
            container.finished_at = now;
            container.encode(&mut self.shuffle);
        }
        WorldError::Refused(format!("failed to start container {}: {why}", quoted(id)))
    }

    /// `StopContainer`, its first half: SIGTERM.
    pub fn stop_container(&mut self, id: &str, grace: Duration) -> Stopping {
        let Some(container) = self.containers.get(id).filter(|container| container.running()) else {
            return Stopping::Done;
        };
        match container.script.on_term {
            _ if grace.is_zero() => self.kill_container(id),
            Some(code) => self.finish_now(id, Ending::Exit(code)),
            None => return Stopping::KillAfter(grace),
        };
        Stopping::Done
    }

    /// SIGKILL.
    pub fn kill_container(&mut self, id: &str) -> bool {
        self.finish_now(id, Ending::Exit(137))
    }

    /// A running container ends by itself. False if there is none such, or if it is ending.
    pub fn finish(&mut self, id: &str, ending: Ending) -> bool {
        self.end_process(id, ending)
            .unwrap_or_else(|| self.finish_now(id, ending))
    }

    /// A running container has ended, and its process with it. False if there is none such.
    pub(super) fn finish_now(&mut self, id: &str, ending: Ending) -> bool {
        self.finish_leaving(id, ending, false)
    }

    /// A running container has ended, by what the runtime says; its process may be left.
    pub(super) fn finish_leaving(&mut self, id: &str, ending: Ending, leave_process: bool) -> bool {
        let now = self.stamp();
        let Some(container) = self.containers.get(id).filter(|container| container.running()) else {
            return false;
        };
        let pod = Arc::clone(&container.pod);
        if let Some(ended) = self.end_unseen(&pod, id, ending) {
            return ended;
        }
        let Some(container) = self.containers.get_mut(id) else {
            return false;
        };
        container.state = State::ContainerExited;
        container.finished_at = now;
        (container.exit_code, container.reason) = (ending.code(), ending.reason());
        container.encode(&mut self.shuffle);
        if let Some(due) = container.due.take() {
            self.schedule.cancel(due);
        }
        let sandbox = Arc::clone(&container.sandbox);
        let name = container.metadata.name.clone();
        if !leave_process {
            self.kill_process(id);
        }
        self.emit(Event::ContainerStoppedEvent, id, &sandbox);
        self.crash_loop(&pod, &name);
        true
    }

    /// `RemoveContainer`: kills it if need be.
    pub fn remove_container(&mut self, id: &str) {
        self.kill_container(id);
        // One that was left over, too.
        self.kill_process(id);
        let Some(container) = self.containers.remove(id) else {
            return;
        };
        if let Some(due) = container.due {
            self.schedule.cancel(due);
        }
        self.bytes = self.bytes.saturating_sub(container.size);
        self.reserved.remove(&container.reserved);
        if let Some(pod) = self.pods.get_mut(&container.pod) {
            pod.containers.retain(|other| **other != *id);
        }
        self.emit(Event::ContainerDeletedEvent, id, &container.sandbox);
        self.forget_empty_pod(&container.pod);
    }

    /// `UpdateContainerResources`.
    pub fn update_resources(
        &mut self,
        id: &str,
        resources: Option<v1::LinuxContainerResources>,
    ) -> Result<(), WorldError> {
        let container = self.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        if resources.is_some() {
            container.resources = resources;
            container.told.take();
        }
        Ok(())
    }

    /// What `ExecSync` and `ReopenContainerLog` need.
    pub fn check_running(&self, id: &str) -> Result<(), WorldError> {
        let container = self.containers.get(id).ok_or_else(|| not_found("container", id))?;
        if container.running() {
            return Ok(());
        }
        let state = container.state.as_str_name();
        Err(WorldError::Refused(format!("container is in {state} state")))
    }

    /// `ContainerStatus`.
    pub fn container_status(&self, id: &str) -> Result<v1::ContainerStatus, WorldError> {
        let container = self.containers.get(id).ok_or_else(|| not_found("container", id))?;
        Ok(container.status())
    }

    /// `PodSandboxStatus`.
    pub fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus, WorldError> {
        let sandbox = self.sandboxes.get(id).ok_or_else(|| not_found("sandbox", id))?;
        Ok(sandbox.status())
    }

    /// Statuses of the containers of a sandbox, oldest first.
    pub fn statuses_of(&self, sandbox: &str) -> Vec<v1::ContainerStatus> {
        let containers = self.containers_of(sandbox);
        containers
            .iter()
            .filter_map(|id| self.containers.get(id))
            .map(Container::status)
            .collect()
    }

    /// Ids of the containers of a sandbox, oldest first.
    pub(super) fn containers_of(&self, sandbox: &str) -> Vec<Arc<str>> {
        let Some(pod) = self
            .sandboxes
            .get(sandbox)
            .and_then(|sandbox| self.pods.get(&sandbox.pod))
        else {
            return Vec::new();
        };
        let of_sandbox = |id: &&Arc<str>| self.containers.get(id).is_some_and(|c| *c.sandbox == *sandbox);
        pod.containers.iter().filter(of_sandbox).cloned().collect()
    }

    fn check_room(&self) -> Result<(), WorldError> {
        if self.bytes >= MOST_BYTES {
            return Err(WorldError::Full("bytes of objects", MOST_BYTES));
        }
        Ok(())
    }

    fn reserve(&mut self, name: String, id: &Arc<str>) -> Result<(), WorldError> {
        if let Some(by) = self.reserved.get(&name) {
            return Err(WorldError::Refused(format!(
                "failed to reserve name {}: it is reserved for {}",
                quoted(&name),
                quoted(by)
            )));
        }
        self.reserved.insert(name, Arc::clone(id));
        Ok(())
    }

    fn forget_empty_pod(&mut self, key: &Arc<str>) {
        let Some(pod) = self.pods.get(key) else { return };
        if !pod.sandboxes.is_empty() || !pod.containers.is_empty() {
            return;
        }
        let name = format!("{}/{}", pod.namespace, pod.name);
        if self.names.get(&name) == Some(key) {
            self.names.remove(&name);
        }
        if let Some(processes) = &self.processes {
            processes.remove_cgroup(key, None);
        }
        if let Some(pod) = self.pods.remove(key) {
            self.cancel_restarts(pod.own.as_ref());
        }
    }
}

fn sandbox_name(metadata: &v1::PodSandboxMetadata) -> String {
    let v1::PodSandboxMetadata {
        name,
        uid,
        namespace,
        attempt,
    } = metadata;
    format!("{name}_{namespace}_{uid}_{attempt}")
}

fn container_name(pod: &v1::PodSandboxMetadata, container: &v1::ContainerMetadata) -> String {
    let v1::PodSandboxMetadata {
        name, uid, namespace, ..
    } = pod;
    format!("{}_{name}_{namespace}_{uid}_{}", container.name, container.attempt)
}
