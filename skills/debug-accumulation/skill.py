"""A running sum in bf16: every element a little off, more the longer the sum is."""

from __future__ import annotations

from typing import Any

from tilegate.diagnose import Case, Finding, error

MOST = 0.1  # a larger error is no matter of rounding
ALIKE = 0.25  # correlation of the error with that of a bf16 running sum; unrelated ones give < 0.05


def diagnose(case: Case) -> Finding:
    """Matches when the error is that of the same product summed in bf16, slice by slice."""
    import numpy as np

    if case.kernel != "gemm" or not case.complete or not case.wrong:
        return case.finding(False)
    off = error(case.output, case.expected)
    if not (off < MOST) or dict(case.tile).get("method") == "direct":
        return case.finding(False)
    expected = np.asarray(case.expected, np.float32)
    residual = np.asarray(case.output, np.float32).reshape(expected.shape) - expected
    made = _running(case) - expected
    alike = float(np.corrcoef(residual.ravel(), made.ravel())[0, 1])
    if not (alike > ALIKE):
        return case.finding(False)
    group = {"down_proj": "down", "o_proj": "o"}.get(case.op, "*")
    change = (f"tile.prefill.{group}.method=fused-cast",) if group != "*" else ()
    evidence = {"error": off, "correlation with a bf16 sum": alike}
    cause = "the running sum is kept in bf16; take a method that accumulates in FP32"
    return case.finding(True, cause, evidence=evidence, change=change)


def _running(case: Case) -> Any:
    """The product with the sum rounded to bf16 after every slice of tile_k_l1."""
    import ml_dtypes
    import numpy as np

    a, b = case.operands["A"], case.operands["B"]
    step = int(case.tile["tile_k_l1"])
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], step):
        total += a[:, start : start + step] @ b[start : start + step]
        total = total.astype(ml_dtypes.bfloat16).astype(np.float32)
    return total
