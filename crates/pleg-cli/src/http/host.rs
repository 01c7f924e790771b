//! Refuses requests whose `Host` is not a name of this daemon.
//!
//! With DNS rebinding, a web page points its own name at 127.0.0.1 and reads, through a browser on this machine, whatever answers there.
//! The browser still sends the page's name as `Host`, so requests for any other name than ours are refused. Browsers cannot reach a unix
//! socket, but a tunnel (`ssh -L 8080:/run/pleg/pleg.sock`) makes a TCP address of it: there, names with a dot are refused, which are
//! those of the DNS. Programs that talk to a unix socket send `localhost`, a word of their own, or the path.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
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

/// Wraps the router of a unix socket: names of the DNS do not reach it.
pub(super) fn guarded_unix(router: Router) -> Router {
    router.layer(from_fn(async |request: Request, next: Next| {
        let foreign = hosts(request.uri(), request.headers()).find(|host| is_of_dns(host));
        match foreign {
            None => next.run(request).await,
            Some(host) => misdirected(&host, "localhost"),
        }
    }))
}

async fn check(State(own): State<Arc<SocketAddr>>, request: Request, next: Next) -> Response {
    match foreign(request.uri(), request.headers(), *own) {
        None => next.run(request).await,
        Some(host) => misdirected(&host, &format!("localhost or {own}")),
    }
}

fn misdirected(host: &str, instead: &str) -> Response {
    let host: String = host.chars().take(64).collect();
    let host = quoted(&host);
    let words = format!("the host {host} is not served here: use {instead}");
    error(StatusCode::MISDIRECTED_REQUEST, &words)
}

/// The requested host, if it is not ours.
fn foreign(uri: &Uri, headers: &HeaderMap, own: SocketAddr) -> Option<String> {
    hosts(uri, headers).find(|host| !is_own(host, own))
}

/// A request may name its host in the URI and in the header; an HTTP/1.0 request may name none.
fn hosts(uri: &Uri, headers: &HeaderMap) -> impl Iterator<Item = String> {
    let in_headers = headers
        .get_all(HOST)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let in_uri = uri.authority().map(ToString::to_string);
    in_headers.chain(in_uri)
}

/// A name that a web page elsewhere could have pointed at this machine.
fn is_of_dns(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        // A path, as some clients of unix sockets send it.
        return false;
    };
    let name = authority.host();
    let in_dns = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    name.contains('.') && name.parse::<IpAddr>().is_err() && name.chars().all(in_dns)
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
    fn through_a_tunnel_only_names_of_the_dns_are_refused() {
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "a.b.",
            "1.2.3.4.nip.io",
        ] {
            assert!(is_of_dns(host), "{host}");
        }
        for host in [
            "",
            "localhost",
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.0.0.7",
            "pleg",
            "x",
            "%2Frun%2Fpleg%2Fpleg.sock",
            "/run/pleg/pleg.sock",
        ] {
            assert!(!is_of_dns(host), "{host}");
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
