//! What can happen to a runtime, as random steps of a history; and everything that it has ever been.

use std::collections::{BTreeMap, BTreeSet};

use pleg::event::Subject;
use pleg::model::PodView;
use pleg::runtime::RuntimeEvent;
use pleg::{ContainerState, Event, EventType, PodEntry, PodUid, Reached, SandboxState, Token};
use proptest::prelude::*;

use super::{Container, Fake, Rig, Sandbox, World};

pub const PODS: usize = 5;
pub const CONTAINERS: usize = 3;

/// A change of the world: of a pod, or of one of its containers.
#[derive(Debug, Clone)]
pub enum Change {
    /// A new sandbox for a pod; the old ones become not ready.
    Sandbox(usize),
    StopSandbox(usize),
    RemovePod(usize),
    /// A new attempt of one of the pod's containers.
    Create(usize, usize),
    Start(usize, usize),
    Exit(usize, usize, i32),
    Remove(usize, usize),
    Confuse(usize, usize),
}

pub fn change() -> impl Strategy<Value = Change> {
    let p = 0..PODS;
    let pc = (p.clone(), 0..CONTAINERS);
    prop_oneof![
        2 => p.clone().prop_map(Change::Sandbox),
        1 => p.clone().prop_map(Change::StopSandbox),
        1 => p.prop_map(Change::RemovePod),
        4 => pc.clone().prop_map(|(p, c)| Change::Create(p, c)),
        4 => pc.clone().prop_map(|(p, c)| Change::Start(p, c)),
        4 => (pc.clone(), 0..3i32).prop_map(|((p, c), code)| Change::Exit(p, c, code)),
        2 => pc.clone().prop_map(|(p, c)| Change::Remove(p, c)),
        1 => pc.prop_map(|(p, c)| Change::Confuse(p, c)),
    ]
}

/// The newest container of that name in the pod.
pub fn newest(fake: &Fake, p: usize, c: usize) -> Option<String> {
    let world = fake.world();
    let of_name = world
        .containers
        .iter()
        .filter(|(_, k)| k.uid == format!("p{p}") && k.name == format!("c{c}"));
    of_name.max_by_key(|(_, k)| k.created_at).map(|(id, _)| id.clone())
}

/// Adds the newest container of that name to a set of the world's, or takes it out.
pub fn toggle(fake: &Fake, p: usize, c: usize, on: bool, set: fn(&mut World) -> &mut BTreeSet<String>) {
    if let Some(id) = newest(fake, p, c) {
        let mut world = fake.world();
        if on {
            set(&mut world).insert(id)
        } else {
            set(&mut world).remove(&id)
        };
    }
}

impl Change {
    /// Makes it so. `n` is unique: new objects are called after it.
    pub fn apply(&self, fake: &Fake, n: usize) {
        let set_state = |p, c, from: &[ContainerState], to| {
            if let Some(id) = newest(fake, p, c)
                && let Some(container) = fake.world().containers.get_mut(&id)
                && from.contains(&container.state)
            {
                container.state = to;
            }
        };
        let stop_sandboxes = |p: usize| {
            for sandbox in fake.world().sandboxes.values_mut().filter(|s| s.uid == format!("p{p}")) {
                sandbox.state = SandboxState::NotReady;
            }
        };
        match *self {
            Self::Sandbox(p) => {
                stop_sandboxes(p);
                fake.world().add_sandbox(&format!("p{p}"), &format!("s{n}"));
            }
            Self::StopSandbox(p) => stop_sandboxes(p),
            Self::RemovePod(p) => fake.world().remove_pod(&format!("p{p}")),
            Self::Create(p, c) => {
                let mut world = fake.world();
                let uid = format!("p{p}");
                let sandbox = world
                    .sandboxes
                    .iter()
                    .find(|(_, s)| s.uid == uid)
                    .map_or("none".to_owned(), |(id, _)| id.clone());
                let attempt = u32::try_from(n).unwrap();
                world.add_container(&uid, &sandbox, &format!("k{n}"), ContainerState::Created);
                let container = world.containers.get_mut(&format!("k{n}")).unwrap();
                (container.name, container.attempt) = (format!("c{c}"), attempt);
            }
            Self::Start(p, c) => set_state(p, c, &[ContainerState::Created], ContainerState::Running),
            Self::Exit(p, c, code) => {
                if let Some(id) = newest(fake, p, c)
                    && fake.world().containers[&id].state != ContainerState::Exited
                {
                    fake.world().exit(&id, code);
                }
            }
            Self::Confuse(p, c) => set_state(p, c, &[ContainerState::Running], ContainerState::Unknown),
            Self::Remove(p, c) => {
                if let Some(id) = newest(fake, p, c) {
                    fake.world().containers.remove(&id);
                }
            }
        }
    }

