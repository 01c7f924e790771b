//! The report as one HTML file, to be attached to a ticket: style and plots are in it, there is no script, and nothing is loaded. Its
//! content security policy says so too. Everything that comes from the history is escaped.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pleg::Level;
use pleg_cri::duration::seconds;
use pleg_history::{Bucket, NodeReport, Percentiles, TroubleSpan};

use super::svg::{self, Bar, Curve, Part, Stretch, TimeAxis, escape, thousands};
use super::{by, how, lived, named, percent};
use crate::output::explanation::{lasted, whole};
use crate::text::{count, lag, short_ids, zone};

const STYLE: &str = include_str!("style.css");
/// Troubles that are plotted, each in a row.
const PLOTTED: usize = 25;

/// The report, for a browser.
pub(crate) fn html(report: &NodeReport, now: Timestamp) -> String {
    Page::new(report, now, zone()).render()
}

struct Page<'a> {
    report: &'a NodeReport,
    now: Timestamp,
    zone: TimeZone,
    axis: TimeAxis,
}

impl<'a> Page<'a> {
    fn new(report: &'a NodeReport, now: Timestamp, zone: TimeZone) -> Self {
        Self {
            report,
            now,
            axis: TimeAxis::new(report.since, report.until, zone.clone()),
            zone,
        }
    }

