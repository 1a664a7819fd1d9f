"""The real NPU2 as a session over the `pyxrt` module, with what pyxrt leaves to its user.

Every wait has a deadline; only COMPLETED is success. Outputs are poisoned before a program's first
run in a context and must have changed after it, since a binary for another generation loads,
completes and writes nothing. Hardware contexts are few: they are opened on use and the least
recently used gives way where the driver has no more. One process holds the NPU; the others are told
which.

Two flows: a folder with `dispatch.elf` holds control code and configuration in one file, one with
`dispatch.xclbin` and `dispatch.insts.bin` is the older form with at most five buffers.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.machinery
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .contexts import Contexts, Loaded, Program, advice
from .errors import BundleError, DeviceError
from .session import Bo, Ext

NPU2_NAMES = ("Strix", "Krackan", "Gorgon", "npu4", "npu5", "npu6")
SETUP = "install XRT with the xdna driver, then `source /opt/xilinx/xrt/setup.sh`"
NAMES = ("xclBOSyncDirection", "ert_cmd_state", "elf", "hw_context", "bo", "run", "ext")
DEADLINE_MS = 60_000
"""Of a wait that names none; the driver's watchdog ends a stuck command after 2 to 4 s."""
POISON = 0xFF


class Npu2:
    """A session on pyxrt's device 0; one process per machine holds it at a time.

    `poison_always` poisons and checks the outputs of every run, not only of a program's first.
    """

    program = "dispatch.elf"
    resident_bytes: int | None = None

    def __init__(self, poison_always: bool = False) -> None:
        try:
            pyxrt = importlib.import_module("pyxrt")
        except ImportError as error:
            raise BundleError(f"device npu2 needs pyxrt ({error}): {SETUP}") from None
        for name in NAMES:
            if not hasattr(pyxrt, name):
                raise BundleError(f"this pyxrt has no {name!r}: XRT 2.20 or newer is needed")
        self._xrt = pyxrt
        self.xclBOSyncDirection = pyxrt.xclBOSyncDirection
        self.ert_cmd_state = pyxrt.ert_cmd_state
        self.poison_always = poison_always
        self.label = "measured (NPU2)" if compiled(pyxrt) else "stand-in for pyxrt, not measured"
        self.ext: Ext = _Ext(self)
        self._lock = Lock()
        self._device: Any = None
        self.contexts = Contexts(pyxrt)

    def device(self, index: int = 0) -> Any:
        """pyxrt.device(index), which must be an NPU2. Raises BundleError with the fix."""
        try:
            device = self._xrt.device(index)
            name = device.get_info(self._xrt.xrt_info_device.name)
        except RuntimeError as error:
            hint = advice(error) or SETUP
            raise BundleError(f"{str(error).strip()}: {hint}") from None
        if not any(known in name for known in NPU2_NAMES):
            raise BundleError(f"{name!r} is not an NPU2; binaries of a bundle run on NPU2 only")
        return device

    def elf(self, path: str) -> Program:
        """The program of a dispatch folder, in whichever form it is there."""
        return Program.find(Path(path).parent)

    def hw_context(self, device: Any, elf: Program) -> Handle:
        return Handle(self, device, elf)

    def bo(self, parent: Any, size: int, offset: int) -> Any:
        return self._xrt.bo(parent, size, offset)

    def run(self, kernel: Kernel) -> DeviceRun:
        return DeviceRun(self, kernel)

    def now_us(self) -> float:
        return time.perf_counter() * 1e6

    def untimed(self) -> contextlib.AbstractContextManager[None]:
        """The wall clock stands still for nobody."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Give contexts and the machine's NPU back."""
        self.contexts.clear()
        self._lock.release()


class _Ext:
    """pyxrt.ext"""

    def __init__(self, session: Npu2) -> None:
        self._session = session

    def bo(self, device: Any, size: int) -> Bo:
        return self._session._xrt.ext.bo(device, size)  # type: ignore[no-any-return]

    def kernel(self, context: Handle, name: str) -> Kernel:
        return context.kernel(name)


class Handle:
    """Stands for a context that takes several programs; each gets a hardware context on use."""

    def __init__(self, session: Npu2, device: Any, program: Program) -> None:
        self.session = session
        self.device = device
        self.programs: dict[str, Program] = {}
        self.add_config(program)

    def add_config(self, program: Program) -> None:
        self.programs[f"main:{program.dispatch.name}"] = program

    def kernel(self, name: str) -> Kernel:
        if name not in self.programs:
            raise RuntimeError(f"no ELF found with given kernel name in ctx: '{name}'")
        program = self.programs[name]
        self.session.contexts.open(self.device, program)  # a wrong file shows now, not in a run
        return Kernel(self.device, program)


class Kernel:
    """A program and the device it runs on."""

    def __init__(self, device: Any, program: Program) -> None:
        self.device = device
        self.program = program


