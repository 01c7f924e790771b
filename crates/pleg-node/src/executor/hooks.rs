//! Lifecycle hooks, and commands in a container.

use std::net::IpAddr;
use std::time::Duration;

use pleg::ContainerId;
use pleg_cri::{Subject, v1};
use tokio::time::timeout;

use super::error::{ExecError, HookError};
use super::{RuntimeExecutor, whole_seconds};
use crate::manifest::{Hook, Pod};
use crate::net::http_get;

/// Characters that are kept of the output of a failed command.
const MAX_OUTPUT: usize = 512;

impl RuntimeExecutor {
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
        let deadline = within.saturating_add(self.client.deadlines().inspect);
        let answer = self.call_within(about, request, deadline).await?;
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
