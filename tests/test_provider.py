"""One contract for every provider of the session: emulated, pyxrt's two flows, real hardware."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strict_pyxrt import Behaviour, module
from tiny_bundle import TIMING

from runtime import bf16
from runtime.emulated import EmulatedNpu2
from runtime.errors import BundleError, DeviceError
from runtime.manifest import parse_timing
from runtime.session import open_session
from runtime.xrt import Lock, Npu2, compiled
from tilegate import bringup, device, hardware, kernels, solo
from tilegate.dispatch import solo as solo_dispatch
from tilegate.store import Store

SHAPE = {"M": 8, "N": 256, "broadcast": False}
TILE = {"herd": (8, 1), "tile_n": 256}
PROVIDERS = ("emulated", "elf", "xclbin", pytest.param("hardware", marks=pytest.mark.hardware))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dispatch of one addition, in the forms of all flows; the stand-in runs the host's."""
    store = Store()
    plan = kernels.contract("add").plan(SHAPE, TILE)
    artifact = solo.build(plan, store)
    root = tmp_path_factory.mktemp("programs")
    for flow in ("elf", "xclbin"):
        folder = root / flow
        folder.mkdir()
        for name in ("dispatch.json", "dispatch.so"):
            shutil.copy(artifact.file(name), folder / name)
        shutil.copy(folder / "dispatch.so", folder / f"dispatch.{flow}")
    (root / "xclbin" / "dispatch.insts.bin").write_bytes(bytes(64))
    return root


@pytest.fixture
def behaviour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Behaviour:
    """A machine with a stand-in for pyxrt and a lock file of its own."""
    made = Behaviour()
    monkeypatch.setitem(sys.modules, "pyxrt", module(made))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return made


class Rig:
    """The addition on a session: a + b -> y."""

    def __init__(self, session: Any, folder: Path) -> None:
        self.session = session
        self.device = session.device(0)
        program = session.elf(str(folder / session.program))
        self.context = session.hw_context(self.device, program)
        self.kernel = session.ext.kernel(self.context, "main:alone:add")
        self.bos = [session.ext.bo(self.device, 8 * 256 * 2) for _ in range(3)]
        self.run = session.run(self.kernel)
        for index, bo in enumerate(self.bos):
            self.run.set_arg(index, bo)

    def to(self, bo: Any) -> None:
        bo.sync(self.session.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)

    def back(self, bo: Any, *span: int) -> None:
        bo.sync(self.session.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE, *span)

    def fill(self, seed: int) -> Any:
        """New operands on the device; the sum that is due."""
        random = np.random.default_rng(seed)
        values = [bf16.narrow(random.normal(size=2048).astype(np.float32)) for _ in range(2)]
        for value, bo in zip(values, self.bos, strict=False):
            bo.write(value.view(np.uint8), 0)
            self.to(bo)
        return bf16.widen(values[0]) + bf16.widen(values[1])

    def result(self) -> Any:
        self.run.start()
        assert self.run.wait(10_000) == self.session.ert_cmd_state.ERT_CMD_STATE_COMPLETED
        self.back(self.bos[2])
        return bf16.widen(np.frombuffer(self.bos[2].map(), np.uint16).copy())


@pytest.fixture(params=PROVIDERS)
def rig(request: pytest.FixtureRequest, built: Path) -> Iterator[Rig]:
    if request.param == "emulated":
        yield Rig(EmulatedNpu2(parse_timing(TIMING)), built / "elf")
        return
    if request.param == "hardware":
        yield from _hardware()
        return
    request.getfixturevalue("behaviour")
    session = Npu2()
    yield Rig(session, built / request.param)
    session.close()


def _hardware() -> Iterator[Rig]:
    """A real NPU, with this addition built for it by the toolchain that is here."""
    if importlib.util.find_spec("pyxrt") is None:
        pytest.skip("NOT RUN ON HARDWARE: no pyxrt")
    if hardware.tools().missing:
        pytest.skip(f"NOT RUN ON HARDWARE: no {hardware.tools().missing[0]} to build for it")
    dispatch = solo_dispatch(kernels.contract("add").plan(SHAPE, TILE))
    binary = bringup.make(Store(), hardware.binary_node(dispatch, device.load("npu2")))
    session = Npu2()
    yield Rig(session, binary.path)
    session.close()


def close(got: Any, want: Any) -> bool:
    return bool(np.allclose(got, want, rtol=1e-2, atol=1e-2))


