//! Calls whose answers are received and dropped.
//!
//! A probe only needs to know whether there is an answer. And the same bytes over the same connection, received and dropped, are
//! the floor under what a relist can cost: benchmarks divide by it.

use crate::client::UNARY_LIMIT;
use crate::{Client, Error, Subject, Unary, v1};

impl Client {
    /// Asks for both full lists and drops the answers. Returns their bytes.
    pub async fn drain_lists(&self) -> Result<usize, Error> {
        let (sandboxes, containers) = tokio::join!(
            self.drain(v1::ListPodSandboxRequest::default()),
            self.drain(v1::ListContainersRequest::default()),
        );
        Ok(sandboxes? + containers?)
    }

    /// Makes any call and drops the answer, whatever its size. Returns its bytes.
    pub async fn drain<R: Unary>(&self, request: R) -> Result<usize, Error> {
        self.dropped(&Subject::NODE, request, usize::MAX).await
    }

    /// Makes a call about an object to learn whether it is answered, and nothing else.
    pub async fn is_answered<R: Unary>(&self, subject: &Subject, request: R) -> Result<(), Error> {
        self.dropped(subject, request, UNARY_LIMIT).await.map(drop)
    }

    async fn dropped<R: Unary>(&self, subject: &Subject, request: R, limit: usize) -> Result<usize, Error> {
        let deadline = self.deadlines().of(R::RPC.class());
        self.unary(self.api(), subject, request, limit, deadline, |message| {
            Ok(message.len())
        })
        .await
    }
}
