"""Digests: one spelling for data, and file contents remembered by their time stamps."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilegate.errors import UserError

RACY_NS = 50_000_000  # a file this young may change again without its time stamps moving
MAX_DIGESTS = 5000


def canonical(value: Any) -> str:
    """`value` as JSON with one spelling: sorted keys, no NaN; dataclasses become objects.

    Raises UserError for what has no stable spelling (paths, functions, NaN).
    """
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"not usable as part of a key: {error}") from None


def digest(part: Any) -> str:
    """sha256 of the canonical JSON of `part`."""
    return hashlib.sha256(canonical(part).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r}")


class Digests:
    """sha256 of files, remembered by (path, size, mtime, ctime, inode) in a local state file."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._lock = threading.Lock()
        self._dirty = False
        self._known = self._load()

    def _load(self) -> dict[str, list[Any]]:
        try:
            known = json.loads(self.state.read_text())
        except (OSError, ValueError):
            return {}  # a cache: without it files are hashed again
        return known if isinstance(known, dict) else {}

    def of(self, path: Path) -> str:
        """The digest of a file's content.

        Raises OSError when the file cannot be read.
        """
        name, stamp = str(path), signature(path)
        entry = self._entry(name, stamp)
        if entry is not None:
            return str(entry)
        young = time.time_ns() - max(stamp[1], stamp[2]) < RACY_NS
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if not young and signature(path) == stamp:
            self.remember(name, stamp, found)
        return found

    def derived(self, what: str, path: Path, compute: Callable[[], Any]) -> Any:
        """JSON data that follows from the file's content alone, remembered like its digest."""
        name, stamp = f"{what}:{path}", signature(path)
        entry = self._entry(name, stamp)
        if entry is not None:
            return entry
        young = time.time_ns() - max(stamp[1], stamp[2]) < RACY_NS
        found = compute()
        if not young and signature(path) == stamp:
            self.remember(name, stamp, found)
        return found

    def _entry(self, name: str, stamp: list[int]) -> Any:
        entry = self._known.get(name)
        if isinstance(entry, list) and len(entry) == 2 and entry[0] == stamp:
            return entry[1]
        return None

    def remember(self, name: str, stamp: list[int], found: Any) -> None:
        with self._lock:
            self._known[name] = [stamp, found]
            self._dirty = True

    def save(self) -> None:
        """Write the state file, keeping what other processes added. Losing it is harmless."""
        with self._lock:
            if not self._dirty:
                return
            merged = self._load() | self._known
            if len(merged) > MAX_DIGESTS:
                merged = {
                    name: entry
                    for name, entry in merged.items()
                    if os.path.exists(name.rpartition(":")[2])
                }
            temp = self.state.with_name(f".{self.state.name}.{os.getpid()}.{os.urandom(4).hex()}")
            try:
                self.state.parent.mkdir(parents=True, exist_ok=True)
                temp.write_text(json.dumps(merged))
                temp.replace(self.state)
            except OSError:
                with contextlib.suppress(OSError):
                    temp.unlink()
            self._dirty = False


def signature(path: Path) -> list[int]:
    """[bytes, mtime, ctime, inode]: while it stays the same, so does the content."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
