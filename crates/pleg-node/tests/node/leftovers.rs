//! Directories of pods that exist nowhere else go.

use std::fs;
use std::time::Duration;

use crate::machine::{Machine, pod};

#[tokio::test(start_paused = true)]
async fn directories_of_dead_pods_go() {
    let machine = Machine::start().await;
    let at = |path: &str| machine.dir.path().join(path);
    for path in [
        // Lost together with the state file and the runtime.
        "pods/dead/volumes/kubernetes.io~empty-dir/tmp",
        "logs/default_lost-n_dead/app",
        // Its logs were removed, and then the machine crashed.
        "pods/half/volumes",
        // A kubelet's.
        "logs/kube-system_dns_1/app",
    ] {
        fs::create_dir_all(at(path)).unwrap();
    }
    let node = machine.node().await;
    let uid = node.want(&[pod("a", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    for gone in [
        "pods/dead",
        "logs/default_lost-n_dead",
        "pods/half",
        "pods/half.removing",
    ] {
        assert!(!at(gone).exists(), "{gone}");
    }
    assert!(at("logs/kube-system_dns_1/app").exists());
    assert!(at(&format!("pods/{uid}")).exists() && machine.runs(&uid));
    node.stop().await;
    machine.check();
}
