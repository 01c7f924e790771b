//! The binary as its users run it, against a simulated runtime on a real socket.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod answers;
mod bad_input;
mod cluster;
mod cursors;
mod daemon;
mod debug;
mod doctor;
mod ending;
mod history_file;
mod http;
mod lookback;
mod manifests;
mod metrics;
mod mode;
mod node;
mod operation;
mod pods;
mod pods_watch;
mod problems;
mod processes;
mod proxy;
mod report;
mod selection;
mod systemd;
mod tmux;
mod top;
mod watching;
mod web;
