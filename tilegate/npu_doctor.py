"""Whether this machine can build for and run on a real NPU: for each problem its cause and its fix.

No device, no driver, no permission, wrong generation and busy are five different answers; each is
read from the system, none guessed from another's failure.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilegate.device import Device
from tilegate.finding import Finding, State

WINDOWS = Path(__file__).resolve().parent / "data" / "toolchain.yaml"
GENERATIONS = {"1022:1502": "npu1", "1022:17f0": "npu2"}
WHEELS = (
    "pip install 'mlir_air[aie]' -f https://github.com/Xilinx/mlir-air/releases/expanded_assets/"
    "latest-air-wheels -f https://github.com/Xilinx/mlir-aie/releases/expanded_assets/"
    "latest-wheels-4 -f https://github.com/Xilinx/llvm-aie/releases/expanded_assets/nightly"
)
DRIVER = "build and install amd/xdna-driver, or boot a kernel from 6.14 on with amdxdna"
SETUP = "source /opt/xilinx/xrt/setup.sh"


@dataclass(frozen=True)
class Machine:
    """The system to look at; tests give a folder in the place of `/`."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: tuple[int, int] = (sys.version_info.major, sys.version_info.minor)
    lock: Path = Path("/tmp/tilegate.npu2.lock")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """A small file's text, empty when it cannot be read."""
        try:
            return self.path(name).read_text().strip()
        except OSError:
            return ""

    def open_node(self, node: Path) -> int:
        """The error number of opening a device node, 0 when it opens."""
        try:
            os.close(os.open(node, os.O_RDWR))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def held(self) -> str:
        """Who holds the lock of this project's runs, empty when nobody does."""
        import fcntl

        try:
            handle = os.open(self.lock, os.O_RDONLY)
        except OSError:
            return ""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self.lock.read_text().strip() or "another run"
        finally:
            os.close(handle)
        return ""

    def tool(self, name: str, folder: str = "") -> str:
        """The path of an executable: in a folder (`bin` of it), else on PATH."""
        if folder and (Path(folder) / "bin" / name).is_file():
            return str(Path(folder) / "bin" / name)
        return shutil.which(name, path=self.environment.get("PATH", "")) or ""

    def say(self, *command: str) -> str:
        """What a command prints, empty when it fails."""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=20, env=dict(self.environment)
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout + done.stderr if done.returncode == 0 else ""


def findings(device: Device, machine: Machine | None = None) -> Iterator[Finding]:
    """The chip first, then what runs on it, then what builds for it."""
    machine = machine or Machine()
    wanted: State = "missing" if device.backend == "xrt" else "optional"
    yield chip(device, machine, wanted)
    yield _driver(device, machine)
    yield _firmware(machine)
    yield from _runtime(machine, wanted)
    yield from toolchain(machine, wanted)


def chip(device: Device, machine: Machine, wanted: State = "missing") -> Finding:
    """One of six answers: ok, or no device, wrong generation, no driver, no permission, busy."""
    what = f"device {device.name}"
    found = _pci(machine)
    mine = [place for place, name in found.items() if name in device.pci]
    if not mine and found:
        place, name = next(iter(found.items()))
        other = GENERATIONS.get(name, name)
        detail = f"wrong generation: {place} is an {other} ({name}), not an {device.name}"
        return Finding(what, wanted, detail, f"deploy with device={other}, or emulated-{other}")
    if not mine:
        detail = f"no device: none of {', '.join(device.pci)} on the PCI bus"
        fix = "use a machine that has the NPU, and enable it (IPU) in its firmware setup"
        return Finding(what, wanted, detail, fix)
    place = mine[0]
    driver = machine.path(f"/sys/bus/pci/devices/{place}/driver")
    if not driver.exists():
        return Finding(what, wanted, f"no driver: nothing is bound to {place}", DRIVER)
    nodes = sorted(machine.path("/dev/accel").glob("accel*"))
    if not nodes:
        detail = f"no driver: {driver.resolve().name} made no node under /dev/accel"
        fix = "see dmesg for amdxdna; the firmware (linux-firmware, amdnpu/) must match the driver"
        return Finding(what, wanted, detail, fix)
    return _opened(what, nodes[0], machine, wanted)


def _opened(what: str, node: Path, machine: Machine, wanted: State) -> Finding:
    failed = machine.open_node(node)
    name = f"/dev/accel/{node.name}"
    if failed in (errno.EACCES, errno.EPERM):
        fix = "add yourself to the group that owns it (sudo usermod -aG render $USER), log in again"
        return Finding(what, wanted, f"no permission on {name}", fix)
    if failed == errno.EBUSY:
        fix = f"end the other program that uses it (fuser -v {name})"
        return Finding(what, wanted, f"busy: {name} is in use by another program", fix)
    if failed:
        text = os.strerror(failed)
        return Finding(what, wanted, f"{name} does not open: {text}", "see dmesg for amdxdna")
    holder = machine.held()
    if holder:
        return Finding(what, wanted, f"busy: held by {holder}", "wait for it, or end it")
    return Finding(what, "ok", f"{name} opens")


