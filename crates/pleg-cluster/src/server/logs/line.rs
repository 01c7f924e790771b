//! Lines of a container log, in the format of CRI: `TIME STREAM TAGS CONTENT`.
//!
//! A line tagged `P` is a part of a longer one: its newline is not the container's. Content is passed on as it arrives, so a line of any
//! length takes no memory; only its head is collected.

use jiff::Timestamp;

/// Longest head of a line: time, stream and tags. A line with a longer one is skipped.
pub(super) const MAX_HEAD: usize = 128;

/// What a container wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The head of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head<'a> {
    /// The time as it is written.
    pub(super) time: &'a str,
    pub(super) timestamp: Timestamp,
    pub(super) stream: LogStream,
    /// More of the same line follows.
    pub(super) is_partial: bool,
}

/// The beginning of a line, as far as it is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<'a> {
    /// Its head, and the length of it.
    Head(Head<'a>, usize),
    /// The head is longer than this.
    Incomplete,
    /// Not a line of a log.
    Malformed,
}

/// Reads the head of a line. Bytes after the head are ignored.
pub(super) fn parse(line: &[u8]) -> Parsed<'_> {
    let mut rest = line;
    let mut fields = [&line[..0]; 3];
    for field in &mut fields {
        let Some(end) = rest.iter().position(|&byte| byte == b' ' || byte == b'\n') else {
            return if line.len() < MAX_HEAD {
                Parsed::Incomplete
            } else {
                Parsed::Malformed
            };
        };
        if rest[end] == b'\n' {
            return Parsed::Malformed;
        }
        (*field, rest) = (&rest[..end], &rest[end + 1..]);
    }
    let [time, stream, tags] = fields;
    let time = std::str::from_utf8(time).ok();
    let Some((time, timestamp)) = time.and_then(|time| Some((time, time.parse::<Timestamp>().ok()?))) else {
        return Parsed::Malformed;
    };
    let stream = match stream {
        b"stdout" => LogStream::Stdout,
        b"stderr" => LogStream::Stderr,
        _ => return Parsed::Malformed,
    };
    // The first tag decides; others may follow one day.
    let is_partial = tags.split(|&byte| byte == b':').next() == Some(b"P");
    let head = Head {
        time,
        timestamp,
        stream,
        is_partial,
    };
    Parsed::Head(head, line.len() - rest.len())
}

/// What to make of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Format {
    /// Skip lines that are older.
    pub(crate) since: Option<Timestamp>,
    /// Begin each line with its time.
    pub(crate) timestamps: bool,
    /// Only what was written to this stream.
    pub(crate) stream: Option<LogStream>,
    /// Most bytes that are written.
    pub(crate) limit_bytes: Option<u64>,
}

#[derive(Debug)]
enum State {
    /// The head of a line so far.
    Head(Vec<u8>),
    /// The content of a line that is written.
    Content { is_partial: bool },
    /// The rest of a line that is not written.
    Skip,
}

/// Turns a log into what its reader sees, piece by piece.
#[derive(Debug)]
pub(super) struct Formatter {
    format: Format,
    state: State,
    /// What was written so far ends with a newline.
    at_line_start: bool,
}

