//! `pleg sim proxy` as its users run it, with a simulator for the runtime behind it.

use rustix::process::Signal;

use crate::node::{Node, Running, bare, pleg, wait_for};

struct Proxy {
    node: Node,
    running: Running,
}

impl Proxy {
    fn start(pods: usize) -> Self {
        let node = Node::with_pods(pods);
        let mut command = bare();
        command.args(["sim", "proxy", "--upstream"]);
        command.arg(node.sim.endpoint().to_string());
        for (flag, name) in [("--listen", "proxy.sock"), ("--control", "ctl.sock")] {
            command.arg(flag).arg(node.dir.path().join(name));
        }
        let mut running = Running::start(command);
        let ready = running.stderr_line();
        assert!(
            ready.starts_with("proxy ready on unix://") && ready.contains(" for unix://"),
            "{ready}"
        );
        Self { node, running }
    }

    fn socket(&self, name: &str) -> String {
        format!("unix://{}", self.node.dir.path().join(name).display())
    }

    /// What `pleg sim ctl` prints.
    fn ctl(&self, args: &[&str]) -> String {
        let control = self.socket("ctl.sock");
        let output = pleg(&[&["sim", "ctl", "--control", &control], args].concat())
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    fn pods(&self) -> assert_cmd::assert::Assert {
        pleg(&["pods", "-t", "500ms", "-r", &self.socket("proxy.sock")]).assert()
    }
}

#[test]
fn a_fault_comes_and_goes() {
    let mut proxy = Proxy::start(3);
    proxy.pods().success();
    assert_eq!(
        proxy.ctl(&["lock", "--pod", "default/web-1", "--container", "app"]),
        "container app of pod default/web-1 is locked: ListContainers hangs until unlock\n"
    );
    let locked = String::from_utf8(proxy.pods().code(1).get_output().stderr.clone()).unwrap();
    assert!(locked.contains("no answer within 500ms"), "{locked}");
    assert_eq!(proxy.ctl(&["unlock"]), "1 lock ended\n");
    proxy.pods().success();
    assert!(proxy.ctl(&["stats"]).contains("ListContainers"));
    assert!(
        proxy
            .ctl(&["pods"])
            .contains("default/web-2  app (running), sidecar (running)")
    );
    let refused = proxy.ctl(&["storm"]);
    assert!(
        refused.starts_with("Error: storm needs a simulated runtime, and this is a proxy in front of a real one"),
        "{refused}"
    );
    assert_eq!(refused.lines().count(), 1, "{refused}");

    // A reader who leaves is no error.
    let mut reader = bare();
    reader.args(["sim", "ctl", "--control", &proxy.socket("ctl.sock"), "pods"]);
    let mut reader = Running::start(reader);
    drop(reader.stdout.take());
    assert_eq!(reader.end(), (Some(0), String::new()));

    proxy.running.signal(Signal::INT);
    assert_eq!(proxy.running.end(), (Some(0), String::new()));
    let left = std::fs::read_dir(proxy.node.dir.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["cri.sock"]);
}

#[test]
fn a_watch_through_it_outlives_a_restart_of_the_runtime() {
    let proxy = Proxy::start(1);
    let mut command = bare();
    command.args(["watch", "--no-initial", "-o", "json", "-r", &proxy.socket("proxy.sock")]);
    let mut watch = Running::start(command);
    wait_for("the first relist", || {
        proxy.node.sim.stats().of(pleg_cri::Rpc::ContainerStatus).calls >= 2
    });
    crate::node::block_on(proxy.node.sim.down(std::time::Duration::from_millis(1200)));
    let lost = watch.stderr_line();
    assert!(lost.contains("UNAVAILABLE: the runtime behind the proxy"), "{lost}");
    let back = watch.stderr_line();
    assert!(back.contains("the runtime answers again after "), "{back}");
}

#[test]
fn what_is_wrong_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("unix://{}", dir.path().join(name).display());
    let fails = |args: &[&str], code: i32, words: &str| {
        let output = pleg(&[&["sim", "proxy"], args].concat()).assert().code(code).stdout("");
        let stderr = String::from_utf8(output.get_output().stderr.clone()).unwrap();
        assert!(stderr.contains(words), "{stderr}");
        assert!(code == 2 || stderr.lines().count() == 1, "{stderr}");
    };
    let (none, listen) = (at("none.sock"), at("listen.sock"));
    fails(
        &["--upstream", &none, "--listen", &listen],
        1,
        &format!(
            "Error: no runtime at {none}: the socket does not exist. Is the runtime running? Name another socket with --upstream\n"
        ),
    );
    let node = Node::with_pods(0);
    let upstream = node.sim.endpoint().to_string();
    fails(
        &["--upstream", &upstream, "--listen", &upstream],
        2,
        "choose different sockets",
    );
    fails(
        &["--upstream", &upstream, "--listen", &listen, "--control", &listen],
        2,
        "choose different sockets",
    );
    fails(&["--upstream", &upstream], 2, "--listen");
    fails(&["--upstream", "tcp://127.0.0.1:1", "--listen", &listen], 2, "unix");
    std::fs::write(dir.path().join("file"), "hello").unwrap();
    fails(
        &["--upstream", &upstream, "--listen", &at("file")],
        1,
        "exists and is not a socket",
    );
}
