//! Reads a [`Tree`] field by field. Fields that are not read are refused, with their path.
//!
//! Reading a field is what makes it supported, so no field can be accepted and then ignored. All problems of a document are collected, not
//! only the first. A document with a problem is refused, so after a problem a reader may continue with any value.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use super::names::{self, InvalidText};
use super::tree::Tree;

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

/// The problems of a document, in the order in which they were found.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: RefCell<(Vec<Problem>, usize)>,
}

impl Problems {
    pub(super) fn add(&self, path: &str, what: impl Into<String>) {
        let (list, more) = &mut *self.found.borrow_mut();
        if list.len() < MAX_PROBLEMS {
            list.push(Problem {
                path: path.to_owned(),
                what: what.into(),
            });
        } else {
            *more += 1;
        }
    }

    /// The problems, and how many more there are.
    pub(super) fn into_inner(self) -> (Vec<Problem>, usize) {
        self.found.into_inner()
    }
}

/// A value that is present.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) tree: &'a Tree,
    problems: &'a Problems,
}

/// An object that is being read.
#[derive(Debug)]
pub(super) struct Object<'a> {
    path: String,
    fields: &'a BTreeMap<String, Tree>,
    /// The names that were read: those that are supported.
    asked: Vec<&'static str>,
    problems: &'a Problems,
}

impl<'a> Field<'a> {
    pub(super) fn root(tree: &'a Tree, problems: &'a Problems) -> Self {
        Self {
            path: String::new(),
            tree,
            problems,
        }
    }

    /// Adds a problem with this value.
    pub(super) fn refuse(&self, what: impl Into<String>) {
        self.problems.add(&self.path, what);
    }

    fn wrong<T>(&self, wanted: &str) -> Option<T> {
        let hint = match (self.tree, wanted) {
            (Tree::Bool(_) | Tree::Int(_) | Tree::Float(_), "a string") => "; put it in quotes",
            _ => "",
        };
        self.refuse(format!("expected {wanted}, found {}{hint}", self.tree.kind()));
        None
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self.tree {
            // C strings end there: a runtime would see another text than the one we checked.
            Tree::Text(text) if text.contains('\0') => {
                self.refuse("must not contain a NUL byte");
                None
            }
            Tree::Text(text) => Some(text),
            _ => self.wrong("a string"),
        }
    }

    /// A text that passes a check.
    pub(super) fn checked(&self, check: impl FnOnce(&str) -> Result<(), InvalidText>) -> Option<String> {
        let text = self.text()?;
        match check(text) {
            Ok(()) => Some(text.to_owned()),
            Err(error) => {
                self.refuse(error.to_string());
                None
            }
        }
    }

    pub(super) fn bool(&self) -> Option<bool> {
        match self.tree {
            Tree::Bool(value) => Some(*value),
            _ => self.wrong("true or false"),
        }
    }

    pub(super) fn int(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let Tree::Int(value) = *self.tree else {
            return self.wrong("an integer");
        };
        if range.contains(&value) {
            return Some(value);
        }
        let (least, most) = range.into_inner();
        if most == i64::MAX {
            self.refuse(format!("{value} is out of range; expected {least} or more"));
        } else {
            self.refuse(format!("{value} is out of range; expected {least} to {most}"));
        }
        None
    }

