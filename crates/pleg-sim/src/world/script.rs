//! What a container does by itself: run for ever, exit after a while, ignore SIGTERM, fail to start.

use std::time::Duration;

use crate::duration::Span;

/// Most words of a command that are parsed; scripts are short.
const LONGEST_COMMAND: usize = 256;
/// No test needs a log that grows faster.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

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
    /// What it writes to its standard output.
    pub output: Option<Output>,
}

/// What a container writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The text, with its line ends.
    pub text: String,
    /// Written again each time this has passed; `None`: once, at the start.
    pub every: Option<Duration>,
}

impl Output {
    fn once(text: String) -> Self {
        Self { text, every: None }
    }
}

impl Default for Script {
    /// Runs until it is stopped, and dies of SIGTERM.
    fn default() -> Self {
        Self {
            ends: None,
            on_term: Some(143),
            start_fails: false,
            output: None,
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
    /// `sleep-exit 500ms 3`, `sleep 10`, `true`, `false`, `exit 3`, `echo hello`, `oom 500ms`, `ignore-term`, `term-exit 0`,
    /// `start-error`, and of shells `sh -c "sleep 1; exit 3"` and `sh -c "while true; do echo hello; sleep 1; done"`.
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
            ("echo", words) => Self {
                output: Some(Output::once(echo(words))),
                ..Self::ends(Duration::ZERO, Ending::Exit(0))
            },
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

/// What `echo` prints: `-n` leaves out the line end.
fn echo(words: &[&str]) -> String {
    match words {
        ["-n", words @ ..] => words.join(" "),
        words => words.join(" ") + "\n",
    }
}

/// `while true; do echo hello; sleep 1; done`: what it echoes, and how often.
fn endless_echo(line: &str) -> Option<Output> {
    let body = line.trim().strip_prefix("while true; do ")?.strip_suffix("done")?;
    let (said, pause) = body.trim_end_matches([' ', ';']).rsplit_once(';')?;
    let words: Vec<&str> = said.trim().strip_prefix("echo ")?.split_whitespace().collect();
    let every = span(pause.trim().strip_prefix("sleep ")?)?;
    Some(Output {
        text: echo(&words),
        every: Some(every.max(SHORTEST_PAUSE)),
    })
}

/// As much of a shell as tests write: `sleep` adds up, `exit` ends, `true` and `false` give the code, `echo` is written at the start,
/// anything else runs on.
fn shell(line: &str) -> Script {
    let mut script = Script {
        output: endless_echo(line),
        ..Script::default()
    };
    if script.output.is_some() {
        return script;
    }
    let mut text = String::new();
    let (mut after, mut code) = (Duration::ZERO, 0);
    for part in line
        .split([';', '\n'])
        .flat_map(|part| part.split("&&"))
        .take(LONGEST_COMMAND)
    {
        let mut words = part.split_whitespace();
        match (words.next(), words.next()) {
            (None, _) => {}
            (Some("echo"), word) => {
                let said: Vec<&str> = word
                    .into_iter()
                    .chain(words)
                    .map(|word| word.trim_matches(['\'', '"']))
                    .collect();
                text += &echo(&said);
                script.output = Some(Output::once(text.clone()));
            }
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
        let writes = |text: &str, every, script| Script {
            output: Some(Output {
                text: text.to_owned(),
                every,
            }),
            ..script
        };
        let second = Some(Duration::from_secs(1));
        for (words, script) in [
            (&["sleep-exit", "500ms", "3"][..], exits(500, 3)),
            (&["/bin/sleep", "10"], exits(10_000, 0)),
            (&["true"], exits(0, 0)),
            (&["false"], exits(0, 1)),
            (&["sh", "-c", "sleep 1; exit 3"], exits(1000, 3)),
            (&["echo", "hello", "World"], writes("hello World\n", None, exits(0, 0))),
            (&["echo", "-n", "hello"], writes("hello", None, exits(0, 0))),
            (
                &["/bin/sh", "-c", "echo 'hello you' && sleep 0.5 && echo again && false"],
                writes("hello you\nagain\n", None, exits(500, 1)),
            ),
            (&["sh", "-c", "while true; do sleep 1; done"], Script::default()),
            (
                &["sh", "-c", "while true; do echo hello World; sleep 1; done"],
                writes("hello World\n", second, Script::default()),
            ),
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
