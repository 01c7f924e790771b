//! The running tasks behind a [`Pleg`](crate::Pleg) handle: who owns them, and how they end.

use std::sync::Arc;

use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::generator::Generator;
use crate::publish::handle::Pleg;
use crate::runtime::Runtime;

/// The generator and the runtime monitor, as they run. Dropping it stops both; [`PlegTask::shutdown`] also waits for their end.
#[must_use = "dropping it stops the generator"]
#[derive(Debug)]
pub struct PlegTask {
    /// Always there, until one of the methods that consume the task takes it.
    stop: Option<DropGuard>,
    generator: JoinHandle<()>,
    monitor: JoinHandle<()>,
}

/// A task of the generator panicked, which is a bug. The message has the panic's.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the {task} panicked: {message}")]
pub struct TaskPanicked {
    task: &'static str,
    message: Arc<str>,
}

impl PlegTask {
    /// Stops the generator and waits until it has ended. Calls in flight are dropped; none of them changes the runtime. An error says
    /// that a task had panicked before.
    pub async fn shutdown(mut self) -> Result<(), TaskPanicked> {
        drop(self.stop.take());
        self.ended().await
    }

    /// Runs until `stop` resolves, and then shuts down; returns early if a task panics. For daemons, which should end with their generator:
    /// without it the cache stays as it is, and waits and subscriptions end.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), TaskPanicked> {
        tokio::select! {
            biased;
            () = stop => self.shutdown().await,
            ended = self.ended() => ended,
        }
    }

    /// Lets the tasks run until the process or the tokio runtime ends.
    pub fn detach(mut self) {
        self.stop.take().map(DropGuard::disarm);
    }

    /// Waits until both have ended, or one has panicked. Must not be polled again after that.
    async fn ended(&mut self) -> Result<(), TaskPanicked> {
        let (generator, monitor) = (&mut self.generator, &mut self.monitor);
        let generator = async { generator.await.map_err(|error| TaskPanicked::new("generator", &error)) };
        let monitor = async {
            monitor
                .await
                .map_err(|error| TaskPanicked::new("runtime monitor", &error))
        };
        tokio::try_join!(generator, monitor).map(drop)
    }
}

impl TaskPanicked {
    fn new(task: &'static str, error: &JoinError) -> Self {
        let message = error.to_string().into();
        Self { task, message }
    }
}

impl<R: Runtime> Generator<R> {
    /// Starts the generator and its runtime monitor on the current tokio runtime.
    pub fn spawn(self) -> (Pleg, PlegTask) {
        let (pleg, monitor) = (self.handle(), self.runtime_monitor());
        let stop = CancellationToken::new();
        let task = PlegTask {
            monitor: tokio::spawn(monitor.run(stop.clone())),
            generator: tokio::spawn(self.run(stop.clone())),
            stop: Some(stop.drop_guard()),
        };
        (pleg, task)
    }
}
