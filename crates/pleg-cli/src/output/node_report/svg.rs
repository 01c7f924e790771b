//! Plots as inline SVG: no script, no font, no colour of its own. Colours are classes of the page's style, so that they follow its light
//! or dark scheme. Every shape has a `<title>`, which browsers show as a tooltip and screen readers read.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::text::{clean, lag};

/// Units of all plots, which the page scales to its width.
pub(super) const WIDTH: f64 = 960.0;
/// Where the plots begin, after the labels of the values.
const LEFT: f64 = 64.0;
/// With room for half of the last label.
const RIGHT: f64 = WIDTH - 24.0;
/// Below a plot, for the labels of the times.
const FOOT: f64 = 24.0;
/// Steps between labels of times, in seconds.
const STEPS: [i64; 14] = [
    60, 300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000,
];
/// Labels of times that fit.
const MOST_TICKS: i64 = 9;

/// Text in HTML and SVG, also within an attribute. Control characters are made visible.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// From times to places.
#[derive(Debug, Clone)]
pub(super) struct TimeAxis {
    since: Timestamp,
    until: Timestamp,
    zone: TimeZone,
}

impl TimeAxis {
    pub(super) fn new(since: Timestamp, until: Timestamp, zone: TimeZone) -> Self {
        Self { since, until, zone }
    }

    /// The place of a time; those outside of the window are at its edges.
    fn x(&self, at: Timestamp) -> f64 {
        let whole = self.until.duration_since(self.since).as_secs_f64().max(1e-9);
        let part = at.duration_since(self.since).as_secs_f64() / whole;
        LEFT + (RIGHT - LEFT) * part.clamp(0.0, 1.0)
    }

    /// A day and a time, for titles.
    pub(super) fn time(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%a %d %b %H:%M:%S").to_string()
    }

    /// Labels and their places: round times of the day, in the zone.
    fn ticks(&self) -> Vec<(f64, String)> {
        let seconds = self.until.duration_since(self.since).as_secs();
        let step = STEPS.into_iter().find(|step| seconds / step < MOST_TICKS);
        let step = step.unwrap_or(seconds.max(1));
        let offset = i64::from(self.zone.to_offset(self.since).seconds());
        let local = self.since.as_second() + offset;
        let mut at = local.div_euclid(step) * step - offset;
        let mut ticks = Vec::new();
        while at <= self.until.as_second() {
            if let Ok(time) = Timestamp::from_second(at)
                && time >= self.since
            {
                ticks.push((self.x(time), self.label(time)));
            }
            at += step;
        }
        ticks
    }

    /// Midnight is named by its day.
    fn label(&self, at: Timestamp) -> String {
        let local = at.to_zoned(self.zone.clone());
        let midnight = local.hour() == 0 && local.minute() == 0;
        local.strftime(if midnight { "%a %d" } else { "%H:%M" }).to_string()
    }

    /// Lines and labels at the foot of a plot of this height.
    fn draw(&self, svg: &mut String, top: f64, bottom: f64) {
        for (x, label) in self.ticks() {
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{x:.1}" y1="{top}" x2="{x:.1}" y2="{bottom}"/><text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                bottom + 16.0,
                escape(&label)
            );
        }
    }
}

/// The head of a plot with a name for those who do not see it.
fn open(height: f64, name: &str) -> String {
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">"#,
        escape(name)
    )
}

/// One of the parts of a stacked bar.
pub(super) struct Part {
    /// Of the style.
    pub(super) class: &'static str,
    pub(super) value: u64,
}

/// A bar of its parts, the lowest first.
pub(super) struct Bar {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) parts: Vec<Part>,
    /// Shown for the whole bar.
    pub(super) title: String,
}

/// Bars along the time.
pub(super) fn bars(axis: &TimeAxis, bars: &[Bar], name: &str) -> String {
    const TOP: f64 = 10.0;
    const BOTTOM: f64 = 190.0;
    let mut svg = open(BOTTOM + FOOT, name);
    let total = |bar: &Bar| bar.parts.iter().map(|part| part.value).sum::<u64>();
    let (top, step) = nice(bars.iter().map(total).max().unwrap_or(0));
    let height = |value: u64| (BOTTOM - TOP) * value as f64 / top as f64;
    axis.draw(&mut svg, TOP, BOTTOM);
    let mut value = 0;
    while value <= top {
        let y = BOTTOM - height(value);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{RIGHT}" y2="{y:.1}"/><text class="tick" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            y + 4.0,
            thousands(value)
        );
        value += step;
    }
    for bar in bars {
        let (from, to) = (axis.x(bar.from), axis.x(bar.to));
        // A little air between bars, none if they are thin.
        let air = if to - from > 4.0 { 1.0 } else { 0.0 };
        let _ = write!(svg, "<g><title>{}</title>", escape(&bar.title));
        let mut base = BOTTOM;
        for part in bar.parts.iter().filter(|part| part.value > 0) {
            // What is there is seen, however little it is.
            let tall = height(part.value).max(1.0);
            base -= tall;
            let _ = write!(
                svg,
                r#"<rect class="{}" x="{:.1}" y="{base:.1}" width="{:.1}" height="{tall:.1}"/>"#,
                part.class,
                from + air,
                (to - from - 2.0 * air).max(0.5)
            );
        }
        // The whole height answers the pointer.
        let _ = write!(
            svg,
            r#"<rect class="touch" x="{from:.1}" y="{TOP}" width="{:.1}" height="{}"/></g>"#,
            (to - from).max(0.5),
            BOTTOM - TOP
        );
    }
    let _ = write!(
        svg,
        r#"<line class="axis" x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}"/></svg>"#
    );
    svg
}

