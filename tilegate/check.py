"""`python -m tilegate.check OP field=value ... [--stitched] [--json]`: is this tile legal?

Fields are those of the kernel's contract; the names of the published tables are understood too
(`eltwise_add`, `rmsnorm`, `herd_m`, `herd_n`, `lq`, ...).
Exit status: 0 legal, 1 illegal or unknown, 2 usage.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tilegate import device as devices
from tilegate import kernels, legality, measured
from tilegate.errors import UserError, nearest
from tilegate.plan import Requirement, divides

# Fields of the published tables that follow from the others or that no rule reads.
IGNORED = {
    *("in_dtype", "out_dtype", "vector_size", "dv", "dv_chunks", "dv_tile", "regime"),
    "rows_per_dma",
}


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
    tile = {n: given[n] for n in contract.TILE_FIELDS if n in given}
    return ours, shape, tile


def formats(op: str, fields: dict[str, Any]) -> list[Requirement]:
    """What types, number formats and build formats rule out; these are no fields of a contract."""
    found = []
    method, dtype = fields.get("method", ""), fields.get("in_dtype", "bf16")
    if str(dtype).startswith("bfp16"):
        for name, least, step in (("tile_m", 32, 16), ("tile_k_l1", 64, 64), ("tile_n", 64, 64)):
            value = fields.get(name, least)
            if value < least or value % step:
                wanted = f"{least} or more, a multiple of {step}"
                hint = f"{name}: a multiply in block floating point runs out of registers below"
                found.append(Requirement("R-MMUL", False, value, wanted, "elements", hint))
    if dtype != "bf16":
        found.append(Requirement("DTYPE", False, dtype, "bf16", "", f"{op}: operands are bf16"))
    allowed = {"external": ("f32",), "direct": ("bf16", "f32")}.get(method, ("bf16",))
    if fields.get("out_dtype", allowed[0]) not in allowed:
        hint = f"results of {method or op} are {' or '.join(allowed)}"
        found.append(Requirement("DTYPE", False, fields["out_dtype"], allowed[0], "", hint))
    if method == "fused-cast" and str(fields.get("regime", "elf")).startswith("xclbin"):
        hint = "two launches in one dispatch: an xclbin gave wrong results, build an ELF"
        found.append(Requirement("R-FORMAT", False, fields["regime"], "elf", "", hint))
    if op == "rope" and fields.get("rows_per_dma", 1) != 1:
        hint = "two rows per transfer do not place, four leave half of the rows wrong"
        found.append(
            Requirement("ROPE-ROWS", False, fields["rows_per_dma"], 1, "rows per transfer", hint)
        )
    if fields.get("lk", fields.get("lq")) != fields.get("lq"):
        hint = "queries and keys of a prompt are the same tokens"
        found.append(Requirement("FA-LENGTHS", False, fields["lk"], fields["lq"], "keys", hint))
    return found


def stream_verdict(op: str, fields: dict[str, Any]) -> legality.Verdict:
    """The verdict of the rules alone on an elementwise op that has no kernel here."""
    config = {name: v for name, v in fields.items() if name not in ("M", "N")}
    if "herd" in config:
        config["herd_x"], config["herd_y"] = config.pop("herd")
    known = {"herd_x", "herd_y", "tile_n", *IGNORED}
    for name in config:
        if name not in known:
            raise UserError(f"{op}: no field {name!r}; {nearest(name, known - IGNORED)}")
    try:
        cores = config["herd_x"] * config.get("herd_y", 1)
        broken = list(_stream_rules(op, fields, config.get("tile_n", fields["N"]), cores))
        if all(found.rule == "R-STREAMS" for found in broken):
            plan = measured.plan({"op": op, **fields, "config": config})
            assert plan is not None
            broken += legality.judge_plan(plan, devices.load())
    except KeyError as error:
        raise UserError(f"{op}: field {error.args[0]!r} is missing") from None
    violations = tuple(map(legality.violation, [*broken, *formats(op, fields)]))
    return legality.Verdict("illegal" if violations else "legal", violations)


def _stream_rules(op: str, fields: dict[str, Any], tile: int, cores: int) -> Iterator[Requirement]:
    """Divisibility and streams: layernorm has x, weight with bias, y; others one in, one out."""
    rows = op == "layernorm"
    most = 8 if rows else 16
    total, step = (fields["M"], cores) if rows else (fields["N"], tile * cores)
    what = "M over the cores" if rows else "N over tile_n * cores"
    checks = (
        divides("lanes", 16, tile, "lanes of a vector"),
        divides("M-tiling" if rows else "N-tiling", step, total, what),
        Requirement(
            "R-STREAMS",
            cores <= most,
            cores,
            most,
            "cores",
            "three streams per core" if rows else "two streams per core",
        ),
    )
    yield from (check for check in checks if not check.ok)


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


def verdict(
    op: str, fields: dict[str, Any], stitched: bool = False
) -> tuple[tuple[str, dict[str, Any], dict[str, Any]], legality.Verdict]:
    """((op, shape, tile) in our names, verdict) of fields in any of the names."""
    if op in measured.STREAMS and op not in kernels.ops():
        return (op, fields, {}), stream_verdict(op, fields)
    extra = tuple(map(legality.violation, formats(op, fields)))
    named = resolve(op, fields)
    found = legality.judge(*named, devices.load(), stitched)
    if extra:
        rest = found.violations if found.verdict == "illegal" else ()
        found = legality.Verdict("illegal", (*extra, *rest))
    return named, found


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
        (op, shape, tile), found = verdict(words[0], parse(words[1:]), "--stitched" in flags)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if "--json" in flags:
        data = {"op": op, "shape": shape, "tile": tile, **dataclasses.asdict(found)}
        print(json.dumps(data, indent=2))
    else:
        print(render(op, found))
    return 0 if found.verdict == "legal" else 1


if __name__ == "__main__":
    sys.exit(main())
