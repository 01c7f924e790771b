//! The web pages, as they are served: headers, caches, and where they are not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::node::{Node, request};

const PAGES: [&str; 3] = ["/", "/pods/default/web-0", "/?q=web&sort=-age"];

#[test]
fn pages_have_a_strict_policy_and_are_revalidated() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    for path in PAGES
        .into_iter()
        .chain(["/assets/main.js", "/assets/style.css", "/assets/icon.svg"])
    {
        let (status, head, body) = request(&daemon.socket, &format!("GET {path} HTTP/1.1"), "");
        assert_eq!(status, 200, "{path}: {body}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "cache-control: no-cache",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(header), "{path} has no {header}: {head}");
        }
        let tag = head
            .split("etag: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next())
            .unwrap();
        let known = format!("If-None-Match: {tag}\r\n");
        let (status, head, body) = request(&daemon.socket, &format!("GET {path} HTTP/1.1"), &known);
        assert_eq!((status, body.as_str()), (304, ""), "{path}");
        assert!(head.contains(tag), "{head}");
    }
    let (status, head, _) = request(&daemon.socket, "HEAD / HTTP/1.1", "");
    assert!(
        status == 200 && head.contains("content-type: text/html; charset=utf-8"),
        "{head}"
    );
    for path in [
        "/assets/nope.js",
        "/assets/index.html",
        "/assets/..%2Fweb.rs",
        "/assets/",
    ] {
        assert_eq!(daemon.get(path).0, 404, "{path}");
    }
    assert_eq!(daemon.get("/assets/main.js?v=1").0, 400);
    assert_eq!(
        request(&daemon.socket, "POST / HTTP/1.1", "Content-Length: 0\r\n").0,
        405
    );
}

#[test]
fn names_of_the_dns_do_not_reach_a_tunnelled_socket() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    for (host, status) in [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("%2Frun%2Fpleg%2Fpleg.sock", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(&daemon.socket).unwrap();
        write!(
            stream,
            "GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
}

fn over_tcp(port: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(port).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn pages_are_not_served_to_other_machines() {
    let node = Node::with_pods(1);
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let open = format!("0.0.0.0:{port}");
    let daemon = node.daemon(&["--listen-tcp", &open, "--insecure-listen-any"]);
    let local = format!("127.0.0.1:{port}");
    for path in PAGES.into_iter().chain(["/assets/main.js"]) {
        let answer = over_tcp(&local, path);
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.contains("ssh -L"),
            "{path}: {answer}"
        );
    }
    assert!(over_tcp(&local, "/livez").starts_with("HTTP/1.1 200 "));
    assert_eq!(daemon.get("/").0, 200);
}

#[test]
fn summaries_agree_with_pods() {
    let node = Node::with_pods(3);
    let daemon = node.daemon(&[]);
    let pods = daemon.json("/api/v1/pods");
    for path in ["/api/v1/pods?summary", "/api/v1/runtime/pods?summary=true"] {
        let rows = daemon.json(path);
        assert_eq!(rows.as_array().unwrap().len(), 3, "{path}");
        for (row, pod) in rows.as_array().unwrap().iter().zip(pods.as_array().unwrap()) {
            for field in ["pod", "ips", "state", "running", "total", "restarts"] {
                assert_eq!(row[field], pod[field], "{path}: {field}");
            }
            assert_eq!(row["created_at"], pod["sandboxes"][0]["created_at"]);
            assert!(
                row["changed_at"].is_string() && row.get("containers").is_none(),
                "{row}"
            );
        }
    }
    let (status, body) = daemon.get("/api/v1/pods?summary=maybe");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["field"]), (400, &"summary".into()));
}
