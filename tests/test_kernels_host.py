"""Kernels on the emulated NPU2: numbers as measured on hardware, legality as measured on hardware.

Published figures: Xilinx/mlir-air, programming_examples/kernel_registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilegate import compile as compiler
from tilegate import device, kernels, legality
from tilegate.solo import build, runner
from tilegate.store import Store

EIGHT = (8, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("kernels")
    return Store(folder / "cache", folder / "state")


def bf16(values: Any) -> Any:
    """FP32 values rounded to bf16, nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return kept.astype(np.uint32).view(np.float32)


def errors(
    op: str, shape: dict[str, Any], tile: dict[str, Any], store: Store, calls: int = 3
) -> Iterator[float]:
    """mean_rel_L1 of consecutive calls with changing inputs: faults may show from the second on."""
    contract = kernels.contract(op)
    plan = contract.plan(shape, tile)
    run = runner(plan, build(plan, store))
    for seed in range(calls):
        drawn = contract.inputs(shape, np.random.default_rng(seed))
        operands = {name: bf16(value) for name, value in drawn.items()}
        wanted = bf16(contract.reference(shape, operands)["y"]).astype(np.float64)
        yield float(np.abs(run(operands)["y"] - wanted).mean() / np.abs(wanted).mean())


MEASURED = [
    ("add", {"M": 512, "N": 2048, "broadcast": False}, {"herd": EIGHT, "tile_n": 2048}, 1.9e-3, 5),
    ("add", {"M": 512, "N": 896, "broadcast": True}, {"herd": EIGHT, "tile_n": 448}, 1.9e-3, 5),
    ("add", {"M": 256, "N": 576, "broadcast": False}, {"herd": (2, 4), "tile_n": 576}, 1.9e-3, 5),
    ("rope", {"R": 4096, "head_dim": 64}, {"herd": EIGHT}, 2.8e-3, 5),
    ("rope", {"R": 4096, "head_dim": 128}, {"herd": (2, 4)}, 2.8e-3, 5),
    ("rms_norm", {"M": 512, "N": 896, "eps": 1e-5}, {"herd": EIGHT}, 4.2e-3, 15),
    ("rms_norm", {"M": 512, "N": 2048, "eps": 1e-5}, {"herd": EIGHT}, 4.2e-3, 15),
    ("rms_norm", {"M": 2048, "N": 128, "eps": 1e-6}, {"herd": EIGHT}, 4.6e-3, 15),
    ("silu_mul", {"N": 2097152}, {"herd": EIGHT, "tile_n": 4096}, 1.02e-2, 15),
]


@pytest.mark.parametrize(("op", "shape", "tile", "published", "percent"), MEASURED)
def test_error_is_the_published_one(
    op: str,
    shape: dict[str, Any],
    tile: dict[str, Any],
    published: float,
    percent: float,
    store: Store,
) -> None:
    for error in errors(op, shape, tile, store):
        assert error == pytest.approx(published, rel=percent / 100)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ({"M": 2048, "K": 2048}, {"herd_m": 8, "tile_m": 8, "m_input": 8}),
        ({"M": 1536, "K": 8960}, {"herd_m": 8, "tile_m": 2, "m_input": 2}),
        ({"M": 192, "K": 576}, {"herd_m": 4, "tile_m": 24, "m_input": 3}),
    ],
)
def test_gemv_is_exact_to_the_last_cast(
    shape: dict[str, Any], tile: dict[str, Any], store: Store
) -> None:
    assert max(errors("gemv", shape, tile, store)) <= 3e-6


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("add", {"M": 1, "N": 576, "broadcast": False}),
        ("add", {"M": 1, "N": 896, "broadcast": True}),
        ("silu_mul", {"N": 1536}),
        ("rope", {"R": 9, "head_dim": 64}),
        ("rms_norm", {"M": 1, "N": 576, "eps": 1e-5}),
        ("gemv", {"M": 2048, "K": 11008}),
    ],
)
def test_small_decode_shapes_have_a_legal_tile(
    op: str, shape: dict[str, Any], store: Store
) -> None:
    npu = device.load()
    tile = next(
        tile
        for tile in kernels.contract(op).tile_space(shape)
        if legality.judge(op, shape, tile, npu, hints=False).verdict == "legal"
    )
    assert max(errors(op, shape, tile, store)) < 1.6e-2


