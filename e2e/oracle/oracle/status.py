"""Statuses and logs in a form in which two agents can be compared: without ids, times and addresses."""

import re
from pathlib import Path

from .agents import NODE

# A crash loop goes on for ever; this many restarts prove it.
ENOUGH_RESTARTS = 2
# Between two attempts a kubelet first shows how the last one ended, or the error of its start, and a back-off only with its next sync. With
# an API server that comes at once, because its own status comes back to it; without one it may come after the back-off. So all of
# this is one state here.
START_ERRORS = {"waiting CrashLoopBackOff", "waiting RunContainerError", "waiting PostStartHookError"}
PULL_ERRORS = {"waiting ErrImagePull", "waiting ImagePullBackOff"}
BACK_OFF = "back-off after "
# Seconds without a change after which a pod has come to rest; back-offs of crash loops are longer.
REST = 7
# The same for pods whose containers are being created, during which no other pod has come further either: on a busy machine they wait.
LONG_REST = 15
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
    for kind, specs in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")):
        for container in status.get(kind) or []:
            name = ("init " if kind.startswith("init") else "") + container["name"]
            found |= {f"{name}: {key}": value for key, value in of_container(container, uid).items()}
            spec = next(spec for spec in pod["spec"][specs] if spec["name"] == container["name"])
            fold(found, name, to_be_restarted(pod, spec, container))
    found |= {f"log {name}": lines for name, lines in of_logs(logs, pod).items()}
    return found


def fold(found, name, ended):
    """One state for a container between two attempts."""
    state, last = found[f"{name}: state"], found[f"{name}: last state"]
    if state in PULL_ERRORS:
        found[f"{name}: state"] = "waiting for its image"
    elif state in START_ERRORS or ended:
        found[f"{name}: state"] = BACK_OFF + (state if ended else last)
        del found[f"{name}: last state"]


def to_be_restarted(pod, spec, container):
    """It has ended, and the policy says that it starts again."""
    ended = (container.get("state") or {}).get("terminated")
    if not ended or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return False
    policy = spec.get("restartPolicy") or pod["spec"].get("restartPolicy") or "Always"
    if spec in (pod["spec"].get("initContainers") or []) and spec.get("restartPolicy") != "Always":
        return ended.get("exitCode") != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and ended.get("exitCode") != 0)


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
            lines = [list(match.groups()) for match in map(LOG_LINE.match, text.splitlines()) if match]
            # The runtime reads the two streams apart from each other: only the order within one means something.
            found[container.name] = sorted(lines, key=lambda line: line[0])
    return found


def creating(reduced):
    """Its containers wait for their turn, for a volume, or for those before them."""
    return any(value in ("waiting ContainerCreating", "waiting PodInitializing") for value in (reduced or {}).values())


def settled(reduced):
    """A crash loop counts once it is one."""
    return all(reduced[f"{name}: restarts"] >= ENOUGH_RESTARTS for name in looping(reduced))


def looping(reduced):
    """The containers that are between two attempts."""
    return [path.removesuffix(": state") for path, value in reduced.items() if str(value).startswith(BACK_OFF)]


class Watched:
    """The statuses of one agent's pods, and since when each is what it is."""

    def __init__(self, names):
        self.now = {name: (None, 0.0) for name in names}
        self.rested = {}
        # When the last pod left the queue of those that are created.
        self.moved = 0.0

    def see(self, pods, logs, at):
        for pod in pods:
            name = manifest_of(pod)
            reduced = reduce(pod, logs)
            was, since = self.now.get(name, (None, 0.0))
            if reduced != was:
                self.now[name] = (reduced, at)
                # A crash loop goes on from one back-off to the next; any other pod that changes was not at rest.
                if not looping(self.rested.get(name, {})):
                    self.rested.pop(name, None)
                if creating(was) and not creating(reduced):
                    self.moved = at
                continue
            quiet = min(at - since, at - self.moved) if creating(reduced) else at - since
            if settled(reduced) and quiet >= (LONG_REST if creating(reduced) else REST):
                self.rested[name] = reduced

    def restless(self):
        return sorted(set(self.now) - set(self.rested))


def differences(kubelet, ours):
    """What differs in one pod: path, the kubelet's value, ours."""
    paths = sorted(set(kubelet) | set(ours))
    return [(path, kubelet.get(path), ours.get(path)) for path in paths if kubelet.get(path) != ours.get(path)]
