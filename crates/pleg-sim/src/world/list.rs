//! List answers: the encoded items of the objects that a filter selects, in random order.

use pleg_cri::list::POD_UID_LABEL;
use pleg_cri::v1;

use super::World;
use super::encode::Item;

/// The items of one answer, and their size on the wire.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListAnswer {
    pub(crate) items: Vec<Item>,
    pub(crate) bytes: usize,
}

impl ListAnswer {
    fn push(&mut self, item: &Item) {
        self.bytes += item.len();
        self.items.push(item.clone());
    }
}

/// Ids have 64 digits; what is shorter may be the beginning of one.
const ID_LENGTH: usize = 64;

impl World {
    /// The id of a container from what a client wrote: the id itself, or a unique beginning of it.
    pub(crate) fn full_container_id(&self, id: String) -> String {
        if id.len() >= ID_LENGTH || self.containers.get(&id).is_some() {
            return id;
        }
        self.containers.full_id(&id).map_or(id, ToString::to_string)
    }

    /// The id of a sandbox from what a client wrote.
    pub(crate) fn full_sandbox_id(&self, id: String) -> String {
        if id.len() >= ID_LENGTH || self.sandboxes.get(&id).is_some() {
            return id;
        }
        self.sandboxes.full_id(&id).map_or(id, ToString::to_string)
    }

    /// The answer to `ListPodSandbox`.
    pub(crate) fn list_sandboxes(&mut self, filter: Option<&v1::PodSandboxFilter>) -> ListAnswer {
        let mut answer = ListAnswer::default();
        match filter {
            Some(filter) if *filter != v1::PodSandboxFilter::default() => {
                let pod = filter
                    .label_selector
                    .get(POD_UID_LABEL)
                    .and_then(|uid| self.pods.get(uid.as_str()));
                // The cheapest way to candidates; each is then held against the whole filter.
                let mut consider = |sandbox: &super::Sandbox| {
                    if sandbox.matches(filter) {
                        answer.push(sandbox.encoded.any(&mut self.shuffle));
                    }
                };
                if !filter.id.is_empty() {
                    self.sandboxes.get(&filter.id).into_iter().for_each(consider);
                } else if let Some(pod) = pod {
                    pod.sandboxes
                        .iter()
                        .filter_map(|id| self.sandboxes.get(id))
                        .for_each(consider);
                } else {
                    self.sandboxes.iter().for_each(&mut consider);
                }
            }
            _ => {
                answer.items.reserve(self.sandboxes.len());
                for sandbox in self.sandboxes.iter() {
                    answer.push(sandbox.encoded.any(&mut self.shuffle));
                }
                self.extra.sandboxes.iter().for_each(|item| answer.push(item));
                self.extra.padding.iter().for_each(|item| answer.push(item));
            }
        }
        self.shuffle.shuffle(&mut answer.items);
        answer
    }

    /// The answer to `ListContainers`.
    pub(crate) fn list_containers(&mut self, filter: Option<&v1::ContainerFilter>) -> ListAnswer {
        let mut answer = ListAnswer::default();
        match filter {
            Some(filter) if *filter != v1::ContainerFilter::default() => {
                let of_sandbox = self.sandboxes.get(&filter.pod_sandbox_id).map(|sandbox| &*sandbox.pod);
                let of_label = filter.label_selector.get(POD_UID_LABEL).map(String::as_str);
                let pod = of_sandbox.or(of_label).and_then(|pod| self.pods.get(pod));
                let mut consider = |container: &super::Container| {
                    if container.matches(filter) {
                        answer.push(container.encoded.any(&mut self.shuffle));
                    }
                };
                if !filter.id.is_empty() {
                    self.containers.get(&filter.id).into_iter().for_each(consider);
                } else if let Some(pod) = pod {
                    pod.containers
                        .iter()
                        .filter_map(|id| self.containers.get(id))
                        .for_each(consider);
                } else {
                    self.containers.iter().for_each(&mut consider);
                }
            }
            _ => {
                answer.items.reserve(self.containers.len());
                for container in self.containers.iter() {
                    answer.push(container.encoded.any(&mut self.shuffle));
                }
                self.extra.containers.iter().for_each(|item| answer.push(item));
                self.extra.padding.iter().for_each(|item| answer.push(item));
            }
        }
        self.shuffle.shuffle(&mut answer.items);
        answer
    }
}