def test_it_computes_again_and_again(rig: Rig) -> None:
    for seed in range(3):
        due = rig.fill(seed)
        assert close(rig.result(), due)
    assert rig.run.state() == rig.session.ert_cmd_state.ERT_CMD_STATE_COMPLETED


def test_a_forgotten_sync_shows(rig: Rig) -> None:
    due = rig.fill(0)
    assert close(rig.result(), due)
    changed = bf16.narrow(np.full(2048, 100, np.float32))
    rig.bos[0].write(changed.view(np.uint8), 0)
    assert close(rig.result(), due), "the device saw what was never synced"
    rig.to(rig.bos[0])
    assert not close(rig.result(), due)


def test_a_sub_buffer_takes_a_result(rig: Rig) -> None:
    due = rig.fill(1)
    root = rig.session.ext.bo(rig.device, 4 * 4096)
    rig.run.set_arg(2, rig.session.bo(root, 4096, 8192))
    rig.run.start()
    assert rig.run.wait(10_000) == rig.session.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    rig.back(root)
    assert close(bf16.widen(np.frombuffer(root.map(), np.uint16)[4096:6144]), due)
    with pytest.raises(RuntimeError, match="sub buffer size and offset"):
        rig.session.bo(root, 4096, 4 * 4096 - 16)


def test_wrong_arguments_are_errors_and_never_silent(rig: Rig) -> None:
    with pytest.raises(IndexError):
        rig.run.set_arg(3, rig.bos[0])
    with pytest.raises(TypeError):
        rig.run.set_arg(0, np.zeros(4))
    with pytest.raises(RuntimeError, match="needs 4096 bytes, the bo has 8"):
        rig.run.set_arg(0, rig.session.ext.bo(rig.device, 8))
    with pytest.raises(RuntimeError, match="argument not set: a, b, y"):
        rig.session.run(rig.kernel).start()
    with pytest.raises(RuntimeError, match="no ELF found with given kernel name"):
        rig.session.ext.kernel(rig.context, "main:other")


def test_a_label_tells_where_a_time_comes_from(rig: Rig) -> None:
    real = isinstance(rig.session, Npu2) and compiled(sys.modules["pyxrt"])
    assert (rig.session.label == "measured (NPU2)") is real


@pytest.mark.parametrize("flow", ["elf", "xclbin"])
@pytest.mark.parametrize("state", ["ERROR", "ABORT", "TIMEOUT", "NORESPONSE", "SKCRASHED"])
def test_only_completed_is_success(
    behaviour: Behaviour, built: Path, flow: str, state: str
) -> None:
    rig = Rig(Npu2(), built / flow)
    rig.fill(0)
    good = rig.result().copy()
    behaviour.final_state = rig.session.ert_cmd_state[f"ERT_CMD_STATE_{state}"].value
    rig.run.start()
    with pytest.raises(RuntimeError, match=f"Command failed .*ERT_CMD_STATE_{state}"):
        rig.run.wait2()
    behaviour.final_state = 4
    assert close(rig.result(), good), "the context that failed is opened anew"
    assert behaviour.opened == 2


def test_every_wait_has_a_deadline(behaviour: Behaviour, built: Path) -> None:
    rig = Rig(Npu2(), built / "elf")
    behaviour.never_ends = True
    rig.run.start()
    assert rig.run.wait().name == "ERT_CMD_STATE_SUBMITTED"
    rig.run.start()
    with pytest.raises(RuntimeError, match="Command failed"):
        rig.run.wait2()
    assert behaviour.waits and all(ms > 0 for ms in behaviour.waits)


def test_a_binary_that_writes_nothing_does_not_pass(behaviour: Behaviour, built: Path) -> None:
    rig = Rig(Npu2(), built / "elf")
    behaviour.writes_nothing = True
    rig.fill(0)
    rig.run.start()
    with pytest.raises(DeviceError, match="'y' was never written: a binary for another generation"):
        rig.run.wait(1000)


def test_a_program_is_proven_once_and_again_in_a_new_context(
    behaviour: Behaviour, built: Path
) -> None:
    """A model binds one program many times: the first run pays for the check, not each."""
    rig = Rig(Npu2(), built / "elf")
    due = rig.fill(0)
    assert close(rig.result(), due)
    other = rig.session.run(rig.kernel)
    for index, bo in enumerate(rig.bos):
        other.set_arg(index, bo)
    behaviour.writes_nothing = True
    other.start()
    assert other.wait(1000) == rig.session.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    rig.session.contexts.clear()
    other.start()
    with pytest.raises(DeviceError, match="never written"):
        other.wait(1000)


