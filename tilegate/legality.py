"""Can this tile run on this device? Decided from the plan, in milliseconds, before any compile.

Three sources, in rising authority: the contract's requirements, rules over the plan (memories, DMA
channels, descriptor fields), and points measured on hardware for a toolchain, which override both.
The limits are in the device; the measured points in `tilegate/data/legality_points.yaml`.
"""

from __future__ import annotations

import functools
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
MOST_HINT_TRIALS = 12  # per field, so that a verdict stays within milliseconds


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
    verdict = _judge(op, shape, tile, device, stitched)
    if hints and verdict.violations:
        found = tuple(_hinted(v, op, shape, tile, device, stitched) for v in verdict.violations)
        verdict = Verdict(verdict.verdict, found, verdict.warning)
    return verdict


def _judge(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any], device: Device, stitched: bool
) -> Verdict:
    measured = [
        p for p in points(device.toolchain) if p.op == op and p.holds({**shape, **tile}, stitched)
    ]
    if any(p.verdict == "legal" for p in measured):
        return Verdict("legal")
    broken = list(broken_rules(op, shape, tile, device))
    bad = [_from_point(p) for p in measured if p.verdict == "illegal"]
    if broken or bad:
        return Verdict("illegal", tuple(broken + bad))
    unknown = tuple(_from_point(p) for p in measured if p.verdict == "unknown")
    warning = "; ".join(p.reason for p in measured if p.verdict == "slow")
    return Verdict("unknown" if unknown else "legal", unknown, warning)


def broken_rules(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any], device: Device
) -> Iterator[Violation]:
    """Violations of the contract's requirements, then of the rules over the plan."""
    contract = kernels.contract(op)
    failed = [r for r in contract.requirements(shape, tile) if not r.ok]
    yield from map(_violation, failed)
    try:
        plan = contract.plan(shape, tile)
    except (ArithmeticError, ValueError, KeyError, IndexError):
        if not failed:
            raise
        return
    yield from map(_violation, judge_plan(plan, device))


def judge_plan(plan: TilePlan, device: Device) -> list[Requirement]:
    """The rules over a plan that do not hold, at most one (the worst) for each rule."""
    worst: dict[str, Requirement] = {}
    for launch in plan.launches:
        for found in rules.check(launch, device):
            if not found.ok and (
                found.rule not in worst or _number(found.used) > _number(worst[found.rule].used)
            ):
                worst[found.rule] = found
    return list(worst.values())


def _check_fields(op: str, fields: tuple[str, ...], given: Mapping[str, Any], what: str) -> None:
    for name in fields:
        if name not in given:
            raise UserError(f"{op}: {what} field {name!r} is missing; it has {', '.join(fields)}")
    for name in given:
        if name not in fields:
            raise UserError(f"{op}: no {what} field {name!r}; {nearest(name, fields)}")


def _violation(r: Requirement) -> Violation:
    return Violation(r.rule, r.used, r.available, r.unit, r.hint)


def _from_point(point: Point) -> Violation:
    reason = f"{point.reason} ({point.source})"
    return Violation(point.rule, "this tile", "measured", "", reason)


def _number(value: int | float | str) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _hinted(
    violation: Violation,
    op: str,
    shape: Mapping[str, Any],
    tile: Mapping[str, Any],
    device: Device,
    stitched: bool,
) -> Violation:
    """The violation with the nearest single change that makes the tile legal, if there is one."""
    partial = ""
    for name, value in _neighbours(op, shape, tile):
        verdict = _judge(op, shape, {**tile, name: value}, device, stitched)
        if verdict.verdict == "legal":
            return _with_hint(violation, f"nearest legal: {name}={_text(value)}")
        if not partial and violation.rule not in {v.rule for v in verdict.violations}:
            partial = f"{name}={_text(value)} would satisfy this rule"
    return _with_hint(violation, partial)


def _with_hint(violation: Violation, more: str) -> Violation:
    text = "; ".join(part for part in (violation.hint, more) if part)
    return Violation(violation.rule, violation.used, violation.available, violation.unit, text)


def _neighbours(
    op: str, shape: Mapping[str, Any], tile: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Tiles that differ in one field, nearest value first, as (field, value)."""
    values: dict[str, set[Any]] = {name: set() for name in tile}
    for number, candidate in enumerate(kernels.contract(op).tile_space(shape)):
        if number > 4000:
            break
        for name, value in candidate.items():
            values.setdefault(name, set()).add(tuple(value) if isinstance(value, list) else value)
    ranked: list[tuple[float, str, Any]] = []
    for name, current in tile.items():
        if isinstance(current, int) and not isinstance(current, bool):
            near = sorted(values[name] - {current}, key=lambda v: (_distance(current, v), v))
            ranked += [(_distance(current, v), name, v) for v in near[:MOST_HINT_TRIALS]]
        else:
            now = tuple(current) if isinstance(current, list) else current
            ranked += [(2.0, name, v) for v in sorted(values[name] - {now})[:4]]
    ranked.sort(key=lambda entry: (entry[0], entry[1]))
    for _, name, value in ranked:
        yield name, value


def _distance(current: int, other: int) -> float:
    """Ratio of two sizes: halving is as far as doubling."""
    low, high = sorted((max(1, current), max(1, other)))
    return high / low


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
