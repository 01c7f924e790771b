"""A kubelet and `pleg node` as the same node of the same cluster, in turn: what a user of the cluster sees, and what it costs."""

import os
import random
import signal
import statistics
import time
from pathlib import Path

from .agents import Kubelet, PlegNode, cached
from .control_plane import NODE, Watch, at_once
from .processes import Failure, eventually

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
# Ends on SIGTERM at once.
POLITE = ["/bin/sh", "-c", "trap 'exit 0' TERM; /tool pause & wait"]
# Nothing takes longer than this, on a loaded machine either.
PATIENCE = 300.0
# How many requests at once "at once" is.
CLIENTS = 10


def pod_facts(pod):
    """What the cases look at."""
    status = pod.get("status", {})
    container = (status.get("containerStatuses") or [{}])[0]
    conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
    state = container.get("state", {})
    return {
        "phase": status.get("phase"),
        "ready": conditions.get("Ready") == "True",
        "id": container.get("containerID", "").rpartition("//")[2],
        "restarts": container.get("restartCount", 0),
        "running": "running" in state,
        "died": "terminated" in state or "terminated" in container.get("lastState", {}) or container.get("restartCount", 0) > 0,
    }


def node_facts(node):
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", [])}
    return {"ready": conditions.get("Ready"), "tainted": bool(node["spec"].get("taints"))}


def is_running(pod):
    return pod is not None and pod["phase"] == "Running"


def is_ready(pod):
    return pod is not None and pod["ready"]


