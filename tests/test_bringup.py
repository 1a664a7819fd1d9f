"""First contact on a strict stand-in for pyxrt: stages, resuming, reports, and what is measured."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from emission_cases import TINY
from strict_pyxrt import Behaviour, module
from tiny_bundle import write_bundle

from runtime.xrt import Npu2
from tilegate import bringup, contact, device, kernels, measured
from tilegate.bringup import Bench, Item, append, items, run, transfer
from tilegate.config import load
from tilegate.contact import Outcome
from tilegate.deployment import resolve
from tilegate.dispatch import Dispatch, dispatch_node
from tilegate.errors import BrokenTool, GateFailed, UserError
from tilegate.legality import judge_plan
from tilegate.store import Store, default_cache


@pytest.fixture
def behaviour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Behaviour:
    made = Behaviour()
    monkeypatch.setitem(sys.modules, "pyxrt", module(made))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return made


@pytest.fixture
def bench(behaviour: Behaviour, tmp_path: Path) -> Iterator[Bench]:
    """A tiny model whose binaries are the host's, under an ELF's name."""
    config = load((*TINY, "device=npu2"))
    store, session = Store(), Npu2(poison_always=True)

    def binary(dispatch: Dispatch) -> Any:
        artifact = bringup.make(store, dispatch_node(dispatch))
        folder = tmp_path / "binaries" / contact.file_name(dispatch.name)
        if not folder.exists():
            shutil.copytree(artifact.path, folder)
            shutil.copy(folder / "dispatch.so", folder / "dispatch.elf")
        return SimpleNamespace(path=folder, key=artifact.key)

    yield Bench(config, resolve(config, default_cache()), store, session, binary)
    session.close()


def few(bench: Bench) -> list[Item]:
    """One item of each stage that needs no bundle."""
    stages: dict[str, Item] = {}
    for item in items(bench):
        if item.stage not in ("block", "model", "bench"):
            stages.setdefault(item.stage, item)
    return list(stages.values())


def test_stages_go_from_small_to_large_and_a_second_run_goes_on(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = list(dict.fromkeys(item.stage for item in items(bench)))
    assert order == ["smallest", "copy", "kernel", "dispatch", "block", "model", "bench"]
    folder = tmp_path / "reports"
    tried = run(iter(few(bench)), folder, bench.session.label)
    assert len(tried) == 4
    assert run(iter(few(bench)), folder, bench.session.label) == []
    assert "held before" in capsys.readouterr().out
    assert run(iter(few(bench)), folder, "measured (NPU2)") == tried, "a chip starts anew"


@pytest.mark.parametrize("fault", ["writes_nothing", "final_state"])
def test_a_failure_stops_and_leaves_a_report(
    bench: Bench, behaviour: Behaviour, tmp_path: Path, fault: str
) -> None:
    setattr(behaviour, fault, 8 if fault == "final_state" else True)
    folder = tmp_path / "reports"
    with pytest.raises(GateFailed):
        run(iter(few(bench)), folder, bench.session.label)
    (path,) = folder.glob("failed-*.json")
    report = json.loads(path.read_text())
    assert report["stage"] == "smallest" and "reproduce" in report and report["clock"]
    words = "never written" if fault == "writes_nothing" else "ERT_CMD_STATE_TIMEOUT"
    assert words in report["record"]["reasons"][0]
    setattr(behaviour, fault, 4 if fault == "final_state" else False)
    assert len(run(iter(few(bench)), folder, bench.session.label)) == 4


def test_wrong_numbers_fail_and_their_tensors_are_kept(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringup, "REPORTS", tmp_path)
    item = next(i for i in items(bench) if i.stage == "kernel")
    right = contact.Program.__call__
    monkeypatch.setattr(
        contact.Program,
        "__call__",
        lambda self, given: {name: array * 2 for name, array in right(self, given).items()},
    )
    with pytest.raises(GateFailed):
        run(iter([item]), tmp_path, bench.session.label)
    assert list((tmp_path / "tensors").glob("*.npz"))


def test_a_binary_that_cannot_be_built_leaves_a_report_too(bench: Bench, tmp_path: Path) -> None:
    def broken(dispatch: Dispatch) -> Any:
        raise BrokenTool("elf:x: no more DMA channels")

    bench.binary = broken
    with pytest.raises(BrokenTool, match="no more DMA channels"):
        run(items(bench), tmp_path, bench.session.label)
    (path,) = tmp_path.glob("failed-*.json")
    assert "no more DMA channels" in json.loads(path.read_text())["record"]["reasons"][0]


def test_only_a_chip_is_written_to_what_calibrates_the_twin(tmp_path: Path) -> None:
    shape, tile = {"M": 64, "K": 128}, {"herd_m": 8, "tile_m": 4, "m_input": 2}
    plan = kernels.contract("gemv").plan(shape, tile)
    (row,) = measured.rows(plan, 123.0, 1e-6, "measured (NPU2)")
    assert measured.translate(row) == ("gemv", shape, tile)
    append(tmp_path, "measured (NPU2)", row)
    append(tmp_path, "stand-in for pyxrt, not measured", row)
    assert measured.load(tmp_path / "measured.yaml")[0]["latency_us"] == 123.0
    (other,) = yaml.safe_load((tmp_path / "stand-in.yaml").read_text())["records"]
    assert other["timing"] is False and other["role"] in measured.NOT_FITTED


def test_rows_round_trip_for_each_op_of_the_table() -> None:
    for op, shape, tile in (
        (
            "gemm",
            {"M": 256, "K": 128, "N": 128},
            {
                **{"tile_m": 16, "tile_k_l2": 64, "tile_k_l1": 32, "tile_n": 32},
                **{"herd": (8, 4), "method": "drain"},
            },
        ),
        ("rope", {"R": 16, "head_dim": 64}, {"herd": (8, 1)}),
        ("silu_mul", {"N": 2048}, {"herd": (8, 1), "tile_n": 128}),
    ):
        (row,) = measured.rows(kernels.contract(op).plan(shape, tile), 1.0, 0.0, "x")
        assert measured.translate(row) == (op, shape, tile)


def test_the_smallest_transfer_is_legal_everywhere() -> None:
    for name in ("npu1", "npu2"):
        npu = device.load(name)
        assert not judge_plan(transfer(bringup.SMALLEST, 1), npu)
        assert not judge_plan(transfer(bringup.COPIED, npu.cols), npu)


def test_the_emulated_device_is_not_brought_up() -> None:
    with pytest.raises(UserError, match="device=npu2"):
        bringup.main(load(TINY))


def test_a_missing_bundle_is_named(bench: Bench, tmp_path: Path) -> None:
    found = list(contact.whole(bench.config, bench.session, Item, tmp_path))
    assert [item.stage for item in found] == ["block", "model", "bench"]
    with pytest.raises(UserError, match="doit deploy device=npu2 makes it"):
        found[0].act()


def test_block_model_and_bench_run_on_a_bundle(bench: Bench, tmp_path: Path) -> None:
    """The stand-in runs the host's libraries, so that both sides must agree."""
    bundle = write_bundle(tmp_path / bench.config.model.name)
    for library in bundle.rglob("dispatch.so"):
        shutil.copy(library, library.with_suffix(".elf"))
    found = list(contact.whole(bench.config, bench.session, Item, tmp_path))
    tried = run(iter(found), tmp_path / "reports", bench.session.label)
    assert tried == ["block:0", "model:32 tokens", "bench"]
    assert all(item.key() for item in found)
    assert "TTFT" in found[2].act().text
    assert run(iter(found), tmp_path / "reports", bench.session.label) == []


def test_an_outcome_has_its_label(bench: Bench) -> None:
    outcome: Outcome = few(bench)[1].act()
    assert "stand-in for pyxrt, not measured" in outcome.text
