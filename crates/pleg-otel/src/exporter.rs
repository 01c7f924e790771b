//! Sends what waits, in batches, and gives up on a batch that is not taken for long.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::Counts;
use crate::client::{Client, PostError};
use crate::config::SignalConfig;
use crate::queue::Queue;

/// Delays after a failure, doubling.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// After this long a batch is dropped, and the next is tried.
const GIVE_UP: Duration = Duration::from_mins(1);
/// At shutdown, how long what waits may still be sent.
const DRAIN: Duration = Duration::from_secs(2);

/// Makes the body of a request.
pub(crate) type Encode<T> = fn(&[(String, String)], Vec<T>) -> Vec<u8>;

/// The task of one signal.
#[derive(Debug)]
pub(crate) struct Exporter {
    signal: &'static str,
    client: tokio::sync::Mutex<Client>,
    config: SignalConfig,
    resource: Vec<(String, String)>,
    counts: Counts,
}

impl Exporter {
    pub(crate) fn new(
        signal: &'static str,
        config: SignalConfig,
        resource: Vec<(String, String)>,
        counts: Counts,
    ) -> Self {
        Self {
            signal,
            client: tokio::sync::Mutex::new(Client::new(config.clone())),
            config,
            resource,
            counts,
        }
    }

    /// Sends until shutdown, and then for a moment what is left.
    pub(crate) async fn run<T>(&self, queue: &Queue<T>, encode: Encode<T>, shutdown: &CancellationToken) {
        let sending = async {
            let mut failing = false;
            loop {
                // Until there is something; then until it is a batch, or was long enough.
                queue.has(1).await;
                let _ = timeout(self.config.delay, queue.has(self.config.batch)).await;
                self.send_next(queue, encode, Some(&mut failing)).await;
            }
        };
        if shutdown.run_until_cancelled(sending).await.is_none() {
            let drain = async { while self.send_next(queue, encode, None).await {} };
            let _ = timeout(DRAIN, drain).await;
        }
    }

    /// Sends one batch. Returns whether there was one. `failing` is what the log says of the collector; without it nothing is logged.
    async fn send_next<T>(&self, queue: &Queue<T>, encode: Encode<T>, mut failing: Option<&mut bool>) -> bool {
        let batch = queue.take(self.config.batch);
        let count = batch.len();
        if count == 0 {
            return false;
        }
        let body = encode(&self.resource, batch);
        let (first, mut delay) = (Instant::now(), RETRY.0);
        loop {
            let error = match self.post(body.clone()).await {
                Ok(()) => {
                    if failing.is_some_and(std::mem::take) {
                        info!("sending {} to {} again", self.signal, self.config.url);
                    }
                    self.counts.add(self.signal, "sent", count);
                    return true;
                }
                Err(error) => error,
            };
            if failing
                .as_deref_mut()
                .is_some_and(|failing| !std::mem::replace(failing, true))
            {
                let (signal, url, text) = (self.signal, &self.config.url, &error.text);
                warn!(
                    "cannot send {signal} to {url}: {text}. It is tried again; what does not fit into the queue is dropped"
                );
            }
            let wait = delay
                .max(Duration::from_secs(error.retry_after.unwrap_or(0)))
                .min(RETRY.1);
            if !error.is_transient || first.elapsed() + wait > GIVE_UP {
                self.counts.add(self.signal, "dropped", count);
                return true;
            }
            sleep(wait).await;
            delay = (2 * delay).min(RETRY.1);
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<(), PostError> {
        let mut client = self.client.lock().await;
        let within = client.config().timeout;
        timeout(within, client.post(body)).await.unwrap_or_else(|_| {
            Err(PostError {
                text: format!("no answer within {}", pleg_cri::duration::seconds(within)),
                is_transient: true,
                retry_after: None,
            })
        })
    }
}
