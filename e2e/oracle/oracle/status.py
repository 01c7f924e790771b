"""Statuses and logs in a form in which two agents can be compared: without ids, times and addresses."""

import re
from pathlib import Path

from .agents import NODE

# A crash loop goes on for ever; this many restarts prove it.
ENOUGH_RESTARTS = 2
# Seconds without a change after which a pod has come to rest; back-offs of crash loops are longer.
REST = 7
# The same for a pod whose containers are being created: on a busy machine it may wait for others.
LONG_REST = 30
LOG_LINE = re.compile(r"^\S+ (stdout|stderr) [FP] ?(.*)$")


def manifest_of(pod):
    return pod["metadata"]["name"].removesuffix(f"-{NODE}")


def reduce(pod, logs):
    """All that has to be equal, as a flat map from a path to a value."""
    status = pod.get("status", {})
    uid = pod["metadata"]["uid"]
    found = {
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "message": status.get("message"),
        "qosClass": status.get("qosClass"),
        "has podIP": bool(status.get("podIP")),
        "has podIPs": bool(status.get("podIPs")),
        "has hostIP": bool(status.get("hostIP")),
        "has startTime": bool(status.get("startTime")),
    }
    for condition in status.get("conditions") or []:
        found[f"condition {condition['type']}"] = f"{condition['status']} {condition.get('reason') or ''}".strip()
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or []:
            name = ("init " if kind.startswith("init") else "") + container["name"]
            found |= {f"{name}: {key}": value for key, value in of_container(container, uid).items()}
    found |= {f"log {name}": lines for name, lines in of_logs(logs, pod).items()}
    return found


def of_container(container, uid):
    state = container.get("state") or {}
    found = {
        "state": of_state(state, uid),
        "last state": of_state(container.get("lastState") or {}, uid),
        "ready": container.get("ready"),
        "started": container.get("started"),
        "restarts": min(container.get("restartCount", 0), ENOUGH_RESTARTS),
        "image": container.get("image"),
        "has containerID": bool(container.get("containerID")),
        "has imageID": bool(container.get("imageID")),
    }
    return found


def of_state(state, uid):
    if running := state.get("running"):
        return "running" if running.get("startedAt") else "running, since when is not known"
    if waiting := state.get("waiting"):
        return f"waiting {waiting.get('reason') or ''}".strip()
    if ended := state.get("terminated"):
        text = f"terminated {ended.get('reason') or ''} {ended.get('exitCode')}"
        if ended.get("signal"):
            text += f" signal {ended['signal']}"
        message = ended.get("message")
        # The runtime's own words are not ours to compare.
        if message and ended.get("reason") not in ("StartError", "ContainerCannotRun"):
            text += f" {message.replace(uid, 'UID')!r}"
        return text
    return "none"


def of_logs(logs, pod):
    """The newest log of each container, and how many there are of one that was not restarted."""
    meta = pod["metadata"]
    directory = Path(logs) / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
    found = {}
    for container in sorted(path for path in directory.glob("*") if path.is_dir()):
        files = sorted(container.glob("*.log"), key=lambda path: int(path.stem))
        if files:
            text = files[-1].read_text(errors="replace")
            found[container.name] = [list(match.groups()) for match in map(LOG_LINE.match, text.splitlines()) if match]
    return found


def settled(reduced, quiet):
    """Nothing is under way after so many quiet seconds. A crash loop counts once it is one; what is being created needs longer."""
    creating = any(value in ("waiting ContainerCreating", "waiting PodInitializing") for value in reduced.values())
    if quiet < (LONG_REST if creating else REST):
        return False
    looping = [path.removesuffix(": state") for path, value in reduced.items() if value == "waiting CrashLoopBackOff"]
    pulling = any(value == "waiting ErrImagePull" for value in reduced.values())
    return not pulling and all(reduced[f"{name}: restarts"] >= ENOUGH_RESTARTS for name in looping)


class Watched:
    """The statuses of one agent's pods, and since when each is what it is."""

    def __init__(self, names):
        self.now = {name: (None, 0.0) for name in names}
        self.rested = {}

    def see(self, pods, logs, at):
        for pod in pods:
            name = manifest_of(pod)
            reduced = reduce(pod, logs)
            was, since = self.now.get(name, (None, 0.0))
            if reduced != was:
                self.now[name] = (reduced, at)
            elif settled(reduced, at - since):
                self.rested[name] = reduced

    def restless(self):
        return sorted(set(self.now) - set(self.rested))


def differences(kubelet, ours):
    """What differs in one pod: path, the kubelet's value, ours."""
    paths = sorted(set(kubelet) | set(ours))
    return [(path, kubelet.get(path), ours.get(path)) for path in paths if kubelet.get(path) != ours.get(path)]
