//! A node on a simulated runtime: whatever happens, what runs is what is desired.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod chaos;
mod container_files;
mod events;
mod eviction;
mod faults;
mod images;
mod leftovers;
mod life;
mod logs;
mod machine;
mod matrix;
mod order;
mod outages;
mod phases;
mod probes;
mod restart;
mod shutdown;
mod updates;
