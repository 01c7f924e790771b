//! Reads what follows the question mark; what cannot be read is a 400 that names the field and what it accepts.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use pleg::EventType;
use serde::Serialize;

use crate::filter::{Filter, PodName};
use crate::since::{ACCEPTED, Since};

/// No value that makes sense is longer.
const VALUE_LIMIT: usize = 1024;

/// A request that makes no sense.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Bad {
    #[serde(rename = "error")]
    message: String,
    field: String,
    accepted: Vec<String>,
}

impl Bad {
    fn new(field: &str, message: impl Into<String>, accepted: &[&str]) -> Self {
        Self {
            field: field.chars().take(64).collect(),
            message: message.into(),
            accepted: accepted.iter().map(|&text| text.to_owned()).collect(),
        }
    }
}

impl IntoResponse for Bad {
    fn into_response(self) -> Response {
        (StatusCode::BAD_REQUEST, axum::Json(self)).into_response()
    }
}

/// The fields of a query, each once.
#[derive(Debug)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Reads a query that may have the fields `known`.
    pub(super) fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Bad> {
        let pairs: axum::extract::Query<Vec<(String, String)>> = match query {
            Some(query) => {
                let uri = http::Uri::builder().path_and_query(format!("/?{query}")).build();
                uri.ok()
                    .and_then(|uri| axum::extract::Query::try_from_uri(&uri).ok())
                    .ok_or_else(|| Bad::new("", "the query cannot be read", known))?
            }
            None => return Ok(Self(Vec::new())),
        };
        let mut fields: Vec<(String, String)> = Vec::new();
        for (name, value) in pairs.0 {
            if !known.contains(&name.as_str()) {
                return Err(Bad::new(&name, "no such field", known));
            }
            if value.len() > VALUE_LIMIT {
                return Err(Bad::new(&name, "the value is too long", &[]));
            }
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(Bad::new(&name, "the field is there twice", &[]));
            }
            fields.push((name, value));
        }
        Ok(Self(fields))
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str())
    }

    /// `?name`, `?name=true`, `?name=false`.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Bad> {
        match self.get(name) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(_) => Err(Bad::new(name, "neither yes nor no", &["true", "false"])),
        }
    }

    /// `since=CURSOR`, `since=SEQ` or `since=now`.
    pub(super) fn since(&self) -> Result<Option<Since>, Bad> {
        self.get("since").map(|text| read_since("since", text)).transpose()
    }

    pub(super) fn filter(&self) -> Result<Filter, Bad> {
        let mut types = Vec::new();
        for name in self.get("type").into_iter().flat_map(|text| text.split(',')) {
            let kind = EventType::parse(name)
                .ok_or_else(|| Bad::new("type", "no such type of event", &EventType::ALL.map(EventType::name)))?;
            types.push(kind);
        }
        let pod = match self.get("pod") {
            None => None,
            Some(text) => {
                let name = PodName::parse(text);
                Some(name.map_err(|_| Bad::new("pod", "no name of a pod", &["NAME", "NAMESPACE/NAME"]))?)
            }
        };
        let namespace = self.get("namespace").map(str::to_owned);
        if namespace.as_deref() == Some("") {
            return Err(Bad::new("namespace", "is empty", &["NAMESPACE"]));
        }
        Ok(Filter { types, pod, namespace })
    }
}

/// Reads after which event to begin.
pub(super) fn read_since(field: &str, text: &str) -> Result<Since, Bad> {
    text.parse()
        .map_err(|_| Bad::new(field, "not the cursor or number of an event", &ACCEPTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["follow", "since", "type", "pod", "namespace"];

    #[test]
    fn good_queries_are_read() {
        let fields = Fields::read(
            Some("follow&since=12&type=containerdied,PodSync&pod=a%2Fweb&namespace=a"),
            KNOWN,
        )
        .unwrap();
        assert_eq!(fields.flag("follow"), Ok(true));
        assert_eq!(fields.since(), Ok(Some(Since::Seq(12))));
        let filter = fields.filter().unwrap();
        assert_eq!(filter.types, [EventType::ContainerDied, EventType::PodSync]);
        assert_eq!(filter.pod.unwrap().to_string(), "a/web");
        assert!(Fields::read(None, KNOWN).unwrap().since().unwrap().is_none());
    }

    #[test]
    fn bad_ones_name_the_field() {
        let bad = |query: &str| {
            let fields = match Fields::read(Some(query), KNOWN) {
                Ok(fields) => fields,
                Err(bad) => return bad.field,
            };
            let flag = fields.flag("follow").err();
            let since = fields.since().err();
            let filter = fields.filter().err();
            flag.or(since).or(filter).map_or("none".to_owned(), |bad| bad.field)
        };
        for (query, field) in [
            ("follow=maybe", "follow"),
            ("since=-1", "since"),
            ("since=99999999999999999999", "since"),
            ("since=5f0c2a9be1d34c77", "since"),
            ("since=5f0c2a9be1d34c77-15", "none"),
            ("type=Nope", "type"),
            ("type=", "type"),
            ("pod=a/b/c", "pod"),
            ("namespace=", "namespace"),
            ("folow", "folow"),
            ("since=1&since=2", "since"),
            ("follow=false", "none"),
        ] {
            assert_eq!(bad(query), field, "{query}");
        }
        assert_eq!(bad(&format!("pod={}", "x".repeat(2000))), "pod");
    }
}
