//! HTTP GET that follows redirects, as the kubelet's probes do: to the same host, and at most ten requests in all. A redirect to another host
//! is an answer: the container works, and the other host is not its business.

use std::net::IpAddr;

use http::header::LOCATION;
use http::{HeaderMap, StatusCode, Uri};

use super::NetError;
use super::http_get::{host_or_pod_ip, read_at_most, start_get};
use crate::manifest::HttpGet;

/// Most requests of one probe.
const MAX_REQUESTS: usize = 10;
/// As much of a body as a kubelet reads.
const MAX_BODY: usize = 10 << 10;

/// The last response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Set if it redirects to another host, which is not asked.
    pub(crate) elsewhere: Option<Elsewhere>,
}

/// A redirect that was not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    /// Where to.
    pub(crate) location: String,
    /// What the response said beside that.
    pub(crate) body: String,
}

/// Sends a GET request, and follows redirects. Callers set the timeout.
pub(crate) async fn get_following(first: &HttpGet, ip: Option<IpAddr>) -> Result<Answer, NetError> {
    let host = host_or_pod_ip(first.host.as_deref(), ip)?;
    let mut request = first.clone();
    for _ in 0..MAX_REQUESTS {
        let exchange = start_get(&request, ip).await?;
        let status = exchange.response.status();
        let Some(location) = redirect(status, exchange.response.headers()) else {
            return Ok(Answer {
                status,
                elsewhere: None,
            });
        };
        match resolve(&request, &host, &location) {
            Some(Target::SameHost(next)) => request = *next,
            Some(Target::Elsewhere) => {
                let body = read_at_most(exchange, MAX_BODY).await;
                return Ok(Answer {
                    status,
                    elsewhere: Some(Elsewhere { location, body }),
                });
            }
            None => return Err(NetError::BadRedirect(location)),
        }
    }
    Err(NetError::TooManyRedirects(MAX_REQUESTS))
}

/// Where a response redirects to. A redirect without a place is an answer like any other.
fn redirect(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let redirects = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = headers.get(LOCATION).filter(|_| redirects)?;
    let text = String::from_utf8_lossy(location.as_bytes()).into_owned();
    (!text.is_empty()).then_some(text)
}

enum Target {
    SameHost(Box<HttpGet>),
    Elsewhere,
}

/// The request that a redirect asks for; none if it is not HTTP.
fn resolve(from: &HttpGet, host: &str, location: &str) -> Option<Target> {
    // What follows a # is for browsers.
    let location = location.split('#').next().unwrap_or(location);
    let scheme = if from.tls { "https" } else { "http" };
    let absolute = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else {
        let path = relative(&from.path, location);
        let next = HttpGet { path, ..from.clone() };
        return Some(Target::SameHost(Box::new(next)));
    };
    let uri: Uri = absolute.parse().ok()?;
    let tls = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    // Brackets are part of an IPv6 address only in a URI.
    let to = uri.host()?.trim_matches(['[', ']']);
    if !to.eq_ignore_ascii_case(host) {
        return Some(Target::Elsewhere);
    }
    let mut headers = from.headers.clone();
    // The name of a virtual host is meant for the first place only.
    headers.retain(|(name, _)| !name.eq_ignore_ascii_case("host"));
    Some(Target::SameHost(Box::new(HttpGet {
        tls,
        host: from.host.clone(),
        port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
        path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        headers,
    })))
}

/// A path that is relative to another one.
fn relative(base: &str, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let base = base.split('?').next().unwrap_or(base);
    if path.starts_with('?') {
        return format!("{base}{path}");
    }
    let directory = base.rfind('/').map_or("/", |at| &base[..=at]);
    format!("{directory}{path}")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn request(port: u16, path: &str) -> HttpGet {
        HttpGet {
            tls: false,
            host: None,
            port,
            path: path.to_owned(),
            headers: vec![("Host".to_owned(), "shop".to_owned())],
        }
    }

    /// A server that redirects `/N` to what this returns, and answers everything else with 204. The requests come back.
    async fn server(to: fn(u16, &str) -> Option<String>) -> (u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = vec![0; 4096];
                let read = stream.read(&mut buffer).await.unwrap();
                let request = String::from_utf8_lossy(&buffer[..read]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = match to(port, &path) {
                    Some(place) => format!("HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 5\r\n\r\nthere"),
                    None => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
                };
                let _ = sender.send(request);
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (port, requests)
    }

    #[tokio::test]
    async fn redirects_on_the_same_host_are_followed() {
        let (port, mut requests) = server(|port, path| match path {
            "/a/start" => Some("next?x=1".to_owned()),
            "/a/next?x=1" => Some(format!("http://127.0.0.1:{port}/end#top")),
            _ => None,
        })
        .await;
        let answer = get_following(&request(port, "/a/start"), HERE).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.elsewhere), (204, None));
        let mut seen = Vec::new();
        while let Ok(request) = requests.try_recv() {
            let is_virtual = request.to_lowercase().contains("host: shop\r\n");
            seen.push((request.split(' ').nth(1).unwrap().to_owned(), is_virtual));
        }
        // A relative redirect keeps the name of the virtual host, a full one does not.
        let expected = [("/a/start", true), ("/a/next?x=1", true), ("/end", false)];
        assert_eq!(seen, expected.map(|(path, is)| (path.to_owned(), is)));
    }

    #[tokio::test]
    async fn another_host_is_not_asked() {
        let (port, _requests) = server(|_, _| Some("http://example.com/login".to_owned())).await;
        let answer = get_following(&request(port, "/"), HERE).await.unwrap();
        assert_eq!(answer.status.as_u16(), 302);
        let elsewhere = answer.elsewhere.unwrap();
        assert_eq!(
            (elsewhere.location.as_str(), elsewhere.body.as_str()),
            ("http://example.com/login", "there")
        );
    }

    #[tokio::test]
    async fn a_circle_ends() {
        let (port, mut requests) = server(|_, _| Some("/again".to_owned())).await;
        let error = get_following(&request(port, "/"), HERE).await.unwrap_err();
        assert_eq!(error.to_string(), "stopped after 10 redirects");
        let mut count = 0;
        while requests.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, MAX_REQUESTS);
    }

    #[test]
    fn places_are_resolved() {
        let from = request(8080, "/a/b?q");
        for (location, expected) in [
            ("/x", Some((false, 8080, "/x"))),
            ("x", Some((false, 8080, "/a/x"))),
            ("?y=1", Some((false, 8080, "/a/b?y=1"))),
            ("https://10.0.0.7/x", Some((true, 443, "/x"))),
            ("//10.0.0.7:81", Some((false, 81, "/"))),
            ("http://10.0.0.8/x", None),
        ] {
            let found = match resolve(&from, "10.0.0.7", location).unwrap() {
                Target::SameHost(next) => Some((next.tls, next.port, next.path.clone())),
                Target::Elsewhere => None,
            };
            let expected = expected.map(|(tls, port, path)| (tls, port, path.to_owned()));
            assert_eq!(found, expected, "{location}");
        }
        assert!(resolve(&from, "10.0.0.7", "ftp://10.0.0.7/x").is_none());
    }
}
