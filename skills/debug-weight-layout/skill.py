"""A weight read in the wrong layout: rows for columns, or a transpose that did not happen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding


def diagnose(case: Case) -> Finding:
    """Matches when the output follows from the weight's bytes in the other order."""
    if case.kernel not in ("gemm", "gemv") or not case.complete or not case.operands:
        return case.finding(False)
    return case.judge(_layouts(case))


def _layouts(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    import numpy as np

    operand = "B" if case.kernel == "gemm" else "W"
    if operand not in case.operands:
        return
    weight = np.asarray(case.operands[operand])
    other = np.ascontiguousarray(weight.T).reshape(weight.shape)
    cause = "the weight was read as stored, without the transpose that its layout asks for"
    if case.kernel == "gemm":
        yield cause, case.operands["A"] @ other, ()
        product = case.operands["A"] @ weight
        flipped = np.ascontiguousarray(product.T).reshape(product.shape)
        yield "the output was stored by columns", flipped, ()
    else:
        yield cause, other @ case.operands["x"].reshape(-1), ()