REFUSED = [
    ("gemv", {"M": 2048, "K": 2048}, {"herd_m": 8, "tile_m": 1, "m_input": 1}, "R-ALIGN"),
    ("gemv", {"M": 2048, "K": 4096}, {"herd_m": 8, "tile_m": 8, "m_input": 8}, "R-L2"),
    ("gemv", {"M": 2048, "K": 8192}, {"herd_m": 8, "tile_m": 4, "m_input": 4}, "R-L2"),
    ("gemv", {"M": 151936, "K": 2048}, {"herd_m": 8, "tile_m": 8, "m_input": 8}, "R-REPEAT"),
    ("gemv", {"M": 2048, "K": 2080}, {"herd_m": 8, "tile_m": 8, "m_input": 8}, "K-lanes"),
    (
        "add",
        {"M": 1, "N": 4194304, "broadcast": False},
        {"herd": (8, 2), "tile_n": 2048},
        "R-STREAMS",
    ),
    ("add", {"M": 1, "N": 245760, "broadcast": False}, {"herd": EIGHT, "tile_n": 2048}, "R-PARITY"),
    ("silu_mul", {"N": 16777216}, {"herd": EIGHT, "tile_n": 8192}, "R-L1"),
    ("rope", {"R": 9, "head_dim": 64}, {"herd": EIGHT}, "R-tiling"),
    ("rms_norm", {"M": 2048, "N": 2056, "eps": 1e-5}, {"herd": EIGHT}, "lanes"),
]


@pytest.mark.parametrize(("op", "shape", "tile", "rule"), REFUSED)
def test_what_failed_on_hardware_is_refused(
    op: str, shape: dict[str, Any], tile: dict[str, Any], rule: str
) -> None:
    verdict = legality.judge(op, shape, tile, device.load(), hints=False)
    assert verdict.verdict == "illegal"
    assert rule in {violation.rule for violation in verdict.violations}


ROUNDING = """
#include <aie_api/aie.hpp>
extern "C" __attribute__((visibility("default"))) float narrowed(int mode, float value) {
    aie::set_rounding(static_cast<aie::rounding_mode>(mode));
    return static_cast<bfloat16>(value);
}
extern "C" __attribute__((visibility("default"))) float at_power_up(float value) {
    return static_cast<bfloat16>(value);
}
extern "C" __attribute__((visibility("default"))) float line(float value) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    return aie::exp2<bfloat16>(aie::broadcast<float, 16>(value))[3];
}
extern "C" __attribute__((visibility("default"))) float undefined_lane() {
    return aie::shuffle_down(aie::zeros<bfloat16, 16>(), 1)[15];
}
"""


def test_the_core_rounds_and_interpolates_as_documented(tmp_path: Path) -> None:
    import ctypes

    source, library = tmp_path / "probe.cc", tmp_path / "probe.so"
    source.write_text(ROUNDING)
    command = (*compiler.toolchain().command, *compiler.FLAGS, f"-I{compiler.HOST}", "-O3")
    compiler.execute((*command, "-shared", str(source), "-o", str(library)), "probe")
    probe = ctypes.CDLL(str(library))
    for name in ("narrowed", "at_power_up", "line", "undefined_lane"):
        getattr(probe, name).restype = ctypes.c_float
    step, above = 2.0**-7, ctypes.c_float(1 + 2.0**-9)
    below, tie = ctypes.c_float(-1 - 2.0**-9), ctypes.c_float(1 + step / 2)
    assert [probe.at_power_up(v) for v in (above, below)] == [1, -1 - step]
    assert [probe.narrowed(1, v) for v in (above, below)] == [1 + step, -1]
    assert [probe.narrowed(2, v) for v in (above, below)] == [1, -1]
    assert [probe.narrowed(12, v) for v in (above, below, tie)] == [1, -1, 1]
    assert probe.narrowed(13, tie) == probe.narrowed(11, tie) == 1 + step
    assert np.isnan(probe.narrowed(0, ctypes.c_float(np.nan)))
    assert probe.line(ctypes.c_float(-1.5)) == 0.375
    assert probe.line(ctypes.c_float(-1e30)) == 0
    assert np.isnan(probe.undefined_lane())
