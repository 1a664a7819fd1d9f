"""The emulated session behaves as pyxrt does on a device: strict buffers, XRT's errors, a clock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_bundle import DIM, HOST_US, PREDICTED_US, TIMING, argument, head, write_dispatch

from runtime import bf16
from runtime.emulated import FAULTS, MAX_CONTEXTS, EmulatedNpu2
from runtime.errors import BundleError
from runtime.manifest import parse_timing
from runtime.session import open_session, threads

HEAD_ARGUMENTS = 6
Timing = parse_timing(TIMING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dispatch")
    return write_dispatch(root, "lm_head", "lm_head", None, head(), "HEAD")


class Rig:
    """The head dispatch loaded on a session, with a buffer per argument."""

    def __init__(self, folder: Path, fault: str | None = None) -> None:
        self.npu = EmulatedNpu2(Timing, fault=fault)
        self.device = self.npu.device(0)
        self.context = self.npu.hw_context(self.device, self.npu.elf(str(folder / "dispatch.so")))
        self.kernel = self.npu.ext.kernel(self.context, "main:lm_head")
        self.bos = [self.npu.ext.bo(self.device, a["bytes"]) for a in head()]
        self.run = self.npu.run(self.kernel)
        for index, bo in enumerate(self.bos):
            self.run.set_arg(index, bo)

    def fill(self, seed: int = 0) -> list[np.ndarray]:
        """Random inputs on the device; their values."""
        random, values = np.random.default_rng(seed), []
        for row, bo in zip(head()[:4], self.bos, strict=False):
            bits = bf16.narrow(random.normal(size=row["shape"]))
            bo.write(bits.reshape(-1).view(np.uint8), 0)
            self.to(bo)
            values.append(bf16.widen(bits))
        return values

    def to(self, bo: Any, *span: int) -> None:
        bo.sync(self.npu.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE, *span)

    def back(self, bo: Any, *span: int) -> None:
        bo.sync(self.npu.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE, *span)

    def result(self) -> np.ndarray:
        self.run.start()
        self.run.wait2()
        self.back(self.bos[4])
        return np.frombuffer(self.bos[4].map(), np.float32).copy()


def expected(values: list[np.ndarray]) -> np.ndarray:
    x, scale, weight, _ = values
    return np.asarray(weight @ (x[0] * scale))


def test_a_run_computes_on_device_copies_and_can_be_started_again(folder: Path) -> None:
    rig = Rig(folder)
    for seed in range(3):
        values = rig.fill(seed)
        np.testing.assert_allclose(rig.result(), expected(values), rtol=1e-4, atol=1e-4)
    assert rig.run.state() == rig.npu.ert_cmd_state.ERT_CMD_STATE_COMPLETED


def test_a_forgotten_sync_to_the_device_computes_with_poison(folder: Path) -> None:
    rig = Rig(folder)
    rig.fill()
    fresh = rig.npu.ext.bo(rig.device, rig.bos[0].size())
    fresh.write(bytes(fresh.size()), 0)
    rig.run.set_arg(0, fresh)
    assert np.isnan(rig.result()).all()


def test_a_forgotten_sync_back_leaves_the_host_copy(folder: Path) -> None:
    rig = Rig(folder)
    rig.fill()
    host = np.frombuffer(rig.bos[4].map(), np.float32)
    rig.run.start()
    rig.run.wait2()
    assert not host.any()
    rig.back(rig.bos[4])
    assert host.any()


def test_sync_moves_its_range_only(folder: Path) -> None:
    rig = Rig(folder)
    bo = rig.npu.ext.bo(rig.device, 64)
    host = np.frombuffer(bo.map(), np.uint8)
    host[:] = 7
    rig.to(bo, 16, 32)
    host[:] = 0
    rig.back(bo)
    assert (host[32:48] == 7).all()
    assert (np.delete(host, range(32, 48)) == 0xFF).all()


def test_a_sub_buffer_shares_both_copies_of_its_root(folder: Path) -> None:
    rig = Rig(folder)
    root = rig.npu.ext.bo(rig.device, 64)
    part = rig.npu.bo(root, 16, 32)
    assert part.size() == 16
    np.frombuffer(part.map(), np.uint8)[:] = 5
    assert bytes(root.map())[32:48] == bytes([5] * 16)
    rig.to(part)
    np.frombuffer(root.map(), np.uint8)[:] = 0
    rig.back(root)
    assert bytes(root.map()) == bytes([0xFF] * 32 + [5] * 16 + [0xFF] * 16)


def test_a_host_copy_that_was_let_go_comes_back(folder: Path) -> None:
    rig = Rig(folder)
    bo = rig.npu.ext.bo(rig.device, 8192)
    bo.write(bytes([3]) * 8192, 0)
    rig.to(bo)
    bo.write(b"\x04", 1)
    assert bytes(bo.map()[:3]) == b"\x03\x04\x03"


def test_device_memory_is_page_aligned(folder: Path) -> None:
    assert all(bo.address() % 4096 == 0 for bo in Rig(folder).bos)  # type: ignore[attr-defined]


def test_errors_are_those_of_xrt(folder: Path, tmp_path: Path) -> None:
    rig = Rig(folder)
    npu, device = rig.npu, rig.device
    small = npu.ext.bo(device, 2)
    for kind, text, call in (
        (RuntimeError, "No such device with index '1'", lambda: npu.device(1)),
        (RuntimeError, "sub buffer size and offset", lambda: npu.bo(rig.bos[0], 8, DIM * 2 - 4)),
        (RuntimeError, "sub buffer size and offset", lambda: npu.bo(rig.bos[0], 8, -4)),
        (RuntimeError, "attempting to write past buffer size", lambda: small.write(b"123", 0)),
        (RuntimeError, "range", lambda: rig.to(small, 2, 1)),
        (TypeError, "incompatible function arguments", lambda: small.sync("to")),
        (TypeError, "incompatible function arguments", lambda: rig.run.set_arg(0, np.zeros(3))),
        (IndexError, "out of range", lambda: rig.run.set_arg(HEAD_ARGUMENTS, small)),
        (RuntimeError, "needs 128 bytes, the bo has 2", lambda: rig.run.set_arg(0, small)),
        (
            RuntimeError,
            "no ELF found with given kernel name",
            lambda: npu.ext.kernel(rig.context, "x"),
        ),
        (RuntimeError, "argument not set: x, scale", lambda: npu.run(rig.kernel).start()),
        (BundleError, "dispatch.json is missing", lambda: npu.elf(str(tmp_path / "dispatch.so"))),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_a_library_that_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dispatch.json").write_bytes((folder / "dispatch.json").read_bytes())
    (tmp_path / "dispatch.so").write_bytes(b"\x7fELF")
    with pytest.raises(RuntimeError, match="not a valid ELF file"):
        EmulatedNpu2(Timing).elf(str(tmp_path / "dispatch.so"))


def test_contexts_run_out_and_are_given_back(folder: Path) -> None:
    npu = EmulatedNpu2(Timing)
    elf = npu.elf(str(folder / "dispatch.so"))
    live = [npu.hw_context(npu.device(0), elf) for _ in range(MAX_CONTEXTS)]
    with pytest.raises(RuntimeError, match=r"CREATE_HWCTX IOCTL failed \(err=-28\): No space left"):
        npu.hw_context(npu.device(0), elf)
    live.pop()
    live.append(npu.hw_context(npu.device(0), elf))


def test_the_clock_counts_dispatches_and_syncs(folder: Path) -> None:
    rig = Rig(folder)
    rig.fill()
    start = rig.npu.now_us()
    rig.run.start()
    assert rig.npu.now_us() - start == pytest.approx(PREDICTED_US + HOST_US)
    start = rig.npu.now_us()
    rig.back(rig.bos[4], 20, 0)
    assert rig.npu.now_us() - start == pytest.approx(2.0 + 20 / 10e3)


def test_each_fault_shows(folder: Path) -> None:
    healthy = Rig(folder)
    good = expected(healthy.fill(1))
    # The three left out need other arguments (tests/test_runner.py) or another state (below).
    for fault in set(FAULTS) - {"stuck", "kv_position_off_by_one", "swapped_arguments"}:
        rig = Rig(folder, fault)
        rig.fill(0)
        rig.fill(1)
        assert not np.allclose(rig.result(), good, rtol=1e-3), fault


def test_a_stuck_command_ends_in_timeout_and_leaves_the_output(folder: Path) -> None:
    rig = Rig(folder, "stuck")
    rig.fill()
    rig.run.start()
    assert rig.run.wait(1000) == rig.npu.ert_cmd_state.ERT_CMD_STATE_TIMEOUT
    with pytest.raises(RuntimeError, match=r"Command failed .*\(ERT_CMD_STATE_TIMEOUT\)"):
        rig.run.wait2()
    rig.back(rig.bos[4])
    assert bytes(rig.bos[4].map()) == bytes([0xFF]) * rig.bos[4].size()


def test_unknown_devices_and_faults_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BundleError, match="device 'gpu' is not one of emulated, npu2"):
        open_session("gpu", Timing)
    with pytest.raises(BundleError, match="fault 'gremlin' is not one of stale_buffer"):
        open_session("emulated", Timing, fault="gremlin")
    with pytest.raises(BundleError, match="emulated device only"):
        open_session("npu2", Timing, fault="stuck")
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    with pytest.raises(BundleError, match=r"needs pyxrt .*source /opt/xilinx/xrt/setup.sh"):
        open_session("npu2", Timing)


def test_threads_come_from_the_environment() -> None:
    assert threads({"TILEGATE_THREADS": "3"}) == 3
    assert threads({}) >= 1
    with pytest.raises(BundleError, match="TILEGATE_THREADS"):
        threads({"TILEGATE_THREADS": "many"})


def test_bf16_rounds_to_nearest_even_and_keeps_nan_and_infinity() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0x7FFFFFFF], np.uint32)
    narrow = bf16.narrow(bits.view(np.float32))
    assert narrow[:4].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80]
    assert np.isnan(bf16.widen(narrow)[4])
    every = np.arange(0x7F80, dtype=np.uint16)
    assert (bf16.narrow(bf16.widen(every)) == every).all()


def test_a_wrong_argument_table_is_refused_by_name(tmp_path: Path) -> None:
    from runtime.manifest import read_dispatch

    for change, text in (
        ({"bytes": 3}, "3 bytes do not fit bf16"),
        ({"kind": "weight"}, "kind 'weight' is not one of activation"),
        ({"value": None}, "names its value"),
        ({"shape": []}, "not positive"),
        ({"dtype": 5}, "'dtype' must be str, not 5"),
    ):
        rows = [{**argument("x", "activation", "in", (4,)), **change}]
        folder = write_dispatch(tmp_path, f"d{len(text)}", "lm_head", None, rows, "HEAD")
        with pytest.raises(BundleError, match=f"argument 0.*{text}"):
            read_dispatch(folder)
