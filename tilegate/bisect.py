"""Which launch of a block is the first wrong one?

Every launch is judged by itself: the FP32 reference of its kernel, on the operands as the device
had them, against what the device left. So an error that comes from above does not count, and the
first launch in program order whose output does not follow from its operands is the one to see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilegate import kernels
from tilegate.deployment import Planned
from tilegate.diagnose import Case, error
from tilegate.model import Op, Phase, Value
from tilegate.policy import Policy
from tilegate.real import Real


@dataclass(frozen=True)
class Block:
    """One run of one layer: the true phase, what was fed, what was captured, and what was before.

    `caches` are K and V of the layer as the device should hold them, by value name.
    """

    phase: Phase
    layer: int
    given: Any
    values: Mapping[str, Any]
    caches: Mapping[str, Any]
    history: Mapping[str, Any]


def cases(
    block: Block,
    planned: Mapping[tuple[str, str], Planned],
    real: Real,
    rules: Policy,
    facts: Mapping[str, Any],
) -> list[Case]:
    """A case for every launch of the block, right or wrong, in program order; the input first."""
    values, layer, phase = block.values, block.layer, block.phase
    margin = rules.sections["block"]["launch"].value
    entry = Case(
        "block", "x", "", layer, phase.name, values.get("x"), block.given, values=values,
        history=block.history, limit=0.0, facts=facts,
    )  # fmt: skip
    found = [entry]
    for op in phase.ops:
        plan = planned.get((phase.name, op.name))
        tile = dict(plan.plan.tile) if plan else {}
        shape = op.shape_dict
        output = values.get(op.name)
        operands = _operands(op, block, real)
        expected = None
        if plan is not None and output is not None:
            operands = _shaped(op, shape, tile, operands)
            expected = _reference(op, shape, operands)
        limit = margin * float(rules.tier(_tier(op, tile), "real")["mean_rel_l1"])
        found.append(
            Case(
                "block", op.name, op.kernel, layer, phase.name, output, expected, shape, tile,
                {k: v for k, v in operands.items() if v is not None}, values, block.history,
                {k: phase.values[v].tensor or v for k, v in op.bind}, limit, facts,
            )
        )  # fmt: skip
    return found


def first_wrong(found: list[Case]) -> Case | None:
    """The first case whose output is missing or does not follow from its operands."""
    return next((case for case in found if case.output is None or case.wrong), None)


def _tier(op: Op, tile: Mapping[str, Any]) -> str:
    return kernels.tier(op.kernel, tile or {"method": "drain"})


def _operands(op: Op, block: Block, real: Real) -> dict[str, Any]:
    return {
        operand: _operand(block.phase.values[name], block, real)
        for operand, name in op.bind
        if name != op.name
    }


def _operand(value: Value, block: Block, real: Real) -> Any:
    if value.kind == "cache":
        return block.caches.get(value.value or "")
    if value.kind == "activation":
        return block.values.get(value.name)
    return real.value(value, block.phase, block.layer)


def _shaped(
    op: Op, shape: dict[str, Any], tile: Mapping[str, Any], operands: Mapping[str, Any]
) -> dict[str, Any]:
    """The operands in the shapes of the kernel; None for one that is missing or of another size."""
    import numpy as np

    tensors = {t.name: t for t in kernels.contract(op.kernel).plan(shape, tile).tensors}
    return {
        name: np.asarray(array).reshape(tensors[name].shape)
        if array is not None and np.size(array) == math.prod(tensors[name].shape)
        else None
        for name, array in operands.items()
    }


def _reference(op: Op, shape: dict[str, Any], operands: Mapping[str, Any]) -> Any:
    """The kernel's FP32 reference, rounded to the bf16 that every value of a block has."""
    import ml_dtypes
    import numpy as np

    if any(array is None for array in operands.values()):
        return None
    outputs = kernels.contract(op.kernel).reference(shape, operands)
    made = np.asarray(next(iter(outputs.values())), np.float32)
    return made.astype(ml_dtypes.bfloat16).astype(np.float32)


def reason(case: Case) -> str:
    """Why the launch of a case is wrong, for the gate's record."""
    if case.output is None:
        return f"{case.op} is not computed"
    if not case.kernel:
        return f"{case.op} is not what was fed"
    off = error(case.output, case.expected) if case.expected is not None else math.inf
    return f"{case.op} does not follow from its operands: error {off:.4g} above {case.limit:g}"
