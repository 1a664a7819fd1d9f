"""NPU1 is a second device file: plans, legality, prediction and emission follow from its data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from air_replay import Replay
from core_reference import functions
from emission_cases import TINY, arguments, expected

from tilegate import device, legality, timing
from tilegate.config import load
from tilegate.deployment import Deployment, resolve
from tilegate.emission import write
from tilegate.emit import emit
from tilegate.store import default_cache

NPU1, NPU2 = device.load("npu1"), device.load("npu2")


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return resolve(load((*TINY, "device=npu1")), default_cache())


def test_only_what_differs_is_in_its_file() -> None:
    assert (NPU1.cols, NPU1.arch, NPU1.block_float, NPU1.contexts) == (4, "aie2", False, 6)
    assert NPU1.shim == NPU2.shim and NPU1.l2_bytes == NPU2.l2_bytes
    ours, theirs = NPU1.functions["gemm_matmul"], NPU2.functions["gemm_matmul"]
    assert ours.call_us == theirs.call_us and ours.macs_per_us < theirs.macs_per_us


def test_hydra_and_the_plain_reader_agree() -> None:
    for name in ("npu1", "npu2", "emulated-npu2"):
        assert load((f"device={name}",)).device == device.load(name)
    changed = load(("device=npu1", "device.dram_gbps=60.5", "device.cols=3")).device
    assert (changed.dram_gbps, changed.cols) == (60.5, 3)


def test_every_plan_keeps_to_four_columns(deployment: Deployment) -> None:
    for planned in deployment.planned.values():
        assert all(launch.cols <= 4 for launch in planned.plan.launches)
        assert not legality.judge_plan(planned.plan, NPU1)


def test_a_tile_of_eight_columns_is_refused_with_the_array_it_would_need() -> None:
    tile = {"tile_m": 32, "tile_k_l2": 128, "tile_k_l1": 32, "tile_n": 64, "herd": (8, 4)}
    shape = {"M": 256, "K": 512, "N": 512}
    verdict = legality.judge("gemm", shape, {**tile, "method": "drain"}, NPU1)
    assert verdict.verdict == "illegal"
    assert "the array has 4 columns" in verdict.violations[0].hint
    assert legality.judge("gemm", shape, {**tile, "method": "drain"}, NPU2).verdict != "illegal"


def test_prediction_knows_that_every_launch_is_a_dispatch(deployment: Deployment) -> None:
    for dispatch in deployment.dispatches:
        plans = [op.plan for op in dispatch.ops]
        time = timing.predict_dispatch(plans, NPU1)
        assert time.us > 0 and (time.configured_us > 0) is (len(time.launches) > 1)
        floor = NPU1.constant("dispatch_floor_us")
        assert time.floor_us == pytest.approx(floor * len(time.launches))


def test_what_is_emitted_names_its_target_and_replays(
    deployment: Deployment, tmp_path: Path
) -> None:
    for dispatch in deployment.dispatches:
        module = emit(dispatch)
        folder = write(tmp_path / dispatch.name, dispatch, module, NPU1)
        document = json.loads((folder / "emission.json").read_text())
        assert (document["target"], document["arch"]) == ("npu1", "aie2")
        given = arguments(dispatch)
        wanted = expected(dispatch, given)
        Replay((folder / "module.mlir").read_text(), functions(document["objects"]))(given)
        for got, want in zip(given, wanted, strict=True):
            if not np.isnan(want).all():
                np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
