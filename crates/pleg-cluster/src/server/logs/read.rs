//! Reads a log over all its files, and follows it. Blocking; memory does not depend on the size of the log.
//!
//! The current file is opened before rotated ones are listed, so a rotation in between hides nothing. Without `follow`, a log ends where it
//! ended when it was opened: a container that writes faster than its reader reads has no endless log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::files::{self, FileId, Opened, Rotated};
use super::line::{Format, Formatter, LineCounter};
use super::tail::{TailStart, tail_start};

/// What is read at once.
const INPUT: usize = 64 << 10;
/// Enough to be sent.
const OUTPUT: usize = 32 << 10;
/// Most that is read before the caller may look up: most of it may be too old to be shown.
const MAX_INPUT: usize = 4 << 20;

/// How far the clock of a filesystem may be behind that of the runtime.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);

/// What to read of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReadOptions {
    /// What to make of each line.
    pub(crate) format: Format,
    /// Only this many lines from the end.
    pub(crate) tail_lines: Option<u64>,
    /// Wait for more at the end.
    pub(crate) follow: bool,
}

/// The next piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text; may be empty.
    Data(Vec<u8>),
    /// Nothing yet: ask again later, or call [`LogReader::finish`].
    Idle,
    /// That was all.
    End,
}

/// A file that is to be read, or part of it.
#[derive(Debug)]
struct Segment {
    from: From,
    /// Complete lines to skip.
    skip_lines: u64,
}

#[derive(Debug)]
enum From {
    Rotated(Rotated),
    Current {
        file: File,
        start: u64,
        /// Its length when it was opened.
        length: u64,
    },
}

/// A file that is being read.
#[derive(Debug)]
struct Reading {
    source: Source,
    counter: LineCounter,
    skip_lines: u64,
}

#[derive(Debug)]
enum Source {
    Rotated(Opened),
    /// The file that the runtime writes to, or did when it was opened.
    Current {
        file: File,
        position: u64,
        /// Where it ended when it was opened, unless it is followed.
        end: Option<u64>,
    },
}

/// A log that is being read.
#[derive(Debug)]
pub(crate) struct LogReader {
    path: PathBuf,
    segments: VecDeque<Segment>,
    reading: Option<Reading>,
    formatter: Formatter,
    follow: bool,
    /// The newest rotated file when the current one was opened.
    newest_rotated: Option<String>,
    buffer: Vec<u8>,
}

impl LogReader {
    /// Opens a log; none if it has no file. With `follow`, it may have none yet.
    pub(crate) fn open(path: &Path, options: ReadOptions) -> io::Result<Option<Self>> {
        let current = files::open(path)?;
        let mut rotated = files::rotated(path)?;
        if current.is_none() && rotated.is_empty() && !options.follow {
            return Ok(None);
        }
        let id = current.as_ref().map(files::id).transpose()?;
        if id.is_some() && rotated.last().map(Rotated::id).transpose()?.flatten() == id {
            // It was rotated since we opened it.
            rotated.pop();
        }
        let newest_rotated = rotated.last().map(|newest| newest.when.clone());
        if let Some(since) = options.format.since {
            // The clock of a filesystem may be a little late.
            let before = SystemTime::from(since).checked_sub(CLOCKS_DIFFER);
            rotated.retain(|rotated| before.is_none_or(|before| rotated.modified().is_none_or(|at| at >= before)));
        }
        let mut reader = Self {
            path: path.to_owned(),
            segments: VecDeque::new(),
            reading: None,
            formatter: Formatter::new(options.format),
            follow: options.follow,
            newest_rotated,
            buffer: vec![0; INPUT],
        };
        match options.tail_lines {
            None => {
                reader.segments.extend(rotated.into_iter().map(Segment::whole));
                reader.segments.extend(current.map(Segment::current).transpose()?);
            }
            Some(lines) => reader.tail(current, rotated, lines)?,
        }
        Ok(Some(reader))
    }

    /// Queues the last lines.
    fn tail(&mut self, current: Option<File>, mut rotated: Vec<Rotated>, mut wanted: u64) -> io::Result<()> {
        if let Some(file) = current {
            let length = file.metadata()?.len();
            let found = tail_start(&file, length, wanted).map_err(|error| files::named(&self.path, &error))?;
            let start = match found {
                TailStart::At(start) => start,
                TailStart::Fewer(_) => 0,
            };
            let from = From::Current { file, start, length };
            self.segments.push_front(Segment { from, skip_lines: 0 });
            let TailStart::Fewer(found) = found else { return Ok(()) };
            wanted -= found;
        }
        while let Some(older) = rotated.pop().filter(|_| wanted > 0) {
            let Some(opened) = older.open()? else { continue };
            let lines = count_lines(opened).map_err(|error| files::named(older.path(), &error))?;
            let skip_lines = lines.saturating_sub(wanted);
            wanted = wanted.saturating_sub(lines);
            let from = From::Rotated(older);
            self.segments.push_front(Segment { from, skip_lines });
        }
        Ok(())
    }

