"""What a failed item of a bringup leaves: the launches at fault with their tensors, and causes.

A launch is judged by itself, as in the block gate: the FP32 reference of its kernel on the operands
that the device had. The debug skills look at the first that is wrong. A failure must end in a
report, so that a skill that breaks on a case says so and the others go on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import bisect, diagnose, kernels
from tilegate.config import Config, plain
from tilegate.diagnose import Case
from tilegate.dispatch import Dispatch, Fused
from tilegate.errors import GateFailed
from tilegate.policy import Policy

GATE = "bringup"
JUST_BELOW = 0.95  # of the error: a case of a failed gate is wrong whatever limit it broke
ENTRY, OUTPUT, NORMED = "x", "mlp_residual", "final_norm"
EARLY = 7
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Failed(GateFailed):
    """A failure whose tensors are known."""

    def __init__(self, record: Mapping[str, Any], cases: Sequence[Case]) -> None:
        super().__init__(record)
        self.cases = tuple(cases)


def looked_at(cases: Sequence[Case], folder: Path) -> dict[str, Any]:
    """Keep the cases in a folder; what the debug skills say of them, for the report."""
    if not cases:
        return {"tensors": "none: it failed before a device gave any", "causes": []}
    diagnose.keep(cases, folder)
    causes, broken = [], []
    for name in diagnose.skill_names():
        try:
            causes += [finding.line() for finding in diagnose.run(cases, [name])]
        except Exception as error:  # a case from a device that fails may hold anything
            broken.append(f"{name} could not look: {type(error).__name__}: {error}")
    first = cases[0]
    return {
        "first_wrong": {"op": first.op, "layer": first.layer, "phase": first.phase},
        "tensors": str(folder),
        "causes": causes,
        "skills_that_broke": broken,
        "look_again": f"python -m tilegate.diagnose {folder}",
    }


def of_launches(
    config: Config,
    dispatch: Dispatch,
    held: Mapping[str, Any],
    rules: Policy,
    layer: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[Case]:
    """A case for each op of a dispatch, right or wrong, in program order.

    `held` are arrays by argument name: what was given, and what the device left.
    """
    values = {a.value or a.name: held[a.name] for a in dispatch.arguments if a.name in held}
    margin = rules.sections["block"]["launch"].value
    given = {"model": plain(config.model), **(facts or {})}
    found = []
    for op in dispatch.ops:
        operands, output, expected = _launch(dispatch, op, held)
        tile = dict(op.plan.tile)
        limit = margin * float(rules.tier(kernels.tier(op.plan.op, tile))["mean_rel_l1"])
        bound = {
            name: dispatch.arguments[i].tensor or dispatch.arguments[i].name
            for name, i in op.arguments
        }
        found.append(
            Case(
                GATE, op.name, "" if moves_only(op) else op.plan.op, layer, dispatch.phase, output,
                expected, dict(op.plan.shape), tile, operands, values, {}, bound, limit, given,
            )
        )  # fmt: skip
    return found


def _launch(
    dispatch: Dispatch, op: Fused, held: Mapping[str, Any]
) -> tuple[dict[str, Any], Any, Any]:
    """Operands, what the device left, and what the reference says (None where something lacks)."""
    import ml_dtypes
    import numpy as np

    names = {name: dispatch.arguments[index].name for name, index in op.arguments}
    arrays: dict[str, Any] = {}
    for tensor in op.plan.tensors:
        array = held.get(names[tensor.name])
        if array is not None and np.size(array) >= math.prod(tensor.shape):
            flat = np.asarray(array).reshape(-1)[: math.prod(tensor.shape)]
            arrays[tensor.name] = flat.reshape(tensor.shape)
    wanted = [t.name for t in op.plan.tensors if t.role in ("in", "param")]
    operands = {name: arrays[name] for name in wanted if name in arrays}
    result = next(t for t in op.plan.tensors if t.role == "out" and t not in op.plan.scratch)
    if len(operands) < len(wanted):
        return operands, arrays.get(result.name), None
    outputs = _reference(op, operands)
    truth = np.asarray(outputs[result.name], np.float32).reshape(result.shape)
    if result.dtype == "bf16":
        truth = truth.astype(ml_dtypes.bfloat16).astype(np.float32)
    return operands, arrays.get(result.name), truth


def _reference(op: Fused, operands: Mapping[str, Any]) -> Mapping[str, Any]:
    if moves_only(op):
        return {"y": operands["x"]}
    return kernels.contract(op.plan.op).reference(dict(op.plan.shape), operands)


def moves_only(op: Fused) -> bool:
    """Whether no core function is called: the transfers of a bringup."""
    return not any(launch.object.functions for launch in op.plan.launches)


def first_wrong(cases: Sequence[Case], last: Case | None = None) -> list[Case]:
    """The first case that does not follow from its operands; else `last`, wrong by comparison."""
    for case in cases:
        if case.output is None or (case.expected is not None and case.wrong):
            return [case]
    return [] if last is None else [surely_wrong(last)]


def each_follows(name: str, cases: Sequence[Case]) -> None:
    """Raises Failed unless the result of every launch follows from its operands."""
    wrong = first_wrong(cases)
    if wrong:
        reasons = [bisect.reason(wrong[0])]
        record = {"gate": GATE, "subject": name, "verdict": "fail", "reasons": reasons}
        raise Failed(record, wrong)


def surely_wrong(case: Case) -> Case:
    """The case with a limit below its own error: another comparison has judged it."""
    if not case.complete:
        return case
    off = diagnose.error(case.output, case.expected)
    return dataclasses.replace(case, limit=min(case.limit, JUST_BELOW * off))


def bundle_facts(config: Config, bundle: Path, rows: int) -> dict[str, Any]:
    """What skills may ask about the model that a bundle holds."""
    weights = str(bundle / "weights.safetensors")
    return {"model": plain(config.model), "weights": weights, "tokens": rows, "bucket": rows}


def of_layer(
    config: Config,
    bundle: Path,
    layer: int,
    tensors: Mapping[str, Any],
    rules: Policy,
    tokens: int = 1,
) -> list[Case]:
    """The launches of one layer's prefill of some tokens, from values captured on the device."""
    from runtime.bundle import load

    loaded = load(bundle)
    bucket = bucket_of(loaded.manifest, tokens)
    names = loaded.manifest.prefill[bucket]
    facts = {**bundle_facts(config, bundle, bucket), "tokens": max(tokens, 1)}
    given = _Given(loaded, layer, range(bucket), tensors, {})
    return [case for name in names for case in given.cases(config, name, rules, facts)]


