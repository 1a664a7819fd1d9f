"""Can this tile run on this device? Decided from the plan, in milliseconds, before any compile.

Three sources, in rising authority: the contract's requirements, rules over the plan (memories, DMA
channels, descriptor fields), and points measured on hardware for a toolchain, which override both.
The limits are in the device; the measured points in `tilegate/data/legality_points.yaml`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from tilegate import kernels, rules
from tilegate.device import Device
from tilegate.errors import UserError, nearest
from tilegate.plan import Requirement, TilePlan

POINTS = Path(__file__).resolve().parent / "data" / "legality_points.yaml"
MOST_CANDIDATES, MOST_TRIALS = 6000, 150  # for a hint, so that a verdict takes milliseconds


@dataclass(frozen=True)
class Violation:
    """One limit that does not hold: what is used, what there is, and the nearest way out."""

    rule: str
    used: int | float | str
    available: int | float | str
    unit: str
    hint: str


@dataclass(frozen=True)
class Verdict:
    """`unknown` means: no rule forbids it, but its neighbours were measured bad; measure it.

    `warning` tells of something legal that was measured to be a bad choice.
    """

    verdict: Literal["legal", "illegal", "unknown"]
    violations: tuple[Violation, ...] = ()
    warning: str = ""


@dataclass(frozen=True)
class Point:
    """A measured fact: where the condition holds, this verdict stands."""

    op: str
    verdict: str
    when: CodeType
    rule: str
    reason: str
    source: str
    stitched: bool | None

    def holds(self, fields: Mapping[str, Any], stitched: bool) -> bool:
        """Whether the point speaks about a shape and tile (in a stitched build or alone)."""
        if self.stitched is not None and self.stitched != stitched:
            return False
        try:
            return bool(eval(self.when, {"__builtins__": {}}, dict(fields)))
        except (NameError, ZeroDivisionError):
            return False


@functools.cache
def points(toolchain: str) -> tuple[Point, ...]:
    """The measured points of a toolchain, in file order."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with POINTS.open() as stream:
        table = yaml.load(stream, loader)
    return tuple(
        Point(
            raw["op"],
            raw["verdict"],
            compile(raw["when"], raw["op"], "eval"),
            raw["rule"],
            raw["reason"],
            raw["source"],
            raw.get("stitched"),
        )
        for raw in table.get(toolchain, ())
    )


def judge(
    op: str,
    shape: Mapping[str, Any],
    tile: Mapping[str, Any],
    device: Device,
    stitched: bool = False,
    hints: bool = True,
) -> Verdict:
    """The verdict on one kernel at one shape and tile, with every violation.

    `stitched` asks about the kernel as a launch of a dispatch with several launches, where some
    measured points differ. `hints=False` skips the search for the nearest legal choice.
    Raises UserError for an unknown kernel, or a missing or unknown field.
    """
    contract = kernels.contract(op)
    _check_fields(op, contract.SHAPE_FIELDS, shape, "shape")
    _check_fields(op, contract.TILE_FIELDS, tile, "tile")
    _check_values(op, {**shape, **tile}, getattr(contract, "METHODS", ()))
    tile = {name: tuple(v) if isinstance(v, list) else v for name, v in tile.items()}
    verdict = _judge(op, shape, tile, device, stitched)
    if hints and verdict.violations:
        return _hinted(verdict, tile, nearest_legal(op, shape, tile, device, stitched))
    return verdict


def _judge(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any], device: Device, stitched: bool
) -> Verdict:
    known = measured(op, shape, tile, device, stitched)
    if any(p.verdict == "legal" for p in known):
        return Verdict("legal")
    broken = list(broken_rules(op, shape, tile, device))
    bad = [_from_point(p) for p in known if p.verdict == "illegal"]
    if broken or bad:
        return Verdict("illegal", tuple(broken + bad))
    unknown = tuple(_from_point(p) for p in known if p.verdict == "unknown")
    warning = "; ".join(p.reason for p in known if p.verdict == "slow")
    return Verdict("unknown" if unknown else "legal", unknown, warning)


def sure(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any], device: Device, stitched: bool
) -> TilePlan | None:
    """The plan of a tile that is legal without a warning, else None: `judge` for a search."""
    contract = kernels.contract(op)
    known = {p.verdict for p in measured(op, shape, tile, device, stitched)}
    if known and "legal" not in known:
        return None
    if not known and not all(r.ok for r in contract.requirements(shape, tile)):
        return None
    plan = contract.plan(shape, tile)
    limits = (found for launch in plan.launches for found in rules.broken(launch, device))
    return plan if known or next(limits, None) is None else None