impl Formatter {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            state: State::Head(Vec::new()),
            at_line_start: true,
        }
    }

    /// Nothing more may be written.
    pub(super) fn is_full(&self) -> bool {
        self.format.limit_bytes == Some(0)
    }

    /// Another file begins. A line that has no end in the last one has none.
    pub(super) fn next_file(&mut self) {
        self.state = State::Head(Vec::new());
    }

    /// Takes the next bytes of the log.
    pub(super) fn push(&mut self, mut input: &[u8], output: &mut Vec<u8>) {
        while !input.is_empty() && !self.is_full() {
            input = match &mut self.state {
                State::Head(_) => self.head(input, output),
                State::Content { is_partial } => {
                    let is_partial = *is_partial;
                    let (content, rest) = split_line(input);
                    let ends = content.ends_with(b"\n");
                    let content = if ends && is_partial {
                        &content[..content.len() - 1]
                    } else {
                        content
                    };
                    self.write(content, output);
                    if ends {
                        self.state = State::Head(Vec::new());
                    }
                    rest
                }
                State::Skip => {
                    let (skipped, rest) = split_line(input);
                    if skipped.ends_with(b"\n") {
                        self.state = State::Head(Vec::new());
                    }
                    rest
                }
            };
        }
    }

    /// Collects the head of a line; returns what follows it.
    fn head<'a>(&mut self, input: &'a [u8], output: &mut Vec<u8>) -> &'a [u8] {
        let State::Head(head) = &mut self.state else {
            return input;
        };
        let before = head.len();
        head.extend_from_slice(&input[..input.len().min(MAX_HEAD - before)]);
        let head = std::mem::take(head);
        match parse(&head) {
            Parsed::Incomplete => {
                self.state = State::Head(head);
                &[]
            }
            // Its end is in this input or later: what came before it had none.
            Parsed::Malformed => {
                self.state = State::Skip;
                input
            }
            Parsed::Head(line, length) => {
                let written = self.format.stream.is_none_or(|stream| stream == line.stream)
                    && self.format.since.is_none_or(|since| line.timestamp >= since);
                self.state = if written {
                    let is_partial = line.is_partial;
                    if self.format.timestamps && self.at_line_start {
                        self.write(format!("{} ", fixed_width(line.time)).as_bytes(), output);
                    }
                    State::Content { is_partial }
                } else {
                    State::Skip
                };
                // The head did not end before this input.
                &input[length - before..]
            }
        }
    }

    fn write(&mut self, bytes: &[u8], output: &mut Vec<u8>) {
        let bytes = match &mut self.format.limit_bytes {
            None => bytes,
            Some(limit) => {
                let most = usize::try_from(*limit).unwrap_or(usize::MAX).min(bytes.len());
                *limit -= most as u64;
                &bytes[..most]
            }
        };
        output.extend_from_slice(bytes);
        if let Some(&last) = bytes.last() {
            self.at_line_start = last == b'\n';
        }
    }
}

/// Finds where lines end, and how many of them are complete.
#[derive(Debug, Default)]
pub(super) struct LineCounter {
    /// The head of a line so far.
    head: Vec<u8>,
}

impl LineCounter {
    /// Takes the next bytes, up to the end of `lines` complete lines. Returns how many were found, and how many bytes were taken.
    pub(super) fn push(&mut self, input: &[u8], lines: u64) -> (u64, usize) {
        let (mut found, mut taken) = (0, 0);
        while taken < input.len() && found < lines {
            let (line, _) = split_line(&input[taken..]);
            let room = MAX_HEAD.saturating_sub(self.head.len());
            self.head.extend_from_slice(&line[..line.len().min(room)]);
            taken += line.len();
            if line.ends_with(b"\n") {
                let is_complete = matches!(parse(&self.head), Parsed::Head(head, _) if !head.is_partial);
                found += u64::from(is_complete);
                self.head.clear();
            }
        }
        (found, taken)
    }
}

/// Up to the end of the line, and the rest.
fn split_line(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.iter().position(|&byte| byte == b'\n');
    input.split_at(end.map_or(input.len(), |end| end + 1))
}

