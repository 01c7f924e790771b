//! What was measured, what it may be, and how it is shown.

use std::time::Duration;

use serde::Serialize;

use crate::output::table::{Cell, Table};
use crate::output::{GREEN, RED};
use crate::text::count;

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) endpoint: String,
    pub(super) runtime: String,
    pub(super) pods: usize,
    pub(super) rounds: usize,
    /// Pods that the baseline starts at once.
    pub(super) clients: usize,
    pub(super) figures: Vec<Figure>,
}

/// One figure. Times are in seconds.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: Unit,
    /// What counts: of several rounds the median, or the worst.
    pub(super) node: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst: Option<f64>,
    /// The same by the same calls, made directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) direct: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    pub(super) limit: Limit,
    pub(super) ok: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unit {
    Seconds,
    /// Of a core.
    Percent,
    Mebibytes,
}

/// What a figure may be at most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Limit {
    /// So many times what the direct calls take.
    Ratio(f64),
    /// So much above what the direct calls take, in its unit.
    Above(f64),
    /// This, in its unit.
    Value(f64),
}

impl Figure {
    pub(super) fn new(name: impl Into<String>, unit: Unit, node: f64, limit: Limit) -> Self {
        let mut figure = Self {
            name: name.into(),
            unit,
            node: round(node),
            median: None,
            worst: None,
            direct: None,
            ratio: None,
            limit,
            ok: false,
        };
        figure.judge();
        figure
    }

    /// With what the direct calls take.
    pub(super) fn beside(mut self, direct: f64) -> Self {
        self.direct = Some(round(direct));
        self.ratio = Some(round(self.node / direct.max(f64::MIN_POSITIVE)));
        self.judge();
        self
    }

    /// With how it was spread.
    pub(super) fn spread(mut self, samples: &Samples) -> Self {
        self.median = Some(round(samples.median()));
        self.worst = Some(round(samples.worst()));
        self
    }

    fn judge(&mut self) {
        self.ok = match self.limit {
            Limit::Value(most) => self.node <= most,
            Limit::Ratio(most) => self.ratio.is_some_and(|ratio| ratio <= most),
            Limit::Above(most) => self.direct.is_some_and(|direct| self.node - direct <= most),
        };
    }
}

/// Times of one kind, in seconds.
#[derive(Debug, Default, Clone)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn push(&mut self, sample: f64) {
        self.0.push(sample);
        self.0.sort_by(f64::total_cmp);
    }

    pub(super) fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }

    pub(super) fn worst(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        let mut all = Self(samples.into_iter().collect());
        all.0.sort_by(f64::total_cmp);
        all
    }
}

impl Report {
    pub(super) fn all_ok(&self) -> bool {
        self.figures.iter().all(|figure| figure.ok)
    }

    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&["", "PLEG NODE", "WORST", "DIRECT", "RATIO", "LIMIT", ""]);
        for figure in &self.figures {
            let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| figure.unit.show(value));
            let limit = match figure.limit {
                Limit::Ratio(most) => format!("{most:.2} times"),
                Limit::Value(most) => figure.unit.show(most),
                Limit::Above(most) => format!("+{}", figure.unit.show(most)),
            };
            table.row(vec![
                figure.name.clone().into(),
                figure.unit.show(figure.node).into(),
                shown(figure.worst).into(),
                shown(figure.direct).into(),
                figure
                    .ratio
                    .map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
                    .into(),
                limit.into(),
                if figure.ok {
                    Cell::coloured("ok", GREEN)
                } else {
                    Cell::coloured("MISSED", RED)
                },
            ]);
        }
        format!(
            "{} at {}: {}, {}; direct: the same calls by {}\n{}",
            self.runtime,
            self.endpoint,
            count(self.pods, "pod"),
            count(self.rounds, "round"),
            count(self.clients, "client"),
            table.render()
        )
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Seconds => {
                let time = Duration::try_from_secs_f64(value.max(0.0)).unwrap_or_default();
                if time < Duration::from_secs(1) {
                    format!("{:.1}ms", value * 1e3)
                } else {
                    format!("{value:.2}s")
                }
            }
            Self::Percent => format!("{value:.2}%"),
            Self::Mebibytes => format!("{value:.1}MiB"),
        }
    }
}

fn round(number: f64) -> f64 {
    (number * 1e5).round() / 1e5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_of_the_value_or_of_the_ratio() {
        let samples: Samples = [0.3, 0.1, 0.2].into_iter().collect();
        assert!((samples.median() - 0.2).abs() < 1e-9 && (samples.worst() - 0.3).abs() < 1e-9);
        let figure = |node| Figure::new("x", Unit::Seconds, node, Limit::Ratio(1.15)).beside(2.0);
        assert!(figure(2.3).ok && !figure(2.31).ok);
        let figure = |node| Figure::new("x", Unit::Seconds, node, Limit::Above(0.02)).beside(0.1);
        assert!(figure(0.12).ok && !figure(0.121).ok);
        // Without anything to compare with nobody can say.
        assert!(!Figure::new("x", Unit::Seconds, 0.0, Limit::Ratio(2.0)).ok);
        assert!(!Figure::new("x", Unit::Seconds, 0.0, Limit::Above(1.0)).ok);
        let idle = |node| Figure::new("x", Unit::Percent, node, Limit::Value(0.5)).ok;
        assert!(idle(0.5) && !idle(0.51));
        assert_eq!(Unit::Seconds.show(0.0123), "12.3ms");
        assert_eq!(Unit::Seconds.show(12.345), "12.35s");
    }
}
