"""A real control plane and runtime, as the end-to-end tests start them, and what the API server has: objects, changes, requests."""

import collections
import contextlib
import datetime
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from .processes import Failure, Process
from .programs import ROOT, TARGET

NODE = "n1"
# Who asks, and when, of all nodes: this is where requests are counted, so it does not matter what an agent says of itself.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:nodes"]}, {"level": "None"}],
}


class ControlPlane(Process):
    """The example `cluster` of the end-to-end tests: etcd, the API server, its controllers and a runtime, until it is closed."""

    def __init__(self, runtime):
        self.own = Path(tempfile.mkdtemp(prefix="pleg-bench-"))
        self.audit_log = self.own / "audit.log"
        policy = self.own / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        flags = f"--audit-policy-file={policy} --audit-log-path={self.audit_log} --audit-log-maxsize=4000"
        program = TARGET / "debug" / "examples" / "cluster"
        if not program.exists():
            raise Failure(f"{program} is missing: cargo build --workspace --example cluster")
        command = ["env", f"PLEG_E2E_API_SERVER_FLAGS={flags}", program, *([runtime, NODE] if runtime else [])]
        super().__init__("cluster", command, self.own, stdout=subprocess.PIPE, cwd=ROOT)
        self.said = {}
        for line in self.child.stdout:
            line = line.decode().strip()
            if line.startswith("# Ctrl-C"):
                break
            if line.startswith("# Kubernetes"):
                self.version = line.split()[2]
            for word in line.removeprefix("export ").split():
                name, is_set, value = word.partition("=")
                if is_set:
                    self.said[name] = value
        else:
            self.child.wait(30)
            self.alive()
        self.api = Api(self.said["KUBECONFIG"])

    @property
    def endpoint(self):
        return self.said["CONTAINER_RUNTIME_ENDPOINT"]

    @property
    def directory(self):
        """The runtime's; it is removed with everything in it."""
        return Path(self.said["NODE_DIR"])

    def runtime_pid(self):
        """The runtime's own process: the first one with its directory among its arguments."""
        wanted = str(self.directory).encode()
        for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            try:
                args = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if Path(args[0].decode(errors="replace")).name in ("crio", "containerd") and any(wanted in arg for arg in args):
                return int(process.name)
        raise Failure(f"the runtime in {self.directory} has no process")

    def requests(self, since, until):
        """Requests of the node between two times of the wall clock: by what they were, how many, and in all."""
        seen, counted = set(), collections.Counter()
        with open(self.audit_log, "rb") as log:
            for line in log:
                request = json.loads(line)
                at = seconds_of(request["requestReceivedTimestamp"])
                # A watch is told of when it begins and when it ends.
                if request["auditID"] in seen or not since <= at < until:
                    continue
                seen.add(request["auditID"])
                about = request.get("objectRef", {})
                what = "/".join(filter(None, (about.get("resource", request["requestURI"]), about.get("subresource"))))
                counted[f"{request['verb']} {what}"] += 1
        return counted

    def remove_pods(self, crictl):
        """What an agent has left in the runtime."""
        done = subprocess.run([crictl, "-r", self.endpoint, "-t", "60s", "rmp", "-f", "-a"], capture_output=True, check=False)
        if done.returncode and b"no such" not in done.stderr.lower():
            raise Failure(f"crictl rmp: {done.stderr.decode(errors='replace').strip()[-300:]}")

    def close(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            try:
                self.child.wait(60)
            except subprocess.TimeoutExpired:
                pass
        super().close()
        shutil.rmtree(self.own, ignore_errors=True)


def seconds_of(text):
    """Seconds since the epoch, of a time as 2026-11-16T04:12:37.123456Z."""
    return datetime.datetime.fromisoformat(text).timestamp()


class Api:
    """The API server, for an administrator. Each thread has a connection of its own."""

    def __init__(self, kubeconfig):
        config = json.loads(Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.host = cluster["server"].removeprefix("https://")
        self.tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self.tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self.of_thread = threading.local()

    def connect(self, timeout=60):
        return http.client.HTTPSConnection(self.host, context=self.tls, timeout=timeout)

    def ask(self, method, path, body=None, kind="application/json", missing_ok=False):
        connection = getattr(self.of_thread, "connection", None)
        for attempt in (1, 2):
            if connection is None:
                connection = self.of_thread.connection = self.connect()
            try:
                connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": kind})
                answer = connection.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                connection = self.of_thread.connection = None
                if attempt == 2:
                    raise Failure(f"{method} {path}: {error}") from error
        if answer.status == 404 and missing_ok:
            return None
        if answer.status >= 300:
            raise Failure(f"{method} {path}: {answer.status} {text.decode(errors='replace')[:300]}")
        return json.loads(text) if text else None

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, body):
        return self.ask("POST", path, body)

    def delete(self, path, grace=None):
        body = None if grace is None else {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
        return self.ask("DELETE", path, body, missing_ok=True)


class Watch:
    """What the API server has of some objects, with the time at which each change arrived here. `facts` makes of an object what is kept."""

    def __init__(self, api, path, selector, facts):
        self.api, self.path, self.facts = api, path, facts
        self.query = f"fieldSelector={selector}" if selector else ""
        self.changed = threading.Condition()
        # By name: what it is now; and every change of it.
        self.now, self.history = {}, collections.defaultdict(list)
        self.failure, self.closed = None, False
        listed = api.get(f"{path}?{self.query}")
        for item in listed.get("items", []):
            self.now[item["metadata"]["name"]] = facts(item)
        self.version = listed["metadata"]["resourceVersion"]
        self.connection = api.connect(timeout=None)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        try:
            while not self.closed:
                self.connection.request("GET", f"{self.path}?{self.query}&watch=1&resourceVersion={self.version}&timeoutSeconds=3000")
                answer = self.connection.getresponse()
                while line := answer.readline():
                    self._take_in(time.monotonic(), json.loads(line))
        except Exception as error:
            with self.changed:
                self.failure = None if self.closed else error
                self.changed.notify_all()

    def _take_in(self, at, event):
        if event["type"] == "ERROR":
            raise Failure(f"watch of {self.path}: {event['object']}")
        metadata = event["object"]["metadata"]
        self.version = metadata["resourceVersion"]
        name = metadata["name"]
        found = None if event["type"] == "DELETED" else self.facts(event["object"])
        with self.changed:
            if found is None:
                self.now.pop(name, None)
            else:
                self.now[name] = found
            self.history[name].append((at, found))
            self.changed.notify_all()

    def until(self, what, is_so, patience):
        """Waits until something is so of all that is there; returns what `is_so` returned."""
        end = time.monotonic() + patience
        with self.changed:
            while not (found := is_so(self.now)):
                if self.failure:
                    raise Failure(f"watch of {self.path}: {self.failure}")
                if not self.changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    raise Failure(f"{what}: not within {patience:.0f} s")
            return found

    def first(self, name, since, is_so):
        """When, after a time, an object was first so; None is an object that is gone."""
        with self.changed:
            return next((at for at, found in self.history[name] if at >= since and is_so(found)), None)

    def forget(self):
        with self.changed:
            self.history.clear()

    def close(self):
        self.closed = True
        # The reader is in a call that only this ends.
        if sock := self.connection.sock:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.reader.join(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def at_once(clients, work, items):
    """Does the same with each of many things, by some threads at once."""
    items, failures = collections.deque(items), []

    def one():
        try:
            while not failures:
                try:
                    item = items.popleft()
                except IndexError:
                    return
                work(item)
        except Failure as failure:
            failures.append(failure)

    threads = [threading.Thread(target=one) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
