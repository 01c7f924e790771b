//! The web pages of a node: one document with its style sheet and modules, all inside this binary.
//!
//! The document is the same for every page; a module of it decides by the address what to show, and reads it from the API. No script
//! and no style is inline and nothing comes from another origin, and the `Content-Security-Policy` says so: a pod's name that were
//! shown as markup could still not run. A browser keeps the files, and asks each time whether they are still those of this binary.
//!
//! The pages are for people on this machine, or with a tunnel to it: a TCP address that other machines can reach does not have them,
//! because there is no authentication.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::LazyLock;

use axum::Router;
use axum::extract::{Path, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::query::NoQuery;
use super::routes::error;

/// The paths of pages, for the answer to an unknown path.
pub(super) const PATHS: [&str; 2] = ["/", "/pods/{namespace}/{name}"];

/// Where everything but the document is.
const ASSETS: &str = "/assets/";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Only what this daemon serves; no text becomes markup or a script (`trusted-types`), and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the pages.
struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal $kind:ident),* $(,)?) => {
        [$(File { name: $name, kind: $kind, text: include_str!(concat!("../web/", $name)) }),*]
    };
}

/// The document first.
static FILES: [File; 21] = files![
    "index.html" HTML,
    "style.css" CSS,
    "icon.svg" SVG,
    "api.js" JS,
    "charts.js" JS,
    "dom.js" JS,
    "follow.js" JS,
    "format.js" JS,
    "health.js" JS,
    "lives.js" JS,
    "log.js" JS,
    "main.js" JS,
    "node.js" JS,
    "past.js" JS,
    "pod.js" JS,
    "query.js" JS,
    "scale.js" JS,
    "series.js" JS,
    "store.js" JS,
    "table.js" JS,
    "timeline.js" JS,
];

/// What identifies the content of each file, in the order of [`FILES`].
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let tag = |file: &File| {
        let mut hasher = DefaultHasher::new();
        hasher.write(file.text.as_bytes());
        format!("\"{:016x}\"", hasher.finish())
    };
    FILES.iter().map(tag).collect()
});

/// The pages and their files.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    // The fields of a page's query are read by its own modules.
    let document = async |headers: HeaderMap| serve(0, &headers);
    Router::new()
        .route("/", get(document))
        .route("/pods/{namespace}/{name}", get(document))
        .route("/assets/{name}", get(asset))
}

/// Wraps `router`: on an address that other machines can reach there are no pages.
pub(super) fn refused(router: Router) -> Router {
    router.layer(from_fn(async |request: Request, next: Next| {
        let path = request.uri().path();
        if path == "/" || path.starts_with("/pods/") || path.starts_with(ASSETS) {
            return error(
                StatusCode::FORBIDDEN,
                "the web pages are not served on an address that other machines can reach, because there is no \
                 authentication: use a tunnel, as in `ssh -L 8080:/run/pleg/pleg.sock NODE`, and open http://localhost:8080/",
            );
        }
        next.run(request).await
    }))
}

async fn asset(Path(name): Path<String>, headers: HeaderMap, _: NoQuery) -> Response {
    // The document is not one of them: it has addresses of its own.
    match FILES.iter().skip(1).position(|file| file.name == name) {
        Some(place) => serve(place + 1, &headers),
        None => error(StatusCode::NOT_FOUND, "no such file of the web pages"),
    }
}

fn serve(place: usize, headers: &HeaderMap) -> Response {
    let (Some(file), Some(tag)) = (FILES.get(place), TAGS.get(place)) else {
        return error(StatusCode::NOT_FOUND, "no such file of the web pages");
    };
    let Ok(tag) = HeaderValue::from_str(tag) else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "the file cannot be served");
    };
    let known = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().trim_start_matches("W/").as_bytes() == tag.as_bytes());
    let fixed: [(HeaderName, &'static str); 6] = [
        // A new binary has new files under the same names.
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    if known {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)], fixed).into_response();
    }
    ([(ETAG, tag)], fixed, [(CONTENT_TYPE, file.kind)], file.text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a module or the document names: `'./x.js'` of an import, `/assets/x` of the document.
    fn named(file: &File) -> Vec<&str> {
        let (before, after) = if file.kind == HTML {
            ("=\"/assets/", '"')
        } else {
            ("from './", '\'')
        };
        let parts = file.text.split(before).skip(1);
        parts.filter_map(|part| part.split(after).next()).collect()
    }

    #[test]
    fn every_file_that_one_names_is_served_and_every_file_is_named() {
        let mut all: Vec<&str> = FILES.iter().flat_map(named).collect();
        all.sort_unstable();
        all.dedup();
        let mut served: Vec<&str> = FILES.iter().skip(1).map(|file| file.name).collect();
        served.sort_unstable();
        assert_eq!(all, served);
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web");
        assert_eq!(
            std::fs::read_dir(dir).unwrap().count(),
            FILES.len(),
            "a file of src/web is not in FILES"
        );
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_no_text_becomes_markup() {
        for file in &FILES {
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            for word in [
                "http://",
                "https://",
                "//cdn",
                "@import",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                " onclick=",
                "javascript:",
                "<style",
                "style=\"",
            ] {
                // `onclick:` is a property that a module sets, `onclick=` would be one of markup.
                assert!(!text.contains(word), "{} has {word}", file.name);
            }
        }
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let none = serve(1, &HeaderMap::new());
        assert_eq!(none.status(), StatusCode::OK);
        let tag = none.headers()[ETAG].to_str().unwrap().to_owned();
        for (known, status) in [
            (tag.clone(), StatusCode::NOT_MODIFIED),
            (format!("\"other\", W/{tag}"), StatusCode::NOT_MODIFIED),
            ("\"other\"".to_owned(), StatusCode::OK),
        ] {
            let headers = HeaderMap::from_iter([(IF_NONE_MATCH, known.parse().unwrap())]);
            let answer = serve(1, &headers);
            assert_eq!(answer.status(), status, "{known}");
            assert_eq!(answer.headers()[CACHE_CONTROL], "no-cache");
            assert_eq!(answer.headers()[CONTENT_SECURITY_POLICY], POLICY);
        }
        assert_eq!(TAGS.len(), FILES.len());
    }
}
