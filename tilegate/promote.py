"""Promotion: the last step, and the only one that touches what people run.

The new bundle is laid beside the old one, checked against its manifest, made durable, and swapped
in by one rename. Bundles are real folders, never links, so that a person may move them away.
Killed at any moment, the target is the old bundle or the new one, whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runtime.manifest import MANIFEST, sealed
from tilegate.errors import BrokenTool, GateFailed, UserError

REHEARSAL = ".rehearsal"
LINK_BYTES = 1 << 20  # larger files are linked, not copied, where the filesystem allows it
AT_FDCWD = -100
RENAME_EXCHANGE = 2
NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


def promote(candidate_dir: Path, target_dir: Path) -> None:
    """Make `target_dir` the bundle that is laid out in `candidate_dir`, which stays as it is.

    Raises GateFailed when the manifest's gate records are missing or not all `pass`, UserError for
    a target that is not a bundle's place, BrokenTool when a file does not hold its digest or the
    disk refuses. The bundle of before is then untouched.
    """
    candidate, target = Path(candidate_dir), Path(os.path.abspath(target_dir))
    manifest, sealed_bytes = _manifest(candidate)
    _check_gates(manifest)
    _check_target(manifest, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target):
            _swap_in(candidate, target, manifest["files"], sealed_bytes)
    except OSError as error:
        where = error.filename or target
        raise BrokenTool(f"not promoted: {where}: {error.strerror or error}") from error


def _manifest(candidate: Path) -> tuple[dict[str, Any], bytes]:
    """The manifest as a document and as the bytes that its seal covers."""
    path = candidate / MANIFEST
    data = path.read_bytes() if path.is_file() else b""
    if not sealed(data):
        raise BrokenTool(f"not promoted: {path} is missing, altered or not sealed")
    manifest: dict[str, Any] = json.loads(data)
    if not isinstance(manifest.get("files"), dict) or not manifest["files"]:
        raise BrokenTool(f"not promoted: {path} lists no files")
    return manifest, data


def _check_gates(manifest: Mapping[str, Any]) -> None:
    gates = manifest.get("gates") or []
    if not gates:
        raise GateFailed({"gate": "deploy", "verdict": "fail", "reasons": ["no gate has run"]})
    for record in gates:
        if record.get("verdict") != "pass":
            raise GateFailed(record)


def _check_target(manifest: Mapping[str, Any], target: Path) -> None:
    kind = manifest.get("weights", {}).get("kind")
    if kind not in ("real", "rehearsal"):
        raise UserError(f"weights.kind {kind!r} of the bundle: choose from real, rehearsal")
    if target.name.endswith(REHEARSAL) != (kind == "rehearsal"):
        name = target.name.removesuffix(REHEARSAL) + (REHEARSAL if kind == "rehearsal" else "")
        raise UserError(f"{target} is no place for {kind} weights: promote to {name}")
    if os.path.lexists(target):
        empty = target.is_dir() and not any(target.iterdir())
        if target.is_symlink() or not ((target / MANIFEST).is_file() or empty):
            raise UserError(f"{target} is no bundle (no {MANIFEST}): move it away first")


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    """One promotion per target at a time; the kernel frees the lock of a killed process."""
    with open(target.parent / f".{target.name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _swap_in(candidate: Path, target: Path, files: Mapping[str, str], manifest: bytes) -> None:
    beside, old = (target.parent / f".{target.name}.{word}" for word in ("next", "old"))
    _recover(target, beside, old)
    try:
        shutil.copytree(candidate, beside, symlinks=True, copy_function=_link_or_copy)
        _verify(beside, files, manifest)
        _fsync_tree(beside)
        if not target.exists():
            os.rename(beside, target)
        elif not _exchange(beside, target):
            os.rename(target, old)
            os.rename(beside, target)
        _fsync(target.parent)
    finally:
        _recover(target, beside, old)


def _recover(target: Path, beside: Path, old: Path) -> None:
    """Undo or finish what a killed or failed promotion left: the target first, then the litter."""
    if old.exists() and not target.exists():
        os.rename(old, target)
    for litter in (beside, old):
        if litter.exists():
            shutil.rmtree(litter)


def _link_or_copy(source: str, goal: str) -> str:
    if os.path.getsize(source) >= LINK_BYTES:
        with contextlib.suppress(OSError):
            os.link(source, goal)
            return goal
    return str(shutil.copy2(source, goal))


def _verify(bundle: Path, files: Mapping[str, str], manifest: bytes) -> None:
    if (bundle / MANIFEST).read_bytes() != manifest:
        raise BrokenTool(f"not promoted: {MANIFEST} changed while it was copied")
    paths = [path for path in bundle.rglob("*") if path.is_symlink() or not path.is_dir()]
    found = {path.relative_to(bundle).as_posix() for path in paths} - {MANIFEST}
    for name in sorted(found ^ files.keys()):
        state = "is not in the manifest" if name in found else "is missing"
        raise BrokenTool(f"not promoted: {name} {state}")
    for name, want in files.items():
        path = bundle / name
        if path.is_symlink():
            raise BrokenTool(f"not promoted: {name} is a link")
        with path.open("rb") as handle:
            have = hashlib.file_digest(handle, "sha256").hexdigest()
        if have != want:
            raise BrokenTool(f"not promoted: {name} has sha256 {have[:12]}, want {want[:12]}")


def _fsync_tree(bundle: Path) -> None:
    for folder, _, names in os.walk(bundle, topdown=False):
        for name in names:
            _fsync(Path(folder, name))
        _fsync(Path(folder))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step; False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    first, second = os.fsencode(one), os.fsencode(other)
    if renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))
