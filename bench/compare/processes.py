"""The three kinds of processes: the simulated runtime, the kubelet's PLEG, ours. Each is asked from outside what it cost."""

import calendar
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

# Whatever a case waits for, it does not wait longer.
PATIENCE = 900.0


class Failure(Exception):
    """A case that cannot be measured; said in the output, and the next case is run."""


def eventually(what, is_so, patience=PATIENCE, every=0.005):
    """Waits until something is so; returns what `is_so` returned."""
    end = time.monotonic() + patience
    while True:
        if found := is_so():
            return found
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {patience:.0f} s")
        time.sleep(every)


class UnixHTTP(http.client.HTTPConnection):
    """HTTP/1.1 over a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def ask(self, method, path, body=None):
        """The answer's body; a new connection if the last one was closed."""
        try:
            self.request(method, path, body)
            answer = self.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError):
            self.close()
            self.request(method, path, body)
            answer = self.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise Failure(f"{method} {path}: {answer.status} {text.decode(errors='replace')[:200]}")
        return text


class Process:
    """A child that does not outlive us, with its errors in a file."""

    def __init__(self, name, command, directory, **pipes):
        self.name = name
        self.log = Path(directory) / f"{name}-{time.monotonic_ns()}.log"
        with open(self.log, "wb") as log:
            # In a session of its own: a group with stopped members that loses its shell is hung up by the kernel.
            self.child = subprocess.Popen(command, stderr=log, start_new_session=True, **pipes)

    def alive(self):
        if (code := self.child.poll()) is not None:
            said = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Failure(f"{self.name} ended with {code}: {' | '.join(said)}")
        return True

    def cpu(self):
        """Seconds of processor time, user and system, of all its threads: the process's own clock (see clock_getcpuclockid)."""
        return time.clock_gettime((~self.child.pid << 3) | 2)

    def max_rss(self):
        """The most memory that was resident, in MiB."""
        for line in Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise Failure(f"{self.name}: the kernel does not tell its memory")

    def pause(self):
        self.child.send_signal(signal.SIGSTOP)

    def resume(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)

    def close(self):
        if self.child.poll() is None:
            self.resume()
            self.child.terminate()
            try:
                self.child.wait(10)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Simulator(Process):
    """`pleg sim`: two containers a pod, every answer shuffled."""

    def __init__(self, programs, pods, seed=1, processes=False):
        self.dir = tempfile.mkdtemp(prefix="pleg-bench-")
        self.endpoint = f"unix://{self.dir}/cri.sock"
        control = f"unix://{self.dir}/ctl.sock"
        command = [programs.pleg, "sim", "--listen", self.endpoint, "--control", control, "--pods", str(pods), "--seed", str(seed)]
        if processes:
            command.append("--processes")
        super().__init__("sim", command, self.dir)
        self.pods = pods
        self.http = UnixHTTP(f"{self.dir}/ctl.sock")
        eventually("the simulator's start", lambda: self.alive() and b"ready" in self.log.read_bytes(), 120)

    def tell(self, verb, **what):
        body = json.dumps({verb: {key: value for key, value in what.items() if value is not None}})
        return json.loads(self.http.ask("POST", "/v1/command", body))

    def calls(self, rpc="ListContainers"):
        """How often a call was made, and how many are being answered."""
        stats = json.loads(self.http.ask("GET", "/v1/stats"))["stats"]["rpcs"].get(rpc, {})
        return stats.get("calls", 0), stats.get("in_flight", 0)

    def all_calls(self):
        stats = json.loads(self.http.ask("GET", "/v1/stats"))["stats"]["rpcs"]
        return {name: rpc["calls"] for name, rpc in stats.items()}

    def between_looks(self, client):
        """Waits for a look to be asked for and answered, and for the client to be done with it. Asks the simulator alone, so that the
        client pays nothing for being watched. Returns how many looks were asked for."""
        before, _ = self.calls()
        eventually("a look", lambda: client.alive() and self.calls()[0] > before, every=0.02)
        eventually("the end of a look", lambda: client.alive() and self.calls()[1] == 0, every=0.02)
        time.sleep(0.5)  # The next one begins a second after this one has ended.
        return self.calls()[0]

    def close(self):
        super().close()
        for name in os.listdir(self.dir):
            os.unlink(os.path.join(self.dir, name))
        os.rmdir(self.dir)


class Side(Process):
    """A generator under test. Its reader keeps the bytes and counts; they are read when time no longer matters."""

    deaths_as = b'"ContainerDied"'

    def __init__(self, name, command, directory, **pipes):
        super().__init__(name, command, directory, **pipes)
        self.chunks = []
        self.deaths = 0
        self.reader = threading.Thread(target=self._read, daemon=True)

    def _keep(self, chunk, rest):
        """Whole lines are kept and counted, the rest comes with the next chunk."""
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            self.chunks.append(lines)
            self.deaths += lines.count(self.deaths_as)
        return rest

    def lines(self):
        for chunk in list(self.chunks):
            for line in chunk.splitlines():
                yield json.loads(line)

    def trouble(self):
        """Why its looks fail, if they do."""
        return None

    def wait_first_look(self):
        eventually(f"{self.name}'s first look", lambda: self.alive() and self.numbers()["looks"] >= 1, every=0.2)


