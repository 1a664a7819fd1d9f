"""What `doit doctor device=npu2` says of machines that are folders."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
from pathlib import Path

import pytest

from tilegate import device, npu_doctor
from tilegate.finding import Finding
from tilegate.npu_doctor import Machine, chip, findings, toolchain

NPU2 = device.load("npu2")
PLACE = "sys/bus/pci/devices/0000:c5:00.1"


class Fake(Machine):
    """A machine whose device node opens with a chosen error."""

    fails: int = 0

    def open_node(self, node: Path) -> int:
        return self.fails


def machine(root: Path, pci: str = "1022:17f0", driver: bool = True, node: bool = True) -> Fake:
    if pci:
        vendor, name = pci.split(":")
        (root / PLACE).mkdir(parents=True)
        (root / PLACE / "vendor").write_text(f"0x{vendor}\n")
        (root / PLACE / "device").write_text(f"0x{name}\n")
    if driver:
        (root / "sys/bus/pci/drivers/amdxdna").mkdir(parents=True)
        (root / PLACE / "driver").symlink_to(root / "sys/bus/pci/drivers/amdxdna")
    if node:
        (root / "dev/accel").mkdir(parents=True)
        (root / "dev/accel/accel0").touch()
    (root / "opt/xilinx/xrt/python").mkdir(parents=True)
    return Fake(root, {"PATH": str(root / "bin")}, (3, 11), root / "npu.lock")


def starts(found: Finding, detail: str, fix: str) -> None:
    assert found.state == "missing" and found.detail.startswith(detail), found
    assert fix in found.fix, found


def test_five_problems_have_five_answers(tmp_path: Path) -> None:
    """No device, wrong generation, no driver, no permission, busy."""

    def at(name: str, **kind: object) -> Fake:
        (tmp_path / name).mkdir()
        return machine(tmp_path / name, **kind)  # type: ignore[arg-type]

    starts(chip(NPU2, at("a", pci="", driver=False, node=False)), "no device", "machine that has")
    starts(chip(NPU2, at("b", pci="1022:1502")), "wrong generation", "device=npu1")
    starts(chip(NPU2, at("c", driver=False, node=False)), "no driver: nothing is bound", "xdna")
    starts(chip(NPU2, at("d", node=False)), "no driver: amdxdna made no node", "firmware")
    closed = at("e")
    for number, detail, fix in (
        (errno.EACCES, "no permission on /dev/accel/accel0", "render"),
        (errno.EBUSY, "busy: /dev/accel/accel0", "fuser"),
        (errno.EIO, "/dev/accel/accel0 does not open: Input/output error", "dmesg"),
    ):
        object.__setattr__(closed, "fails", number)
        starts(chip(NPU2, closed), detail, fix)
    assert chip(NPU2, at("f")) == Finding("device npu2", "ok", "/dev/accel/accel0 opens")


def test_busy_by_our_own_lock_names_the_holder(tmp_path: Path) -> None:
    here = machine(tmp_path)
    here.lock.write_text("pid 4711: run --device npu2\n")
    handle = os.open(here.lock, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    starts(chip(NPU2, here), "busy: held by pid 4711: run --device npu2", "end it")
    os.close(handle)
    assert chip(NPU2, here).state == "ok"


def test_without_the_device_in_the_configuration_nothing_is_missing(tmp_path: Path) -> None:
    here = machine(tmp_path, pci="", driver=False, node=False)
    emulated = dataclasses.replace(NPU2, backend="emulated")
    assert all(found.state != "missing" for found in findings(emulated, here))
    assert any(found.state == "missing" for found in findings(NPU2, here))


def report(here: Machine) -> dict[str, Finding]:
    return {found.what: found for found in findings(NPU2, here)}


def test_pyxrt_of_another_python_and_off_the_path(tmp_path: Path) -> None:
    here = machine(tmp_path)
    xrt = tmp_path / "opt/xilinx/xrt"
    starts(report(here)["pyxrt"], "not in", "Python bindings")
    (xrt / "python/pyxrt.cpython-312-x86_64-linux-gnu.so").touch()
    starts(report(here)["pyxrt"], "built for Python 3.12, this is 3.11", "run with Python 3.12")
    (xrt / "python/pyxrt.cpython-311-x86_64-linux-gnu.so").touch()
    starts(report(here)["pyxrt"], "pyxrt.cpython-311", "setup.sh")
    there = dataclasses.replace(here, environment={"PYTHONPATH": str(xrt / "python")})
    assert report(there)["pyxrt"].state == "ok"


@pytest.mark.parametrize(
    ("version", "state"), [("2.19.0", "missing"), ("2.20.1", "ok"), ("3.0", "missing")]
)
def test_xrt_is_held_against_its_window(tmp_path: Path, version: str, state: str) -> None:
    here = machine(tmp_path)
    (tmp_path / "opt/xilinx/xrt/version.json").write_text(f'{{"BUILD_VERSION" : "{version}"}}')
    found = report(here)["xrt"]
    assert found.state == state and version in found.detail
    assert "(estimate)" in found.detail + found.fix
    assert ("supported from 2.20" in found.fix) is (state == "missing")


def test_the_toolchain_is_found_and_its_versions_are_read(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert {found.state for found in toolchain(here)} == {"missing"}
    assert all("mlir_air[aie]" in found.fix for found in toolchain(here))
    (tmp_path / "bin").mkdir()
    (tmp_path / "peano/bin").mkdir(parents=True)
    for tool, text in (
        ("bin/aircc", "aircc 0.0.1.2026"),
        ("bin/aie-opt", "1.4.2.dev16"),
        ("peano/bin/clang++", "clang version 22.0.0 (llvm-aie)"),
    ):
        (tmp_path / tool).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / tool).chmod(0o755)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    there = dataclasses.replace(
        here, environment={"PATH": path, "PEANO_INSTALL_DIR": str(tmp_path / "peano")}
    )
    found = {one.what: one for one in toolchain(there)}
    assert found["mlir_air"].state == found["mlir_aie"].state == "ok"
    starts(found["peano"], "22.0.0", "miscompile")


def test_windows_are_there_for_all_that_is_checked() -> None:
    for what in ("xrt", "peano", "mlir_air", "mlir_aie", "kernel"):
        found = npu_doctor.windowed(what, "", "/x", "missing")
        assert found.state == "optional" and "(estimate)" in found.fix


def test_driver_and_firmware_say_their_versions(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert report(here)["driver"].state == "optional"
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    for kernel, state in (("6.8.0-31-generic", "optional"), ("6.14.2", "ok")):
        (tmp_path / "proc/sys/kernel/osrelease").write_text(f"{kernel}\n")
        found = report(here)["driver"]
        assert found.state == state and kernel in found.detail
    (tmp_path / "sys/bus/pci/drivers/amdxdna/module").mkdir()
    (tmp_path / "sys/bus/pci/drivers/amdxdna/module/version").write_text("2.21.0\n")
    assert report(here)["driver"].detail.startswith("amdxdna 2.21.0, kernel 6.14.2")
    firmware = tmp_path / "sys/class/accel/accel0/device/fw_version"
    firmware.parent.mkdir(parents=True)
    firmware.write_text("1.0.0.63\n")
    assert report(here)["firmware"] == Finding("firmware", "ok", "1.0.0.63")
