//! `pleg debug replay`: do the recorded lists give the recorded events?

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use pleg::recorder::line::Sent;
use pleg::recorder::{Difference, Replayed, replay};
use pleg_cri::duration::seconds;
use serde::Serialize;

use crate::args::{Replay, TextFormat};
use crate::text::{clean, count};
use crate::{bundle, output};

/// What `-o json` prints.
#[derive(Debug, Serialize)]
struct Answer {
    same: bool,
    events: u64,
    not_compared: u64,
    #[serde(rename = "looks")]
    relists: u64,
    from: Timestamp,
    to: Timestamp,
    dropped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<DifferenceJson>,
}

#[derive(Debug, Serialize)]
struct DifferenceJson {
    line: usize,
    time: Timestamp,
    seq: u64,
    pod: pleg::PodRef,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<Sent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<Sent>,
}

pub(crate) async fn run(args: Replay) -> anyhow::Result<ExitCode> {
    // On another thread, so that Ctrl-C is heard.
    let work = move || -> anyhow::Result<_> { Ok(replay(bundle::recording(&args.bundle)?)?) };
    let replayed = tokio::task::spawn_blocking(work).await??;
    let same = replayed.difference.is_none();
    match args.output {
        TextFormat::Text => output::print(&text(&replayed))?,
        TextFormat::Json => output::print_json(&answer(replayed))?,
        TextFormat::Yaml => output::print_yaml(&answer(replayed))?,
    }
    Ok(ExitCode::from(u8::from(!same)))
}

fn answer(replayed: Replayed) -> Answer {
    Answer {
        same: replayed.difference.is_none(),
        events: replayed.events,
        not_compared: replayed.not_compared,
        relists: replayed.relists,
        from: replayed.header.from,
        to: replayed.to,
        dropped: replayed.header.dropped,
        difference: replayed.difference.map(|difference| DifferenceJson {
            line: difference.line,
            time: difference.time,
            seq: difference.seq,
            pod: difference.pod,
            recorded: difference.recorded,
            replayed: difference.replayed,
        }),
    }
}

fn text(replayed: &Replayed) -> String {
    let header = &replayed.header;
    let lasted = Duration::try_from(replayed.to.duration_since(header.from)).unwrap_or_default();
    let lasted = seconds(Duration::from_secs(lasted.as_secs()));
    let mut text = match &replayed.difference {
        None => format!("same {}", count(replayed.events, "event")),
        Some(difference) => different(difference, replayed.events),
    };
    let _ = writeln!(text, ", from {} in {lasted}", count(replayed.relists, "relist"));
    if replayed.not_compared > 0 {
        let _ = writeln!(
            text,
            "{} could not be compared: their pods were inspected before the recording begins",
            count(replayed.not_compared, "event")
        );
    }
    if header.dropped > 0 {
        let _ = writeln!(
            text,
            "the recorder dropped {} entries to stay within {} MiB: see --recorder-mib of pleg run",
            header.dropped,
            header.limit_bytes >> 20
        );
    }
    text
}

fn different(difference: &Difference, same: u64) -> String {
    let words = |sent: Option<&Sent>| match sent {
        Some(Sent { kind, id: Some(id), .. }) => format!("{kind} of {}", clean(id)),
        Some(Sent { kind, .. }) => kind.to_string(),
        None => "nothing".to_owned(),
    };
    format!(
        "different: event {} about pod {}, at {} (line {})\n  recorded: {}\n  replayed: {}\nbefore it the same {}",
        difference.seq,
        clean(&difference.pod.to_string()),
        difference.time,
        difference.line,
        words(difference.recorded.as_ref()),
        words(difference.replayed.as_ref()),
        count(same, "event"),
    )
}
