//! Reads a [`Tree`] into a type of the Kubernetes API, with all its problems.
//!
//! A type of the API says which fields it has when it is deserialised, so fields that it does not have are found here, with their path. So
//! are values of the wrong type: a problem is noted, and reading continues with a value in their place.

use std::collections::btree_map;
use std::fmt;

use serde::Deserializer;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::problem::At;
use super::tree::Tree;

/// Reads a document. None if it cannot be read at all; the problem that says why is noted then.
pub(crate) fn from_tree<T: DeserializeOwned>(tree: &Tree, at: &At<'_>) -> Option<T> {
    match T::deserialize(TreeDeserializer { tree, at }) {
        Ok(value) => Some(value),
        Err(error) => {
            if !error.noted {
                at.refuse(error.what);
            }
            None
        }
    }
}

/// Why a document cannot be read further.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Unreadable {
    what: String,
    /// It is among the problems, with its path.
    noted: bool,
}

impl Unreadable {
    fn note(mut self, at: &At<'_>) -> Self {
        if !std::mem::replace(&mut self.noted, true) {
            at.refuse(self.what.as_str());
        }
        self
    }
}

impl serde::de::Error for Unreadable {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self {
            what: message.to_string(),
            noted: false,
        }
    }
}

#[derive(Clone, Copy)]
struct TreeDeserializer<'de, 'a> {
    tree: &'de Tree,
    at: &'a At<'a>,
}

impl TreeDeserializer<'_, '_> {
    /// Notes a value of the wrong type.
    fn wrong(&self, wanted: &str) {
        let hint = match (self.tree, wanted) {
            (Tree::Bool(_) | Tree::Int(_) | Tree::Float(_), "a string") => "; put it in quotes",
            _ => "",
        };
        self.at
            .refuse(format!("expected {wanted}, found {}{hint}", self.tree.kind()));
    }

    /// A whole number between these. Another one is noted, and read as 1.
    fn int(&self, least: i64, most: i64) -> i64 {
        match *self.tree {
            Tree::Int(value) if (least..=most).contains(&value) => return value,
            Tree::Int(value) => self.at.check_range(value, least..=most),
            _ => self.wrong("an integer"),
        }
        1
    }

    fn text(&self) -> &str {
        match self.tree {
            // C strings end there: a runtime would see another text than the one we checked.
            Tree::Text(text) if text.contains('\0') => self.at.refuse("must not contain a NUL byte"),
            Tree::Text(text) => return text,
            _ => self.wrong("a string"),
        }
        ""
    }
}

/// A number or a text that is a quantity.
struct QuantityDeserializer<'de, 'a>(TreeDeserializer<'de, 'a>);