    /// One of a few words.
    pub(super) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.refuse(format!(
                "{} is not valid; expected {}",
                names::quoted(text),
                either(&words)
            ));
        }
        found.map(|(_, value)| *value)
    }

    /// The items of a list.
    pub(super) fn list<T>(&self, mut each: impl FnMut(&Field<'a>) -> Option<T>) -> Vec<T> {
        let Tree::List(items) = self.tree else {
            self.wrong::<()>("a list");
            return Vec::new();
        };
        let item = |(n, tree)| {
            let path = format!("{}[{n}]", self.path);
            each(&Field {
                path,
                tree,
                problems: self.problems,
            })
        };
        items.iter().enumerate().filter_map(item).collect()
    }

    /// A list of texts.
    pub(super) fn texts(&self) -> Vec<String> {
        self.list(|item| item.text().map(str::to_owned))
    }

    /// An object whose values are texts.
    pub(super) fn text_map(&self, mut check: impl FnMut(&Field<'a>, &str, &str)) -> BTreeMap<String, String> {
        let Tree::Map(map) = self.tree else {
            self.wrong::<()>("an object");
            return BTreeMap::new();
        };
        let entry = |(key, tree): (&String, &'a Tree)| {
            let field = self.child(key, tree);
            let text = field.text()?;
            check(&field, key, text);
            Some((key.clone(), text.to_owned()))
        };
        map.iter().filter_map(entry).collect()
    }

    fn child(&self, key: &str, tree: &'a Tree) -> Self {
        Self {
            path: join(&self.path, key),
            tree,
            problems: self.problems,
        }
    }

    /// Reads an object. `unsupported` are the fields of Kubernetes that we do not support; any other field that is not read is unknown.
    pub(super) fn object<T>(&self, unsupported: &[&str], read: impl FnOnce(&mut Object<'a>) -> T) -> Option<T> {
        let Tree::Map(fields) = self.tree else {
            return self.wrong("an object");
        };
        let mut object = Object {
            path: self.path.clone(),
            fields,
            asked: Vec::new(),
            problems: self.problems,
        };
        let value = read(&mut object);
        object.refuse_unread(unsupported);
        Some(value)
    }
}

impl<'a> Object<'a> {
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// A field, if it is present. Reading it makes it supported.
    pub(super) fn get(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.asked.push(name);
        self.fields.get(name).map(|tree| Field {
            path: join(&self.path, name),
            tree,
            problems: self.problems,
        })
    }

    /// A required field.
    pub(super) fn need(&mut self, name: &'static str) -> Option<Field<'a>> {
        let field = self.get(name);
        if field.is_none() {
            self.problems.add(&join(&self.path, name), "required field is missing");
        }
        field
    }

    /// Adds a problem with the object as a whole.
    pub(super) fn refuse(&self, what: impl Into<String>) {
        self.problems.add(&self.path, what);
    }

    /// Adds a problem with one of its fields.
    pub(super) fn refuse_field(&self, name: &str, what: impl Into<String>) {
        self.problems.add(&join(&self.path, name), what);
    }

    /// Adds a problem with the value at a path.
    pub(super) fn refuse_at(&self, path: &str, what: impl Into<String>) {
        self.problems.add(path, what);
    }

    /// A field that may only have the value that says what we do anyway; any other value is refused.
    pub(super) fn only(&mut self, name: &'static str, value: &Tree, why: &str) {
        if let Some(field) = self.get(name)
            && field.tree != value
        {
            field.refuse(why);
        }
    }

    fn refuse_unread(&self, unsupported: &[&str]) {
        for name in self.fields.keys() {
            if self.asked.contains(&name.as_str()) {
                continue;
            }
            let what = if unsupported.contains(&name.as_str()) {
                "field is not supported by pleg node; remove it".to_owned()
            } else if let Some(near) = nearest(name, &self.asked) {
                format!("unknown field; did you mean {near}?")
            } else {
                "unknown field".to_owned()
            };
            self.problems.add(&join(&self.path, name), what);
        }
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
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The supported name that was probably meant: one that differs by one or two letters, or by case.
fn nearest(name: &str, names: &[&'static str]) -> Option<&'static str> {
    // No field name is similar to one of this length.
    if name.len() > 64 {
        return None;
    }
    let of = |other: &&'static str| (strsim::levenshtein(name, other), *other);
    let (distance, near) = names.iter().map(of).min()?;
    let slips = if name.len() < 5 { 1 } else { 2 };
    (distance <= slips || near.eq_ignore_ascii_case(name)).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(yaml: &str, read: impl FnOnce(&mut Object<'_>)) -> Vec<String> {
        let tree = Tree::parse(yaml.as_bytes()).unwrap().remove(0);
        let problems = Problems::default();
        Field::root(&tree, &problems).object(&["tolerations"], read);
        problems.into_inner().0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_nobody_asked_for_is_refused_by_name() {
        let found = problems("{image: x, imag: y, tolerations: [], zzz: 1, NAME: 2}", |object| {
            object.get("image");
            object.get("name");
        });
        assert_eq!(
            found,
            [
                "NAME: unknown field; did you mean name?",
                "imag: unknown field; did you mean image?",
                "tolerations: field is not supported by pleg node; remove it",
                "zzz: unknown field",
            ]
        );
    }

    #[test]
    fn types_are_told_with_their_path() {
        let found = problems(
            "{a: 1, b: x, c: [1, x, {d: true}], e: 99, f: {x.y/z: 1}, h: {}}",
            |object| {
                object.need("a").unwrap().text();
                object.need("b").unwrap().bool();
                object.need("c").unwrap().list(|item| item.int(1..=5));
                object.need("e").unwrap().int(1..=5);
                object.need("f").unwrap().text_map(|_, _, _| {});
                object.need("g");
                object.need("h").unwrap().one_of(&[("x", 1), ("y", 2), ("z", 3)]);
            },
        );
        assert_eq!(
            found,
            [
                "a: expected a string, found a number; put it in quotes",
                "b: expected true or false, found a string",
                "c[1]: expected an integer, found a string",
                "c[2]: expected an integer, found an object",
                "e: 99 is out of range; expected 1 to 5",
                "f['x.y/z']: expected a string, found a number; put it in quotes",
                "g: required field is missing",
                "h: expected a string, found an object",
            ]
        );
        let found = problems("{a: q, b: \"x\\0y\"}", |object| {
            object.need("a").unwrap().one_of(&[("x", 1), ("y", 2), ("z", 3)]);
            object.need("b").unwrap().text();
        });
        assert_eq!(
            found,
            [
                r#"a: "q" is not valid; expected x, y or z"#,
                "b: must not contain a NUL byte"
            ]
        );
    }

    #[test]
    fn a_thousand_problems_are_bounded() {
        let keys: Vec<String> = (0..1000).map(|n| format!("k{n}: 1")).collect();
        let found = problems(&format!("{{{}}}", keys.join(", ")), |_| {});
        assert_eq!(found.len(), MAX_PROBLEMS);
        let found = problems(&format!("{{? \"{}\" : 1}}", "\\u001b".repeat(5000)), |_| {});
        assert!(found[0].len() < 1000 && !found[0].contains('\u{1b}'), "{found:?}");
    }
}