class DeviceRun:
    """pyxrt.run that outlives its context: arguments are kept and set again when it comes back."""

    def __init__(self, session: Npu2, kernel: Kernel) -> None:
        self._session = session
        self._kernel = kernel
        self._arguments = kernel.program.dispatch.arguments
        self._bos: list[Any] = [None] * len(self._arguments)
        self._run: Any = None
        self._poisoned = False
        self._loaded: Loaded | None = None

    def set_arg(self, index: int, value: Any) -> None:
        """As pyxrt.run.set_arg, but nothing wrong is swallowed."""
        if not 0 <= index < len(self._bos):
            raise IndexError(f"set_arg({index}): index out of range, there are {len(self._bos)}")
        if not hasattr(value, "sync"):
            raise TypeError(f"set_arg({index}): incompatible function arguments, not a bo")
        needed = self._arguments[index].bytes
        if value.size() < needed:
            name = self._arguments[index].name
            raise RuntimeError(f"argument {name!r} needs {needed} bytes, the bo has {value.size()}")
        if self._run is not None:
            self._run.set_arg(self._kernel.program.first_argument + index, value)
        self._bos[index] = value

    def start(self) -> None:
        name = self._kernel.program.dispatch.name
        missing = [a.name for a, b in zip(self._arguments, self._bos, strict=True) if b is None]
        if missing:
            raise RuntimeError(f"{name}: argument not set: {', '.join(missing)}")
        loaded = self._session.contexts.open(self._kernel.device, self._kernel.program)
        if self._run is None:
            self._run = loaded.run(self._bos)
            loaded.users.add(self)
        self._loaded = loaded
        self._poisoned = self._session.poison_always or not loaded.proven
        if self._poisoned:
            self._poison()
        loaded.busy = True
        try:
            self._run.start()
        except BaseException:
            loaded.busy = False
            raise

    def wait(self, timeout_ms: int = 0) -> Any:
        """The final state, or a non-final one at the deadline; never waits without one."""
        if self._run is None:
            return self._session.ert_cmd_state.ERT_CMD_STATE_NEW
        program = self._kernel.program
        state = self._run.wait(timeout_ms or DEADLINE_MS)
        done = self._session.ert_cmd_state.ERT_CMD_STATE_COMPLETED
        self._session.contexts.settled(program)
        if state != done:
            self._session.contexts.drop(program)  # the driver has torn it down, or soon will
            return state
        if self._poisoned and self._loaded is not None:
            self._check()
            self._poisoned, self._loaded.proven = False, True
        return state

    def wait2(self, timeout: Any = None) -> None:
        limit = int(timeout.total_seconds() * 1e3) if timeout is not None else 0
        state = self.wait(limit)
        if state != self._session.ert_cmd_state.ERT_CMD_STATE_COMPLETED:
            name = getattr(state, "name", state)
            raise RuntimeError(f"Command failed to complete successfully ({name})")

    def state(self) -> Any:
        states = self._session.ert_cmd_state
        return states.ERT_CMD_STATE_NEW if self._run is None else self._run.state()

    def forget(self) -> None:
        """The context goes: its run with it."""
        self._run = self._loaded = None

    def _poison(self) -> None:
        to = self._session.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        for argument, bo in zip(self._arguments, self._bos, strict=True):
            if argument.role == "out":
                bo.map()[: argument.bytes] = bytes([POISON]) * argument.bytes
                bo.sync(to)

    def _check(self) -> None:
        back = self._session.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        for argument, bo in zip(self._arguments, self._bos, strict=True):
            if argument.role == "out":
                bo.sync(back)
                if bytes(bo.map()[: argument.bytes]) == bytes([POISON]) * argument.bytes:
                    name = self._kernel.program.dispatch.name
                    raise DeviceError(
                        f"{name} completed, but {argument.name!r} was never written: "
                        f"a binary for another generation does that"
                    )


def compiled(module: Any) -> bool:
    """Whether a module is a compiled extension, as the one that talks to a driver must be."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    return str(getattr(module, "__file__", "")).endswith(suffixes)


class Lock:
    """The machine's NPU lock: two processes at once can wedge the device.

    The file names its holder. Raises BundleError while another process holds it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.gettempdir()) / "tilegate.npu2.lock"
        flags = os.O_RDWR | os.O_CREAT
        try:
            self._handle: int | None = os.open(self.path, flags, 0o666)
        except PermissionError:
            self._handle = os.open(self.path, os.O_RDONLY)  # another user's: locking still works
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = holder_of(self.path)
            self.release()
            raise BundleError(
                f"another process uses the NPU: {holder} (lock {self.path})"
            ) from None
        try:
            os.ftruncate(self._handle, 0)
            words = re.sub(r"\s+", " ", " ".join(sys.argv))[:160]
            os.pwrite(self._handle, f"pid {os.getpid()}: {words}\n".encode(), 0)
        except OSError:
            pass  # the lock holds without its holder's name

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def holder_of(path: Path) -> str:
    """Who wrote into a lock file, in its own words."""
    try:
        return path.read_text().strip() or "unknown"
    except OSError:
        return "unknown"
