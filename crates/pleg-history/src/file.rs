//! Opens the file: creates it, locks it, and moves it aside if it cannot be used.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::layout::{FileHeader, HEADER};
use crate::volume::{Volume, read};

/// Why there is no history, or none can be written for now.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Another process writes it.
    #[error("{} is in use by another process: give each daemon its own --history-file", .0.display())]
    InUse(PathBuf),
    /// It cannot be created, opened, read or written.
    #[error("cannot {doing} {}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// It is no history, or one of a later release; only for readers, since a writer moves it aside.
    #[error("{} is not a history that this release can read: {what}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// There is no file for now.
    #[error("history is off: {0}")]
    Off(std::sync::Arc<str>),
    /// There is no thread to write it.
    #[error("cannot start the thread that writes {}", .path.display())]
    Thread {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl HistoryError {
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}

/// Opens the file to write it, and creates it if it does not exist. A file that is no history, or one of a later release, is renamed.
pub(crate) fn open(path: &Path) -> Result<Volume, HistoryError> {
    let mut moved = false;
    loop {
        let file = create(path)?;
        let failed = |doing| move |source| HistoryError::io(doing, path, source);
        let header = read(&file, 0, HEADER).map_err(failed("read"))?;
        let length = file.metadata().map_err(failed("read"))?.len();
        // A crash may leave a file of zeros.
        let is_new = length == 0
            || header
                .as_ref()
                .is_some_and(|header| header.iter().all(|&byte| byte == 0));
        if is_new {
            file.set_len(0).map_err(failed("write"))?;
            file.write_all_at(&FileHeader::encode(), 0).map_err(failed("write"))?;
            file.sync_all().map_err(failed("write"))?;
            sync_directory(path);
            return Volume::load(path, file).map_err(failed("read"));
        }
        let (extension, why) = match FileHeader::decode(&header.unwrap_or_default()) {
            FileHeader::Known => return Volume::load(path, file).map_err(failed("read")),
            FileHeader::Newer(_) => ("newer", "a later release wrote it"),
            FileHeader::Foreign => ("broken", "it is damaged, or no history"),
        };
        if moved {
            let source = io::Error::other("it is still there after it was renamed");
            return Err(HistoryError::io("replace", path, source));
        }
        let aside = path.with_extension(extension);
        std::fs::rename(path, &aside).map_err(failed("rename"))?;
        tracing::warn!(
            file = %path.display(),
            renamed_to = %aside.display(),
            "cannot use the history: {why}; beginning a new one"
        );
        moved = true;
    }
}

/// Opens the file to read it, also while a daemon writes it.
pub(crate) fn open_to_read(path: &Path) -> Result<Volume, HistoryError> {
    let failed = |source| HistoryError::io("open", path, source);
    let file = File::open(path).map_err(failed)?;
    let header = read(&file, 0, HEADER).map_err(failed)?.unwrap_or_default();
    let what = match FileHeader::decode(&header) {
        FileHeader::Known => return Volume::load(path, file).map_err(failed),
        FileHeader::Newer(version) => format!("it has version {version}; use the release that wrote it"),
        FileHeader::Foreign => "it does not begin as one".to_owned(),
    };
    Err(HistoryError::Unreadable {
        path: path.to_owned(),
        what,
    })
}

/// Opens or creates the file, for this user alone, and locks it.
fn create(path: &Path) -> Result<File, HistoryError> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| HistoryError::io("create the directory of", path, source))?;
    }
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    let file = opened.map_err(|source| HistoryError::io("open", path, source))?;
    let data = file
        .metadata()
        .map_err(|source| HistoryError::io("open", path, source))?;
    if !data.is_file() {
        let source = io::Error::other("it is not a regular file");
        return Err(HistoryError::io("open", path, source));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(HistoryError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => return Err(HistoryError::io("lock", path, source)),
    }
    if data.permissions().mode() & 0o077 != 0 {
        // Names of pods and images are nobody else's business. A file system without modes is no reason to stop.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// Makes a new name durable. Best effort: the content is synced anyway, and a lost name is a lost new file.
fn sync_directory(path: &Path) {
    if let Some(directory) = path.parent()
        && let Ok(directory) = File::open(directory)
    {
        let _ = directory.sync_all();
    }
}
