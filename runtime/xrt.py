"""The real NPU2 as a session: the `pyxrt` module itself, opened with checks that name the fix."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from .errors import BundleError

NPU2_NAMES = ("Strix", "Krackan", "Gorgon", "npu4", "npu5", "npu6")
SETUP = "install XRT with the xdna driver, then `source /opt/xilinx/xrt/setup.sh`"
ADVICE = {
    "No such device": f"no NPU is visible: {SETUP}",
    "Could not open device": f"the NPU cannot be opened: {SETUP}",
    "err=-13": "no permission: add this user to the group `render` and log in again",
    "err=-16": "the NPU is busy: end the other process that uses it",
    "Resource temporarily unavailable": "the memlock limit is too low: run `ulimit -l unlimited`",
}


class Npu2:
    """A session on pyxrt's device 0; one process per machine holds it at a time."""

    label = "measured (NPU2)"
    program = "dispatch.elf"
    resident_bytes: int | None = None

    def __init__(self) -> None:
        try:
            pyxrt = importlib.import_module("pyxrt")
        except ImportError as error:
            raise BundleError(f"device npu2 needs pyxrt ({error}): {SETUP}") from None
        self._xrt = pyxrt
        for name in (
            "xclBOSyncDirection",
            "ert_cmd_state",
            "elf",
            "hw_context",
            "bo",
            "run",
            "ext",
        ):
            if not hasattr(pyxrt, name):
                raise BundleError(f"this pyxrt has no {name!r}: XRT 2.20 or newer is needed")
            setattr(self, name, getattr(pyxrt, name))
        self._lock = _lock()

    def device(self, index: int = 0) -> Any:
        """pyxrt.device(index), which must be an NPU2. Raises BundleError with the fix."""
        try:
            device = self._xrt.device(index)
            name = device.get_info(self._xrt.xrt_info_device.name)
        except RuntimeError as error:
            hint = next((fix for text, fix in ADVICE.items() if text in str(error)), SETUP)
            raise BundleError(f"{str(error).strip()}: {hint}") from None
        if not any(known in name for known in NPU2_NAMES):
            raise BundleError(f"{name!r} is not an NPU2; binaries of a bundle run on NPU2 only")
        return device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xrt, name)

    def now_us(self) -> float:
        return time.perf_counter() * 1e6

    def untimed(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _lock() -> int:
    """The machine's NPU lock: two processes at once can wedge the device."""
    path = Path(tempfile.gettempdir()) / "tilegate.npu2.lock"
    handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BundleError(f"another process uses the NPU (it holds {path})") from None
    return handle
