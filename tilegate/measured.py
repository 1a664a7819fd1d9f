"""Published measurements and how their names map onto our contracts: here and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegate import kernels, timing
from tilegate.device import Device
from tilegate.plan import (
    Access,
    Buffer,
    Call,
    Copy,
    CoreObject,
    Launch,
    Loop,
    Tensor,
    TilePlan,
    X,
    Y,
    freeze,
    var,
)

TABLE = Path(__file__).resolve().parent / "data" / "npu2_measured.yaml"

# their op -> (our op, their shape field -> ours, constants of ours)
OPS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "gemm": ("gemm", {"M": "M", "K": "K", "N": "N"}, {}),
    "gemv": ("gemv", {"M": "M", "K": "K"}, {}),
    "rmsnorm": ("rms_norm", {"M": "M", "N": "N"}, {"eps": 1e-5}),
    "rope": ("rope", {"rows": "R", "head_dim": "head_dim"}, {}),
    "silu_mul": ("silu_mul", {"N": "N"}, {}),
    "eltwise_add": ("add", {"N": "N"}, {"M": 1, "broadcast": False}),
    "bias_add": ("add", {"M": "M", "N": "N"}, {"broadcast": True}),
    "flash_attention": (
        "flash_attention",
        {
            "lq": "S",
            "heads_q": "heads",
            "heads_kv": "kv_heads",
            "dk": "head_dim",
            "causal": "causal",
        },
        {},
    ),
}
TILES = {
    "num_heads_per_unroll": "heads_per_unroll",
    "num_cascade_stages": "stages",
}
HERDS = (("herd_m", "herd_n"), ("herd_x", "herd_y"))
# Ops of the table without a kernel here: inputs and core function, for the timing model alone.
STREAMS = {"gelu": (1, "gelu_tile"), "layernorm": (1, "layer_norm_row")}
NOT_FITTED = {"ab", "anomaly", "ambiguous"}


def load(path: Path = TABLE) -> list[dict[str, Any]]:
    """The records of a file of measurements."""
    return [dict(record) for record in _records(path, path.stat().st_mtime_ns)]


@functools.cache
def _records(path: Path, mtime_ns: int) -> tuple[dict[str, Any], ...]:
    import yaml

    with path.open() as stream:
        table = yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tuple(table["records"])


def translate(row: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """(op, shape, tile) in our names, or None where no kernel of ours does that op."""
    if row["op"] not in OPS:
        return None
    op, fields, constants = OPS[row["op"]]
    contract = kernels.contract(op)
    shape = {ours: row[theirs] for theirs, ours in fields.items()} | constants
    given = rename(row["config"], contract.TILE_FIELDS)
    if "method" in row:
        given["method"] = row["method"]
    if row["op"] == "bias_add":
        given.setdefault("tile_n", row["N"])
    return op, shape, {name: given[name] for name in contract.TILE_FIELDS if name in given}


def rename(fields: Mapping[str, Any], tile_fields: tuple[str, ...]) -> dict[str, Any]:
    """Fields with our names for theirs; columns and rows of a herd become one field."""
    given = {TILES.get(name, name): value for name, value in fields.items()}
    for cols, rows in HERDS:
        if cols in given and cols not in tile_fields and "herd" in tile_fields:
            given["herd"] = (given.pop(cols), given.pop(rows, 1))
    return given


def plan(row: Mapping[str, Any]) -> TilePlan | None:
    """The plan of a measured kernel, or None (dispatches and models have none)."""
    if row["op"] in STREAMS:
        return _stream(row)
    named = translate(row)
    if named is None:
        return None
    op, shape, tile = named
    return kernels.contract(op).plan(shape, tile)


def predict(row: Mapping[str, Any], plan: TilePlan, device: Device) -> float:
    """Predicted time of a measured kernel in the regime in which it was measured, microseconds.

    `elf-insitu` rows are the slope of replicated launches: no dispatch floor is in them.
    """
    regime = str(row.get("regime", "xclbin"))
    time = timing.predict_dispatch([plan], device, "elf" if regime.startswith("elf") else "xclbin")
    return time.us if regime == "elf-insitu" else time.host_us


def _stream(row: Mapping[str, Any]) -> TilePlan:
    """One flat stream in and one out through a core function."""
    inputs, function = STREAMS[row["op"]]
    config = row["config"]
    cols, rows = config["herd_x"], config.get("herd_y", 1)
    total = row["N"] * row.get("M", 1)
    tile = config.get("tile_n", row["N"])
    place = (var("i") * (cols * rows) + X * rows + Y) * tile
    dense = (1,)
    names = [f"in{n}" for n in range(inputs)]
    loads = tuple(
        Copy(Access(n, place, dense), Access(n + "_l1", strides=dense), (tile,)) for n in names
    )
    call = Call(function, tuple(Access(n + "_l1") for n in (*names, "out")), elements=tile)
    store = Copy(Access("out_l1", strides=dense), Access("out", place, dense), (tile,))
    loop = Loop("i", total // (tile * cols * rows), (*loads, call, store))
    tensors = (*(Tensor(n, "in", (total,)) for n in names), Tensor("out", "out", (total,)))
    buffers = tuple(Buffer(n + "_l1", 1, (tile,), depth=2) for n in (*names, "out"))
    core = CoreObject("", (), ((function, ()),))
    launch = Launch(row["op"], tensors, buffers, cols, rows, (loop,), core)
    shape = {"N": row["N"], "M": row.get("M", 1)}
    return TilePlan(row["op"], freeze(shape), freeze(config), tensors, (launch,))


def rows(plan: TilePlan, us: float, mean_rel_l1: float, source: str) -> list[dict[str, Any]]:
    """The record of a kernel measured alone: in the table's names, else one that is not fitted."""
    shape, tile = dict(plan.shape), dict(plan.tile)
    for theirs, (ours, fields, _) in OPS.items():
        if ours != plan.op or not set(fields.values()) <= set(shape):
            continue
        config: dict[str, Any] = {
            next((t for t, o in TILES.items() if o == name), name): value
            for name, value in tile.items()
            if name not in ("herd", "method")
        }
        if "herd" in tile:
            config |= dict(zip(HERDS[0 if ours == "gemm" else 1], _pair(tile["herd"]), strict=True))
        row: dict[str, Any] = {
            "id": ".".join([theirs, *(str(value) for _, value in plan.shape), "bringup"]),
            "op": theirs,
            **{name: shape[field] for name, field in fields.items()},
            "config": config,
            "regime": "elf",
            "latency_us": us,
            "mean_rel_l1": mean_rel_l1,
            "timing": True,
            "role": "table",
            "source": source,
        }
        if "method" in tile:
            row["method"] = tile["method"]
        named = translate(row)
        if named is not None and named[1] == shape and _equal(named[2], tile):
            return [row]
    times = {"latency_us": us, "mean_rel_l1": mean_rel_l1}
    size = ".".join(str(value) for _, value in plan.shape)
    return [unfitted(f"{plan.op}.{size}", plan.launches[0].name, tile, times, source, **shape)]


def unfitted(
    name: str,
    kind: str,
    config: Mapping[str, Any],
    times: Mapping[str, Any],
    source: str,
    **more: Any,
) -> dict[str, Any]:
    """A record of what the table has no op for: kept and shown, nothing is fitted to it."""
    plain = {key: str(value) for key, value in config.items()}
    head = {"id": f"{name}.bringup", "op": f"bringup.{kind}", **more, "config": plain}
    return {**head, "regime": "elf", **times, "timing": True, "role": "anomaly", "source": source}


def _pair(herd: Any) -> tuple[int, int]:
    cols, rows_ = herd
    return int(cols), int(rows_)


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return {k: str(v) for k, v in one.items()} == {k: str(v) for k, v in other.items()}
