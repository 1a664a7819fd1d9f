"""Two arguments of one size that changed places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding

WEIGHTS = {"gemm": "B", "gemv": "W", "rms_norm": "weight"}
SIBLINGS = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
)


def diagnose(case: Case) -> Finding:
    """Matches an exchange of two operands of the launch, or its weight for a sibling's."""
    if not case.kernel or not case.operands or not case.complete or case.op == "logits":
        return case.finding(False)
    return case.judge(itertools.chain(_inside(case), _between(case)))


def _reference(case: Case, operands: dict[str, Any]) -> Any:
    from tilegate import kernels

    made = kernels.contract(case.kernel).reference(dict(case.shape), operands)
    return next(iter(made.values()))


def _inside(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    import numpy as np

    for one, other in itertools.combinations(case.operands, 2):
        a, b = case.operands[one], case.operands[other]
        if np.shape(a) != np.shape(b) or np.asarray(a).dtype.kind != np.asarray(b).dtype.kind:
            continue
        made = _reference(case, {**case.operands, one: b, other: a})
        yield f"the operands {one} and {other} changed places", made, ()


def _between(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    operand = WEIGHTS.get(case.kernel, "")
    own = case.bound.get(operand, "")
    if "{layer}" not in own or case.layer is None or operand not in case.operands:
        return
    want = case.operands[operand].size
    for sibling in SIBLINGS:
        template = "model.layers.{layer}." + sibling
        if template == own:
            continue
        weight = case.weight(template)
        for label, value in (("as that launch has it", weight.T), ("as stored", weight)):
            if value.size != want:
                continue
            shaped = value.reshape(case.operands[operand].shape)
            made = _reference(case, {**case.operands, operand: shaped})
            yield f"it ran on {sibling} ({label}): arguments changed places", made, ()
