"""Plans are executed as written: strides, tile order, block floating point, arguments."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilegate import dispatch, kernels, lower, solo
from tilegate.compile import kernel_node
from tilegate.dispatch import dispatch_node
from tilegate.errors import UserError
from tilegate.plan import Copy, Launch, Loop, Step, TilePlan
from tilegate.store import Store

SHAPE = {"M": 256, "K": 512, "N": 512}
TILE = {"tile_m": 32, "tile_k_l2": 256, "tile_k_l1": 32, "tile_n": 128, "herd": (8, 4)}
# mean_rel_l1 published for NPU2: Xilinx/mlir-air, programming_examples/kernel_registry, GEMM
PUBLISHED = {
    ("external", 512): 9.3e-3,
    ("drain", 512): 9.3e-3,
    ("fused-cast", 1024): 9.9e-3,
    ("fused-cast", 2048): 9.7e-3,
    ("direct", 512): 1.0e-2,
    ("direct", 1024): 1.1e-2,
    ("direct", 2048): 1.3e-2,
}


def gemm(method: str, **shape: int) -> TilePlan:
    return kernels.contract("gemm").plan({**SHAPE, **shape}, {**TILE, "method": method})


def rounded(operands: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, value in operands.items()
    }


def relative_error(plan: TilePlan, store: Store, seed: int = 0) -> float:
    contract = kernels.contract(plan.op)
    operands = rounded(contract.inputs(dict(plan.shape), np.random.default_rng(seed)))
    out = solo.runner(plan, solo.build(plan, store))(operands)["C"]
    truth = contract.reference(dict(plan.shape), operands)["C"]
    if dict(plan.tile)["method"] != "external":
        truth = truth.astype(ml_dtypes.bfloat16).astype(np.float32)
    return float(np.abs(out - truth).mean() / np.abs(truth).mean())


@pytest.mark.parametrize(("method", "k"), PUBLISHED)
def test_gemm_has_the_published_error_of_its_method(method: str, k: int, store: Store) -> None:
    error = relative_error(gemm(method, K=k), store)
    assert error == pytest.approx(PUBLISHED[method, k], rel=0.05)


def edited(plan: TilePlan, edit: Any) -> TilePlan:
    """The plan with `edit` applied to every copy."""

    def steps(body: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(
            dataclasses.replace(s, body=steps(s.body))
            if isinstance(s, Loop)
            else edit(s)
            if isinstance(s, Copy)
            else s
            for s in body
        )

    launches = tuple(dataclasses.replace(x, body=steps(x.body)) for x in plan.launches)
    return dataclasses.replace(plan, launches=launches)


def wrong_stride(copy: Copy) -> Copy:
    if (copy.src.target, copy.dst.target) != ("B", "B_l2"):
        return copy
    row, one = copy.src.strides
    return dataclasses.replace(copy, src=dataclasses.replace(copy.src, strides=(row - 2, one)))


def dropped_tile(copy: Copy) -> Copy:
    if copy.dst.target != "C":
        return copy
    sizes = (copy.sizes[0] // 2, copy.sizes[1])
    return dataclasses.replace(copy, sizes=sizes)


def test_a_wrong_stride_gives_wrong_numbers(store: Store) -> None:
    assert relative_error(gemm("drain"), store) < 0.01
    assert relative_error(edited(gemm("drain"), wrong_stride), store) > 0.5


def test_a_tile_that_is_not_written_is_not_a_number(store: Store) -> None:
    assert np.isnan(relative_error(edited(gemm("drain"), dropped_tile), store))


def test_rounding_at_load_equals_rounding_at_every_multiply(store: Store) -> None:
    """Buffer.matrix moves the block-float rounding from the multiply to the load: same bits."""

    def unmarked(launch: Launch) -> Launch:
        buffers = tuple(dataclasses.replace(b, matrix="") for b in launch.buffers)
        return dataclasses.replace(launch, buffers=buffers)

    marked = gemm("external")
    plain = dataclasses.replace(marked, launches=tuple(unmarked(x) for x in marked.launches))
    operands = rounded(kernels.contract("gemm").inputs(SHAPE, np.random.default_rng(1)))
    outs = [solo.runner(p, solo.build(p, store))(operands)["C"] for p in (marked, plain)]
    assert np.array_equal(outs[0], outs[1])


def test_block_floating_point_is_the_published_formula(store: Store) -> None:
    """With B the identity the product shows A as the matrix unit rounded it."""
    shape = {"M": 256, "K": 512, "N": 512}
    rng = np.random.default_rng(2)
    a = rng.standard_normal((256, 512)) * np.exp2(rng.integers(-9, 9, (256, 512)))
    operands = rounded({"A": a.astype(np.float32), "B": np.eye(512, dtype=np.float32)})
    plan = kernels.contract("gemm").plan(shape, {**TILE, "method": "external"})
    out = solo.runner(plan, solo.build(plan, store))(operands)["C"]
    blocks = operands["A"].reshape(256, 64, 8)
    step = np.exp2(np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True))) - 6)
    truth = np.clip(np.round(blocks / step), -128, 127) * step
    assert np.array_equal(out, truth.reshape(256, 512))


def test_results_do_not_depend_on_the_number_of_host_threads(store: Store) -> None:
    plan = gemm("fused-cast")
    operands = rounded(kernels.contract("gemm").inputs(SHAPE, np.random.default_rng(3)))
    artifact = solo.build(plan, store)
    outs = [solo.runner(plan, artifact, threads)(operands)["C"] for threads in (1, 2, 3, 8)]
    assert all(np.array_equal(outs[0], out) for out in outs)


def test_a_copy_that_leaves_its_tensor_is_refused_before_anything_is_compiled() -> None:
    def beyond(copy: Copy) -> Copy:
        if copy.dst.target != "A_l2":
            return copy
        return dataclasses.replace(copy, src=dataclasses.replace(copy.src, strides=(4096, 1)))

    with pytest.raises(UserError, match=r"matmul: a copy reaches element \d+ of A, which has"):
        dispatch_node(dispatch.solo(edited(gemm("drain"), beyond)))


def test_two_tiles_of_one_kernel_get_objects_and_symbols_of_their_own() -> None:
    one = gemm("drain").launches[0].object
    tile = {**TILE, "tile_n": 64, "method": "drain"}
    other = kernels.contract("gemm").plan(SHAPE, tile).launches[0].object
    names = {kernel_node("gemm", core, True).name for core in (one, other)}
    assert len(names) == 2
    source = "".join(
        lower.tables([lower.Entry("gemm", x, (0, 1, 2))], 3, "abi")
        for plan in (gemm("drain"), kernels.contract("gemm").plan(SHAPE, tile))
        for x in plan.launches
    )
    assert len({word for word in source.split() if word.startswith("call_gemm_matmul_")}) >= 2


def test_a_process_may_hold_hundreds_of_dispatches(store: Store, tmp_path: Path) -> None:
    library = solo.build(gemm("drain"), store).file("dispatch.so")
    for number in range(300):
        copy = tmp_path / f"{number}.so"
        shutil.copy(library, copy)
        assert dispatch.load(copy).tilegate_run is not None