    /// The next piece of the log.
    pub(crate) fn next(&mut self) -> io::Result<Piece> {
        let mut output = Vec::new();
        let mut taken = 0;
        while output.len() < OUTPUT && taken < MAX_INPUT {
            if self.formatter.is_full() || (self.reading.is_none() && !self.open_next()?) {
                let piece = if !output.is_empty() {
                    Piece::Data(output)
                } else if self.follow && !self.formatter.is_full() {
                    Piece::Idle
                } else {
                    Piece::End
                };
                return Ok(piece);
            }
            let Some(reading) = &mut self.reading else { continue };
            let read = reading
                .read(&mut self.buffer)
                .map_err(|error| files::named(&self.path, &error))?;
            taken += read;
            if read == 0 {
                if self.stays()? {
                    let idle = output.is_empty();
                    return Ok(if idle { Piece::Idle } else { Piece::Data(output) });
                }
                continue;
            }
            let input = reading.skip(&self.buffer[..read]);
            self.formatter.push(input, &mut output);
        }
        Ok(Piece::Data(output))
    }

    /// Nobody writes to the log any more: it ends where it ends now.
    pub(crate) fn finish(&mut self) {
        self.follow = false;
    }

    /// Begins the next file, if there is one.
    fn open_next(&mut self) -> io::Result<bool> {
        while let Some(segment) = self.segments.pop_front() {
            let source = match segment.from {
                From::Rotated(rotated) => match rotated.open()? {
                    Some(opened) => Source::Rotated(opened),
                    // It was removed as the oldest.
                    None => continue,
                },
                From::Current { file, start, length } => Source::Current {
                    end: (!self.follow).then_some(length),
                    position: start,
                    file,
                },
            };
            self.formatter.next_file();
            self.reading = Some(Reading {
                source,
                counter: LineCounter::default(),
                skip_lines: segment.skip_lines,
            });
            return Ok(true);
        }
        // A log that did not exist, or was just being rotated.
        if self.follow
            && let Some(file) = files::open(&self.path)?
        {
            self.newest_rotated = files::rotated(&self.path)?.pop().map(|newest| newest.when);
            self.segments.push_back(Segment::current(file)?);
            return self.open_next();
        }
        Ok(false)
    }

    /// At the end of a file: whether to stay there and wait, or to go on with the next one.
    fn stays(&mut self) -> io::Result<bool> {
        let Some(Reading {
            source:
                Source::Current {
                    file,
                    position,
                    end: None,
                },
            ..
        }) = &mut self.reading
        else {
            self.reading = None;
            return Ok(false);
        };
        let ours = files::id(file)?;
        if file.metadata()?.len() < *position {
            // It was truncated in place.
            *position = 0;
            return Ok(false);
        }
        let next = match files::open(&self.path)? {
            Some(next) if files::id(&next)? != ours => next,
            _ if self.follow => return Ok(true),
            _ => {
                self.reading = None;
                return Ok(false);
            }
        };
        // The runtime writes elsewhere now; what it wrote here before that is read first.
        if file.metadata()?.len() > *position {
            return Ok(false);
        }
        self.rotated(ours, next)?;
        Ok(false)
    }

    /// Our file was rotated: queues the files since then, of which there are several if the reader is slow.
    fn rotated(&mut self, ours: FileId, next: File) -> io::Result<()> {
        let known = self.newest_rotated.take();
        let mut since: VecDeque<Rotated> = files::rotated(&self.path)?.into();
        since.retain(|rotated| known.as_ref().is_none_or(|known| rotated.when > *known));
        let next_id = Some(files::id(&next)?);
        if since.back().map(Rotated::id).transpose()?.flatten() == next_id {
            since.pop_back();
        }
        self.newest_rotated = since.back().map(|newest| newest.when.clone()).or(known);
        // The oldest of them is ours. If it is another file, ours has been removed.
        if since
            .front()
            .map(Rotated::id)
            .transpose()?
            .is_some_and(|id| id.is_none_or(|id| id == ours))
        {
            since.pop_front();
        }
        self.reading = None;
        self.segments.extend(since.into_iter().map(Segment::whole));
        self.segments.push_back(Segment::current(next)?);
        Ok(())
    }
}

impl Segment {
    fn whole(rotated: Rotated) -> Self {
        Self {
            from: From::Rotated(rotated),
            skip_lines: 0,
        }
    }

    fn current(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let from = From::Current { file, start: 0, length };
        Ok(Self { from, skip_lines: 0 })
    }
}

impl Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.source {
            Source::Rotated(Opened::Plain(file)) => file.read(buffer),
            Source::Rotated(Opened::Compressed(decoder)) => decoder.read(buffer),
            Source::Current { file, position, end } => {
                let left = end.map_or(u64::MAX, |end| end.saturating_sub(*position));
                let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                let read = file.read_at(&mut buffer[..most], *position)?;
                *position += read as u64;
                Ok(read)
            }
        }
    }

    /// What is left of the input after the lines to skip.
    fn skip<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let (found, taken) = self.counter.push(input, self.skip_lines);
        self.skip_lines -= found;
        &input[taken..]
    }
}

/// The complete lines of a rotated file. A compressed one can only be read from its beginning.
fn count_lines(opened: Opened) -> io::Result<u64> {
    let mut source: Box<dyn io::Read> = match opened {
        Opened::Plain(file) => Box::new(file),
        Opened::Compressed(decoder) => decoder,
    };
    let (mut buffer, mut counter, mut lines) = (vec![0; INPUT], LineCounter::default(), 0);
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            return Ok(lines);
        }
        lines += counter.push(&buffer[..read], u64::MAX).0;
    }
}

#[cfg(test)]
mod tests;
