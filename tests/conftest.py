"""Shared fixtures: one artifact cache for all tests, and checkouts to break things in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilegate.store import Store, default_cache

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 900
# The whole real graph in seconds: two layers, synthetic weights.
TINY = (
    *("weights=synthetic", "model.name=tiny", "model.wheel=null", "model.hub=null"),
    *("model.layers=2", "model.dim=128", "model.heads=2", "model.kv_heads=1"),
    *("model.head_dim=64", "model.hidden=256", "model.vocab=512"),
    *("sequence.buckets=[256]", "sequence.context=512"),
)


@dataclass(frozen=True)
class Checkout:
    """A copy of the repository's files with a build folder of its own; artifacts are shared."""

    root: Path
    cache: Path

    def doit(
        self, *words: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run doit there; output and errors together, as a person sees them."""
        environment = {**os.environ, "TILEGATE_CACHE": str(self.cache), **(env or {})}
        return subprocess.run(
            [sys.executable, "-m", "doit", *words],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def bundle(self, name: str) -> Path:
        return self.root / "build" / "deploy" / name


@pytest.fixture(scope="session")
def store() -> Store:
    """The store that all tests share, so that kernels and weights are made once."""
    return Store(default_cache())


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh checkout for one test."""
    return copy_checkout(tmp_path / "checkout")


def copy_checkout(target: Path) -> Checkout:
    """Copy what git tracks, or would."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return Checkout(target, default_cache())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden texts anew instead of comparing"
    )
