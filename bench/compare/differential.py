"""The same seeded history before both generators: do they tell the same?

Both look at the same simulated node at the same time. A history is made of steps; in a step no container is touched twice, and the next
one waits until both have looked twice. So neither can miss a state that the other saw, and per container the two have to tell the same
events, as a multiset: the order of pods within a look is nobody's promise.
"""

import collections
import json
import random
import subprocess

from .processes import Kubelet, Pleg, Simulator, eventually

# What may differ, and why.
EXPLAINED = {
    "ContainerChanged": "the kubelet computes ContainerChanged but does not send it",
    "PodSync": "the kubelet sends PodSync for a pod it inspected again without news",
}


def compare(programs, seeds, steps, pods=40):
    """One history for each seed; what was told, and each difference with its reason or without one."""
    if not programs.kubelet:
        return None
    total = {"histories": 0, "events": 0, "dropped": 0, "explained": collections.Counter(), "unexplained": []}
    for seed in seeds:
        _history(programs, seed, steps, pods, total)
    return total | {"steps": steps, "pods": pods, "explained": dict(total["explained"])}


def _history(programs, seed, steps, pods, total):
    chance = random.Random(seed)
    with Simulator(programs, pods, seed) as sim, Pleg(programs, sim.endpoint, sim.dir) as pleg:
        with Kubelet(programs, sim.endpoint, sim.dir) as kubelet:
            for side in (pleg, kubelet):
                side.wait_first_look()
            for number in range(steps):
                _step(sim, chance, number)
                for side in (pleg, kubelet):
                    looks = side.numbers()["looks"]
                    # One may have begun before the step ended.
                    eventually("two looks", lambda side=side, looks=looks: side.numbers()["looks"] >= looks + 2, 60, every=0.05)
            dropped = kubelet.numbers()["dropped"]
            theirs = _count((kind, id) for _, kind, _, id in kubelet.events())
            ours = _count((event["Type"], event["Data"]) for event in _projected(programs, pleg))
    total["histories"] += 1
    total["dropped"] += dropped
    total["events"] += sum(sum(kinds.values()) for kinds in theirs.values())
    if dropped:
        return  # What it lost cannot be compared.
    for id in sorted(theirs.keys() | ours.keys()):
        for kind, more in ((ours[id] - theirs[id]) + collections.Counter()).items():
            _differs(total, seed, id, kind, f"only ours, {more} times")
        for kind, more in ((theirs[id] - ours[id]) + collections.Counter()).items():
            _differs(total, seed, id, kind, f"only the kubelet's, {more} times")


def _differs(total, seed, id, kind, how):
    if kind in EXPLAINED:
        total["explained"][EXPLAINED[kind]] += 1
    else:
        total["unexplained"].append(f"seed {seed}: {kind} of {id[:13]}: {how}")


def _count(events):
    counted = collections.defaultdict(collections.Counter)
    for kind, id in events:
        counted[id][kind] += 1
    return counted


def _projected(programs, pleg):
    """Our events as `kubelet_events()` translates them: `pleg watch -o kubelet`, from the first one on."""
    newest = max(line["seq"] for line in pleg.lines())
    command = [programs.pleg, "watch", "--daemon", f"unix://{pleg.socket_path}", "-o", "kubelet", "--since", "0", "--count", str(newest)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _step(sim, chance, number):
    """Some pods, one change each; now and then everything that runs dies."""
    if number % 5 == 4:
        sim.tell("storm", exit_code=2)
        return
    pods = json.loads(sim.http.ask("GET", "/v1/pods"))["pods"]
    for pod in chance.sample(pods, max(1, len(pods) // 3)):
        name = pod["pod"]
        container = chance.choice(sorted(pod["containers"]))[0] if pod["containers"] else None
        change = chance.randrange(8) if container else 7
        if change < 3:
            sim.tell("exit", pod=name, container=container, exit_code=chance.randrange(3))
        elif change < 5:
            sim.tell("restart", pod=name, container=container)
        elif change == 5:
            sim.tell("exit", pod=name, exit_code=1)
        elif change == 6:
            sim.tell("remove", pod=name, container=container)
        else:
            sim.tell("remove", pod=name)
            sim.tell("add", pods=1)
