"""The emulated NPU2 as a session: pyxrt's names, strict buffers, a virtual clock, faults on demand.

Strict means that every buffer object has separate host and device copies and only `sync` copies
between them: a runner that forgets a sync fails here as it does on hardware. Device memory that was
never written holds 0xFF bytes, which are NaN as bf16 and f32.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import mmap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BundleError
from .manifest import DISPATCH_ABI, Argument, Dispatch, Timing, read_dispatch
from .session import CommandState, Ext, SyncDirection

Bytes = npt.NDArray[np.uint8]

MAX_CONTEXTS = 16
POISON = 0xFF
ALIGNMENT = 64
"""Bytes: what the vector loads of a core need."""
WATCHDOG_US = 2e6
"""After so long the driver gives a stuck command up (amdxdna's tdr_timeout_ms)."""

FAULTS = (
    "stale_buffer",  # from its second sync on, host data does not reach the device
    "swapped_arguments",  # two inputs of one size change places
    "dropped_sync_back",  # results do not come back to the host
    "zero_output",
    "nan_output",
    "stuck",  # commands time out
    "kv_position_off_by_one",  # attention sees the position before the current one
)


class EmulatedNpu2:
    """A session on one emulated device; `clock_us` is its virtual clock."""

    label = "predicted (emulated NPU2)"
    program = "dispatch.so"
    resident_bytes: int | None = 1 << 30
    xclBOSyncDirection = SyncDirection
    ert_cmd_state = CommandState

    def __init__(self, timing: Timing, threads: int = 2, fault: str | None = None) -> None:
        if fault is not None and fault not in FAULTS:
            raise BundleError(f"fault {fault!r} is not one of {', '.join(FAULTS)}")
        self._device = EmulatedDevice(timing, threads, fault)
        self.ext: Ext = _Ext()

    def device(self, index: int = 0) -> EmulatedDevice:
        if index != 0:
            raise RuntimeError(f" No such device with index '{index}'")
        return self._device

    def elf(self, path: str) -> Elf:
        return Elf(path)

    def hw_context(self, device: EmulatedDevice, elf: Elf) -> HwContext:
        return HwContext(device, elf)

    def bo(self, parent: Any, size: int, offset: int) -> EmulatedBo:
        return EmulatedBo(parent.storage, size, parent.offset + offset, parent.size() - offset)

    def run(self, kernel: Kernel) -> EmulatedRun:
        return EmulatedRun(kernel)

    def now_us(self) -> float:
        return self._device.clock_us

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        before = self._device.clock_us
        yield
        self._device.clock_us = before


class EmulatedDevice:
    """pyxrt.device: the clock, the live contexts and the fault of one emulated NPU2."""

    def __init__(self, timing: Timing, threads: int, fault: str | None) -> None:
        self.timing = timing
        self.threads = threads
        self.fault = fault
        self.clock_us = 0.0
        self.contexts: weakref.WeakSet[HwContext] = weakref.WeakSet()
        self.pool: int | None = None


class _Ext:
    """pyxrt.ext"""

    def bo(self, device: Any, size: int) -> EmulatedBo:
        if not isinstance(size, int) or size <= 0:
            raise RuntimeError(f"invalid buffer size {size}")
        return EmulatedBo(_Storage(device, size), size, 0, size)

    def kernel(self, context: Any, name: str) -> Kernel:
        return HwContext.kernel(context, name)


class Elf:
    """pyxrt.elf: the library of a dispatch and the argument table beside it."""

    def __init__(self, path: str) -> None:
        self.dispatch: Dispatch = read_dispatch(Path(path).parent)
        try:
            library = ctypes.CDLL(path)
            abi, self.entry = library.tilegate_abi, library.tilegate_run
        except (OSError, AttributeError) as error:
            raise RuntimeError(f"{path} is not found or is not a valid ELF file: {error}") from None
        abi.restype = ctypes.c_char_p
        if abi() != DISPATCH_ABI.encode():
            raise RuntimeError(f"{path} is not a valid ELF file: abi {abi()!r}")
        self.entry.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        self.entry.restype = ctypes.c_int
        self.pool = getattr(library, "tilegate_pool", None)
        if self.pool is not None:
            self.pool.argtypes = (ctypes.c_void_p,)
            self.pool.restype = ctypes.c_void_p


class HwContext:
    """pyxrt.hw_context: holds programs; a device has room for MAX_CONTEXTS of them."""

    def __init__(self, device: EmulatedDevice, elf: Elf) -> None:
        if len(device.contexts) >= MAX_CONTEXTS:
            call = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed"
            raise RuntimeError(f"{call} (err=-28): No space left on device")
        device.contexts.add(self)
        self.device = device
        self.programs: dict[str, Elf] = {}
        self.add_config(elf)

    def add_config(self, elf: Elf) -> None:
        self.programs[f"main:{elf.dispatch.name}"] = elf
        if elf.pool is not None:  # the first program's host threads serve all others
            self.device.pool = elf.pool(self.device.pool)

    def kernel(self, name: str) -> Kernel:
        if name not in self.programs:
            raise RuntimeError(f"no ELF found with given kernel name in ctx: '{name}'")
        return Kernel(self, self.programs[name])


class Kernel:
    """pyxrt.ext.kernel"""

    def __init__(self, context: HwContext, elf: Elf) -> None:
        self.context = context
        self.elf = elf


class _Storage:
    """The two copies behind a root buffer object and its sub-buffers, page aligned.

    Either copy appears when it is first touched. After a sync of the whole buffer the host copy
    goes again if nobody holds a map of it, and read-only memory that was written is not copied at
    all, so that weights do not occupy memory twice.
    """

    def __init__(self, device: EmulatedDevice, size: int) -> None:
        self.device = device
        self.size = size
        self._device: Bytes | None = None
        self._host: Bytes | None = None
        self._mapped = False
        self._dropped = False
        self._overwritten = False
        self._syncs = 0

    @property
    def on_device(self) -> Bytes:
        if self._device is None:
            self._device = _pages(self.size)
            self._device.fill(POISON)
        return self._device

    def lend(self, source: Bytes) -> bool:
        """Take aligned read-only memory as the first content of an untouched buffer."""
        fits = not source.flags.writeable and source.ctypes.data % ALIGNMENT == 0
        if not fits or source.size != self.size or self._device is not None or self._syncs:
            return False
        if self._host is not None:
            return False
        self._host = source
        return True

    def host(self, mapped: bool = False) -> Bytes:
        self._mapped |= mapped
        if self._host is None:
            self._host = _pages(self.size)
            if self._dropped:
                self._host[:] = POISON if self._overwritten else self.on_device
        elif not self._host.flags.writeable:
            self._host = _copied(self._host)
        return self._host

    def written_by_device(self) -> None:
        self._overwritten = True

    def sync(self, direction: int, start: int, stop: int) -> None:
        device = self.device
        timing = device.timing
        device.clock_us += timing.sync_us + (stop - start) / (timing.sync_gbps * 1e3)
        if direction == SyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE:
            host = self.host()
            if device.fault != "dropped_sync_back":
                host[start:stop] = self.on_device[start:stop]
            return
        self._syncs += 1
        if device.fault == "stale_buffer" and self._syncs > 1:
            return
        whole = stop - start == self.size and not self._mapped
        if whole and self._device is None and self._host is not None:
            self._device = self._host  # nobody saw either: the host's pages become the device's
        else:
            self.on_device[start:stop] = self.host()[start:stop]
        if whole:
            self._host, self._dropped, self._overwritten = None, True, False


class EmulatedBo:
    """pyxrt.bo and pyxrt.ext.bo: `size` bytes of a storage at `offset`."""

    def __init__(self, storage: _Storage, size: int, offset: int, room: int) -> None:
        if size <= 0 or room < size or offset < 0:
            raise RuntimeError("sub buffer size and offset")
        self.storage = storage
        self.offset = offset
        self._size = size

    def size(self) -> int:
        return self._size

    def address(self) -> int:
        return int(self.storage.on_device.ctypes.data) + self.offset

    def map(self) -> memoryview:
        """The host copy, writable; later syncs show in it."""
        return self.storage.host(mapped=True).data[self.offset : self.offset + self._size]

    def write(self, data: Any, seek: int = 0) -> None:
        source = np.frombuffer(data, dtype=np.uint8)
        if seek < 0 or seek + source.size > self._size:
            raise RuntimeError("attempting to write past buffer size")
        start = self.offset + seek
        if self.storage.lend(source):
            return
        self.storage.host()[start : start + source.size] = source

    def sync(self, direction: int, size: int | None = None, offset: int = 0) -> None:
        if not isinstance(direction, SyncDirection):
            raise TypeError("sync(): incompatible function arguments")
        length = self._size if size is None else size
        if length < 0 or offset < 0 or offset + length > self._size:
            raise RuntimeError("Invalid sync range: size and offset exceed the buffer")
        start = self.offset + offset
        self.storage.sync(direction, start, start + length)


class EmulatedRun:
    """pyxrt.run: arguments are kept between starts; `start` returns when the work is done."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._dispatch = kernel.elf.dispatch
        self._arguments = self._dispatch.arguments
        self._bos: list[EmulatedBo | None] = [None] * len(self._arguments)
        self._pointers = (ctypes.c_void_p * len(self._arguments))()
        self._unset = len(self._arguments)
        self._state = CommandState.ERT_CMD_STATE_NEW

    def set_arg(self, index: int, value: Any) -> None:
        if not isinstance(index, int) or not isinstance(value, EmulatedBo):
            raise TypeError("set_arg(): incompatible function arguments")
        if not 0 <= index < len(self._bos):
            raise IndexError(f"argument index {index} out of range: {len(self._bos)} arguments")
        argument = self._arguments[index]
        if value.size() < argument.bytes:
            what = f"argument {index} ({argument.name}) of {self._dispatch.name}"
            raise RuntimeError(f"{what} needs {argument.bytes} bytes, the bo has {value.size()}")
        self._unset -= self._bos[index] is None
        self._bos[index] = value
        self._pointers[index] = value.address()

    def start(self) -> None:
        device = self._kernel.context.device
        if self._unset:
            missing = [a.name for a, b in zip(self._arguments, self._bos, strict=True) if b is None]
            raise RuntimeError(f"{self._dispatch.name}: argument not set: {', '.join(missing)}")
        if device.fault == "stuck":
            device.clock_us += WATCHDOG_US
            self._state = CommandState.ERT_CMD_STATE_TIMEOUT
            return
        pointers, keep = self._faulty_pointers(device.fault)
        status = self._kernel.elf.entry(pointers, len(pointers), device.threads)
        del keep
        device.clock_us += self._dispatch.host_us + self._dispatch.predicted_us
        done, error = CommandState.ERT_CMD_STATE_COMPLETED, CommandState.ERT_CMD_STATE_ERROR
        self._state = error if status else done
        self._after(device.fault)

    def wait(self, timeout_ms: int = 0) -> CommandState:
        return self._state

    def wait2(self, timeout: datetime.timedelta | None = None) -> None:
        if self._state != CommandState.ERT_CMD_STATE_COMPLETED:
            raise RuntimeError(f"Command failed to complete successfully ({self._state.name})")

    def state(self) -> CommandState:
        return self._state

    def _faulty_pointers(self, fault: str | None) -> tuple[Any, Any]:
        """The pointers to run with, and what must stay alive meanwhile."""
        if fault == "swapped_arguments":
            pair = _equal_inputs(self._arguments)
            if pair:
                pointers = type(self._pointers)(*self._pointers)
                pointers[pair[0]], pointers[pair[1]] = pointers[pair[1]], pointers[pair[0]]
                return pointers, None
        if fault == "kv_position_off_by_one":
            kinds = [argument.kind for argument in self._arguments]
            if "position" in kinds:
                index = kinds.index("position")
                wrong = self._device_bytes(index).view(np.int32).copy()
                wrong[0] = max(0, wrong[0] - 1)
                pointers = type(self._pointers)(*self._pointers)
                pointers[index] = wrong.ctypes.data
                return pointers, wrong
        return self._pointers, None

    def _after(self, fault: str | None) -> None:
        for index, argument in enumerate(self._arguments):
            bo = self._bos[index]
            if argument.written and bo is not None:
                bo.storage.written_by_device()
                if fault == "zero_output":
                    self._device_bytes(index).fill(0)
                elif fault == "nan_output":
                    self._device_bytes(index).fill(POISON)

    def _device_bytes(self, index: int) -> Bytes:
        bo, size = self._bos[index], self._arguments[index].bytes
        assert bo is not None
        return bo.storage.on_device[bo.offset : bo.offset + size]


def _equal_inputs(arguments: tuple[Argument, ...]) -> tuple[int, int] | None:
    """The first two inputs of one size, which a wrong binding could exchange unnoticed."""
    seen: dict[int, int] = {}
    for index, argument in enumerate(arguments):
        if argument.role == "in":
            if argument.bytes in seen:
                return seen[argument.bytes], index
            seen[argument.bytes] = index
    return None


def _copied(source: Bytes) -> Bytes:
    target = _pages(source.size)
    target[:] = source
    return target


def _pages(size: int) -> Bytes:
    """Zeroed bytes that start on a page, as a buffer object's do."""
    return np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)
