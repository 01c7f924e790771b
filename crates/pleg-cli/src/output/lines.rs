//! Writes lines to stdout in a thread of its own.
//!
//! A slow reader of a pipe blocks the writer. That must block neither the generator nor Ctrl-C, so another thread writes; if the queue
//! is full, the feed reports a gap.

use std::io::Write as _;

use tokio::sync::{mpsc, oneshot};

use super::write_error;

/// Maximum number of queued lines.
const QUEUE: usize = 1024;

/// The queue of lines.
#[derive(Debug)]
pub(crate) struct LineWriter {
    lines: mpsc::Sender<String>,
    /// `None` once its end was reported.
    ended: Option<oneshot::Receiver<anyhow::Result<()>>>,
}

impl LineWriter {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (lines, queue) = mpsc::channel(QUEUE);
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name("stdout".to_owned()).spawn(move || {
            let _ = end.send(write(queue));
        })?;
        Ok(Self {
            lines,
            ended: Some(ended),
        })
    }

    /// Queues a line, without its line break. Fails once stdout is closed.
    pub(crate) async fn line(&mut self, line: String) -> anyhow::Result<()> {
        if self.lines.send(line).await.is_ok() {
            return Ok(());
        }
        self.ended().await?;
        Err(super::Closed.into())
    }

    /// Waits until everything is written.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        let ended = self.ended.take();
        drop(self.lines);
        match ended {
            Some(ended) => ended.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }

    /// How the writer ended, once.
    async fn ended(&mut self) -> anyhow::Result<()> {
        match self.ended.take() {
            Some(ended) => ended.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }
}

fn write(mut queue: mpsc::Receiver<String>) -> anyhow::Result<()> {
    let mut stdout = anstream::stdout().lock();
    while let Some(mut line) = queue.blocking_recv() {
        line.push('\n');
        // One write per batch of queued lines.
        while line.len() < 64 * 1024
            && let Ok(more) = queue.try_recv()
        {
            line.push_str(&more);
            line.push('\n');
        }
        stdout
            .write_all(line.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(write_error)?;
    }
    Ok(())
}
