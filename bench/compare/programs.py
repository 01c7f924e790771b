"""Builds what is compared, and says what cannot be had."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


class Programs:
    """Paths of the two programs; without Go there is no kubelet, and the tables have no such column."""

    def __init__(self, say, build=True):
        self.notes = []
        self.pleg = TARGET / "release" / "pleg"
        self.kubelet = TARGET / "bench" / "kubelet"
        if build:
            say("building pleg (release)")
            self._run(["cargo", "build", "--release", "--locked", "-p", "pleg-cli"], ROOT)
            if not shutil.which("go"):
                self.notes.append("the kubelet's PLEG was not run: Go is not on the PATH")
                self.kubelet = None
            else:
                say("building the kubelet's PLEG (some ten minutes the first time on two cores)")
                self._run(["go", "build", "-o", str(self.kubelet), "."], ROOT / "bench" / "kubelet")
        elif not self.kubelet.exists():
            self.notes.append(f"the kubelet's PLEG was not run: there is no {self.kubelet}, and --no-build was given")
            self.kubelet = None
        # A copy: a run takes long, and who builds meanwhile is not to change what is measured.
        copy = TARGET / "bench" / "pleg-measured"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        shutil.copy2(self.pleg, copy)
        self.pleg = copy
        self.has_modes = "--mode" in self._say([self.pleg, "run", "--help"])
        self.has_history = "--history-file" in self._say([self.pleg, "run", "--help"])

    def mode(self, name):
        """The flags with which our side runs in this mode; none if it does not have it."""
        if self.has_modes:
            return ["--mode", name]
        return [] if name == "generic" else None

    def about(self):
        """Who was compared, on what."""
        processors = Path("/proc/cpuinfo").read_text()
        models = [line.partition(":")[2].strip() for line in processors.splitlines() if line.startswith("model name")]
        return {
            "pleg": self._say([self.pleg, "--version"]).strip(),
            "commit": self._say(["git", "rev-parse", "--short", "HEAD"]).strip(),
            "kubernetes": self._say([self.kubelet, "--version"]).strip() if self.kubelet else None,
            "go": self._say(["go", "version"]).strip() if shutil.which("go") else None,
            "rust": self._say(["rustc", "--version"]).strip(),
            "kernel": platform.release(),
            "processor": f"{len(models)} x {models[0]}" if models else platform.machine(),
        }

    @staticmethod
    def _run(command, directory):
        # Others work here too.
        done = subprocess.run(["nice", "-n", "10", *command], cwd=directory, capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench/run: {' '.join(command)} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")

    @staticmethod
    def _say(command):
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout.decode(errors="replace")
