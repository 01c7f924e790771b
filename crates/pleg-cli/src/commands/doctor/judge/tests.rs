//! What is found of what was seen, as a table. The issues are those in which people met it.

use super::super::facts::{Condition, ContainerProcess, DeadOf, List, Runtime, Sample, Socket};
use super::super::kubelet;
use super::*;
use Severity::{Critical, Info, Warning};
use pleg::shim::Shim;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn object(pod: usize, container: Option<&str>) -> Arc<Object> {
    Arc::new(Object {
        pod: format!("default/web-{pod}"),
        container: container.map(str::to_owned),
        id: container.map_or_else(|| format!("s{pod}"), |name| format!("c{pod}{name}")),
        sandbox: format!("s{pod}"),
        alive: true,
    })
}

fn sample(rpc: &'static str, object: Option<Arc<Object>>) -> Sample {
    Sample {
        rpc,
        verbose: false,
        object,
        took: MS,
        answer: Answer::Ok,
    }
}

/// Six pods of one container, all well.
fn node() -> Facts {
    let mut facts = Facts {
        endpoint: "unix:///run/containerd/containerd.sock".to_owned(),
        runtime: Some(Runtime {
            name: "containerd".to_owned(),
            version: "v2.1.9".to_owned(),
            ..Runtime::default()
        }),
        alone: Some(MS),
        ..Facts::default()
    };
    let list = List {
        items: 6,
        bytes: 6000,
        took: MS,
        ..List::default()
    };
    (facts.sandboxes, facts.containers) = (list.clone(), list);
    for rpc in ["Version", "Status", "ListPodSandbox", "ListContainers"] {
        facts.samples.push(sample(rpc, None));
    }
    for pod in 0..6 {
        let (sandbox, container) = (object(pod, None), object(pod, Some("app")));
        facts
            .samples
            .push(sample("PodSandboxStatus", Some(Arc::clone(&sandbox))));
        facts
            .samples
            .push(sample("ContainerStatus", Some(Arc::clone(&container))));
        facts.samples.push(Sample {
            verbose: true,
            ..sample("PodSandboxStatus", Some(Arc::clone(&sandbox)))
        });
        facts.inventory.sandboxes.push(sandbox);
        facts.inventory.containers.push(container);
    }
    (facts.inventory.pods, facts.inventory.running) = (6, 6);
    facts
}

/// The samples of these pods, with what is to be changed about them.
fn change(facts: &mut Facts, pods: std::ops::Range<usize>, which: fn(&Sample) -> bool, change: fn(&mut Sample)) {
    let names: Vec<String> = pods.map(|pod| format!("default/web-{pod}")).collect();
    for sample in &mut facts.samples {
        let of_pod = sample.object.as_ref().is_some_and(|object| names.contains(&object.pod));
        if of_pod && which(sample) {
            change(sample);
        }
    }
}

fn plain_container(sample: &Sample) -> bool {
    sample.rpc == "ContainerStatus"
}

fn shim(sample: &Sample) -> bool {
    sample.verbose
}

fn hang(sample: &mut Sample) {
    (sample.took, sample.answer) = (2 * S, Answer::None(2 * S));
}

fn lists_hang(facts: &mut Facts) {
    facts.containers = List {
        took: 5 * S,
        answer: Answer::None(5 * S),
        ..List::default()
    };
    facts.inventory.containers.clear();
    facts
        .samples
        .retain(|sample| sample.rpc != "ContainerStatus" && sample.rpc != "ListContainers");
    facts.samples.push(Sample {
        took: 5 * S,
        answer: Answer::None(5 * S),
        ..sample("ListContainers", None)
    });
}

/// A name, what is changed about a node that is well, and what has to be found, with a part of its evidence and its first place.
type Case = (
    &'static str,
    fn(&mut Facts),
    &'static [(Severity, Trouble, &'static str, &'static str)],
);

