//! What a container leaves about its exit: the message of its terminated state. Blocking.
//!
//! Each attempt of a container has a file of its own on the host, mounted at `terminationMessagePath`. It is read once the container has
//! exited, and goes with the container. If the container failed and wrote nothing, the end of its log can be the message
//! (`FallbackToLogsOnError`). Limits are the kubelet's.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use pleg::PodUid;
use pleg_cri::v1;

use super::requests::{NodeConfig, log_path, text};
use crate::manifest::{Container, Pod};

/// What is read of the file: its end.
const MAX_FILE: u64 = 4096;
/// What is taken of the log.
const MAX_LOG: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// What is read of the log: each line of content has a time and a stream before it.
const MAX_LOG_READ: u64 = 64 << 10;

/// How a container exited, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExitedContainer {
    pub(crate) attempt: u32,
    pub(crate) exit_code: i32,
    /// Its process was started. If not, there is no log.
    pub(crate) started: bool,
}

fn directory(node: &NodeConfig, uid: &PodUid, container: &str) -> PathBuf {
    node.pod_directory(uid).join("containers").join(container)
}

fn path(node: &NodeConfig, uid: &PodUid, container: &str, attempt: u32) -> PathBuf {
    directory(node, uid, container).join(attempt.to_string())
}

/// Creates the file of an attempt, and returns its mount. Files of all attempts but the last are removed: they have been read.
pub(super) fn mount(node: &NodeConfig, pod: &Pod, container: &Container, attempt: u32) -> io::Result<v1::Mount> {
    let directory = directory(node, &pod.id.uid, &container.name);
    fs::create_dir_all(&directory)?;
    for entry in fs::read_dir(&directory)? {
        let entry = entry?;
        let other = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if other.is_some_and(|other| other.saturating_add(1) < attempt) {
            fs::remove_file(entry.path())?;
        }
    }
    let path = path(node, &pod.id.uid, &container.name, attempt);
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    // The container may run as any user.
    file.set_permissions(fs::Permissions::from_mode(0o666))?;
    Ok(v1::Mount {
        container_path: container.termination_message.path.clone(),
        host_path: text(&path),
        selinux_relabel: node.host.selinux,
        ..Default::default()
    })
}

/// The message of a container that has exited; empty if it left none.
pub(super) fn read(node: &NodeConfig, pod: &Pod, container: &Container, exited: ExitedContainer) -> String {
    let path = path(node, &pod.id.uid, &container.name, exited.attempt);
    let written = match read_end(&path, MAX_FILE) {
        Ok((bytes, _)) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return format!("cannot read the termination message {}: {error}", path.display()),
    };
    let falls_back = container.termination_message.fall_back_to_logs && exited.exit_code != 0 && exited.started;
    if !written.is_empty() || !falls_back {
        return written;
    }
    let log = node.log_directory(pod).join(log_path(&container.name, exited.attempt));
    match read_end(&log, MAX_LOG_READ) {
        Ok((bytes, is_whole)) => end_of_log(&bytes, is_whole),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => format!(
            "cannot read the termination message from the log {}: {error}",
            log.display()
        ),
    }
}

/// Removes the file of an attempt.
pub(super) fn remove(node: &NodeConfig, uid: &PodUid, container: &str, attempt: u32) -> io::Result<()> {
    match fs::remove_file(path(node, uid, container, attempt)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The end of a file, and whether that is all of it.
fn read_end(path: &Path, max: u64) -> io::Result<(Vec<u8>, bool)> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK)
        .bits()
        .cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let before = file.metadata()?.len().saturating_sub(max);
    file.seek(SeekFrom::Start(before))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok((bytes, before == 0))
}

