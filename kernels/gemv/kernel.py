"""GEMV `y[M] = W[M,K] @ x[K]`: no block floating point, FP32 accumulation, one cast to bf16.

Each of the `herd_m` columns keeps `tile_m` rows of W in its memory tile and hands `m_input` of
them to its core per call; x is broadcast and sent again for every call. Scheme and limits as
measured by Xilinx/mlir-air, programming_examples/kernel_registry.
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
    divides,
    freeze,
    var,
)

SHAPE_FIELDS = ("M", "K")
TILE_FIELDS = ("herd_m", "tile_m", "m_input")
TIER = "gemv"
STACK_BYTES = 1024
LANES = 64
PANEL_BYTES = 524288  # the published L2 panel of all columns lies in one memory tile
MOST_SENDS = 256  # of x, by the repeat field of one task
MOST_FACTOR = 1023  # what one more descriptor dimension can take over


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate tiles of a shape; legality is judged elsewhere."""
    for herd_m in (8, 4, 2, 1):
        share, rest = divmod(int(shape["M"]), herd_m)
        if rest:
            continue
        for tile_m in (t for t in range(2, min(share, 64) + 1, 2) if share % t == 0):
            for m_input in (i for i in range(1, min(tile_m, 16) + 1) if tile_m % i == 0):
                yield {"herd_m": herd_m, "tile_m": tile_m, "m_input": m_input}


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What must hold before a plan can be written: divisibility, the L2 panel, repeats of x."""
    m, k = shape["M"], shape["K"]
    herd_m, tile_m, m_input = tile["herd_m"], tile["tile_m"], tile["m_input"]
    panel = herd_m * tile_m * (k + 1) * 2
    return [
        divides("M-tiling", tile_m * herd_m, m, "M over tile_m * herd_m"),
        divides("M-input", m_input, tile_m, "tile_m over m_input"),
        divides("K-lanes", LANES, k, "K over the lanes of one multiply-accumulate"),
        divides("R-ALIGN", 2, tile_m, "tile_m: y moves in words of 4 bytes"),
        Requirement(
            "R-L2",
            panel <= PANEL_BYTES,
            panel,
            PANEL_BYTES,
            "bytes",
            "herd_m * tile_m rows of W and their results",
        ),
        _sends(m, herd_m * m_input),
    ]


def _sends(m: int, rows: int) -> Requirement:
    """x is sent M / rows times: within the repeat field, alone or after taking out one factor."""
    sends = max(1, m // rows) if rows > 0 else 1
    ok = any(
        sends % factor == 0 and sends // factor <= MOST_SENDS
        for factor in range(1, MOST_FACTOR + 1)
    )
    hint = f"{sends} sends of x have no factor up to {MOST_FACTOR} that leaves {MOST_SENDS} or less"
    return Requirement(
        "R-REPEAT", ok, sends, f"{MOST_SENDS} times a factor", "sends", "" if ok else hint
    )


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """Operands W [M,K], x [K], y [M], all bf16."""
    m, k = shape["M"], shape["K"]
    cols, tile_m, m_input = tile["herd_m"], tile["tile_m"], tile["m_input"]
    w, x, y = Tensor("W", "param", (m, k)), Tensor("x", "in", (k,)), Tensor("y", "out", (m,))
    first = (var("i") * cols + X) * tile_m
    buffers = (
        Buffer("W_l2", 2, (tile_m, k), per=("x",)),
        Buffer("y_l2", 2, (tile_m,), per=("x",)),
        Buffer("W_l1", 1, (m_input, k), per=("x",)),
        Buffer("x_l1", 1, (k,), per=()),
        Buffer("y_l1", 1, (tile_m,), per=("x",)),
    )
    load = Copy(
        Access("W", first * k, (k, 1)), Access("W_l2", strides=(k, 1)), (tile_m, k), over=("x",)
    )
    send = Copy(Access("x", strides=(1,)), Access("x_l1", strides=(1,)), (k,), over=())
    feed = Copy(
        Access("W_l2", var("j") * (m_input * k), (k, 1)),
        Access("W_l1", strides=(k, 1)),
        (m_input, k),
        over=("x",),
    )
    multiply = Call(
        "gemv_rows",
        (Access("W_l1"), Access("x_l1"), Access("y_l1", var("j") * m_input)),
        macs=m_input * k,
    )
    drain = Copy(Access("y_l1", strides=(1,)), Access("y_l2", strides=(1,)), (tile_m,), over=("x",))
    store = Copy(Access("y_l2", strides=(1,)), Access("y", first, (1,)), (tile_m,), over=("x",))
    steps = Loop("j", tile_m // m_input, (send, feed, multiply), "herd")
    body = Loop("i", m // (tile_m * cols), (load, steps, drain, store))
    core = CoreObject(
        "gemv.cc",
        (("DIM_K", k), ("M_INPUT", m_input)),
        (("gemv_rows", ("const bf16", "const bf16", "bf16")),),
        STACK_BYTES,
    )
    launch = Launch("gemv", (w, x, y), buffers, cols, 1, (body,), core)
    return TilePlan("gemv", freeze(shape), freeze(tile), (w, x, y), (launch,))


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Random operands as the published measurements draw them: randn * 4."""
    import numpy as np

    four = np.float32(4.0)
    return {
        "W": rng.standard_normal((shape["M"], shape["K"]), dtype=np.float32) * four,
        "x": rng.standard_normal(shape["K"], dtype=np.float32) * four,
    }


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"y": W @ x}."""
    return {"y": operands["W"] @ operands["x"]}
