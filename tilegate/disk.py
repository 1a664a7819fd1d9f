"""The disk under the store: locks that die with their owner, and refusals as one line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tilegate.errors import BrokenTool, GateFailed, UserError

DISK_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.ENOTDIR,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
}
FULL_BYTES = 1 << 20


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an OS lock, which dies with its owner. Raises BlockingIOError if not to wait.

    The file is unlinked by its holder; who waited on an unlinked file starts over on a new one.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if not _same_file(path, handle):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _same_file(path: Path, handle: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def guarded(name: str, cache: Path) -> Iterator[None]:
    """Turn a full or read-only disk, however it shows, into one line."""
    try:
        yield
    except (UserError, GateFailed):
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in DISK_ERRORS:
            place = getattr(error, "filename", None) or cache
            reason = os.strerror(number or 0).lower()
        elif free_bytes(cache) < FULL_BYTES:
            place, reason = cache, "no space left on device"
        else:
            raise
        raise BrokenTool(
            f"{name}: cannot write {place}: {reason}; nothing was published "
            "(free space, or set TILEGATE_CACHE to another folder)"
        ) from error


def free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
