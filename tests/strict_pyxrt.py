"""A strict stand-in for the `pyxrt` module, for machines without an NPU.

It has the names, overloads, silences and errors of XRT's Python binding (Xilinx/XRT
src/python/pybind11/src/pyxrt.cpp), no more. Host and device copies of a buffer are equal only where
`sync` made them so; a wrong argument of `kernel.__call__` is dropped without a word; waits never
raise and `wait2` returns nothing. "Binaries" are the host libraries of the emulated device under
another name, so that results can be checked; `Behaviour` says how the machine misbehaves.
"""

from __future__ import annotations

import ctypes
import datetime
import enum
import gc
import json
import re
import types
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MOST_XCLBIN_BUFFERS = 5


@dataclass
class Behaviour:
    """The machine: its name, its contexts, and what goes wrong on it."""

    name: str = "NPU Strix"
    contexts: int = 16
    full: str = "(err=-28): No space left on device"
    open_error: str = ""
    final_state: int = 4
    never_ends: bool = False
    writes_nothing: bool = False
    waits: list[int] = field(default_factory=list)
    opened: int = 0
    live: weakref.WeakSet[HwContext] = field(default_factory=weakref.WeakSet)


class State(enum.Enum):
    """pyxrt.ert_cmd_state: pybind enums are no integers and compare with each other only."""

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


