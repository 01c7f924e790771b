"""From numbers to a table, and to whether what must hold does."""

import math


def fit(points):
    """The exponent e of y = c * x^e, by least squares over the logarithms."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


# What stands in the place of a number.
FAILS = "fails"


def short(value, unit):
    if value is None:
        return "–"
    if value == FAILS:
        return value
    if unit == "ms" and value >= 1000:
        value, unit = value / 1000, "s"
    elif unit == "s" and value < 1:
        value, unit = value * 1000, "ms"
    digits = 0 if value >= 100 or float(value).is_integer() else 1 if value >= 10 else 2
    return f"{value:.{digits}f}{'' if unit in ('%', '') else ' '}{unit}"


def part(ours, theirs):
    """Ours as a part of theirs: 1/19, or times if it is more."""
    if not ours or not theirs or FAILS in (ours, theirs):
        return "–"
    return f"1/{theirs / ours:.0f}" if theirs / ours >= 1.95 else f"{ours / theirs:.2f}"


def rows(results):
    """(case, ours, kubelet, floor, unit) of everything that was measured."""

    def get(result, side, key):
        found = result.get(side, {})
        return FAILS if FAILS in found else found.get(key)

    for one in results.get("idle", []):
        for key, what, unit in (("cpu_ms", "CPU", "ms"), ("wall_ms", "time", "ms")):
            values = [get(one, side, key) for side in ("pleg", "kubelet", "floor")]
            yield f"idle look, {one['pods']} pods: {what}", *values, unit
    for one in results.get("idle", []):
        values = [get(one, "pleg_probing", "cpu_ms"), get(one, "kubelet", "cpu_ms"), get(one, "floor", "cpu_ms")]
        yield f"idle look and shim probe, {one['pods']} pods: CPU", *values, "ms"
    for one in results.get("idle", []):
        yield f"memory, {one['pods']} pods", get(one, "pleg_probing", "max_rss_mib"), get(one, "kubelet", "max_rss_mib"), None, "MiB"
    for one in results.get("quiet", []):
        yield f"a second without changes, evented, {one['pods']} pods: CPU", *(get(one, side, "cpu_ms") for side in ("pleg", "kubelet")), None, "ms"
    for one in results.get("witness", []):
        yield f"a second without changes, witness, {one['pods']} pods: CPU", *(get(one, side, "cpu_ms") for side in ("pleg", "kubelet")), None, "ms"
    for one in results.get("storm", []):
        name = f"all of {one['pods']} pods change, RPCs {one['latency_ms']} ms"
        yield f"{name}: last event", *(get(one, side, "seconds") for side in ("pleg", "kubelet", "floor")), "s"
        yield f"{name}: CPU", *(get(one, side, "cpu_s") for side in ("pleg", "kubelet", "floor")), "s"
        yield f"{name}: server CPU", *(get(one, side, "server_cpu_s") for side in ("pleg", "kubelet")), None, "s"
    for one in results.get("death", []):
        mode = "polling" if one["mode"] == "generic" else one["mode"]
        for key, what in (("p50_ms", "median"), ("worst_ms", "worst")):
            yield f"one death to its event, {mode}: {what}", *(get(one, side, key) for side in ("pleg", "kubelet")), None, "ms"
    for one in results.get("witnessed", []):
        for key, what in (("death", "one death of a process, which the runtime reports after 60 ms, to its event"), ("start", "one start to its event")):
            for part_of, word in (("p50_ms", "median"), ("worst_ms", "worst")):
                yield f"{what}, witness: {word}", *(get(one, side, f"{key}_{part_of}") for side in ("pleg", "kubelet")), None, "ms"
    for one in results.get("hung", []):
        who = "1 container hangs" if one["hung"] == 1 else f"{one['hung']} containers hang"
        yield f"{who}: other pods' events, p99", *(get(one, side, "p99_s") for side in ("pleg", "kubelet")), None, "s"
    for one in results.get("stalled", []):
        name = f"reader stalls {one['stall_s']} s, {one['events']} events: lost"
        yield name, *(get(one, side, "lost") for side in ("pleg", "kubelet")), None, ""
    for one in results.get("churn", []):
        name = f"{one['per_second']} changes a second, {one['pods']} pods"
        yield f"{name}: CPU", *(get(one, side, "cpu_percent") for side in ("pleg", "kubelet", "floor")), "%"
        yield f"{name}: server CPU", *(get(one, side, "server_cpu_percent") for side in ("pleg", "kubelet")), None, "%"
    for one in results.get("containerd", []):
        name = f"containerd {one['version']}, {one['pods']} pods, idle look"
        for key, what in (("cpu_ms", "CPU"), ("wall_ms", "time"), ("server_cpu_ms", "server CPU")):
            yield f"{name}: {what}", *(get(one, side, key) for side in ("pleg", "kubelet", "floor")), "ms"
    if growth := results.get("growth"):
        yield "growth of idle CPU: exponent over pods", growth.get("pleg"), growth.get("kubelet"), growth.get("floor"), ""


def table(results, only=None):
    """The table as text that is Markdown, too; all of it, or some rows by their names."""
    lines = [("", "pleg", "kubelet", "pleg/kubelet", "floor", "pleg/floor")]
    for name, ours, theirs, floor, unit in rows(results):
        if only and name not in only:
            continue
        is_share = unit == "" or ours is None
        ratio = "–" if is_share else part(ours, theirs)
        above = "–" if is_share or not floor else f"{ours / floor:.1f}"
        lines.append((name, short(ours, unit), short(theirs, unit), ratio, short(floor, unit), above))
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    text = []
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))]
        text.append("| " + " | ".join(cells) + " |")
        if number == 0:
            text.append("|" + "|".join("-" * (width + 1) + ("-" if column == 0 else ":") for column, width in enumerate(widths)) + "|")
    return "\n".join(text)


def judge(results):
    """What must hold: (what, found, whether it holds; None if it was not measured)."""
    idle = {one["pods"]: one for one in results.get("idle", [])}
    storms = {(one["pods"], one["latency_ms"]): one for one in results.get("storm", [])}
    found = []

    def hold(what, of, measure, limit, show, cut=False):
        if not of or "kubelet" not in of or "pleg" not in of or FAILS in of["kubelet"]:
            found.append({"what": what, "found": "not measured in this run", "holds": None})
            return
        value = measure(of)
        # Where the kubelet's own figure is only known to be larger, what is missed may yet hold.
        found.append({"what": what, "found": show(of, value), "holds": True if value <= limit else None if cut else False})

    def ratio(key):
        return lambda of: of["pleg"][key] / of["kubelet"][key]

    def as_part(of, value):
        return f"1/{1 / value:.1f}" if value < 0.95 else f"{value:.2f}"

    for pods in (1000, 5000):
        hold(f"idle look at {pods} pods: CPU at most 1/15", idle.get(pods), ratio("cpu_ms"), 1 / 15, as_part)
    # Only where it was measured: earlier results do not have it.
    for one in results.get("witness", []):
        hold(f"a second without changes, witness, {one['pods']} pods: CPU at most 1/20", one, ratio("cpu_ms"), 1 / 20, as_part)
    storm = storms.get((1000, 5))
    hold("1000 pods change, RPCs 5 ms: time at most 1/15", storm, ratio("seconds"), 1 / 15, as_part)
    hold("1000 pods change, RPCs 5 ms: server CPU at most 1.1 times", storm, ratio("server_cpu_s"), 1.1, as_part)
    for one in results.get("hung", []) or [None]:
        who = "a container hangs" if not one or one["hung"] == 1 else f"{one['hung']} containers hang"

        def of_hung(of, value):
            cut = f" (at least: the run ended with {of['kubelet']['untold']} not told)" if of["kubelet"]["untold"] else ""
            return as_part(of, value) + cut

        cut = bool(one and one.get("kubelet", {}).get("untold"))
        hold(f"{who}: other pods' p99 at most 1/100", one, ratio("p99_s"), 1 / 100, of_hung, cut)
    stalled = (results.get("stalled") or [None])[-1]
    hold("stalled reader: 0 events lost", stalled, lambda of: of["pleg"]["lost"], 0, lambda of, value: f"{value} lost, kubelet {of['kubelet']['lost']}")
    memory = idle.get(5000)
    if memory:
        memory = {"pleg": memory.get("pleg_probing", {}), "kubelet": memory.get("kubelet")} if "kubelet" in memory else None
    hold("memory at 5000 pods: at most 1/4", memory, ratio("max_rss_mib"), 1 / 4, as_part)
    growth = results.get("growth")
    if growth and "pleg" in growth:
        value = growth["pleg"]
        found.append({"what": "idle CPU grows no worse than linearly", "found": f"pods^{value:.2f}", "holds": value <= 1.0})
    if differential := results.get("differential"):
        bad = differential["unexplained"]
        text = f"{differential['events']} events of {differential['histories']} histories, {len(bad)} unexplained differences"
        found.append({"what": "both tell the same of the same history", "found": text, "holds": not bad})
    return found


def verdict(found):
    words = {True: "holds", False: "MISSED", None: "–"}
    width = max(len(one["what"]) for one in found)
    return "\n".join(f"{words[one['holds']]:6}  {one['what']:{width}}  {one['found']}" for one in found)
