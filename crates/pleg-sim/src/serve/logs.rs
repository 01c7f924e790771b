//! The log files of containers that clients created, in the format of CRI.
//!
//! A file is opened for each text, so that nothing is left open for thousands of containers. After a rename a real runtime goes on
//! with the renamed file until `ReopenContainerLog`; here the next text begins a new file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::world::LogText;

/// Writes the texts to their files. A log directory that does not exist is not created: no client reads it.
pub(crate) fn write(texts: Vec<LogText>) {
    for LogText { path, at, text } in texts {
        let written = open(&path).and_then(|mut file| file.write_all(&encode(at, &text)));
        if let Err(error) = written {
            tracing::debug!(%error, path, "cannot write the log of a container");
        }
    }
}

/// Creates the file if it is not there, as a runtime does when it opens a log again.
pub(super) fn reopen(path: &str) -> io::Result<()> {
    match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened.map(drop),
    }
}

fn open(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// `2016-10-06T00:17:09.669794202Z stdout F text`, where `P` is a line without its end.
fn encode(at: i64, text: &str) -> Vec<u8> {
    let time = jiff::Timestamp::from_nanosecond(at.into()).unwrap_or_default();
    let mut lines = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        let (tag, line) = line.strip_suffix('\n').map_or(("P", line), |line| ("F", line));
        lines.extend([&*format!("{time:.9}"), " stdout ", tag, " ", line, "\n"]);
    }
    lines.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_lines_of_a_cri_log() {
        let at = 1_475_713_029_669_794_202;
        let lines = String::from_utf8(encode(at, "one\ntwo")).unwrap();
        assert_eq!(
            lines,
            "2016-10-06T00:17:09.669794202Z stdout F one\n2016-10-06T00:17:09.669794202Z stdout P two\n"
        );
    }

    #[test]
    fn a_log_without_a_directory_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none/0.log");
        reopen(path.to_str().unwrap()).unwrap();
        write(vec![LogText {
            path: path.to_str().unwrap().to_owned(),
            at: 0,
            text: "lost\n".to_owned(),
        }]);
        assert!(!path.exists());
    }
}