def _pci(machine: Machine) -> dict[str, str]:
    """NPUs on the bus: PCI address -> vendor:device."""
    found = {}
    for place in sorted(machine.path("/sys/bus/pci/devices").glob("*")):
        base = f"/sys/bus/pci/devices/{place.name}"
        ids = [machine.read(f"{base}/{part}").removeprefix("0x") for part in ("vendor", "device")]
        if ":".join(ids) in GENERATIONS:
            found[place.name] = ":".join(ids)
    return found


def _driver(device: Device, machine: Machine) -> Finding:
    """The bound driver's own version, or that of the kernel it came with; never `missing`: whether
    one is bound is the chip's answer."""
    kernel = machine.read("/proc/sys/kernel/osrelease")
    for place, name in _pci(machine).items():
        driver = f"/sys/bus/pci/devices/{place}/driver"
        if name in device.pci and machine.path(driver).exists():
            called = machine.path(driver).resolve().name
            version = machine.read(f"{driver}/module/version")
            if version:
                return Finding("driver", "ok", f"{called} {version}, kernel {kernel or 'unknown'}")
            return windowed("kernel", kernel, f"{called} of the kernel", "optional", "driver")
    return Finding("driver", "optional", f"none is bound, kernel {kernel or 'unknown'}", DRIVER)


def _firmware(machine: Machine) -> Finding:
    version = machine.read("/sys/class/accel/accel0/device/fw_version")
    if version:
        return Finding("firmware", "ok", version)
    return Finding("firmware", "optional", "not reported", "needs a bound driver")


def _runtime(machine: Machine, wanted: State) -> Iterator[Finding]:
    """XRT and its Python module."""
    xrt = Path(machine.environment.get("XILINX_XRT", "") or machine.path("/opt/xilinx/xrt"))
    if not xrt.is_dir():
        fix = "install the xrt and xrt_plugin-amdxdna packages of amd/xdna-driver"
        yield Finding("xrt", wanted, f"no {xrt}", fix)
        yield Finding("pyxrt", wanted, "needs XRT", fix)
        return
    try:
        text = (xrt / "version.json").read_text()
    except OSError:
        text = ""
    found = re.search(r'"(?:BUILD_VERSION|VERSION)"\s*:\s*"([\d.]+)"', text)
    yield windowed("xrt", found.group(1) if found else "", str(xrt), wanted)
    yield _pyxrt(xrt, machine, wanted)


def _pyxrt(xrt: Path, machine: Machine, wanted: State) -> Finding:
    modules = sorted(xrt.glob("python/pyxrt*.so"))
    if not modules:
        return Finding(
            "pyxrt", wanted, f"not in {xrt / 'python'}", "build XRT with Python bindings"
        )
    tags = [re.search(r"cpython-(\d)(\d+)", module.name) for module in modules]
    versions = [(int(tag.group(1)), int(tag.group(2))) for tag in tags if tag]
    this = ".".join(map(str, machine.python))
    if versions and machine.python not in versions:
        built = ", ".join(f"{a}.{b}" for a, b in versions)
        fix = f"run with Python {built}, or build XRT for {this}"
        return Finding("pyxrt", wanted, f"built for Python {built}, this is {this}", fix)
    if str(xrt / "python") not in machine.environment.get("PYTHONPATH", "").split(":"):
        return Finding("pyxrt", wanted, f"{modules[0].name} is not on PYTHONPATH", SETUP)
    return Finding("pyxrt", "ok", f"{modules[0].name} for Python {this}")


def toolchain(machine: Machine, wanted: State = "missing") -> Iterator[Finding]:
    """Peano, mlir-air and mlir-aie, with their versions against the window."""
    peano = machine.environment.get("PEANO_INSTALL_DIR", "")
    for what, tool, folder in (
        ("peano", "clang++", peano),
        ("mlir_air", "aircc", machine.environment.get("MLIR_AIR_INSTALL_DIR", "")),
        ("mlir_aie", "aie-opt", machine.environment.get("MLIR_AIE_INSTALL_DIR", "")),
    ):
        path = machine.tool(tool, folder) if what != "peano" or peano else ""
        if not path:
            where = "PEANO_INSTALL_DIR is not set" if what == "peano" else f"no {tool} on PATH"
            yield Finding(what, wanted, where, WHEELS)
            continue
        text = machine.say(path, "--version")
        found = re.search(r"version:? v?(\d+(?:\.\d+)+)", text, re.I) or re.search(
            r"(\d+(?:\.\d+)+)", text
        )
        yield windowed(what, found.group(1) if found else "", path, wanted)


def windowed(what: str, version: str, place: str, wanted: State, shown: str = "") -> Finding:
    """A version against the supported window; an estimated window is said to be one."""
    import yaml

    window = yaml.safe_load(WINDOWS.read_text())[what]
    kind = "" if window["basis"] == "source" else f" ({window['basis']})"
    bounds = f"from {window['least']} to below {window['below']}{kind}"
    span, shown = f"supported {bounds}: {window['why']}", shown or what
    if not version:
        return Finding(shown, "optional", f"{place}, version unknown", span)
    number = _numbers(version)
    if _numbers(window["least"]) <= number < _numbers(window["below"]):
        return Finding(shown, "ok", f"{version} at {place}, within {bounds}")
    return Finding(shown, wanted, f"{version} at {place} is outside of the window", span)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
