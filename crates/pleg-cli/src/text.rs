//! Durations, times and names as people write and read them.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use pleg::PodRef;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Maximum duration that is accepted.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// Parses `400ms`, `5s`, `2m`, `1m30s`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a duration, as in 400ms, 5s, 2m or 1m30s".to_owned();
    let duration: SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| wrong())?;
    if duration.is_zero() {
        return Err("must be greater than zero".to_owned());
    }
    if duration > LONGEST {
        return Err("must not exceed a year".to_owned());
    }
    Ok(duration)
}

/// The same, and `0` for never or not at all.
pub(crate) fn parse_duration_or_zero(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") {
        return Ok(Duration::ZERO);
    }
    parse_duration(text)
}

/// A number of bytes, as in `256MiB`, `10Mi` or `4096`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "a size, as in 256MiB, 1GiB or 1048576".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "Ki" | "KiB" => 10,
        "Mi" | "MiB" => 20,
        "Gi" | "GiB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// `namespace/name`, or the UID of a pod without a name.
pub(crate) fn pod_name(pod: &PodRef) -> String {
    if pod.name.is_empty() {
        format!("uid:{}", pod.uid)
    } else {
        format!("{}/{}", pod.namespace, pod.name)
    }
}

/// The zone in which times are shown; the local zone unless set.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Shows times in UTC. Must be called before the first time is shown.
pub(crate) fn use_utc() {
    // There is no second call.
    let _ = ZONE.set(TimeZone::UTC);
}

/// The zone in which times are shown.
pub(crate) fn zone() -> TimeZone {
    ZONE.get_or_init(TimeZone::system).clone()
}

/// A time as `18:04:05` if it is of today in the local zone, else with date and zone: `2026-11-15 18:04:05 +01:00`.
pub(crate) fn clock(at: Timestamp, now: Timestamp, zone: &TimeZone, local: &TimeZone) -> String {
    let shown = at.to_zoned(zone.clone());
    let is_local = shown.offset() == local.to_offset(at);
    if is_local && shown.date() == now.to_zoned(zone.clone()).date() {
        return shown.strftime("%H:%M:%S").to_string();
    }
    if *zone == TimeZone::UTC {
        return shown.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
    }
    shown.strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
}

/// A time with its age: `18:04:05 (3m10s ago)`. Empty for `None`.
pub(crate) fn when(at: Option<Timestamp>, now: Timestamp) -> String {
    let Some(at) = at else {
        return String::new();
    };
    let time = clock(at, now, &zone(), &TimeZone::system());
    format!("{time} ({} ago)", age(Some(at), now))
}

/// An age as kubectl writes it: `45s`, `3m10s`, `25m`, `7h12m`, `3d4h`, `41d`.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else {
        return "-".to_owned();
    };
    let secs = now.duration_since(since).as_secs();
    // Two clocks may differ slightly; a time far in the future means that one is wrong.
    if secs < -2 {
        return "-".to_owned();
    }
    let s = secs.max(0);
    let (m, h, d) = (s / 60, s / 3600, s / 86_400);
    let two = |a: i64, unit: char, b: i64, small: char| {
        if b == 0 {
            format!("{a}{unit}")
        } else {
            format!("{a}{unit}{b}{small}")
        }
    };
    match () {
        () if s < 120 => format!("{s}s"),
        () if m < 10 => two(m, 'm', s % 60, 's'),
        () if m < 180 => format!("{m}m"),
        () if h < 8 => two(h, 'h', m % 60, 'm'),
        () if h < 48 => format!("{h}h"),
        () if d < 8 => two(d, 'd', h % 24, 'h'),
        () => format!("{d}d"),
    }
}

/// A lag in five columns: `7ms`, `352ms`, `1.2s`, `45s`, `12m`.
pub(crate) fn lag(seconds: f64) -> String {
    match seconds {
        s if s < 0.001 => "<1ms".to_owned(),
        s if s < 0.9995 => format!("{:.0}ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1}s"),
        s if s < 600.0 => format!("{s:.0}s"),
        s => format!("{:.0}m", s / 60.0),
    }
}

/// A number with its noun: `1 pod`, `2 pods`. Only for nouns whose plural ends in `s`.
pub(crate) fn count<N: Copy + std::fmt::Display + PartialEq + From<u8>>(n: N, what: &str) -> String {
    let ending = if n == N::from(1) { "" } else { "s" };
    format!("{n} {what}{ending}")
}

/// Text from the runtime, made safe for a terminal: characters that cannot be seen are escaped.
pub(crate) fn clean(text: &str) -> String {
    if !text.chars().any(is_hidden) {
        return text.to_owned();
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) {
            clean.extend(c.escape_default());
        } else {
            clean.push(c);
        }
    }
    clean
}

/// Control characters move the cursor and worse; marks that change the direction of text make one name look like another.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The columns that a text takes on a terminal: some characters take two.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// Container ids as crictl shows them: the first 13 digits.
pub(crate) fn short_ids(text: &str) -> String {
    const FULL: usize = 64;
    const SHORT: usize = 13;
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let run = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()).len();
        let other = rest[run..]
            .find(|c: char| c.is_ascii_hexdigit())
            .unwrap_or(rest.len() - run);
        short.push_str(&rest[..if run == FULL { SHORT } else { run }]);
        short.push_str(&rest[run..run + other]);
        rest = &rest[run + other..];
    }
    short
}

/// Shortens to `width` columns, in the middle: the end of a pod's name distinguishes it from its siblings.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    shorten_with(text, width, '…')
}

