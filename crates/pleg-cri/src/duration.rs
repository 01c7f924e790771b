//! Durations as messages show them.

use std::time::Duration;

/// Durations in messages: `2m0s`, `5s`, `400ms`, in the way Go and so the kubelet write them.
pub fn seconds(duration: Duration) -> String {
    let (secs, millis) = (duration.as_secs(), duration.subsec_millis());
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, 0) => format!("{millis}ms"),
        (0, 0, s) if millis == 0 => format!("{s}s"),
        (0, 0, s) => format!("{s}.{}s", format!("{millis:03}").trim_end_matches('0')),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_the_kubelet_writes_them() {
        for (millis, text) in [
            (0, "0ms"),
            (400, "400ms"),
            (1500, "1.5s"),
            (5000, "5s"),
            (187_000, "3m7s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(seconds(Duration::from_millis(millis)), text);
        }
    }
}
