"""What the documents show of the newest results: tables between markers, and plots. Nobody types them."""

from . import plots, report
from .programs import ROOT

RESULTS = ROOT / "bench" / "results"

# What the README of the project shows.
SHORT = (
    "idle look, 1000 pods: CPU",
    "idle look, 5000 pods: CPU",
    "idle look and shim probe, 1000 pods: CPU",
    "a second without changes, evented, 1000 pods: CPU",
    "a second without changes, witness, 1000 pods: CPU",
    "memory, 5000 pods",
    "all of 1000 pods change, RPCs 5 ms: last event",
    "all of 1000 pods change, RPCs 5 ms: server CPU",
    "one death to its event, evented: median",
    "one death of a process, which the runtime reports after 60 ms, to its event, witness: median",
    "one start to its event, witness: median",
    "1 container hangs: other pods' events, p99",
    "reader stalls 20 s, 15000 events: lost",
    "100 changes a second, 1000 pods: CPU",
)


def newest():
    """The newest results that are kept; none if there are none."""
    return max(RESULTS.glob("*.json"), default=None)


def shown(results):
    """(path, text) of every document and plot, as it has to be for these results."""
    for name, svg in plots.all_plots(results):
        yield RESULTS / name, svg
    about = results["about"]
    origin = f"{about['pleg']}, Kubernetes {about['kubernetes']}, {about['processor']}, {about['date'][:10]}, {about['took_s'] // 60} minutes."
    if again := about.get("again"):
        origin += f" Measured again afterwards: {', '.join(sorted(again))}."
    verdict = "\n".join(("```text", report.verdict(results["holds"]), "```"))
    yield from _filled(ROOT / "bench" / "README.md", "\n\n".join((report.table(results), verdict, origin)))
    yield from _filled(ROOT / "README.md", "\n\n".join((report.table(results, SHORT), origin)))


def _filled(path, content):
    """The document with the content between its markers; nothing if it has none."""
    if text := with_content(path, "bench/run", content):
        yield path, text


def with_content(path, script, content):
    """The document with what a script writes between its markers; none if it has none."""
    text = path.read_text()
    begin, end = f"<!-- {script} writes this -->\n", f"<!-- end of what {script} writes -->"
    head, found, rest = text.partition(begin)
    _, also, tail = rest.partition(end)
    return f"{head}{begin}\n{content}\n\n{end}{tail}" if found and also else None


def fill(path, script, content):
    """Writes what a script has to say into a document."""
    if text := with_content(path, script, content):
        path.write_text(text)


def write(results):
    for path, text in shown(results):
        path.write_text(text)


def differing(results):
    """What is not as it has to be."""
    return [path for path, text in shown(results) if not path.exists() or path.read_text() != text]