class NodeBench:
    """One turn after the other. A turn is one agent with a clean Node object and a runtime without pods."""

    def __init__(self, cluster, program, plan, say):
        self.cluster, self.api, self.program, self.plan, self.say = cluster, cluster.api, program, plan, say
        self.crictl = cached("cri-tools", "crictl")
        self.random = random.Random(1)

    def agent(self, name):
        directory = self.cluster.directory / "agents" / name
        return Kubelet(self.cluster, directory) if name == "kubelet" else PlegNode(self.cluster, directory, self.program)

    def turn(self, name):
        """All rows for one agent, each a number or a list of numbers."""
        self.cluster.remove_pods(self.crictl)
        self.api.delete(f"{NODES}/{NODE}")
        with (
            self.agent(name) as agent,
            Watch(self.api, NODES, f"metadata.name%3D{NODE}", node_facts) as node,
            Watch(self.api, PODS, f"spec.nodeName%3D{NODE}", pod_facts) as pods,
        ):
            self.until_ready(agent, node)
            found = self.counted("start", agent, lambda: self.starts(pods, self.plan.pods))
            found |= self.deaths(pods)
            found |= self.counted("delete", agent, lambda: self.deletion(pods))
            if self.plan.rest_pods:
                self.start(pods, "rest", self.plan.rest_pods)
                found |= self.rest(agent)
                found |= self.restart(agent, node, pods)
                self.remove_all(pods, 1)
            self.until_empty(agent)
        self.cluster.remove_pods(self.crictl)
        return found

    def counted(self, name, agent, case):
        """A case, with the requests that the agent made meanwhile and the processor time that it took: where the time goes."""
        since, cpu = time.time(), agent.process.cpu()
        found = case()
        cost = {f"{name}_cpu_s": agent.process.cpu() - cpu, f"{name}_requests": dict(self.cluster.requests(since, time.time()))}
        return found | cost

    def until_ready(self, agent, node):
        agent_alive = agent.process.alive

        def is_up(nodes):
            return agent_alive() and nodes.get(NODE, {}).get("ready") == "True" and not nodes[NODE]["tainted"]

        node.until(f"{agent.name}: the node is Ready", is_up, 60)

    def until_empty(self, agent):
        """The pods are gone from the API server; the agent may still remove their files."""
        path = agent.directory / ("root/pods" if agent.name == "kubelet" else "pods")
        eventually(f"no pod left in {path}", lambda: not path.exists() or not os.listdir(path), PATIENCE, every=0.1)

    def create(self, name, **more):
        container = {"name": "c", "image": self.cluster.said["IMAGE"], "imagePullPolicy": "Never", "command": POLITE}
        spec = {"nodeName": NODE, "hostNetwork": True, "containers": [container], "tolerations": [{"operator": "Exists"}], **more}
        self.api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def start(self, pods, prefix, count):
        """Creates pods that are bound to the node. Returns when each was created, and when each was Running in the API."""
        names = [f"{prefix}-{number}" for number in range(count)]
        created = {}

        def one(name):
            created[name] = time.monotonic()
            self.create(name)

        began = time.monotonic()
        at_once(CLIENTS, one, names)
        pods.until(f"{count} pods run", lambda now: all(is_running(now.get(name)) for name in names), PATIENCE)
        return began, {name: (created[name], pods.first(name, began, is_running)) for name in names}

    def starts(self, pods, count):
        began, times = self.start(pods, "web", count)
        return {
            "start_s": max(running for _, running in times.values()) - began,
            "start_median_s": statistics.median(running - created for created, running in times.values()),
        }

    def deaths(self, pods):
        """Kills containers, one after the other, at any moment of a second."""
        told, restarted = [], []
        for number in range(self.plan.deaths):
            name = f"web-{number}"
            time.sleep(self.random.uniform(0.5, 1.5))
            pid = first_process(pods.now[name]["id"])
            died = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            pods.until(f"{name} runs again", lambda now, name=name: now[name]["restarts"] == 1 and now[name]["running"], PATIENCE)
            told.append(pods.first(name, died, lambda pod: pod["died"]) - died)
            restarted.append(pods.first(name, died, lambda pod: pod["restarts"] == 1 and pod["running"]) - died)
        return {"death_s": told, "restarted_s": restarted}

    def deletion(self, pods):
        names, began = list(pods.now), time.monotonic()
        asked = self.remove_all(pods, 1)
        gone = {name: pods.first(name, began, lambda pod: pod is None) for name in names}
        return {
            "delete_s": max(gone.values()) - began,
            "delete_median_s": statistics.median(gone[name] - asked[name] for name in names),
        }

    def remove_all(self, pods, grace):
        names, asked = list(pods.now), {}

        def one(name):
            asked[name] = time.monotonic()
            self.api.delete(f"{PODS}/{name}", grace)

        at_once(CLIENTS, one, names)
        pods.until("all pods are gone", lambda now: not now, PATIENCE)
        return asked

    def rest(self, agent):
        """What it costs while nothing happens."""
        time.sleep(self.plan.settle_s)
        runtime = self.cluster.runtime_pid()
        before, cpu, server, since = time.monotonic(), agent.process.cpu(), cpu_of(runtime), time.time()
        time.sleep(self.plan.rest_s)
        seconds, until = time.monotonic() - before, time.time()
        found = {
            "rest_cpu_percent": (agent.process.cpu() - cpu) / seconds * 100,
            "rest_runtime_cpu_percent": (cpu_of(runtime) - server) / seconds * 100,
            "rest_rss_mib": agent.rss(),
        }
        requests = self.cluster.requests(since, until)
        return found | {"rest_requests_per_minute": requests.total() / seconds * 60, "rest_requests": dict(requests)}

    def restart(self, agent, node, pods):
        """Killed, away until the controllers have marked its node Unknown and its pods not Ready, and started again."""
        before = dict(pods.now)
        agent.kill()
        node.until("the node is Unknown", lambda now: now[NODE]["ready"] == "Unknown", 120)
        pods.until("no pod is Ready", lambda now: not any(pod["ready"] for pod in now.values()), 120)
        since, began = time.time(), time.monotonic()
        agent.start()
        node.until("the node is Ready again", lambda now: now[NODE]["ready"] == "True", PATIENCE)
        pods.until("all pods are Ready again", lambda now: all(pod["ready"] for pod in now.values()), PATIENCE)
        until = time.time()
        ready = node.first(NODE, began, lambda found: found["ready"] == "True")
        confirmed = [pods.first(name, began, is_ready) for name in before]
        changed = [name for name, pod in pods.now.items() if pod["id"] != before[name]["id"] or pod["restarts"] != before[name]["restarts"]]
        if changed or pods.now.keys() != before.keys():
            raise Failure(f"{agent.name}: its restart has restarted containers of {', '.join(changed) or 'pods that are gone'}")
        requests = self.cluster.requests(since, until)
        return {
            "restart_s": max(ready, *confirmed) - began,
            "restart_node_s": ready - began,
            "restart_requests": dict(requests),
        }


def cpu_of(pid):
    """Seconds of processor time of a process: its own clock (see clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def first_process(container):
    """The process of a container that is number 1 there; its monitor's cgroup has another name."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            groups = (process / "cgroup").read_text()
            if container not in groups:
                continue
            last = {line.rpartition("/")[2] for line in groups.splitlines() if container in line}
            inside = next(line for line in (process / "status").read_text().splitlines() if line.startswith("NSpid:")).split()
        except (OSError, StopIteration):
            continue
        if not any("conmon" in one for one in last) and len(inside) > 2 and inside[-1] == "1":
            return int(process.name)
    raise Failure(f"container {container} has no process")
