//! The bundle for a bug report: a tar.gz of a few text files. A bundle that is read is treated as hostile.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use pleg::recorder::line::Line;

/// The recording's place in a bundle.
pub(crate) const RECORDER: &str = "recorder.jsonl";
/// Maximum size of a bundle, unpacked.
const MOST_BYTES: u64 = 256 << 20;
/// Maximum number of files in a bundle. Ours have six.
const MOST_FILES: usize = 64;
/// Maximum length of a line in a recording: enough for a pod with tens of thousands of containers.
const LONGEST_LINE: u64 = 32 << 20;
/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file of a bundle.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// A description for people.
    pub(crate) what: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// The name of a bundle made at `time`; also of the directory in it.
pub(crate) fn name(time: Timestamp) -> String {
    format!("pleg-bundle-{}", time.strftime("%Y%m%dT%H%M%SZ"))
}

/// Packs the parts.
pub(crate) fn pack(parts: &[Part], time: Timestamp) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for part in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(time.as_second()).unwrap_or(0));
        tar.append_data(&mut header, format!("{}/{}", name(time), part.name), &*part.bytes)?;
    }
    tar.into_inner()?.finish()
}

/// Checks that a bundle may be written there: only a regular file is replaced, and only with `--force`; never a device, link or directory.
pub(crate) fn check(path: &Path, force: bool) -> anyhow::Result<()> {
    let name = path.display();
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot write {name}")),
        Ok(meta) if !meta.is_file() => anyhow::bail!("cannot write {name}: it exists and is not a regular file"),
        Ok(_) if force => Ok(()),
        Ok(_) => anyhow::bail!("{name} already exists: choose another name with -o, or add --force"),
    }
}

/// Writes a bundle that only its owner can read. Replaces a file only with `--force`.
pub(crate) fn write(path: &Path, bytes: &[u8], force: bool) -> anyhow::Result<()> {
    check(path, force)?;
    // The old file is replaced only once the new one is complete.
    let target = if force { aside(path) } else { path.to_owned() };
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&target).and_then(|mut file| {
        let mut written = file.write_all(bytes);
        if force && written.is_ok() {
            written = std::fs::rename(&target, path);
        }
        if written.is_err() {
            let _ = std::fs::remove_file(&target);
        }
        written
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Reads a recording from a bundle or from a plain file.
pub(crate) fn recording(path: &Path) -> anyhow::Result<Vec<Line>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let mut file = BufReader::new(file);
    let begins = file.fill_buf().with_context(|| format!("cannot read {name}"))?;
    if !begins.starts_with(&GZIP) {
        return lines(file.take(MOST_BYTES)).with_context(|| format!("{name} is neither a bundle nor a recording"));
    }
    let unpacked = MultiGzDecoder::new(file).take(MOST_BYTES);
    let mut tar = tar::Archive::new(unpacked);
    let broken = || format!("{name} is not a pleg bundle");
    for entry in tar.entries().with_context(broken)?.take(MOST_FILES) {
        let entry = entry.with_context(broken)?;
        let is_recording = entry
            .path()
            .is_ok_and(|path| path.file_name().is_some_and(|name| name == RECORDER));
        if is_recording && entry.header().entry_type().is_file() {
            return lines(BufReader::new(entry)).with_context(|| format!("{name}: {RECORDER} cannot be read"));
        }
    }
    anyhow::bail!("{name} is not a pleg bundle: it contains no {RECORDER}")
}

fn lines(mut from: impl BufRead) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let number = lines.len() + 1;
        let read = from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        if read.with_context(|| format!("line {number} is truncated"))? == 0 {
            return Ok(lines);
        }
        anyhow::ensure!(line.ends_with(b"\n"), "line {number} is incomplete or too long");
        let line = serde_json::from_slice(&line).with_context(|| format!("line {number} cannot be parsed"))?;
        lines.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(recorder: &str) -> Vec<Part> {
        let part = |name, bytes: &str| Part {
            name,
            what: "",
            bytes: bytes.into(),
        };
        vec![part("metrics.txt", "x 1\n"), part(RECORDER, recorder)]
    }

    fn read(bytes: &[u8]) -> Result<Vec<Line>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        write(&path, bytes, false).unwrap();
        recording(&path).map_err(|error| format!("{error:#}").replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn what_was_packed_is_read() {
        let line = r#"{"time":"2026-11-16T00:00:00Z","kind":"limit","from":64,"to":48}"#;
        let packed = pack(&parts(&format!("{line}\n")), Timestamp::UNIX_EPOCH).unwrap();
        let lines = read(&packed).unwrap();
        assert_eq!(serde_json::to_string(&lines[0]).unwrap(), line);
        assert_eq!(read(format!("{line}\n").as_bytes()).unwrap(), lines);
        // Lines of a newer version are skipped.
        let newer = r#"{"time":"2026-11-16T00:00:00Z","kind":"weather","from":64}"#;
        assert_eq!(read(format!("{newer}\n").as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn what_is_none_says_so() {
        let packed = |recorder: &str| pack(&parts(recorder), Timestamp::UNIX_EPOCH).unwrap();
        let mut cut = packed(&"{}\n".repeat(100_000));
        cut.truncate(cut.len() / 2);
        let without = pack(&parts("")[..1], Timestamp::UNIX_EPOCH).unwrap();
        for (bytes, error) in [
            (
                &b"PK\x03\x04"[..],
                "FILE is neither a bundle nor a recording: line 1 is incomplete or too long",
            ),
            (
                b"[]\n",
                "FILE is neither a bundle nor a recording: line 1 cannot be parsed",
            ),
            (b"\x1f\x8bnonsense", "FILE is not a pleg bundle"),
            (&without, "FILE is not a pleg bundle: it contains no recorder.jsonl"),
            (&cut, "FILE: recorder.jsonl cannot be read: line 1 cannot be parsed"),
            (
                &packed("{\"time\":1}\n"),
                "FILE: recorder.jsonl cannot be read: line 1 cannot be parsed",
            ),
        ] {
            let said = read(bytes).unwrap_err();
            assert!(said.starts_with(error), "{said}");
        }
    }

    /// A megabyte that unpacks to a gigabyte is given up after a quarter of it.
    #[test]
    fn a_bomb_is_not_unpacked() {
        let mut gz = GzEncoder::new(Vec::new(), Compression::default());
        let mut header = tar::Header::new_gnu();
        header.set_path(RECORDER).unwrap();
        header.set_size(1 << 30);
        header.set_cksum();
        gz.write_all(header.as_bytes()).unwrap();
        let zeros = vec![b' '; 1 << 20];
        for _ in 0..64 {
            gz.write_all(&zeros).unwrap();
        }
        let said = read(&gz.finish().unwrap()).unwrap_err();
        assert!(said.contains("line 1 is incomplete or too long"), "{said}");
    }

    #[test]
    fn a_file_is_replaced_only_when_told_to_and_is_ours_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.tar.gz");
        std::fs::write(&path, "old").unwrap();
        let error = write(&path, b"new", false).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("already exists: choose another name with -o, or add --force")
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        write(&path, b"new", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&dir.path().join("no/where"), b"new", false).is_err());
        // As root, --force must not put a file in the place of a device.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for other in [Path::new("/dev/null"), &link, dir.path()] {
            let error = check(other, true).unwrap_err();
            assert!(
                error.to_string().ends_with("it exists and is not a regular file"),
                "{error}"
            );
        }
    }
}
