"""A projection that ran on another layer's weight: right on the first call, wrong later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding

OPERANDS = {"gemm": "B", "gemv": "W", "rms_norm": "weight"}


def diagnose(case: Case) -> Finding:
    """Matches when the output follows from the same tensor of another layer."""
    if case.kernel not in OPERANDS or case.layer is None or not case.operands:
        return case.finding(False)
    return case.judge(_others(case))


def _others(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    from tilegate import kernels

    operand = OPERANDS[case.kernel]
    template = case.bound.get(operand, "")
    if "{layer}" not in template:
        return
    for layer in range(case.model["layers"]):
        if layer == case.layer:
            continue
        weight = case.weight(template, layer)
        swapped = {**case.operands, operand: weight.T if case.kernel == "gemm" else weight}
        made = kernels.contract(case.kernel).reference(dict(case.shape), swapped)
        cause = f"it ran on the weight of layer {layer}: the buffer is shared between layers"
        yield cause, next(iter(made.values())), ()
