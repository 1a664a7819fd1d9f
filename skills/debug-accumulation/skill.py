"""A running sum in bf16: every element a little off, more the longer the sum is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding

GROUP = 8  # values along K that share an exponent in the matrix unit
MANTISSA = 6  # step = 2^(exponent - 6), at most 127 steps
GROUPS = {"down_proj": "down", "o_proj": "o", "gate_proj": "gate_up", "up_proj": "gate_up"}


def diagnose(case: Case) -> Finding:
    """Matches the same product, operands in block floating point, summed in bf16 slice by slice."""
    if case.kernel != "gemm" or not case.complete or not case.operands:
        return case.finding(False)
    return case.judge(_running(case))


def _running(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    import ml_dtypes
    import numpy as np

    def bf16(array: Any) -> Any:
        return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float32)

    if dict(case.tile).get("method") == "direct":
        return
    a = _block_float(bf16(case.operands["A"]))
    b = _block_float(bf16(case.operands["B"]).T).T
    step = int(case.tile["tile_k_l1"])
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], step):
        total = bf16(total + a[:, start : start + step] @ b[start : start + step])
    group = GROUPS.get(case.op)
    groups = [group] if group else sorted(case.facts.get("groups", ()))
    other = "drain" if case.tile.get("method") == "fused-cast" else "fused-cast"
    change = tuple(f"tile.prefill.{name}.method={other}" for name in groups)
    yield "the running sum is kept in bf16: take a method that accumulates in FP32", total, change


def _block_float(x: Any) -> Any:
    """Rows of `x` rounded so that GROUP neighbours share one exponent, as the matrix unit does."""
    import numpy as np

    groups = x.reshape(x.shape[0], -1, GROUP)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    exponent = np.frexp(largest)[1] - 1
    scale = np.ldexp(np.float32(1), exponent - MANTISSA)
    steps = np.minimum(np.rint(groups / scale), 127)
    return np.where(largest > 0, steps * scale, groups).astype(np.float32).reshape(x.shape)
