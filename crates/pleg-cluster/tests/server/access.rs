//! Who gets an answer.

use http::{HeaderMap, StatusCode};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::node::{PATIENCE, ServedMachine, text};
use crate::pki::Ca;

#[tokio::test]
async fn nobody_is_anonymous() {
    let machine = ServedMachine::start().await;
    for path in ["/metrics", "/healthz", "/pods", "/no/such/path", "/containerLogs/a/b/c"] {
        let (status, body) = text(machine.send(None, None, "GET", path, HeaderMap::new()).await).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(body, "Unauthorized: neither a client certificate nor a bearer token\n");
    }
    let (status, body) = machine.get_by_token("bad", "/metrics").await;
    assert_eq!(
        (status, body.as_str()),
        (
            StatusCode::UNAUTHORIZED,
            "Unauthorized: the bearer token is not valid\n"
        )
    );
    assert_eq!(machine.api.reviews.lock().access, [] as [&str; 0]);
    machine.stop().await;
}

#[tokio::test]
async fn certificates_must_be_of_the_cluster() {
    let machine = ServedMachine::start().await;
    machine.api.allow("alice get metrics");
    let alice = machine.ca.client("alice", "devs");
    assert_eq!(
        machine.get(&alice, "/metrics").await,
        (StatusCode::OK, "pleg_up 1\n".to_owned())
    );

    let of_another_ca = Ca::new().client("alice", "devs");
    let expired = machine.ca.client_with("alice", "devs", |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    });
    let of_a_server = machine.ca.client_with("alice", "devs", |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let nameless = machine.ca.client("", "system:masters");
    for (bad, why) in [
        (&of_another_ca, "BadSignature"),
        (&expired, "xpired"),
        (&of_a_server, "extended key usage"),
        (&nameless, "common name"),
    ] {
        let (status, body) = machine.get(bad, "/metrics").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
        assert!(
            body.starts_with("Unauthorized: client certificate: ") && body.contains(why),
            "{why}: {body}"
        );
    }
    // A good token makes up for a bad certificate.
    let by_both = machine
        .send(
            Some(&expired),
            Some("token-of-alice"),
            "GET",
            "/metrics",
            HeaderMap::new(),
        )
        .await;
    assert_eq!(text(by_both).await.0, StatusCode::OK);
    machine.stop().await;
}

#[tokio::test]
async fn the_api_server_decides_and_is_not_asked_twice() {
    let machine = ServedMachine::start().await;
    let api = &machine.api;
    api.allow("bob get metrics");
    api.allow("carol get proxy");
    for _ in 0..3 {
        assert_eq!(machine.get_by_token("token-of-bob", "/metrics").await.0, StatusCode::OK);
    }
    let (status, body) = machine.get_by_token("token-of-bob", "/pods").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(
        body,
        "Forbidden (user=bob, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    );
    assert_eq!(
        machine.get_by_token("token-of-bob", "/pods").await.0,
        StatusCode::FORBIDDEN
    );
    // A right to all of the node includes each part of it, but reading is not running commands.
    assert_eq!(machine.get_by_token("token-of-carol", "/pods").await.0, StatusCode::OK);
    assert_eq!(
        machine.get_by_token("token-of-carol", "/exec/default/a-n/app").await.0,
        StatusCode::FORBIDDEN
    );
    let asked = [
        "bob get metrics",
        "bob get pods",
        "bob get proxy",
        "carol get pods",
        "carol get proxy",
        "carol create proxy",
    ];
    assert_eq!(api.reviews.lock().access, asked);
    assert_eq!(api.reviews.lock().tokens, 2);

    // Without the API server, what is known counts on; what is not known is no refusal.
    api.reviews.lock().is_broken = true;
    assert_eq!(machine.get_by_token("token-of-bob", "/metrics").await.0, StatusCode::OK);
    let (status, body) = machine.get_by_token("token-of-dave", "/metrics").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        body.starts_with("cannot authenticate the request: cannot review a token: etcd is away"),
        "{body}"
    );
    let (status, body) = machine.get_by_token("token-of-bob", "/stats/summary").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        body.starts_with("cannot authorize the request of bob: cannot review access to nodes/stats"),
        "{body}"
    );
    machine.stop().await;
}

#[tokio::test]
async fn connections_that_say_nothing_end_with_the_server() {
    let machine = ServedMachine::start().await;
    let mut silent = tokio::net::TcpStream::connect(machine.address).await.unwrap();
    let mut idle = machine.connect(None).await.unwrap();
    machine.stop().await;
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, silent.read_to_end(&mut rest))
        .await
        .expect("a silent connection stays open");
    let _ = timeout(PATIENCE, idle.read_to_end(&mut rest))
        .await
        .expect("an idle connection stays open");
}
