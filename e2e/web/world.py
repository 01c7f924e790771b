"""A simulated node and a daemon that watches it, as processes of their own, for the tests of the web pages."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

READY = 30  # seconds


class World:
    """`pleg sim` and `pleg run` on sockets in a directory of their own; the daemon also has a TCP port."""

    def __init__(self, binary, pods=6, churn=0, history=True, flags=()):
        self.binary = binary
        self.dir = tempfile.mkdtemp(prefix="pleg-web-")
        self.flags = list(flags)
        self.history = history
        self.port = free_port()
        self.daemon = None
        self.sim = self.start("sim", "--listen", self.at("cri"), "--control", self.at("ctl"), "--pods", str(pods), "--churn", str(churn),
                              "--seed", "7", name="sim")
        self.wait(lambda: os.path.exists(self.path("ctl")), "the simulator")
        self.start_daemon()

    def path(self, name):
        return os.path.join(self.dir, f"{name}.sock")

    def at(self, name):
        return f"unix://{self.path(name)}"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, *args, name):
        log = open(os.path.join(self.dir, f"{name}.log"), "ab")
        return subprocess.Popen([self.binary, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_daemon(self):
        self.daemon = self.start("run", "-r", self.at("cri"), "--listen", self.at("pleg"), "--listen-tcp", f"127.0.0.1:{self.port}",
                                 "--inspect-timeout", "1s", *self.history_flags(), *self.flags, name="run")
        self.wait(self.answers, "the daemon")

    def history_flags(self):
        return ["--history-file", os.path.join(self.dir, "history.dat"), "--history-size", "64MiB"] if self.history else ["--history-size", "0"]

    def answers(self):
        if self.daemon.poll() is not None:
            raise AssertionError(f"the daemon has ended: {self.log('run')}")
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def log(self, name):
        with open(os.path.join(self.dir, f"{name}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]

    def wait(self, is_so, what):
        until = time.monotonic() + READY
        while not is_so():
            if time.monotonic() > until:
                raise AssertionError(f"{what} is not ready: {self.log('sim')}")
            time.sleep(0.02)

    def stop_daemon(self, how=signal.SIGTERM):
        self.daemon.send_signal(how)
        self.daemon.wait(READY)

    def get(self, path, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            connection.close()

    def json(self, path):
        status, text, _ = self.get(path)
        assert status == 200, f"{path}: {status} {text}"
        return json.loads(text)

    def command(self, **command):
        """A command of `pleg sim ctl`, by its HTTP interface."""
        connection = http.client.HTTPConnection("localhost", timeout=10)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.path("ctl"))
        try:
            connection.request("POST", "/v1/command", json.dumps(command))
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, f"{command}: {text}"
        finally:
            connection.close()

    def close(self):
        for process in (self.daemon, self.sim):
            if process and process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
