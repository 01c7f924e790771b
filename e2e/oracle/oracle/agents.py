"""The two agents and the containerd under them, each with a directory of its own that is removed with it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NODE = "n"
# hostPath volumes of the manifests are below it.
HOST_PATHS = Path("/tmp/pleg-oracle")
# Where a kubelet puts links to logs. No setting moves it.
LOG_LINKS = Path("/var/log/containers")


class Failure(Exception):
    """What keeps the comparison from being made, for people."""


class Process:
    """A child that is ended at the end, whatever happens."""

    def __init__(self, name, command, log, **more):
        self.name, self.log = name, Path(log)
        with open(log, "ab") as output:
            more = {"stdout": output} | more
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output, start_new_session=True, **more)

    def alive(self):
        if self.child.poll() is not None:
            tail = self.log.read_text(errors="replace").splitlines()[-30:]
            raise Failure(f"{self.name} ended with {self.child.returncode}:\n" + "\n".join(tail))

    def end(self, patience=30):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            try:
                self.child.wait(patience)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Containerd(Process):
    """The example `runtime` of the end-to-end tests: it removes everything of its own when it ends."""

    def __init__(self, version, log, subnet):
        program = TARGET / "debug/examples/runtime"
        if not program.exists():
            raise Failure(f"{program} is missing: run ./test build")
        super().__init__("containerd", [program, version, "0"], log, stdout=subprocess.PIPE)
        said = {}
        for line in self.child.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            said[word] = rest.strip()
            if word == "Ctrl-C":
                break
        if "endpoint" not in said:
            self.child.wait(10)
            self.alive()
        self.version = said["containerd"].partition(",")[0]
        self.endpoint, self.directory = said["endpoint"], Path(said["directory"])
        self.cgroup = f"pleg-e2e-{self.directory.name}"
        ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(self.directory / "ipam")}
        plugins = [{"type": "ptp", "ipam": ipam}]
        network = {"cniVersion": "0.4.0", "name": "oracle", "plugins": plugins}
        (self.directory / "cni/10-oracle.conflist").write_text(json.dumps(network))


    def end(self, patience=30):
        """Also what a kubelet without cgroups of its own put where the harness does not look: below k8s.io, by container id."""
        tasks = self.directory / "state/io.containerd.runtime.v2.task/k8s.io" if hasattr(self, "directory") else None
        ids = [path.name for path in tasks.glob("*")] if tasks else []
        super().end(patience)
        tops = [Path("/sys/fs/cgroup/k8s.io"), *Path("/sys/fs/cgroup").glob("*/k8s.io")]
        groups = [top / one for top in tops for one in ids if (top / one).is_dir()]
        for group in groups:
            for process in group.joinpath("cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        late = seconds() + patience
        while groups and seconds() < late:
            groups = [group for group in groups if not removed(group)]
            time.sleep(0.05)
        for top in tops if ids else []:
            removed(top)


def removed(group):
    """A cgroup can go when its last process has gone."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def node_ip():
    """An address of this machine that is not the loopback's, which a kubelet refuses. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            raise Failure("this machine has no address but the loopback's, and a kubelet needs one") from None
        return one.getsockname()[0]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def put(manifests, directory):
    directory.mkdir(parents=True)
    for manifest in manifests:
        shutil.copy(manifest, directory)


class Kubelet(Process):
    """A kubelet without an API server, with the manifests as static pods."""

    name = "kubelet"

    def __init__(self, program, containerd, manifests, log):
        home = containerd.directory / "kubelet"
        put(manifests, home / "manifests")
        self.logs, self.port = home / "logs", free_port()
        config = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "staticPodPath": str(home / "manifests"),
            "fileCheckFrequency": "1s",
            "containerRuntimeEndpoint": containerd.endpoint,
            "podLogsDir": str(self.logs),
            "volumePluginDir": str(home / "plugins"),
            "address": "127.0.0.1",
            "port": free_port(),
            "readOnlyPort": self.port,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            # What this needs to run beside others, and without the rights of a real node; see docs of the kubelet.
            "clusterDomain": "cluster.local",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            "localStorageCapacityIsolation": False,
            "featureGates": {"KubeletInUserNamespace": True},
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }
        home.joinpath("config.yaml").write_text(json.dumps(config))
        command = [program, "--config", home / "config.yaml", "--root-dir", home / "root"]
        command += ["--cert-dir", home / "pki", "--hostname-override", NODE, "--node-ip", node_ip(), "--v", "2"]
        super().__init__("kubelet", command, log, cwd=home)

    def end(self, patience=30):
        super().end(patience)
        remove_links(LOG_LINKS, self.logs)

    def pods(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/pods", timeout=10) as answer:
            return json.load(answer)["items"] or []


class PlegNode(Process):
    """`pleg node` with the same manifests."""

    name = "pleg node"

    def __init__(self, containerd, manifests, log):
        program, home = TARGET / "debug/pleg", containerd.directory / "node"
        if not program.exists():
            raise Failure(f"{program} is missing: run ./test build")
        put(manifests, home / "manifests")
        self.logs, self.socket = home / "logs", home / "pleg.sock"
        places = {"manifests": home / "manifests", "log-dir": self.logs, "log-link-dir": home / "containers", "pod-dir": home / "pods", "state-file": home / "node.redb"}
        command = [program, "node", "--node-name", NODE, "--node-ip", node_ip(), "--cgroup-root", containerd.cgroup]
        command += [word for name, place in places.items() for word in (f"--{name}", place)]
        # As for the kubelet: how full this machine is, is not what is compared.
        command += ["--eviction-hard", "", "--image-gc-high-threshold", "100"]
        command += ["--listen", f"unix://{self.socket}", "--runtime-endpoint", containerd.endpoint]
        super().__init__("pleg node", command, log)

    def pods(self):
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(10)
            one.connect(str(self.socket))
            one.sendall(b"GET /api/v1/pods HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.splitlines()[0]:
            raise OSError(head.decode(errors="replace"))
        return json.loads(body)["items"] or []


def remove_links(directory, logs):
    """Removes the links of a directory that lead below `logs`, and no others."""
    for link in directory.glob("*.log"):
        # Others of this directory may remove theirs at the same time.
        with contextlib.suppress(OSError):
            if logs in Path(os.readlink(link)).parents:
                link.unlink()


def clear_host_paths():
    shutil.rmtree(HOST_PATHS, ignore_errors=True)
    HOST_PATHS.mkdir()


def seconds():
    return time.monotonic()
