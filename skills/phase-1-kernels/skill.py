"""Phase 1: every kernel, alone, against its FP32 reference on random and on real inputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tilegate import diagnose, gate, kernels, policy, records, solo
from tilegate.config import plain
from tilegate.deployment import Planned
from tilegate.dispatch import dispatch_node
from tilegate.dispatch import solo as alone
from tilegate.graph import Graph
from tilegate.model import Phase
from tilegate.plan import TilePlan
from tilegate.real import Real
from tilegate.store import Build, Node

CALLS = 3  # many faults show only from the second call on
LAYER = 0  # the block gate sees others
JUST_BELOW = 0.95  # of the error: a case of a failed gate is wrong whatever limit it broke
LEAST_ROWS = 32  # a single row's scalar rounding says nothing about the mean


def nodes(graph: Graph, parameters: Mapping[str, Any]) -> Iterable[Node]:
    """kernel:*, dispatch:alone:* and gate:kernel:* for each distinct op, shape and tile."""
    config = graph.config
    rules = policy.load(config.gate)
    phases = {phase.name: phase for phase in graph.deployment.phases}
    for plan, uses in graph.deployment.kernels().items():
        tier = kernels.tier(plan.op, dict(plan.tile))
        label = label_of(plan)
        placed = tuple((use, phases[use.phase]) for use in uses)
        link = dispatch_node(alone(plan, label), f"link {plan.op} alone for its gate")
        yield link
        yield Node(
            name=f"gate:kernel:{label}",
            kind="gate",
            doc=f"{', '.join(f'{use.phase}.{use.op.name}' for use in uses)}",
            inputs={
                "model": plain(config.model),
                "plan": repr(plan),
                "uses": [[use.phase, use.op] for use in uses],
                "tier": rules.tiers[tier],
            },
            needs=(link, graph["oracle"], graph["device-weights"]),
            after=(graph["gate:oracle"],),
            build=functools.partial(_gate, plan, placed, tier, config.gate, graph.debug),
            code=(kernels.folder(plan.op) / "kernel.py",),
        )


def label_of(plan: TilePlan) -> str:
    """Op, shape and tile in a task name, fields in the contract's order."""
    contract = kernels.contract(plan.op)
    words = []
    for fields, values in ((contract.SHAPE_FIELDS, plan.shape), (contract.TILE_FIELDS, plan.tile)):
        given = dict(values)
        words += [
            _word(name, given[name]) for name in fields if given.get(name, False) is not False
        ]
    return ".".join((plan.op, *words))


def _word(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, tuple):
        return name + "x".join(map(str, value))
    return str(value) if isinstance(value, str) else f"{name}{value}"


def _gate(
    plan: TilePlan,
    uses: tuple[tuple[Planned, Phase], ...],
    tier: str,
    raw: Mapping[str, Any],
    debug: tuple[str, ...],
    build: Build,
) -> None:
    import numpy as np

    rules = policy.load(raw)
    model = build.inputs["model"]
    link = next(need for need in build.needs.values() if need.path.parent.name == "dispatch")
    run = solo.runner(plan, link)
    contract = kernels.contract(plan.op)
    shape = dict(plan.shape)
    found, expected = [], 0

    calls = _calls(plan)
    drawn = [contract.inputs(shape, np.random.default_rng(seed)) for seed in range(calls)]
    pairs = [_pair(contract, plan, run, operands) for operands in drawn]
    for name in pairs[0][0]:
        candidate = np.concatenate([out[name].reshape(-1, out[name].shape[-1]) for out, _ in pairs])
        reference = np.concatenate([ref[name].reshape(-1, ref[name].shape[-1]) for _, ref in pairs])
        found.append(
            gate.compare_tensors(
                "kernel",
                f"{plan.op} random",
                candidate,
                reference,
                rules.tier(tier),
                reference.size,
            )
        )
        expected += 1

    real = Real(model, build.need("oracle").path, build.need("device-weights").path)
    for use, phase in uses:
        operands, keep = real.operands(use.op, phase, LAYER)
        out, ref = _pair(contract, plan, run, operands)
        shape_of = {operand: phase.values[name].shape for operand, name in use.op.bind}
        for name in out:
            candidate, reference = (
                side[name].reshape(shape_of[name])[:keep] for side in (out, ref)
            )
            subject = f"{use.phase}.{use.op.name} real"
            found.append(
                gate.compare_tensors(
                    "kernel",
                    subject,
                    candidate,
                    reference,
                    rules.tier(tier, "real"),
                    reference.size,
                )
            )
        expected += len(out)
    facts = {"model": model, "groups": sorted({use.op.group for use, _ in uses})}
    cases = functools.partial(_cases, plan, drawn, pairs, rules.tier(tier)["mean_rel_l1"], facts)
    records.settle(build, model["name"], found, expected, cases, debug)


def _calls(plan: TilePlan) -> int:
    """How often to call the kernel: enough rows for a mean, and more than once in any case."""
    outputs = [t for t in plan.tensors if t.role == "out"]
    rows = min(t.elements // (t.shape[-1] if len(t.shape) > 1 else 1) for t in outputs)
    return max(CALLS, -(-LEAST_ROWS // rows))


def _cases(
    plan: TilePlan,
    drawn: list[dict[str, Any]],
    pairs: list[tuple[Any, Any]],
    limit: float,
    facts: Mapping[str, Any],
) -> list[diagnose.Case]:
    """The worst call with random operands, for the debug skills."""
    made = [
        diagnose.Case(
            "kernel", plan.op, plan.op, None, "random", out[name], ref[name], dict(plan.shape),
            dict(plan.tile), operands, limit=limit, facts=facts,
        )
        for operands, (out, ref) in zip(drawn, pairs, strict=True)
        for name in out
    ]  # fmt: skip
    worst = max(made, key=lambda case: diagnose.error(case.output, case.expected))
    off = diagnose.error(worst.output, worst.expected)
    return [dataclasses.replace(worst, limit=min(limit, JUST_BELOW * off))]


def _pair(contract: Any, plan: TilePlan, run: Any, operands: Mapping[str, Any]) -> tuple[Any, Any]:
    """Outputs of the kernel and of its reference on the same, bf16-rounded operands."""
    import ml_dtypes
    import numpy as np

    dtypes = {t.name: t.dtype for t in plan.tensors}
    rounded = {}
    for tensor in plan.tensors:
        if tensor.name in operands:
            value = np.asarray(operands[tensor.name]).reshape(tensor.shape)
            bf16 = tensor.dtype == "bf16"
            rounded[tensor.name] = (
                value.astype(ml_dtypes.bfloat16).astype(np.float32) if bf16 else value
            )
    out = run(rounded)
    truth = contract.reference(dict(plan.shape), rounded)
    shaped = {}
    for name, value in truth.items():
        reference = np.asarray(value, np.float32).reshape(out[name].shape)
        if dtypes[name] == "bf16":
            reference = reference.astype(ml_dtypes.bfloat16).astype(np.float32)
        shaped[name] = reference
    return out, shaped
