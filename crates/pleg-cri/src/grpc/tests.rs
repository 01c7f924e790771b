use std::time::Duration;

use super::testing::{Prepared, connection, listen, serve, serve_one};
use super::*;
use crate::ErrorKind;

const PATH: &str = "/runtime.v1.RuntimeService/Version";

fn framed(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &len, message].concat()
}

async fn single(answer: Prepared) -> Result<Bytes, ErrorKind> {
    let (_directory, endpoint) = serve(answer);
    let answer = connection(endpoint)
        .call(PATH, Bytes::from_static(&[0; 5]), None)
        .await?;
    answer.single(1000).await
}

#[tokio::test]
async fn a_unary_answer_is_one_message_and_a_status() {
    assert_eq!(single(Prepared::ok(framed(b"abc"))).await.unwrap(), "abc");
    assert_eq!(single(Prepared::ok(framed(b""))).await.unwrap(), "");

    let malformed = |answer: Result<Bytes, ErrorKind>| matches!(answer, Err(ErrorKind::Malformed(_)));
    assert!(malformed(single(Prepared::ok(Vec::new())).await), "no message");
    assert!(malformed(
        single(Prepared::ok([framed(b"a"), framed(b"b")].concat())).await
    ));
    assert!(malformed(single(Prepared::ok(vec![0, 0, 0, 0, 9, 1])).await), "cut off");
    assert!(malformed(single(Prepared::ok(vec![1, 0, 0, 0, 0])).await), "compressed");
    let without_status = Prepared {
        body: framed(b"abc"),
        ..Prepared::default()
    };
    assert!(malformed(single(without_status).await));
    assert_eq!(
        single(Prepared::ok(framed(&[0; 1001]))).await,
        Err(ErrorKind::TooLarge { limit: 1000 })
    );
}

/// A runtime refuses an unknown call before it has read the request, on a thread of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_before_the_request_was_sent_is_the_answer() {
    let refusal = Prepared {
        head_status: Some("12"),
        ..Prepared::default()
    };
    let (_directory, endpoint) = serve(refusal);
    let connection = connection(endpoint);
    for _ in 0..2000 {
        let answer = connection.call(PATH, Bytes::from_static(&[0; 5]), None).await;
        let refused = match answer {
            Ok(answer) => answer.single(1000).await.map(drop),
            Err(error) => Err(error),
        };
        assert_eq!(refused, Err(ErrorKind::Unimplemented));
    }
}

/// Whatever was sent before it, and in the head as well.
#[tokio::test]
async fn a_status_decides_the_outcome() {
    let ended = |trailers| Prepared {
        body: framed(b"abc"),
        trailers,
        ..Prepared::default()
    };
    assert_eq!(
        single(ended(vec![("grpc-status", "5"), ("grpc-message", "no%20such%20thing")])).await,
        Err(ErrorKind::NotFound("no such thing".to_owned()))
    );
    let internal = ErrorKind::Status {
        code: "INTERNAL",
        message: String::new(),
    };
    let garbled = ended(vec![("grpc-status", "13"), ("grpc-status-details-bin", "no base64!")]);
    assert_eq!(single(garbled).await, Err(internal));
    for (code, name) in [("99", "UNKNOWN"), ("x", "UNKNOWN"), ("14", "UNAVAILABLE")] {
        let in_head = Prepared {
            head_status: Some(code),
            ..Prepared::default()
        };
        let message = String::new();
        assert_eq!(single(in_head).await, Err(ErrorKind::Status { code: name, message }));
    }
}

/// A proxy or another server on the socket answers like this: it has no gRPC status.
#[tokio::test]
async fn an_http_status_is_read_as_grpc_defines_it() {
    for (http, expected) in [
        (404, None),
        (503, Some("UNAVAILABLE")),
        (502, Some("UNAVAILABLE")),
        (403, Some("PERMISSION_DENIED")),
        (418, Some("UNKNOWN")),
    ] {
        let answer = Prepared {
            http,
            ..Prepared::default()
        };
        match (single(answer).await.unwrap_err(), expected) {
            (ErrorKind::Unimplemented, None) => {}
            (ErrorKind::Status { code, .. }, Some(expected)) => assert_eq!(code, expected),
            (kind, _) => panic!("{http}: {kind:?}"),
        }
    }
}

#[tokio::test]
async fn a_reset_call_fails_alone_unless_the_runtime_stops() {
    for (reason, expected) in [
        (h2::Reason::CANCEL, None),
        (h2::Reason::REFUSED_STREAM, None),
        (h2::Reason::ENHANCE_YOUR_CALM, Some("RESOURCE_EXHAUSTED")),
        (h2::Reason::PROTOCOL_ERROR, Some("INTERNAL")),
    ] {
        let answer = Prepared {
            reset: Some(reason),
            ..Prepared::default()
        };
        match (single(answer).await.unwrap_err(), expected) {
            (ErrorKind::Unreachable(_), None) => {}
            (ErrorKind::Status { code, .. }, Some(expected)) => assert_eq!(code, expected),
            (kind, _) => panic!("{reason}: {kind:?}"),
        }
    }
}

#[tokio::test]
async fn a_broken_connection_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let (endpoint, listener) = listen(directory.path());
    let answer = Prepared::ok(framed(b"abc"));
    tokio::spawn(async move {
        loop {
            serve_one(&listener, &answer, 2).await;
        }
    });
    let connection = connection(endpoint);
    let (mut answered, mut failed) = (0, 0);
    while answered < 6 {
        let call = connection.call(PATH, Bytes::from_static(&[0; 5]), None);
        match async { call.await?.single(10).await }.await {
            Ok(answer) => {
                assert_eq!(answer, "abc");
                answered += 1;
            }
            // Sent while the server was closing, which happens twice; the call after it has a new connection.
            Err(kind) if kind.is_unreachable() && failed < 2 => failed += 1,
            Err(kind) => panic!("{kind}"),
        }
    }
}

#[tokio::test]
async fn a_runtime_that_is_away_is_unreachable() {
    let absent = connection(crate::Endpoint::unix("/nonexistent/cri.sock"));
    let answer = absent.call(PATH, Bytes::from_static(&[0; 5]), None).await;
    assert!(matches!(answer, Err(ErrorKind::Unreachable(_))), "{answer:?}");
}

#[test]
fn a_timeout_has_at_most_eight_digits() {
    assert_eq!(timeout_header(Duration::from_secs(10)), "10000m");
    assert_eq!(timeout_header(Duration::from_micros(3)), "1m");
    assert_eq!(timeout_header(Duration::MAX), "99999999m");
}

#[test]
fn codes_have_their_names() {
    assert_eq!(
        (code_name(0), code_name(16), code_name(17)),
        ("OK", "UNAUTHENTICATED", "UNKNOWN")
    );
}
