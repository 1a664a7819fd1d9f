"""A clean default deployment: wall time, peak memory of the process tree, seconds per task.

    python benchmarks/deploy.py [--downloads DIR] [key=value ...]

The checkout is copied to a temporary folder and deployed there by this Python (so packages are
installed already) into an empty cache. `--downloads` names a folder with fetched weights, the
`downloads` of another cache, and so leaves the network out of the figures.
Memory is the resident set summed over the tree, sampled; shared pages count in each process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"\[ *\d+/\d+\] (\S+)  (?:built, ([\d.]+) s|cached)")
SAMPLE_S = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--downloads", type=Path, metavar="DIR")
    options = parser.parse_args(argv)
    run = deploy(options.overrides, options.downloads)
    if run.status:
        print("".join(run.lines[-20:]))
        print(f"doit deploy ended with status {run.status}", file=sys.stderr)
        return run.status
    show(run.lines, run.wall, run.peak)
    return 0


@dataclass(frozen=True)
class Run:
    """A deployment that ended: exit status, what it printed, seconds, memory, bytes on disk, and
    the manifest of its bundle (empty when there is none)."""

    status: int
    lines: list[str]
    wall: float
    peak: Peak
    disk: int
    manifest: dict[str, Any]


def deploy(overrides: Sequence[str], downloads: Path | None) -> Run:
    """Deploy a copy of this checkout into an empty cache, all of it removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tilegate-bench-") as place:
        checkout, cache = Path(place, "checkout"), Path(place, "cache")
        _copy_checkout(checkout)
        if downloads:
            shutil.copytree(downloads, cache / "downloads")
        command = [sys.executable, "-m", "doit", "deploy", *overrides]
        environment = {**os.environ, "TILEGATE_CACHE": str(cache)}
        begun = time.perf_counter()
        child = subprocess.Popen(
            command,
            cwd=checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        peak = Peak(child.pid)
        peak.start()
        assert child.stdout is not None
        lines = list(child.stdout)
        status = child.wait()
        wall = time.perf_counter() - begun
        peak.join()
        found = list(checkout.glob("build/deploy/*/manifest.json"))
        manifest = json.loads(found[0].read_text()) if found else {}
        return Run(status, lines, wall, peak, _disk(Path(place)), manifest)


def _disk(folder: Path) -> int:
    """Bytes of all files, each inode once: bundles are hard links into the cache."""
    files = {s.st_ino: s.st_blocks * 512 for s in (p.lstat() for p in folder.rglob("*"))}
    return sum(files.values())


def _copy_checkout(target: Path) -> None:
    """The files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


class Peak(threading.Thread):
    """Samples the resident set of a process and its descendants until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.tree = 0  # bytes, all processes of one moment
        self.single = 0  # bytes, the largest process

    def run(self) -> None:
        while sizes := self._sizes():
            self.tree = max(self.tree, sum(sizes))
            self.single = max(self.single, *sizes)
            time.sleep(SAMPLE_S)

    def _sizes(self) -> list[int]:
        parents, resident = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
                    resident[int(entry.name)] = int(fields[21]) * PAGE
        tree = {self.pid} & parents.keys()
        while more := {p for p, parent in parents.items() if parent in tree} - tree:
            tree |= more
        return [resident[pid] for pid in tree]


def show(lines: Sequence[str], wall: float, peak: Peak) -> None:
    """Tasks, those of one group together, then the totals."""
    seconds, count = grouped(lines)
    print(f"{'task':20} {'count':>5} {'seconds':>8}")
    for name, spent in seconds.items():
        print(f"{name:20} {count[name]:5} {spent:8.1f}")
    print(f"{'wall':20} {sum(count.values()):5} {wall:8.1f}  on {os.cpu_count()} cores")
    print(f"peak memory: {peak.tree / 2**30:.2f} GiB in all processes, ", end="")
    print(f"{peak.single / 2**30:.2f} GiB in the largest")


def grouped(lines: Sequence[str]) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds and number of the tasks, those of one group together. Two run at a time."""
    seconds: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for line in lines:
        if found := LINE.match(line):
            name = re.sub(r"^(kernel|dispatch|gate:kernel):.*", r"\1:*", found[1])
            seconds[name] += float(found[2] or 0)
            count[name] += 1
    return seconds, count


if __name__ == "__main__":
    sys.exit(main())
