"""The timing model: derived from the plan, and as close to the published times as it claims."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import pytest

from tilegate import device, kernels, measured, timing
from tilegate.errors import UserError
from tilegate.plan import TilePlan

NPU2 = device.load("npu2")
# Median and 90th percentile of |predicted / measured - 1| that must hold on the published rows.
CLAIMS = {
    "gemm": (0.04, 0.13),
    "gemv": (0.03, 0.08),
    "streaming": (0.03, 0.12),
    "flash_attention": (0.04, 0.08),
}
STREAMING = {"eltwise_add", "silu_mul", "rope", "rmsnorm", "gelu", "layernorm"}


def gemm(m: int, k: int, n: int, **fields: Any) -> TilePlan:
    tile = {"tile_m": 64, "tile_k_l2": 256, "tile_k_l1": 32, "tile_n": 128, "herd": (8, 4)}
    tile["method"] = "fused-cast"
    return kernels.contract("gemm").plan({"M": m, "K": k, "N": n}, {**tile, **fields})


def gemv(m: int, k: int, **fields: int) -> TilePlan:
    tile = {"herd_m": 8, "tile_m": 8, "m_input": 8, **fields}
    return kernels.contract("gemv").plan({"M": m, "K": k}, tile)


def errors(group: str) -> list[float]:
    found = []
    for row in measured.load():
        own = "streaming" if row["op"] in STREAMING else row["op"]
        alone = row.get("regime") in ("xclbin", "xclbin?", "elf")
        if own != group or not alone or not row["timing"] or row["role"] in measured.NOT_FITTED:
            continue
        plan = measured.plan(row)
        assert plan is not None
        regime: timing.Regime = "elf" if row["regime"] == "elf" else "xclbin"
        us = timing.predict_dispatch([plan], NPU2, regime).host_us
        found.append(abs(us / row["latency_us"] - 1))
    return found


@pytest.mark.parametrize("group", CLAIMS)
def test_errors_on_the_published_rows(group: str) -> None:
    found = sorted(errors(group))
    assert len(found) > 10
    median, p90 = CLAIMS[group]
    assert statistics.median(found) <= median
    assert found[int(0.9 * (len(found) - 1))] <= p90


def test_work_is_counted_from_the_plan() -> None:
    matmul, cast = (timing.predict_launch(x, NPU2) for x in gemm(2048, 2048, 8192).launches)
    assert matmul.macs == 2048 * 2048 * 8192
    rounds_n, rounds_m = 8192 // 512, 2048 // 512  # A is read once per N round, B once per M round
    assert matmul.read_bytes == 2 * (2048 * 2048 * rounds_n + 2048 * 8192 * rounds_m)
    assert matmul.write_bytes == 4 * 2048 * 8192
    assert (cast.read_bytes, cast.write_bytes) == (4 * 2048 * 8192, 2 * 2048 * 8192)
    assert 0 < matmul.utilisation <= 1
    assert matmul.us >= max(matmul.core_us, matmul.ddr_us)


def test_gemv_reads_its_weights_once() -> None:
    time = timing.predict_plan(gemv(2048, 2048), NPU2)
    assert time.launches[0].read_bytes == 2 * 2048 * 2048 + 2 * 2048 * 2048 // 64
    assert time.host_us == time.us + NPU2.constant("dispatch_floor_us")
    assert time.configured_us == 0


def test_more_work_takes_longer() -> None:
    times = [timing.predict_plan(gemm(2048, k, 2048), NPU2).us for k in (1024, 2048, 4096)]
    assert times == sorted(times)
    assert times[2] > 1.5 * times[1]


def test_launches_in_a_dispatch_reconfigure_instead_of_dispatching() -> None:
    plans = [gemv(2048, 2048), gemv(512, 2048), gemv(512, 2048)]
    fused = timing.predict_dispatch(plans, NPU2)
    assert fused.configured_us == pytest.approx(3 * 8 * NPU2.constant("reconfigure_core_us"))
    assert fused.floor_us == NPU2.constant("dispatch_floor_us")
    alone = timing.predict_dispatch(plans, NPU2, "xclbin")
    assert alone.floor_us == 3 * NPU2.constant("dispatch_floor_us")


def test_what_if_device_numbers_change_the_time() -> None:
    plan = kernels.contract("add").plan(
        {"M": 1, "N": 4194304, "broadcast": False}, {"herd": (8, 1), "tile_n": 2048}
    )
    before = timing.predict_launch(plan.launches[0], NPU2)
    after = timing.predict_launch(
        plan.launches[0], dataclasses.replace(NPU2, dram_gbps=NPU2.dram_gbps / 2)
    )
    assert before.bound == "ddr"
    assert after.ddr_us == pytest.approx(2 * before.ddr_us)


def test_every_kernel_has_a_time() -> None:
    shapes: dict[str, dict[str, Any]] = {
        "gemm": {"M": 256, "K": 576, "N": 576},
        "gemv": {"M": 576, "K": 576},
        "rms_norm": {"M": 256, "N": 576, "eps": 1e-5},
        "rope": {"R": 2304, "head_dim": 64},
        "silu_mul": {"N": 393216},
        "add": {"M": 256, "N": 576, "broadcast": True},
        "flash_attention": {"S": 256, "heads": 9, "kv_heads": 3, "head_dim": 64, "causal": True},
        "decode_attention": {"context": 512, "heads": 9, "kv_heads": 3, "head_dim": 64},
    }
    assert set(shapes) == set(kernels.ops())
    for op, shape in shapes.items():
        contract = kernels.contract(op)
        plan = contract.plan(shape, next(iter(contract.tile_space(shape))))
        assert timing.predict_plan(plan, NPU2).us > 0


def test_a_device_without_a_constant_says_so() -> None:
    bare = dataclasses.replace(NPU2, timing={})
    with pytest.raises(UserError, match="no timing"):
        timing.predict_plan(gemv(512, 2048), bare)


def test_device_files_are_typed() -> None:
    with pytest.raises(UserError, match="did you mean 'dram_gbps'"):
        device.Device.from_dict({"dram_gbp": 1})
    with pytest.raises(UserError, match="did you mean 'npu2'"):
        device.load("npu3")
