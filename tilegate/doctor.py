"""What is installed, what is missing for each device, and how to mend it. Contacts no network."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tilegate.config import Config, show
from tilegate.store import ROOT, default_cache

PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "gguf", "accelerate")
COMPILERS = ("c++", "g++", "clang++")
WANTED_BYTES = 4 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the report. `optional` means that only some uses need it."""

    what: str
    state: Literal["ok", "missing", "optional"]
    detail: str
    fix: str = ""


def main(config: Config) -> bool:
    """Print the report; True when nothing that the emulated device needs is missing."""
    found = list(findings(config))
    width = max(len(finding.what) for finding in found)
    for finding in found:
        fix = f"  -> {finding.fix}" if finding.fix else ""
        print(f"{finding.what:{width}}  {finding.state:8}  {finding.detail}{fix}")
    return all(finding.state != "missing" for finding in found)


def conf(config: Config) -> None:
    """Print the resolved configuration and the choices of each group."""
    print(show(config))


def findings(config: Config) -> Iterator[Finding]:
    """Tools first, then disk, then devices."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{version} at {sys.executable}")
    yield _compiler()
    for package in PACKAGES:
        try:
            yield Finding(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "missing", "not installed", "run ./doitw, which installs it")
    yield _disk(default_cache())
    yield Finding("network", "optional", "not probed; needed once, to fetch weights")
    yield Finding("device emulated", "ok", f"{os.cpu_count()} cores")
    yield _npu(config.device.name)


def _compiler() -> Finding:
    for name in COMPILERS:
        path = shutil.which(name)
        if path:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
            return Finding(
                "c++ compiler", "ok", f"{(done.stdout or path).splitlines()[0]} at {path}"
            )
    if importlib.util.find_spec("ziglang"):
        return Finding("c++ compiler", "ok", "zig, from the ziglang wheel")
    fix = "apt install g++, or .venv/bin/pip install ziglang"
    return Finding("c++ compiler", "missing", f"none of {', '.join(COMPILERS)}, no ziglang", fix)


def _disk(cache: Path) -> Finding:
    place = cache
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / 1e9:.1f} GB free at {place}"
    if not os.access(place, os.W_OK):
        return Finding("cache", "missing", f"{place} is read-only", "set TILEGATE_CACHE")
    if free < WANTED_BYTES:
        return Finding("cache", "missing", detail, "free some, or set TILEGATE_CACHE")
    return Finding("cache", "ok", detail)


def _npu(name: str) -> Finding:
    what = f"device {name}"
    nodes = sorted(Path("/dev/accel").glob("accel*")) if Path("/dev/accel").exists() else []
    if not nodes:
        fix = "install the amdxdna driver on a machine that has the NPU"
        return Finding(what, "optional", "no device node under /dev/accel", fix)
    if not os.access(nodes[0], os.R_OK | os.W_OK):
        fix = "add yourself to the group that owns it (usually render) and log in again"
        return Finding(what, "optional", f"no permission on {nodes[0]}", fix)
    if importlib.util.find_spec("pyxrt") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        fix = f"install XRT with pyxrt for Python {version} and put its python folder on PYTHONPATH"
        return Finding(what, "optional", f"pyxrt is missing for {ROOT / '.venv'}", fix)
    return Finding(what, "ok", f"{nodes[0]}, pyxrt found")
