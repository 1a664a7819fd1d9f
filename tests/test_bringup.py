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
from faulty import overrides
from strict_pyxrt import Behaviour, module
from tiny_bundle import project, write_bundle, write_dispatch

from runtime.emulated import EmulatedNpu2
from runtime.manifest import read_manifest
from runtime.xrt import Npu2
from tilegate import bringup, contact, device, diagnose, kernels, measured, twin
from tilegate.bringup import Bench, Item, append, items, run, transfer
from tilegate.config import load
from tilegate.contact import Outcome
from tilegate.deployment import resolve
from tilegate.dispatch import Dispatch, dispatch_node, solo
from tilegate.errors import BrokenTool, GateFailed, UserError
from tilegate.graph import nodes
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
    assert report["reproduce"].startswith("python -m tilegate.bringup smallest:smallest-32 ")
    assert report["versions"]["numpy"] and Path(report["tensors"]).is_dir()
    if fault == "writes_nothing":
        assert "debug-stale-buffer" in report["causes"][0]
    setattr(behaviour, fault, 4 if fault == "final_state" else False)
    assert len(run(iter(few(bench)), folder, bench.session.label)) == 4


def failed(found: list[Item], folder: Path, bench: Bench) -> dict[str, Any]:
    """The report of a run that must fail."""
    with pytest.raises(GateFailed):
        run(iter(found), folder, bench.session.label)
    (path,) = folder.glob("failed-*.json")
    report: dict[str, Any] = json.loads(path.read_text())
    assert not report["skills_that_broke"], report
    return report


def named(bench: Bench, part: str) -> Item:
    return next(item for item in items(bench) if part in item.name)


@pytest.mark.parametrize(
    ("fault", "item", "skill", "op"),
    [
        ("plan_stride", "kernel:gemm-128-256-128", "debug-tile-stride", "gemm"),
        ("nan_norm", "kernel:rms_norm-", "debug-nan-origin", "rms_norm"),
        ("no_causal_mask", "dispatch:prefill_256.flash_attn", "debug-causal-mask", "attention"),
        ("swapped_gate_up", "dispatch:prefill_256.o_ffn", "debug-swapped-arguments", "silu_mul"),
    ],
)
def test_the_debug_skills_name_the_cause_of_a_wrong_binary(
    bench: Bench, tmp_path: Path, fault: str, item: str, skill: str, op: str
) -> None:
    """The device is given what was built with a mistake; its judge knows the right plans."""
    store = Store()
    broken = resolve(load((*TINY, "device=npu2", f"+fault={fault}")), default_cache())
    wrong = {d.name: d for d in broken.dispatches}
    plans = {(p.op, p.shape, p.tile): p for p in broken.kernels()}

    def binary(dispatch: Dispatch) -> Any:
        (one, *_) = [used.plan for used in dispatch.ops]
        made = wrong.get(dispatch.name) or solo(
            plans[one.op, one.shape, one.tile], dispatch.name.removeprefix("alone:")
        )
        artifact = bringup.make(store, dispatch_node(made))
        folder = tmp_path / "wrong" / contact.file_name(dispatch.name)
        shutil.copytree(artifact.path, folder, dirs_exist_ok=True)
        shutil.copy(folder / "dispatch.so", folder / "dispatch.elf")
        return SimpleNamespace(path=folder, key=artifact.key)

    bench.binary = binary
    report = failed([named(bench, item)], tmp_path / "reports", bench)
    assert report["first_wrong"]["op"] == op
    assert any(line.startswith(skill) for line in report["causes"]), report["causes"]
    again = diagnose.run(diagnose.kept(Path(report["tensors"])), [skill])
    assert again, "the kept tensors tell the same"


