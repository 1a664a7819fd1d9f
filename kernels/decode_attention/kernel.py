"""Attention of one new token over the KV cache (decode), grouped-query.

Each core owns one KV head at a time: it streams that head's keys and values in blocks and keeps the
scores, the statistics and the outputs of the group's query heads in FP32. A column of the herd
serves neighbouring KV heads, one per row, so that a row of the cache comes in long bursts. All of
the cache is streamed; blocks beyond the position are not computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tilegate.plan import (
    Access,
    Affine,
    Buffer,
    Call,
    Copy,
    CoreObject,
    Launch,
    Loop,
    Requirement,
    Step,
    Tensor,
    TilePlan,
    X,
    Y,
    divides,
    freeze,
    var,
)

SHAPE_FIELDS = ("context", "heads", "kv_heads", "head_dim")
TILE_FIELDS = ("herd",)
TIER = "decode_attention"
STACK_BYTES = 1024
CHUNK = 4096  # elements of one load of K or V into L1
LANES = 16  # query heads per KV head that one statistics vector holds
POSITION = 16  # int32 words of the position buffer


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate herds of a shape, most cores first."""
    herds = [(c, r) for c in range(1, 9) for r in range(1, 5) if shape["kv_heads"] % (c * r) == 0]
    for herd in sorted(herds, key=lambda h: (-h[0] * h[1], -h[0])):
        yield {"herd": herd}


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What must hold before a plan can be written."""
    cols, rows = tile["herd"]
    d = shape["head_dim"]
    group = shape["heads"] // shape["kv_heads"]
    return [
        divides("DA-GROUP", shape["kv_heads"], shape["heads"], "heads over kv_heads"),
        divides("DA-HERD", cols * rows, shape["kv_heads"], "kv_heads over the herd"),
        Requirement("DA-HEAD-DIM", d in (64, 128), d, "64 or 128", "elements"),
        Requirement("DA-LANES", group <= LANES, group, LANES, "query heads per KV head"),
        divides("DA-BLOCKS", CHUNK // d, shape["context"], "context over a block of keys"),
    ]


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """q, y [heads*head_dim], k_cache, v_cache [context, kv_heads*head_dim] bf16; position [16] i32.

    Element 0 of `position` is the index of the current token: keys 0..position count.
    """
    context, d = shape["context"], shape["head_dim"]
    cols, rows = tile["herd"]
    group = shape["heads"] // shape["kv_heads"]
    narrow = shape["kv_heads"] * d
    tensors = (
        Tensor("q", "in", (shape["heads"] * d,)),
        Tensor("k_cache", "in", (context, narrow)),
        Tensor("v_cache", "in", (context, narrow)),
        Tensor("position", "in", (POSITION,), "i32"),
        Tensor("y", "out", (shape["heads"] * d,)),
    )
    keys = CHUNK // d
    core = CoreObject(
        "decode_attention.cc",
        (
            ("HEAD_DIM", d),
            ("GROUP", group),
            ("KEYS", keys),
            ("SCALE", f"{math.log2(math.e) / math.sqrt(d)!r}f"),
        ),
        _FUNCTIONS,
        STACK_BYTES,
    )
    position = Copy(Access("position", strides=(1,)), _dense("position_l1"), (POSITION,), over=())
    body = (position, _heads(shape, cols, rows))
    launch = Launch("attention", tensors, _buffers(d, group, rows), cols, rows, body, core)
    return TilePlan("decode_attention", freeze(shape), freeze(tile), tensors, (launch,))


_FUNCTIONS = (
    ("da_begin", ("const bf16", "bf16", "f32", "f32")),
    ("da_scores", ("const bf16", "const bf16", "f32", "bf16", "f32", "const i32*", "i32")),
    ("da_accumulate", ("f32", "const bf16", "const bf16", "const f32", "const i32*", "i32")),
    ("da_finish", ("const f32", "const f32", "bf16")),
)


def _dense(name: str) -> Access:
    return Access(name, strides=(1,))


def _buffers(d: int, group: int, rows: int) -> tuple[Buffer, ...]:
    keys = CHUNK // d
    return (
        Buffer("q_l2", 2, (rows, group * d), per=("x",)),
        Buffer("k_l2", 2, (keys, rows * d), per=("x",), depth=2),
        Buffer("v_l2", 2, (keys, rows * d), per=("x",), depth=2),
        Buffer("y_l2", 2, (rows, group * d), per=("x",)),
        # The query, then K and V in turn, through one stream: a core has two.
        Buffer("stream_l1", 1, (CHUNK,), depth=2),
        Buffer("position_l1", 1, (POSITION,), "i32", per=()),
        Buffer("q_l1", 1, (group, d)),
        Buffer("scores_l1", 1, (group, keys), "f32"),
        Buffer("p_l1", 1, (group, keys)),
        Buffer("o_l1", 1, (group, d), "f32"),
        Buffer("state_l1", 1, (3, LANES), "f32"),
        Buffer("y_l1", 1, (group, d)),
    )


def _heads(shape: Mapping[str, Any], cols: int, rows: int) -> Loop:
    """The loop over the KV heads: each trip serves one on every core."""
    d = shape["head_dim"]
    size = shape["heads"] // shape["kv_heads"] * d
    first = (var("head") * cols + X) * rows  # the first KV head of a column
    own = Y * size
    column = (rows * size,)
    outer = Access("q", first * size, (1,))
    begin = tuple(Access(name) for name in ("stream_l1", "q_l1", "o_l1", "state_l1"))
    finish = tuple(Access(name) for name in ("o_l1", "state_l1", "y_l1"))
    steps: tuple[Step, ...] = (
        Copy(outer, _dense("q_l2"), column, over=("x",)),
        Copy(Access("q_l2", own, (1,)), _dense("stream_l1"), (size,)),
        Call("da_begin", begin, elements=2 * size),
        Loop("block", shape["context"] * d // CHUNK, tuple(_block(shape, rows, first)), "segment"),
        Call("da_finish", finish, elements=size),
        Copy(_dense("y_l1"), Access("y_l2", own, (1,)), (size,)),
        Copy(_dense("y_l2"), Access("y", first * size, (1,)), column, over=("x",)),
    )
    return Loop("head", shape["kv_heads"] // (cols * rows), steps)


def _block(shape: Mapping[str, Any], rows: int, first: Affine) -> Iterator[Step]:
    """One block of keys of the column's KV heads: scores, then the output."""
    d = shape["head_dim"]
    keys, narrow = CHUNK // d, shape["kv_heads"] * d
    group = shape["heads"] // shape["kv_heads"]
    key = var("block") * keys
    state, position = Access("state_l1"), Access("position_l1")
    scores = ("q_l1", "stream_l1", "scores_l1", "p_l1")
    for tensor, l2 in (("k_cache", "k_l2"), ("v_cache", "v_l2")):
        yield Copy(
            Access(tensor, key * narrow + first * d, (narrow, 1)),
            Access(l2, strides=(rows * d, 1)),
            (keys, rows * d),
            over=("x",),
        )
    down = Access("stream_l1", strides=(d, 1))
    yield Copy(Access("k_l2", Y * d, (rows * d, 1)), down, (keys, d))
    args = (*(Access(name) for name in scores), state, position, key)
    yield Call("da_scores", args, macs=CHUNK * group, elements=keys * group)
    yield Copy(Access("v_l2", Y * d, (rows * d, 1)), down, (keys, d))
    values = (Access("o_l1"), Access("p_l1"), Access("stream_l1"), state, position, key)
    yield Call("da_accumulate", values, macs=CHUNK * group)


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Random operands: randn, and the last position, so that every key counts."""
    import numpy as np

    cache = (shape["context"], shape["kv_heads"] * shape["head_dim"])
    position = np.zeros(POSITION, np.int32)
    position[0] = shape["context"] - 1
    return {
        "q": rng.standard_normal(shape["heads"] * shape["head_dim"], dtype=np.float32),
        "k_cache": rng.standard_normal(cache, dtype=np.float32),
        "v_cache": rng.standard_normal(cache, dtype=np.float32),
        "position": position,
    }


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"y": softmax(q k^T / sqrt(head_dim)) v} over keys 0..position, per head."""
    import numpy as np

    heads, kv_heads, d = shape["heads"], shape["kv_heads"], shape["head_dim"]
    count = int(operands["position"][0]) + 1
    q = operands["q"].reshape(kv_heads, heads // kv_heads, d)
    k = operands["k_cache"][:count].reshape(count, kv_heads, d).transpose(1, 2, 0)
    v = operands["v_cache"][:count].reshape(count, kv_heads, d).transpose(1, 0, 2)
    scores = q @ k / np.float32(np.sqrt(d))
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return {"y": (weights @ v / weights.sum(axis=2, keepdims=True)).reshape(heads * d)}
