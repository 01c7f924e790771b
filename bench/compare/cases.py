"""The cases. Each measures both sides on the same simulated node and returns plain numbers; nothing is judged here."""

import json
import random
import statistics
import subprocess
import time

from .processes import Failure, Kubelet, Pleg, Simulator, eventually

median = statistics.median


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


class Bench:
    """What all cases share: the programs, how thorough to be, and where to say how far we are."""

    def __init__(self, programs, plan, say):
        self.programs = programs
        self.plan = plan
        self.say = say

    def sides(self, mode="generic"):
        """The sides that can be run: the kubelet's if it was built, ours if it has the mode."""
        kinds = []
        if self.programs.kubelet:
            kinds.append(("kubelet", Kubelet))
        if self.programs.mode(mode) is not None:
            kinds.append(("pleg", Pleg))
        return kinds

    def floor(self, endpoint, looks, every):
        """Receives the same bytes and drops them; and what our look alone costs, in turn with it."""
        command = [self.programs.pleg, "bench", "-r", endpoint, "--looks", str(looks), "--every", every, "--statuses", "-o", "json"]
        done = subprocess.run(command, capture_output=True, timeout=600, check=False)
        if done.returncode:
            raise Failure(f"the floor: {done.stderr.decode(errors='replace').strip()}")
        return json.loads(done.stdout)

    # ---- idle

    def idle(self, pods):
        """Nothing changes: processor time and duration of a look, and memory. Both sides are there all the time, one at a time runs."""
        with Simulator(self.programs, pods) as sim:
            sides = {}
            try:
                first, fails = {}, {}
                # The kubelet's PLEG has nothing like our probe of shims: a look is compared with a look, and the probe has a row of its own.
                kinds = [(name, kind, {"flags": ("--probe-round", "0s")} if kind is Pleg else {}) for name, kind in self.sides()]
                for name, kind, more in [*kinds, ("pleg_probing", Pleg, {})]:
                    began = time.monotonic()
                    side = sides[name] = kind(self.programs, sim.endpoint, sim.dir, **more)
                    side.wait_first_look()
                    first[name] = time.monotonic() - began
                    if trouble := side.trouble():
                        self.say(f"    {name} fails: {trouble}")
                        fails[name] = trouble
                        sides.pop(name).close()
                        continue
                    sim.between_looks(side)
                    side.pause()
                samples = {name: {"cpu_ms": [], "wall_ms": []} for name in sides}
                for _ in range(self.plan.idle_rounds):
                    for name, side in sides.items():
                        cpu, wall = self._idle_window(sim, side)
                        samples[name]["cpu_ms"].append(cpu)
                        samples[name]["wall_ms"].append(wall)
                floor = self.floor(sim.endpoint, self.plan.floor_looks, self.plan.floor_every)
                result = {
                    "pods": pods,
                    "bytes": floor["bytes"],
                    "floor": {"cpu_ms": floor["floor"]["cpu_ms_p50"], "wall_ms": floor["floor"]["wall_ms_p50"]},
                    "look_alone": {"cpu_ms": floor["look"]["cpu_ms_p50"], "wall_ms": floor["look"]["wall_ms_p50"]},
                    "statuses_floor": floor["statuses"],
                }
                for name, trouble in fails.items():
                    result[name] = {"fails": trouble}
                for name, side in sides.items():
                    result[name] = {key: median(values) for key, values in samples[name].items()}
                    result[name] |= {"samples": samples[name], "max_rss_mib": side.max_rss(), "first_look_s": first[name]}
                return result
            finally:
                for side in sides.values():
                    side.close()

    def _idle_window(self, sim, side):
        side.resume()
        sim.between_looks(side)
        was = side.numbers()
        looks = sim.between_looks(side)
        cpu = side.cpu()
        while sim.between_looks(side) - looks < self.plan.idle_looks:
            pass
        cpu, looks = side.cpu() - cpu, sim.calls()[0] - looks
        now = side.numbers()
        side.pause()
        wall = (now["seconds"] - was["seconds"]) / (now["looks"] - was["looks"])
        return cpu / looks * 1e3, wall * 1e3

    def quiet(self, pods=1000):
        """Nothing changes and the runtime's events are followed: what a second costs, once a generator trusts them."""
        result = {"pods": pods, "seconds": self.plan.quiet_seconds}
        for name, kind in self.sides("evented"):
            with Simulator(self.programs, pods) as sim, kind(self.programs, sim.endpoint, sim.dir, "evented") as side:
                side.wait_first_look()
                time.sleep(self.plan.quiet_seconds)
                cpu, began, looks = side.cpu(), time.monotonic(), sim.calls()[0]
                time.sleep(self.plan.quiet_seconds)
                took = time.monotonic() - began
                result[name] = {"cpu_ms": (side.cpu() - cpu) / took * 1e3, "looks_per_s": (sim.calls()[0] - looks) / took}
        return result

    def witness(self, pods):
        """Nothing changes, containers have processes, and the kernel is the witness: what a second costs, as shipped and without events,
        once full relists are rare. The kubelet's PLEG is beside it, on the same runtime."""
        with Simulator(self.programs, pods, processes=True) as sim:
            sides = {name: kind(self.programs, sim.endpoint, sim.dir) for name, kind in self.sides()}
            try:
                for side in sides.values():
                    side.wait_first_look()

                def trusted():
                    mode = sides["pleg"].mode()
                    return mode["witness"]["complete"] and mode["full_look_period_seconds"] >= 59 and mode

                mode = eventually("a witness that is trusted", trusted, 300, every=2)
                # With the number of calls, that of looks of both.
                before = {name: side.numbers()["looks"] for name, side in sides.items()}
                cpu, began = {name: side.cpu() for name, side in sides.items()}, time.monotonic()
                time.sleep(self.plan.witness_seconds)
                cpu, took = {name: side.cpu() - cpu[name] for name, side in sides.items()}, time.monotonic() - began
                result = {"pods": pods, "seconds": took, "watched": {key: mode["witness"][key] for key in ("processes", "cgroups")}}
                for name, side in sides.items():
                    looks = side.numbers()["looks"] - before[name]
                    result[name] = {"cpu_ms": cpu[name] / took * 1e3, "looks_per_s": looks / took}
                result["pleg"] |= sides["pleg"].usage()
                return result
            finally:
                for side in sides.values():
                    side.close()

    # ---- everything changes at once

    def storm(self, pods, latency_ms, rounds):
        """Every container of every pod exits at once, and every call takes so long: until the last death is told."""
        found = {name: [] for name, _ in self.sides()}
        for _ in range(rounds):
            for name, kind in self.sides():
                found[name].append(self._storm(kind, pods, latency_ms))
                self.say(f"    {name}: {found[name][-1]['seconds']:.2f} s")
        result = {"pods": pods, "latency_ms": latency_ms}
        for name, runs in found.items():
            result[name] = {key: median(run[key] for run in runs) for key in runs[0]} | {"samples": runs}
        with Simulator(self.programs, pods) as sim:
            sim.tell("set", latency=f"{latency_ms}ms")
            floor = self.floor(sim.endpoint, 1, "0s")
            # One look finds it all, and then every status is asked for once.
            result["floor"] = {
                "seconds": (floor["floor"]["wall_ms_p50"] + floor["statuses"]["wall_ms_p50"]) / 1e3,
                "cpu_s": (floor["floor"]["cpu_ms_p50"] + floor["statuses"]["cpu_ms_p50"]) / 1e3,
            }
        return result

    def _storm(self, kind, pods, latency_ms):
        with Simulator(self.programs, pods) as sim, kind(self.programs, sim.endpoint, sim.dir) as side:
            side.wait_first_look()
            if latency_ms:
                sim.tell("set", latency=f"{latency_ms}ms")
            sim.between_looks(side)
            dropped = side.numbers()["dropped"]
            cpu, server, calls = side.cpu(), sim.cpu(), sim.all_calls()
            began = time.time()
            sim.tell("storm", exit_code=1)
            wanted = 2 * pods
            checked = time.monotonic()

            def told():
                nonlocal checked
                if side.alive() and side.deaths >= wanted:
                    return True
                if time.monotonic() - checked > 2:
                    checked = time.monotonic()
                    return side.deaths + side.numbers()["dropped"] - dropped >= wanted
                return False

            eventually("the last death", told)
            cpu, server = side.cpu() - cpu, sim.cpu() - server
            last = max(at for at, what, *_ in side.events() if what == "ContainerDied")
            now = sim.all_calls()
            return {
                "seconds": last - began,
                "cpu_s": cpu,
                "server_cpu_s": server,
                "calls": sum(now.values()) - sum(calls.values()),
                "lost": side.numbers()["dropped"] - dropped,
            }

    # ---- one container dies

    def death(self, mode, pods=110):
        """One container exits, at a moment that has nothing to do with the looks: until its death is told."""
        result = {"mode": mode, "pods": pods}
        for name, kind in self.sides(mode):
            chance = random.Random(5)
            with Simulator(self.programs, pods) as sim, kind(self.programs, sim.endpoint, sim.dir, mode) as side:
                side.wait_first_look()
                sim.between_looks(side)
                asked = []
                for number in range(self.plan.deaths):
                    time.sleep(chance.uniform(0.6, 1.6))
                    asked.append(time.time())
                    sim.tell("exit", pod=f"default/web-{number}", container="app", exit_code=1)
                    eventually("a death", lambda so_far=number: side.alive() and side.deaths > so_far, 30)
                told = [at for at, what, *_ in side.events() if what == "ContainerDied"]
                late = [(at - was) * 1e3 for at, was in zip(told, asked, strict=True)]
                result[name] = {"p50_ms": median(late), "worst_ms": max(late), "samples": late}
        return result

    def witnessed(self, pods=110):
        """Processes of containers die, and containers are started, at moments that have nothing to do with the looks: until both sides have
        told it. Our side has the kernel as a witness and no events; both are before the same runtime, which takes 60 ms to report an exit."""
        chance = random.Random(6)
        with Simulator(self.programs, pods, processes=True) as sim:
            sides = {name: kind(self.programs, sim.endpoint, sim.dir) for name, kind in self.sides()}
            try:
                for side in sides.values():
                    side.wait_first_look()
                eventually("a witness that is complete", lambda: sides["pleg"].mode()["witness"]["complete"], 60, every=0.5)
                result = {"pods": pods} | {name: {} for name in sides}
                for verb, kind, key, more in (("exit", "ContainerDied", "death", {"exit_code": 1}), ("restart", "ContainerStarted", "start", {})):
                    times = lambda side, kind=kind: [at for at, what, *_ in side.events() if what == kind]
                    first = {name: len(times(side)) for name, side in sides.items()}
                    asked = []
                    for number in range(self.plan.deaths):
                        time.sleep(chance.uniform(0.6, 1.6))
                        asked.append(time.time())
                        sim.tell(verb, pod=f"default/web-{number}", container="app", **more)
                        told = lambda: all(side.alive() and len(times(side)) > first[name] + number for name, side in sides.items())
                        eventually(f"a {key}", told, 30, every=0.05)
                    for name, side in sides.items():
                        late = [(at - was) * 1e3 for at, was in zip(times(side)[first[name] :], asked, strict=True)]
                        result[name] |= {f"{key}_p50_ms": median(late), f"{key}_worst_ms": max(late), f"{key}_samples": late}
                return result
            finally:
                for side in sides.values():
                    side.close()

    # ---- hung containers

    def hung(self, count, seconds, pods=110):
        """The status of some containers is never answered. How late are the deaths of all others told? Both sides at once: the same
        history. What was not told by the end counts as if it were told then, which is in favour of who did not tell."""
        chance = random.Random(7)
        with Simulator(self.programs, pods) as sim:
            sides = {name: kind(self.programs, sim.endpoint, sim.dir) for name, kind in self.sides()}
            try:
                for side in sides.values():
                    side.wait_first_look()
                time.sleep(1.5)
                for number in range(count):
                    pod = f"default/web-{number}"
                    sim.tell("hang", rpc="ContainerStatus", pod=pod, container="app")
                    sim.tell("exit", pod=pod, container="sidecar", exit_code=1)
                others = [(pod, name) for pod in range(count, pods) for name in ("app", "sidecar")]
                chance.shuffle(others)
                asked = {}
                end = time.monotonic() + seconds * 0.6
                for pod, name in others:
                    if time.monotonic() > end:
                        break
                    asked[(f"web-{pod}", name)] = time.time()
                    sim.tell("exit", pod=f"default/web-{pod}", container=name, exit_code=1)
                    time.sleep(chance.uniform(0.2, 0.8))
                last = time.monotonic() + seconds * 0.4
                # The hung pods' own deaths may be told or not.
                while time.monotonic() < last and any(side.deaths < len(asked) + count for side in sides.values()):
                    time.sleep(0.1)
                ended = time.time()
                ids = {}
                for line in sides["pleg"].lines():
                    if (subject := line.get("subject", {})).get("kind") == "container":
                        ids[subject["id"]] = (line["pod"]["name"], subject["name"])
                result = {"hung": count, "pods": pods, "changes": len(asked), "seconds": seconds}
                for name, side in sides.items():
                    told = {ids.get(id): at for at, what, _, id in side.events() if what == "ContainerDied"}
                    late = [told.get(who, ended) - at for who, at in asked.items()]
                    result[name] = {
                        "p50_s": median(late),
                        "p99_s": percentile(late, 99),
                        "over_5_s": sum(1 for value in late if value > 5),
                        "untold": sum(1 for who in asked if who not in told),
                    }
                return result
            finally:
                for side in sides.values():
                    side.close()

    # ---- a reader that stalls

    def stalled(self, pods, seconds):
        """A node full of pods is found while the reader of events takes none for a while."""
        with Simulator(self.programs, pods) as sim:
            sides = {name: kind(self.programs, sim.endpoint, sim.dir, stall=seconds) for name, kind in self.sides()}
            try:
                for side in sides.values():
                    side.wait_first_look()
                time.sleep(seconds + 3)
                expected = 3 * pods
                result = {"pods": pods, "stall_s": seconds, "events": expected}
                for name, side in sides.items():
                    kinds = ("ContainerStarted", "PodSandboxChanged")
                    read = [line for line in side.events() if line[1] in kinds]
                    gaps = [line for line in side.lines() if line.get("type") == "Gap"]
                    result[name] = {
                        "read": len(read),
                        "lost": expected - len(read),
                        "lost_but_told": sum(gap["to"] - gap["from"] + 1 for gap in gaps),
                    }
                return result
            finally:
                for side in sides.values():
                    side.close()

    # ---- changes all the time

    def churn(self, per_second, pods=1000):
        """So many changes a second: what client and server use of one core."""
        result = {"pods": pods, "per_second": per_second}
        found = {name: [] for name, _ in self.sides()}
        for number in range(self.plan.churn_rounds):
            for name, kind in self.sides():
                found[name].append(self._churn(kind, per_second, pods, seed=number + 1))
        for name, runs in found.items():
            result[name] = {key: median(run[key] for run in runs) for key in runs[0]} | {"samples": runs}
        with Simulator(self.programs, pods) as sim:
            floor = self.floor(sim.endpoint, self.plan.floor_looks, self.plan.floor_every)
        # As many looks and statuses as ours asked for, with their bytes dropped.
        status_ms = floor["statuses"]["cpu_ms_p50"] / floor["statuses"]["calls"]
        ms = result["pleg"]["looks_per_s"] * floor["floor"]["cpu_ms_p50"] + result["pleg"]["statuses_per_s"] * status_ms
        result["floor"] = {"cpu_percent": ms / 10}
        return result

    def _churn(self, kind, per_second, pods, seed):
        with Simulator(self.programs, pods, seed) as sim, kind(self.programs, sim.endpoint, sim.dir) as side:
            side.wait_first_look()
            sim.tell("set", churn=per_second)
            time.sleep(4)
            cpu, server, calls, began = side.cpu(), sim.cpu(), sim.all_calls(), time.monotonic()
            time.sleep(self.plan.churn_seconds)
            cpu, server, took, now = side.cpu() - cpu, sim.cpu() - server, time.monotonic() - began, sim.all_calls()
            made = {rpc: now.get(rpc, 0) - calls.get(rpc, 0) for rpc in now}
            return {
                "cpu_percent": cpu / took * 100,
                "server_cpu_percent": server / took * 100,
                "looks_per_s": made["ListContainers"] / took,
                "statuses_per_s": (made["ContainerStatus"] + made["PodSandboxStatus"]) / took,
            }
