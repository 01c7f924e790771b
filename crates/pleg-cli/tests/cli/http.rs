//! What the HTTP API says to requests that it cannot use.

use serde_json::Value;

use crate::node::{Node, request};

#[test]
fn every_path_refuses_fields_that_it_does_not_know() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    for path in [
        "/metrics",
        "/healthz",
        "/livez",
        "/readyz",
        "/api/v1/health",
        "/api/v1/node/conditions",
        "/api/v1/pods",
        "/api/v1/pods/default/web-0",
        "/api/v1/runtime/pods",
        "/api/v1/events",
        "/api/v1/debug/about",
        "/api/v1/debug/recorder",
    ] {
        assert_eq!(daemon.get(path).0, 200, "{path}");
        let (status, body) = daemon.get(&format!("{path}?nope=1"));
        assert_eq!(status, 400, "{path}: {body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&body["error"], &body["field"]),
            (&"no such field".into(), &"nope".into()),
            "{path}"
        );
    }
    // As a kube-apiserver takes it.
    assert_eq!(
        daemon.get("/livez?verbose"),
        (200, "[+]ping ok\nlivez check passed\n".to_owned())
    );
}

#[test]
fn what_is_not_text_is_refused() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    for (query, field) in [
        ("pod=%ff%fe", "pod"),
        ("namespace=a%c3", "namespace"),
        ("pod=%zz", "pod"),
        ("pod=a%2", "pod"),
        ("pod=default/web-0&namespace=kube-system", "namespace"),
    ] {
        let (status, body) = daemon.get(&format!("/api/v1/pods?{query}"));
        assert_eq!(status, 400, "{query}: {body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["field"], field, "{query}: {body}");
    }
    assert_eq!(
        daemon
            .json("/api/v1/pods?pod=default%2Fweb%2D0")
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn errors_of_the_head_have_bodies_too() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    let many: String = "x-header: y\r\n".repeat(100);
    for (line, headers, expected) in [
        (format!("GET /{} HTTP/1.1", "x".repeat(60_000)), "", 431),
        ("GET /livez HTTP/1.1".to_owned(), many.as_str(), 431),
        ("NONSENSE".to_owned(), "", 400),
        ("GET /livez HTTP/1.1".to_owned(), "bad header\r\n", 400),
    ] {
        let (status, head, body) = request(&daemon.socket, &line, headers);
        assert_eq!(status, expected, "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        let error: Value = serde_json::from_str(&body).expect(&body);
        assert!(!error["error"].as_str().unwrap().is_empty(), "{body}");
    }
    assert_eq!(daemon.get("/livez").0, 200);
}
