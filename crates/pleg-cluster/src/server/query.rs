//! The query of a request. Values are read as the Kubernetes API reads them.

use percent_encoding::percent_decode_str;

/// Most parameters of a query: commands of `exec` have one for each argument.
const MAX_PARAMETERS: usize = 4096;

/// What is wrong with a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryError {
    #[error("the query has more than {MAX_PARAMETERS} parameters")]
    TooLong,
    #[error("the query is not UTF-8")]
    NotText,
    #[error("{name}: {value:?} is not {expected}")]
    Invalid {
        name: &'static str,
        value: String,
        expected: &'static str,
    },
}

/// The parameters of a query, in their order.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: Option<&str>) -> Result<Self, QueryError> {
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            let decoded = percent_decode_str(&text).decode_utf8();
            decoded
                .map(std::borrow::Cow::into_owned)
                .map_err(|_| QueryError::NotText)
        };
        let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
        let mut parameters = Vec::new();
        for part in parts {
            if parameters.len() == MAX_PARAMETERS {
                return Err(QueryError::TooLong);
            }
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            parameters.push((decode(name)?, decode(value)?));
        }
        Ok(Self(parameters))
    }

    /// The first value.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values, in their order.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    /// `false` and `0` are false; a name without a value, and everything else, is true.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    pub(super) fn number(&self, name: &'static str) -> Result<Option<i64>, QueryError> {
        self.value(name, "a number")
    }

    /// A value of some type.
    pub(super) fn value<T: std::str::FromStr>(
        &self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, QueryError> {
        let parse = |value: &str| {
            value.parse().map_err(|_| QueryError::Invalid {
                name,
                value: value.chars().take(64).collect(),
                expected,
            })
        };
        self.get(name).map(parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_kubernetes_api_reads_them() {
        let query = Query::parse(Some("a=1&b&c=false&d=0&e=x%20y+z&e=2&f=FALSE&g=true&=&&h==")).unwrap();
        let flags = ["a", "b", "c", "d", "e", "f", "g", "absent"].map(|name| query.flag(name));
        assert_eq!(flags, [true, true, false, false, true, false, true, false]);
        assert_eq!(query.all("e").collect::<Vec<_>>(), ["x y z", "2"]);
        assert_eq!((query.number("a"), query.number("absent")), (Ok(Some(1)), Ok(None)));
        assert_eq!(
            query.number("e").unwrap_err().to_string(),
            r#"e: "x y z" is not a number"#
        );
        assert_eq!(query.get("h"), Some("="));
        assert_eq!(Query::parse(Some("a=%ff")).unwrap_err(), QueryError::NotText);
        assert_eq!(Query::parse(Some(&"a&".repeat(5000))).unwrap_err(), QueryError::TooLong);
    }
}
