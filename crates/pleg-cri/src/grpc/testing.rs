//! A server that gives one prepared answer, as bad as a test wants it.

use std::path::Path;

use bytes::Bytes;
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::{Connection, Windows};
use crate::Endpoint;

/// Head, body and trailers of an answer; a part that is `None` is not sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prepared {
    /// HTTP status; 200 if 0.
    pub(crate) http: u16,
    pub(crate) head_status: Option<&'static str>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(&'static str, &'static str)>,
    /// The call is reset instead of answered.
    pub(crate) reset: Option<h2::Reason>,
}

impl Prepared {
    /// A body, and OK.
    pub(crate) fn ok(body: Vec<u8>) -> Self {
        Self {
            body,
            trailers: vec![("grpc-status", "0")],
            ..Self::default()
        }
    }

    pub(crate) fn send(self, mut respond: h2::server::SendResponse<Bytes>) -> Result<(), h2::Error> {
        if let Some(reason) = self.reset {
            respond.send_reset(reason);
            return Ok(());
        }
        let mut head = http::Response::builder()
            .status(if self.http == 0 { 200 } else { self.http })
            .header("content-type", "application/grpc");
        if let Some(status) = self.head_status {
            head = head.header("grpc-status", status);
        }
        let ends = self.body.is_empty() && self.trailers.is_empty();
        let mut stream = respond.send_response(head.body(()).unwrap(), ends)?;
        if !self.body.is_empty() {
            stream.send_data(self.body.into(), self.trailers.is_empty())?;
        }
        if !self.trailers.is_empty() {
            let trailers = self.trailers.iter();
            stream.send_trailers(
                trailers
                    .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
                    .collect(),
            )?;
        }
        Ok(())
    }
}

/// Serves the next connection to `listener`: answers `calls` calls, then closes it.
pub(crate) async fn serve_one(listener: &UnixListener, answer: &Prepared, calls: usize) {
    let (socket, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(socket).await.unwrap();
    for _ in 0..calls {
        let Some(Ok((_, respond))) = connection.accept().await else {
            return;
        };
        answer.clone().send(respond).unwrap();
    }
    connection.graceful_shutdown();
    while let Some(Ok(_)) = connection.accept().await {}
}

/// A directory with a socket on which every call gets this answer.
pub(crate) fn serve(answer: Prepared) -> (TempDir, Endpoint) {
    let directory = tempfile::tempdir().unwrap();
    let (endpoint, listener) = listen(directory.path());
    tokio::spawn(async move {
        loop {
            serve_one(&listener, &answer, usize::MAX).await;
        }
    });
    (directory, endpoint)
}

/// A socket in `directory` with no server yet.
pub(crate) fn listen(directory: &Path) -> (Endpoint, UnixListener) {
    let path = directory.join("cri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    (Endpoint::unix(path), listener)
}

/// A connection to `endpoint` that nothing was sent on.
pub(crate) fn connection(endpoint: Endpoint) -> Connection {
    Connection::new(endpoint, std::time::Duration::from_secs(5), Windows::default())
}