class Direction(enum.Enum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class Info(enum.Enum):
    name = 0
    bdf = 1


def _wrong(function: str) -> TypeError:
    return TypeError(f"{function}(): incompatible function arguments.")


def _library(path: str) -> tuple[Any, list[int]]:
    file = Path(path)
    if not file.is_file() or file.read_bytes()[:4] != b"\x7fELF":
        raise RuntimeError(f"{path} is not found or is not a valid ELF file")
    document = json.loads((file.parent / "dispatch.json").read_text())
    entry = ctypes.CDLL(str(file)).tilegate_run
    entry.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    return (entry, document["name"]), [a["bytes"] for a in document["arguments"]]


class Memory:
    """Two copies of a root buffer; what the device has never been given is neither 0 nor NaN."""

    def __init__(self, size: int) -> None:
        self.host = np.zeros(size + 4096, np.uint8)[:size]
        self.device = np.full(size, 0x5A, np.uint8)


class Bo:
    def __init__(self, *arguments: Any) -> None:
        match arguments:
            case (Bo() as parent, int(size), int(offset)):
                if offset + size > parent._size:
                    raise RuntimeError("sub buffer size and offset")
                if parent._offset:
                    raise RuntimeError("stand-in: a sub buffer of a sub buffer is broken in XRT")
                self._memory, self._size, self._offset = parent._memory, size, offset
            case (Device() | HwContext(), int(size), flags, int()) if flags in (1, 2):
                self._memory, self._size, self._offset = Memory(size), size, 0
            case _:
                raise _wrong("bo")

    cacheable, host_only = 1, 2

    def size(self) -> int:
        return self._size

    def map(self) -> memoryview:
        return memoryview(self._memory.host)[self._offset : self._offset + self._size]

    def write(self, data: Any, seek: int) -> None:
        source = np.frombuffer(data, np.uint8)
        if seek + source.size > self._size:
            raise RuntimeError("attempting to write past buffer size")
        self.map()[seek : seek + source.size] = source.tobytes()

    def sync(self, direction: Direction, size: int | None = None, offset: int = 0) -> None:
        if not isinstance(direction, Direction):
            raise _wrong("sync")
        start = self._offset + offset
        stop = start + (self._size if size is None else size)
        one, other = self._memory.host, self._memory.device
        if direction is Direction.XCL_BO_SYNC_BO_FROM_DEVICE:
            one, other = other, one
        other[start:stop] = one[start:stop]

    def pointer(self) -> int:
        return int(self._memory.device.ctypes.data) + self._offset


class Device:
    behaviour = Behaviour()

    def __init__(self, index: Any = 0) -> None:
        if self.behaviour.open_error:
            raise RuntimeError(self.behaviour.open_error)
        if index != 0:
            raise RuntimeError(f" No such device with index '{index}'")
        self.registered: dict[str, XclBin] = {}

    def get_info(self, what: Info) -> str:
        if not isinstance(what, Info):
            raise _wrong("get_info")
        return self.behaviour.name if what is Info.name else "0000:c5:00.1"

    def register_xclbin(self, xclbin: XclBin) -> Uuid:
        self.registered[xclbin.get_uuid().text] = xclbin
        return xclbin.get_uuid()


class Elf:
    def __init__(self, path: str) -> None:
        if not isinstance(path, str):
            raise _wrong("elf")
        self.library, self.bytes = _library(path)


class Uuid:
    def __init__(self, text: str) -> None:
        self.text = text


class XclBin:
    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise RuntimeError(f"xclbin file not found: {path}")
        self.library, self.bytes = _library(path)
        self._uuid = Uuid(path)

    def get_uuid(self) -> Uuid:
        return self._uuid

    def get_kernels(self) -> list[Any]:
        return [types.SimpleNamespace(get_name=lambda: "MLIR_AIE:MLIRAIE")]


class HwContext:
    def __init__(self, device: Device, source: Any) -> None:
        if not isinstance(device, Device) or not isinstance(source, Elf | Uuid):
            raise _wrong("hw_context")
        gc.collect()
        if len(device.behaviour.live) >= device.behaviour.contexts:
            call = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed"
            raise RuntimeError(f"{call} {device.behaviour.full}")
        if isinstance(source, Uuid) and source.text not in device.registered:
            raise RuntimeError("No xclbin with given uuid is registered")
        device.behaviour.live.add(self)
        device.behaviour.opened += 1
        self.device = device
        self.full_elf = isinstance(source, Elf)
        self.source = source if isinstance(source, Elf) else device.registered[source.text]


class Kernel:
    """pyxrt.kernel: the xclbin flow, arguments from index 3."""

    first = 3

    def __init__(self, context: HwContext, name: str) -> None:
        wrong = "XCLBIN" if self.first else "full ELF"
        if context.full_elf != (self.first == 0):
            text = "Invalid API called for xrt::kernel creation, xrt::hw_context passed is not"
            raise RuntimeError(f"{text} created using {wrong}")
        self.context = context
        self._find(name)

    def _find(self, name: str) -> None:
        if not name.startswith("MLIR_AIE"):
            raise RuntimeError(f"No such kernel '{name}'")
        if len(self.context.source.bytes) > MOST_XCLBIN_BUFFERS:
            raise RuntimeError("stand-in: more buffers than declared crash XRT")

    def group_id(self, argument: int) -> int:
        return 65536 + argument

    def __call__(self, *arguments: Any) -> Run:
        run = Run(self)
        for index, value in enumerate(arguments):
            try:
                run.set_arg(index, value)
            except Exception:
                continue  # as XRT: swallowed
        run.start()
        return run


class ExtKernel(Kernel):
    """pyxrt.ext.kernel: the ELF flow, arguments from index 0."""

    first = 0

    def _find(self, name: str) -> None:
        wanted = "main:" + re.sub(r"[^\w.$]", "_", self.context.source.library[1])
        if name != wanted:
            raise RuntimeError(f"no ELF found with given kernel name in ctx: {name}")


def ext_bo(parent: Any, size: int) -> Bo:
    if not isinstance(parent, Device | HwContext) or not isinstance(size, int):
        raise _wrong("bo")
    made = Bo.__new__(Bo)
    made._memory, made._size, made._offset = Memory(size), size, 0
    return made


class Run:
    def __init__(self, kernel: Kernel) -> None:
        if not isinstance(kernel, Kernel):
            raise _wrong("run")
        self._kernel = kernel
        self._values: dict[int, Any] = {}
        self._state = State.ERT_CMD_STATE_NEW

    def set_arg(self, index: int, value: Any) -> None:
        if self._state is State.ERT_CMD_STATE_SUBMITTED:
            raise RuntimeError("xrt::run::set_arg called while command is still in progress")
        if not isinstance(value, Bo) and not (isinstance(value, int) and abs(value) < 2**31):
            raise _wrong("set_arg")
        if not 0 <= index < self._kernel.first + len(self._kernel.context.source.bytes):
            raise IndexError(f"_Map_base::at: argument {index}")
        self._values[index] = value

    def start(self) -> None:
        behaviour = self._kernel.context.device.behaviour
        if self._state is State.ERT_CMD_STATE_SUBMITTED:
            raise RuntimeError("bad command state, can't launch")
        if behaviour.never_ends:
            self._state = State.ERT_CMD_STATE_SUBMITTED
            return
        self._state = State(behaviour.final_state)
        if behaviour.final_state != 4 or behaviour.writes_nothing:
            return
        first, sizes = self._kernel.first, self._kernel.context.source.bytes
        head = [self._values.get(i) for i in range(first)]
        if first and (head[0] != 3 or not isinstance(head[1], Bo) or not head[2]):
            self._state = State.ERT_CMD_STATE_ERROR
            return
        bos = [self._values.get(first + i) for i in range(len(sizes))]
        if any(not isinstance(bo, Bo) for bo in bos):
            self._state = State.ERT_CMD_STATE_TIMEOUT
            return
        pointers = (ctypes.c_void_p * len(bos))(*(bo.pointer() for bo in bos))
        self._kernel.context.source.library[0](pointers, len(bos), 1)

    def wait(self, timeout_ms: int | None = None) -> State:
        if not timeout_ms and self._state is State.ERT_CMD_STATE_SUBMITTED:
            raise AssertionError("stand-in: a wait without a deadline would hang for ever")
        self._kernel.context.device.behaviour.waits.append(timeout_ms or 0)
        return self._state

    def wait2(self, timeout: datetime.timedelta | None = None) -> None:
        if timeout is not None:
            raise TypeError("Unable to convert function return value to a Python type: cv_status")
        if self._state is not State.ERT_CMD_STATE_COMPLETED:
            raise RuntimeError(f"Command failed to complete successfully ({self._state.name})")

    def state(self) -> State:
        return self._state


def module(behaviour: Behaviour) -> types.ModuleType:
    """A module named pyxrt for a machine of this behaviour."""
    made: Any = types.ModuleType("pyxrt")
    made.device = type("device", (Device,), {"behaviour": behaviour})
    made.xclBOSyncDirection, made.ert_cmd_state, made.xrt_info_device = Direction, State, Info
    made.elf, made.xclbin, made.uuid = Elf, XclBin, Uuid
    made.hw_context, made.kernel, made.run, made.bo = HwContext, Kernel, Run, Bo
    made.ext = types.SimpleNamespace(bo=ext_bo, kernel=ExtKernel)
    return made  # type: ignore[no-any-return]
