"""The fastest legal tile of a shape, by the timing model: a pure, deterministic search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilegate import kernels, legality, timing
from tilegate.device import Device
from tilegate.digests import digest
from tilegate.errors import UserError

# Not chosen unless asked for: `external` has FP32 results, which no other kernel reads. `direct`
# keeps the running sum in bf16, which costs accuracy with K: only where nothing else is legal.
SHY = {"method": {"direct", "external"}}
LAST = {"method": {"external"}}
MOST_OF_THE_ARRAY = (
    12  # cores of a GEMM: smaller herds are searched only where none so large is legal
)
TIE = 1.005  # predictions this close are equal: the one with fewer core calls has fewer descriptors


def choose(
    op: str,
    shape: Mapping[str, Any],
    request: Mapping[str, Any] | str,
    device: Device,
    stitched: bool = False,
) -> dict[str, Any]:
    """The tile of least predicted time among the legal ones that keep the request's fixed fields.

    A field of the request that is `auto` (or missing, or the whole request `auto`) is free.
    Equal times go to the tile with the fewest core calls, then to the first in the contract's
    order. What is `unknown` is taken only when every field is fixed by the request.
    `stitched` plans for a launch among others in one dispatch.
    Raises UserError naming limit, used, available and the nearest choice.
    """
    contract = kernels.contract(op)
    given = {} if isinstance(request, str) else request
    wanted = {n: _plain(v) for n, v in given.items() if v is not None and v != "auto"}
    if set(wanted) >= set(contract.TILE_FIELDS):
        return _fixed(op, shape, wanted, device, stitched)
    ranked: list[tuple[float, int, dict[str, Any]]] = []
    for shy, cores in ((SHY, MOST_OF_THE_ARRAY), (SHY, 0), (LAST, MOST_OF_THE_ARRAY), (LAST, 0)):
        ranked = ranked or rank(op, shape, wanted, device, stitched, shy, cores)
    if not ranked:
        raise UserError(_nothing(op, shape, wanted, device, stitched))
    least = min(us for us, _, _ in ranked)
    near = [entry for entry in ranked if entry[0] <= least * TIE]
    return min(near, key=lambda entry: entry[1])[2]


def rank(
    op: str,
    shape: Mapping[str, Any],
    wanted: Mapping[str, Any],
    device: Device,
    stitched: bool,
    shy: Mapping[str, set[str]] = SHY,
    cores: int = 0,
) -> list[tuple[float, int, dict[str, Any]]]:
    """(predicted us, core calls, tile) of every surely legal candidate, in the contract's order."""
    found = []
    for tile in candidates(op, shape, wanted, shy):
        if "method" in tile and "herd" not in wanted and math.prod(tile["herd"]) < cores:
            continue
        plan = legality.sure(op, shape, tile, device, stitched)
        if plan is not None:
            works = [timing.measure(launch) for launch in plan.launches]
            calls = sum(c.count * s.trips for w in works for s in w.stages for c in s.calls)
            found.append((_us(works, device, stitched), calls, tile))
    return found


def candidates(
    op: str, shape: Mapping[str, Any], wanted: Mapping[str, Any], shy: Mapping[str, set[str]] = SHY
) -> Iterator[dict[str, Any]]:
    """Tiles of the contract's space with the wanted fields put in, each once."""
    seen: set[tuple[Any, ...]] = set()
    for tile in kernels.contract(op).tile_space(shape):
        if any(tile[f] in values and f not in wanted for f, values in shy.items() if f in tile):
            continue
        mixed = {name: _plain(value) for name, value in {**tile, **wanted}.items()}
        key = tuple(mixed.values())
        if key not in seen:
            seen.add(key)
            yield mixed


def explain(op: str, shape: Mapping[str, Any], verdict: legality.Verdict) -> str:
    """One line: every limit with used/available and the nearest legal choice."""
    parts = [
        f"{v.rule} {v.used}/{v.available} {v.unit}".rstrip() + (f" ({v.hint})" if v.hint else "")
        for v in verdict.violations
    ]
    return f"{op} {_words(shape)}: {verdict.verdict}: " + "; ".join(parts)


def _us(works: Sequence[timing.Work], device: Device, stitched: bool) -> float:
    """Time of a plan among others in a dispatch, or of one dispatched alone."""
    if stitched:
        return timing.price_dispatch(works, device, "elf").us
    return timing.price_dispatch(works, device, "elf" if len(works) > 1 else "xclbin").host_us


def _fixed(
    op: str, shape: Mapping[str, Any], tile: dict[str, Any], device: Device, stitched: bool
) -> dict[str, Any]:
    verdict = legality.judge(op, shape, tile, device, stitched)
    if verdict.verdict == "illegal":
        raise UserError(explain(op, shape, verdict))
    return tile


def _nothing(
    op: str,
    shape: Mapping[str, Any],
    wanted: Mapping[str, Any],
    device: Device,
    stitched: bool,
) -> str:
    """Why no candidate is legal: the verdict on the one that breaks the fewest rules."""
    closest: legality.Verdict | None = None
    for tile in candidates(op, shape, wanted):
        verdict = legality.judge(op, shape, tile, device, stitched, hints=False)
        if closest is None or len(verdict.violations) < len(closest.violations):
            closest = verdict
    if closest is None:
        request = f" with {_words(wanted)}" if wanted else ""
        return f"{op} {_words(shape)}: no tile divides this shape{request}"
    free = _unasked(op, shape, device, stitched) if wanted else None
    nearest = f"; without the request: {_words(free)}" if free else ""
    return explain(op, shape, closest) + nearest


_UNASKED: dict[str, dict[str, Any] | None] = {}


def _unasked(
    op: str, shape: Mapping[str, Any], device: Device, stitched: bool
) -> dict[str, Any] | None:
    """The fastest tile without any request, found once per process."""
    key = digest([op, shape, device, stitched])
    if key not in _UNASKED:
        ranked = rank(op, shape, {}, device, stitched)
        _UNASKED[key] = min(ranked, key=lambda entry: entry[0])[2] if ranked else None
    return _UNASKED[key]


def _words(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value
