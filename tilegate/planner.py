"""The fastest legal tile of a shape, by the timing model: a pure, deterministic search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilegate import kernels, legality, timing
from tilegate.device import Device
from tilegate.errors import UserError

# Not chosen unless asked for: it keeps the running sum in bf16, which costs accuracy with K.
SHY = {"method": {"direct"}}


def choose(
    op: str,
    shape: Mapping[str, Any],
    request: Mapping[str, Any] | str,
    device: Device,
    stitched: bool = False,
) -> dict[str, Any]:
    """The tile of least predicted time among the legal ones that keep the request's fixed fields.

    A field of the request that is `auto` (or missing, or the whole request `auto`) is free.
    Ties go to the first in the contract's order. What is `unknown` is never chosen silently, only
    when every field is fixed. Raises UserError naming limit, used, available and the nearest choice.
    """
    wanted = (
        {}
        if isinstance(request, str)
        else {name: _plain(value) for name, value in request.items() if value not in (None, "auto")}
    )
    contract = kernels.contract(op)
    if set(wanted) >= set(contract.TILE_FIELDS):
        return _fixed(op, shape, wanted, device, stitched)
    best: tuple[float, dict[str, Any]] | None = None
    for tile in candidates(op, shape, wanted):
        if best is not None and any(not r.ok for r in contract.requirements(shape, tile)):
            continue
        verdict = legality.judge(op, shape, tile, device, stitched, hints=False)
        if verdict.verdict != "legal" or verdict.warning:
            continue
        us = timing.predict_plan(contract.plan(shape, tile), device).us
        if best is None or us < best[0]:
            best = (us, tile)
    if best is None:
        raise UserError(_nothing(op, shape, wanted, device, stitched))
    return best[1]


def candidates(
    op: str, shape: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Tiles of the contract's space that keep the wanted fields, which may lie outside it."""
    seen: set[tuple[Any, ...]] = set()
    for tile in kernels.contract(op).tile_space(shape):
        if any(tile[f] in values and f not in wanted for f, values in SHY.items() if f in tile):
            continue
        mixed = {**tile, **wanted}
        key = tuple(_plain(mixed[name]) for name in sorted(mixed))
        if key not in seen:
            seen.add(key)
            yield {name: _plain(value) for name, value in mixed.items()}


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
    """Why no candidate is legal: the violations of the one that breaks the fewest rules."""
    nearest: legality.Verdict | None = None
    for tile in candidates(op, shape, wanted):
        verdict = legality.judge(op, shape, tile, device, stitched, hints=False)
        if nearest is None or len(verdict.violations) < len(nearest.violations):
            nearest = verdict
    if nearest is None:
        return f"{op} {_words(shape)}: no tile to choose from{' with ' + _words(wanted) if wanted else ''}"
    return explain(op, shape, nearest)


def explain(op: str, shape: Mapping[str, Any], verdict: legality.Verdict) -> str:
    """One line: every limit with used/available and the nearest legal choice."""
    parts = [
        f"{v.rule} {v.used}/{v.available} {v.unit}".rstrip() + (f" ({v.hint})" if v.hint else "")
        for v in verdict.violations
    ]
    return f"{op} {_words(shape)}: {verdict.verdict}: " + "; ".join(parts)


def _words(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value
