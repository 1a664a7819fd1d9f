"""Addition `y[M,N] = a[M,N] + b`; b is [M,N], or one row [N] for all rows of a (`broadcast`).

FP32 sums, truncated to bf16. Without broadcast the operands are one flat stream, dealt out to the
cores in turns of `tile_n`; with it each core takes whole rows in pieces of `tile_n`, and a piece of
b is sent once to all cores. Measured by Xilinx/mlir-air, programming_examples/kernel_registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilegate.plan import (
    Access,
    Axis,
    Buffer,
    Call,
    Copy,
    CoreObject,
    Launch,
    Loop,
    Requirement,
    Tensor,
    TilePlan,
    X,
    Y,
    divides,
    freeze,
    var,
)

SHAPE_FIELDS = ("M", "N", "broadcast")
TILE_FIELDS = ("herd", "tile_n")
TIER = "add"
STACK_BYTES = 1024
LANES = 32
MOST_CORES = 8  # three streams per core: more find no shim channels
MOST_TILE = 4096
BOTH: tuple[Axis, ...] = ("x", "y")
HERDS = ((8, 1), (2, 4), (7, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (1, 1))


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate tiles of a shape; legality is judged elsewhere."""
    dealt, length = _work(shape)
    for herd in HERDS:
        share, rest = divmod(dealt, herd[0] * herd[1])
        if rest:
            continue
        whole = length or share
        for tile_n in range(LANES, min(whole, MOST_TILE) + 1, LANES):
            if whole % tile_n == 0:
                yield {"herd": herd, "tile_n": tile_n}


def _work(shape: Mapping[str, Any]) -> tuple[int, int]:
    """What is dealt out to the cores: (elements, 0) of a flat stream or (rows, their length)."""
    m, n = int(shape["M"]), int(shape["N"])
    return (m, n) if shape["broadcast"] and m > 1 else (m * n, 0)


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What must hold before a plan can be written: divisibility, streams, an even turn count."""
    dealt, length = _work(shape)
    tile_n, cores = tile["tile_n"], tile["herd"][0] * tile["herd"][1]
    found = [
        divides("lanes", LANES, tile_n, "tile_n over the lanes of a vector"),
        Requirement(
            "R-STREAMS", cores <= MOST_CORES, cores, MOST_CORES, "cores", "three streams per core"
        ),
    ]
    if length:
        found.append(divides("M-tiling", cores, dealt, "M over the cores"))
        found.append(divides("N-tiling", tile_n, length, "N over tile_n"))
        return found
    turns = dealt // (tile_n * cores)
    hint = "an odd number of turns was measured to leave most of the output zero"
    found.append(divides("N-tiling", tile_n * cores, dealt, "M * N over tile_n * cores"))
    found.append(
        Requirement("R-PARITY", turns < 2 or turns % 2 == 0, turns, "1 or even", "turns", hint)
    )
    return found


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """Operands a [M,N], b [M,N] or [N], y [M,N], all bf16."""
    dealt, length = _work(shape)
    tile_n, (cols, rows) = tile["tile_n"], tile["herd"]
    cores = cols * rows
    whole = (shape["M"], shape["N"])
    a, y = Tensor("a", "in", whole), Tensor("y", "out", whole)
    b = Tensor("b", "param", whole[1:]) if shape["broadcast"] else Tensor("b", "in", whole)
    turn = var("i") * cores + X * rows + Y
    place = turn * length + var("t") * tile_n if length else turn * tile_n
    b_place, b_over = (var("t") * tile_n, ()) if length else (place, BOTH)
    load_a = Copy(Access("a", place, (1,)), Access("a_l1", strides=(1,)), (tile_n,))
    load_b = Copy(Access("b", b_place, (1,)), Access("b_l1", strides=(1,)), (tile_n,), b_over)
    add = Call("add_tile", (Access("a_l1"), Access("b_l1"), Access("y_l1")), elements=tile_n)
    store = Copy(Access("y_l1", strides=(1,)), Access("y", place, (1,)), (tile_n,))
    if length:
        over_rows = Loop("i", dealt // cores, (load_a, add, store), "herd")
        body = Loop("t", length // tile_n, (load_b, over_rows), "herd")
    else:
        body = Loop("i", dealt // (tile_n * cores), (load_a, load_b, add, store), "herd")
    buffers = (
        Buffer("a_l1", 1, (tile_n,), depth=2),
        Buffer("b_l1", 1, (tile_n,), per=b_over, depth=2),
        Buffer("y_l1", 1, (tile_n,), depth=2),
    )
    core = CoreObject(
        "add.cc",
        (("TILE", tile_n),),
        (("add_tile", ("const bf16", "const bf16", "bf16")),),
        STACK_BYTES,
    )
    launch = Launch("add", (a, b, y), buffers, cols, rows, (body,), core)
    return TilePlan("add", freeze(shape), freeze(tile), (a, b, y), (launch,))


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Random operands as the published measurements draw them: randn."""
    import numpy as np

    whole = (shape["M"], shape["N"])
    return {
        "a": rng.standard_normal(whole, dtype=np.float32),
        "b": rng.standard_normal(whole[1:] if shape["broadcast"] else whole, dtype=np.float32),
    }


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"y": a + b}."""
    return {"y": operands["a"] + operands["b"]}
