//! Turns facts into findings: pure.
//!
//! One finding per trouble, with every object it affects; the most severe first.

mod statuses;

use std::sync::Arc;
use std::time::Duration;

use pleg::Trouble;
use pleg::health::diagnosis::About;
use pleg_cri::duration::seconds;

use super::facts::{Answer, ContainerProcess, Events, Facts, KUBELET_LIMIT, Object, Silence};
use super::finding::{Finding, Place, Severity, counted, mebibytes};
use super::kubelet::{Kubelet, over_limit, rounded};

/// From this number on, dead containers are reported: on the node, and in one pod.
const MANY_DEAD: usize = 1000;
const MANY_DEAD_IN_A_POD: usize = 100;
/// A third of the kubelet's threshold.
const LONG_RELIST: Duration = Duration::from_mins(1);
/// From this size on, a list is close to the limit.
const NEAR_LIMIT: usize = KUBELET_LIMIT / 2;

/// Judges the facts.
pub(super) fn judge(facts: &Facts, kubelet: &Kubelet) -> Vec<Finding> {
    let mut judge = Judge {
        facts,
        findings: Vec::new(),
    };
    judge.silence();
    if facts.silence.is_none() {
        judge.conditions();
        judge.lists();
        judge.statuses();
        judge.processes();
        judge.stock(kubelet);
        judge.events();
    }
    judge.socket();
    judge
        .findings
        .sort_by_key(|finding| (finding.severity, finding.trouble));
    judge.findings
}

struct Judge<'a> {
    facts: &'a Facts,
    findings: Vec<Finding>,
}

