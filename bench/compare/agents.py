"""The two agents that can be the node: a whole kubelet, and `pleg node`. Each is a process that is asked from outside what it costs."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

from .control_plane import NODE
from .processes import Failure, Process

CACHE = Path(os.environ.get("PLEG_CACHE", Path.home() / ".cache" / "pleg"))
# What the kubelet has for its API client and its events unless it is told otherwise, and is not told otherwise here.
KUBELET_DEFAULTS = "kubeAPIQPS 50, kubeAPIBurst 100, eventRecordQPS 50, relist every 1 s, EventedPLEG off, nodeStatusReportFrequency 5m"


def cached(prefix, program):
    """A program that the scripts of e2e have built."""
    found = sorted(CACHE.glob(f"{prefix}-*/{program}"))
    if not found:
        raise Failure(f"there is no {program} in {CACHE}: run e2e/oracle/build and e2e/cri-tools/build")
    return found[-1]


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


class Agent:
    """An agent of the node, which can be killed and started again; its directory stays."""

    def __init__(self, cluster, directory):
        self.cluster, self.directory = cluster, Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = None

    def start(self):
        self.process = Process(self.name, self.command(), self.directory, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=self.directory)

    def kill(self):
        """Without a word; pods go on."""
        self.process.child.send_signal(signal.SIGKILL)
        self.process.child.wait()

    def rss(self):
        """Memory that is resident now, in MiB."""
        status = Path(f"/proc/{self.process.child.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(resident.split()[1]) / 1024

    def close(self):
        if self.process:
            self.process.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.close()


class Kubelet(Agent):
    """A kubelet with its own defaults, but for what this machine does not let it do: limits of its own cgroups, a negative OOM score."""

    name = "kubelet"

    def close(self):
        super().close()
        # Where it puts links to logs; no setting moves it.
        for link in Path("/var/log/containers").glob("*"):
            if link.is_symlink() and str(link.readlink()).startswith(str(self.directory)):
                link.unlink()

    def command(self):
        said, directory = self.cluster.said, self.directory
        config = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "containerRuntimeEndpoint": self.cluster.endpoint,
            "podLogsDir": str(directory / "logs"),
            "volumePluginDir": str(directory / "plugins"),
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": said["CLUSTER_CA"]}},
            "authorization": {"mode": "Webhook"},
            "clusterDomain": "cluster.local",
            "cgroupsPerQOS": False,
            "cgroupRoot": f"/{said['NODE_CGROUP']}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            "localStorageCapacityIsolation": False,
            "featureGates": {"KubeletInUserNamespace": True},
            # The state of this machine must not decide about pods.
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }
        (directory / "config.json").write_text(json.dumps(config))
        return [
            cached("kubelet", "kubelet"),
            f"--config={directory / 'config.json'}",
            f"--kubeconfig={said['NODE_KUBECONFIG']}",
            f"--root-dir={directory / 'root'}",
            f"--cert-dir={directory / 'pki'}",
            f"--hostname-override={NODE}",
            f"--node-ip={node_ip()}",
        ]


class PlegNode(Agent):
    """`pleg node --kubeconfig` with its own defaults, in directories of its own."""

    name = "pleg"

    def __init__(self, cluster, directory, program, endpoint=None, flags=()):
        super().__init__(cluster, directory)
        self.program, self.flags = program, list(flags)
        self.endpoint = endpoint or cluster.endpoint

    def command(self):
        said, directory = self.cluster.said, self.directory
        return [
            *(self.program, "node", "-r", self.endpoint),
            *("--kubeconfig", said["NODE_KUBECONFIG"], "--cert-dir", directory / "pki", "--node-name", NODE, "--node-ip", node_ip()),
            *("--client-ca-file", said["CLUSTER_CA"], "--port", str(free_port()), "--healthz-port", "0"),
            *("--listen", f"unix://{directory / 'pleg.sock'}", "--state-file", directory / "node.redb", "--pod-dir", directory / "pods"),
            *("--log-dir", directory / "logs", "--log-link-dir", directory / "containers"),
            *("--cgroup-root", said.get("NODE_CGROUP", "pleg")),
            # The state of this machine must not decide about pods.
            *("--eviction-hard", "", "--image-gc-high-threshold", "100"),
            *self.flags,
        ]