/// The same, with another mark for what is left out.
pub(crate) fn shorten_with(text: &str, width: usize, mark: char) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    if width < 3 {
        return text[..within(text.char_indices(), width.max(1))].to_owned();
    }
    let tail = (width - 1) / 2;
    let head = &text[..within(text.char_indices(), width - 1 - tail)];
    let mut end = text.len();
    let mut left = tail;
    for (at, c) in text.char_indices().rev() {
        let Some(rest) = left.checked_sub(c.width().unwrap_or_default()) else {
            break;
        };
        (left, end) = (rest, at);
    }
    format!("{head}{mark}{}", &text[end..])
}

/// Where the beginning of a text ends that takes up to `width` columns.
fn within(chars: impl Iterator<Item = (usize, char)>, width: usize) -> usize {
    let mut left = width;
    let mut end = 0;
    for (at, c) in chars {
        let Some(rest) = left.checked_sub(c.width().unwrap_or_default()) else {
            break;
        };
        (left, end) = (rest, at + c.len_utf8());
    }
    end
}

/// Remembers how names were shortened, so that no two look the same.
#[derive(Debug, Default)]
pub(crate) struct ShortNames(HashMap<String, String>);

/// Maximum number of names that are remembered. Further names are not shortened.
const SHORT_NAMES: usize = 20_000;

impl ShortNames {
    /// Shortens to `width` columns, unless another name already looks like that.
    pub(crate) fn shorten(&mut self, name: &str, width: usize) -> String {
        let short = shorten(name, width);
        if short == name {
            return short;
        }
        let known = &mut self.0;
        match known.get(&short) {
            Some(same) if same == name => short,
            Some(_) => name.to_owned(),
            None if known.len() >= SHORT_NAMES => name.to_owned(),
            None => {
                known.insert(short.clone(), name.to_owned());
                short
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, millis) in [
            ("400ms", 400),
            ("5s", 5000),
            ("2m", 120_000),
            ("1m30s", 90_000),
            ("1.5s", 1500),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "0", "0s", "-5s", "abc", "5 parsecs", "99999d", "1e9s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_are_kubectls() {
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        for (secs, text) in [
            (0, "0s"),
            (119, "119s"),
            (190, "3m10s"),
            (1500, "25m"),
            (25_920, "7h12m"),
            (273_600, "3d4h"),
            (3_600_000, "41d"),
            (-1, "0s"),
            (-99, "-"),
        ] {
            let since = Timestamp::from_second(1_000_000_000 - secs).unwrap();
            assert_eq!(age(Some(since), now), text);
        }
        assert_eq!(age(None, now), "-");
    }

    #[test]
    fn times_say_what_is_not_plain() {
        let now = "2026-11-16T00:30:00Z".parse().unwrap();
        let east = TimeZone::fixed(jiff::tz::offset(1));
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for (time, zone, local, text) in [
            ("2026-11-16T00:04:05.6Z", &east, &east, "01:04:05"),
            ("2026-11-15T23:30:00Z", &east, &east, "00:30:00"),
            ("2026-11-15T22:30:00Z", &east, &east, "2026-11-15 23:30:00 +01:00"),
            ("2026-11-16T00:04:05Z", &TimeZone::UTC, &east, "2026-11-16 00:04:05Z"),
            ("2026-11-16T00:04:05Z", &TimeZone::UTC, &TimeZone::UTC, "00:04:05"),
        ] {
            assert_eq!(clock(at(time), now, zone, local), text);
        }
    }

    #[test]
    fn lags_have_five_columns_at_most() {
        for (seconds, text) in [
            (0.0001, "<1ms"),
            (0.352, "352ms"),
            (0.9996, "1.0s"),
            (9.96, "10s"),
            (599.0, "599s"),
            (700.0, "12m"),
        ] {
            assert_eq!(lag(seconds), text);
        }
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(count(0_usize, "pod"), "0 pods");
        assert_eq!(count(1_u32, "attempt"), "1 attempt");
        assert_eq!(count(2_u64, "relist"), "2 relists");
    }

    #[test]
    fn long_names_keep_their_ends() {
        assert_eq!(shorten("default/web-7d4b9c-abcde", 12), "defaul…abcde");
        assert_eq!(shorten("short", 12), "short");
        assert_eq!(clean("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(clean("web\u{202e}bew"), "web\\u{202e}bew");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(columns("web-日本"), 8);
        for (text, width, short) in [
            ("日本語の名前", 12, "日本語の名前"),
            ("日本語の名前", 7, "日…前"),
            ("日本語の名前", 5, "日…前"),
            ("日本語", 2, "日"),
            ("日本語", 1, ""),
            ("abcdef", 2, "ab"),
        ] {
            let shortened = shorten(text, width);
            assert_eq!(shortened, short, "{text} in {width}");
            assert!(columns(&shortened) <= width);
        }
    }

    #[test]
    fn no_two_names_look_the_same() {
        let mut names = ShortNames::default();
        assert_eq!(names.shorten("default/web-7d4b9c-abcde", 12), "defaul…abcde");
        assert_eq!(
            names.shorten("default/web-111111-abcde", 12),
            "default/web-111111-abcde"
        );
        assert_eq!(names.shorten("default/web-7d4b9c-abcde", 12), "defaul…abcde");
        assert_eq!(names.shorten("short", 12), "short");
    }

    #[test]
    fn ids_are_shortened_and_nothing_else() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(
            short_ids(&format!("app ({id}) of 10.0.0.7: é, {id}")),
            "app (0123456789abc) of 10.0.0.7: é, 0123456789abc"
        );
        assert_eq!(short_ids(&format!("{id}0")), format!("{id}0"));
        assert_eq!(short_ids(""), "");
    }
}