    /// Makes it so, and returns what an honest runtime tells of it.
    pub fn apply_and_tell(&self, fake: &Fake, n: usize) -> Vec<RuntimeEvent> {
        let states = |world: &World| {
            let sandbox = |(id, s): (&String, &Sandbox)| {
                let reached = match s.state {
                    SandboxState::Ready => Reached::Running,
                    SandboxState::NotReady => Reached::Ended,
                };
                (id.clone(), (s.uid.clone(), s.state as i32, Some(reached)))
            };
            let container = |(id, c): (&String, &Container)| {
                let reached = match c.state {
                    ContainerState::Running => Some(Reached::Running),
                    ContainerState::Exited => Some(Reached::Ended),
                    ContainerState::Created | ContainerState::Unknown => None,
                };
                (id.clone(), (c.uid.clone(), c.state as i32, reached))
            };
            let sandboxes = world.sandboxes.iter().map(sandbox);
            sandboxes
                .chain(world.containers.iter().map(container))
                .collect::<BTreeMap<_, _>>()
        };
        let before = states(&fake.world());
        self.apply(fake, n);
        let after = states(&fake.world());
        let ids = before.keys().chain(after.keys()).collect::<BTreeSet<_>>();
        let changed = ids.into_iter().filter(|id| before.get(*id) != after.get(*id));
        changed
            .map(|id| RuntimeEvent {
                id: Some(id.as_str().into()),
                pod: after.get(id).or(before.get(id)).map(|(uid, ..)| uid.as_str().into()),
                reached: after.get(id).map_or(Some(Reached::Gone), |(.., reached)| *reached),
                created_at: 1_800_000_000,
            })
            .collect()
    }
}

/// Everything that the runtime has been, in order.
#[derive(Debug, Default)]
pub struct Chronicle(Vec<BTreeMap<String, PodView>>);

impl Chronicle {
    /// Notes what the runtime is now. Returns how often that was done: what is now has that number, less one.
    pub fn note(&mut self, fake: &Fake) -> usize {
        self.0.push(fake.world().views());
        self.0.len()
    }

    fn pods(&self, uid: &str, since: usize) -> impl Iterator<Item = Option<&PodView>> {
        self.0[since..].iter().map(move |views| views.get(uid))
    }

    fn container(view: Option<&PodView>, id: &str) -> Option<ContainerState> {
        let (_, state) = view?.containers.iter().find(|(c, _)| c.id.as_str() == id)?;
        Some(*state)
    }

    fn sandbox(view: Option<&PodView>, id: &str) -> Option<SandboxState> {
        let (_, state) = view?.sandboxes.iter().find(|(s, _)| s.as_str() == id)?;
        Some(*state)
    }

    /// Whatever the entry says of the pod was so then or later; also that something is not there.
    fn check_entry(&self, uid: &str, since: usize, entry: &PodEntry) -> Result<(), TestCaseError> {
        let status = &entry.status;
        let known = self.pods(uid, since).flatten();
        let (mut containers, mut sandboxes) = (BTreeSet::new(), BTreeSet::new());
        for view in known {
            containers.extend(view.containers.iter().map(|(c, _)| c.id.to_string()));
            sandboxes.extend(view.sandboxes.iter().map(|(s, _)| s.to_string()));
        }
        containers.extend(status.containers.iter().map(|c| c.id.to_string()));
        sandboxes.extend(status.sandboxes.iter().map(|s| s.id.to_string()));
        for id in containers {
            let said = status.containers.iter().find(|c| c.id.as_str() == id).map(|c| c.state);
            let so = self.pods(uid, since).any(|view| Self::container(view, &id) == said);
            prop_assert!(so, "{}: {} is said to be {:?}, which it was before", uid, id, said);
        }
        for id in sandboxes {
            let said = status.sandboxes.iter().find(|s| s.id.as_str() == id).map(|s| s.state);
            let so = self.pods(uid, since).any(|view| Self::sandbox(view, &id) == said);
            prop_assert!(so, "{}: {} is said to be {:?}, which it was before", uid, id, said);
        }
        Ok(())
    }