/// A line of durations, in seconds.
pub(super) struct Curve {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    /// None where there is nothing to measure: the line has a hole.
    pub(super) points: Vec<(Timestamp, Option<f64>)>,
}

/// Durations along the time, on a logarithmic scale: a lag of 5 ms and one of a minute are both readable.
pub(super) fn curves(axis: &TimeAxis, curves: &[Curve], name: &str) -> String {
    const TOP: f64 = 10.0;
    const BOTTOM: f64 = 170.0;
    /// Nothing shorter is told apart.
    const LEAST: f64 = 1e-4;
    let values = || {
        curves
            .iter()
            .flat_map(|curve| curve.points.iter().filter_map(|(_, value)| *value))
    };
    let low = values().fold(f64::INFINITY, f64::min).max(LEAST);
    let high = values().fold(0.0, f64::max).max(LEAST);
    if !low.is_finite() {
        return String::new();
    }
    // Whole powers of ten, at least two of them.
    let (first, mut last) = (low.log10().floor(), high.log10().ceil());
    if last - first < 2.0 {
        last = first + 2.0;
    }
    let y = |seconds: f64| {
        let part = (seconds.max(LEAST).log10() - first) / (last - first);
        BOTTOM - (BOTTOM - TOP) * part.clamp(0.0, 1.0)
    };
    let mut svg = open(BOTTOM + FOOT, name);
    axis.draw(&mut svg, TOP, BOTTOM);
    let mut power = first;
    while power <= last {
        let at = y(10_f64.powf(power));
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{RIGHT}" y2="{at:.1}"/><text class="tick" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            at + 4.0,
            power_of_ten(10_f64.powf(power))
        );
        power += 1.0;
    }
    for curve in curves {
        let mut path = String::new();
        let mut drawn = false;
        for (at, value) in &curve.points {
            let Some(value) = value else {
                drawn = false;
                continue;
            };
            let _ = write!(
                path,
                "{}{:.1} {:.1}",
                if drawn { 'L' } else { 'M' },
                axis.x(*at),
                y(*value)
            );
            drawn = true;
        }
        let _ = write!(svg, r#"<path class="curve {}" d="{path}"/>"#, curve.class);
        for (at, value) in curve.points.iter().filter_map(|(at, value)| Some((at, (*value)?))) {
            let _ = write!(
                svg,
                r#"<circle class="dot {}" cx="{:.1}" cy="{:.1}" r="3"><title>{}: {}, {}</title></circle>"#,
                curve.class,
                axis.x(*at),
                y(value),
                escape(curve.name),
                lag(value),
                escape(&axis.time(*at))
            );
        }
    }
    let _ = write!(
        svg,
        r#"<line class="axis" x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}"/></svg>"#
    );
    svg
}

/// A stretch of time.
pub(super) struct Stretch {
    pub(super) class: &'static str,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) title: String,
}

/// Stretches of time in one row.
pub(super) fn strip(axis: &TimeAxis, stretches: &[Stretch], name: &str) -> String {
    rows_on(axis, &[("", stretches)], 26.0, name, "empty")
}

/// Stretches of time in rows with a label each.
pub(super) fn rows(axis: &TimeAxis, rows: &[(&str, &[Stretch])], high: f64, name: &str) -> String {
    rows_on(axis, rows, high, name, "touch")
}

