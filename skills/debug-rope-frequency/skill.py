"""A rotary table of the wrong frequencies or positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding

THETAS = (1e4, 1e5, 5e5, 1e6, 1e7)
FACTORS = (0.01, 0.05, 0.1, 10.0, 20.0, 100.0)


def diagnose(case: Case) -> Finding:
    """Matches another theta, a missing scaling, or positions moved by one."""
    if case.kernel != "rope" or not case.operands or "rope" not in case.model:
        return case.finding(False)
    if case.layer is None:
        return case.finding(False)  # a kernel gate brings its own table
    return case.judge(_tables(case))


def _tables(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    rope = case.model["rope"]
    true = float(rope["theta"])
    restore = (f"model.rope.theta={true:g}",)
    if rope["scaling"]:
        yield "the frequencies are not scaled", _turned(case, true, False, 0), ()
    for theta in {*THETAS, *(true * factor for factor in FACTORS)} - {true}:
        cause = f"the table has theta {theta:g}; the model's is {true:g}"
        yield cause, _turned(case, theta, True, 0), restore
    for shift in (-1, 1):
        yield f"positions are off by {shift}", _turned(case, true, True, shift), ()


def _turned(case: Case, theta: float, scaled: bool, shift: int) -> Any:
    import numpy as np

    from oracle.rope import rope_table
    from oracle.spec import ModelSpec

    rope = {"theta": theta, "scaling": case.model["rope"]["scaling"] if scaled else None}
    spec = ModelSpec.from_dict({**case.model, "rope": rope})
    rows, d = case.shape["R"], case.shape["head_dim"]
    heads = case.model["heads" if case.op.startswith("q") else "kv_heads"]
    tokens = rows // heads
    first = 0 if tokens > 1 else case.facts["tokens"] - 1
    table = rope_table(spec, np.arange(first, first + tokens) + shift)
    lut = np.repeat(table, heads, axis=0)
    x = np.asarray(case.operands["x"]).reshape(-1, d)
    low, high, cos, sin = x[:, : d // 2], x[:, d // 2 :], lut[:, : d // 2], lut[:, d // 2 :]
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=1)
