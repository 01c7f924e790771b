//! A document as it is written: what YAML and JSON have in common, with limits against hostile files.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest text that is parsed: a file, or the answer of a URL.
pub const MAX_BYTES: usize = 4 << 20;
/// Most nodes of all documents of one text, with aliases expanded.
const MAX_NODES: usize = 200_000;
/// Most nodes that aliases may add: a text that needs more is a bomb.
const MAX_ALIASED: usize = 20_000;
/// Deepest nesting. A pod needs a dozen.
const MAX_DEPTH: usize = 48;

/// Why a text is neither YAML nor JSON, in the words of the parser.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(String);

/// A value of YAML or JSON. Equal documents are equal trees, in whatever order their keys were written; a key with `null` is the
/// same as no key, as in Kubernetes.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Tree>),
    /// Keys and values.
    Map(BTreeMap<String, Tree>),
}

impl Tree {
    /// Parses all documents of a text. Empty ones are left out.
    pub fn parse(bytes: &[u8]) -> Result<Vec<Self>, SyntaxError> {
        let mut options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_nodes: MAX_NODES,
                max_depth: MAX_DEPTH,
                max_total_scalar_bytes: 2 * MAX_BYTES,
            },
            // As in kubectl and the kubelet: `defaultMode: 0440` is 288.
            legacy_octal_numbers: true,
            // `yes` and `no` are texts, not the bools of YAML 1.1.
            strict_booleans: true,
            with_snippet: false,
        };
        options.alias_limits.max_total_replayed_events = MAX_ALIASED;
        let documents: Vec<Self> = serde_saphyr::from_slice_multiple_with_options(bytes, options)
            .map_err(|error| SyntaxError(error.to_string().trim_end().to_owned()))?;
        Ok(documents
            .into_iter()
            .filter(|document| *document != Self::Null)
            .collect())
    }

    /// Its type, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a bool",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }

    /// The value of a key, if this is an object that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(map) => map.get(key),
            _ => None,
        }
    }

    /// The text, if this is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(map) => serializer.collect_map(map),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Int(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Tree, E> {
        i64::try_from(value)
            .map(Tree::Int)
            .map_err(|_| E::custom(format!("the number {value} is too large")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = access.next_key::<String>()? {
            let value: Tree = access.next_value()?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate key {key}")));
            }
            map.insert(key, value);
        }
        map.retain(|_, value| *value != Tree::Null);
        Ok(Tree::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Tree>, SyntaxError> {
        Tree::parse(text.as_bytes())
    }

    #[test]
    fn yaml_and_json_are_the_same_tree() {
        let yaml = "a: 1\nb: [true, 1.5, no, 'x']\nc:\n  d: |\n    two\n    lines\n";
        let json = "\t{\"c\": {\"d\": \"two\\nlines\\n\", \"e\": null},\n\t\"b\": [true, 1.5, \"no\", \"\\u0078\"],\n\t\t\"a\": 1}\n";
        assert_eq!(parse(yaml), parse(json));
        assert_eq!(parse(yaml).unwrap().len(), 1);
    }

    #[test]
    fn a_leading_zero_makes_a_number_octal() {
        let trees = parse("mode: 0440\nzero: 0\nten: 10\n").unwrap();
        let number = |name: &str| trees[0].get(name).cloned();
        assert_eq!(number("mode"), Some(Tree::Int(0o440)));
        assert_eq!(
            (number("zero"), number("ten")),
            (Some(Tree::Int(0)), Some(Tree::Int(10)))
        );
    }

    #[test]
    fn several_documents_are_several_trees() {
        let trees = parse("# nothing here\n---\na: 1\n---\n---\nb: 2\n...\n").unwrap();
        assert_eq!(trees.len(), 2);
        assert_eq!(trees[1].get("b"), Some(&Tree::Int(2)));
        assert_eq!(parse("# a comment\n"), Ok(vec![]));
        assert_eq!(parse(""), Ok(vec![]));
    }

    #[test]
    fn broken_texts_are_errors_with_a_place() {
        for (text, words) in [
            ("a: 1\na: 2\n", "line 2"),
            (r#"{"a": 1, "a": 2}"#, "line 1"),
            ("a: [1, 2\nb: 3\n", "line 2"),
            ("a: b: c\n", "line 1"),
            ("a: 1\n\tb: 2\n", "found a tab"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
            assert!(error.len() < 300, "{text:?}: {error}");
        }
        assert!(Tree::parse(b"a: \xff\xfe\n").is_err());
    }

    #[test]
    fn bombs_do_not_go_off() {
        let mut laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (of, next) in ('a'..'i').zip('b'..) {
            let times = format!("*{of}, ").repeat(10);
            let line = format!("{next}: &{next} [{times}]\n");
            laughs += &line;
        }
        assert!(parse(&laughs).is_err());
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(parse(&deep).is_err());
        let long = "- x\n".repeat(MAX_NODES + 1);
        assert!(parse(&long).is_err());
    }

    #[test]
    fn aliases_that_people_write_are_read() {
        let trees = parse("a: &x {k: 1}\nb: *x\n").unwrap();
        assert_eq!(trees[0].get("a"), trees[0].get("b"));
    }
}