def of_decode(
    config: Config,
    bundle: Path,
    layer: int,
    prefilled: Mapping[str, Any],
    tensors: Mapping[str, Any],
    rules: Policy,
) -> list[Case]:
    """The launches of one layer's decode, which puts a prefilled token anew in its place."""
    from runtime.bundle import load

    loaded = load(bundle)
    at = decoded_at(loaded.manifest)
    given = _Given(loaded, layer, range(at, at + 1), tensors, prefilled)
    facts = {**bundle_facts(config, bundle, 1), "tokens": at + 1}
    return [
        case for name in loaded.manifest.decode for case in given.cases(config, name, rules, facts)
    ]


@dataclass(frozen=True)
class _Given:
    """What the dispatches of a layer hold at some positions: captured, or as it should be."""

    loaded: Any
    layer: int
    positions: range
    tensors: Mapping[str, Any]
    prefilled: Mapping[str, Any]  # values of the prefill before a decode

    def cases(
        self, config: Config, name: str, rules: Policy, facts: Mapping[str, Any]
    ) -> list[Case]:
        from tilegate.deployment import resolve
        from tilegate.store import default_cache

        known = {d.name: d for d in resolve(config, default_cache()).dispatches}
        if name not in known:
            return []  # a bundle of another configuration: its plans are not at hand
        arguments = self.loaded.dispatches[name].arguments
        held = {a.name: value for a in arguments if (value := self._value(a)) is not None}
        return of_launches(config, known[name], held, rules, self.layer, facts)

    def _value(self, argument: Any) -> Any:
        import numpy as np

        from runtime.bf16 import as_f32
        from runtime.weights import rope_table, static_value

        last = self.positions[-1]
        if argument.kind == "static":
            tensor = argument.tensor.format(layer=self.layer)
            return as_f32(static_value(self.loaded.tensors, tensor, argument))
        if argument.kind == "table":  # q's and k's have one name and different rows
            rope, width = self.loaded.manifest.rope, argument.shape[-1]
            table = as_f32(rope_table(rope, last + 1, width))[self.positions.start :]
            return table.repeat(argument.shape[0] // len(table), axis=0)
        if argument.kind == "position":
            position = np.zeros(argument.shape, np.int32)
            position[0] = last
            return position
        captured = self.tensors.get(argument.value or "")
        if argument.kind == "cache" and self.prefilled and captured is not None:
            cache = np.zeros(argument.shape, np.float32)
            rows = np.reshape(self.prefilled[argument.value], (-1, argument.shape[-1]))
            cache[: len(rows)] = rows
            cache[last] = np.reshape(captured, -1)[: argument.shape[-1]]
            return cache
        return captured


def bucket_of(manifest: Any, tokens: int) -> int:
    """The bucket in which the runner prefills some tokens."""
    return int(min(size for size in manifest.prefill if size >= tokens))


def decoded_at(manifest: Any) -> int:
    """The position at which the block stage decodes: early, so that a single key counts."""
    return int(min(EARLY, min(manifest.prefill) - 1))


def values_of(bundle: Path, tokens: int = 1) -> frozenset[str]:
    """The names of all values that a bundle's prefill of some tokens reads or writes."""
    from runtime.bundle import load

    loaded = load(bundle)
    names = loaded.manifest.prefill[bucket_of(loaded.manifest, tokens)]
    return frozenset(a.value for n in names for a in loaded.dispatches[n].arguments if a.value)


def of_model(
    config: Config,
    bundle: Path,
    sides: tuple[Any, Any],
    prompt: Sequence[int],
    told: Mapping[str, Any],
    rules: Policy,
) -> list[Case]:
    """Where a prefill of the prompt leaves the emulated device's path: the first layer whose output
    does, launch by launch, else the head; else decode does, and both sides' tokens are the case.

    Every case carries `told`: tokens and logits of both sides.
    """
    from runtime.runner import Capture, Runner

    runners = [Runner(bundle, session) for session in sides]
    seen = []
    for runner in runners:
        capture = Capture(frozenset({ENTRY, OUTPUT, NORMED}))
        try:
            logits = runner.prefill(prompt, capture)
        except Exception:  # logits that are no numbers: the layers are there all the same
            logits = None
        seen.append((capture.tensors, logits))
    (ours, logits), (theirs, expected) = seen
    facts = bundle_facts(config, bundle, len(prompt))
    limit = rules.sections["block"]["mean_rel_l1"].value
    for layer in range(runners[0].bundle.manifest.model.layers):
        if (layer, OUTPUT) not in ours or (layer, OUTPUT) not in theirs:
            continue
        pair = ours[layer, OUTPUT], theirs[layer, OUTPUT]
        if not diagnose.error(*pair) <= limit:
            whole = Case(GATE, OUTPUT, "", layer, "prefill", *pair, values=told, facts=facts)
            capture = Capture(values_of(bundle, len(prompt)), frozenset({layer}))
            _quietly(runners[0], prompt, capture)
            values = {name: tensor for (at, name), tensor in capture.tensors.items() if at == layer}
            made = of_layer(config, bundle, layer, values, rules, len(prompt))
            return [
                dataclasses.replace(case, values={**case.values, **told})
                for case in first_wrong(made, whole)
            ]
    head = _head(runners[0].bundle.tensors, ours, theirs, logits, expected, told, facts)
    later = Case(
        GATE, "tokens", "", None, "decode", told.get("tokens"), told["emulated_tokens"],
        values=told, limit=0.0, facts=facts,
    )  # fmt: skip
    return first_wrong([*head], later)


def _quietly(runner: Any, prompt: Sequence[int], capture: Any) -> None:
    try:
        runner.prefill(prompt, capture)
    except Exception:  # only what was captured before counts
        return


def _head(
    tensors: Mapping[str, Any],
    ours: Mapping[Any, Any],
    theirs: Mapping[Any, Any],
    logits: Any,
    expected: Any,
    told: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Iterator[Case]:
    """Logits against the head's product with what the device fed to it."""
    import numpy as np

    from runtime.bf16 import as_f32

    output = None if logits is None else np.asarray(logits)[None]
    normed = ours.get((None, NORMED))
    operands = {}
    if normed is not None:
        operands["x"] = np.asarray(normed, np.float32).reshape(1, -1)
        expected = operands["x"] @ as_f32(tensors.get(HEAD, tensors[TABLE])).T
    yield Case(
        GATE, "logits", "gemv", None, "prompt", output, expected, operands=operands, values=told,
        limit=0.02, facts=facts,
    )  # fmt: skip


def record_of(name: str, error: Exception) -> dict[str, Any]:
    """The record of something that did not get as far as a comparison."""
    reasons = [f"{type(error).__name__}: {error}"]
    return {"gate": GATE, "subject": name, "verdict": "fail", "reasons": reasons}
