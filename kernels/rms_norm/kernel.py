"""RMSNorm with weight, `y = x / sqrt(mean(x^2) + eps) * weight`, over M rows of N values.

Whole rows go to the cores in turns; the weight is sent once to all of them. The sum of squares and
its reciprocal root are FP32; the root and both products are truncated to bf16. Measured by
Xilinx/mlir-air, programming_examples/kernel_registry.
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

SHAPE_FIELDS = ("M", "N", "eps")
TILE_FIELDS = ("herd",)
TIER = "rms_norm"
STACK_BYTES = 1024
LANES = 16
MOST_CORES = 8  # three streams per core: more find no shim channels
HERDS = ((8, 1), (2, 4), (7, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (1, 1))


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate herds: those whose cores take equally many rows."""
    for herd in HERDS:
        if shape["M"] % (herd[0] * herd[1]) == 0:
            yield {"herd": herd}


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What must hold before a plan can be written: divisibility and streams."""
    cores = tile["herd"][0] * tile["herd"][1]
    hint = "three streams per core"
    return [
        divides("M-tiling", cores, shape["M"], "M over the cores"),
        divides("lanes", LANES, shape["N"], "N over the lanes of a vector"),
        Requirement("R-STREAMS", cores <= MOST_CORES, cores, MOST_CORES, "cores", hint),
    ]


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """Operands x [M,N], weight [N], y [M,N], all bf16."""
    m, n = shape["M"], shape["N"]
    cols, rows = tile["herd"]
    tensors = (
        Tensor("x", "in", (m, n)),
        Tensor("weight", "param", (n,)),
        Tensor("y", "out", (m, n)),
    )
    place = (var("i") * (cols * rows) + X * rows + Y) * n
    weight = Copy(Access("weight", strides=(1,)), Access("weight_l1", strides=(1,)), (n,), over=())
    turn = (
        Copy(Access("x", place, (1,)), Access("x_l1", strides=(1,)), (n,)),
        Call("rms_norm_row", (Access("x_l1"), Access("weight_l1"), Access("y_l1")), elements=n),
        Copy(Access("y_l1", strides=(1,)), Access("y", place, (1,)), (n,)),
    )
    buffers = (
        Buffer("x_l1", 1, (n,), depth=2),
        Buffer("weight_l1", 1, (n,), per=()),
        Buffer("y_l1", 1, (n,), depth=2),
    )
    core = CoreObject(
        "rms_norm.cc",
        (("WIDTH", n), ("EPS", f"{float(shape['eps'])!r}f")),
        (("rms_norm_row", ("const bf16", "const bf16", "bf16")),),
        STACK_BYTES,
    )
    body = (weight, Loop("i", m // (cols * rows), turn, "herd"))
    launch = Launch("rms_norm", tensors, buffers, cols, rows, body, core)
    return TilePlan("rms_norm", freeze(shape), freeze(tile), tensors, (launch,))


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Random operands as the published measurements draw them: randn."""
    import numpy as np

    return {
        "x": rng.standard_normal((shape["M"], shape["N"]), dtype=np.float32),
        "weight": rng.standard_normal(shape["N"], dtype=np.float32),
    }


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"y": x / sqrt(mean(x^2) + eps) * weight}."""
    import numpy as np

    x = operands["x"]
    mean = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32)
    return {"y": x / np.sqrt(mean + np.float32(shape["eps"])) * operands["weight"]}