const CASES: &[Case] = &[
    (
        "a stopped monitor hides an exit",
        |facts| {
            let exited = ContainerProcess {
                object: object(2, Some("app")),
                pid: 4712,
                shim: Some(Shim { pid: 4711, state: 'T' }),
            };
            facts.processes.exited.push(exited);
        },
        &[(
            Critical,
            Trouble::MissedExit,
            "1 container as running whose process has exited",
            "default/web-2",
        )],
    ),
    (
        "a killed shim leaves a process",
        |facts| {
            let leftover = ContainerProcess {
                object: object(1, Some("app")),
                pid: 4712,
                shim: Some(Shim { pid: 1, state: 'S' }),
            };
            facts.processes.leftover.push(leftover);
        },
        &[(
            Critical,
            Trouble::LeftoverProcess,
            "1 container as exited whose process is alive",
            "default/web-1",
        )],
    ),
    ("a node that is well", |_| {}, &[]),
    (
        "nobody listens",
        |facts| facts.silence = Some(Silence::Down("no runtime".to_owned())),
        &[(Critical, Trouble::RuntimeDown, "no runtime", "")],
    ),
    (
        "no answer to Version",
        |facts| facts.silence = Some(Silence::Stuck("did not answer".to_owned())),
        &[(Critical, Trouble::RuntimeStuck, "did not answer", "")],
    ),
    (
        "kubernetes#94829, #98044: one container's status hangs",
        |facts| change(facts, 3..4, plain_container, hang),
        &[(
            Critical,
            Trouble::StuckInspection,
            "1 status call is not answered",
            "default/web-3",
        )],
    ),
    (
        "cri-o#2584: inspect of two hangs while the lists are fine",
        |facts| change(facts, 3..5, plain_container, hang),
        &[(
            Critical,
            Trouble::StuckInspection,
            "2 status calls are not answered",
            "default/web-3",
        )],
    ),
    (
        "a status that comes late is a warning",
        |facts| change(facts, 1..2, plain_container, |sample| sample.took = 1500 * MS),
        &[(
            Warning,
            Trouble::StuckInspection,
            "1 status call is slow",
            "default/web-1",
        )],
    ),
    (
        "most statuses hang and no shim does: the disk",
        |facts| {
            change(facts, 0..6, plain_container, hang);
            change(facts, 0..2, |sample| !sample.verbose, hang);
        },
        &[(
            Critical,
            Trouble::StalledStorage,
            "8 of 12 status calls",
            "default/web-0",
        )],
    ),
    (
        "containerd#8167: a shim that hangs behind lists that are fine",
        |facts| {
            change(facts, 2..3, shim, hang);
            facts.shims.insert("s2".to_owned(), Shim { pid: 4711, state: 'T' });
        },
        &[(
            Critical,
            Trouble::HungShim,
            "takes 2s or more in 1 of 6 pods",
            "default/web-2",
        )],
    ),
    (
        "most shims hang, and the statuses are quick all the same",
        |facts| change(facts, 1..6, shim, hang),
        &[(Critical, Trouble::HungShim, "in 5 of 6 pods", "default/web-1")],
    ),
    (
        "containerd#2438: the status of its container hangs by the same shim",
        |facts| {
            change(facts, 2..3, shim, |sample| sample.took = 4 * S);
            change(facts, 2..3, plain_container, hang);
        },
        &[(Critical, Trouble::HungShim, "in 1 of 6 pods", "default/web-2")],
    ),
    (
        "another pod's container hangs for a reason of its own",
        |facts| {
            change(facts, 2..3, shim, hang);
            change(facts, 4..5, plain_container, hang);
        },
        &[
            (Critical, Trouble::HungShim, "", "default/web-2"),
            (Critical, Trouble::StuckInspection, "", "default/web-4"),
        ],
    ),
    (
        "containerd#9770: the list of containers hangs by a hung shim",
        |facts| {
            lists_hang(facts);
            change(facts, 2..3, shim, hang);
        },
        &[
            (
                Critical,
                Trouble::LockedContainer,
                "belongs to a pod whose shim hangs",
                "default/web-2",
            ),
            (Critical, Trouble::HungShim, "", "default/web-2"),
        ],
    ),
    (
        "containerd#10583: the list hangs, and no shim does",
        lists_hang,
        &[(
            Critical,
            Trouble::LockedContainer,
            "ListPodSandbox answered in 1ms; naming the container",
            "",
        )],
    ),
    (
        "the list hangs, and a daemon knows the container",
        |facts| {
            lists_hang(facts);
            let container = object(5, Some("app"));
            facts.inventory.containers.push(Arc::clone(&container));
            facts.samples.push(sample("ContainerStatus", Some(container)));
            change(facts, 5..6, plain_container, hang);
        },
        &[(
            Critical,
            Trouble::LockedContainer,
            "no answer within 5s",
            "default/web-5",
        )],
    ),
    (
        "both lists hang",
        |facts| {
            lists_hang(facts);
            facts.sandboxes = facts.containers.clone();
            facts.samples.retain(|sample| sample.object.is_none());
        },
        &[(Critical, Trouble::RuntimeStuck, "but neither list within", "")],
    ),
    (
        "a list is refused",
        |facts| facts.containers.answer = Answer::Failed("INTERNAL: no".to_owned()),
        &[(Critical, Trouble::ListFails, "ListContainers: INTERNAL: no", "")],
    ),
    (
        "kubernetes#131407, talos#10801: a list over the limit",
        |facts| facts.containers.bytes = (16 << 20) + 1,
        &[(
            Critical,
            Trouble::ListOverLimit,
            "ListContainers: 16.0 MiB in 6 items",
            "",
        )],
    ),
    (
        "a list near the limit",
        |facts| facts.sandboxes.bytes = 8 << 20,
        &[(Warning, Trouble::ListNearLimit, "ListPodSandbox: 8.0 MiB", "")],
    ),
    (
        "streamed lists have no limit",
        |facts| (facts.containers.bytes, facts.containers.streamed) = (17 << 20, true),
        &[],
    ),
    (
        "kubernetes#64507: dead containers by the thousand",
        |facts| {
            facts.inventory.dead = 33_212;
            facts.inventory.dead_of = vec![DeadOf {
                pod: "default/crash".to_owned(),
                dead: 33_212,
                sandbox: "s9".to_owned(),
            }];
        },
        &[(
            Warning,
            Trouble::ManyDeadContainers,
            "33212 of 6 containers are dead",
            "default/crash",
        )],
    ),
    (
        "kubernetes#93886, #139788: many changes would take minutes",
        |facts| {
            facts.alone = Some(99 * MS);
            let more = sample("ContainerStatus", Some(object(0, Some("app"))));
            facts.samples.extend(vec![more; 765]);
        },
        &[(Warning, Trouble::LongRelist, "takes a kubelet 1m16s", "")],
    ),
    (
        "every call takes a while",
        |facts| facts.alone = Some(100 * MS),
        &[(Warning, Trouble::RuntimeSlow, "a status call takes 100ms", "")],
    ),
    (
        "every call takes seconds: no container and no shim is to blame",
        |facts| {
            for sample in &mut facts.samples {
                sample.took = 3 * S;
            }
            change(facts, 0..6, plain_container, hang);
        },
        &[(
            Critical,
            Trouble::RuntimeSlow,
            "half of 12 status calls take 3s or more",
            "",
        )],
    ),
    (
        "moby#44300: listed, and the runtime knows nothing of it",
        |facts| change(facts, 4..5, plain_container, |sample| sample.answer = Answer::NotFound),
        &[(
            Critical,
            Trouble::NotInspectable,
            "1 of 12 status calls failed",
            "default/web-4",
        )],
    ),
    (
        "it goes away in the middle",
        |facts| {
            change(facts, 4..6, plain_container, |sample| {
                sample.answer = Answer::Unreachable("broken pipe".to_owned());
            });
        },
        &[(
            Critical,
            Trouble::RuntimeDown,
            "went away during the examination: broken pipe",
            "",
        )],
    ),
    (
        "the runtime is not ready, nor its network",
        |facts| {
            for (kind, message) in [
                ("RuntimeReady", ""),
                ("NetworkReady", "cni not initialized"),
                ("Odd", ""),
            ] {
                facts.conditions.push(Condition {
                    kind: kind.to_owned(),
                    message: message.to_owned(),
                    ..Condition::default()
                });
            }
        },
        &[
            (
                Critical,
                Trouble::RuntimeNotReady,
                "RuntimeReady=false: no reason given",
                "",
            ),
            (
                Critical,
                Trouble::NetworkNotReady,
                "NetworkReady=false: cni not initialized",
                "",
            ),
        ],
    ),
    (
        "containerd#7318: events are split, and we keep away from them",
        |facts| facts.events = Events::Split,
        &[(Info, Trouble::SplitEvents, "containerd v2.1.9 delivers each event", "")],
    ),
    (
        "the stream is refused",
        |facts| facts.events = Events::Failed("UNKNOWN: no".to_owned()),
        &[(Warning, Trouble::StreamDown, "GetContainerEvents: UNKNOWN: no", "")],
    ),
    (
        "a container without a sandbox, and one without an id",
        |facts| {
            facts.inventory.orphans.push(object(7, Some("app")));
            facts.inventory.odd.empty_id = 1;
            facts.inventory.odd.container_without_pod = 1;
        },
        &[
            (
                Warning,
                Trouble::OrphanContainers,
                "1 container without a sandbox",
                "default/web-7",
            ),
            (Info, Trouble::OddObjects, "1 empty id", ""),
        ],
    ),
    (
        "everybody may open the socket",
        |facts| {
            facts.socket = Some(Socket {
                path: "/run/x.sock".to_owned(),
                mode: "0666".to_owned(),
                world_accessible: true,
                ..Socket::default()
            });
        },
        &[(Warning, Trouble::OpenSocket, "/run/x.sock has mode 0666", "")],
    ),
];

