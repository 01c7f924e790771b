//! Checks the event stream: only of runtimes that send every event to every subscriber, and only with `--events`.
//!
//! Subscribing is not free even there: containerd 2 keeps up to five minutes of events for its next subscriber while it has none, and
//! may lose a few when the last one leaves, so a subscriber that reconnects would miss them.

use std::time::Duration;

use pleg::internals::Quirks;
use pleg_cri::{Client, ErrorKind};
use tokio::time::{Instant, timeout};

use super::facts::{Events, Runtime};

/// Subscribing and listening together: the first may take 1 s on a quiet node.
pub(super) const TIME: Duration = Duration::from_secs(3);

/// What follows from the version: containerd has events since 1.7, and splits them among subscribers before 2.0.
pub(super) fn by_version(runtime: &Runtime) -> Option<Events> {
    if !Quirks::of(&runtime.name, &runtime.version).splits_events {
        return None;
    }
    let mut numbers = runtime
        .version
        .trim_start_matches('v')
        .split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    match (number(), number()) {
        (Some(1), Some(..7)) => Some(Events::Unimplemented),
        _ => Some(Events::Split),
    }
}

/// Subscribes, if requested and if that takes no events from other subscribers.
pub(super) async fn listen(client: &Client, runtime: &Runtime, wanted: bool, room: bool) -> Events {
    match by_version(runtime) {
        Some(known) => return known,
        None if !wanted => return Events::NotTried,
        None if !room => return Events::NoTime,
        None => {}
    }
    let start = Instant::now();
    let until = start + TIME;
    let mut stream = match timeout(TIME, client.container_events()).await {
        Err(_) => return Events::Failed(format!("no answer within {}", pleg_cri::duration::seconds(TIME))),
        Ok(Err(error)) if error.kind == ErrorKind::Unimplemented => return Events::Unimplemented,
        Ok(Err(error)) => return Events::Failed(error.kind.to_string()),
        Ok(Ok(stream)) => stream,
    };
    let mut events = 0;
    loop {
        match tokio::time::timeout_at(until, stream.next()).await {
            Err(_) => break,
            Ok(Ok(_)) => events += 1,
            Ok(Err(error)) => return Events::Failed(error.kind.to_string()),
        }
    }
    Events::Open {
        events,
        within: start.elapsed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_that_split_events_are_known_by_their_version() {
        for (name, version, known) in [
            ("containerd", "v2.1.9", None),
            ("containerd", "2.0.0~ds1", None),
            ("containerd", "v1.7.24", Some(Events::Split)),
            ("containerd", "1.7.24~ds1", Some(Events::Split)),
            ("containerd", "1.6.20~ds1", Some(Events::Unimplemented)),
            ("containerd", "unknown", Some(Events::Split)),
            ("cri-o", "1.34.0", None),
        ] {
            let runtime = Runtime {
                name: name.to_owned(),
                version: version.to_owned(),
                ..Runtime::default()
            };
            assert_eq!(by_version(&runtime), known, "{name} {version}");
        }
    }
}
