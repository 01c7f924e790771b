//! Labels and annotations: kept for every pod of the node, so in one piece of memory, and bounded.

use std::collections::HashMap;
use std::hash::BuildHasher;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// More pairs than this are left out, those with the last names first.
const MOST: usize = 128;
/// All names and values together take at most this many bytes; a pair that does not fit is left out.
const BYTES: usize = 16 * 1024;
/// A value is cut to this many bytes. Only annotations have longer ones, such as the whole manifest that `kubectl apply` leaves there.
const VALUE: usize = 1024;
/// Stands where a value was cut.
const CUT: char = '…';
/// Between a name and its value, and after the value. No name or value that Kubernetes accepts has it.
const END: char = '\0';

/// Labels or annotations: names with values, ordered by name. Bounded: at most 128 pairs and 16 KiB; a value longer than 1 KiB is cut and ends
/// with `…`.
///
/// One string holds all of them: the five labels that a kubelet's pod has at least cost two allocations less each than they would as
/// strings of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(Box<str>);

impl Pairs {
    /// Takes what fits.
    pub fn new<S: BuildHasher>(map: &HashMap<String, String, S>) -> Self {
        let mut pairs: Vec<(&str, &str)> = map.iter().map(|(name, value)| (&**name, &**value)).collect();
        pairs.sort_unstable();
        let mut all = String::new();
        for (name, value) in pairs.into_iter().take(MOST) {
            let shown = &value[..value.floor_char_boundary(VALUE)];
            let fits = all.len() + name.len() + shown.len() + CUT.len_utf8() + 2 <= BYTES;
            if !fits || name.is_empty() || name.contains(END) || shown.contains(END) {
                continue;
            }
            all.push_str(name);
            all.push(END);
            all.push_str(shown);
            if shown.len() < value.len() {
                all.push(CUT);
            }
            all.push(END);
        }
        Self(all.into())
    }

    /// Each name with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (name, after) = rest.split_once(END)?;
            let (value, after) = after.split_once(END)?;
            rest = after;
            Some((name, value))
        })
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map: HashMap<String, String> = HashMap::deserialize(deserializer)?;
        Ok(Self::new(&map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(&str, &str)]) -> Pairs {
        let map: HashMap<String, String> = of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Pairs::new(&map)
    }

    #[test]
    fn pairs_come_back_in_order() {
        let pairs = pairs(&[("b", "2"), ("a", ""), ("c", "é")]);
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [("a", ""), ("b", "2"), ("c", "é")]);
        assert_eq!((pairs.get("b"), pairs.get("x"), pairs.get("")), (Some("2"), None, None));
        assert_eq!(serde_json::to_string(&pairs).unwrap(), r#"{"a":"","b":"2","c":"é"}"#);
        assert_eq!(
            serde_json::from_str::<Pairs>(r#"{"b":"2","a":"","c":"é"}"#).unwrap(),
            pairs
        );
        assert!(Pairs::default().is_empty() && Pairs::default().iter().next().is_none());
    }

    #[test]
    fn absurd_pairs_are_bounded() {
        let long = "é".repeat(5000);
        let cut = pairs(&[("long", &long), ("z", "1")]);
        let value = cut.get("long").unwrap();
        assert!(
            value.len() <= VALUE + CUT.len_utf8() && value.ends_with("é…"),
            "{value}"
        );
        assert_eq!(cut.get("z"), Some("1"));
        assert_eq!(
            pairs(&[("a\0b", "1"), ("c", "\0"), ("", "1"), ("d", "1")])
                .iter()
                .count(),
            1
        );
        let many: HashMap<String, String> = (0..10_000).map(|n| (format!("{n:05}"), long.clone())).collect();
        assert!(Pairs::new(&many).0.len() <= BYTES);
        let many: HashMap<String, String> = (0..10_000).map(|n| (format!("{n:05}"), String::new())).collect();
        assert_eq!(Pairs::new(&many).iter().count(), MOST);
    }
}