/// A time with nine digits of its second, and `Z` for UTC, as a kubelet writes it.
fn fixed_width(time: &str) -> String {
    // An offset begins after the date, whose dashes are not signs.
    let offset = time.get(10..).and_then(|rest| rest.find(['Z', 'z', '+', '-']));
    let (clock, offset) = time.split_at(offset.map_or(time.len(), |at| at + 10));
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let offset = if matches!(offset, "z" | "+00:00" | "-00:00") {
        "Z"
    } else {
        offset
    };
    format!("{seconds}.{:0<9}{offset}", fraction.get(..9).unwrap_or(fraction))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn formatted(format: Format, log: &str) -> String {
        let (mut formatter, mut output) = (Formatter::new(format), Vec::new());
        formatter.push(log.as_bytes(), &mut output);
        String::from_utf8(output).unwrap()
    }

    const LOG: &str = "\
        2026-11-18T00:00:01Z stdout F one\n\
        2026-11-18T00:00:02.5Z stderr P tw\n\
        2026-11-18T00:00:02.6+00:00 stderr F o\n\
        not a line of a log\n\
        2026-11-18T00:00:03Z\n\
        2026-11-18T00:00:03Z stdin F no\n\
        yesterday stdout F no\n\
        2026-11-18T01:00:03.123456789+01:00 stdout F:X \n\
        2026-11-18T00:00:04Z stdout F four";

    #[test]
    fn lines_are_formatted() {
        let cases = [
            (Format::default(), "one\ntwo\n\nfour"),
            (
                Format {
                    timestamps: true,
                    ..Format::default()
                },
                "2026-11-18T00:00:01.000000000Z one\n2026-11-18T00:00:02.500000000Z two\n\
                 2026-11-18T01:00:03.123456789+01:00 \n2026-11-18T00:00:04.000000000Z four",
            ),
            (
                Format {
                    stream: Some(LogStream::Stderr),
                    ..Format::default()
                },
                "two\n",
            ),
            (
                Format {
                    stream: Some(LogStream::Stdout),
                    ..Format::default()
                },
                "one\n\nfour",
            ),
            (
                Format {
                    since: Some("2026-11-18T00:00:03Z".parse().unwrap()),
                    ..Format::default()
                },
                "\nfour",
            ),
            (
                Format {
                    limit_bytes: Some(6),
                    ..Format::default()
                },
                "one\ntw",
            ),
            (
                Format {
                    limit_bytes: Some(10),
                    timestamps: true,
                    ..Format::default()
                },
                "2026-11-18",
            ),
        ];
        for (format, expected) in cases {
            assert_eq!(formatted(format.clone(), LOG), expected, "{format:?}");
        }
    }

    #[test]
    fn a_head_without_end_is_skipped() {
        let log = format!("{}\n2026-11-18T00:00:01Z stdout F one\n", "x".repeat(5000));
        assert_eq!(formatted(Format::default(), &log), "one\n");
        let long = format!("2026-11-18T00:00:01Z stdout F {}\n", "y".repeat(100_000));
        assert_eq!(formatted(Format::default(), &long).len(), 100_001);
    }

    #[test]
    fn complete_lines_are_counted() {
        let mut counter = LineCounter::default();
        assert_eq!(counter.push(LOG.as_bytes(), u64::MAX), (3, LOG.len()));
        let mut counter = LineCounter::default();
        let (found, taken) = counter.push(LOG.as_bytes(), 2);
        assert_eq!((found, LOG[taken..].lines().next()), (2, Some("not a line of a log")));
    }

    proptest! {
        /// What is written does not depend on how the log is cut into pieces, whatever the log is.
        #[test]
        fn pieces_make_no_difference(
            log in "(2026-11-18T00:00:0[1-9](.[0-9]{1,9})?Z (stdout|stderr) [PF] [a-z]{0,8}\n|[a-z \n]{0,20}\n){0,12}",
            cuts in prop::collection::vec(1usize..60, 1..20),
            timestamps: bool,
        ) {
            let format = Format { timestamps, limit_bytes: Some(200), ..Format::default() };
            let whole = formatted(format.clone(), &log);
            let (mut formatter, mut output) = (Formatter::new(format), Vec::new());
            let (mut counter, mut lines) = (LineCounter::default(), 0);
            let (mut rest, mut cuts) = (log.as_bytes(), cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                formatter.push(piece, &mut output);
                lines += counter.push(piece, u64::MAX).0;
                rest = more;
            }
            prop_assert_eq!(String::from_utf8(output).unwrap(), whole);
            prop_assert_eq!(lines, LineCounter::default().push(log.as_bytes(), u64::MAX).0);
        }

        #[test]
        fn no_bytes_cause_a_panic(log in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut output = Vec::new();
            Formatter::new(Format { timestamps: true, ..Format::default() }).push(&log, &mut output);
            prop_assert!(output.len() <= log.len() + 64 * 40);
        }
    }
}
