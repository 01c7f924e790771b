"""From the numbers of `bench/cluster` to a table, and to whether what must hold does."""

import statistics

from .report import part, short

# key, name, unit, most of the kubelet's figure that ours may be; none: shown only. A figure of several samples is their median.
ROWS = (
    ("start_s", "{pods} pods bound at once: all Running in the API", "s", 0.5),
    ("start_median_s", "{pods} pods bound at once: the median pod", "s", 1.0),
    ("delete_s", "{pods} pods deleted with a grace period of 1 s: all gone", "s", 0.5),
    ("delete_median_s", "{pods} pods deleted with a grace period of 1 s: the median pod", "s", 1.0),
    ("death_s", "death of a container to its status in the API: median", "s", 0.5),
    ("restarted_s", "death of a container to the next one running in the API: median", "s", 1.0),
    ("restart_s", "restart of the agent, {rest_pods} pods: node and all pods Ready again", "s", 1.0),
    ("restart_node_s", "restart of the agent, {rest_pods} pods: node Ready again", "s", None),
    ("rest_requests_per_minute", "at rest, {rest_pods} pods: API requests a minute", "", 1.0),
    ("rest_cpu_percent", "at rest, {rest_pods} pods: CPU of one core", "%", 1.0),
    ("rest_runtime_cpu_percent", "at rest, {rest_pods} pods: CPU of the runtime", "%", None),
    ("rest_rss_mib", "at rest, {rest_pods} pods: memory", "MiB", 1.0),
)
SIDES = ("pleg", "kubelet")
# Both renew their lease six times a minute. What else they ask for shows after minutes only.
FEW_REQUESTS_S = 300


def figure(results, side, key):
    """The median of the rounds; of several samples in a round, of all samples. None if it was not measured."""
    samples = [one[key] for one in results.get(side, []) if key in one]
    if samples and isinstance(samples[0], list):
        samples = [sample for one in samples for sample in one]
    return statistics.median(samples) if samples else None


def figures(results):
    """(key, name, unit, limit, ours, the kubelet's, the floor) of each row."""
    for key, name, unit, limit in ROWS:
        ours, theirs = (figure(results, side, key) for side in SIDES)
        yield key, name.format(**results["plan"]), unit, limit, ours, theirs, results.get("floor", {}).get(key)


def table(results):
    """The table as text that is Markdown, too."""
    lines = [("", "pleg node", "kubelet", "pleg/kubelet", "at most", "floor")]
    for _, name, unit, limit, ours, theirs, floor in figures(results):
        wanted = "–" if limit is None else "1/2" if limit == 0.5 else "1"
        lines.append((name, short(ours, unit), short(theirs, unit), part(ours, theirs), wanted, short(floor, unit)))
    return markdown(lines)


def markdown(lines):
    """A table whose first line is its head, the first column to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))]
        text.append("| " + " | ".join(cells) + " |")
        if number == 0:
            text.append("|" + "|".join("-" * (width + 1) + ("-" if column == 0 else ":") for column, width in enumerate(widths)) + "|")
    return "\n".join(text)


def judge(results):
    """What must hold; None if it was not measured."""
    found = []
    for key, name, _, limit, ours, theirs, _ in figures(results):
        if limit is None:
            continue
        if ours is None or theirs is None:
            found.append({"what": name, "found": "not measured in this run", "holds": None})
            continue
        if key == "rest_requests_per_minute" and results["plan"].get("rest_s", 0) < FEW_REQUESTS_S:
            found.append({"what": name, "found": f"{ours:.1f} and {theirs:.1f}: the rest was too short to tell", "holds": None})
            continue
        ratio = ours / theirs if theirs else float("inf")
        # Ahead is ahead: as much as the kubelet is a miss.
        holds = ratio < 1 if limit == 1 else ratio <= limit
        found.append({"what": name, "found": f"{ratio:.2f}, may be {limit:g}", "holds": holds})
    return found


def verdict(found):
    words = {True: "holds", False: "MISSED", None: "–"}
    width = max(len(one["what"]) for one in found)
    return "\n".join(f"{words[one['holds']]:6}  {one['what']:{width}}  {one['found']}" for one in found)


def scale_table(scale):
    """What many pods of a simulated runtime cost one node."""
    lines = [("", "")]
    for key, name, unit in (
        ("start_s", "{pods} pods created, by {clients} clients: all Running in the API", "s"),
        ("create_s", "… of which the API server took their creation", "s"),
        ("start_patches_per_second", "… status patches a second", ""),
        ("start_requests_per_pod", "… requests for each pod", ""),
        ("start_cpu_s", "… CPU of pleg node", "s"),
        ("rest_rss_mib", "memory at rest", "MiB"),
        ("rest_cpu_percent", "CPU of one core at rest", "%"),
        ("rest_requests_per_minute", "API requests a minute at rest", ""),
        ("restart_s", "restart of pleg node: node and all pods confirmed", "s"),
        ("restart_lists", "… pages of the list of pods", ""),
        ("restart_requests", "… API requests", ""),
        ("restart_patches", "… of them status patches, none of which is needed", ""),
        ("restart_cpu_s", "… CPU of pleg node", "s"),
        ("restart_max_rss_mib", "… most memory", "MiB"),
        ("delete_s", "all pods deleted: gone from the API", "s"),
        ("max_rss_mib", "most memory of the whole run", "MiB"),
    ):
        if key in scale:
            lines.append((name.format(**scale), short(scale[key], unit)))
    return markdown(lines)