    /// The events, each with how much was noted when it was read, tell of states that each object was in, in the order in which it
    /// was in them, and not before it was.
    pub fn check_events<'a>(&self, events: impl IntoIterator<Item = &'a (Event, usize)>) -> Result<(), TestCaseError> {
        let mut reached: BTreeMap<(String, String), usize> = BTreeMap::new();
        for (event, until) in events.into_iter().filter(|(event, _)| !event.kind.is_trouble()) {
            let Some(uid) = event.pod.as_ref().map(|pod| pod.uid.to_string()) else {
                continue;
            };
            let (object, so): (String, Rule) = match &event.subject {
                Some(Subject::Container(container)) => {
                    let id = container.id.to_string();
                    let kind = event.kind;
                    let so = {
                        let id = id.clone();
                        move |view: Option<&PodView>| told(kind, Self::container(view, &id))
                    };
                    (id, Box::new(so))
                }
                Some(Subject::Sandbox { id, state }) => {
                    let (id, state) = (id.to_string(), *state);
                    let so = {
                        let id = id.clone();
                        move |view: Option<&PodView>| Self::sandbox(view, &id) == state
                    };
                    (id, Box::new(so))
                }
                None => (String::new(), Box::new(|view: Option<&PodView>| view.is_none())),
            };
            let since = reached.entry((uid.clone(), object)).or_default();
            let mut then = self.pods(&uid, *since).take(until - *since);
            let Some(at) = then.position(so) else {
                return Err(TestCaseError::fail(format!(
                    "this never was, or not in this order: {event:?}"
                )));
            };
            *since += at;
        }
        Ok(())
    }
}

/// What a pod has to be like.
type Rule = Box<dyn Fn(Option<&PodView>) -> bool>;

/// An event of this kind reports this state. What is removed without having ended is reported as died, too.
fn told(kind: EventType, state: Option<ContainerState>) -> bool {
    match kind {
        EventType::ContainerCreated => state == Some(ContainerState::Created),
        EventType::ContainerStarted => state == Some(ContainerState::Running),
        EventType::ContainerDied => matches!(state, None | Some(ContainerState::Exited)),
        EventType::ContainerChanged => state == Some(ContainerState::Unknown),
        EventType::ContainerRemoved => state.is_none(),
        _ => true,
    }
}

/// A waiting caller: what it waits for, and since when.
#[derive(Debug)]
pub struct Waiter {
    pub uid: PodUid,
    token: Token,
    since: usize,
    pub task: tokio::task::JoinHandle<Result<PodEntry, pleg::WaitError>>,
}

impl Waiter {
    /// Waits for what is so now, which was just noted in the chronicle. `ask`: and asks for a relist.
    pub fn start(rig: &Rig, pod: usize, noted: usize, ask: bool) -> Self {
        let uid = PodUid::from(format!("p{pod}"));
        let token = if ask {
            rig.pleg.request_relist(&uid)
        } else {
            rig.pleg.cache().token()
        };
        let (cache, waited) = (rig.pleg.cache().clone(), uid.clone());
        let task = tokio::spawn(async move { cache.newer_than(&waited, token, std::time::Duration::MAX).await });
        Self {
            uid,
            token,
            since: noted - 1,
            task,
        }
    }

    /// Nothing in the answer is older than the token.
    pub fn check(&self, entry: &PodEntry, chronicle: &Chronicle) -> Result<(), TestCaseError> {
        prop_assert!(entry.observed >= self.token);
        chronicle.check_entry(self.uid.as_str(), self.since, entry)
    }
}
