"""Plots as SVG, written by hand: lines over two logarithmic axes, in colours that can be told apart on light and on dark."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 56, 52

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .axis { stroke: #59636e; stroke-width: 1; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .line { fill: none; stroke-width: 2.5; }
  .kubelet { stroke: #bc4c00; fill: #bc4c00; } .pleg { stroke: #0969da; fill: #0969da; } .floor { stroke: #6e7781; fill: #6e7781; }
  .line.kubelet, .line.pleg, .line.floor { fill: none; }
  text.kubelet, text.pleg, text.floor { stroke: none; }
  .dash1 { stroke-dasharray: 7 4; } .dash2 { stroke-dasharray: 2 4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .axis { stroke: #9198a1; } .grid { stroke: #3d444d; }
    .kubelet { stroke: #f0883e; fill: #f0883e; } .pleg { stroke: #58a6ff; fill: #58a6ff; } .floor { stroke: #9198a1; fill: #9198a1; }
  }
"""


def decades(low, high):
    """The powers of ten around a range."""
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


def label(value, unit):
    if unit == "ms" and value >= 1000:
        value, unit = value / 1000, "s"
    elif unit == "s" and value < 1:
        value, unit = value * 1000, "ms"
    return f"{value:g} {unit}".strip()


def plot(title, unit, series):
    """`series`: (name, colour, dash, [(pods, value)]). The names stand at the lines' ends."""
    points = [point for *_, line in series for point in line]
    pods = sorted({x for x, _ in points})
    ticks = decades(min(y for _, y in points), max(y for _, y in points))
    low, high = ticks[0], max(ticks[-1], ticks[0] + 1)
    first, last = math.log10(pods[0]), math.log10(pods[-1]) if len(pods) > 1 else math.log10(pods[0]) + 1

    def x(value):
        return LEFT + (math.log10(value) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value):
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="28">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(label(10**power, unit))}</text>')
    for count in pods:
        at = x(count)
        out.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}"/>')
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{count}</text>')
    out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">pods, two containers each</text>')
    for name, colour, dash, line in series:
        path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in line)
        out.append(f'<polyline class="line {colour} dash{dash}" points="{path}"/>')
        out.extend(f'<circle class="{colour}" cx="{x(px):.1f}" cy="{y(py):.1f}" r="3.5"/>' for px, py in line)
    # Names at the right, moved apart where lines end close together.
    below = -math.inf
    for name, colour, _, line in sorted(series, key=lambda one: y(one[3][-1][1])):
        at = max(y(line[-1][1]) + 4, below + 16)
        below = at
        out.append(f'<text class="{colour}" x="{x(line[-1][0]) + 10:.1f}" y="{at:.1f}">{escape(name)}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def all_plots(results):
    """(file name, SVG) of what was measured at more than one size."""
    idle = results.get("idle", [])
    sides = (("kubelet", "kubelet"), ("pleg", "pleg"), ("floor", "floor"))

    def over_pods(runs, side, key):
        return [(one["pods"], one[side][key]) for one in runs if one.get(side, {}).get(key)]

    def named(name, runs, side):
        failing = [one["pods"] for one in runs if "fails" in one.get(side, {})]
        return f"{name} (fails at {min(failing)})" if failing else name

    def lines(kinds, runs, key):
        return [(named(name, runs, side), side, 0, line) for side, name in kinds if len(line := over_pods(runs, side, key)) > 1]

    if series := lines(sides, idle, "cpu_ms"):
        yield "idle.svg", plot("Processor time of one look when nothing changes", "ms", series)
    if series := lines(sides[:2], idle, "max_rss_mib"):
        yield "memory.svg", plot("Most memory resident", "MiB", series)
    series = []
    for dash, latency in enumerate((5, 20)):
        runs = [one for one in results.get("storm", []) if one["latency_ms"] == latency]
        for side, name in sides[:2]:
            if len(line := over_pods(runs, side, "seconds")) > 1:
                series.append((f"{name}, {latency} ms", side, dash, line))
    if series:
        yield "storm.svg", plot("Every container dies at once: until the last event", "s", series)
