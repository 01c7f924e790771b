//! From a death in the runtime to its event: `cargo bench -p pleg --bench latency [-- PODS DEATHS | storm]`.
//!
//! The simulated runtime runs on a thread of its own behind a real socket; containers die one at a time, at odd moments. Polling and
//! evented take turns against the same runtime, so that whatever else the machine does falls on both. Last, a storm of events.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark: it is about time"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pleg::event::Subject;
use pleg::{Config, Endpoint, EventType, Generator, Item, Mode, Overflow, Start};
use pleg_sim::world::Ending;
use pleg_sim::{Sim, SimConfig};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // Cargo adds `--bench`.
    let numbers: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let (pods, deaths) = (
        numbers.first().copied().unwrap_or(110),
        numbers.get(1).copied().unwrap_or(200),
    );
    // Only the storm, for a profiler.
    if std::env::args().any(|arg| arg == "storm") {
        return storm().await;
    }
    println!("{pods} pods x 2, {deaths} deaths, one at a time");
    for mode in [Mode::Evented, Mode::Generic, Mode::Evented] {
        // Polling takes half a second for each, and its figure needs no more.
        let deaths = if mode == Mode::Generic { deaths.min(20) } else { deaths };
        let mut lags = measure(pods, deaths, mode).await;
        lags.sort();
        let at = |percent: usize| lags[(lags.len() * percent / 100).min(lags.len() - 1)].as_secs_f64() * 1e3;
        println!(
            "{mode:<8} p50 {:8.3} ms   p90 {:8.3} ms   p99 {:8.3} ms   worst {:8.3} ms   ({} deaths)",
            at(50),
            at(90),
            at(99),
            at(100),
            lags.len()
        );
    }
    storm().await;
}

/// Ten thousand events within a second: does the runtime wait for us?
async fn storm() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::unix(directory.path().join("cri.sock"));
    let config = SimConfig {
        pods: 1000,
        ..SimConfig::default()
    };
    let sim = Sim::spawn_thread(config, endpoint).await.unwrap();
    let endpoint = sim.endpoint().clone();
    let generator = Generator::connect(endpoint, Config::default()).await.unwrap();
    let pleg = generator.handle();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(generator.run(shutdown.clone()));
    while pleg.health().report().mode.mode != Mode::Evented {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let before = sim.world().event_stats().sent;
    let storm = tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        for n in 0..1700_u32 {
            let due = Duration::from_secs(1) * n / 1700;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            let pod = format!("default/web-{}", n % 1000).parse().unwrap();
            let mut world = sim.world();
            world.exit(&pod, None, Ending::Exit(1)).unwrap();
            world.restart(&pod, None).unwrap();
        }
        (sim, began.elapsed())
    });
    let (sim, took) = storm.await.unwrap();
    let token = pleg.request_all();
    let _ = pleg.cache().synced(token, Duration::MAX).await;
    while sim.world().event_stats().waiting > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stats = sim.world().event_stats();
    println!(
        "storm    {} events in {took:.2?}: {} dropped, none waited for us longer than {} ms",
        stats.sent - before,
        stats.dropped,
        stats.longest_wait_ms
    );
    shutdown.cancel();
    running.await.unwrap();
    sim.shutdown().await;
}

async fn measure(pods: usize, deaths: usize, mode: Mode) -> Vec<Duration> {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::unix(directory.path().join("cri.sock"));
    let config = SimConfig {
        pods,
        ..SimConfig::default()
    };
    let sim = Sim::spawn_thread(config, endpoint).await.unwrap();
    let mut config = Config::default();
    config.evented.mode = mode;
    let generator = Generator::connect(sim.endpoint().clone(), config).await.unwrap();
    let pleg = generator.handle();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(generator.run(shutdown.clone()));
    // The stream stands, and full relists are rare.
    let settled = |report: &pleg::Report| mode == Mode::Generic || report.mode.full_relist_period_seconds >= 8.0;
    while pleg.health().report().relists == 0 || !settled(&pleg.health().report()) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut events = pleg.subscribe(Start::Now, Overflow::Gap);

    let victims: Vec<Arc<str>> = sim
        .truth()
        .containers
        .into_iter()
        .map(|container| container.id)
        .collect();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let killer = std::thread::spawn(move || {
        let mut died = HashMap::new();
        for (n, id) in (0..).zip(victims.into_iter().take(deaths)) {
            let pause = if mode == Mode::Generic { 137 } else { 11 + n % 17 };
            std::thread::sleep(Duration::from_millis(pause));
            died.insert(id.clone(), Instant::now());
            assert!(sim.world().finish(&id, Ending::Exit(1)));
        }
        tell.send(()).unwrap();
        (sim, died)
    });
    let mut seen = Vec::new();
    let mut all = false;
    while !all || seen.len() < deaths {
        tokio::select! {
            item = events.next() => {
                let now = Instant::now();
                let Some(Item::Event(event)) = item else { continue };
                if let (EventType::ContainerDied, Some(Subject::Container(container))) = (event.kind, &event.subject) {
                    seen.push((container.id.shared(), now));
                }
            }
            _ = told.recv(), if !all => all = true,
        }
    }
    let (sim, died) = killer.join().unwrap();
    let lags = seen.into_iter().map(|(id, at)| at - died[&id]).collect();
    shutdown.cancel();
    running.await.unwrap();
    sim.shutdown().await;
    lags
}
