"""Programs of dispatches, and the few hardware contexts that they share."""

from __future__ import annotations

import re
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BundleError, DeviceError
from .manifest import Dispatch, read_dispatch

ELF, XCLBIN, INSTRUCTIONS = "dispatch.elf", "dispatch.xclbin", "dispatch.insts.bin"
RUN_INSTRUCTIONS = 3
"""The opcode of the xclbin flow: run a stream of instructions."""
MOST_XCLBIN_BUFFERS = 5
ADVICE = {
    "No such device": "no NPU is visible; install XRT with the xdna driver, then "
    "`source /opt/xilinx/xrt/setup.sh`",
    "Could not open device": "the NPU cannot be opened; install XRT with the xdna driver, then "
    "`source /opt/xilinx/xrt/setup.sh`",
    "Permission denied": "no permission: add this user to the group `render` and log in again",
    "Device or resource busy": "the NPU is busy: end the other process that uses it",
    "Resource temporarily unavailable": "the memlock limit is too low: run `ulimit -l unlimited`",
    "No space left on device": "no hardware context is free: end other programs that use the NPU",
    "Timer expired": "the configuration hangs: reload the driver (rmmod amdxdna; modprobe amdxdna)",
    "Input/output error": "the NPU is wedged, or the binary is for another generation: "
    "reload the driver",
    "Operation not supported": "XRT is newer than the driver: install the one that belongs to it",
    "No such file or directory": "the context is stale, as after suspend: start again",
    "valid ELF file": "the file is damaged or for another toolchain: build the bundle again",
    "kernel name": "the ELF holds another function: build the bundle again",
}


def advice(error: BaseException) -> str:
    """What mends an error of XRT, or nothing. The texts are its own; numbers vary by version."""
    return next((fix for text, fix in ADVICE.items() if text in str(error)), "")


@dataclass(frozen=True)
class Program:
    """What a dispatch folder holds for the NPU: one ELF, or an xclbin and its instructions."""

    dispatch: Dispatch
    path: Path
    flow: str

    @classmethod
    def find(cls, folder: Path) -> Program:
        """Raises BundleError where the folder was built for the emulated device only."""
        dispatch = read_dispatch(folder)
        if (folder / ELF).is_file():
            return cls(dispatch, folder / ELF, "elf")
        if (folder / XCLBIN).is_file() and (folder / INSTRUCTIONS).is_file():
            if len(dispatch.arguments) > MOST_XCLBIN_BUFFERS:
                count = len(dispatch.arguments)
                raise BundleError(
                    f"{folder}: {count} arguments; the xclbin flow takes {MOST_XCLBIN_BUFFERS}"
                )
            return cls(dispatch, folder / XCLBIN, "xclbin")
        raise BundleError(f"{folder}: no {ELF}; deploy with device=npu2 builds it")

    @property
    def kernel(self) -> str:
        """The name that the host asks for: the module's function."""
        return "main:" + re.sub(r"[^\w.$]", "_", self.dispatch.name)

    @property
    def first_argument(self) -> int:
        """The index of the first buffer: the xclbin flow has opcode, instructions and length."""
        return 0 if self.flow == "elf" else RUN_INSTRUCTIONS


class Loaded:
    """A program in a hardware context."""

    def __init__(self, xrt: Any, device: Any, program: Program) -> None:
        self.xrt = xrt
        self.program = program
        self.busy = False
        self.proven = False  # that it writes what it should
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._fixed: tuple[Any, ...] = ()
        if program.flow == "elf":
            self._source = xrt.elf(str(program.path))
            self._context = xrt.hw_context(device, self._source)
            self._kernel = xrt.ext.kernel(self._context, program.kernel)
            return
        self._source = xrt.xclbin(str(program.path))
        device.register_xclbin(self._source)
        self._context = xrt.hw_context(device, self._source.get_uuid())
        names = [kernel.get_name() for kernel in self._source.get_kernels()]
        name = next((name for name in names if "MLIR_AIE" in name), None)
        if name is None:
            raise RuntimeError(f"No valid DPU kernel found in xclbin: {', '.join(names)}")
        self._kernel = xrt.kernel(self._context, name)
        words = (program.path.parent / INSTRUCTIONS).read_bytes()
        stream = xrt.bo(device, len(words), xrt.bo.cacheable, self._kernel.group_id(1))
        stream.map()[: len(words)] = words
        stream.sync(xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
        self._fixed = (RUN_INSTRUCTIONS, stream, len(words) // 4)

    def run(self, bos: Sequence[Any]) -> Any:
        """A run with all arguments set."""
        run = self.xrt.run(self._kernel)
        for index, value in enumerate((*self._fixed, *bos)):
            run.set_arg(index, value)
        return run

    def close(self) -> None:
        """Let go in the order that the driver wants: runs, stream, kernel, context, file."""
        for user in list(self.users):
            user.forget()
        self._fixed = ()
        self._kernel = self._context = self._source = None


FULL = re.compile(r"No space left on device|CREATE_HWCTX.*err=-(22|16)\b")
"""What drivers say when they have no context left; older ones call it -22 or -16."""


class Contexts:
    """The open contexts. `limit` is unknown until the driver refuses one."""

    def __init__(self, xrt: Any) -> None:
        self._xrt = xrt
        self._live: OrderedDict[Path, Loaded] = OrderedDict()
        self.limit: int | None = None

    def __len__(self) -> int:
        return len(self._live)

    def open(self, device: Any, program: Program) -> Loaded:
        """The program in a context, opened if need be. Raises DeviceError when none can be had."""
        loaded = self._live.get(program.path)
        if loaded is not None:
            self._live.move_to_end(program.path)
            return loaded
        while self.limit is not None and len(self._live) >= self.limit:
            self._evict(program)
        while True:
            try:
                loaded = Loaded(self._xrt, device, program)
                break
            except RuntimeError as error:
                if not FULL.search(str(error)) or not self._live:
                    fix = advice(error)
                    text = f"{program.dispatch.name}: {str(error).strip()}"
                    raise DeviceError(f"{text}: {fix}" if fix else text) from None
                self.limit = len(self._live)
            self._evict(program)
        self._live[program.path] = loaded
        return loaded

    def settled(self, program: Program) -> None:
        """Its command has ended."""
        if program.path in self._live:
            self._live[program.path].busy = False

    def drop(self, program: Program) -> None:
        """Close a program's context; it opens anew when next used."""
        loaded = self._live.pop(program.path, None)
        if loaded is not None:
            loaded.close()

    def clear(self) -> None:
        for loaded in self._live.values():
            loaded.close()
        self._live.clear()

    def _evict(self, wanted: Program) -> None:
        for path, loaded in self._live.items():
            if not loaded.busy:
                del self._live[path]
                loaded.close()
                return
        raise DeviceError(f"{wanted.dispatch.name}: all {len(self._live)} contexts are running")
