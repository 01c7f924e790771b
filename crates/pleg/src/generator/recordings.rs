//! Callers that wait for a recording of the last minutes.

use tokio::sync::{mpsc, oneshot};

use crate::recorder::Recording;

/// Most callers that may wait for a recording.
const MOST: usize = 4;

/// Requests for a recording, each with the channel for its reply.
#[derive(Debug)]
pub(super) struct RecordingRequests {
    sender: mpsc::Sender<oneshot::Sender<Recording>>,
    receiver: mpsc::Receiver<oneshot::Sender<Recording>>,
}

impl RecordingRequests {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(MOST);
        Self { sender, receiver }
    }

    /// For the callers.
    pub(super) fn sender(&self) -> mpsc::Sender<oneshot::Sender<Recording>> {
        self.sender.clone()
    }

    /// The next request; never resolves while there is none.
    pub(super) async fn next(&mut self) -> oneshot::Sender<Recording> {
        match self.receiver.recv().await {
            Some(reply) => reply,
            // Not while the sender above is there.
            None => std::future::pending().await,
        }
    }
}
