//! Probes on the simulator: when a container is restarted, or not ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::machine::{Machine, Running, is_ready, spec};
use pleg::PodUid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

fn app(probes: &str) -> String {
    spec(
        "p",
        &format!("terminationGracePeriodSeconds: 1, containers: [{{name: app, image: img, {probes}}}]"),
    )
}

fn restarts(node: &Running, uid: &PodUid) -> i32 {
    node.reports.get(uid).map_or(0, |pod| pod.containers()[0].restart_count)
}

/// A server that reports its health.
async fn server(well: Arc<AtomicBool>, asked: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            asked.fetch_add(1, Ordering::Relaxed);
            let _ = stream.read(&mut [0; 1024]).await;
            let code = if well.load(Ordering::Relaxed) {
                "200 OK"
            } else {
                "503 No"
            };
            let _ = stream
                .write_all(format!("HTTP/1.1 {code}\r\nContent-Length: 0\r\n\r\n").as_bytes())
                .await;
        }
    });
    port
}

#[tokio::test(start_paused = true)]
async fn a_container_that_fails_its_liveness_probe_is_restarted() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let probe =
        "livenessProbe: {exec: {command: [exit, '1']}, initialDelaySeconds: 5, periodSeconds: 2, failureThreshold: 3}";
    let uid = node.want(&[app(probe)]).await.remove(0);
    node.until("two restarts", |_| restarts(&node, &uid) == 2).await;
    let attempts = machine.attempts(&uid);
    // 5 s of delay, then three probes 2 s apart: it runs for 9 s, plus the time of its stop.
    let lived = (attempts[0].finished_at - attempts[0].started_at) as f64 / 1e9; // two clocks, a moment apart
    assert!((8.5..10.5).contains(&lived), "{lived}");
    assert_eq!(attempts[0].exit_code, 143);
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_container_that_fails_its_startup_probe_is_restarted_and_other_probes_wait() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let port = server(Arc::new(AtomicBool::new(true)), Arc::clone(&asked)).await;
    let probes = format!(
        "startupProbe: {{exec: {{command: ['false']}}, periodSeconds: 1, failureThreshold: 10}}, \
         readinessProbe: {{httpGet: {{host: 127.0.0.1, port: {port}}}}}"
    );
    let uid = node.want(&[app(&probes)]).await.remove(0);
    node.until("a restart", |_| restarts(&node, &uid) >= 1).await;
    assert_eq!(asked.load(Ordering::Relaxed), 0, "not asked before it is up");
    // A container that starts is probed at once.
    let up = probes.replace("command: ['false']", "command: ['true']");
    let uid = node.want(&[app(&up)]).await.remove(0);
    node.until_ready(&uid).await;
    assert!(node.reports.get(&uid).unwrap().containers()[0].started.unwrap());
    assert!(asked.load(Ordering::Relaxed) >= 1);
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_not_ready_is_not_restarted() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let well = Arc::new(AtomicBool::new(false));
    let port = server(Arc::clone(&well), Arc::default()).await;
    let probe = format!(
        "readinessProbe: {{httpGet: {{host: 127.0.0.1, port: {port}, path: /ready}}, periodSeconds: 1, successThreshold: 2}}"
    );
    let uid = node.want(&[app(&probe)]).await.remove(0);
    node.until("not ready", |_| node.state(&uid, "app") == "Running").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!is_ready(&node.reports, &uid));
    well.store(true, Ordering::Relaxed);
    node.until_ready(&uid).await;
    well.store(false, Ordering::Relaxed);
    node.until("not ready again", |reports| !is_ready(reports, &uid)).await;
    assert_eq!((restarts(&node, &uid), machine.attempts(&uid).len()), (0, 1));
    node.stop().await;
    machine.check();
}