fn judged(change: fn(&mut Facts)) -> Vec<Finding> {
    let mut facts = node();
    change(&mut facts);
    judge(&facts, &kubelet::forecast(&facts))
}

#[test]
fn the_table() {
    for (name, change, expected) in CASES {
        let findings = judged(*change);
        let found: Vec<_> = findings.iter().map(|f| (f.severity, f.trouble)).collect();
        let wanted: Vec<_> = expected
            .iter()
            .map(|(severity, trouble, ..)| (*severity, *trouble))
            .collect();
        assert_eq!(found, wanted, "{name}");
        for (finding, (_, _, evidence, pod)) in findings.iter().zip(*expected) {
            assert!(finding.evidence.contains(evidence), "{name}: {}", finding.evidence);
            let first = finding.objects.first().map_or("", |place| place.pod.as_str());
            assert_eq!(first, *pod, "{name}");
        }
    }
}

/// Whatever can be found is in the table.
#[test]
fn every_trouble_has_a_case() {
    // Doctor has no generator that could end, nor one that follows the stream for long enough to see that it misses changes.
    const NOT_SEEN: [Trouble; 2] = [Trouble::GeneratorEnded, Trouble::LossyStream];
    for trouble in Trouble::ALL.into_iter().filter(|trouble| !NOT_SEEN.contains(trouble)) {
        let has = |case: &&Case| case.2.iter().any(|(_, found, ..)| *found == trouble);
        assert!(CASES.iter().any(|case| has(&case)), "{trouble}");
    }
}

#[test]
fn the_next_step_is_about_the_culprit() {
    let (_, change, _) = CASES.iter().find(|case| case.0.starts_with("containerd#8167")).unwrap();
    let finding = &judged(*change)[0];
    assert!(finding.next.contains("-p 4711"), "{}", finding.next);
    assert_eq!(finding.objects[0].shim_state, Some('T'));
    // Where most are refused, removing the first of them is no repair.
    let all = judged(|facts| change_all(facts, &Answer::Failed("UNKNOWN: no".to_owned())));
    assert!(!all[0].next.contains(" rm "), "{}", all[0].next);
}

fn change_all(facts: &mut Facts, answer: &Answer) {
    for sample in facts.samples.iter_mut().filter(|sample| sample.is_plain_status()) {
        sample.answer = answer.clone();
    }
}

#[test]
fn many_places_are_counted() {
    let findings = judged(|facts| {
        let refused = Sample {
            answer: Answer::NotFound,
            ..sample("ContainerStatus", Some(object(0, Some("app"))))
        };
        facts.samples.extend(vec![refused; 250]);
    });
    assert_eq!((findings[0].objects.len(), findings[0].more_objects), (100, 150));
}
