//! Label selectors, as kubectl's `-l` takes them.

use std::str::FromStr;

use crate::model::status::PodStatus;

/// Requirements on labels, all of which have to hold. Read from kubectl's syntax: `a=b,c!=d,e in (f, g),h notin (i),j,!k`.
///
/// ```
/// let selector: pleg::LabelSelector = "app=web,!canary".parse()?;
/// assert!(selector.matches(|name| (name == "app").then_some("web")));
/// # Ok::<(), pleg::BadSelector>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

/// The text is no [`LabelSelector`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {0}; expected a=b, a!=b, a in (b, c), a notin (b, c), a or !a, with commas between them")]
pub struct BadSelector(String);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    holds: Holds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Holds {
    Exists,
    Absent,
    In(Vec<String>),
    /// Also holds for pods without the label.
    NotIn(Vec<String>),
}

impl FromStr for LabelSelector {
    type Err = BadSelector;

    fn from_str(text: &str) -> Result<Self, BadSelector> {
        let mut requirements = Vec::new();
        let mut rest = text;
        loop {
            let end = end_of_first(rest)?;
            requirements.push(Requirement::parse(rest[..end].trim())?);
            match rest.get(end + 1..) {
                Some(after) => rest = after,
                None => return Ok(Self(requirements)),
            }
        }
    }
}

impl LabelSelector {
    /// Whether the pod's labels match: [`PodStatus::labels`].
    pub fn matches_pod(&self, status: &PodStatus) -> bool {
        self.matches(|name| status.labels()?.get(name))
    }

    /// Whether labels match; `label` returns the value of a name.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| {
            let value = label(&requirement.key);
            let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|one| one == value));
            match &requirement.holds {
                Holds::Exists => value.is_some(),
                Holds::Absent => value.is_none(),
                Holds::In(values) => among(values),
                Holds::NotIn(values) => !among(values),
            }
        })
    }
}

/// The end of the first requirement: a comma outside brackets.
fn end_of_first(text: &str) -> Result<usize, BadSelector> {
    let mut inside = false;
    for (at, c) in text.char_indices() {
        match c {
            '(' if inside => return Err(wrong(text)),
            '(' => inside = true,
            ')' if !inside => return Err(wrong(text)),
            ')' => inside = false,
            ',' if !inside => return Ok(at),
            _ => {}
        }
    }
    if inside { Err(wrong(text)) } else { Ok(text.len()) }
}

fn wrong(text: &str) -> BadSelector {
    BadSelector(pleg_cri::error::quoted(text))
}

impl Requirement {
    fn parse(text: &str) -> Result<Self, BadSelector> {
        let (key, holds) = if let Some((key, value)) = text.split_once("!=") {
            (key, Holds::NotIn(vec![value.trim().to_owned()]))
        } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            (key, Holds::In(vec![value.trim().to_owned()]))
        } else if let Some(key) = text.strip_prefix('!') {
            (key, Holds::Absent)
        } else if let Some((before, values)) = text.split_once('(') {
            let values = values.trim_end().strip_suffix(')').ok_or_else(|| wrong(text))?;
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            let before = before.trim_end();
            match before.rsplit_once(char::is_whitespace) {
                Some((key, "in")) => (key, Holds::In(values)),
                Some((key, "notin")) => (key, Holds::NotIn(values)),
                _ => return Err(wrong(text)),
            }
        } else {
            (text, Holds::Exists)
        };
        let key = key.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        let values_fit = match &holds {
            Holds::In(values) | Holds::NotIn(values) => values.iter().all(|value| value.chars().all(plain)),
            Holds::Exists | Holds::Absent => true,
        };
        if key.is_empty() || !key.chars().all(plain) || !values_fit {
            return Err(wrong(text));
        }
        Ok(Self {
            key: key.to_owned(),
            holds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_kubectls() {
        let labels = [("app", "web"), ("tier", "front"), ("empty", "")];
        let label = |name: &str| labels.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        for (text, is) in [
            ("app=web", true),
            ("app==web", true),
            ("app = web", true),
            ("app=db", false),
            ("app!=db", true),
            ("other!=db", true),
            ("app!=web", false),
            ("app", true),
            ("other", false),
            ("!other", true),
            ("! app", false),
            ("empty=", true),
            ("app in (db, web)", true),
            ("app in (db)", false),
            ("app notin (db)", true),
            ("other notin (db)", true),
            ("app notin (web,db)", false),
            ("app=web,tier in (front,back),!canary", true),
            ("app=web,tier=back", false),
        ] {
            let selector = text.parse::<LabelSelector>().unwrap();
            assert_eq!(selector.matches(label), is, "{text}");
        }
        for bad in [
            "", ",", "app=web,", "a in b", "a in (b", "a in b)", "in (b)", "=b", "a b", "a=b=c", "a=(b)", "((a))",
        ] {
            assert!(bad.parse::<LabelSelector>().is_err(), "{bad}");
        }
    }
}
