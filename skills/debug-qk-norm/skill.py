"""The per-head norm of q and k: absent, or at the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding


def diagnose(case: Case) -> Finding:
    """Matches a norm that the device does not compute, or one that reads the rotated heads."""
    if case.op not in ("q_norm", "k_norm"):
        return case.finding(False)
    if case.output is None:
        cause = "the deployment does not normalise the heads, the model does"
        change = ("model.qk_norm=true",)
        return case.finding(True, cause, evidence={"value": "not computed"}, change=change)
    return case.judge(_misplaced(case))


def _misplaced(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    from tilegate import kernels

    rotated = case.values.get(case.op.replace("norm", "rope"))
    contract = kernels.contract(case.kernel)
    if rotated is not None and case.operands:
        shaped = rotated.reshape(case.operands["x"].reshape(-1, case.shape["N"]).shape)
        made = contract.reference(dict(case.shape), {**case.operands, "x": shaped})["y"]
        yield "the heads are normalised after the rotation; it belongs before", made, ()
    if case.operands:
        yield "the norm passes its input on", case.operands["x"], ()
