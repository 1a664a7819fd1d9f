"""Faults on demand: what the emulated device or the build can be told to do wrong.

`fault=NAME` plants one. Gates must catch it, debug skills must name it, and nothing is promoted
while one is asked for. All mutations are applied here and in `tilegate.misplans`; a fault of kind
`device` is the session's own (`runtime.emulated`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate.errors import UserError, nearest
from tilegate.model import Op, Phase, Value
from tilegate.plan import TilePlan
from tilegate.settings import Model


@dataclass(frozen=True)
class Fault:
    """`gate` is the earliest gate that can see it, `skill` the debug skill that names it (empty
    when the gate's own reason says all), `op` the value the evidence must point at, `needs` what a
    model must have for the fault to have a place. The kinds: device, model, phase, plan (what is
    built), oracle, prompt, bundle.
    """

    name: str
    kind: str
    gate: str
    skill: str
    op: str
    needs: str
    doc: str


def _read() -> Iterator[Fault]:
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, kind, gate, skill, op, needs, doc = (
                "" if word.strip() == "-" else word.strip() for word in line.split("|")
            )
            yield Fault(name, kind, gate, skill, op, needs, doc)


TABLE = Path(__file__).parent / "data" / "faults.txt"
FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _read()}
WRONG_EPS = 1.0


def check(name: str | None, model: Model) -> None:
    """Raise UserError for an unknown fault, or one that has no place in the model."""
    if name is None:
        return
    if name not in FAULTS:
        raise UserError(f"fault: no such fault {name!r}; {nearest(name, FAULTS)}")
    needs = FAULTS[name].needs
    has = {
        "": True,
        "rope.scaling": model.rope.scaling is not None,
        "qkv_bias": model.qkv_bias,
        "qk_norm": model.qk_norm,
        "untied": not model.tied,
    }
    if not has[needs]:
        raise UserError(f"fault: {name} has no place in {model.name}: it needs {needs}")


def device(name: str | None) -> str | None:
    """The fault of the emulated device, if it is one of those."""
    return name if name and FAULTS[name].kind == "device" else None


def model(name: str | None, true: Model) -> Model:
    """The model as it is built; what the oracle computes stays `true`."""
    rope = true.rope
    changes: Mapping[str, Callable[[], dict[str, Any]]] = {
        "wrong_eps": lambda: {"norm_eps": WRONG_EPS},
        "rope_theta": lambda: {"rope": dataclasses.replace(rope, theta=rope.theta * 0.05)},
        "rope_unscaled": lambda: {"rope": dataclasses.replace(rope, scaling=None)},
        "missing_qkv_bias": lambda: {"qkv_bias": False},
        "missing_qk_norm": lambda: {"qk_norm": False},
        "head_mixup": lambda: {"tied": True},
    }
    return dataclasses.replace(true, **changes[name]()) if name and name in changes else true


def oracle(name: str | None, true: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model document that the oracle is run with."""
    return {**true, "norm_eps": WRONG_EPS} if name == "oracle_eps" else true


def prompt(name: str | None, ids: Sequence[int]) -> list[int]:
    """The token ids that the device is given."""
    return [*ids[:1], *ids] if name == "shifted_prompt" else list(ids)


def phase(name: str | None, true: Phase) -> Phase:
    """The phase as it is built: ops, bindings and the tensors that values stand for."""
    if name == "missing_transpose" and true.phase == "prefill":
        return _value(true, "gate_proj.weight", layout="as-is")
    if name == "reused_buffer" and true.phase != "lm_head":
        tensor = true.values["up_proj.weight"].tensor or ""
        return _value(true, "up_proj.weight", tensor=tensor.replace("{layer}", "0"))
    if name == "swapped_gate_up" and true.phase != "lm_head":
        return _ops(true, _exchange)
    if name == "head_rows" and true.phase == "lm_head":
        return _rotated_rows(true)
    if name == "misplaced_qk_norm" and true.phase != "lm_head":
        return _late_norm(true)
    return true


def plan(name: str | None, op: Op, true: TilePlan) -> TilePlan:
    """The tile plan as it is built."""
    if name is None or FAULTS[name].kind != "plan":
        return true
    from tilegate.misplans import misplan

    return misplan(name, op, true)


def _value(phase: Phase, name: str, **fields: Any) -> Phase:
    changed: Value = dataclasses.replace(phase.values[name], **fields)
    return dataclasses.replace(phase, values={**phase.values, name: changed})


def _ops(phase: Phase, change: Callable[[Op], Op]) -> Phase:
    return dataclasses.replace(phase, ops=tuple(change(op) for op in phase.ops))


def _exchange(op: Op) -> Op:
    if op.name != "silu_mul":
        return op
    swap = {"gate": "up", "up": "gate"}
    return dataclasses.replace(op, bind=tuple((swap.get(k, k), v) for k, v in op.bind))


def _rotated_rows(phase: Phase) -> Phase:
    """Each part of the head holds the rows of the next one; its results stay where they were."""
    parts = [v for v in phase.values.values() if v.layout == "padded_rows"]
    starts = [part.row_start for part in parts]
    if len(parts) < 2:
        raise UserError("fault: head_rows needs a head of two or more parts")
    for part, start in zip(parts, starts[1:] + starts[:1], strict=True):
        phase = _value(phase, part.name, row_start=start)
    return phase


def _late_norm(phase: Phase) -> Phase:
    """q_rope reads q_proj (or its bias), q_norm reads q_rope, attention reads q_norm; k alike."""
    by_name = {op.name: op for op in phase.ops}
    renamed = {"q_rope": "q_norm", "k_rope": "k_norm"}
    ops: list[Op] = []
    for op in phase.ops:
        if op.name in ("q_norm", "k_norm"):
            continue
        if op.name in renamed:
            norm = by_name[renamed[op.name]]
            before = dict(norm.bind)["x"]
            ops.append(_rebind(op, x=before))
            ops.append(_rebind(norm, x=op.name))
            continue
        bound = {k: renamed.get(v, v) for k, v in op.bind if op.name == "attention"}
        ops.append(_rebind(op, **bound))
    values = dict(phase.values)
    for name, value in values.items():
        if value.kind == "cache" and value.value in renamed:
            values[name] = dataclasses.replace(value, value=renamed[value.value])
    return dataclasses.replace(phase, ops=tuple(ops), values=values)


def _rebind(op: Op, **changes: str) -> Op:
    return dataclasses.replace(op, bind=tuple((k, changes.get(k, v)) for k, v in op.bind))