class Kubelet(Side):
    """The kubelet's PLEG (bench/kubelet). Its events have the time at which they were taken from its channel."""

    def __init__(self, programs, endpoint, directory, mode="generic", stall=0.0):
        command = [programs.kubelet, "--endpoint", endpoint, "--mode", mode, "--stall", f"{stall}s"]
        super().__init__("kubelet", command, directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.reply = {"at": 0}
        self.reader.start()

    def _read(self):
        rest = b""
        while chunk := self.child.stdout.read1(1 << 16):
            rest = self._keep(chunk, rest)
            if self.chunks and b'"numbers"' in self.chunks[-1]:
                found = [line for line in self.chunks[-1].splitlines() if b'"numbers"' in line]
                self.reply = json.loads(found[-1])["numbers"]

    def numbers(self):
        """Looks, their seconds and dropped events by the kubelet's own metrics."""
        asked = time.time_ns()
        self.child.stdin.write(b"\n")
        self.child.stdin.flush()

        found = eventually("the kubelet's numbers", lambda: self.alive() and self.reply["at"] >= asked and self.reply, 60)
        return {"looks": found["relists"], "seconds": found["relist_seconds"], "dropped": int(found["discarded"]), "fails": found.get("unhealthy")}

    def trouble(self):
        """Why its looks fail, if they do: its last error."""
        if not self.numbers()["fails"]:
            return None
        errors = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("E")]
        return errors[-1].partition("] ")[2][:300] if errors else self.numbers()["fails"]

    def events(self):
        """(time, type, pod's UID, id), as they came."""
        for line in self.lines():
            if event := line.get("event"):
                yield line["at"] / 1e9, event["Type"], event["ID"], event["Data"]

    def close(self):
        # It ends by itself then, and takes its directory with it.
        self.resume()
        self.child.stdin.close()
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            pass
        super().close()
        self.reader.join(5)


class Pleg(Side):
    """`pleg run`, the daemon as it is shipped, with a reader of its event stream. Its events have the time of their commit."""

    def __init__(self, programs, endpoint, directory, mode="generic", stall=0.0, flags=()):
        socket_path = Path(directory) / f"pleg-{time.monotonic_ns()}.sock"
        command = [programs.pleg, "run", "-r", endpoint, "--listen", f"unix://{socket_path}", "--log-level", "error"]
        if programs.has_history:
            # As shipped, but not in the file of this machine's own daemon.
            command += ["--history-file", str(Path(directory) / f"history-{time.monotonic_ns()}.dat")]
        super().__init__("pleg", [*command, *programs.mode(mode), *flags], directory)
        self.socket_path = socket_path
        self.stall = stall
        eventually("the daemon's socket", lambda: self.alive() and socket_path.exists(), 60)
        self.http = UnixHTTP(socket_path)
        self.reader.start()

    def _read(self):
        connection = UnixHTTP(self.socket_path)
        try:
            connection.request("GET", "/api/v1/events?follow&since=0")
            answer = connection.getresponse()
            time.sleep(self.stall)
            connection.sock.settimeout(None)
            rest = b""
            while chunk := answer.read1(1 << 16):
                rest = self._keep(chunk, rest)
        except (OSError, http.client.HTTPException):
            pass  # The daemon has ended.

    def mode(self):
        """How changes are found, by what the daemon says."""
        return json.loads(self.http.ask("GET", "/api/v1/health"))["mode"]

    def usage(self):
        """Open files, and memory that is resident now, in MiB."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return {"open_files": len(os.listdir(f"/proc/{self.child.pid}/fd")), "rss_mib": int(resident.split()[1]) / 1024}

    def numbers(self):
        found = {}
        for line in self.http.ask("GET", "/metrics").decode().splitlines():
            name, _, value = line.rpartition(" ")
            found[name] = value
        return {
            "looks": int(float(found["kubelet_pleg_relist_duration_seconds_count"])),
            "seconds": float(found["kubelet_pleg_relist_duration_seconds_sum"]),
            "dropped": 0,
        }

    def events(self):
        for line in self.lines():
            subject = line.get("subject", {})
            yield seconds_of(line["time"]) if "time" in line else 0.0, line["type"], line.get("pod", {}).get("uid"), subject.get("id")


_seconds = {}


def seconds_of(text):
    """Seconds since the epoch, of a time as 2026-11-16T04:12:37.123456789Z."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    if whole not in _seconds:
        _seconds[whole] = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return _seconds[whole] + (float(f"0.{fraction}") if fraction else 0.0)
