"""What a configuration deploys: phases, tiles, plans and fused dispatches. Nothing is built."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import faults, kernels, model, planner, timing, whole
from tilegate.config import plain
from tilegate.device import Device
from tilegate.digests import digest
from tilegate.dispatch import Argument, Dispatch, Fused
from tilegate.errors import UserError
from tilegate.model import Op, Phase, Value
from tilegate.plan import Tensor, TilePlan, freeze
from tilegate.settings import Config
from tilegate.store import ROOT


@dataclass(frozen=True)
class Planned:
    """An op of a phase with its tile plan."""

    op: Op
    phase: str
    plan: TilePlan


@dataclass(frozen=True)
class Deployment:
    """A resolved configuration and all that follows from it before anything is built.

    `asked` is the configuration as given; `config` differs from it only under a fault.
    """

    config: Config
    phases: tuple[Phase, ...]
    planned: Mapping[tuple[str, str], Planned]
    dispatches: tuple[Dispatch, ...]
    asked: Config

    def of_phase(self, phase: str) -> tuple[Dispatch, ...]:
        """Dispatches of `prefill`, `decode` or `lm_head`, in the order in which they run."""
        return tuple(d for d in self.dispatches if d.phase == phase)

    def true_phases(self) -> tuple[Phase, ...]:
        """What should have been built: the phases without any fault."""
        return phases_of(self.asked)

    def kernels(self) -> dict[TilePlan, list[Planned]]:
        """The distinct kernel plans, each with the ops that use it."""
        found: dict[TilePlan, list[Planned]] = {}
        for planned in self.planned.values():
            found.setdefault(planned.plan, []).append(planned)
        return found


def resolve(config: Config, cache: Path) -> Deployment:
    """Choose tiles, write plans and fuse them. `cache` remembers the planner's choices.

    Under a fault the deployment's configuration, phases and plans are the faulty ones.

    Raises UserError for a tile that is illegal or that nothing legal completes.
    """
    fault, asked = config.fault, config
    config = dataclasses.replace(config, model=faults.model(fault, config.model))
    phases = tuple(faults.phase(fault, phase) for phase in phases_of(config))
    tiles = Tiles(config.device, cache)
    planned: dict[tuple[str, str], Planned] = {}
    for phase in phases:
        groups = plain(config.tile.prefill if phase.phase == "prefill" else config.tile.decode)
        cuts = _cut(config, phase)
        stitched = {op.name for ops in cuts.values() for op in ops if len(ops) > 1}
        for op in phase.ops:
            where = f"tile.{'prefill' if phase.phase == 'prefill' else 'decode'}.{op.group}"
            tile = tiles.choose(op, groups[op.group], where, op.name in stitched)
            plan = faults.plan(fault, op, plan_of(op.kernel, op.shape, freeze(tile)))
            planned[phase.name, op.name] = Planned(op, phase.name, plan)
    tiles.save()
    dispatches = tuple(d for phase in phases for d in _fuse(config, phase, planned))
    for dispatch in dispatches:
        verdict = whole.judge(dispatch)
        if verdict.verdict == "illegal":
            raise UserError("; ".join(f"{v.rule} {v.hint}" for v in verdict.violations))
    return Deployment(config, phases, planned, dispatches, asked)


def phases_of(config: Config) -> tuple[Phase, ...]:
    """Prefill of each bucket, decode and LM head, as the model asks for them."""
    return (
        *(model.prefill(config.model, bucket) for bucket in config.sequence.buckets),
        model.decode(config.model, config.sequence.context),
        model.lm_head(config.model),
    )


@functools.cache
def plan_of(kernel: str, shape: tuple[Any, ...], tile: tuple[Any, ...]) -> TilePlan:
    return kernels.contract(kernel).plan(dict(shape), dict(tile))


_REFUSED: dict[str, str] = {}  # what this process has already found to be illegal


class Tiles:
    """The planner's choices, remembered by all that determines them."""

    def __init__(self, device: Device, cache: Path) -> None:
        self.device = device
        self.path = cache / "tiles" / f"{_planner_digest(device)}.json"
        self.dirty = False
        try:
            known = json.loads(self.path.read_text())
            self.known: dict[str, Any] = known if isinstance(known, dict) else {}
        except (OSError, ValueError):
            self.known = {}  # only slower

    def choose(
        self, op: Op, request: Mapping[str, Any], where: str, stitched: bool
    ) -> dict[str, Any]:
        """The tile of an op, `stitched` when other ops share its dispatch.

        Fields of the request that its kernel does not have are free ones.
        """
        fields = kernels.contract(op.kernel).TILE_FIELDS
        fixed = {name: value for name, value in request.items() if value != "auto"}
        for name in fixed:
            if name not in fields:
                raise UserError(f"{where}.{name}: {op.kernel} has {', '.join(fields)}")
        key = digest([op.kernel, op.shape, fixed, stitched])
        entry = self.known.get(key)
        refused = f"{self.path} {key}"
        if refused in _REFUSED:
            raise UserError(f"{where} ({op.name}): {_REFUSED[refused]}")
        if entry is None:
            try:
                tile = planner.choose(
                    op.kernel, op.shape_dict, request_of(fixed), self.device, stitched
                )
            except UserError as error:
                _REFUSED[refused] = str(error)
                raise UserError(f"{where} ({op.name}): {error}") from None
            entry = self.known[key] = {
                k: list(v) if isinstance(v, tuple) else v for k, v in tile.items()
            }
            self.dirty = True
        return {name: tuple(v) if isinstance(v, list) else v for name, v in entry.items()}

    def save(self) -> None:
        if not self.dirty:
            return
        temp = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temp.write_text(json.dumps(self.known, sort_keys=True))
            temp.replace(self.path)
        except OSError:
            temp.unlink(missing_ok=True)  # only slower


