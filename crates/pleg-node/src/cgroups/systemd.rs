//! Cgroups with the systemd driver: systemd owns the files of a slice, so limits are properties of its unit, set by `systemctl`.
//!
//! The properties are runtime ones: they vanish with a reboot. systemd creates a slice with the first scope in it, which the runtime
//! starts, and applies them then.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use pleg_cri::duration::seconds;
use tokio::process::Command;
use tokio::time::timeout;

use super::limits::{CgroupLimits, weight};
use super::{Wanted, names};
use crate::host::has_cgroup_v2;

/// Deadline of one `systemctl`.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest part of its error output that is kept.
const MAX_OUTPUT: usize = 512;

/// Why `systemctl` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SystemdError {
    /// It cannot be run.
    #[error("cannot run {}", .program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It failed.
    #[error("`systemctl {what}` failed: {output}")]
    Failed {
        /// Its arguments.
        what: String,
        /// The beginning of what it printed.
        output: String,
    },
    /// It took too long.
    #[error("`systemctl {what}`: no answer within {}", seconds(DEADLINE))]
    Timeout {
        /// Its arguments.
        what: String,
    },
}

impl SystemdError {
    /// Whether there is no systemd here, or none that listens to us.
    pub(crate) fn is_no_access(&self) -> bool {
        match self {
            Self::Run { .. } => true,
            Self::Failed { output, .. } => {
                output.contains("has not been booted with systemd")
                    || output.contains("Failed to connect to bus")
                    || output.contains("Access denied")
            }
            Self::Timeout { .. } => false,
        }
    }
}

/// Sets the limits of slices.
pub(super) async fn set(systemctl: &Path, mount: PathBuf, wanted: &[Wanted]) -> Result<(), SystemdError> {
    let v2 = has_cgroup_v2(&mount);
    for cgroup in wanted {
        let mut args = vec![
            "set-property".to_owned(),
            "--runtime".to_owned(),
            names::slice(&cgroup.levels),
        ];
        args.extend(properties(&cgroup.limits, v2));
        run(systemctl, &args).await?;
    }
    Ok(())
}

/// Stops slices, and removes their properties.
pub(super) async fn remove(systemctl: &Path, slices: &[String]) -> Result<(), SystemdError> {
    for verb in ["stop", "revert"] {
        let mut args = vec![verb.to_owned()];
        args.extend(slices.iter().cloned());
        run(systemctl, &args).await?;
    }
    Ok(())
}

/// Limits as properties of a unit.
fn properties(limits: &CgroupLimits, v2: bool) -> Vec<String> {
    let mut all = vec![if v2 {
        format!("CPUWeight={}", weight(limits.cpu_shares))
    } else {
        format!("CPUShares={}", limits.cpu_shares)
    }];
    if let Some(quota) = limits.cpu_quota {
        // In percent of one CPU, with two digits.
        all.push(format!("CPUQuota={}.{:02}%", quota / 1000, quota % 1000 / 10));
    }
    if let Some(memory) = limits.memory {
        let name = if v2 { "MemoryMax" } else { "MemoryLimit" };
        all.push(format!("{name}={memory}"));
    }
    all
}

async fn run(systemctl: &Path, args: &[String]) -> Result<(), SystemdError> {
    let mut command = Command::new(systemctl);
    command
        .args(args.iter().map(OsStr::new))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let what = args.join(" ");
    let output = match timeout(DEADLINE, command.output()).await {
        Err(_) => return Err(SystemdError::Timeout { what }),
        Ok(output) => output.map_err(|source| SystemdError::Run {
            program: systemctl.to_owned(),
            source,
        })?,
    };
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr);
    Err(SystemdError::Failed {
        what,
        output: output.trim().chars().take(MAX_OUTPUT).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A `systemctl` that writes down its arguments, and then does this.
    fn fake(dir: &Path, then: &str) -> PathBuf {
        let program = dir.join("systemctl");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\n{then}\n", dir.join("calls").display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    fn pod() -> Vec<Wanted> {
        vec![Wanted {
            levels: ["kubepods", "burstable", "pod1"].map(str::to_owned).into(),
            limits: CgroupLimits {
                cpu_shares: 512,
                cpu_quota: Some(12_340),
                memory: Some(1 << 20),
            },
        }]
    }

    #[tokio::test]
    async fn limits_are_properties_of_the_slice() {
        for (version, set_to) in [
            (1, "CPUShares=512 CPUQuota=12.34% MemoryLimit=1048576"),
            (2, "CPUWeight=20 CPUQuota=12.34% MemoryMax=1048576"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            if version == 2 {
                fs::write(dir.path().join("cgroup.controllers"), "cpu memory").unwrap();
            }
            let systemctl = fake(dir.path(), "");
            set(&systemctl, dir.path().to_owned(), &pod()).await.unwrap();
            let slice = "kubepods-burstable-pod1.slice";
            remove(&systemctl, &[slice.to_owned()]).await.unwrap();
            let calls = fs::read_to_string(dir.path().join("calls")).unwrap();
            let expected = format!("set-property --runtime {slice} {set_to}\nstop {slice}\nrevert {slice}\n");
            assert_eq!(calls, expected);
        }
    }

    #[tokio::test]
    async fn a_missing_systemd_is_distinguished_from_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let error = |program: PathBuf| async move { set(&program, PathBuf::new(), &pod()).await.unwrap_err() };
        assert!(error(dir.path().join("none")).await.is_no_access());
        let not_booted = "echo 'System has not been booted with systemd as init system (PID 1).' >&2; exit 1";
        assert!(error(fake(dir.path(), not_booted)).await.is_no_access());
        let refused = error(fake(dir.path(), "echo 'Unknown assignment' >&2; exit 1")).await;
        assert!(!refused.is_no_access());
        assert_eq!(
            refused.to_string(),
            "`systemctl set-property --runtime kubepods-burstable-pod1.slice CPUShares=512 CPUQuota=12.34% \
             MemoryLimit=1048576` failed: Unknown assignment"
        );
    }
}
