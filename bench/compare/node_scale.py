"""Many pods of a simulated runtime on one node of a real control plane: memory, requests, the list at the start."""

import json
import shutil
import tempfile
import time
from pathlib import Path

from .agents import PlegNode
from .control_plane import NODE, Watch, at_once
from .node_cases import NODES, PODS, is_ready, is_running, node_facts, pod_facts
from .processes import Failure, Simulator, UnixHTTP, eventually

CLIENTS = 8
PATIENCE = 1800.0


class Scale:
    """`pleg node` on `pleg sim`, with so many pods."""

    def __init__(self, cluster, program, pods, say, rest_s=60.0):
        self.cluster, self.api, self.program, self.count, self.say, self.rest_s = cluster, cluster.api, program, pods, say, rest_s
        self.pleg = program

    def measure(self):
        directory = Path(tempfile.mkdtemp(prefix="pleg-bench-"))
        try:
            with Simulator(self, 0) as simulator:
                return self._measure(simulator, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _measure(self, simulator, directory):
        flags = ["--max-pods", str(self.count)]
        found = {"pods": self.count, "clients": CLIENTS}
        with (
            PlegNode(self.cluster, directory, self.program, simulator.endpoint, flags) as agent,
            Watch(self.api, NODES, f"metadata.name%3D{NODE}", node_facts) as node,
            Watch(self.api, PODS, f"spec.nodeName%3D{NODE}", pod_facts) as pods,
        ):
            node.until("the node is Ready", lambda now: agent.process.alive() and now.get(NODE, {}).get("ready") == "True", 60)
            found |= self.start(agent, pods)
            self.say(f"    {found}")
            found |= self.rest(agent)
            first = agent.process.max_rss()
            found |= self.restart(agent, pods)
            self.say(f"    {found}")
            found |= self.delete(pods)
            found["max_rss_mib"] = max(first, agent.process.max_rss())
        return found

    def start(self, agent, pods):
        names = [f"many-{number}" for number in range(self.count)]
        since, began, cpu = time.time(), time.monotonic(), agent.process.cpu()
        at_once(CLIENTS, self.create, names)
        created = time.monotonic()
        self.say(f"    {self.count} pods created")
        pods.until(f"{self.count} pods run", lambda now: len(now) == self.count and all(map(is_running, now.values())), PATIENCE)
        seconds, until = time.monotonic() - began, time.time()
        requests = self.cluster.requests(since, until)
        return {
            "start_s": seconds,
            "create_s": created - began,
            "start_cpu_s": agent.process.cpu() - cpu,
            "start_patches_per_second": requests["patch pods/status"] / seconds,
            "start_requests_per_pod": requests.total() / self.count,
            "start_by_request": dict(requests),
        }

    def create(self, name):
        container = {"name": "c", "image": "busybox:1.36", "imagePullPolicy": "IfNotPresent"}
        more = {"automountServiceAccountToken": False, "enableServiceLinks": False, "tolerations": [{"operator": "Exists"}]}
        spec = {"nodeName": NODE, "containers": [container], **more}
        self.api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def rest(self, agent):
        time.sleep(15)
        since, began, cpu = time.time(), time.monotonic(), agent.process.cpu()
        time.sleep(self.rest_s)
        seconds = time.monotonic() - began
        requests = self.cluster.requests(since, time.time())
        return {
            "rest_cpu_percent": (agent.process.cpu() - cpu) / seconds * 100,
            "rest_rss_mib": agent.rss(),
            "rest_requests_per_minute": requests.total() / seconds * 60,
            "rest_by_request": dict(requests),
        }

    def restart(self, agent, pods):
        """Killed and started again at once. Done when it has a status of each pod of its own, and nothing more to tell the API server."""
        before = dict(pods.now)
        agent.kill()
        pods.forget()
        since, began = time.time(), time.monotonic()
        agent.start()
        # What it serves itself is what it has seen since its start.
        eventually("all pods are known again", lambda: agent.process.alive() and self.reported(agent) == self.count, PATIENCE, every=0.25)
        seconds = time.monotonic() - began
        time.sleep(15)
        requests = self.cluster.requests(since, time.time())
        if {name: pod["id"] for name, pod in pods.now.items()} != {name: pod["id"] for name, pod in before.items()}:
            raise Failure("the restart has restarted containers")
        return {
            "restart_s": seconds,
            "restart_cpu_s": agent.process.cpu(),
            "restart_max_rss_mib": agent.process.max_rss(),
            "restart_requests": requests.total(),
            "restart_lists": requests["list pods"],
            "restart_patches": requests["patch pods/status"],
            "restart_by_request": dict(requests),
        }

    def reported(self, agent):
        """How many pods the node's own API has as Running, with a container."""
        try:
            answer = UnixHTTP(agent.directory / "pleg.sock").ask("GET", "/api/v1/pods")
        except OSError:
            return 0
        found = (pod_facts(pod) for pod in json.loads(answer)["items"])
        return sum(1 for pod in found if is_running(pod) and is_ready(pod) and pod["id"])

    def delete(self, pods):
        began = time.monotonic()
        at_once(CLIENTS, lambda name: self.api.delete(f"{PODS}/{name}", 1), list(pods.now))
        pods.until("all pods are gone", lambda now: not now, PATIENCE)
        return {"delete_s": time.monotonic() - began}