def test_with_poison_always_a_later_run_is_checked_too(behaviour: Behaviour, built: Path) -> None:
    rig = Rig(Npu2(poison_always=True), built / "elf")
    rig.fill(0)
    rig.result()
    behaviour.writes_nothing = True
    rig.run.start()
    with pytest.raises(DeviceError, match="never written"):
        rig.run.wait(1000)


@pytest.mark.parametrize("full", ["", "(err=-22): Invalid argument", "(err=-16): busy"])
def test_contexts_give_way_to_the_latest_and_the_limit_is_found(
    behaviour: Behaviour, built: Path, tmp_path: Path, full: str
) -> None:
    behaviour.contexts, behaviour.full = 3, full or behaviour.full
    session = Npu2()
    rigs = []
    for number in range(5):
        folder = tmp_path / f"copy{number}"
        shutil.copytree(built / "elf", folder)
        rigs.append(Rig(session, folder))
    assert session.contexts.limit == 3 and len(session.contexts) == 3
    for turn in range(2):
        for number, rig in enumerate(rigs):
            due = rig.fill(turn * 5 + number)
            assert close(rig.result(), due), "a run outlives its context"
    opened = behaviour.opened
    for _ in range(3):
        rigs[-1].result()
    assert behaviour.opened == opened, "a context in use stays"


def test_contexts_that_run_do_not_give_way(
    behaviour: Behaviour, built: Path, tmp_path: Path
) -> None:
    behaviour.contexts = 1
    session = Npu2()
    rig = Rig(session, built / "elf")
    behaviour.never_ends = True
    rig.run.start()
    shutil.copytree(built / "elf", tmp_path / "other")
    with pytest.raises(DeviceError, match="all 1 contexts are running"):
        Rig(session, tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (" No such device with index '0'", "no NPU is visible"),
        ("Open /dev/accel/accel0 failed (err=-16): Device or resource busy", "the NPU is busy"),
        ("Open /dev/accel/accel0 failed (err=13): Permission denied", "group `render`"),
        ("mmap(len=67108864) failed (err=-11): Resource temporarily unavailable", "ulimit -l"),
        ("DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed (err=-95): Operation not supported", "newer"),
    ],
)
def test_errors_of_xrt_come_with_their_fix(behaviour: Behaviour, text: str, fix: str) -> None:
    behaviour.open_error = text
    with pytest.raises(BundleError, match=fix):
        Npu2().device(0)


def test_another_generation_is_refused(behaviour: Behaviour) -> None:
    behaviour.name = "NPU Phoenix"
    with pytest.raises(BundleError, match="'NPU Phoenix' is not an NPU2"):
        Npu2().device(0)


def test_a_bundle_for_the_emulated_device_is_refused(behaviour: Behaviour, built: Path) -> None:
    only = built / "emulated-only"
    shutil.copytree(built / "elf", only, dirs_exist_ok=True)
    (only / "dispatch.elf").unlink()
    with pytest.raises(BundleError, match=r"no dispatch\.elf; deploy with device=npu2 builds it"):
        Rig(Npu2(), only)


HOLD = (
    "import sys; sys.path.insert(0, {root!r}); from runtime.xrt import Lock; from pathlib import "
)
HOLD += "Path; lock = Lock(Path({path!r})); print('held', flush=True); sys.stdin.read()"


def test_the_lock_names_its_holder_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "npu.lock"
    root = str(Path(__file__).resolve().parent.parent)
    code = HOLD.format(root=root, path=str(path))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(BundleError, match=f"another process uses the NPU: pid {holder.pid}"):
            Lock(path)
        holder.communicate()
    Lock(path).release()


def test_a_missing_pyxrt_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    with pytest.raises(BundleError, match="needs pyxrt"):
        open_session("npu2", parse_timing(TIMING))


def test_calls_that_the_stand_in_drops_are_not_relied_on(behaviour: Behaviour, built: Path) -> None:
    """`kernel.__call__` swallows a wrong argument; the stand-in does so too, and the run fails."""
    xrt: Any = sys.modules["pyxrt"]
    device = xrt.device(0)
    binary = xrt.xclbin(str(built / "xclbin" / "dispatch.xclbin"))
    device.register_xclbin(binary)
    kernel = xrt.kernel(xrt.hw_context(device, binary.get_uuid()), "MLIR_AIE")
    run = kernel(3, np.zeros(4), 16, None, None, None)
    assert run.wait(1000).name == "ERT_CMD_STATE_ERROR"