/// The same on a ground of this class.
fn rows_on(axis: &TimeAxis, rows: &[(&str, &[Stretch])], high: f64, name: &str, ground: &str) -> String {
    const TOP: f64 = 4.0;
    let bottom = TOP + high * rows.len() as f64;
    let mut svg = open(bottom + FOOT, name);
    axis.draw(&mut svg, TOP, bottom);
    let _ = write!(
        svg,
        r#"<rect class="{ground}" x="{LEFT}" y="{TOP}" width="{}" height="{}"/>"#,
        RIGHT - LEFT,
        bottom - TOP
    );
    for (place, (label, stretches)) in rows.iter().enumerate() {
        let y = TOP + high * place as f64;
        if !label.is_empty() {
            let _ = write!(
                svg,
                r#"<text class="tick" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 8.0,
                y + high / 2.0 + 4.0,
                escape(label)
            );
        }
        for stretch in *stretches {
            let (from, to) = (axis.x(stretch.from), axis.x(stretch.to));
            let _ = write!(
                svg,
                r#"<rect class="{}" x="{from:.1}" y="{:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
                stretch.class,
                y + 2.0,
                // A second of a week is less than a pixel.
                (to - from).max(1.5),
                high - 4.0,
                escape(&stretch.title)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// Small bars without an axis, for a cell of a table.
pub(super) fn sparkline(values: &[u64], name: &str) -> String {
    const WIDE: f64 = 160.0;
    const HIGH: f64 = 22.0;
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let step = WIDE / values.len().max(1) as f64;
    let mut svg = format!(
        r#"<svg class="spark" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{}"><line class="axis" x1="0" y1="{HIGH}" x2="{WIDE}" y2="{HIGH}"/>"#,
        escape(name)
    );
    for (place, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
        let tall = (HIGH * *value as f64 / most as f64).max(2.0);
        let _ = write!(
            svg,
            r#"<rect class="failed" x="{:.1}" y="{:.1}" width="{:.1}" height="{tall:.1}"/>"#,
            step * place as f64,
            HIGH - tall,
            (step - 0.8).max(0.8)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// The top of a scale that has room for `most`, and the step between its labels.
fn nice(most: u64) -> (u64, u64) {
    let rough = most.div_ceil(4).max(1);
    let power = 10_u64.pow(rough.ilog10());
    let step = [1, 2, 5, 10]
        .into_iter()
        .map(|part| part * power)
        .find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (most.div_ceil(step).max(1) * step, step)
}

/// `1234567` as `1,234,567`.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A label of a logarithmic scale.
fn power_of_ten(seconds: f64) -> String {
    match seconds {
        s if s < 0.9e-3 => format!("{:.0}µs", s * 1e6),
        s if s < 0.9 => format!("{:.0}ms", s * 1e3),
        s => format!("{s:.0}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn markup_stays_text() {
        assert_eq!(escape("<b a='x'>&\"\u{7}"), "&lt;b a=&#39;x&#39;&gt;&amp;&quot;\\u{7}");
    }

    #[test]
    fn scales_are_round() {
        for (most, scale) in [
            (0, (1, 1)),
            (1, (1, 1)),
            (7, (8, 2)),
            (40, (40, 10)),
            (41, (60, 20)),
            (999, (1000, 500)),
            (8_640_000, (10_000_000, 5_000_000)),
        ] {
            assert_eq!(nice(most), scale, "{most}");
            assert!(scale.0 >= most);
        }
        assert_eq!(
            (thousands(7), thousands(1_234_567)),
            ("7".to_owned(), "1,234,567".to_owned())
        );
        assert_eq!(
            [1e-4, 0.001, 0.1, 1.0, 100.0].map(power_of_ten),
            ["100µs", "1ms", "100ms", "1s", "100s"]
        );
    }

    #[test]
    fn times_are_labelled_where_the_clock_is_round() {
        let day = TimeAxis::new(at(1_800_000_000), at(1_800_086_400), TimeZone::UTC);
        let labels: Vec<_> = day.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(
            labels,
            ["09:00", "12:00", "15:00", "18:00", "21:00", "Sat 16", "03:00", "06:00"]
        );
        let east = TimeAxis::new(
            at(1_800_000_000),
            at(1_800_086_400),
            TimeZone::fixed(jiff::tz::offset(1)),
        );
        // The same labels, an hour earlier.
        assert_eq!(east.ticks()[0], (LEFT, "09:00".to_owned()));
        // However long or short.
        for seconds in [0, 1, 59, 3600, 86_400, 8 * 86_400, 400 * 86_400] {
            let ticks = TimeAxis::new(at(0), at(seconds), TimeZone::UTC).ticks().len();
            assert!(ticks <= 10, "{seconds}: {ticks}");
        }
    }

    #[test]
    fn what_is_outside_of_the_window_is_at_its_edge() {
        let axis = TimeAxis::new(at(100), at(200), TimeZone::UTC);
        assert!((axis.x(at(0)) - LEFT).abs() < 1e-9 && (axis.x(at(300)) - RIGHT).abs() < 1e-9);
        assert!((axis.x(at(150)) - f64::midpoint(LEFT, RIGHT)).abs() < 1e-9);
    }

    #[test]
    fn a_line_has_a_hole_where_nothing_was_measured() {
        let axis = TimeAxis::new(at(0), at(30), TimeZone::UTC);
        let curve = Curve {
            class: "p50",
            name: "p50",
            points: vec![
                (at(0), Some(0.01)),
                (at(10), None),
                (at(20), Some(0.1)),
                (at(30), Some(1.0)),
            ],
        };
        let svg = curves(&axis, &[curve], "lag");
        let path = svg.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1), "{path}");
        assert_eq!(curves(&axis, &[], "lag"), "");
    }
}