    fn render(&self) -> String {
        let node = escape(self.report.node.as_deref().unwrap_or("this node"));
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <title>{node}: node report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        );
        self.head(&mut page, &node);
        self.tiles(&mut page);
        self.health(&mut page);
        self.events(&mut page);
        self.pods(&mut page);
        self.troubles(&mut page);
        self.latencies(&mut page);
        self.runs(&mut page);
        let _ = write!(
            page,
            "<footer>Made by <code>pleg report</code> {} on {}. Times are in {}.</footer>\n</main>\n</body>\n</html>\n",
            escape(env!("CARGO_PKG_VERSION")),
            escape(&self.time(self.now)),
            escape(&self.zone_name())
        );
        page
    }

    fn time(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
    }

    /// A time in a table: the year is in the head.
    fn short_time(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%m-%d %H:%M:%S").to_string()
    }

    fn zone_name(&self) -> String {
        if self.zone == TimeZone::UTC {
            return "UTC".to_owned();
        }
        let offset = self.now.to_zoned(self.zone.clone()).strftime("UTC%:z").to_string();
        match self.zone.iana_name() {
            Some(name) => format!("{name} ({offset})"),
            None => offset,
        }
    }

    fn head(&self, page: &mut String, node: &str) {
        let report = self.report;
        let length = seconds(whole(report.until.duration_since(report.since).as_secs_f64()));
        let _ = writeln!(
            page,
            "<h1>{node}</h1>\n<p class=\"sub\">{} to {} ({length})</p>",
            escape(&self.time(report.since)),
            escape(&self.time(report.until))
        );
        let held = report.held_since.map(|held| {
            format!(
                "The history begins at {}: what happened before is not known.",
                self.time(held)
            )
        });
        let notes: Vec<String> = held.into_iter().chain(report.notes.iter().cloned()).collect();
        for note in notes {
            let _ = writeln!(page, "<p class=\"notes\">{}</p>", escape(&note));
        }
    }

    fn tiles(&self, page: &mut String) {
        let (totals, health) = (&self.report.totals, &self.report.health);
        let window = self
            .report
            .until
            .duration_since(self.report.since)
            .as_secs_f64()
            .max(1.0);
        let known = health.healthy_seconds + health.degraded_seconds + health.unhealthy_seconds;
        let healthy = match known {
            k if k < 0.5 => ("", "–".to_owned(), "health is not known".to_owned()),
            k => {
                let class = match () {
                    () if health.unhealthy_seconds >= 0.5 => "bad",
                    () if health.degraded_seconds >= 0.5 => "warn",
                    () => "good",
                };
                let of = if k + 1.0 < window {
                    "healthy, while watched"
                } else {
                    "healthy"
                };
                (class, percent(health.healthy_seconds, k), of.to_owned())
            }
        };
        let some = |n: u64, class: &'static str| if n > 0 { class } else { "" };
        let tile = |class: &'static str, n: u64, name: &str| (class, thousands(n), name.to_owned());
        let tiles = [
            healthy,
            tile("", totals.events, "events"),
            tile("", totals.started, "containers started"),
            tile(some(totals.failures, "bad"), totals.failures, "failed deaths"),
            tile(some(totals.oom_kills, "bad"), totals.oom_kills, "OOM kills"),
            tile(some(totals.troubles, "warn"), totals.troubles, "troubles"),
        ];
        page.push_str("<div class=\"tiles\">\n");
        for (class, value, name) in tiles {
            let _ = writeln!(
                page,
                "<div class=\"tile {class}\"><b>{}</b><span>{}</span></div>",
                escape(&value),
                escape(&name)
            );
        }
        page.push_str("</div>\n");
    }

    fn health(&self, page: &mut String) {
        let stretches: Vec<Stretch> = self
            .report
            .health
            .spans
            .iter()
            .map(|span| Stretch {
                class: match span.level {
                    Level::Healthy => "good",
                    Level::Degraded => "warn",
                    Level::Unhealthy => "bad",
                },
                from: span.from,
                to: span.to,
                title: format!(
                    "{} for {}, from {}{}",
                    span.level,
                    seconds(whole(span.to.duration_since(span.from).as_secs_f64())),
                    self.axis.time(span.from),
                    span.reason
                        .as_deref()
                        .map(|reason| format!(": {reason}"))
                        .unwrap_or_default()
                ),
            })
            .collect();
        let health = &self.report.health;
        let sum = |secs: f64| seconds(whole(secs));
        section(page, "Health", |page| {
            key(
                page,
                &[
                    ("good", format!("healthy {}", sum(health.healthy_seconds))),
                    ("warn", format!("degraded {}", sum(health.degraded_seconds))),
                    ("bad", format!("unhealthy {}", sum(health.unhealthy_seconds))),
                    ("none", format!("not known {}", sum(health.unknown_seconds))),
                ],
            );
            page.push_str(&svg::strip(&self.axis, &stretches, "Health of the node over time"));
        });
    }

    fn events(&self, page: &mut String) {
        let report = self.report;
        let step = i64::try_from(report.bucket_seconds).unwrap_or(i64::MAX);
        let bar = |bucket: &Bucket| {
            let to = Timestamp::from_second(bucket.start.as_second().saturating_add(step));
            let known = bucket.started + bucket.completed + bucket.failed;
            Bar {
                from: bucket.start,
                to: to.unwrap_or(bucket.start).min(report.until),
                parts: vec![
                    part("failed", bucket.failed),
                    part("completed", bucket.completed),
                    part("started", bucket.started),
                    part("other", bucket.events.saturating_sub(known)),
                ],
                title: format!(
                    "{}: {}, {} started, {} completed, {} failed, {}",
                    self.axis.time(bucket.start),
                    count(bucket.events, "event"),
                    bucket.started,
                    bucket.completed,
                    bucket.failed,
                    count(bucket.troubles, "new trouble")
                ),
            }
        };
        let bars: Vec<Bar> = report.buckets.iter().map(bar).collect();
        section(page, &format!("Events by {}", by(report.bucket_seconds)), |page| {
            key(
                page,
                &[
                    ("failed", "failed".to_owned()),
                    ("completed", "completed".to_owned()),
                    ("started", "started".to_owned()),
                    ("other", "other events".to_owned()),
                ],
            );
            page.push_str(&svg::bars(&self.axis, &bars, "Events over time"));
            let reasons: Vec<String> = report
                .deaths_by_reason
                .iter()
                .take(10)
                .map(|one| format!("{}× {}", thousands(one.count), named(&one.reason)))
                .collect();
            if !reasons.is_empty() {
                let _ = writeln!(
                    page,
                    "<p class=\"hint\">{}: {}</p>",
                    escape(&count(report.totals.deaths, "death")),
                    escape(&reasons.join(", "))
                );
            }
        });
    }

    fn pods(&self, page: &mut String) {
        let report = self.report;
        section(page, "Worst pods", |page| {
            if report.worst_pods.is_empty() {
                page.push_str("<p class=\"hint\">No pod failed.</p>\n");
                return;
            }
            page.push_str(
                "<table>\n<thead><tr><th>Pod</th><th class=\"num\">Failed</th><th class=\"num\">OOM</th><th>Deaths over time</th>\
                 <th>Last</th><th>Lived</th><th>Why</th></tr></thead>\n<tbody>\n",
            );
            for pod in &report.worst_pods {
                let name = pod.pod.to_string();
                let last = pod.last_death.map_or_else(|| "–".to_owned(), |at| self.short_time(at));
                let exits = how(pod);
                let why = match &pod.summary {
                    Some(summary) if !exits.is_empty() => format!("{summary}. {exits}"),
                    Some(summary) => summary.clone(),
                    None => exits,
                };
                let _ = writeln!(
                    page,
                    "<tr><td class=\"pod\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{}</td>\
                     <td class=\"nowrap\">{}</td><td class=\"nowrap\">{}</td><td class=\"why\">{}</td></tr>",
                    escape(&name),
                    thousands(pod.failures),
                    thousands(pod.oom_kills),
                    svg::sparkline(
                        &pod.deaths_by_bucket,
                        &format!("{} of {name}", count(pod.deaths, "death"))
                    ),
                    escape(&last),
                    escape(&lived(pod)),
                    escape(&short_ids(&why))
                );
            }
            page.push_str("</tbody>\n</table>\n");
            if report.more_pods > 0 {
                let _ = writeln!(
                    page,
                    "<p class=\"hint\">and {}</p>",
                    count(report.more_pods, "more pod")
                );
            }
        });
    }

    fn troubles(&self, page: &mut String) {
        let report = self.report;
        section(page, "Troubles", |page| {
            if report.troubles.is_empty() {
                page.push_str("<p class=\"hint\">None: everything was seen while pleg ran.</p>\n");
                return;
            }
            // In the order in which they began, numbered as in the table.
            let mut plotted: Vec<(usize, &TroubleSpan)> = report.troubles.iter().enumerate().take(PLOTTED).collect();
            plotted.sort_by_key(|(_, span)| span.from);
            let rows: Vec<(String, [Stretch; 1])> = plotted
                .into_iter()
                .map(|(place, span)| (format!("{}", place + 1), [self.stretch(span)]))
                .collect();
            let rows: Vec<(&str, &[Stretch])> = rows.iter().map(|(label, row)| (label.as_str(), &row[..])).collect();
            page.push_str(&svg::rows(
                &self.axis,
                &rows,
                18.0,
                "Troubles over time, one in each row",
            ));
            page.push_str(
                "<table>\n<thead><tr><th class=\"num\">#</th><th>From</th><th>For</th><th>Trouble</th><th>Where</th><th>Seen</th></tr></thead>\n<tbody>\n",
            );
            for (place, span) in report.troubles.iter().enumerate() {
                let _ = writeln!(
                    page,
                    "<tr><td class=\"num\">{}</td><td class=\"nowrap\">{}</td><td class=\"nowrap\">{}</td><td class=\"nowrap\">{}</td>\
                     <td class=\"pod\">{}</td><td class=\"seen\">{}</td></tr>",
                    place + 1,
                    escape(&self.short_time(span.from)),
                    escape(&lasted(span)),
                    escape(&span.trouble),
                    escape(&place_of(span)),
                    escape(&short_ids(span.reason.as_deref().unwrap_or_default()))
                );
            }
            page.push_str("</tbody>\n</table>\n");
            if report.more_troubles > 0 {
                let _ = writeln!(page, "<p class=\"hint\">and {} more</p>", report.more_troubles);
            }
        });
    }

    fn stretch(&self, span: &TroubleSpan) -> Stretch {
        Stretch {
            class: if span.pod.is_some() { "warn" } else { "bad" },
            from: span.from,
            to: span.to.unwrap_or(self.report.until),
            title: format!(
                "{} of {} for {}, from {}",
                span.trouble,
                place_of(span),
                lasted(span),
                self.axis.time(span.from)
            ),
        }
    }

    fn latencies(&self, page: &mut String) {
        let report = self.report;
        let half = report.bucket_seconds / 2;
        let curve = |class: &'static str, name: &'static str, of: &dyn Fn(&Bucket) -> Option<f64>| Curve {
            class,
            name,
            points: report
                .buckets
                .iter()
                .map(|bucket| {
                    let middle = bucket.start.checked_add(std::time::Duration::from_secs(half));
                    (middle.unwrap_or(bucket.start), of(bucket))
                })
                .collect(),
        };
        let p50 = |percentiles: &Option<Percentiles>| percentiles.map(|of| of.p50_seconds);
        let p99 = |percentiles: &Option<Percentiles>| percentiles.map(|of| of.p99_seconds);
        let lags = [
            curve("p50", "p50", &|bucket| p50(&bucket.lag)),
            curve("p99", "p99", &|bucket| p99(&bucket.lag)),
        ];
        let relists = [
            curve("p50", "p50", &|bucket| p50(&bucket.relist)),
            curve("p99", "p99", &|bucket| p99(&bucket.relist)),
        ];
        let keys = [("p50", "p50".to_owned()), ("p99", "p99".to_owned())];
        let plot = |page: &mut String, title: &str, what: &str, curves: &[Curve], sum: Option<Percentiles>| {
            section(page, title, |page| {
                let Some(sum) = sum else {
                    let _ = writeln!(page, "<p class=\"hint\">Not measured in this window.</p>");
                    return;
                };
                let _ = writeln!(
                    page,
                    "<p class=\"hint\">{what} Over the whole window: p50 {}, p90 {}, p99 {}, longest {}; {} measured.</p>",
                    lag(sum.p50_seconds),
                    lag(sum.p90_seconds),
                    lag(sum.p99_seconds),
                    lag(sum.max_seconds),
                    thousands(sum.count)
                );
                key(page, &keys);
                page.push_str(&svg::curves(&self.axis, curves, title));
            });
        };
        plot(
            page,
            "Lag of events",
            "From the runtime's timestamp of a change to its event.",
            &lags,
            report.lag,
        );
        plot(page, "Full relists", "How long they took.", &relists, report.relist);
        if report.totals.failed_relists > 0 {
            let failed = thousands(report.totals.failed_relists);
            let _ = writeln!(page, "<p class=\"notes\">Relists that failed: {failed}</p>");
        }
    }

    fn runs(&self, page: &mut String) {
        let report = self.report;
        if report.runs.is_empty() {
            return;
        }
        section(page, "Runs of the daemon", |page| {
            page.push_str("<table>\n<thead><tr><th>From</th><th>To</th><th>End</th><th>Version</th><th>Instance</th></tr></thead>\n<tbody>\n");
            for run in &report.runs {
                let end = match (run.to, run.crashed) {
                    (None, _) => "runs",
                    (Some(_), true) => "killed or crashed",
                    (Some(_), false) => "stopped",
                };
                let _ = writeln!(
                    page,
                    "<tr><td class=\"nowrap\">{}</td><td class=\"nowrap\">{}</td><td class=\"nowrap\">{end}</td><td>{}</td><td><code>{}</code></td></tr>",
                    escape(&self.short_time(run.from)),
                    escape(&run.to.map_or_else(|| "–".to_owned(), |to| self.short_time(to))),
                    escape(run.version.as_deref().unwrap_or("–")),
                    escape(&run.instance.to_string())
                );
            }
            page.push_str("</tbody>\n</table>\n");
        });
    }
}

