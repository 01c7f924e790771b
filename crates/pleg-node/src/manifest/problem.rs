//! Problems of a manifest, each with the path of its field.
//!
//! All problems of a document are collected, not only the first. A document with a problem is refused, so after a problem the reader may
//! continue with any value.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;

use super::convert::Policy;
use super::names::{self, InvalidText};

/// Most problems of one document that are listed; the others are counted.
const MAX_PROBLEMS: usize = 32;

/// What is wrong with a manifest, and where.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// The field, such as `spec.containers[0].image`; empty for the document itself.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.what)
    }
}

/// The problems of a document.
#[derive(Debug)]
pub(crate) struct Problems {
    policy: Policy,
    // Borrowed to add one problem.
    found: RefCell<(Vec<Problem>, usize)>,
}

impl Problems {
    /// None yet, of a document that is read by this policy.
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            found: RefCell::default(),
        }
    }

    /// Adds a problem, unless there is one already with the same field: what is wrong about its type says more than what follows from that.
    fn add(&self, path: String, what: String) {
        let (list, more) = &mut *self.found.borrow_mut();
        if list.iter().any(|problem| problem.path == path) {
            return;
        }
        if list.len() < MAX_PROBLEMS {
            list.push(Problem { path, what });
        } else {
            *more += 1;
        }
    }

    /// The problems, by path, and how many more there are.
    pub(crate) fn into_inner(self) -> (Vec<Problem>, usize) {
        let (mut list, more) = self.found.into_inner();
        list.sort_by(|a, b| a.path.cmp(&b.path));
        (list, more)
    }
}

/// A place in a document: the path from its root, written only if there is a problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    parent: Option<&'a At<'a>>,
    step: Step<'a>,
    problems: &'a Problems,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    pub(crate) fn root(problems: &'a Problems) -> Self {
        Self {
            parent: None,
            step: Step::Root,
            problems,
        }
    }

    /// A field of the object that is here.
    pub(crate) fn key<'b>(&'b self, key: &'b str) -> At<'b> {
        self.child(Step::Key(key))
    }

    /// An item of the list that is here.
    pub(crate) fn index(&self, n: usize) -> At<'_> {
        self.child(Step::Index(n))
    }

    fn child<'b>(&'b self, step: Step<'b>) -> At<'b> {
        At {
            parent: Some(self),
            step,
            problems: self.problems,
        }
    }

    /// The name of this field, if it is one of an object.
    pub(crate) fn name(&self) -> Option<&'a str> {
        match self.step {
            Step::Key(key) => Some(key),
            Step::Root | Step::Index(_) => None,
        }
    }

    pub(crate) fn path(&self) -> String {
        let parent = self.parent.map(At::path).unwrap_or_default();
        match self.step {
            Step::Root => parent,
            Step::Key(key) => join(&parent, key),
            Step::Index(n) => format!("{parent}[{n}]"),
        }
    }

    /// By which policy the document is read.
    pub(crate) fn policy(&self) -> Policy {
        self.problems.policy
    }

    /// Adds a problem with the value that is here.
    pub(crate) fn refuse(&self, what: impl Into<String>) {
        self.problems.add(self.path(), what.into());
    }

    /// Checks a text.
    pub(crate) fn check(&self, text: &str, check: impl FnOnce(&str) -> Result<(), InvalidText>) {
        if let Err(error) = check(text) {
            self.refuse(error.to_string());
        }
    }

    /// Checks a text that has to be there.
    pub(crate) fn require(&self, text: &str, check: impl FnOnce(&str) -> Result<(), InvalidText>) {
        if text.is_empty() {
            self.refuse("required field is missing");
        } else {
            self.check(text, check);
        }
    }

    /// Checks a number.
    pub(crate) fn check_range(&self, value: i64, range: RangeInclusive<i64>) {
        let (least, most) = range.into_inner();
        if !(least..=most).contains(&value) {
            self.refuse(format!("{value} is out of range; expected {least} to {most}"));
        }
    }

    /// One of a few words.
    pub(crate) fn one_of<T: Clone>(&self, text: &str, words: &[(&str, T)]) -> Option<T> {
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let (text, words) = (names::quoted(text), either(&words));
            self.refuse(format!("{text} is not valid; expected {words}"));
        }
        found.map(|(_, value)| value.clone())
    }
}

/// The path of a field of an object. Keys with dots, such as labels, are quoted.
fn join(path: &str, name: &str) -> String {
    // Keys may have any length and content; a path is for messages.
    let name: String = name.chars().take(128).flat_map(char::escape_debug).collect();
    match (path.is_empty(), name.contains(['.', '/', ' '])) {
        (true, false) => name,
        (false, false) => format!("{path}.{name}"),
        (_, true) => format!("{path}['{name}']"),
    }
}

/// `a`, `a or b`, `a, b or c`.
fn either(words: &[&str]) -> String {
    let words: Vec<&str> = words.iter().copied().filter(|word| !word.is_empty()).collect();
    match &words[..] {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
