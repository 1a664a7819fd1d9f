"""`python -m tilegate.check OP field=value ... [--stitched] [--json]`: is this tile legal?

Fields are those of the kernel's contract; the names of the published tables are understood too
(`eltwise_add`, `rmsnorm`, `herd_m`, `herd_n`, `lq`, ...).
Exit status: 0 legal, 1 illegal or unknown, 2 usage.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from tilegate import device as devices
from tilegate import kernels, legality, measured
from tilegate.errors import UserError, nearest

# Fields of the published tables that follow from the others or that no rule reads.
IGNORED = {"in_dtype", "out_dtype", "vector_size", "dv", "dv_chunks", "regime"}


def parse(words: Sequence[str]) -> dict[str, Any]:
    """`name=value` words as a mapping; values are ints, floats, booleans, [a,b] lists or text."""
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UserError(f"{word!r} is not field=value")
        fields[name] = _value(text)
    return fields


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith(("[", "(")) and text.endswith(("]", ")")):
        return tuple(_value(part.strip()) for part in text[1:-1].split(",") if part.strip())
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def resolve(op: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(op, shape, tile) in the contract's names. Raises UserError for an unknown or odd field."""
    ours, names, constants = measured.OPS.get(op, (op, {}, {}))
    if op not in measured.OPS:
        kernels.folder(op)
        for theirs, mapped, _ in measured.OPS.values():
            if theirs == op:
                names = {**mapped, **names}
    contract = kernels.contract(ours)
    given = measured.rename(fields, contract.TILE_FIELDS)
    shape = {**constants, **{names[n]: v for n, v in given.items() if n in names}}
    shape |= {n: v for n, v in given.items() if n in contract.SHAPE_FIELDS}
    if ours == "rms_norm":
        shape.setdefault("eps", 1e-5)
    known = {*contract.SHAPE_FIELDS, *contract.TILE_FIELDS, *names, *IGNORED, "lk"}
    for name in given:
        if name not in known:
            raise UserError(f"{op}: no field {name!r}; {nearest(name, known - IGNORED)}")
    if given.get("lk", given.get("lq")) != given.get("lq"):
        raise UserError(f"{op}: lk={given['lk']} must equal lq={given.get('lq')}")
    tile = {n: given[n] for n in contract.TILE_FIELDS if n in given}
    _dtypes(op, tile, given)
    return ours, shape, tile


def _dtypes(op: str, tile: dict[str, Any], given: dict[str, Any]) -> None:
    if given.get("in_dtype", "bf16") != "bf16":
        raise UserError(f"{op}: in_dtype={given['in_dtype']}; choose bf16")
    allowed = {"external": ("f32",), "direct": ("bf16", "f32")}.get(
        tile.get("method", ""), ("bf16",)
    )
    if given.get("out_dtype", allowed[0]) not in allowed:
        method = f" with method={tile['method']}" if "method" in tile else ""
        raise UserError(
            f"{op}: out_dtype={given['out_dtype']}{method}; choose {' or '.join(allowed)}"
        )


def stream_verdict(op: str, fields: dict[str, Any]) -> legality.Verdict:
    """The verdict of the rules alone on an elementwise op that has no kernel here."""
    config = {name: v for name, v in fields.items() if name not in ("M", "N")}
    if "herd" in config:
        config["herd_x"], config["herd_y"] = config.pop("herd")
    try:
        plan = measured.plan({"op": op, **fields, "config": config})
    except KeyError as error:
        raise UserError(f"{op}: field {error.args[0]!r} is missing") from None
    assert plan is not None
    broken = legality.judge_plan(plan, devices.load())
    violations = tuple(
        legality.Violation(r.rule, r.used, r.available, r.unit, r.hint) for r in broken
    )
    return legality.Verdict("illegal" if violations else "legal", violations)


def render(op: str, verdict: legality.Verdict) -> str:
    """The verdict as text: one line per violation."""
    lines = [f"{op}: {verdict.verdict}"]
    for v in verdict.violations:
        lines.append(f"  {v.rule}: {v.used} of {v.available} {v.unit}".rstrip())
        if v.hint:
            lines.append(f"    {v.hint}")
    if verdict.warning:
        lines.append(f"  warning: {verdict.warning}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    flags = {w for w in words if w.startswith("--")}
    words = [w for w in words if not w.startswith("--")]
    try:
        unknown = flags - {"--json", "--stitched"}
        if unknown or not words:
            raise UserError(
                "usage: python -m tilegate.check OP field=value ... [--stitched] [--json]"
            )
        op, fields = words[0], parse(words[1:])
        shape: dict[str, Any] = fields
        tile: dict[str, Any] = {}
        if op in measured.STREAMS and op not in kernels.ops():
            verdict = stream_verdict(op, fields)
        else:
            op, shape, tile = resolve(op, fields)
            verdict = legality.judge(op, shape, tile, devices.load(), "--stitched" in flags)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if "--json" in flags:
        data = {"op": op, "shape": shape, "tile": tile, **dataclasses.asdict(verdict)}
        print(json.dumps(data, indent=2))
    else:
        print(render(op, verdict))
    return 0 if verdict.verdict == "legal" else 1


if __name__ == "__main__":
    sys.exit(main())
