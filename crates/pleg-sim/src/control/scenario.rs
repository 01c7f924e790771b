//! Scenario files: what a simulator starts with, and what happens when.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::ApiVersion;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::command::{
    Add, Command, Down, Exit, Fail, Hang, Object, OddObject, Pad, Reply, Set, Shim, Shims, Storm, Unhang,
};
use super::execute::execute;
use crate::config::SimConfig;
use crate::duration::Span;
use crate::fault::EventFaults;
use crate::flavour::Flavour;
use crate::selector::Selector;
use crate::sim::Simulation;
use crate::world::Script;

/// A larger file is no scenario.
const FILE_LIMIT: u64 = 1 << 20;
/// Steps of one scenario.
const MOST_STEPS: usize = 10_000;

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("{}: cannot read the scenario", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{}: the scenario is too large ({size} bytes)", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
    },
    /// It is no scenario; the text says where and why.
    #[error("invalid scenario: {0}")]
    Invalid(String),
}

/// One command and its time, counted from the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// When.
    pub at: Duration,
    /// What.
    pub command: Command,
}

/// What a scenario file says. What it leaves out stays as the command line has it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Pods from the start.
    pub pods: Option<usize>,
    /// Containers of each.
    pub containers: Option<usize>,
    /// Dead attempts of each container.
    pub dead: Option<usize>,
    /// Command of each container, as in `["sleep-exit", "500ms", "3"]`.
    pub command: Option<Vec<String>>,
    /// The seed.
    pub seed: Option<u64>,
    /// Changes a second.
    pub churn: Option<f64>,
    /// How long every call takes.
    pub latency: Option<Span>,
    /// Up to this much is added.
    pub jitter: Option<Span>,
    /// How long a pull takes.
    pub pull_time: Option<Span>,
    /// Give containers real processes.
    pub processes: Option<bool>,
    /// How long after the death of its process a container ends.
    pub exit_lag: Option<Span>,
    /// `v1` or `v1alpha2`.
    #[serde(deserialize_with = "api")]
    pub api: Option<ApiVersion>,
    /// Which runtime it imitates, as in `containerd-1.7`.
    pub flavour: Option<Flavour>,
    /// Serve the streaming lists.
    pub streaming_lists: Option<bool>,
    /// Events that a subscriber may be behind.
    pub event_queue: Option<usize>,
    /// Events kept while there is no subscriber.
    pub event_backlog: Option<usize>,
    #[serde(rename = "steps")]
    read_steps: Vec<Spanned<StepFile>>,
    #[serde(skip)]
    steps: Vec<Step>,
}

fn api<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ApiVersion>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Name {
        V1,
        V1Alpha2,
    }
    Ok(Some(match Name::deserialize(deserializer)? {
        Name::V1 => ApiVersion::V1,
        Name::V1Alpha2 => ApiVersion::V1Alpha2,
    }))
}

/// A step as it is written: `at` and one verb. A flattened enum could not refuse unknown fields by name and line.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StepFile {
    at: Span,
    storm: Option<Storm>,
    exit: Option<Exit>,
    restart: Option<Selector>,
    remove: Option<Selector>,
    add: Option<Add>,
    hang: Option<Hang>,
    unhang: Option<Unhang>,
    lock: Option<Object>,
    unlock: Option<Object>,
    set: Option<Set>,
    fail: Option<Fail>,
    down: Option<Down>,
    events: Option<EventFaults>,
    hang_shim: Option<Shim>,
    unhang_shim: Option<Shims>,
    odd: Option<OddObject>,
    pad: Option<Pad>,
    clear: Option<Nothing>,
}

