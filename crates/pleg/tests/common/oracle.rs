//! What must hold after any history.

use std::collections::BTreeMap;

use pleg::event::Subject;
use pleg::model::PodView;
use pleg::recorder::line::Line;
use pleg::{ContainerState, Event, EventType};
use proptest::prelude::*;

use super::Rig;

pub type States = BTreeMap<(String, String), ContainerState>;

pub fn container_states(views: &BTreeMap<String, PodView>) -> States {
    let states = |(pod, view): (&String, &PodView)| {
        let pod = pod.clone();
        view.containers
            .iter()
            .map(move |(c, state)| ((pod.clone(), c.id.to_string()), *state))
            .collect::<Vec<_>>()
    };
    views.iter().flat_map(states).collect()
}

/// Replays the events of each container and checks that each is one the table allows from where the last one left it.
pub fn replay<'a>(events: impl IntoIterator<Item = &'a Event>) -> Result<States, TestCaseError> {
    let mut states = States::new();
    for event in events {
        let (Some(pod), Some(Subject::Container(container))) = (&event.pod, &event.subject) else {
            continue;
        };
        let key = (pod.uid.to_string(), container.id.to_string());
        let old = states.get(&key).copied();
        let new = match event.kind {
            EventType::ContainerCreated => Some(ContainerState::Created),
            EventType::ContainerStarted => Some(ContainerState::Running),
            EventType::ContainerDied => Some(ContainerState::Exited),
            EventType::ContainerChanged => Some(ContainerState::Unknown),
            EventType::ContainerRemoved => None,
            _ => continue,
        };
        prop_assert_ne!(old, new, "said twice: {:?}", event);
        if new.is_none() {
            prop_assert_eq!(
                old,
                Some(ContainerState::Exited),
                "removed without a death: {:?}",
                event
            );
        }
        match new {
            Some(state) => states.insert(key, state),
            None => states.remove(&key),
        };
    }
    Ok(states)
}

/// A status that explains the event is in the cache when the event can be read: the same state, or a later one.
pub fn explained(rig: &Rig, event: &Event) -> bool {
    let (Some(pod), Some(Subject::Container(container))) = (&event.pod, &event.subject) else {
        return true;
    };
    let entry = rig.pleg.cache().get(&pod.uid);
    let state = entry.and_then(|entry| entry.status.container(&container.id).map(|status| status.state));
    match event.kind {
        EventType::ContainerStarted => state != Some(ContainerState::Created),
        EventType::ContainerDied => matches!(state, None | Some(ContainerState::Exited)),
        EventType::ContainerRemoved => state.is_none(),
        _ => true,
    }
}

/// The cache is what the runtime is.
pub fn cache_is_right(rig: &Rig) -> Result<(), TestCaseError> {
    let truth = rig.fake.world().views();
    let entries: BTreeMap<String, _> = rig
        .pleg
        .cache()
        .entries()
        .into_iter()
        .map(|entry| (entry.status.pod.uid.to_string(), entry))
        .collect();
    prop_assert_eq!(entries.keys().collect::<Vec<_>>(), truth.keys().collect::<Vec<_>>());
    for (uid, view) in &truth {
        let status = &entries[uid].status;
        prop_assert!(entries[uid].error.is_none());
        let sandboxes: Vec<_> = status.sandboxes.iter().map(|s| (s.id.clone(), s.state)).collect();
        prop_assert_eq!(&sandboxes, &view.sandboxes);
        let containers: Vec<_> = status.containers.iter().map(|c| (c.id.clone(), c.state)).collect();
        let expected: Vec<_> = view
            .containers
            .iter()
            .map(|(c, state)| (c.id.clone(), *state))
            .collect();
        prop_assert_eq!(containers, expected);
        for container in status.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            prop_assert_eq!(
                container.exit_code,
                Some(rig.fake.world().containers[container.id.as_str()].exit_code)
            );
        }
    }
    Ok(())
}

/// The recording, written and read again, gives the same events: how many, and how many could not be compared.
pub async fn replayed(rig: &Rig) -> Result<(u64, u64), TestCaseError> {
    let recording = rig.pleg.recording().await.unwrap();
    let lines: Vec<Line> = recording
        .into_lines()
        .map(|line| serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap())
        .collect();
    let replayed = pleg::recorder::replay(lines.clone()).map_err(|error| {
        let lines: Vec<_> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        TestCaseError::fail(format!("{error}\n{}", lines.join("\n")))
    })?;
    prop_assert!(replayed.header.bytes <= replayed.header.limit_bytes);
    if replayed.difference.is_some() {
        let lines: Vec<_> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        let text = format!("{:?}\n{}", replayed.difference, lines.join("\n"));
        return Err(TestCaseError::fail(text));
    }
    Ok((replayed.events, replayed.not_compared))
}