/// A late answer is a failure, and a hanging command delays nothing else.
#[tokio::test(start_paused = true)]
async fn a_late_answer_is_a_bad_one() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let probe =
        "livenessProbe: {exec: {command: [sleep, '30']}, periodSeconds: 5, timeoutSeconds: 2, failureThreshold: 2}";
    let uid = node.want(&[app(probe)]).await.remove(0);
    node.until("a restart", |_| restarts(&node, &uid) >= 1).await;
    let attempts = machine.attempts(&uid);
    let lived = (attempts[0].finished_at - attempts[0].started_at) as f64 / 1e9; // two clocks, a moment apart
    // Probed at 0 and 5 s, timed out at 7 s.
    assert!((6.5..8.5).contains(&lived), "{lived}");
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn hooks_run_around_a_container() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    // A hook fails: the container is killed and restarted.
    let bad = app("lifecycle: {postStart: {exec: {command: [exit, '7']}}}");
    let uid = node.want(&[bad]).await.remove(0);
    node.until("the failure", |_| node.state(&uid, "app") == "PostStartHookError")
        .await;
    // A pre-stop hook sleeps: the container runs for that long.
    let good = app("lifecycle: {preStop: {sleep: {seconds: 1}}}").replace("PeriodSeconds: 1", "PeriodSeconds: 9");
    let uid = node.want(&[good]).await.remove(0);
    node.until_ready(&uid).await;
    let began = tokio::time::Instant::now();
    node.want(&[]).await;
    node.until_gone().await;
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    // A post-start hook that takes longer than any call: the pod is not ready until it is done.
    let slow = app("lifecycle: {postStart: {sleep: {seconds: 900}}}");
    let began = tokio::time::Instant::now();
    let uid = node.want(&[slow]).await.remove(0);
    node.until_ready(&uid).await;
    assert!(began.elapsed() >= Duration::from_mins(15), "{:?}", began.elapsed());
    // HTTP hooks: as in the kubelet, any response is a success, and no answer is a failure.
    let asked = Arc::new(AtomicUsize::new(0));
    let port = server(Arc::default(), Arc::clone(&asked)).await;
    let get = |port: u16| format!("{{httpGet: {{host: 127.0.0.1, port: {port}, path: /hook}}}}");
    let pages = app(&format!("lifecycle: {{postStart: {0}, preStop: {0}}}", get(port)));
    let uid = node.want(&[pages]).await.remove(0);
    node.until_ready(&uid).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1, "after the start");
    node.want(&[]).await;
    node.until_gone().await;
    assert_eq!(asked.load(Ordering::Relaxed), 2, "before the end");
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let nobody = app(&format!("lifecycle: {{postStart: {}}}", get(closed)));
    let uid = node.want(&[nobody]).await.remove(0);
    node.until("the failure", |_| node.state(&uid, "app") == "PostStartHookError")
        .await;
    node.stop().await;
    machine.check();
}

/// `pleg node` restarts: a container that has passed its startup probe is not asked to pass it again, and what is ready stays so until a
/// probe says otherwise.
#[tokio::test(start_paused = true)]
async fn probe_results_survive_a_restart() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let (up, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let startup = server(Arc::clone(&up), Arc::clone(&asked)).await;
    let readiness = server(Arc::new(AtomicBool::new(true)), Arc::default()).await;
    let get = |port: u16| format!("httpGet: {{host: 127.0.0.1, port: {port}}}, periodSeconds: 5");
    let manifest = app(&format!(
        "startupProbe: {{{}, failureThreshold: 2}}, readinessProbe: {{{}, initialDelaySeconds: 60}}",
        get(startup),
        get(readiness)
    ));
    let uid = node.want(std::slice::from_ref(&manifest)).await.remove(0);
    node.until_ready(&uid).await;
    node.stop().await;
    up.store(false, Ordering::Relaxed);
    let before = asked.load(Ordering::Relaxed);
    let node = machine.node().await;
    node.want(&[manifest]).await;
    node.until("its status", |reports| reports.get(&uid).is_some()).await;
    let not_ready = node.reports.wait_for(|reports| !is_ready(reports, &uid));
    let not_ready = tokio::time::timeout(Duration::from_mins(3), not_ready).await;
    assert!(not_ready.is_err(), "it was ready, and no probe has failed");
    assert!(node.reports.get(&uid).unwrap().containers()[0].started.unwrap());
    assert_eq!(
        asked.load(Ordering::Relaxed),
        before,
        "its startup probe has succeeded before"
    );
    assert_eq!(machine.attempts(&uid).len(), 1);
    // The next attempt has to pass it again.
    let running = machine.running();
    machine.sim.world().kill_container(&running[0].id);
    node.until("two restarts", |_| restarts(&node, &uid) >= 2).await;
    assert!(asked.load(Ordering::Relaxed) > before);
    node.stop().await;
    machine.check();
}
