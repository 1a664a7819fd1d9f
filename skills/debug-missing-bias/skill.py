"""A bias that was never added."""

from __future__ import annotations

from tilegate.diagnose import Case, Finding


def diagnose(case: Case) -> Finding:
    """Matches when the device has no value for a bias, or it equals its input."""
    if not case.op.endswith("_bias"):
        return case.finding(False)
    change = ("model.qkv_bias=true",)
    if case.output is None:
        cause = "the deployment adds no bias, the model has one"
        return case.finding(True, cause, evidence={"value": "not computed"}, change=change)
    import numpy as np

    bare = np.broadcast_to(case.operands.get("a", np.nan), np.shape(case.output))
    return case.judge([("the bias is not added", bare, change)])
