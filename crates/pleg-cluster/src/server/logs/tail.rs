//! Where the last lines of a log begin. Blocking.
//!
//! A file is read backwards in blocks, so the end of a large log costs no more than the lines that are shown, and no more memory than a
//! block. Lines are those of the container: parts of a long line (`P`) count together, unlike in a kubelet, which counts each of them.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;

use super::line::{MAX_HEAD, Parsed, parse};

const BLOCK: usize = 64 << 10;

/// Where to begin in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TailStart {
    /// At this byte.
    At(u64),
    /// At its beginning: it has no more than this many lines.
    Fewer(u64),
}

/// Finds where the last `wanted` lines of a file begin. Parts of a line that is not complete yet are a line.
pub(super) fn tail_start(file: &File, length: u64, wanted: u64) -> io::Result<TailStart> {
    let (mut found, mut begin, mut first) = (0, length, true);
    let stopped = lines_backwards(file, length, BLOCK, |start, head| {
        let counts = matches!(parse(head), Parsed::Head(head, _) if first || !head.is_partial);
        first = false;
        if counts {
            if found == wanted {
                return ControlFlow::Break(());
            }
            found += 1;
        }
        begin = start;
        ControlFlow::Continue(())
    })?;
    Ok(match stopped {
        ControlFlow::Break(()) => TailStart::At(begin),
        ControlFlow::Continue(()) => TailStart::Fewer(found),
    })
}

/// Visits the lines of a file from the last to the first: where each begins, and at least its head.
fn lines_backwards(
    file: &File,
    length: u64,
    block: usize,
    mut visit: impl FnMut(u64, &[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut buffer: Vec<u8> = Vec::new();
    let mut begin = length;
    while begin > 0 {
        let size = usize::try_from(begin).unwrap_or(usize::MAX).min(block);
        begin -= size as u64;
        // The head of a line may extend into the block that was read before.
        buffer.truncate(MAX_HEAD);
        let mut next = vec![0; size];
        file.read_exact_at(&mut next, begin)?;
        next.append(&mut buffer);
        buffer = next;
        for at in (0..size).rev().filter(|&at| buffer[at] == b'\n') {
            let start = begin + at as u64 + 1;
            // After the last newline there may be nothing.
            if start < length && visit(start, head(&buffer[at + 1..])).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    if length > 0 {
        return Ok(visit(0, head(&buffer)));
    }
    Ok(ControlFlow::Continue(()))
}

fn head(line: &[u8]) -> &[u8] {
    &line[..line.len().min(MAX_HEAD)]
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn tail(text: &str, wanted: u64) -> TailStart {
        tail_start(&file(text), text.len() as u64, wanted).unwrap()
    }

    #[test]
    fn the_last_lines_are_found() {
        let line = |tag: &str, text: &str| format!("2026-11-18T00:00:01Z stdout {tag} {text}\n");
        let log = [
            line("F", "one"),
            line("P", "t"),
            line("P", "w"),
            line("F", "o"),
            "garbage\n".to_owned(),
            line("F", "three"),
        ];
        let at = |n: usize| TailStart::At(log[..n].concat().len() as u64);
        let all = log.concat();
        let cases = [
            (0, at(6)),
            (1, at(4)),
            (2, at(1)),
            (3, TailStart::Fewer(3)),
            (9, TailStart::Fewer(3)),
        ];
        for (wanted, expected) in cases {
            assert_eq!(tail(&all, wanted), expected, "{wanted}");
            // The last line may have no end yet.
            if wanted > 0 {
                assert_eq!(tail(all.trim_end(), wanted), expected, "{wanted}");
            }
        }
        assert_eq!(tail("", 3), TailStart::Fewer(0));
        // A line that is being written counts.
        let open = all.clone() + &line("P", "fo") + &line("P", "ur");
        assert_eq!(tail(&open, 1), TailStart::At(all.len() as u64));
    }

    proptest! {
        /// Blocks of any size visit the same lines, with their heads.
        #[test]
        fn blocks_make_no_difference(text in "([a-c]{0,300}\n|[a-c]{0,3}\n){0,8}[a-c]{0,5}", block in 1usize..300) {
            let mut expected = Vec::new();
            let mut start = 0;
            for line in text.split_inclusive('\n') {
                expected.push((start, line.as_bytes()[..line.len().min(MAX_HEAD)].to_vec()));
                start += line.len() as u64;
            }
            expected.reverse();
            let mut visited = Vec::new();
            let visit = |start, head: &[u8]| {
                let line = head.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
                visited.push((start, line.to_vec()));
                ControlFlow::Continue(())
            };
            let _ = lines_backwards(&file(&text), text.len() as u64, block, visit).unwrap();
            prop_assert_eq!(visited, expected);
        }
    }
}