def measured(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any], device: Device, stitched: bool
) -> list[Point]:
    """The measured points that speak about a tile."""
    fields = {**shape, **tile, "columns": device.cols}
    return [p for p in points(device.toolchain) if p.op == op and p.holds(fields, stitched)]


def broken_rules(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any], device: Device
) -> Iterator[Violation]:
    """Violations of the contract's requirements, then of the rules over the plan."""
    contract = kernels.contract(op)
    failed = [r for r in contract.requirements(shape, tile) if not r.ok]
    yield from map(violation, failed)
    try:
        plan = contract.plan(shape, tile)
    except (ArithmeticError, ValueError, KeyError, IndexError):
        if not failed:
            raise
        return
    yield from map(violation, judge_plan(plan, device))


def judge_plan(plan: TilePlan, device: Device) -> list[Requirement]:
    """The rules over a plan that do not hold, at most one (the worst) for each rule."""
    worst: dict[str, Requirement] = {}
    for launch in plan.launches:
        for found in rules.broken(launch, device):
            old = worst.get(found.rule)
            if old is None or _number(found.used) > _number(old.used):
                worst[found.rule] = found
    return list(worst.values())


def _check_fields(op: str, fields: tuple[str, ...], given: Mapping[str, Any], what: str) -> None:
    for name in fields:
        if name not in given:
            raise UserError(f"{op}: {what} field {name!r} is missing; it has {', '.join(fields)}")
    for name in given:
        if name not in fields:
            raise UserError(f"{op}: no {what} field {name!r}; {nearest(name, fields)}")


def _check_values(op: str, fields: Mapping[str, Any], methods: tuple[str, ...]) -> None:
    """Sizes are positive numbers, a herd is a pair, a method one of the contract's."""
    for name, value in fields.items():
        if name == "method":
            if value not in methods:
                raise UserError(f"{op}: no method {value!r}; {nearest(str(value), methods)}")
            continue
        pair = isinstance(value, list | tuple)
        if pair != (name == "herd") or (pair and len(value) != 2):
            raise UserError(f"{op}: {name}={value}; a herd is [columns, rows], the rest one value")
        for number in value if pair else (value,):
            if not isinstance(number, int | float) or (number <= 0 and number is not False):
                raise UserError(f"{op}: {name}={value} must be positive")


def violation(r: Requirement) -> Violation:
    """A requirement that does not hold, for people."""
    return Violation(r.rule, r.used, r.available, r.unit, r.hint)


def _from_point(point: Point) -> Violation:
    reason = f"{point.reason} ({point.source})"
    return Violation(point.rule, "this tile", "measured", "", reason)


def _number(value: int | float | str) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def nearest_legal(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any], device: Device, stitched: bool
) -> dict[str, Any] | None:
    """The surely legal tile closest to another, or None within the trials that a hint may cost."""
    pool: list[tuple[float, dict[str, Any]]] = []
    words = {name: value for name, value in tile.items() if isinstance(value, str)}
    for candidate in itertools.islice(kernels.contract(op).tile_space(shape), MOST_CANDIDATES):
        for mixed in ({**candidate, **words}, candidate) if words else (candidate,):
            pool.append((sum(_distance(tile[n], mixed[n]) for n in tile), mixed))
    pool.sort(key=lambda entry: entry[0])  # stable: ties stay in the contract's order
    for _, candidate in pool[:MOST_TRIALS]:
        if sure(op, shape, candidate, device, stitched) is not None:
            return candidate
    return None


def _hinted(verdict: Verdict, tile: Mapping[str, Any], better: Mapping[str, Any] | None) -> Verdict:
    """The verdict with the nearest legal tile added to every hint, as the fields that differ."""
    if better is None:
        return verdict
    changes = [f"{n}={_text(v)}" for n, v in better.items() if v != tile[n]]
    hint = f"nearest legal: {' '.join(changes)}"
    violations = tuple(
        dataclasses.replace(v, hint="; ".join(part for part in (v.hint, hint) if part))
        for v in verdict.violations
    )
    return dataclasses.replace(verdict, violations=violations)


def _distance(one: Any, other: Any) -> float:
    """How far two values of a field are apart: doublings of sizes, a little more for a word."""
    if isinstance(one, tuple):
        return sum(map(_distance, one, other))
    if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool):
        return abs(math.log2(max(1, one) / max(1, other)))
    return 0.0 if one == other else 1.5


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
