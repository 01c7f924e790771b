//! Scenarios times versions, as tests.
//!
//! Each scenario gets a containerd of its own: one starts in a few hundred milliseconds, and then "these events and no others"
//! can be said of the whole runtime, not only of one pod. A test is called `VERSION::SCENARIO`, so the usual filter of
//! `cargo test` picks one version, one scenario or one of each.
//!
//! Where real containerds cannot run, the tests are shown as ignored and the reason is said. The variable `PLEG_E2E` changes that:
//! `required` makes it a failure, and `off` leaves the tests out in any case. `./test` uses both, one for each of its steps.

use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

use crate::version::{self, Version};
use crate::wait::{PATIENCE, until};
use crate::{Containerd, Kubelet, Truth, home, truth};

/// No scenario takes as long; one that does hangs.
const LIMIT: Duration = Duration::from_secs(90);
/// More than cores: a scenario mostly waits for its runtime.
const AT_ONCE: usize = 4;

/// What a scenario works with.
#[derive(Debug)]
pub struct Context {
    /// Its own runtime.
    pub containerd: Containerd,
    /// Creates pods there.
    pub kubelet: Kubelet,
}

impl Context {
    /// Which containerd it is.
    pub fn version(&self) -> Version {
        self.containerd.version()
    }

    /// What the runtime itself says, as soon as nothing changes while it is asked.
    pub async fn truth(&self) -> Result<Truth> {
        let client = self.containerd.client();
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

/// The main function of a test binary.
pub fn main(scenarios: &'static [Scenario]) -> ExitCode {
    main_on(&Version::ALL, scenarios)
}

/// The main function of a test binary whose scenarios run on these versions only.
pub fn main_on(versions: &'static [Version], scenarios: &'static [Scenario]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let wanted = std::env::var("PLEG_E2E").unwrap_or_default();
    let obstacle = match wanted.as_str() {
        "off" => Some("PLEG_E2E=off; the step e2e of ./test runs them".to_owned()),
        _ => version::obstacle(),
    };
    if let Some(obstacle) = &obstacle
        && !arguments.list
    {
        let _ = writeln!(
            io::stderr(),
            "pleg-e2e: LEFT OUT, nothing runs against a real containerd: {obstacle}"
        );
        if wanted == "required" {
            return ExitCode::FAILURE;
        }
    }
    end_in_order_on_interrupt();
    let trials = scenarios.iter().flat_map(|&scenario| {
        let ignored = obstacle.is_some();
        versions.iter().map(move |&version| {
            let name = format!("{version}::{}", scenario.name);
            Trial::test(name, move || run(version, scenario)).with_ignored_flag(ignored)
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn run(version: Version, scenario: Scenario) -> Result<(), Failed> {
    let play = || -> Result<()> {
        let runtime = runtime()?;
        let containerd = runtime
            .block_on(Containerd::start(version))
            .context("start containerd")?;
        let kubelet = containerd.kubelet();
        let context = Context { containerd, kubelet };
        let played = runtime.block_on(async {
            let limited = tokio::time::timeout(LIMIT, (scenario.run)(&context)).await;
            limited.unwrap_or_else(|_| anyhow::bail!("not done within {LIMIT:?}"))
        });
        played.with_context(|| context.containerd.log_tail())
    };
    play().map_err(|error| {
        // The log goes below the reason, not above it.
        let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
        causes.rotate_left(1);
        Failed::from(format!(
            "containerd {version}, {}: {}",
            scenario.name,
            causes.join("\n")
        ))
    })
}

fn runtime() -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().context("start tokio")
}

/// Destructors do not run on Ctrl-C, and a containerd that outlives its test would never be cleaned up.
fn end_in_order_on_interrupt() {
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
