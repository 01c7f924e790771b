use std::fs;
use std::io::Write as _;

use proptest::prelude::*;

use super::*;

struct Log {
    directory: tempfile::TempDir,
    rotations: u32,
}

impl Log {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            directory,
            rotations: 0,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("0.log")
    }

    fn write(&self, text: &str) {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path())
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn line(&self, text: &str) {
        self.write(&format!("2026-11-18T00:00:01Z stdout F {text}\n"));
    }

    /// As the node does: renames the log, and compresses all rotated files but the newest.
    fn rotate(&mut self) {
        self.rotations += 1;
        let older = self.rotated(self.rotations - 1);
        if older.exists() {
            compress(&older);
        }
        fs::rename(self.path(), self.rotated(self.rotations)).unwrap();
    }

    fn rotated(&self, n: u32) -> PathBuf {
        self.directory.path().join(format!("0.log.20261118-{n:06}"))
    }

    fn open(&self, tail_lines: Option<u64>, follow: bool) -> LogReader {
        let options = ReadOptions {
            tail_lines,
            follow,
            ..ReadOptions::default()
        };
        LogReader::open(&self.path(), options).unwrap().unwrap()
    }

    fn read(&self, tail_lines: Option<u64>) -> String {
        let mut reader = self.open(tail_lines, false);
        let text = until_idle(&mut reader);
        assert_eq!(reader.next().unwrap(), Piece::End);
        text
    }
}

fn compress(path: &Path) {
    let mut compressed = path.to_owned().into_os_string();
    compressed.push(".gz");
    let to = File::create(compressed).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(to, flate2::Compression::fast());
    encoder.write_all(&fs::read(path).unwrap()).unwrap();
    encoder.finish().unwrap();
    fs::remove_file(path).unwrap();
}

