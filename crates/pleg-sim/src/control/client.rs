//! The other end of the control socket.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pleg_cri::Endpoint;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::command::{Command, Reply};
use super::http::Problem;

/// The names of 20,000 pods fit.
const REPLY_LIMIT: usize = 64 << 20;
/// Adding thousands of pods takes a moment; nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a command did not get through, or was refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No simulator listens there.
    #[error("no simulator is listening on {endpoint}; start one with `pleg sim --control {endpoint}`")]
    NoSimulator {
        /// Where.
        endpoint: Endpoint,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The simulator refuses; its own words.
    #[error("{0}")]
    Refused(String),
    /// No answer.
    #[error("{endpoint}: no answer within {}s", PATIENCE.as_secs())]
    Silent {
        /// Where.
        endpoint: Endpoint,
    },
    /// Something answers, but no simulator.
    #[error("{endpoint} is not the control socket of a simulator: {detail}")]
    NotASimulator {
        /// Where.
        endpoint: Endpoint,
        /// What is wrong.
        detail: String,
    },
}

/// Sends commands to a simulator's control socket.
#[derive(Debug, Clone)]
pub struct ControlClient {
    endpoint: Endpoint,
}

impl ControlClient {
    /// A client of the socket at `endpoint`.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Sends a command and waits for what came of it.
    pub async fn send(&self, command: &Command) -> Result<Reply, ControlError> {
        timeout(PATIENCE, self.exchange(command)).await.unwrap_or_else(|_| {
            Err(ControlError::Silent {
                endpoint: self.endpoint.clone(),
            })
        })
    }

    async fn exchange(&self, command: &Command) -> Result<Reply, ControlError> {
        let strange = |detail: String| ControlError::NotASimulator {
            endpoint: self.endpoint.clone(),
            detail,
        };
        let stream = UnixStream::connect(self.endpoint.path())
            .await
            .map_err(|source| ControlError::NoSimulator {
                endpoint: self.endpoint.clone(),
                source,
            })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| strange(e.to_string()))?;
        let body = serde_json::to_vec(command).map_err(|e| ControlError::Refused(e.to_string()))?;
        let request = Request::post("/v1/command")
            .header(http::header::HOST, "localhost")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| strange(e.to_string()))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), REPLY_LIMIT).collect().await;
            Ok::<_, String>((status, body.map_err(|e| e.to_string())?.to_bytes()))
        };
        // The connection has to be driven while we wait; it ends with us.
        let mut connection = std::pin::pin!(connection);
        let mut exchange = std::pin::pin!(exchange);
        let mut open = true;
        let (status, body) = loop {
            tokio::select! {
                answer = &mut exchange => break answer.map_err(strange)?,
                _ = &mut connection, if open => open = false,
            }
        };
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|e| strange(e.to_string()));
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(ControlError::Refused(problem.error)),
            Err(_) => Err(strange(format!("it answered {status}"))),
        }
    }
}