def test_wrong_numbers_fail_and_their_tensors_are_kept(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = next(i for i in items(bench) if i.stage == "kernel")
    right = contact.Program.__call__
    monkeypatch.setattr(
        contact.Program,
        "__call__",
        lambda self, given: {name: array * 2 for name, array in right(self, given).items()},
    )
    report = failed([item], tmp_path, bench)
    (case,) = diagnose.kept(Path(report["tensors"]))
    assert diagnose.error(case.output, case.expected) == pytest.approx(1, rel=0.1)


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
    (kept,) = measured.load(tmp_path / "measured.yaml")
    assert (kept["latency_us"], kept["mean_rel_l1"]) == (123.0, 1e-6)
    assert "1.0e-06" in (tmp_path / "measured.yaml").read_text()
    assert "measured us" in twin.render(twin.compare([kept], device.load("npu2"), numerics=False))
    (other,) = yaml.safe_load((tmp_path / "stand-in.yaml").read_text())["records"]
    assert other["timing"] is False and other["role"] in measured.NOT_FITTED


def test_every_time_is_kept_and_the_twin_reads_the_file(bench: Bench, tmp_path: Path) -> None:
    """Kernels, transfers and dispatches; what the table has no op for is shown and not fitted."""
    found = [*few(bench), named(bench, "decode_attention")]
    run(iter(found), tmp_path, bench.session.label)
    rows = measured.load(tmp_path / "stand-in.yaml")
    assert len(rows) == len(found) and all(row["latency_us"] > 0 for row in rows)
    assert {"bringup.transfer", "bringup.dispatch"} <= {row["op"] for row in rows}
    shown = twin.compare(rows, device.load("npu2"), numerics=False)
    assert [row["id"] for row in shown["rows"]] == [row["id"] for row in rows]
    assert not shown["groups"], "a stand-in's times are no measurements"


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


def test_a_model_that_goes_wrong_leaves_tensors_of_the_first_layer_that_does(
    bench: Bench, tmp_path: Path
) -> None:
    """The larger bucket's projection takes its weight as stored; the block stage sees another."""
    bundle = write_bundle(tmp_path / bench.config.model.name)
    for library in bundle.rglob("dispatch.so"):
        shutil.copy(library, library.with_suffix(".elf"))
    name, arguments = "prefill_8.project", project("prefill", 8)
    macros = ("PROJECT", "TRANSPOSED=0")
    wrong = write_dispatch(tmp_path / "wrong", name, "prefill", 8, arguments, *macros)
    shutil.copy(wrong / "dispatch.so", bundle / "dispatches" / name / "dispatch.elf")
    found = list(contact.whole(bench.config, bench.session, Item, tmp_path))
    report = failed(found, tmp_path / "reports", bench)
    assert report["item"] == "model:32 tokens"
    assert report["first_wrong"] == {"op": "mlp_residual", "layer": 0, "phase": "prefill"}
    (case,) = diagnose.kept(Path(report["tensors"]))
    assert case.wrong and len(case.values["tokens"]) == len(case.values["emulated_tokens"])
    assert case.values["logits"].shape == case.values["emulated_logits"].shape


@pytest.mark.parametrize(
    ("fault", "skill", "op"),
    [
        (None, "", ""),
        ("swapped_arguments", "debug-swapped-arguments", "k_proj"),
        ("dropped_sync_back", "debug-stale-buffer", "attn_norm"),
    ],
)
def test_a_block_is_judged_launch_by_launch(
    bench: Bench, tmp_path: Path, fault: str | None, skill: str, op: str
) -> None:
    """The emulated device with a fault of its own in the place of the chip, on a real bundle."""
    config, store = load(tuple(overrides("tiny-llama"))), Store()
    runner = next(node for node in nodes(config, store) if node.name == "runner")
    bundle = tmp_path / config.model.name
    bundle.symlink_to(bringup.make(store, runner).path / "bundle")
    session = EmulatedNpu2(read_manifest(bundle).device, fault=fault)
    found = [one for one in contact.whole(config, session, Item, tmp_path) if one.stage == "block"]
    if fault is None:
        assert run(iter(found), tmp_path / "reports", bench.session.label) == ["block:0"]
        return
    report = failed(found, tmp_path / "reports", bench)
    assert report["first_wrong"]["op"] == op and report["first_wrong"]["layer"] == 0
    assert any(line.startswith(skill) for line in report["causes"]), report["causes"]


def test_one_item_runs_again_by_its_name(bench: Bench, tmp_path: Path) -> None:
    name = "smallest:smallest-32"
    for _ in range(2):
        found = bringup.chosen(items(bench), name)
        assert run(found, tmp_path, bench.session.label, again=True) == [name]
    with pytest.raises(UserError, match=f"did you mean '{name}'"):
        list(bringup.chosen(items(bench), "smallest:smalest-32"))


def test_names_of_items_are_distinct(bench: Bench) -> None:
    names = [item.name for item in items(bench)]
    assert len(names) == len(set(names))


def test_an_outcome_has_its_label(bench: Bench) -> None:
    outcome: Outcome = few(bench)[1].act()
    assert "stand-in for pyxrt, not measured" in outcome.text
