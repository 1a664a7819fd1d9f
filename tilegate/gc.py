"""`doit gc`: bounds the cache by size and age. Shows what it would remove; removes when told to.

Never touched: what a promoted bundle was made of, what a running build holds or uses, and whatever
is not an artifact. Use is remembered as the time stamp of an artifact's manifest.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilegate.disk import locked
from tilegate.explain import closure
from tilegate.settings import Config
from tilegate.store import MANIFEST, ROOT, Store

DEPLOY = ROOT / "build" / "deploy"
YOUNG_S = 3600.0  # a build that runs now may be about to use it
GIGA, DAY_S = 1e9, 86400.0


@dataclass(frozen=True)
class Entry:
    """An artifact on disk."""

    path: Path
    name: str
    bytes: int
    used: float
    key: str


def main(config: Config) -> None:
    """Show, or remove, what is over the bounds of the configuration's `cache` section."""
    keep, store = config.cache, Store()
    found = entries(store.cache)
    held = in_use(store.cache, DEPLOY)
    goes = chosen(found, held, keep.gigabytes, keep.days, time.time())
    word = "removed" if keep.remove else "would remove"
    freed = 0
    for entry in goes:
        if keep.remove and not remove(entry):
            print(f"in use, kept  {entry.name}  {entry.path.name}")
            continue
        freed += entry.bytes
        age = (time.time() - entry.used) / DAY_S
        print(f"{word}  {_size(entry.bytes)}  unused {age:.1f} days  {entry.name}")
    total = sum(entry.bytes for entry in found)
    kept = sum(entry.bytes for entry in found if entry.key in held)
    bounds = f"bounds: {keep.gigabytes} GB, {keep.days} days"
    print(f"{store.cache}: {len(found)} artifacts, {_size(total)}; {bounds}")
    print(f"in use by promoted bundles: {_size(kept)}; {word}: {_size(freed)}")
    if goes and not keep.remove:
        print("to remove it: doit gc cache.remove=true")


def entries(cache: Path) -> list[Entry]:
    """All artifacts of a cache."""
    found = []
    for manifest in cache.glob(f"*/*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(manifest.read_text())
            size = sum(int(size) for size, _ in record["outputs"].values())
            used = manifest.stat().st_mtime
            found.append(Entry(manifest.parent, record["name"], size, used, record["key"]))
    return found


def in_use(cache: Path, deploy: Path) -> frozenset[str]:
    """Keys of what the promoted bundles were made of."""
    standing = set()
    for bundle in deploy.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError):
            standing.add(bundle.read_bytes())
    keys: set[str] = set()
    for path in (cache / "deploy").glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):
            if (path.parent / "bundle" / MANIFEST).read_bytes() in standing:
                keys |= set(closure(cache, json.loads(path.read_text())))
    return frozenset(keys)


def chosen(
    found: Iterable[Entry],
    held: frozenset[str],
    gigabytes: float | None,
    days: float | None,
    now: float,
) -> list[Entry]:
    """What goes, the longest unused first: too old, then whatever is over the size."""
    found = sorted(found, key=lambda entry: entry.used)
    total = sum(entry.bytes for entry in found)
    goes = []
    for entry in found:
        if entry.key in held or now - entry.used < YOUNG_S:
            continue
        old = days is not None and now - entry.used > days * DAY_S
        over = gigabytes is not None and total > gigabytes * GIGA
        if old or over:
            goes.append(entry)
            total -= entry.bytes
    return goes


def remove(entry: Entry) -> bool:
    """Take an artifact away whole, out of sight first; False when somebody holds its lock."""
    lock = entry.path.with_name(f".{entry.key}.lock")
    try:
        with locked(lock, wait=False):
            aside = entry.path.with_name(f".{entry.key}.gc.tmp")
            entry.path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
    except OSError:
        return False
    return True


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
