//! Chaos over the whole, from a seed: the API server fails, is slow, is killed; so are the runtime and `pleg node`; pods are created,
//! changed and deleted meanwhile. Once it is quiet again, what runs is what the API server wants, its statuses are what the runtime says,
//! no container ran twice at once, and no terminal phase was reverted.
//!
//! A test is called after its seed. `PLEG_CHAOS_SEEDS=40` tries the seeds 1 to 40, `PLEG_CHAOS_SEED=17` only that one; every third seed
//! has a real containerd, the others a simulated runtime. A seed fixes what is done, not how the processes are scheduled: a failure may
//! need several runs of its seed.

#![allow(missing_docs, reason = "tests")]

mod machine;
mod pods;
mod story;
mod verdict;

use std::ops::RangeInclusive;
use std::process::ExitCode;

use anyhow::Result;
use pleg_e2e::Version;
use pleg_e2e::cluster::suite::{self, Context, Place, Scenario};

use story::Story;

/// Seeds that are tried by default: two simulated runtimes and a containerd.
const SEEDS: u64 = 3;

fn main() -> ExitCode {
    let scenarios = seeds().map(|seed| Scenario {
        name: format!("chaos_{seed}_on_{}", ground(seed)).leak(),
        run: |context| Box::pin(chaos(context)),
        seed,
    });
    let scenarios = scenarios.collect::<Vec<_>>().leak();
    suite::main(&[(Place::NoNode, &[Version::V2_1], scenarios)])
}

fn seeds() -> RangeInclusive<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("PLEG_CHAOS_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("PLEG_CHAOS_SEEDS").unwrap_or(SEEDS),
    }
}

fn is_simulated(seed: u64) -> bool {
    !seed.is_multiple_of(3)
}

fn ground(seed: u64) -> &'static str {
    if is_simulated(seed) {
        "a_simulated_runtime"
    } else {
        "containerd"
    }
}

async fn chaos(context: &Context) -> Result<()> {
    let mut story = Story::start(context, is_simulated(context.seed)).await?;
    let played = story.play().await;
    story.end(played)
}
