"""A kubelet alone and with `pleg run --report-to-cluster` beside it, in turn: what the kubelet and the runtime need while nothing happens."""

import signal
import statistics
import subprocess
import time

from .control_plane import NODE, Watch
from .node_cases import NODES, PODS, NodeBench, cpu_of, node_facts, pod_facts
from .node_report import markdown
from .processes import Process, UnixHTTP, eventually
from .programs import ROOT
from .report import short

# The kubelet's figure beside us may be so much larger than its figure alone, or as much as its own figures alone differ.
NOISE = 0.05


class Reporter(Process):
    """`pleg run --report-to-cluster`, with the node's own credentials."""

    def __init__(self, cluster, program, directory):
        path = directory / "beside.sock"
        command = [program, "run", "-r", cluster.endpoint, "--listen", f"unix://{path}", "--report-to-cluster", "--probe-round", "20s"]
        credentials = ["--kubeconfig", cluster.said["NODE_KUBECONFIG"], "--node-name", NODE]
        super().__init__("beside", [*command, *credentials], directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT)
        http = UnixHTTP(path)
        reported = b"pleg_report_last_success_timestamp_seconds 0"

        def is_up():
            metrics = http.ask("GET", "/metrics")
            return b"pleg_report_last_success_timestamp_seconds" in metrics and reported not in metrics

        eventually("pleg's first report", lambda: self.alive() and path.exists() and is_up(), 120, every=0.5)

    def close(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        super().close()


class Beside(NodeBench):
    """One kubelet with pods; `pleg run` comes and goes."""

    def measure(self, rounds, pods, settle_s, rest_s):
        """For each side a list of figures, one of each round."""
        found = {"alone": [], "beside": []}
        self.cluster.remove_pods(self.crictl)
        self.api.delete(f"{NODES}/{NODE}")
        with (
            self.agent("kubelet") as kubelet,
            Watch(self.api, NODES, f"metadata.name%3D{NODE}", node_facts) as node,
            Watch(self.api, PODS, f"spec.nodeName%3D{NODE}", pod_facts) as watch,
        ):
            self.until_ready(kubelet, node)
            self.start(watch, "rest", pods)
            time.sleep(settle_s)
            for number in range(rounds):
                for side in ("alone", "beside") if number % 2 == 0 else ("beside", "alone"):
                    reporter = Reporter(self.cluster, self.program, self.cluster.directory) if side == "beside" else None
                    try:
                        time.sleep(settle_s if number == 0 else settle_s / 2)
                        figures = self.rest_of(kubelet, reporter, rest_s)
                    finally:
                        if reporter:
                            reporter.close()
                    found[side].append(figures)
                    self.say(f"round {number + 1}, {side}: " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items()))
            self.remove_all(watch, 1)
            self.until_empty(kubelet)
        self.cluster.remove_pods(self.crictl)
        return found

    def rest_of(self, kubelet, reporter, seconds):
        runtime = self.cluster.runtime_pid()
        processes = {"kubelet": kubelet.process.cpu, "runtime": lambda: cpu_of(runtime)} | ({"pleg": reporter.cpu} if reporter else {})
        began, before = time.monotonic(), {name: cpu() for name, cpu in processes.items()}
        time.sleep(seconds)
        took = time.monotonic() - began
        found = {f"{name}_cpu_percent": (cpu() - before[name]) / took * 100 for name, cpu in processes.items()}
        return found | {"kubelet_rss_mib": kubelet.rss()}


ROWS = (
    ("kubelet_cpu_percent", "CPU of the kubelet", "%"),
    ("kubelet_rss_mib", "memory of the kubelet", "MiB"),
    ("runtime_cpu_percent", "CPU of the runtime", "%"),
    ("pleg_cpu_percent", "CPU of pleg run", "%"),
)


def values(found, side, key):
    return [one[key] for one in found[side] if key in one]


def table(found):
    """Medians, and what the rounds were between."""

    def cell(side, key, unit):
        samples = values(found, side, key)
        if not samples:
            return "–"
        return f"{short(statistics.median(samples), unit)} ({short(min(samples), unit)} to {short(max(samples), unit)})"

    return markdown([("", "alone", "beside pleg run"), *((name, *(cell(side, key, unit) for side in found)) for key, name, unit in ROWS)])


def judge(found):
    """The kubelet needs what it needs without us, within noise."""
    alone, beside = (values(found, side, "kubelet_cpu_percent") for side in ("alone", "beside"))
    usual, with_us = statistics.median(alone), statistics.median(beside)
    allowed = max(usual * NOISE, max(alone) - min(alone))
    what = "the kubelet's CPU beside pleg run is what it is alone, within noise"
    return [{"what": what, "found": f"{usual:.2f} % alone, {with_us:.2f} % beside, {allowed:.2f} allowed", "holds": with_us - usual <= allowed}]
