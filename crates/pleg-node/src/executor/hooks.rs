//! Lifecycle hooks, and commands in a container.

use std::net::IpAddr;
use std::time::Duration;

use pleg::ContainerId;
use pleg_cri::{ErrorKind, Subject, v1};
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::error::{ExecError, HookError};
use super::{RuntimeExecutor, whole_seconds};
use crate::error::with_causes;
use crate::manifest::{Hook, Pod};
use crate::net::http_get;
use crate::reconcile::backoff::doubling;

/// Longest run of a post-start hook: the longest sleep that a manifest can have.
const MAX_POST_START: Duration = Duration::from_hours(24);
/// Delay before a post-start hook is tried again that the runtime could not run, and its maximum; doubles with each outage.
const HOOK_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The runtime may end a command a moment before its timeout has passed on our clock.
const CLOCKS_DIFFER: Duration = Duration::from_millis(100);
/// Characters that are kept of the output of a failed command.
const MAX_OUTPUT: usize = 512;

impl RuntimeExecutor {
    /// Runs a post-start hook. If the runtime is away, it is tried again until it can be run.
    pub(super) async fn run_post_start(
        &self,
        about: &Subject,
        id: &ContainerId,
        hook: &Hook,
        ip: Option<IpAddr>,
    ) -> Result<(), HookError> {
        let mut outages = 0_u32;
        loop {
            match self.run_hook(about, id, hook, ip, MAX_POST_START).await {
                Err(error) if error.is_outage() => {
                    if outages == 0 {
                        let pod = about.pod.as_deref().unwrap_or_default();
                        let error = with_causes(&error);
                        warn!(pod, error, "cannot run the post-start hook; trying again");
                    }
                    tokio::time::sleep(doubling(HOOK_RETRY.0, HOOK_RETRY.1, outages)).await;
                    outages = outages.saturating_add(1);
                }
                ended => return ended,
            }
        }
    }

    /// Runs a pre-stop hook within the grace period, whatever the runtime does.
    pub(super) async fn run_pre_stop(
        &self,
        about: &Subject,
        id: &ContainerId,
        hook: &Hook,
        ip: Option<IpAddr>,
        grace: Duration,
    ) -> Result<(), HookError> {
        let hook = self.run_hook(about, id, hook, ip, grace);
        timeout(grace, hook).await.unwrap_or(Err(HookError::Timeout(grace)))
    }

    /// Runs a hook, for at most `within`. `ip` is the address of the pod.
    pub(super) async fn run_hook(
        &self,
        about: &Subject,
        id: &ContainerId,
        hook: &Hook,
        ip: Option<IpAddr>,
        within: Duration,
    ) -> Result<(), HookError> {
        match hook {
            Hook::Sleep(time) => {
                tokio::time::sleep((*time).min(within)).await;
                Ok(())
            }
            Hook::Exec(command) => Ok(self.run_command(about, id, command, within).await?),
            // As in the kubelet, the status of the response does not matter.
            Hook::Http(get) => match timeout(within, http_get::get(get, ip)).await {
                Ok(answer) => Ok(answer.map(drop)?),
                Err(_) => Err(HookError::Timeout(within)),
            },
        }
    }

    /// Runs a command in a container; only exit code 0 is a success.
    pub(crate) async fn exec(
        &self,
        pod: &Pod,
        name: &str,
        id: &ContainerId,
        command: &[String],
        within: Duration,
    ) -> Result<(), ExecError> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        self.run_command(&about, id, command, within).await
    }

    async fn run_command(
        &self,
        about: &Subject,
        id: &ContainerId,
        command: &[String],
        within: Duration,
    ) -> Result<(), ExecError> {
        let request = v1::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            timeout: whole_seconds(within),
        };
        // The runtime ends the command at its timeout, and then needs a moment to answer.
        let slack = self.client.deadlines().inspect;
        let began = Instant::now();
        let answer = self.call_within(about, request, within.saturating_add(slack)).await;
        let answer = answer.map_err(|error| {
            let took = began.elapsed();
            let in_time = took + CLOCKS_DIFFER >= within && took < within.saturating_add(slack / 2);
            if in_time && is_timeout(&error.kind) {
                return ExecError::TimedOut {
                    command: command.join(" "),
                    within,
                };
            }
            ExecError::Call(error)
        })?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        let output = if answer.stderr.is_empty() {
            &answer.stdout
        } else {
            &answer.stderr
        };
        Err(ExecError::Exited {
            command: command.join(" "),
            code: answer.exit_code,
            output: String::from_utf8_lossy(output)
                .trim()
                .chars()
                .take(MAX_OUTPUT)
                .collect(),
        })
    }
}

/// Whether the runtime says that it ended a command at its timeout. CRI-O answers with an exit code instead.
fn is_timeout(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Status { code, message } => {
            *code == "DEADLINE_EXCEEDED" || (*code == "UNKNOWN" && message.contains("deadline exceeded"))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As containerd 1.6, 1.7 and 2.1 and the simulator say it; anything else is not known to be a timeout.
    #[test]
    fn runtimes_say_that_a_command_took_too_long() {
        let status = |code, message: &str| ErrorKind::Status {
            code,
            message: message.to_owned(),
        };
        assert!(is_timeout(&status("DEADLINE_EXCEEDED", "command \"x\" timed out")));
        let wrapped = "failed to exec in container: timeout 1s exceeded: context deadline exceeded";
        assert!(is_timeout(&status("DEADLINE_EXCEEDED", wrapped)));
        assert!(is_timeout(&status("UNKNOWN", wrapped)));
        assert!(!is_timeout(&status("UNKNOWN", "OCI runtime exec failed: no such file")));
        assert!(!is_timeout(&status("UNAVAILABLE", "deadline exceeded")));
        assert!(!is_timeout(&ErrorKind::Deadline(Duration::from_secs(1))));
    }
}
