"""A real containerd, as the end-to-end tests start it: what an idle look costs the client and the runtime."""

import os
import shutil
import statistics
import subprocess
import tempfile
import time

from .processes import Failure, Pleg, Process
from .programs import ROOT

VERSION, PODS = "2.1", 30
SECONDS = 8


class Containerd(Process):
    """`cargo run -p pleg-e2e --example runtime`, until it is closed."""

    def __init__(self, directory):
        command = ["cargo", "run", "--quiet", "-p", "pleg-e2e", "--example", "runtime", "--", VERSION, str(PODS)]
        super().__init__("containerd", command, directory, stdout=subprocess.PIPE, cwd=ROOT)
        self.said = {}
        for line in self.child.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            self.said[word] = rest.strip()
            if word == "Ctrl-C":
                return
        # It closed its output: it ends, and has said why.
        self.child.wait(10)
        self.alive()

    @property
    def endpoint(self):
        return self.said["endpoint"]

    def cpu(self):
        """Of the daemon itself; its line is: containerd VERSION, process PID."""
        pid = int(self.said["containerd"].rpartition(" ")[2])
        return time.clock_gettime((~pid << 3) | 2)


def measure(bench, not_run):
    """Both sides in turn, one of them at a time; none if it cannot be had here."""
    if os.geteuid() != 0:
        not_run.append("containerd: only root can start one")
        return None
    directory = tempfile.mkdtemp(prefix="pleg-bench-")
    try:
        with Containerd(directory) as containerd:
            found = {name: [] for name, _ in bench.sides()}
            for _ in range(max(2, bench.plan.idle_rounds)):
                for name, kind in bench.sides():
                    more = {"flags": ("--probe-round", "0s")} if kind is Pleg else {}
                    with kind(bench.programs, containerd.endpoint, directory, **more) as side:
                        side.wait_first_look()
                        time.sleep(2)
                        found[name].append(_window(containerd, side))
            floor = bench.floor(containerd.endpoint, bench.plan.floor_looks, bench.plan.floor_every)
            result = {"version": containerd.said["containerd"].partition("+")[0].partition(",")[0], "pods": PODS, "bytes": floor["bytes"]}
            result["floor"] = {"cpu_ms": floor["floor"]["cpu_ms_p50"], "wall_ms": floor["floor"]["wall_ms_p50"]}
            for name, runs in found.items():
                result[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]} | {"samples": runs}
            return result
    except Failure as failure:
        not_run.append(f"containerd: {failure}")
        return None
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _window(containerd, side):
    was, cpu, server = side.numbers(), side.cpu(), containerd.cpu()
    time.sleep(SECONDS)
    cpu, server, now = side.cpu() - cpu, containerd.cpu() - server, side.numbers()
    looks = now["looks"] - was["looks"]
    return {"cpu_ms": cpu / looks * 1e3, "wall_ms": (now["seconds"] - was["seconds"]) / looks * 1e3, "server_cpu_ms": server / looks * 1e3}