/// `{}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl StepFile {
    fn command(self) -> Result<Command, &'static str> {
        let commands = [
            self.storm.map(Command::Storm),
            self.exit.map(Command::Exit),
            self.restart.map(Command::Restart),
            self.remove.map(Command::Remove),
            self.add.map(Command::Add),
            self.hang.map(Command::Hang),
            self.unhang.map(Command::Unhang),
            self.lock.map(Command::Lock),
            self.unlock.map(Command::Unlock),
            self.set.map(Command::Set),
            self.fail.map(Command::Fail),
            self.down.map(Command::Down),
            self.events.map(Command::Events),
            self.hang_shim.map(Command::HangShim),
            self.unhang_shim.map(Command::UnhangShim),
            self.odd.map(Command::Odd),
            self.pad.map(Command::Pad),
            self.clear.map(|Nothing {}| Command::Clear {}),
        ];
        let mut commands = commands.into_iter().flatten();
        match (commands.next(), commands.next()) {
            (Some(command), None) => Ok(command),
            (None, _) => Err("a step needs a verb in addition to `at`, as in `storm: {}`"),
            (Some(_), Some(_)) => Err("a step can have only one verb; write two steps with the same `at`"),
        }
    }
}

impl Scenario {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let unreadable = |source| ScenarioError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let size = std::fs::metadata(path).map_err(unreadable)?.len();
        if size > FILE_LIMIT {
            return Err(ScenarioError::TooLarge {
                path: path.to_owned(),
                size,
            });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(unreadable)?)
            .map_err(|error| ScenarioError::Invalid(format!("{}: {error}", path.display())))
    }

    /// Reads YAML.
    pub fn parse(yaml: &str) -> Result<Self, ScenarioError> {
        let mut scenario: Self = match yaml.trim() {
            "" => Self::default(),
            _ => serde_saphyr::from_str(yaml).map_err(|e| ScenarioError::Invalid(e.to_string()))?,
        };
        if scenario.read_steps.len() > MOST_STEPS {
            return Err(ScenarioError::Invalid(format!("more than {MOST_STEPS} steps")));
        }
        for step in std::mem::take(&mut scenario.read_steps) {
            let line = step.referenced.line();
            let at = step.value.at.0;
            let command = step.value.command();
            let command = command.map_err(|why| ScenarioError::Invalid(format!("line {line}: {why}")))?;
            scenario.steps.push(Step { at, command });
        }
        // Stable: steps of the same time stay in the order of the file.
        scenario.steps.sort_by_key(|step| step.at);
        Ok(scenario)
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Puts what the file says into a configuration.
    pub fn apply(self, config: &mut SimConfig) {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut config.pods, self.pods);
        set(&mut config.containers, self.containers);
        set(&mut config.dead, self.dead);
        set(&mut config.seed, self.seed);
        set(&mut config.churn, self.churn);
        set(&mut config.latency, self.latency.map(|span| span.0));
        set(&mut config.jitter, self.jitter.map(|span| span.0));
        set(&mut config.pull_time, self.pull_time.map(|span| span.0));
        set(&mut config.processes, self.processes);
        set(&mut config.exit_lag, self.exit_lag.map(|span| span.0));
        set(&mut config.api, self.api);
        set(&mut config.flavour, self.flavour);
        set(&mut config.streaming_lists, self.streaming_lists);
        set(&mut config.event_queue, self.event_queue);
        set(&mut config.event_backlog, self.event_backlog);
        let script = self
            .command
            .map(|words| Script::parse(words.iter().map(String::as_str)));
        set(&mut config.script, script);
        config.steps = self.steps;
    }
}

/// Does the steps of the configuration, each at its time.
pub(crate) async fn run_steps(shared: Arc<Simulation>, cancel: CancellationToken) {
    let start = Instant::now();
    cancel
        .run_until_cancelled(async {
            for step in &shared.config.steps {
                tokio::time::sleep_until(start + step.at).await;
                match execute(&*shared, step.command.clone()).await {
                    Ok(Reply::Done(words)) => tracing::info!(at = %Span(step.at), "scenario step: {words}"),
                    Ok(Reply::Stats(_) | Reply::Pods(_)) => {
                        tracing::info!(at = %Span(step.at), command = step.command.name(), "scenario step");
                    }
                    // The next steps may still make sense; a run that stops halfway is harder to understand.
                    Err(error) => tracing::error!(at = %Span(step.at), %error, "scenario step failed"),
                }
            }
        })
        .await;
}