def request_of(fixed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fixed.items()}


def _planner_digest(device: Device) -> str:
    """Everything that decides a choice: the device, the planner's code, and the contracts."""
    return digest([plain(device), _planner_code()])[:32]


@functools.cache
def _planner_code() -> str:
    stages = ("planner", "legality", "rules", "timing", "plan", "device", "kernels")
    files: Iterable[Path] = (
        *(ROOT / "tilegate" / f"{name}.py" for name in stages),
        *sorted((ROOT / "tilegate" / "data").glob("*")),
        *sorted(kernels.ROOT.glob("*/kernel.py")),
    )
    text = [[path.name, path.parent.name, path.read_text()] for path in files if path.is_file()]
    return digest(text)


def host_us(dispatch: Dispatch, config: Config) -> float:
    """What the host adds to a dispatch of the model, microseconds."""
    tokens = dispatch.bucket or 1
    return timing.host_us(config.device, tokens * config.model.dim * 2)


def _cut(config: Config, phase: Phase) -> dict[str, list[Op]]:
    """The phase's ops by the dispatch into which the fusion config puts them."""
    fusion = config.fusion.prefill if phase.phase == "prefill" else config.fusion.decode
    groups = {op: name for name, ops in fusion.items() for op in ops}
    parts: dict[str, list[Op]] = {}
    for op in phase.ops:
        listed = "logits" if op.name.startswith("logits_") else op.name
        parts.setdefault(groups[listed], []).append(op)
    return parts


def _fuse(
    config: Config, phase: Phase, planned: Mapping[tuple[str, str], Planned]
) -> list[Dispatch]:
    """The dispatches of a phase, each with its argument table."""
    parts = _cut(config, phase)
    if phase.phase == "lm_head":
        return [_dispatch(phase, name, ops, planned) for name, ops in parts.items()]
    return [_dispatch(phase, f"{phase.name}.{name}", ops, planned) for name, ops in parts.items()]


def _dispatch(
    phase: Phase, name: str, ops: list[Op], planned: Mapping[tuple[str, str], Planned]
) -> Dispatch:
    """One dispatch: its argument table in order of first use, scratch of the plans last."""
    inside = {op.name for op in ops}
    read_later = {
        value
        for op in phase.ops
        if op.name not in inside
        for operand, value in op.bind
        if _tensor(planned[phase.name, op.name].plan, operand).role != "out"
    }
    arguments: dict[str, Argument] = {}
    fused: list[Fused] = []
    for op in ops:
        plan = planned[phase.name, op.name].plan
        binding: list[tuple[str, int]] = []
        for operand, value in op.bind:
            written = _tensor(plan, operand).role == "out"
            _bind(arguments, phase, phase.values[value], written, value in read_later)
            binding.append((operand, list(arguments).index(value)))
        for tensor in plan.scratch:
            scratch = f"{op.name}.{tensor.name}"
            arguments[scratch] = Argument(
                scratch, "intermediate", "out", tensor.shape, tensor.dtype, value=scratch
            )
            binding.append((tensor.name, list(arguments).index(scratch)))
        fused.append(Fused(op.name, plan, tuple(binding)))
    return Dispatch(name, phase.phase, phase.bucket, tuple(arguments.values()), tuple(fused))


def _bind(
    arguments: dict[str, Argument], phase: Phase, value: Value, written: bool, later: bool
) -> None:
    """Enter a value into the argument table, or note that it is read after having been written."""
    known = arguments.get(value.name)
    if known is not None:
        return
    kind = value.kind
    if kind == "activation" and phase.phase == "prefill" and _cached(phase, value.name):
        kind = "cache"
    ends = value.name == "mlp_residual" or value.value == "logits" or _cached(phase, value.name)
    if kind == "activation" and written and not later and not ends:
        kind = "intermediate"
    arguments[value.name] = Argument(
        value.name,
        kind,
        "out" if written else "in",
        value.shape,
        value.dtype,
        value.value,
        value.tensor,
        value.layout,
        value.row_start,
    )


def _cached(phase: Phase, name: str) -> bool:
    """Whether a value is the k or v that attention reads: it goes into the cache."""
    if phase.phase == "lm_head":
        return False
    attention = next(op for op in phase.ops if op.name == "attention")
    operands = dict(attention.bind)
    if phase.phase == "prefill":
        return name in (operands["k"], operands["v"])
    caches = (phase.values[operands["k_cache"]], phase.values[operands["v_cache"]])
    return name in {cache.value for cache in caches}


def _tensor(plan: TilePlan, name: str) -> Tensor:
    return next(t for t in plan.tensors if t.name == name)
