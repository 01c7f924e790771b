//! HTTP GET requests to containers, for probes and hooks; certificates are not verified.
//!
//! Redirects are followed as in the kubelet: on the same host only, whatever the port and the scheme. A container that redirects elsewhere,
//! such as to a login page, has answered; another server's answer would say nothing about it.

use std::net::IpAddr;
use std::sync::LazyLock;

use http::{StatusCode, Uri, header};
use http_body_util::Empty;
use hyper::body::Bytes;
use tokio::net::TcpStream;

use super::NetError;
use super::exchange::exchange;
use super::tls::{Tls, TlsSetupError};
use crate::manifest::HttpGet;

/// Requests until redirects are no longer followed.
const MAX_REQUESTS: usize = 10;

static UNVERIFIED: LazyLock<Result<Tls, TlsSetupError>> = LazyLock::new(Tls::unverified);

/// The answer of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Where the container redirects to, if that was not followed because it is another host.
    pub(crate) elsewhere: Option<String>,
}

/// The host to connect to: a name from the manifest, or the pod's address.
pub(crate) fn host_or_pod_ip(host: Option<&str>, ip: Option<IpAddr>) -> Result<String, NetError> {
    match (host, ip) {
        (Some(host), _) => Ok(host.to_owned()),
        (None, Some(ip)) => Ok(ip.to_string()),
        (None, None) => Err(NetError::NoAddress),
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

pub(crate) async fn connect(host: Option<&str>, port: u16, ip: Option<IpAddr>) -> Result<TcpStream, NetError> {
    let host = host_or_pod_ip(host, ip)?;
    let connected = TcpStream::connect((host.as_str(), port)).await;
    connected.map_err(|source| NetError::Connect { host, port, source })
}

/// Sends a GET request, follows redirects, and returns the status of the last response. Callers set the timeout.
pub(crate) async fn get(get: &HttpGet, ip: Option<IpAddr>) -> Result<Answer, NetError> {
    let host = host_or_pod_ip(get.host.as_deref(), ip)?;
    let mut next = get.clone();
    for _ in 0..MAX_REQUESTS {
        let (status, location) = get_once(&next, &host).await?;
        let Some(location) = location else {
            return Ok(Answer {
                status,
                elsewhere: None,
            });
        };
        match redirected(&next, &host, &location)? {
            Some(request) => next = request,
            None => {
                return Ok(Answer {
                    status,
                    elsewhere: Some(location),
                });
            }
        }
    }
    Err(NetError::TooManyRedirects(MAX_REQUESTS))
}

/// One request: the status, and where the response redirects to.
async fn get_once(get: &HttpGet, host: &str) -> Result<(StatusCode, Option<String>), NetError> {
    let stream = connect(Some(host), get.port, None).await?;
    let request = request(get, host)?;
    // The body does not matter, and may be endless.
    let response = if get.tls {
        let stream = UNVERIFIED.clone()?.connect(host, stream).await?;
        exchange(stream, request).await?.response
    } else {
        exchange(stream, request).await?.response
    };
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(header::LOCATION).filter(|_| is_redirect);
    let location = location.map(|location| String::from_utf8_lossy(location.as_bytes()).into_owned());
    Ok((response.status(), location.filter(|location| !location.is_empty())))
}

/// The request that a redirect asks for; none if it is to another host.
fn redirected(get: &HttpGet, host: &str, location: &str) -> Result<Option<HttpGet>, NetError> {
    let invalid = || NetError::Redirect(location.to_owned());
    let mut next = get.clone();
    let absolute = match location.strip_prefix("//") {
        Some(rest) => format!("{}://{rest}", if get.tls { "https" } else { "http" }),
        None => location.to_owned(),
    };
    if !absolute.contains("://") {
        next.path = joined(&get.path, location);
        return Ok(Some(next));
    }
    let uri: Uri = absolute.parse().map_err(|_| invalid())?;
    next.tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(invalid()),
    };
    if uri.host().unwrap_or_default().trim_matches(['[', ']']) != host {
        return Ok(None);
    }
    next.port = uri.port_u16().unwrap_or(if next.tls { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    path.clone_into(&mut next.path);
    // A virtual host was that of the first request.
    next.headers
        .retain(|(name, _)| !name.eq_ignore_ascii_case(header::HOST.as_str()));
    Ok(Some(next))
}

/// A relative reference, without its fragment, as seen from a path.
fn joined(path: &str, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if location.starts_with('/') {
        return location.to_owned();
    }
    if location.starts_with('?') {
        return format!("{path}{location}");
    }
    let directory = path.rfind('/').map_or("/", |at| &path[..=at]);
    format!("{directory}{location}")
}

fn request(get: &HttpGet, host: &str) -> Result<http::Request<Empty<Bytes>>, http::Error> {
    let mut request = http::Request::get(&get.path);
    let is_set = |name: &http::HeaderName| {
        let mut headers = get.headers.iter();
        headers.any(|(key, _)| key.eq_ignore_ascii_case(name.as_str()))
    };
    for (name, value) in [
        (header::HOST, authority(host, get.port)),
        (
            header::USER_AGENT,
            concat!("pleg-probe/", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
        (header::ACCEPT, "*/*".to_owned()),
        (header::CONNECTION, "close".to_owned()),
    ] {
        // A manifest may set others, such as the name of a virtual host.
        if !is_set(&name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in &get.headers {
        request = request.header(name, value);
    }
    request.body(Empty::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_their_host() {
        let first = HttpGet {
            tls: false,
            host: None,
            port: 8080,
            path: "/a/b?x=1".to_owned(),
            headers: vec![("host".to_owned(), "shop".to_owned()), ("X".to_owned(), "1".to_owned())],
        };
        let to = |location: &str| redirected(&first, "10.0.0.7", location).map_err(|error| error.to_string());
        for (location, tls, port, path, headers) in [
            ("/c", false, 8080, "/c", 2),
            ("c?y=2#z", false, 8080, "/a/c?y=2", 2),
            ("?y=2", false, 8080, "/a/b?y=2", 2),
            ("http://10.0.0.7:9090/c", false, 9090, "/c", 1),
            ("https://10.0.0.7/c", true, 443, "/c", 1),
            ("http://10.0.0.7", false, 80, "/", 1),
            ("//10.0.0.7/c", false, 80, "/c", 1),
        ] {
            let next = to(location).unwrap().unwrap();
            let found = (next.tls, next.port, next.path.as_str(), next.headers.len());
            assert_eq!(found, (tls, port, path, headers), "{location}");
        }
        for elsewhere in ["https://login.example.com/", "//10.0.0.8/c", "http://[::1]:8080/"] {
            assert_eq!(to(elsewhere), Ok(None), "{elsewhere}");
        }
        for invalid in ["ftp://10.0.0.7/", "http://:x:/"] {
            let error = to(invalid).unwrap_err();
            assert_eq!(
                error,
                format!("the server redirects to {invalid:?}, which is not an HTTP URL")
            );
        }
        let six = HttpGet {
            port: 80,
            ..first.clone()
        };
        assert!(redirected(&six, "::1", "http://[::1]/x").unwrap().is_some());
    }
}