fn part(class: &'static str, value: u64) -> Part {
    Part { class, value }
}

fn place_of(span: &TroubleSpan) -> String {
    match (&span.pod, &span.container) {
        (Some(pod), Some(container)) => format!("{pod} {container}"),
        (Some(pod), None) => pod.clone(),
        (None, _) => "the node".to_owned(),
    }
}

fn section(page: &mut String, title: &str, content: impl FnOnce(&mut String)) {
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(title));
    content(page);
    page.push_str("\n</section>\n");
}

/// What the colours mean.
fn key(page: &mut String, entries: &[(&str, String)]) {
    page.push_str("<ul class=\"key\">");
    for (class, name) in entries {
        let _ = write!(page, "<li><i class=\"k-{class}\"></i>{}</li>", escape(name));
    }
    page.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::super::tests::{night, now};
    use super::*;

    fn page() -> String {
        let report = night();
        Page::new(&report, now(), TimeZone::UTC).render()
    }

    #[test]
    fn the_night_as_a_page() {
        let page = page();
        for part in [
            "<title>worker-3 &lt;b&gt;&amp; co&lt;/b&gt;: node report</title>",
            "<p class=\"sub\">2026-11-17 06:00:00 to 2026-11-18 06:00:00 (24h0m0s)</p>",
            "The history begins at 2026-11-17 06:24:00: what happened before is not known.",
            "<div class=\"tile bad\"><b>90.2 %</b><span>healthy, while watched</span></div>",
            "<div class=\"tile bad\"><b>58</b><span>OOM kills</span></div>",
            "<h2>Events by hour</h2>",
            "804 deaths: 669× Completed, 58× OOMKilled",
            "<td class=\"pod\">shop/checkout-7d9f8c6b5-x2x4q</td><td class=\"num\">61</td>",
            "<td class=\"nowrap\">1h6m0s so far</td>",
            "Unhealthy for 51m0s, from Wed 18 Nov 02:33:00: PLEG is not healthy",
            "p50 14ms, p90 6.2s, p99 12s, longest 20s; 4,391 measured.",
            "<td class=\"nowrap\">killed or crashed</td>",
            "Times are in UTC.",
        ] {
            assert!(page.contains(part), "{part}");
        }
        // Health, events, troubles, lag, relists; and a small one for each pod.
        assert_eq!(page.matches("<svg ").count(), 5 + night().worst_pods.len());
    }

    /// The names of the fixture have markup in them.
    #[test]
    fn markup_stays_text() {
        let page = page();
        assert!(page.contains("&lt;script&gt;"), "the fixture has markup");
        assert!(!page.contains("<script") && !page.contains("<img"));
        // No attribute is ended by a name: what begins a tag is one of ours.
        let tags = page.split('<').skip(1).map(|tag| {
            let tag = tag.trim_start_matches('/');
            tag.split(|c: char| !c.is_ascii_alphanumeric() && c != '!')
                .next()
                .unwrap_or_default()
        });
        let known = [
            "!doctype", "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "div", "b", "span",
            "section", "ul", "li", "i", "svg", "line", "text", "rect", "g", "path", "circle", "table", "thead",
            "tbody", "tr", "th", "td", "code", "footer",
        ];
        for tag in tags {
            assert!(known.contains(&tag), "<{tag}");
        }
    }

    #[test]
    fn nothing_is_loaded() {
        let page = page();
        for foreign in [
            "http://",
            "https://",
            "url(",
            "@import",
            " src=\"",
            " href=\"",
            "javascript:",
        ] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    /// Every tag that is opened is closed.
    #[test]
    fn tags_are_balanced() {
        let page = page();
        let body = &page[page.find("<body>").unwrap()..];
        for tag in [
            "section", "table", "thead", "tbody", "tr", "td", "th", "svg", "g", "text", "title", "p", "div", "ul", "li",
        ] {
            let opened = body.matches(&format!("<{tag}>")).count() + body.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, body.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    /// A window in which nothing happened is a page too.
    #[test]
    fn an_empty_report_has_no_broken_plots() {
        let mut report = night();
        report.buckets.iter_mut().for_each(|bucket| {
            (bucket.events, bucket.started, bucket.completed, bucket.failed) = (0, 0, 0, 0);
            (bucket.lag, bucket.relist) = (None, None);
        });
        (report.lag, report.relist) = (None, None);
        report.worst_pods.clear();
        report.troubles.clear();
        report.health.spans.clear();
        report.runs.clear();
        let page = Page::new(&report, now(), TimeZone::UTC).render();
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        assert!(page.contains("No pod failed.") && page.contains("Not measured"));
    }
}
