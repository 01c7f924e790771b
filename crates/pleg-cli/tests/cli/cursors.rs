//! Readers that come back to a daemon that has restarted.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use pleg_sim::Ending;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::node::{Daemon, LONG, Node, pleg, wait_for};

fn events(daemon: &Daemon, query: &str) -> Vec<Value> {
    let (status, body) = daemon.get(&format!("/api/v1/events{query}"));
    assert_eq!(status, 200, "{body}");
    body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn first_events(daemon: &Daemon, count: usize) -> Vec<Value> {
    wait_for("the first events", || {
        events(daemon, "").last().is_some_and(|event| event["seq"] == count)
    });
    events(daemon, "")
}

fn instance(daemon: &Daemon) -> String {
    daemon.json("/api/v1/health")["instance"].as_str().unwrap().to_owned()
}

/// A daemon that ended, and one that has taken its place and has told as much again: the cursor of a reader that was at `seq`.
fn restarted(node: &Node, seq: u64, args: &[&str]) -> (String, Daemon) {
    let mut daemon = node.daemon(args);
    let last = first_events(&daemon, 6).pop().unwrap();
    assert_eq!(last["instance"], instance(&daemon).as_str());
    let cursor = format!("{}-{seq}", instance(&daemon));
    daemon.running.signal(Signal::TERM);
    assert_eq!(daemon.running.end().0, Some(0));
    node.sim
        .world()
        .exit(&"default/web-1".parse().unwrap(), Some("app"), Ending::Exit(3))
        .unwrap();
    let daemon = node.daemon(args);
    first_events(&daemon, 6);
    (cursor, daemon)
}

/// The first lines of server-sent events for a browser that comes back.
fn sse(daemon: &Daemon, last_event_id: &str, lines: usize) -> Vec<String> {
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(
        stream,
        "GET /api/v1/events HTTP/1.0\r\nHost: x\r\nAccept: text/event-stream\r\nLast-Event-ID: {last_event_id}\r\n\r\n"
    )
    .unwrap();
    let lines_of_body = BufReader::new(stream).lines().map(Result::unwrap);
    lines_of_body
        .skip_while(|line| !line.is_empty())
        .skip(1)
        .take(lines)
        .collect()
}

#[test]
fn a_cursor_of_an_earlier_run_gets_a_gap_and_the_state() {
    let node = Node::with_pods(2);
    let (cursor, daemon) = restarted(&node, 4, &[]);
    let instance = instance(&daemon);
    assert_ne!(cursor.split('-').next().unwrap(), instance);
    let gap = json!({"type": "Gap", "from": 1, "to": 0, "instance": instance, "reason": "restarted", "after": cursor});

    // In silence it would be events 5 and 6 of another history.
    let read = events(&daemon, &format!("?since={cursor}"));
    assert_eq!((&read[0], read.len()), (&gap, 7));
    assert!(read[1..].iter().all(|event| event["initial"] == true));
    // A gap comes whatever the filter is.
    let died = events(&daemon, &format!("?since={cursor}&type=ContainerDied"));
    assert_eq!((&died[0], died.len()), (&gap, 2));
    assert_eq!(
        (&died[1]["exit_code"], &died[1]["instance"]),
        (&json!(3), &json!(instance))
    );
    // A cursor of this run continues, and so does a bare number, which is taken for one of it.
    assert_eq!(events(&daemon, &format!("?since={instance}-4")), read[5..]);
    assert_eq!(events(&daemon, "?since=4"), read[5..]);
    // Beyond the newest it can only be one of another run.
    assert_eq!(events(&daemon, "?since=99")[0]["reason"], "restarted");

    // The gap has no id, so that a browser that leaves here comes back with the old one.
    let lines = sse(&daemon, &cursor, 4);
    assert_eq!(
        serde_json::from_str::<Value>(lines[0].strip_prefix("data: ").unwrap()).unwrap(),
        gap
    );
    assert_eq!(lines[1], "");
    assert_eq!(lines[2], format!("id: {instance}-1"));
    assert_eq!(sse(&daemon, &format!("{instance}-4"), 1), [format!("id: {instance}-5")]);
}

#[test]
fn what_this_run_no_longer_holds_is_a_sync_of_every_pod() {
    let node = Node::with_pods(2);
    let (cursor, daemon) = restarted(&node, 4, &["--feed-capacity", "2"]);
    let read = events(&daemon, &format!("?since={cursor}"));
    let shown: Vec<_> = read
        .iter()
        .map(|line| (line["type"].as_str().unwrap(), &line["seq"]))
        .collect();
    assert_eq!(
        shown[..3],
        [("Gap", &Value::Null), ("PodSync", &json!(0)), ("PodSync", &json!(0))]
    );
    assert_eq!((&read[0]["from"], &read[0]["to"]), (&json!(1), &json!(4)));
    let seqs: Vec<_> = shown[3..].iter().map(|(_, seq)| seq.as_u64().unwrap()).collect();
    assert_eq!(seqs, [5, 6]);
    // Who continues from one of these syncs has no state yet, and gets it.
    let again = events(&daemon, &format!("?since={}-0", instance(&daemon)));
    assert_eq!((&again[0]["reason"], again.len()), (&json!("overflow"), read.len()));
}

#[test]
fn watch_prints_the_gap_and_goes_on() {
    let node = Node::with_pods(2);
    let (cursor, daemon) = restarted(&node, 4, &[]);
    let watch = |args: &[&str]| {
        let mut command = pleg(&["watch", "--daemon", &daemon.endpoint(), "--since", &cursor]);
        let output = command.args(args).assert().success().get_output().clone();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = watch(&["--type", "ContainerDied", "--count", "1"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[1], "--- pleg restarted; missed: events after 4 ---");
    assert!(lines[2].contains("default/web-1"), "{text}");
    let json = watch(&["--count", "1", "-o", "json"]);
    let read: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&read[0]["reason"], &read[1]["seq"]), (&json!("restarted"), &json!(1)));
}
