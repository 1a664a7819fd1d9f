"""The seam between the runner and a device: the part of pyxrt's API that the runner uses.

A `Session` has the names of the `pyxrt` module (flow: one full ELF per dispatch, see XRT's
`src/python/pybind11`) and a clock beside them. Two providers: `runtime.emulated` and
`runtime.xrt`. Errors are XRT's own: RuntimeError, IndexError, TypeError with its texts.
"""

from __future__ import annotations

import datetime
import enum
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .errors import BundleError
from .manifest import Timing

DEVICES = ("emulated", "npu2")


class SyncDirection(enum.IntEnum):
    """pyxrt.xclBOSyncDirection"""

    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class CommandState(enum.IntEnum):
    """pyxrt.ert_cmd_state; only COMPLETED is success."""

    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9
    ERT_CMD_STATE_SKERROR = 10
    ERT_CMD_STATE_SKCRASHED = 11


class Bo(Protocol):
    """A buffer object: a host copy and a device copy, equal only where `sync` made them so."""

    def size(self) -> int: ...
    def map(self) -> memoryview: ...
    def write(self, data: Any, seek: int = 0) -> None: ...
    def sync(self, direction: Any, size: int = ..., offset: int = ...) -> None: ...


class Run(Protocol):
    """A command: arguments once set stay set over many starts."""

    def set_arg(self, index: int, value: Any) -> None: ...
    def start(self) -> None: ...
    def wait(self, timeout_ms: int = 0) -> Any: ...
    def wait2(self, timeout: datetime.timedelta | None = None) -> None: ...
    def state(self) -> Any: ...


class Ext(Protocol):
    """pyxrt.ext"""

    def bo(self, device: Any, size: int) -> Bo: ...
    def kernel(self, context: Any, name: str) -> Any: ...


class Session(Protocol):
    """The names of the pyxrt module, and what its users need to know beside them."""

    label: str
    """What its clock says: `predicted (emulated NPU2)` or `measured (NPU2)`."""
    program: str
    """The file of a dispatch folder that `elf` loads."""
    resident_bytes: int | None
    """Weights in layouts of their own that may stay on the device; where there are more of them,
    each layer's are laid out again before it runs. None: no limit."""
    xclBOSyncDirection: Any
    ert_cmd_state: Any
    ext: Ext

    def device(self, index: int = 0) -> Any: ...
    def elf(self, path: str) -> Any: ...
    def hw_context(self, device: Any, elf: Any) -> Any: ...
    def bo(self, parent: Any, size: int, offset: int) -> Bo: ...
    def run(self, kernel: Any) -> Run: ...

    def now_us(self) -> float:
        """Microseconds: of the virtual clock, or of the wall."""
        ...

    def untimed(self) -> AbstractContextManager[None]:
        """Within, a virtual clock stands still: for what only the emulation has to do."""
        ...


def open_session(device: str, timing: Timing, fault: str | None = None) -> Session:
    """The session on `device` (`emulated` or `npu2`). Raises BundleError when it cannot open."""
    if device == "emulated":
        from .emulated import EmulatedNpu2

        return EmulatedNpu2(timing, threads=threads(os.environ), fault=fault)
    if device == "npu2":
        if fault:
            raise BundleError(f"fault {fault!r} can be injected into the emulated device only")
        from .xrt import Npu2

        return Npu2()
    raise BundleError(f"device {device!r} is not one of {', '.join(DEVICES)}")


def threads(environment: Mapping[str, str]) -> int:
    """Threads of the emulated device: TILEGATE_THREADS, else the cores this process may use."""
    given = environment.get("TILEGATE_THREADS", "")
    if given and (not given.isdigit() or int(given) == 0):
        raise BundleError(f"TILEGATE_THREADS must be a positive number, not {given!r}")
    return int(given) if given else len(os.sched_getaffinity(0))
