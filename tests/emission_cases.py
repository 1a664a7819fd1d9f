"""What the tests of the emission go through: every kernel at small shapes, every fused dispatch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tilegate import kernels
from tilegate.config import load
from tilegate.deployment import resolve
from tilegate.dispatch import Dispatch, solo
from tilegate.plan import TilePlan
from tilegate.store import default_cache

GEMM = {"tile_m": 16, "tile_k_l2": 64, "tile_k_l1": 32, "tile_n": 32, "herd": (8, 4)}
FLASH = {"S": 256, "heads": 2, "kv_heads": 1, "head_dim": 64, "causal": True}
STAGES = {"lqp": 256, "lkp": 64, "num_q_tiles": 4, "stages": 4}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    f"gemm-{method}": ("gemm", {"M": 256, "K": 128, "N": 128}, {**GEMM, "method": method})
    for method in ("fused-cast", "drain", "direct", "external")
} | {
    "gemv": ("gemv", {"M": 64, "K": 128}, {"herd_m": 8, "tile_m": 4, "m_input": 2}),
    "rms_norm": ("rms_norm", {"M": 16, "N": 64, "eps": 1e-5}, {"herd": (2, 4)}),
    "rope": ("rope", {"R": 16, "head_dim": 64}, {"herd": (8, 1)}),
    "silu_mul": ("silu_mul", {"N": 2048}, {"herd": (8, 1), "tile_n": 128}),
    "add": ("add", {"M": 16, "N": 128, "broadcast": False}, {"herd": (8, 1), "tile_n": 128}),
    "add-broadcast": (
        "add",
        {"M": 16, "N": 128, "broadcast": True},
        {"herd": (8, 1), "tile_n": 64},
    ),
    "flash-shared": ("flash_attention", FLASH, {**STAGES, "heads_per_unroll": 2}),
    "flash-apart": (
        "flash_attention",
        {**FLASH, "kv_heads": 2, "causal": False},
        {**STAGES, "heads_per_unroll": 2},
    ),
    "flash-128": (
        "flash_attention",
        {**FLASH, "heads": 1, "head_dim": 128},
        {**STAGES, "heads_per_unroll": 1},
    ),
    "decode": (
        "decode_attention",
        {"context": 192, "heads": 8, "kv_heads": 4, "head_dim": 64},
        {"herd": (2, 2)},
    ),
}
TINY = (
    *("model.layers=1", "model.dim=128", "model.heads=2", "model.kv_heads=1", "model.hidden=256"),
    *("model.vocab=512", "model.qkv_bias=true", "model.qk_norm=true", "sequence.context=256"),
)


def plan(case: str) -> TilePlan:
    op, shape, tile = CASES[case]
    return kernels.contract(op).plan(shape, tile)


def alone(case: str) -> Dispatch:
    return solo(plan(case), case)


@functools.cache
def fused() -> dict[str, Dispatch]:
    """Every dispatch of a one-layer model with biases and QK norm."""
    found = resolve(load(TINY), default_cache()).dispatches
    return {dispatch.name: dispatch for dispatch in found}


FUSED = (
    *("prefill_256.rms_gemms_rope", "prefill_256.flash_attn", "prefill_256.o_ffn"),
    *("decode.rms_gemv_rope", "decode.attn_o_ffn", "lm_head"),
)


def arguments(dispatch: Dispatch, seed: int = 0) -> list[Any]:
    """Flat arrays: the inputs drawn, whatever is written first left as NaN."""
    rng = np.random.default_rng(seed)
    found = []
    for argument in dispatch.arguments:
        count = int(np.prod(argument.shape))
        if argument.dtype == "i32":
            found.append(np.full(count, 100, np.int32))
        elif argument.role == "out":
            found.append(np.full(count, np.nan, np.float32))
        else:
            scale = 1 / np.sqrt(argument.shape[-1]) if len(argument.shape) > 1 else 1
            found.append((rng.standard_normal(count) * scale).astype(np.float32))
    return found


def expected(dispatch: Dispatch, given: list[Any]) -> list[Any]:
    """The arguments after the dispatch, op by op from the contracts' FP32 references."""
    values = [array.copy() for array in given]
    for op in dispatch.ops:
        binding = dict(op.arguments)
        tensors = {t.name: t for t in op.plan.tensors}
        operands = {
            name: values[binding[name]][: t.elements].reshape(t.shape)
            for name, t in tensors.items()
            if t.role in ("in", "param")
        }
        results = kernels.contract(op.plan.op).reference(dict(op.plan.shape), operands)
        for name, array in results.items():
            values[binding[name]][: tensors[name].elements] = np.asarray(array).reshape(-1)
    return values
