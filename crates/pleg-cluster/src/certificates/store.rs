//! Files of certificates and keys: for their owner only, and whole at any time. Blocking.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rcgen::KeyPair;
use tracing::warn;

/// Largest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// Only the owner may read or write.
const PRIVATE: u32 = 0o600;
const PRIVATE_DIRECTORY: u32 = 0o700;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}", .path.display())]
pub(super) struct FileError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl FileError {
    fn new(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { what, path, source }
    }
}

/// The content of a file; none if there is none. A file that others may read is made private.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(FileError::new("open", path))?,
    };
    let metadata = file.metadata().map_err(FileError::new("examine", path))?;
    if !metadata.is_file() {
        let other = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(FileError::new("read", path)(other));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        warn!(path = %path.display(), "a file with a private key was readable by others; it no longer is");
        let set = file.set_permissions(Permissions::from_mode(PRIVATE));
        set.map_err(FileError::new("change the mode of", path))?;
    }
    let mut content = Vec::new();
    // What is cut off cannot be parsed.
    let got = file.take(MAX_FILE).read_to_end(&mut content);
    got.map_err(FileError::new("read", path))?;
    Ok(Some(content))
}

/// Writes a file as a whole, for its owner only: after a crash there is the old content or the new one.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(PRIVATE_DIRECTORY).create(directory);
    made.map_err(FileError::new("create", directory))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = directory.join(name);
    let written = write_new(&temporary, content).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // The next one replaces it anyway.
        let _ = fs::remove_file(&temporary);
        return Err(FileError::new("write", path)(error));
    }
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(FileError::new("write", directory))
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    // Of a crash. What is there may have any mode and owner, so it is not written to.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(PRIVATE).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Removes a file, if there is one.
pub(super) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::new("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The key of a request that waits: that of the file, or a new one that is written there.
pub(super) fn pending_key(path: &Path) -> Result<KeyPair, PendingKeyError> {
    if let Some(content) = read(path)?
        && let Ok(text) = String::from_utf8(content)
        && let Ok(key) = KeyPair::from_pem(&text)
    {
        return Ok(key);
    }
    let key = KeyPair::generate().map_err(|error| PendingKeyError::Generate(error.to_string()))?;
    write(path, key.serialize_pem().as_bytes())?;
    Ok(key)
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub(super) enum PendingKeyError {
    /// Its file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// None could be made.
    #[error("cannot make a key: {0}")]
    Generate(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pki/client.pem");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, b"one").unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        // What a crash left behind, readable by all and longer.
        let left = directory.path().join("pki/client.pem.new");
        fs::write(&left, "left behind").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(
            (read(&path).unwrap().as_deref(), mode(&path)),
            (Some(&b"two"[..]), 0o600)
        );
        assert!(!left.exists());
        // Somebody made it readable.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(mode(&path), 0o600);
        remove(&path).unwrap();
        remove(&path).unwrap();
        let error = write(&directory.path().join("pki"), b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot write /"), "{error}");
        assert!(read(&directory.path().join("pki")).is_err(), "a directory");
    }

    #[test]
    fn a_pending_key_is_kept_until_it_is_of_no_use() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pending.key");
        let key = pending_key(&path).unwrap().serialize_pem();
        assert_eq!(
            (pending_key(&path).unwrap().serialize_pem() == key, mode(&path)),
            (true, 0o600)
        );
        for garbage in [
            &b""[..],
            b"\xff\xfe",
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            fs::write(&path, garbage).unwrap();
            let new = pending_key(&path).unwrap().serialize_pem();
            assert_ne!(new, key);
            assert_eq!(pending_key(&path).unwrap().serialize_pem(), new);
        }
    }
}
