//! Daemons that keep a history: restarted, killed, on a full disk, two on one file.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use pleg_sim::Ending;
use rustix::process::Signal;
use serde_json::Value;

use crate::node::{Daemon, LONG, Node, wait_for};

/// A daemon that keeps its history in a file of the test, 8 MiB at most.
fn daemon(node: &Node, file: &Path, args: &[&str]) -> Daemon {
    let keep = ["--history-size", "8MiB", "--history-file", file.to_str().unwrap()];
    node.daemon(&[&keep, args].concat())
}

fn lines(daemon: &Daemon, path: &str) -> Vec<Value> {
    let (status, body) = daemon.get(path);
    assert_eq!(status, 200, "{body}");
    body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn instance(daemon: &Daemon) -> String {
    daemon.json("/api/v1/health")["instance"].as_str().unwrap().to_owned()
}

fn exit(node: &Node, pod: usize) {
    let pod = format!("default/web-{pod}").parse().unwrap();
    node.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
}

fn restart(node: &Node, pod: usize) {
    let pod = format!("default/web-{pod}").parse().unwrap();
    node.sim.world().restart(&pod, Some("app")).unwrap();
}

fn stop(daemon: &mut Daemon) {
    daemon.running.signal(Signal::TERM);
    assert_eq!(daemon.running.end().0, Some(0));
}

fn wait_for_deaths(daemon: &Daemon, path: &str, count: usize) {
    wait_for("deaths", || {
        let events = lines(daemon, path);
        events.iter().filter(|event| event["type"] == "ContainerDied").count() >= count
    });
}

/// Waits until the history has the starts of so many containers that were not there when the daemon came, and everything published.
fn wait_for_restarts(daemon: &Daemon, count: usize) {
    wait_for("restarts", || {
        let newest = lines(daemon, "/api/v1/events").last().unwrap()["seq"].clone();
        let this = instance(daemon);
        let stored = lines(daemon, "/api/v1/history");
        let started = stored.iter().filter(|entry| {
            entry["instance"] == this.as_str() && entry["type"] == "ContainerStarted" && entry["initial"] != true
        });
        started.count() >= count && stored.iter().any(|entry| entry["seq"] == newest)
    });
}

#[test]
fn a_reader_that_comes_back_after_a_restart_gets_everything() {
    let node = Node::with_pods(3);
    let file = node.dir.path().join("state/history.dat");
    let mut first = daemon(&node, &file, &[]);
    wait_for("the first events", || lines(&first, "/api/v1/events").len() >= 9);
    exit(&node, 0);
    wait_for_deaths(&first, "/api/v1/events", 1);
    let published = lines(&first, "/api/v1/events");
    let cursor = format!("{}-4", instance(&first));
    stop(&mut first);
    exit(&node, 1);

    // Enough for what one relist finds, which is all that the history needs to see everything.
    let second = daemon(&node, &file, &["--feed-capacity", "16"]);
    wait_for_deaths(&second, "/api/v1/history?since=1h", 3);
    for round in 1..=3 {
        for pod in [1, 2] {
            restart(&node, pod);
        }
        wait_for_restarts(&second, 2 * round);
    }
    assert_eq!(lines(&second, "/api/v1/history?type=Gap").len(), 0);
    let read = lines(&second, &format!("/api/v1/events?since={cursor}"));
    // No gap: what the first daemon published after the cursor, and all of what the second did, though it holds 16 events itself.
    assert!(read.iter().all(|line| line["type"] != "Gap"), "{read:?}");
    let old = published.len() - 4;
    assert_eq!(read[..old], published[4..]);
    let this = instance(&second);
    assert!(read[old..].iter().all(|event| event["instance"] == this.as_str()));
    assert!(read.len() - old > 16, "{}", read.len() - old);
    let seqs: Vec<u64> = read.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(seqs.iter().copied().eq(5..5 + seqs.len() as u64), "{seqs:?}");
    // A number of an earlier instance is found, too, and so is a time.
    let tail = lines(&second, "/api/v1/events?since=4");
    assert_eq!(tail, read);
    let timed = lines(&second, "/api/v1/events?since=1h");
    assert_eq!(timed.len(), read.len() + 4);

    let notes = lines(&second, "/api/v1/history?type=DaemonStarted,DaemonStopped");
    let kinds: Vec<_> = notes.iter().map(|note| note["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["DaemonStarted", "DaemonStopped", "DaemonStarted"]);
    assert_eq!(notes[2]["previous"]["clean"], true);
    assert_eq!(notes[2]["first_seq"], published.len() + 1);

    // How a run began, though nothing changed. The first one may have been too short for that.
    let mut health = lines(&second, "/api/v1/history?type=HealthChanged");
    health.retain(|note| note["instance"] == this.as_str());
    let levels: Vec<_> = health.iter().map(|note| (&note["level"], &note["before"])).collect();
    assert_eq!(levels, [(&Value::from("Healthy"), &Value::Null)]);

    let died = lines(
        &second,
        "/api/v1/history?pod=default/web-0&type=ContainerDied&order=newest&limit=1",
    );
    assert_eq!((died.len(), &died[0]["exit_code"]), (1, &Value::from(3)));
    let pods = lines(&second, "/api/v1/history/pods?pod=web-*");
    assert_eq!(pods.len(), 3);
    let hours = lines(&second, "/api/v1/history/hours?since=2h");
    assert!(
        hours
            .iter()
            .any(|hour| hour["types"]["ContainerDied"].as_u64() >= Some(1)),
        "{hours:?}"
    );
    let changed = lines(&second, "/api/v1/history?type=PodStatusChanged");
    let images = |note: &Value| {
        note["changes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|change| change["field"] == "image")
    };
    assert!(changed.iter().any(images), "{changed:?}");

    let (_, metrics) = second.get("/metrics");
    assert!(metrics.contains("\npleg_history_up 1\n") && metrics.contains("\npleg_history_write_errors_total 0\n"));
    assert_eq!(second.json("/api/v1/health")["history"]["state"], "on");
    for bad in [
        "order=old",
        "limit=x",
        "type=Nope",
        "since=4",
        "follow&until=1h",
        "pod=a/b/c",
        "labels=,",
        "uid=",
    ] {
        let (status, body) = second.get(&format!("/api/v1/history?{bad}"));
        assert_eq!(status, 400, "{bad}: {body}");
    }
}

/// Reads all events that a daemon publishes, until it is gone.
fn follow(daemon: &Daemon) -> (std::thread::JoinHandle<()>, Arc<Mutex<Vec<Value>>>) {
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(stream, "GET /api/v1/events?follow&since=0 HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&seen);
    let thread = std::thread::spawn(move || {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        for line in lines.skip_while(|line| !line.is_empty()).skip(1) {
            if let Ok(event) = serde_json::from_str(&line) {
                shared.lock().unwrap().push(event);
            }
        }
    });
    (thread, seen)
}

#[test]
fn killed_at_any_moment_it_has_a_prefix_of_what_was_published() {
    let node = Node::with_pods(8);
    node.sim.world().set_churn(80.0);
    let file = node.dir.path().join("history.dat");
    let mut published: Vec<(String, Vec<Value>)> = Vec::new();
    for round in 0..8_u64 {
        let mut daemon = daemon(&node, &file, &[]);
        let (reading, seen) = follow(&daemon);
        // Some are killed within their first second, others have written more than once.
        let wanted = 30 + usize::try_from(round * 30).unwrap();
        wait_for("events", || seen.lock().unwrap().len() >= wanted);
        let instance = instance(&daemon);
        daemon.running.child.kill().unwrap();
        daemon.running.end();
        reading.join().unwrap();
        published.push((instance, std::mem::take(&mut *seen.lock().unwrap())));
    }
    node.sim.world().set_churn(0.0);
    let last = daemon(&node, &file, &[]);
    let stored = lines(&last, "/api/v1/history");
    let mut in_sum = 0;
    for (instance, published) in &published {
        let of_instance = stored.iter().filter(|entry| entry["instance"] == instance.as_str());
        let events: Vec<Value> = of_instance
            .filter(|entry| entry["seq"].is_u64())
            .map(|entry| {
                let mut event = entry.clone();
                event.as_object_mut().unwrap().remove("id");
                event
            })
            .collect();
        // The reader gets what was published, up to when it was cut off; the history as well. One of both is the shorter.
        let shown: Vec<&Value> = published
            .iter()
            .filter(|event| event["type"] != "ProcessExited")
            .collect();
        let kept: Vec<&Value> = events.iter().filter(|event| event["type"] != "ProcessExited").collect();
        let both = shown.len().min(kept.len());
        assert_eq!(shown[..both], kept[..both]);
        // At most the last second is lost, as far as this machine keeps up: all of an instance that lived no longer.
        let late = |event: &Value| event["time"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        if let (Some(end), Some(lost)) = (shown.last(), shown.get(kept.len())) {
            let lost = late(end).duration_since(late(lost)).as_secs_f64();
            assert!(lost < 5.0, "{lost} s of events are lost");
        }
        in_sum += kept.len();
    }
    assert!(in_sum > 100, "{in_sum} events were kept");
    let starts = lines(&last, "/api/v1/history?type=DaemonStarted");
    assert_eq!(starts.len(), 9);
    assert!(starts[1..].iter().all(|start| start["previous"]["clean"] == false));
    // A reader of an instance that was killed is told that its last events may be missing, and gets the state.
    let cursor = format!("{}-{}", published[6].0, published[6].1[3]["seq"]);
    let read = lines(&last, &format!("/api/v1/events?since={cursor}"));
    let gaps: Vec<_> = read.iter().filter(|line| line["type"] == "Gap").collect();
    assert_eq!(gaps.len(), 2, "{gaps:?}");
    assert!(gaps.iter().all(|gap| gap["reason"] == "restarted"));
}

#[test]
fn two_daemons_on_one_file_and_a_broken_one() {
    let node = Node::with_pods(1);
    let file = node.dir.path().join("history.dat");
    std::fs::write(&file, "not a history").unwrap();
    let keep = ["--history-size", "8MiB", "--history-file", file.to_str().unwrap()];
    let socket = node.dir.path().join("first.sock");
    let mut first = node.spawn(&[&["run", "--listen", socket.to_str().unwrap()][..], &keep].concat());
    let moved = first.stderr_line();
    assert!(
        moved.contains("beginning a new one") && moved.contains("history.broken"),
        "{moved}"
    );
    let ready = first.stderr_line();
    assert!(ready.contains("watching unix://"), "{ready}");
    wait_for("the first daemon", || {
        file.metadata().is_ok_and(|data| data.len() > 4096)
    });

    let socket = node.dir.path().join("second.sock");
    let mut running = node.spawn(&[&["run", "--listen", socket.to_str().unwrap()][..], &keep].concat());
    let off = running.stderr_line();
    assert!(
        off.contains("history is off") && off.contains("in use by another process"),
        "{off}"
    );
    let second = Daemon { running, socket };
    wait_for("a complete relist", || {
        UnixStream::connect(&second.socket).is_ok() && second.get("/readyz").0 == 200
    });
    let health = second.json("/api/v1/health");
    assert_eq!(
        (&health["level"], &health["history"]["state"]),
        (&Value::from("Healthy"), &Value::from("off"))
    );
    assert_eq!(second.get("/api/v1/history").0, 503);
    let (_, ready) = second.get("/readyz?verbose");
    assert!(
        ready.contains("[-]history failed") && ready.contains("readyz check passed"),
        "{ready}"
    );
}

/// A small file system of its own. None if this machine does not allow that.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=3m", "pleg-test"])
            .arg(&at)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(at)),
            other => {
                let mut stderr = std::io::stderr();
                let _ = writeln!(
                    stderr,
                    "LEFT OUT, a full disk was not tried: cannot mount a tmpfs: {other:?}"
                );
                assert!(std::env::var_os("CI").is_none(), "CI has to try it");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_stops_nothing_and_nothing_is_lost_when_there_is_room_again() {
    let node = Node::with_pods(4);
    let Some(disk) = SmallDisk::mount(node.dir.path().join("disk")) else {
        return;
    };
    let file = disk.0.join("history.dat");
    let mut daemon = daemon(&node, &file, &[]);
    wait_for("something written", || lines(&daemon, "/api/v1/history").len() > 12);
    // Leaves no room, not even for the next page.
    let filler = disk.0.join("filler");
    let filled = std::fs::write(&filler, vec![1; 4 << 20]);
    assert!(filled.is_err());
    for pod in 0..3 {
        exit(&node, pod);
    }
    node.sim.world().storm(Ending::Exit(1));
    wait_for_deaths(&daemon, "/api/v1/events", 4);
    // A page may still have room for a few events: more of them do not fit.
    node.sim.world().set_churn(200.0);
    wait_for("the full disk", || {
        daemon.json("/api/v1/health")["history"]["state"] == "behind"
    });
    let health = daemon.json("/api/v1/health");
    assert!(
        health["history"]["reason"].as_str().unwrap().contains("No space left"),
        "{health}"
    );
    assert_eq!(
        (daemon.get("/readyz").0, &health["level"]),
        (200, &Value::from("Healthy"))
    );
    node.sim.world().set_churn(0.0);
    std::fs::remove_file(filler).unwrap();
    wait_for("room", || daemon.json("/api/v1/health")["history"]["state"] == "on");
    let newest = lines(&daemon, "/api/v1/events").last().unwrap()["seq"].clone();
    wait_for("everything to be written", || {
        let last = lines(&daemon, "/api/v1/history?order=newest&limit=20");
        last.iter().any(|entry| entry["seq"] == newest)
    });
    let seqs: Vec<u64> = lines(&daemon, "/api/v1/history")
        .iter()
        .filter_map(|entry| entry["seq"].as_u64())
        .collect();
    assert!(seqs.iter().copied().eq(1..=seqs.len() as u64));
    stop(&mut daemon);
}
