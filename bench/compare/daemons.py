"""Several `pleg run` that differ in one setting, on one simulated runtime at the same time: what else the machine does hits all alike."""

import json
import os
import subprocess
import time
from pathlib import Path

from compare.processes import Process, UnixHTTP, eventually


class Daemon(Process):
    """`pleg run` with these arguments and variables, and with no OTEL_* or PLEG_* variable else."""

    def __init__(self, program, endpoint, directory, name, *args, **variables):
        path = Path(directory) / f"{name.replace(' ', '-')}.sock"
        command = [program, "run", "-r", endpoint, "--listen", f"unix://{path}", *args]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "PLEG_"))}
        super().__init__(f"pleg-{path.stem}", command, directory, env=kept | variables, stdout=subprocess.DEVNULL)
        self.http, self.path = UnixHTTP(path), path

    def until_ready(self):
        eventually("the first relist", lambda: self.alive() and self.path.exists() and self.relists() > 0, 120, every=0.1)

    def relists(self):
        return json.loads(self.http.ask("GET", "/api/v1/health"))["looks"]

    def metrics(self, prefix):
        """Values by name and labels, for all metrics whose names begin so."""
        lines = self.http.ask("GET", "/metrics").decode().splitlines()
        found = (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
        return {name: float(value) for name, value in found}


class Program:
    """What a simulator is started with."""

    def __init__(self, path):
        self.pleg = path


def measure(daemons, seconds):
    """CPU in percent of one core, for each."""
    before = {name: daemon.cpu() for name, daemon in daemons.items()}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: (daemon.cpu() - before[name]) / took * 100 for name, daemon in daemons.items()}
