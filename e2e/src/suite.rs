//! Scenarios times runtimes, as tests.
//!
//! Each scenario gets a runtime of its own: one starts in a few hundred milliseconds, and then "these events and no others"
//! can be said of the whole runtime, not only of one pod. A test is called `VERSION::SCENARIO`, so the usual filter of
//! `cargo test` picks one runtime, one scenario or one of each.
//!
//! Where a runtime cannot run, its tests are shown as ignored and the reason is said. The variable `PLEG_E2E` changes that:
//! `required` makes it a failure, and `off` leaves the tests out in any case. `./test` uses both, one for each of its steps.

use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

use crate::version::Version;
use crate::wait::{PATIENCE, until};
use crate::{Kubelet, Runtime, Truth, home, truth};

/// No scenario takes as long; one that does hangs.
const LIMIT: Duration = Duration::from_secs(90);
/// More than cores: a scenario mostly waits for its runtime.
const AT_ONCE: usize = 4;

/// What a scenario works with.
#[derive(Debug)]
pub struct Context {
    /// Its own runtime.
    pub runtime: Runtime,
    /// Creates pods there.
    pub kubelet: Kubelet,
}

impl Context {
    /// Which runtime it is.
    pub fn version(&self) -> Version {
        self.runtime.version()
    }

    /// What the runtime itself says, as soon as nothing changes while it is asked.
    pub async fn truth(&self) -> Result<Truth> {
        let client = self.runtime.client();
        until("a moment of quiet", PATIENCE, async || truth(client).await).await
    }
}

/// A scenario's future.
pub type Run<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A named scenario. Made by [`scenarios!`](crate::scenarios).
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub run: for<'a> fn(&'a Context) -> Run<'a>,
}

/// Names `async fn(&Context) -> Result<()>` as [`Scenario`]s.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        &[$($crate::Scenario { name: stringify!($name), run: |context| Box::pin($name(context)) }),*]
    };
}

/// Scenarios, and the runtimes they are for.
pub type Group = (&'static [Version], &'static [Scenario]);

/// The main function of a test binary whose scenarios run on every runtime.
pub fn main(scenarios: &'static [Scenario]) -> ExitCode {
    main_on(&[(&Version::ALL, scenarios)])
}

/// The main function of a test binary whose scenarios run on the runtimes that are named with them.
pub fn main_on(groups: &[Group]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let wanted = std::env::var("PLEG_E2E").unwrap_or_default();
    let mut versions: Vec<Version> = groups
        .iter()
        .flat_map(|(versions, _)| versions.iter().copied())
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let mut left_out = Vec::new();
    for version in versions {
        let obstacle = match wanted.as_str() {
            "off" => Some("PLEG_E2E=off; the step e2e of ./test runs them".to_owned()),
            // What is missing fails the scenarios that need it.
            "required" => None,
            _ => version.obstacle(),
        };
        if let Some(obstacle) = obstacle {
            if !arguments.list {
                let _ = writeln!(
                    io::stderr(),
                    "pleg-e2e: LEFT OUT, nothing runs against {version}: {obstacle}"
                );
            }
            left_out.push(version);
        }
    }
    end_in_order_on_interrupt();
    let trials = groups.iter().flat_map(|&(versions, scenarios)| {
        let pairs = scenarios
            .iter()
            .flat_map(move |&scenario| versions.iter().map(move |&version| (version, scenario)));
        pairs.map(|(version, scenario)| {
            let name = format!("{}::{}", version.name(), scenario.name);
            Trial::test(name, move || run(version, scenario)).with_ignored_flag(left_out.contains(&version))
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn run(version: Version, scenario: Scenario) -> Result<(), Failed> {
    let play = || -> Result<()> {
        if let Some(obstacle) = version.obstacle() {
            anyhow::bail!("{obstacle}");
        }
        let tokio = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("start tokio")?;
        let runtime = tokio
            .block_on(Runtime::start(version))
            .with_context(|| format!("start {version}"))?;
        let kubelet = runtime.kubelet();
        let context = Context { runtime, kubelet };
        let played = tokio.block_on(async {
            let limited = tokio::time::timeout(LIMIT, (scenario.run)(&context)).await;
            limited.unwrap_or_else(|_| anyhow::bail!("not done within {LIMIT:?}"))
        });
        played.with_context(|| context.runtime.log_tail())
    };
    play().map_err(|error| {
        // The log goes below the reason, not above it.
        let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
        causes.rotate_left(1);
        Failed::from(format!("{version}, {}: {}", scenario.name, causes.join("\n")))
    })
}

/// Destructors do not run on Ctrl-C, and a runtime that outlives its test would never be cleaned up.
pub(crate) fn end_in_order_on_interrupt() {
    std::thread::spawn(|| {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
            return;
        };
        let interrupted = runtime.block_on(interrupted());
        let _ = writeln!(io::stderr(), "pleg-e2e: interrupted, ending the runtimes");
        home::tear_down_all();
        std::process::exit(128 + interrupted);
    });
}

/// Waits for SIGINT or SIGTERM, and returns which it was.
pub async fn interrupted() -> i32 {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = async |kind: SignalKind| match signal(kind) {
        Ok(mut signal) => {
            signal.recv().await;
            kind.as_raw_value()
        }
        // Without a handler the default action ends us anyway.
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        number = wait(SignalKind::interrupt()) => number,
        number = wait(SignalKind::terminate()) => number,
    }
}
