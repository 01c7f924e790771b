//! Reports progress on a terminal once a wait takes longer than people expect.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use pleg_cri::InFlight;
use pleg_cri::duration::seconds;

/// Delay before the first report.
const FIRST: Duration = Duration::from_secs(1);
/// Interval of further reports.
const AGAIN: Duration = Duration::from_secs(5);

/// Awaits `future`; meanwhile prints the text of `what` now and then, on a terminal.
pub(crate) async fn told<T>(what: impl Fn() -> Option<String>, future: impl Future<Output = T>) -> T {
    tokio::pin!(future);
    let mut pause = FIRST;
    let talk = std::io::stderr().is_terminal();
    loop {
        tokio::select! {
            biased;
            answer = &mut future => return answer,
            () = tokio::time::sleep(pause), if talk => {
                if let Some(what) = what() {
                    let _ = writeln!(anstream::stderr(), "waiting for {what}");
                }
                pause = AGAIN;
            }
        }
    }
}

/// Rounds down to tenths of a second.
fn tenths(age: Duration) -> Duration {
    Duration::from_millis(u64::try_from(age.as_millis()).unwrap_or(u64::MAX) / 100 * 100)
}

/// Describes the oldest call in flight.
pub(crate) fn oldest_call(inflight: &InFlight) -> Option<String> {
    let calls = inflight.calls();
    let first = calls.first()?;
    let age = seconds(tenths(first.since.elapsed()));
    let about = if first.subject == pleg_cri::Subject::NODE {
        String::new()
    } else {
        format!(" of {}", first.subject)
    };
    let more = match calls.len() - 1 {
        0 => String::new(),
        n => format!(", and {n} more"),
    };
    Some(format!("the runtime to answer {}{about} (for {age}{more})", first.rpc))
}