impl Judge<'_> {
    fn find(&mut self, severity: Severity, trouble: Trouble, evidence: impl Into<String>, objects: Vec<Place>) {
        let first = objects.first().cloned().unwrap_or_default();
        self.find_about(&first, severity, trouble, evidence, objects);
    }

    /// The same, with a next step that is not about the first object.
    fn find_about(
        &mut self,
        first: &Place,
        severity: Severity,
        trouble: Trouble,
        evidence: impl Into<String>,
        objects: Vec<Place>,
    ) {
        let finding = Finding::new(severity, trouble, evidence.into(), objects, first, &self.facts.endpoint);
        self.findings.push(finding);
    }

    fn silence(&mut self) {
        match &self.facts.silence {
            Some(Silence::Down(why)) => self.find(Severity::Critical, Trouble::RuntimeDown, why, Vec::new()),
            Some(Silence::Stuck(why)) => self.find(Severity::Critical, Trouble::RuntimeStuck, why, Vec::new()),
            None => {}
        }
    }

    fn conditions(&mut self) {
        for condition in self.facts.conditions.iter().filter(|condition| !condition.status) {
            let trouble = match condition.kind.as_str() {
                "RuntimeReady" => Trouble::RuntimeNotReady,
                "NetworkReady" => Trouble::NetworkNotReady,
                _ => continue, // A runtime's own, and no business of a node's readiness.
            };
            let words = [&condition.reason, &condition.message].map(String::as_str);
            let words = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>();
            let why = if words.is_empty() {
                "no reason given".to_owned()
            } else {
                words.join(": ")
            };
            self.find(
                Severity::Critical,
                trouble,
                format!("Status reports {}=false: {why}", condition.kind),
                Vec::new(),
            );
        }
    }

    fn lists(&mut self) {
        let (sandboxes, containers) = (&self.facts.sandboxes, &self.facts.containers);
        match (&sandboxes.answer, &containers.answer) {
            (Answer::Ok, Answer::None(after)) => self.locked(*after),
            (Answer::None(after), Answer::None(_)) => self.find(
                Severity::Critical,
                Trouble::RuntimeStuck,
                format!("Version is answered, but neither list within {}", seconds(*after)),
                Vec::new(),
            ),
            (Answer::None(after), _) => self.find(
                Severity::Critical,
                Trouble::RuntimeStuck,
                format!("ListPodSandbox: no answer within {}", seconds(*after)),
                Vec::new(),
            ),
            _ => {}
        }
        let lists = [("ListPodSandbox", sandboxes), ("ListContainers", containers)];
        for (rpc, list) in lists {
            match &list.answer {
                Answer::Unreachable(why) => {
                    self.find(
                        Severity::Critical,
                        Trouble::RuntimeDown,
                        format!("{rpc}: {why}"),
                        Vec::new(),
                    );
                    return; // One word about it is enough.
                }
                Answer::Failed(why) => {
                    self.find(
                        Severity::Critical,
                        Trouble::ListFails,
                        format!("{rpc}: {why}"),
                        Vec::new(),
                    );
                }
                Answer::Unimplemented => {
                    let evidence = format!("{rpc}: not implemented by the runtime");
                    self.find(Severity::Critical, Trouble::ListFails, evidence, Vec::new());
                }
                _ => {}
            }
        }
        let Some((rpc, list)) = lists.into_iter().max_by_key(|(_, list)| list.bytes) else {
            return;
        };
        let each = list.bytes / list.items.max(1);
        let evidence = format!(
            "{rpc}: {} in {}, {} each",
            mebibytes(list.bytes),
            counted(list.items, "item"),
            mebibytes(each)
        );
        if over_limit(list) {
            self.find(Severity::Critical, Trouble::ListOverLimit, evidence, Vec::new());
        } else if list.bytes >= NEAR_LIMIT && !list.streamed {
            self.find(Severity::Warning, Trouble::ListNearLimit, evidence, Vec::new());
        }
    }

    /// The list of containers hangs and the list of sandboxes does not: finds the object whose lock is held.
    fn locked(&mut self, after: Duration) {
        let hung = self.hung_shims();
        let stuck: Vec<_> = self.stuck().into_iter().filter(|place| place.id.is_some()).collect();
        let mut evidence = format!(
            "ListContainers: no answer within {}, while ListPodSandbox answered in {}",
            seconds(after),
            rounded(self.facts.sandboxes.took)
        );
        let culprits = match (stuck.is_empty(), hung.is_empty()) {
            (false, _) => stuck,
            (true, false) => {
                evidence.push_str("; the locked container belongs to a pod whose shim hangs");
                hung.clone()
            }
            (true, true) => {
                evidence.push_str(if self.facts.inventory.containers.is_empty() {
                    "; naming the container needs the ids known to a running daemon (pleg run)"
                } else {
                    "; no container known to the daemon is stuck, so it must be a newer one"
                });
                Vec::new()
            }
        };
        let asked = self.facts.samples.iter().filter(|sample| sample.verbose).count();
        let shims_answer = hung.is_empty() && asked > 0;
        if shims_answer {
            let shims = match asked {
                1 => "the shim answers".to_owned(),
                n => format!("all {n} shims answer"),
            };
            evidence = format!("{evidence}; {shims}, so the runtime waits for something else, such as storage");
        }
        self.find(Severity::Critical, Trouble::LockedContainer, evidence, culprits);
        // The usual next step is to examine a shim.
        if let (true, Some(finding)) = (shims_answer, self.findings.last_mut()) {
            finding.next = Trouble::StalledStorage.remedy(&About {
                endpoint: Some(&self.facts.endpoint),
                ..About::default()
            });
        }
    }

    /// Excess: dead containers, orphans, large lists.
    fn stock(&mut self, kubelet: &Kubelet) {
        let inventory = &self.facts.inventory;
        let most = inventory.dead_of.first();
        if let Some(most) = most.filter(|most| inventory.dead >= MANY_DEAD || most.dead >= MANY_DEAD_IN_A_POD) {
            let evidence = format!(
                "{} of {} containers are dead, most of them ({}) in pod {}",
                inventory.dead,
                inventory.containers.len(),
                most.dead,
                most.pod
            );
            let places = inventory.dead_of.iter().take_while(|of| of.dead >= MANY_DEAD_IN_A_POD);
            let places = places.map(|of| Place {
                pod: of.pod.clone(),
                sandbox: of.sandbox.clone(),
                detail: format!("{} dead", of.dead),
                ..Place::default()
            });
            let places: Vec<_> = places.collect();
            // Removal is suggested for one pod, or for all if many are affected.
            let first = places.first().filter(|_| most.dead > inventory.dead / 2).cloned();
            self.find_about(
                &first.unwrap_or_default(),
                Severity::Warning,
                Trouble::ManyDeadContainers,
                evidence,
                places,
            );
        }
        if let Some(all) = kubelet.relist_all_seconds
            && all >= LONG_RELIST.as_secs_f64()
            && kubelet.hanging_calls == 0
        {
            let evidence = format!(
                "a relist that inspects every pod takes a kubelet {}",
                rounded(Duration::from_secs_f64(all))
            );
            self.find(Severity::Warning, Trouble::LongRelist, evidence, Vec::new());
        }
        if !inventory.orphans.is_empty() {
            let evidence = format!("{} without a sandbox", counted(inventory.orphans.len(), "container"));
            let places = inventory
                .orphans
                .iter()
                .map(|object| self.place(object, String::new()))
                .collect();
            self.find(Severity::Warning, Trouble::OrphanContainers, evidence, places);
        }
        // Orphans are reported above, each by id.
        let odd = inventory
            .odd
            .counts()
            .into_iter()
            .filter(|(kind, n)| *n > 0 && *kind != "container_without_pod");
        let odd: Vec<_> = odd.map(|(kind, n)| format!("{n} {}", kind.replace('_', " "))).collect();
        if !odd.is_empty() {
            self.find(Severity::Info, Trouble::OddObjects, odd.join(", "), Vec::new());
        }
    }

    fn processes(&mut self) {
        let exited = self.process_places(&self.facts.processes.exited, "has exited");
        let leftover = self.process_places(&self.facts.processes.leftover, "is alive");
        self.missed_exits(exited);
        if !leftover.is_empty() {
            let evidence = format!(
                "the runtime reports {} as exited whose process is alive",
                counted(leftover.len(), "container")
            );
            self.find(Severity::Critical, Trouble::LeftoverProcess, evidence, leftover);
        }
    }

    fn process_places(&self, of: &[ContainerProcess], what: &str) -> Vec<Place> {
        let places = of.iter().map(|one| Place {
            shim_pid: one.shim.map(|shim| shim.pid),
            shim_state: one.shim.map(|shim| shim.state),
            ..self.place(&one.object, format!("process {} {what}", one.pid))
        });
        places.collect()
    }

    fn missed_exits(&mut self, places: Vec<Place>) {
        if places.is_empty() {
            return;
        }
        let evidence = format!(
            "the runtime reports {} as running whose process has exited",
            counted(places.len(), "container")
        );
        self.find(Severity::Critical, Trouble::MissedExit, evidence, places);
    }

    fn events(&mut self) {
        match &self.facts.events {
            Events::Split => {
                let version = self
                    .facts
                    .runtime
                    .as_ref()
                    .map(|runtime| format!("{} {}", runtime.name, runtime.version));
                let evidence = format!(
                    "{} delivers each event to only one of its subscribers; pleg did not subscribe",
                    version.unwrap_or_default()
                );
                self.find(Severity::Info, Trouble::SplitEvents, evidence, Vec::new());
            }
            Events::Failed(why) => {
                self.find(
                    Severity::Warning,
                    Trouble::StreamDown,
                    format!("GetContainerEvents: {why}"),
                    Vec::new(),
                );
            }
            _ => {}
        }
    }

    fn socket(&mut self) {
        if let Some(socket) = self.facts.socket.as_ref().filter(|socket| socket.world_accessible) {
            let evidence = format!(
                "{} has mode {}: every user on this machine can open it",
                socket.path, socket.mode
            );
            self.find(Severity::Warning, Trouble::OpenSocket, evidence, Vec::new());
        }
    }

    fn place(&self, object: &Arc<Object>, detail: String) -> Place {
        let shim = self.facts.shims.get(&object.sandbox);
        Place {
            pod: object.pod.clone(),
            container: object.container.clone(),
            id: object.container.is_some().then(|| object.id.clone()),
            sandbox: object.sandbox.clone(),
            shim_pid: shim.map(|shim| shim.pid),
            shim_state: shim.map(|shim| shim.state),
            detail,
        }
    }
}

#[cfg(test)]
mod tests;
