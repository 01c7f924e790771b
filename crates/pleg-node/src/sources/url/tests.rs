//! A real server on a real port; tokio's time is paused, so that 20 s pass at once.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::manifest::MAX_BYTES;

fn pod(name: &str) -> String {
    format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: x}}]}}}}")
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Serves these answers, one per connection, and then the last one again and again. An empty one means no answer.
async fn serve(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods?node=n", listener.local_addr().unwrap());
    let answers = Mutex::new(VecDeque::from(answers));
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"GET /pods?node=n HTTP/1.1\r\n"));
            let answer = {
                let mut answers = answers.lock();
                if answers.len() > 1 {
                    answers.pop_front()
                } else {
                    answers.front().cloned()
                }
            };
            match answer {
                Some(answer) if !answer.is_empty() => _ = stream.write_all(answer.as_bytes()).await,
                _ => silent.push(stream),
            }
        }
    });
    url
}

async fn snapshots(answers: Vec<String>, count: usize) -> Vec<(Vec<String>, Vec<String>, bool)> {
    let source = UrlSource::new(&serve(answers).await, NodeName::new("n").unwrap()).unwrap();
    let (sender, mut snapshots) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let running = tokio::spawn(source.run(sender, stop.clone()));
    let mut seen = Vec::new();
    for _ in 0..count {
        let snapshot = snapshots.recv().await.unwrap();
        let names = snapshot
            .pods
            .iter()
            .map(|desired| desired.pod.id.name.to_string())
            .collect();
        let problems = snapshot.problems.into_iter().map(|problem| problem.what).collect();
        seen.push((names, problems, snapshot.complete));
    }
    let more = tokio::time::timeout(Duration::from_mins(5), snapshots.recv()).await;
    assert!(more.is_err(), "{seen:?}, {more:?}");
    stop.cancel();
    running.await.unwrap();
    seen
}

#[tokio::test(start_paused = true)]
async fn what_the_server_has_is_desired_and_trouble_changes_nothing() {
    let list = format!("{{apiVersion: v1, kind: PodList, items: [{}, {}]}}", pod("a"), pod("b"));
    let seen = snapshots(
        vec![
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_owned(),
            ok(&pod("a")),
            ok(&pod("a")),
            String::new(),
            ok(&pod("a")),
            ok("{"),
            ok("{"),
            ok(&list),
            ok(&format!("{}\n---\n{{kind: x}}", pod("b"))),
        ],
        7,
    )
    .await;
    let names = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let told = |n: usize| seen[n].1.join("");
    assert_eq!((&seen[0].0, seen[0].2), (&names(&[]), false));
    assert!(told(0).contains("the server returned 503"), "{seen:?}");
    assert_eq!(seen[1], (names(&["a-n"]), names(&[]), true));
    assert_eq!(
        told(2),
        "cannot be fetched: no complete answer within 10 s. Its pod is kept as it was"
    );
    assert_eq!(seen[3], (names(&["a-n"]), names(&[]), true));
    assert!(
        told(4).starts_with("is neither YAML nor JSON") && seen[4].0 == ["a-n"],
        "{seen:?}"
    );
    assert_eq!(seen[5], (names(&["a-n", "b-n"]), names(&[]), true));
    assert!(told(6).starts_with("document 2: kind:"), "{seen:?}");
    assert_eq!(seen[6].0, ["b-n", "a-n"]);
}

/// A problem of one pod does not affect others.
#[tokio::test(start_paused = true)]
async fn beside_a_pod_that_is_refused_the_others_change() {
    let bad = "{apiVersion: v1, kind: Pod, metadata: {name: bad}, spec: {tolerations: []}}";
    let with = |good: &str| ok(&format!("{good}\n---\n{bad}"));
    let seen = snapshots(vec![with(&pod("a")), with(&pod("b")), with(&pod("b"))], 2).await;
    assert_eq!((&seen[0].0[..], seen[0].2), (&["a-n".to_owned()][..], true));
    assert_eq!(seen[1].0, ["b-n", "a-n"]);
    assert_eq!(seen[0].1, seen[1].1);
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_us_stays_while_the_server_is_down() {
    let node = NodeName::new("n").unwrap();
    let url = serve(vec![
        "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
        ok(&pod("b")),
    ])
    .await;
    let pods = static_pods::read(pod("a").as_bytes(), &node, ConfigSource::Http)
        .unwrap()
        .pods;
    let pods = |origin: &str| {
        let desired = |pod: &Arc<Pod>| DesiredPod {
            origin: origin.into(),
            pod: Arc::clone(pod),
        };
        pods.iter().map(desired).collect::<Vec<_>>()
    };
    let source = UrlSource::new(&url, node).unwrap();
    let source = source.with_known(&pods("/etc/a.yaml")).with_known(&pods(&url));
    let (sender, mut snapshots) = mpsc::channel(1);
    let stop = CancellationToken::new();
    tokio::spawn(source.run(sender, stop.clone()));
    let (first, second) = (snapshots.recv().await.unwrap(), snapshots.recv().await.unwrap());
    assert_eq!((first.pods, first.complete), (pods(&url), true));
    assert_eq!(&*second.pods[0].pod.id.name, "b-n");
    stop.cancel();
}

/// A server that is not trusted does not decide what runs here.
#[tokio::test]
async fn only_trusted_https_servers_are_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = crate::net::tls::testing::acceptor();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(ok(&pod("a")).as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let ask = async |host: &str, tls: &Tls| {
        let uri: http::Uri = format!("https://{host}:{}/pods", address.port()).parse().unwrap();
        fetch(&uri, Some(tls)).await.map_err(|error| with_causes(&error))
    };
    let ours = Tls::with_roots(vec![crate::net::tls::testing::certificate()]).unwrap();
    assert_eq!(ask("127.0.0.1", &ours).await.unwrap(), pod("a").as_bytes());
    assert_eq!(ask("localhost", &ours).await.unwrap(), pod("a").as_bytes());
    let error = ask("127.0.0.1", &Tls::with_roots(Vec::new()).unwrap())
        .await
        .unwrap_err();
    assert!(
        error.starts_with("TLS handshake with 127.0.0.1 failed: ") && error.contains("certificate"),
        "{error}"
    );
    // A name that is not in the certificate.
    let error = ask("127.0.0.2", &ours).await.unwrap_err();
    assert!(
        error.starts_with("cannot connect to ") || error.contains("not valid for name"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_huge_answer_is_not_read() {
    let huge = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}",
        1_u64 << 40,
        "#".repeat(MAX_BYTES + 1)
    );
    let seen = snapshots(vec![huge], 1).await;
    assert!(seen[0].1[0].contains("length limit exceeded"), "{seen:?}");
}

#[test]
fn urls_are_http() {
    let new = |url| UrlSource::new(url, NodeName::new("n").unwrap()).map(|source| source.origin().to_string());
    assert_eq!(new("http://example.com/x"), Ok("http://example.com/x".to_owned()));
    assert_eq!(new("http://[::1]:8080"), Ok("http://[::1]:8080/".to_owned()));
    assert_eq!(new("http://a:b@example.com/"), Err(UrlError::Credentials));
    for url in ["", "/x", "example", "http://", "file:///etc/x"] {
        assert!(new(url).is_err(), "{url}");
    }
}
