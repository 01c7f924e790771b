//! Parses queries. An invalid query is a 400 that names the field and what it accepts.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use pleg::EventType;
use serde::Serialize;

use crate::filter::{Filter, PodName};
use crate::since::{ACCEPTED, Since};

/// Maximum length of a value.
const VALUE_LIMIT: usize = 1024;

/// An invalid request.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Bad {
    #[serde(rename = "error")]
    message: String,
    field: String,
    accepted: Vec<String>,
}

impl Bad {
    pub(super) fn new(field: &str, message: impl Into<String>, accepted: &[&str]) -> Self {
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

/// The fields of a query; none appears twice.
#[derive(Debug)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Parses a query with any of the fields `known`.
    pub(super) fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Bad> {
        let mut fields: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name =
                decode(name).ok_or_else(|| Bad::new("", "a field's name is not percent-encoded UTF-8", known))?;
            if !known.contains(&name.as_str()) {
                return Err(Bad::new(&name, "no such field", known));
            }
            let value = decode(value).ok_or_else(|| Bad::new(&name, "the value is not percent-encoded UTF-8", &[]))?;
            if value.len() > VALUE_LIMIT {
                return Err(Bad::new(&name, "the value is too long", &[]));
            }
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(Bad::new(&name, "the field is given twice", &[]));
            }
            fields.push((name, value));
        }
        Ok(Self(fields))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str())
    }

    /// `?name`, `?name=true`, `?name=false`.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Bad> {
        match self.get(name) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(_) => Err(Bad::new(name, "neither true nor false", &["true", "false"])),
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
                .ok_or_else(|| Bad::new("type", "no such event type", &EventType::ALL.map(EventType::name)))?;
            types.push(kind);
        }
        let pod = match self.get("pod") {
            None => None,
            Some(text) => {
                let name = PodName::parse(text);
                Some(name.map_err(|_| Bad::new("pod", "not the name of a pod", &["NAME", "NAMESPACE/NAME"]))?)
            }
        };
        let namespace = self.get("namespace").map(str::to_owned);
        if namespace.as_deref() == Some("") {
            return Err(Bad::new("namespace", "is empty", &["NAMESPACE"]));
        }
        if let (
            Some(own),
            Some(PodName {
                namespace: Some(other), ..
            }),
        ) = (&namespace, &pod)
            && own != other
        {
            return Err(Bad::new("namespace", "differs from the namespace in pod", &[other]));
        }
        Ok(Filter { types, pod, namespace })
    }
}

/// Decodes `%XX` and `+`. `None` if the result is not UTF-8 or a `%` is incomplete.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high << 4 | low).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// An extractor for paths that accept no query.
#[derive(Debug)]
pub(super) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Bad;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Bad> {
        Fields::read(parts.uri.query(), &[]).map(|_| Self)
    }
}

/// Namespace and name in a path.
#[derive(Debug)]
pub(super) struct Names<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for Names<T>
where
    T: serde::de::DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Bad;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Bad> {
        let read: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        match read {
            Ok(Path(names)) => Ok(Self(names)),
            Err(_) => Err(Bad::new("path", "is not percent-encoded UTF-8", &[])),
        }
    }
}

/// Parses the event after which a stream begins.
pub(super) fn read_since(field: &str, text: &str) -> Result<Since, Bad> {
    text.parse()
        .map_err(|_| Bad::new(field, "neither an event nor a time", &ACCEPTED))
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
            ("pod=%ff", "pod"),
            ("pod=%f", "pod"),
            ("pod=%xy", "pod"),
            ("pod=a/web&namespace=b", "namespace"),
            ("pod=a/web&namespace=a", "none"),
            ("pod=caf%c3%a9", "none"),
            ("&&follow&", "none"),
            ("%ff=1", ""),
        ] {
            assert_eq!(bad(query), field, "{query}");
        }
        assert_eq!(bad(&format!("pod={}", "x".repeat(2000))), "pod");
    }
}