/// What can be read now.
fn until_idle(reader: &mut LogReader) -> String {
    let mut text = Vec::new();
    while let Piece::Data(piece) = reader.next().unwrap() {
        text.extend(piece);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn a_log_is_all_its_files() {
    let mut log = Log::new();
    for n in 0..12 {
        log.line(&n.to_string());
        if n % 3 == 2 {
            log.rotate();
        }
    }
    assert!(!log.path().exists(), "the runtime has not reopened it yet");
    let all = (0..12).map(|n| n.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    assert_eq!(log.read(None), all);
    log.line("12");
    assert_eq!(log.read(None), all + "12\n");
    for (tail, expected) in [(0, ""), (1, "12\n"), (2, "11\n12\n"), (5, "8\n9\n10\n11\n12\n")] {
        assert_eq!(log.read(Some(tail)), expected, "{tail}");
    }
}

#[test]
fn files_that_are_too_old_are_not_read() {
    let mut log = Log::new();
    log.line("old");
    log.rotate();
    log.write("2026-11-18T00:00:09Z stdout F new\n");
    // It cannot be read, and is not: it was last written to before.
    let rotated = log.rotated(1);
    let old = SystemTime::from("2026-11-18T00:00:02Z".parse::<jiff::Timestamp>().unwrap());
    File::options()
        .write(true)
        .open(&rotated)
        .unwrap()
        .set_modified(old)
        .unwrap();
    let mut options = ReadOptions::default();
    options.format.since = Some("2026-11-18T00:00:05Z".parse().unwrap());
    let reader = LogReader::open(&log.path(), options.clone()).unwrap().unwrap();
    assert_eq!(reader.segments.len(), 1);
    options.format.since = Some("2026-11-18T00:00:01Z".parse().unwrap());
    let reader = LogReader::open(&log.path(), options).unwrap().unwrap();
    assert_eq!(reader.segments.len(), 2);
}

#[test]
fn no_file_is_no_log() {
    let log = Log::new();
    assert!(LogReader::open(&log.path(), ReadOptions::default()).unwrap().is_none());
    // Who follows it waits for it.
    let mut reader = log.open(None, true);
    assert_eq!(reader.next().unwrap(), Piece::Idle);
    log.line("one");
    assert_eq!(until_idle(&mut reader), "one\n");
}

#[test]
fn a_followed_log_goes_on_after_rotations() {
    let mut log = Log::new();
    log.line("one");
    let mut reader = log.open(None, true);
    assert_eq!(until_idle(&mut reader), "one\n");
    log.write("2026-11-18T00:00:01Z stdout F tw");
    assert_eq!(until_idle(&mut reader), "tw");
    log.write("o\n");
    assert_eq!(until_idle(&mut reader), "o\n");
    // Written before the rotation, and read after it.
    log.line("three");
    log.rotate();
    assert_eq!(until_idle(&mut reader), "three\n");
    assert_eq!(reader.next().unwrap(), Piece::Idle, "there is no current file");
    log.line("four");
    assert_eq!(until_idle(&mut reader), "four\n");
    // A slow reader: several rotations, and its own file is compressed by then.
    for text in ["five", "six", "seven", "eight"] {
        log.line(text);
        log.rotate();
    }
    log.line("nine");
    assert_eq!(until_idle(&mut reader), "five\nsix\nseven\neight\nnine\n");
    // Truncated in place.
    fs::write(log.path(), "").unwrap();
    assert_eq!(reader.next().unwrap(), Piece::Idle);
    log.line("ten");
    assert_eq!(until_idle(&mut reader), "ten\n");
    // Its last words are in a new file.
    log.rotate();
    log.line("eleven");
    reader.finish();
    assert_eq!(until_idle(&mut reader), "eleven\n");
    assert_eq!(reader.next().unwrap(), Piece::End);
}

#[test]
fn a_log_that_grows_while_it_is_read_ends() {
    let log = Log::new();
    log.line(&"a".repeat(100_000));
    let mut reader = log.open(None, false);
    assert!(matches!(reader.next().unwrap(), Piece::Data(_)));
    log.line("more");
    assert!(!until_idle(&mut reader).contains("more"));
}

#[test]
fn the_limit_ends_a_followed_log() {
    let log = Log::new();
    log.line("one");
    let mut options = ReadOptions {
        follow: true,
        ..ReadOptions::default()
    };
    options.format.limit_bytes = Some(2);
    let mut reader = LogReader::open(&log.path(), options).unwrap().unwrap();
    assert_eq!(until_idle(&mut reader), "on");
    assert_eq!(reader.next().unwrap(), Piece::End);
}

#[test]
fn a_piece_is_bounded() {
    let log = Log::new();
    for _ in 0..20_000 {
        log.line(&"a".repeat(100));
    }
    let mut reader = log.open(None, false);
    while let Piece::Data(piece) = reader.next().unwrap() {
        assert!(piece.len() <= OUTPUT + INPUT, "{}", piece.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is rotated and compressed, the last lines are the last lines.
    #[test]
    fn the_tail_is_the_end_of_the_whole(
        steps in prop::collection::vec(prop_oneof![4 => Just(false), 1 => Just(true)], 1..40),
        partial in prop::collection::vec(any::<bool>(), 40),
        tail in 0u64..40,
    ) {
        let mut log = Log::new();
        let mut lines = Vec::new();
        for (n, rotate) in steps.into_iter().enumerate() {
            if partial[n] {
                log.write(&format!("2026-11-18T00:00:01Z stdout P {n}-\n"));
                lines.push(format!("{n}-{n}\n"));
            } else {
                lines.push(format!("{n}\n"));
            }
            log.line(&n.to_string());
            if rotate {
                log.rotate();
            }
        }
        prop_assert_eq!(log.read(None), lines.concat());
        let from = lines.len().saturating_sub(usize::try_from(tail).unwrap());
        prop_assert_eq!(log.read(Some(tail)), lines[from..].concat());
    }
}
