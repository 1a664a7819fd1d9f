"""What is installed, what is missing for each device, and how to mend it. Contacts no network."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tilegate import npu_doctor
from tilegate.config import Config, show
from tilegate.finding import Finding
from tilegate.store import default_cache

PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "gguf", "accelerate")
COMPILERS = ("c++", "g++", "clang++")
WANTED_BYTES = 4 << 30


def main(config: Config) -> bool:
    """Print the report; True when nothing that the configured device needs is missing."""
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
    yield from npu_doctor.findings(config.device)


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
