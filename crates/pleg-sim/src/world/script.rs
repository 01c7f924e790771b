//! What a container does by itself: run for ever, exit after a while, ignore SIGTERM, fail to start.

use std::time::Duration;

use crate::duration::Span;

/// Most words of a command that are parsed; scripts are short.
const LONGEST_COMMAND: usize = 256;

/// How a container ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The process exits with this code.
    Exit(i32),
    /// The kernel kills it for its memory: 137, `OOMKilled`.
    Oom,
}

impl Ending {
    /// The exit code that the runtime reports.
    pub fn code(self) -> i32 {
        match self {
            Self::Exit(code) => code,
            Self::Oom => 137,
        }
    }

    /// The reason that the runtime reports.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Exit(0) => "Completed",
            Self::Exit(_) => "Error",
            Self::Oom => "OOMKilled",
        }
    }
}

/// What a container does by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Ends by itself after this time of running.
    pub ends: Option<(Duration, Ending)>,
    /// The exit code on SIGTERM; `None` ignores it, so that a stop lasts its whole grace period and ends in 137.
    pub on_term: Option<i32>,
    /// `StartContainer` fails: the container is exited with 128, `StartError`, and no event says so.
    pub start_fails: bool,
}

impl Default for Script {
    /// Runs until it is stopped, and dies of SIGTERM.
    fn default() -> Self {
        Self {
            ends: None,
            on_term: Some(143),
            start_fails: false,
        }
    }
}

impl Script {
    /// Ends by itself after `after`.
    pub fn ends(after: Duration, ending: Ending) -> Self {
        Self {
            ends: Some((after, ending)),
            ..Self::default()
        }
    }

    /// Reads a container's command and arguments. A command that is not a script runs for ever.
    ///
    /// `sleep-exit 500ms 3`, `sleep 10`, `true`, `false`, `exit 3`, `oom 500ms`, `ignore-term`, `term-exit 0`, `start-error`,
    /// and of shells `sh -c "sleep 1; exit 3"`.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let words: Vec<&str> = words.into_iter().take(LONGEST_COMMAND).collect();
        let name = words.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
        let ends =
            |after: Option<Duration>, ending| after.map_or_else(Self::default, |after| Self::ends(after, ending));
        match (name, &words[words.len().min(1)..]) {
            ("sleep-exit", [after, code]) => ends(span(after), Ending::Exit(code.parse().unwrap_or(0))),
            ("sleep", [after]) => ends(span(after), Ending::Exit(0)),
            ("true", []) => ends(Some(Duration::ZERO), Ending::Exit(0)),
            ("false", []) => ends(Some(Duration::ZERO), Ending::Exit(1)),
            ("exit", [code]) => ends(Some(Duration::ZERO), Ending::Exit(code.parse().unwrap_or(0))),
            ("oom", [after]) => ends(span(after), Ending::Oom),
            ("ignore-term", _) => Self {
                on_term: None,
                ..Self::default()
            },
            ("term-exit", [code]) => Self {
                on_term: Some(code.parse().unwrap_or(0)),
                ..Self::default()
            },
            ("start-error", _) => Self {
                start_fails: true,
                ..Self::default()
            },
            ("sh" | "bash" | "ash", ["-c", line, ..]) => shell(line),
            _ => Self::default(),
        }
    }
}

/// `sleep` takes seconds without a unit.
fn span(text: &str) -> Option<Duration> {
    let span = text.parse::<Span>().or_else(|_| format!("{text}s").parse());
    span.ok().map(|span| span.0)
}

/// As much of a shell as tests write: `sleep` adds up, `exit` ends, `true` and `false` give the code, anything else runs on.
fn shell(line: &str) -> Script {
    let mut script = Script::default();
    let (mut after, mut code) = (Duration::ZERO, 0);
    for part in line
        .split([';', '\n'])
        .flat_map(|part| part.split("&&"))
        .take(LONGEST_COMMAND)
    {
        let mut words = part.split_whitespace();
        match (words.next(), words.next()) {
            (None | Some("echo"), _) => {}
            // Any other command keeps running.
            (Some("trap"), does) => {
                let exits = does.is_some_and(|does| does.trim_start_matches(['\'', '"']).starts_with("exit"));
                script.on_term = exits.then_some(0);
            }
            (Some("sleep"), Some(time)) => match span(time) {
                Some(time) => after = after.saturating_add(time),
                None => return script,
            },
            (Some("true"), None) => code = 0,
            (Some("false"), None) => code = 1,
            (Some("exit"), with) => {
                code = with.and_then(|code| code.parse().ok()).unwrap_or(code);
                break;
            }
            _ => return script,
        }
    }
    script.ends = Some((after, Ending::Exit(code)));
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_scripts() {
        let exits = |ms, code| Script::ends(Duration::from_millis(ms), Ending::Exit(code));
        for (words, script) in [
            (&["sleep-exit", "500ms", "3"][..], exits(500, 3)),
            (&["/bin/sleep", "10"], exits(10_000, 0)),
            (&["true"], exits(0, 0)),
            (&["false"], exits(0, 1)),
            (&["sh", "-c", "sleep 1; exit 3"], exits(1000, 3)),
            (&["/bin/sh", "-c", "echo hello && sleep 0.5 && false"], exits(500, 1)),
            (&["sh", "-c", "while true; do sleep 1; done"], Script::default()),
            (&["oom", "1s"], Script::ends(Duration::from_secs(1), Ending::Oom)),
            (&["sleep", "soon"], Script::default()),
            (&["nginx", "-g", "daemon off;"], Script::default()),
            (&[], Script::default()),
        ] {
            assert_eq!(Script::parse(words.iter().copied()), script, "{words:?}");
        }
        for (line, code) in [
            ("trap exit TERM; sleep 10 & wait", Some(0)),
            ("trap 'exit 0' TERM; wait", Some(0)),
            ("trap '' TERM; wait", None),
            ("trap 'echo no' TERM; wait", None),
        ] {
            assert_eq!(Script::parse(["sh", "-c", line]).on_term, code, "{line}");
        }
        assert_eq!(Script::parse(["ignore-term"]).on_term, None);
        assert!(Script::parse(["start-error"]).start_fails);
    }
}
