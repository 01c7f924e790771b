//! The table of pods: which rows are shown, in which order, and which one is selected.
//!
//! The order is computed when something changed, not when it is drawn, and what is drawn is a window of it. The selection is a pod, not a
//! place: it stays with its pod while rows come, go and move.

use std::collections::HashMap;

use super::row::{Column, Filter, Row, Sort};

/// Maximum number of rows; a node has a few hundred. Further pods are counted, not shown.
pub(crate) const ROWS: usize = 20_000;

#[derive(Debug)]
pub(crate) struct PodTable {
    rows: Vec<Row>,
    /// Where in `rows` a UID is.
    places: HashMap<Box<str>, usize>,
    /// What is shown, as places in `rows`.
    order: Vec<usize>,
    /// `order` is not that of `rows`, `filter` and `sort`.
    unsorted: bool,
    sort: Sort,
    filter: Filter,
    /// The selected pod; none only while nothing is shown.
    selected: Option<Box<str>>,
    /// Where in `order` it is.
    cursor: usize,
    /// The first row of the window.
    top: usize,
    /// Pods that are beyond the limit.
    left_out: usize,
}

impl PodTable {
    pub(crate) fn new(sort: Sort, filter: Filter) -> Self {
        Self {
            rows: Vec::new(),
            places: HashMap::new(),
            order: Vec::new(),
            unsorted: false,
            sort,
            filter,
            selected: None,
            cursor: 0,
            top: 0,
            left_out: 0,
        }
    }

    /// Every pod there is.
    pub(super) fn replace(&mut self, mut rows: Vec<Row>) {
        self.left_out = rows.len().saturating_sub(ROWS);
        rows.truncate(ROWS);
        if self.rows == rows {
            return;
        }
        self.places = rows
            .iter()
            .enumerate()
            .map(|(place, row)| (row.uid.clone(), place))
            .collect();
        // A daemon does not send a UID twice; if one does, the last row counts.
        if self.places.len() < rows.len() {
            let places = &self.places;
            let mut at = 0;
            rows.retain(|row| {
                at += 1;
                places.get(&row.uid) == Some(&(at - 1))
            });
            self.places = rows
                .iter()
                .enumerate()
                .map(|(place, row)| (row.uid.clone(), place))
                .collect();
        }
        self.rows = rows;
        self.unsorted = true;
    }

    /// Single pods as they are now.
    pub(super) fn update(&mut self, rows: Vec<Row>) {
        for row in rows {
            match self.places.get(&row.uid) {
                Some(&place) if self.rows[place] == row => {}
                Some(&place) => {
                    self.rows[place] = row;
                    self.unsorted = true;
                }
                None if self.rows.len() >= ROWS => self.left_out += 1,
                None => {
                    self.places.insert(row.uid.clone(), self.rows.len());
                    self.rows.push(row);
                    self.unsorted = true;
                }
            }
        }
    }

    /// A pod that is gone.
    pub(super) fn remove(&mut self, uid: &str) {
        let Some(place) = self.places.remove(uid) else {
            return;
        };
        self.rows.swap_remove(place);
        if let Some(moved) = self.rows.get(place) {
            self.places.insert(moved.uid.clone(), place);
        }
        self.unsorted = true;
    }

    pub(super) fn sort_by(&mut self, column: Column) {
        self.sort = self.sort.pressed(column);
        self.unsorted = true;
    }

    pub(super) fn filter_by(&mut self, filter: Filter) {
        if self.filter != filter {
            self.filter = filter;
            self.unsorted = true;
        }
    }

    /// Moves the selection by so many rows.
    pub(super) fn go(&mut self, rows: isize) {
        self.go_to(self.cursor.saturating_add_signed(rows));
    }

    /// Selects the row at this place, or the last one.
    pub(super) fn go_to(&mut self, place: usize) {
        // What is typed refers to what is on the screen, which is sorted.
        self.cursor = place.min(self.order.len().saturating_sub(1));
        self.selected = self.at(self.cursor).map(|row| row.uid.clone());
    }

    /// Sorts if something changed, finds the selected pod again, and moves a window of `height` rows so that it is inside.
    pub(super) fn settle(&mut self, height: usize) {
        if self.unsorted {
            self.unsorted = false;
            let (rows, filter, sort) = (&self.rows, &self.filter, self.sort);
            self.order.clear();
            self.order
                .extend((0..rows.len()).filter(|&place| rows[place].matches(filter)));
            self.order.sort_unstable_by(|&a, &b| sort.compare(&rows[a], &rows[b]));
            let place = self.selected.as_deref().and_then(|uid| self.places.get(uid));
            let found = place.and_then(|place| self.order.iter().position(|shown| shown == place));
            // Of a pod that is gone, its neighbour is next.
            self.go_to(found.unwrap_or(self.cursor));
        }
        let height = height.max(1);
        let last = self.order.len().saturating_sub(height);
        self.top = self
            .top
            .min(self.cursor)
            .max((self.cursor + 1).saturating_sub(height))
            .min(last);
    }

    fn at(&self, place: usize) -> Option<&Row> {
        self.order.get(place).and_then(|&place| self.rows.get(place))
    }

    /// The rows of a window, and whether each is the selected one.
    pub(crate) fn window(&self, height: usize) -> impl Iterator<Item = (&Row, bool)> {
        let places = self.top..self.order.len().min(self.top.saturating_add(height));
        places.filter_map(|place| Some((self.at(place)?, place == self.cursor)))
    }

    pub(crate) fn selected(&self) -> Option<&Row> {
        self.at(self.cursor)
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&Row> {
        self.places.get(uid).and_then(|&place| self.rows.get(place))
    }

    /// How many are shown.
    pub(crate) fn shown(&self) -> usize {
        self.order.len()
    }

    /// How many there are.
    pub(crate) fn total(&self) -> usize {
        self.rows.len() + self.left_out
    }

    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    pub(crate) fn not_ready(&self) -> usize {
        self.rows.iter().filter(|row| !row.is_ready).count()
    }

    pub(crate) fn sort(&self) -> Sort {
        self.sort
    }

    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }
}

#[cfg(test)]
impl PodTable {
    /// The place of the selected row among those that are shown, from 0.
    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    /// What always holds after [`Self::settle`].
    pub(super) fn check(&self, height: usize) {
        assert!(!self.unsorted);
        assert_eq!(self.places.len(), self.rows.len());
        assert!(self.places.iter().all(|(uid, &place)| self.rows[place].uid == *uid));
        match self.selected() {
            Some(row) => assert_eq!(self.selected.as_deref(), Some(&*row.uid)),
            None => assert!(self.order.is_empty() && self.selected.is_none()),
        }
        if !self.order.is_empty() {
            assert_eq!(self.window(height.max(1)).filter(|(_, selected)| *selected).count(), 1);
        }
    }
}