/// What the container wrote last, of a log in the format of CRI: `TIME STREAM F|P CONTENT`. Lines marked by `P` have no end of line.
fn end_of_log(bytes: &[u8], is_whole: bool) -> String {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    if !is_whole {
        // The first line may be cut.
        lines.next();
    }
    let mut content: Vec<u8> = Vec::new();
    for line in lines {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (Some(_), Some(_), Some(tag), Some(text)) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let is_partial = tag.split(|byte| *byte == b':').next() == Some(b"P".as_slice());
        let text = if is_partial {
            text.strip_suffix(b"\n").unwrap_or(text)
        } else {
            text
        };
        content.extend_from_slice(text);
    }
    let body = content.strip_suffix(b"\n").unwrap_or(&content);
    let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let by_lines = ends.nth(MAX_LOG_LINES - 1).map_or(0, |(at, _)| at + 1);
    let by_bytes = content.len().saturating_sub(MAX_LOG);
    String::from_utf8_lossy(&content[by_lines.max(by_bytes)..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::TerminationMessage;
    use crate::testing::{node, pod};

    const FAILED: ExitedContainer = ExitedContainer {
        attempt: 0,
        exit_code: 1,
        started: true,
    };

    struct Setup {
        _dir: tempfile::TempDir,
        node: NodeConfig,
        pod: Pod,
    }

    impl Setup {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let node = node(dir.path());
            let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
            pod.spec.containers[0].termination_message = TerminationMessage {
                path: "/m".to_owned(),
                fall_back_to_logs: true,
            };
            fs::create_dir_all(node.log_directory(&pod).join("a")).unwrap();
            Self { _dir: dir, node, pod }
        }

        fn mount(&self, attempt: u32) -> v1::Mount {
            mount(&self.node, &self.pod, &self.pod.spec.containers[0], attempt).unwrap()
        }

        fn read(&self, exited: ExitedContainer) -> String {
            read(&self.node, &self.pod, &self.pod.spec.containers[0], exited)
        }

        fn log(&self, text: &str) {
            fs::write(self.node.log_directory(&self.pod).join("a/0.log"), text).unwrap();
        }
    }

    #[test]
    fn what_a_container_wrote_is_its_message() {
        use std::os::unix::fs::MetadataExt as _;
        let setup = Setup::new();
        let mounted = setup.mount(0);
        assert_eq!(mounted.container_path, "/m");
        assert_eq!(fs::metadata(&mounted.host_path).unwrap().mode() & 0o777, 0o666);
        fs::write(&mounted.host_path, "out of luck").unwrap();
        setup.log("2026-11-17T20:00:00Z stderr F something else\n");
        assert_eq!(setup.read(FAILED), "out of luck");
        // The end of a long one.
        fs::write(&mounted.host_path, format!("{}{}", "a".repeat(4096), "b".repeat(4000))).unwrap();
        let message = setup.read(FAILED);
        assert_eq!(message, format!("{}{}", "a".repeat(96), "b".repeat(4000)));
    }

    #[test]
    fn the_log_is_the_message_of_a_failure_without_one() {
        let setup = Setup::new();
        setup.mount(0);
        assert_eq!(setup.read(FAILED), "");
        setup.log("T stdout F one\nT stderr P par\nT stderr P ti\nT stderr F al\n");
        assert_eq!(setup.read(FAILED), "one\npartial\n");
        let success = ExitedContainer { exit_code: 0, ..FAILED };
        let never_ran = ExitedContainer {
            started: false,
            ..FAILED
        };
        assert_eq!(
            (setup.read(success), setup.read(never_ran)),
            (String::new(), String::new())
        );
        let mut own = setup;
        own.pod.spec.containers[0].termination_message.fall_back_to_logs = false;
        assert_eq!(own.read(FAILED), "");
    }

    #[test]
    fn of_a_long_log_the_end_is_taken() {
        let setup = Setup::new();
        let short: Vec<String> = (0..100).map(|n| format!("T stdout F {n}\n")).collect();
        setup.log(&short.concat());
        let message = setup.read(FAILED);
        assert_eq!((message.lines().count(), message.lines().next()), (80, Some("20")));
        // Far more than is read of it.
        let long: Vec<String> = (0..9000).map(|n| format!("T stdout F {n:0100}\n")).collect();
        setup.log(&long.concat());
        let message = setup.read(FAILED);
        assert!(message.len() == 2048 && message.ends_with("8999\n"), "{message}");
    }

    #[test]
    fn files_go_with_their_containers() {
        let setup = Setup::new();
        let files: Vec<String> = (0..4).map(|attempt| setup.mount(attempt).host_path).collect();
        let exist: Vec<bool> = files.iter().map(|file| Path::new(file).exists()).collect();
        assert_eq!(exist, [false, false, true, true]);
        remove(&setup.node, &setup.pod.id.uid, "a", 2).unwrap();
        remove(&setup.node, &setup.pod.id.uid, "a", 2).unwrap();
        assert!(!Path::new(&files[2]).exists() && Path::new(&files[3]).exists());
    }
}
