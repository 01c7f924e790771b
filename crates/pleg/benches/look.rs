//! What a relist costs beyond its bytes: decoding and matching when nothing changed, and the diff of one pod.
//!
//! `cargo bench -p pleg` measures time. `look --count PODS LOOKS` runs bare looks instead, for `bench/instructions` to count.

mod node;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use node::Node;
use pleg::internals::{Records, Snapshot, diff};
use pleg::model::PodView;
use pleg::{ContainerRef, ContainerState, SandboxState};

fn idle_relist(c: &mut Criterion) {
    let mut group = c.benchmark_group("idle look, decode and match");
    for pods in [110, 1000, 5000] {
        let (mut node, mut snapshot, mut records) = (Node::new(pods), Snapshot::default(), Records::default());
        node.look(&mut snapshot, &mut records);
        group.throughput(Throughput::Elements(3 * pods as u64));
        group.bench_function(BenchmarkId::from_parameter(pods), |b| {
            node.shuffle(1);
            b.iter(|| node.look(&mut snapshot, &mut records));
        });
    }
    group.finish();
}

fn one_diff(c: &mut Criterion) {
    let pod = |state| PodView {
        sandboxes: vec![("s".into(), SandboxState::Ready)],
        containers: ["a", "b"]
            .map(|id| {
                (
                    ContainerRef {
                        id: id.into(),
                        name: id.into(),
                        attempt: 0,
                    },
                    state,
                )
            })
            .into(),
    };
    let (running, exited) = (pod(ContainerState::Running), pod(ContainerState::Exited));
    c.bench_function("diff of one pod, two deaths", |b| b.iter(|| diff(&running, &exited)));
}

criterion_group!(benches, idle_relist, one_diff);

/// Looks, each at another order of the same node.
fn count(pods: usize, looks: u64) {
    let (mut node, mut snapshot, mut records) = (Node::new(pods), Snapshot::default(), Records::default());
    assert_eq!(node.look(&mut snapshot, &mut records), pods);
    node.shuffle(1);
    for _ in 0..looks {
        assert_eq!(node.look(&mut snapshot, &mut records), 0);
    }
}

fn main() {
    let mut args = std::env::args()
        .skip_while(|arg| arg != "--count")
        .skip(1)
        .filter_map(|arg| arg.parse().ok());
    if let (Some(pods), Some(looks)) = (args.next(), args.next()) {
        return count(usize::try_from(pods).unwrap_or(usize::MAX), looks);
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
