//! Events and pods for the tests of this crate.

use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerRef, Event, EventType, InstanceId, PodRef, SandboxState, Source, Trouble};

/// Pods that [`event`] is about.
pub(crate) const PODS: u64 = 37;

pub(crate) fn pod(n: u64) -> PodRef {
    PodRef {
        uid: format!("5f0c2a9b-e1d3-4c77-9d5a-{n:012x}").as_str().into(),
        namespace: if n.is_multiple_of(3) { "default" } else { "shop" }.into(),
        name: format!("web-{n}").as_str().into(),
    }
}

/// An event of every shape there is, each determined by its number. One a second.
pub(crate) fn event(instance: InstanceId, seq: u64) -> Event {
    let kind = EventType::ALL[usize::try_from(seq % 15).unwrap()];
    let of_node = kind.is_health();
    let container = Subject::Container(ContainerRef {
        id: format!("{:064x}", seq / 4).as_str().into(),
        name: "app".into(),
        attempt: u32::try_from(seq % 7).unwrap(),
    });
    let sandbox = Subject::Sandbox {
        id: format!("sandbox-{seq}").as_str().into(),
        state: [None, Some(SandboxState::Ready), Some(SandboxState::NotReady)][usize::try_from(seq % 3).unwrap()],
    };
    let died = kind == EventType::ContainerDied;
    Event {
        seq,
        instance,
        time: Timestamp::from_second(1_700_000_000).unwrap() + Duration::from_secs(seq) + Duration::from_nanos(seq),
        kind,
        pod: (!of_node).then(|| pod(seq % PODS)),
        subject: match kind {
            EventType::PodSandboxChanged => Some(sandbox),
            kind if of_node || kind == EventType::PodSync => None,
            _ => Some(container),
        },
        pid: (kind == EventType::ProcessExited).then_some(4711),
        exit_code: died.then_some([0, 1, 137, -1][usize::try_from(seq % 4).unwrap()]),
        reason: died.then(|| ["Completed", "Error", "OOMKilled", ""][usize::try_from(seq % 4).unwrap()].into()),
        initial: seq.is_multiple_of(11),
        source: [Source::Relist, Source::Evented, Source::Kernel, Source::OnDemand][usize::try_from(seq % 4).unwrap()],
        lag: seq.is_multiple_of(2).then(|| Duration::from_nanos(seq * 1_234_567)),
        trouble: kind.is_trouble().then_some(Trouble::HungShim),
        lasted: (kind == EventType::TroubleEnded).then(|| Duration::from_millis(seq)),
    }
}
