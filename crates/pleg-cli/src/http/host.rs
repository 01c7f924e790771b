//! Refuses requests over TCP whose `Host` is not a name of this daemon.
//!
//! With DNS rebinding, a web page points its own name at 127.0.0.1 and reads, through a browser on this machine, whatever answers there.
//! The browser still sends the page's name as `Host`, so requests for any other name than ours are refused. Browsers cannot reach a unix
//! socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};
use pleg_cri::error::quoted;

use super::routes::error;

/// Wraps `router`: only requests for `own` or for a loopback name reach it.
pub(super) fn guarded(router: Router, own: SocketAddr) -> Router {
    router.layer(from_fn_with_state(Arc::new(own), check))
}

async fn check(State(own): State<Arc<SocketAddr>>, request: Request, next: Next) -> Response {
    match foreign(request.uri(), request.headers(), *own) {
        None => next.run(request).await,
        Some(host) => {
            let host: String = host.chars().take(64).collect();
            let host = quoted(&host);
            let words = format!("the host {host} is not served here: use localhost or {own}");
            error(StatusCode::MISDIRECTED_REQUEST, &words)
        }
    }
}

/// The requested host, if it is not ours. A request may name it in the URI and in the header; an HTTP/1.0 request may name none.
fn foreign(uri: &Uri, headers: &HeaderMap, own: SocketAddr) -> Option<String> {
    let in_headers = headers
        .get_all(HOST)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let in_uri = uri.authority().map(ToString::to_string);
    in_headers.chain(in_uri).find(|host| !is_own(host, own))
}

fn is_own(host: &str, own: SocketAddr) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.is_loopback() || address == own.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_are_those_of_the_loopback_and_the_address() {
        let own = "10.0.0.7:10255".parse().unwrap();
        for host in ["localhost", "LocalHost:1", "127.0.0.1:10255", "[::1]", "10.0.0.7:10255"] {
            assert!(is_own(host, own), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:10255",
            "10.0.0.8",
            "a b",
            "::1",
        ] {
            assert!(!is_own(host, own), "{host}");
        }
    }

    #[test]
    fn both_places_count() {
        let own = "127.0.0.1:1".parse().unwrap();
        let headers = HeaderMap::from_iter([(HOST, "localhost".parse().unwrap())]);
        let plain = Uri::from_static("/metrics");
        assert_eq!(foreign(&plain, &headers, own), None);
        assert_eq!(foreign(&plain, &HeaderMap::new(), own), None);
        let absolute = Uri::from_static("http://evil.example/metrics");
        assert_eq!(foreign(&absolute, &headers, own).as_deref(), Some("evil.example"));
        let mut two = headers;
        two.append(HOST, "evil.example".parse().unwrap());
        assert_eq!(foreign(&plain, &two, own).as_deref(), Some("evil.example"));
    }
}