impl<'de> Deserializer<'de> for QuantityDeserializer<'de, '_> {
    type Error = Unreadable;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        match self.0.tree {
            Tree::Int(number) => visitor.visit_string(number.to_string()),
            Tree::Float(number) => visitor.visit_string(number.to_string()),
            _ => visitor.visit_str(self.0.text()),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> Deserializer<'de> for TreeDeserializer<'de, '_> {
    type Error = Unreadable;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let i32s = i64::from(i32::MIN)..=i64::from(i32::MAX);
        match self.tree {
            // The only fields of a pod that may have values of different types are the ports of probes and hooks.
            Tree::Int(value) if self.at.name() == Some("port") && !i32s.contains(value) => {
                self.at.check_range(*value, i32s);
                visitor.visit_i64(1)
            }
            Tree::Null | Tree::Bool(_) | Tree::Float(_) | Tree::List(_) | Tree::Map(_)
                if self.at.name() == Some("port") =>
            {
                self.wrong("an integer or a string");
                visitor.visit_i64(1)
            }
            Tree::Null => visitor.visit_unit(),
            Tree::Bool(value) => visitor.visit_bool(*value),
            Tree::Int(value) => visitor.visit_i64(*value),
            Tree::Float(value) => visitor.visit_f64(*value),
            Tree::Text(_) => visitor.visit_str(self.text()),
            Tree::List(_) => self.deserialize_seq(visitor),
            Tree::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let Tree::Bool(value) = *self.tree else {
            self.wrong("true or false");
            return visitor.visit_bool(false);
        };
        visitor.visit_bool(value)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_i64(self.int(i32::MIN.into(), i32::MAX.into()))
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_i64(self.int(i64::MIN, i64::MAX))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_str(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_str(self.text())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        match self.tree {
            Tree::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        match name {
            "Quantity" => visitor.visit_newtype_struct(QuantityDeserializer(self)),
            "Time" | "MicroTime" if self.text().parse::<jiff::Timestamp>().is_err() => {
                self.at
                    .refuse("is not a time; expected one such as 2030-01-02T03:04:05Z");
                let epoch: StrDeserializer<'_, Unreadable> = "1970-01-01T00:00:00Z".into_deserializer();
                visitor.visit_newtype_struct(epoch)
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let items: &[Tree] = if let Tree::List(items) = self.tree {
            items
        } else {
            self.wrong("a list");
            &[]
        };
        let items = items.iter().enumerate();
        visitor.visit_seq(Items { items, at: self.at })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_map(self.fields(None))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        visitor.visit_map(self.fields(Some(fields)))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

impl<'de, 'a> TreeDeserializer<'de, 'a> {
    fn fields(self, known: Option<&'static [&'static str]>) -> Fields<'de, 'a> {
        let entries = if let Tree::Map(fields) = self.tree {
            Some(fields.iter())
        } else {
            self.wrong("an object");
            None
        };
        Fields {
            entries,
            known,
            value: None,
            at: self.at,
        }
    }
}

/// The items of a list.
struct Items<'de, 'a> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Tree>>,
    at: &'a At<'a>,
}

impl<'de> SeqAccess<'de> for Items<'de, '_> {
    type Error = Unreadable;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Unreadable> {
        let Some((n, tree)) = self.items.next() else {
            return Ok(None);
        };
        let at = self.at.index(n);
        let item = seed.deserialize(TreeDeserializer { tree, at: &at });
        item.map(Some).map_err(|error| error.note(&at))
    }
}

/// The fields of an object.
struct Fields<'de, 'a> {
    /// None if it is no object.
    entries: Option<btree_map::Iter<'de, String, Tree>>,
    /// The fields that the type has; none for a map of any keys.
    known: Option<&'static [&'static str]>,
    value: Option<(&'de str, &'de Tree)>,
    at: &'a At<'a>,
}

impl<'de> MapAccess<'de> for Fields<'de, '_> {
    type Error = Unreadable;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unreadable> {
        while let Some((key, tree)) = self.entries.as_mut().and_then(Iterator::next) {
            if let Some(known) = self.known.filter(|known| !known.contains(&key.as_str())) {
                let what = match nearest(key, known) {
                    Some(near) => format!("unknown field; did you mean {near}?"),
                    None => "unknown field".to_owned(),
                };
                self.at.key(key).refuse(what);
                continue;
            }
            self.value = Some((key, tree));
            return seed.deserialize(key.as_str().into_deserializer()).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unreadable> {
        let Some((key, tree)) = self.value.take() else {
            return Err(serde::de::Error::custom("a value was read before its key"));
        };
        let at = self.at.key(key);
        let value = seed.deserialize(TreeDeserializer { tree, at: &at });
        value.map_err(|error| error.note(&at))
    }
}

/// The field that was probably meant: one whose name differs by one or two letters, or by case.
pub(crate) fn nearest(name: &str, names: &[&'static str]) -> Option<&'static str> {
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
    use k8s_openapi::api::core::v1::{PodSpec, Probe};

    use super::super::convert::Policy;
    use super::super::problem::Problems;
    use super::*;

    fn read<T: DeserializeOwned>(yaml: &str) -> (Option<T>, Vec<String>) {
        let tree = Tree::parse(yaml.as_bytes()).unwrap().remove(0);
        let problems = Problems::new(Policy::Static);
        let value = from_tree(&tree, &At::root(&problems));
        (value, problems.into_inner().0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn unknown_fields_are_reported_with_their_path() {
        let (spec, problems) = read::<PodSpec>(
            "{hostname: x, hostnam: y, zzz: 1, NODENAME: 2, containers: [{name: a, imagee: b, ports: [{containerPort: 1, x: 2}]}]}",
        );
        assert_eq!(spec.unwrap().hostname.as_deref(), Some("x"));
        assert_eq!(
            problems,
            [
                "NODENAME: unknown field; did you mean nodeName?",
                "containers[0].imagee: unknown field; did you mean image?",
                "containers[0].ports[0].x: unknown field",
                "hostnam: unknown field; did you mean hostname?",
                "zzz: unknown field",
            ]
        );
    }

    #[test]
    fn wrong_types_are_reported_with_their_path() {
        let (spec, problems) = read::<PodSpec>(
            "{hostname: 1, hostNetwork: x, containers: {}, priority: 5000000000, nodeSelector: {x.y/z: 1}, imagePullSecrets: [[]],
              subdomain: \"x\\0y\", activeDeadlineSeconds: 1.5, volumes: [null], overhead: {cpu: 1.5, memory: 2, x: [1]}}",
        );
        let overhead = spec.unwrap().overhead.unwrap();
        assert_eq!(
            (overhead["cpu"].0.as_str(), overhead["memory"].0.as_str()),
            ("1.5", "2")
        );
        assert_eq!(
            problems,
            [
                "activeDeadlineSeconds: expected an integer, found a number",
                "containers: expected a list, found an object",
                "hostNetwork: expected true or false, found a string",
                "hostname: expected a string, found a number; put it in quotes",
                "imagePullSecrets[0]: expected an object, found a list",
                "nodeSelector['x.y/z']: expected a string, found a number; put it in quotes",
                "overhead.x: expected a string, found a list",
                "priority: 5000000000 is out of range; expected -2147483648 to 2147483647",
                "subdomain: must not contain a NUL byte",
                "volumes[0]: expected an object, found nothing",
            ]
        );
    }

    #[test]
    fn ports_are_numbers_or_names() {
        for port in ["80", "http"] {
            let (probe, problems) = read::<Probe>(&format!("{{tcpSocket: {{port: {port}}}}}"));
            assert!(probe.is_some() && problems.is_empty(), "{problems:?}");
        }
        for port in ["true", "[80]", "8.5", "99999999999"] {
            let (_, problems) = read::<Probe>(&format!("{{tcpSocket: {{port: {port}}}, periodSeconds: x}}"));
            assert!(problems[1].starts_with("tcpSocket.port: "), "{problems:?}");
            assert_eq!(problems.len(), 2, "{problems:?}");
        }
    }

    #[test]
    fn a_thousand_problems_are_bounded() {
        let keys: Vec<String> = (0..1000).map(|n| format!("k{n}: 1")).collect();
        let (_, problems) = read::<PodSpec>(&format!("{{{}}}", keys.join(", ")));
        assert_eq!(problems.len(), 32);
        let (_, problems) = read::<PodSpec>(&format!("{{? \"{}\" : 1}}", "\\u001b".repeat(5000)));
        assert!(
            problems[0].len() < 1000 && !problems[0].contains('\u{1b}'),
            "{problems:?}"
        );
    }
}
