"""Rotary position embedding, half-split, on R rows of head_dim values (one row per head and token).

The table holds, for each row, head_dim/2 cosines and then head_dim/2 sines in bf16. Two exact
products, one FP32 sum, one truncation. One row per DMA: with two or four the published kernel does
not place or leaves rows unwritten (Xilinx/mlir-air, programming_examples/kernel_registry).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilegate.plan import (
    Access,
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

SHAPE_FIELDS = ("R", "head_dim")
TILE_FIELDS = ("herd",)
TIER = "rope"
STACK_BYTES = 1024
LANES = 32
MOST_CORES = 8  # three streams per core: more find no shim channels
HERDS = ((8, 1), (2, 4), (7, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (1, 1))


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate herds: those whose cores take equally many rows."""
    for herd in HERDS:
        if shape["R"] % (herd[0] * herd[1]) == 0:
            yield {"herd": herd}


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What must hold before a plan can be written: divisibility and streams."""
    cores = tile["herd"][0] * tile["herd"][1]
    hint = "three streams per core"
    return [
        divides("R-tiling", cores, shape["R"], "R over the cores"),
        divides("lanes", 2 * LANES, shape["head_dim"], "head_dim over the lanes of both halves"),
        Requirement("R-STREAMS", cores <= MOST_CORES, cores, MOST_CORES, "cores", hint),
    ]


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """Operands x, lut and y, all bf16 [R, head_dim]."""
    r, d = shape["R"], shape["head_dim"]
    cols, rows = tile["herd"]
    tensors = (Tensor("x", "in", (r, d)), Tensor("lut", "in", (r, d)), Tensor("y", "out", (r, d)))
    place = (var("i") * (cols * rows) + X * rows + Y) * d
    turn = (
        Copy(Access("x", place, (1,)), Access("x_l1", strides=(1,)), (d,)),
        Copy(Access("lut", place, (1,)), Access("lut_l1", strides=(1,)), (d,)),
        Call("rope_row", (Access("x_l1"), Access("lut_l1"), Access("y_l1")), elements=d),
        Copy(Access("y_l1", strides=(1,)), Access("y", place, (1,)), (d,)),
    )
    buffers = tuple(Buffer(name, 1, (d,), depth=2) for name in ("x_l1", "lut_l1", "y_l1"))
    core = CoreObject(
        "rope.cc",
        (("HEAD_DIM", d),),
        (("rope_row", ("const bf16", "const bf16", "bf16")),),
        STACK_BYTES,
    )
    body = Loop("i", r // (cols * rows), turn, "herd")
    launch = Launch("rope", tensors, buffers, cols, rows, (body,), core)
    return TilePlan("rope", freeze(shape), freeze(tile), tensors, (launch,))


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """x ~ randn; the table of positions 0, 1, 2, ... with theta 10,000."""
    import numpy as np

    r, d = shape["R"], shape["head_dim"]
    frequencies = 10000.0 ** (-np.arange(0, d, 2, dtype=np.float32) / d)
    angles = np.arange(r, dtype=np.float32)[:, None] * frequencies
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return {"x": rng.standard_normal((r, d), dtype=np.float32), "lut": table.astype(np.float32)}


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"y": the two halves of x rotated by the table's angle}."""
    import numpy as np

    half = shape["head_dim"] // 2
    low, high = operands["x"][:, :half], operands["x"][:, half:]
    cos, sin = operands["lut"][:, :half], operands["lut"][:, half:]
    return {"y": np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=1)}
