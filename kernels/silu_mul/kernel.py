"""SiLU-and-multiply `y = silu(gate) * up` over N elements (rows and width flattened).

The sigmoid comes from the hardware tanh, `silu(g) = g * (tanh(g / 2) + 1) / 2`, and every step is
truncated to bf16. Measured by Xilinx/mlir-air, programming_examples/kernel_registry.
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

SHAPE_FIELDS = ("N",)
TILE_FIELDS = ("herd", "tile_n")
TIER = "silu_mul"
STACK_BYTES = 1024
LANES = 32
MOST_CORES = 8  # three streams per core: more find no shim channels
MOST_TILE = 4096
HERDS = ((8, 1), (2, 4), (7, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (1, 1))


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate tiles of a shape; legality is judged elsewhere."""
    for herd in HERDS:
        share, rest = divmod(int(shape["N"]), herd[0] * herd[1])
        if rest:
            continue
        for tile_n in range(LANES, min(share, MOST_TILE) + 1, LANES):
            if share % tile_n == 0:
                yield {"herd": herd, "tile_n": tile_n}


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What must hold before a plan can be written: divisibility and streams."""
    cores = tile["herd"][0] * tile["herd"][1]
    hint = "three streams per core"
    return [
        divides("lanes", LANES, tile["tile_n"], "tile_n over the lanes of two vectors"),
        divides("N-tiling", tile["tile_n"] * cores, shape["N"], "N over tile_n * cores"),
        Requirement("R-STREAMS", cores <= MOST_CORES, cores, MOST_CORES, "cores", hint),
    ]


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """Operands gate [N], up [N], y [N], all bf16."""
    n, tile_n = shape["N"], tile["tile_n"]
    cols, rows = tile["herd"]
    tensors = (Tensor("gate", "in", (n,)), Tensor("up", "in", (n,)), Tensor("y", "out", (n,)))
    place = (var("i") * (cols * rows) + X * rows + Y) * tile_n
    turn = (
        Copy(Access("gate", place, (1,)), Access("gate_l1", strides=(1,)), (tile_n,)),
        Copy(Access("up", place, (1,)), Access("up_l1", strides=(1,)), (tile_n,)),
        Call(
            "silu_mul_tile",
            (Access("gate_l1"), Access("up_l1"), Access("y_l1")),
            elements=tile_n,
        ),
        Copy(Access("y_l1", strides=(1,)), Access("y", place, (1,)), (tile_n,)),
    )
    buffers = tuple(Buffer(name, 1, (tile_n,), depth=2) for name in ("gate_l1", "up_l1", "y_l1"))
    core = CoreObject(
        "silu_mul.cc",
        (("TILE", tile_n),),
        (("silu_mul_tile", ("const bf16", "const bf16", "bf16")),),
        STACK_BYTES,
    )
    body = Loop("i", n // (tile_n * cols * rows), turn, "herd")
    launch = Launch("silu_mul", tensors, buffers, cols, rows, (body,), core)
    return TilePlan("silu_mul", freeze(shape), freeze(tile), tensors, (launch,))


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Random operands as the published measurements draw them: randn."""
    import numpy as np

    return {name: rng.standard_normal(shape["N"], dtype=np.float32) for name in ("gate", "up")}


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"y": gate * sigmoid(gate) * up}."""
    import numpy as np

    gate = operands["gate"]
    return {"y": gate / (1 + np.exp(-gate)) * operands["up"]}
