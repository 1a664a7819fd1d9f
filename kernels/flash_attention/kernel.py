"""Flash attention over a whole prompt (prefill), grouped-query, optionally causal.

The structure is that of Xilinx/mlir-air, programming_examples/flash_attention: every column of the
herd holds 64 query rows of one head, the four rows of a column are cascade stages that take a
quarter of the keys each, in blocks of 64, and their results are merged down the column. A launch
iteration covers `lqp` query rows of `heads_per_unroll` heads. Blocks that a causal mask
hides are loaded like the others, as published; the cores compute nothing for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tilegate.plan import (
    Access,
    Affine,
    Axis,
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

SHAPE_FIELDS = ("S", "heads", "kv_heads", "head_dim", "causal")
TILE_FIELDS = ("lqp", "lkp", "num_q_tiles", "heads_per_unroll", "stages")
TIER = "flash_attention"
STACK_BYTES = 1024
BLOCK = 64  # query rows of a core, keys of a block
STAGES = 4  # cascade: the four rows of a column
CHUNK = 4096  # elements of one load of K or V into L1
HEADS_PER_UNROLL = (1, 2)
REFERENCE_ROWS = 1024


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate tiles of a shape, widest herd first."""
    for heads in HEADS_PER_UNROLL:
        for tiles in (8, 4, 2, 1):
            fits = tiles * heads <= 8 and shape["heads"] % heads == 0
            if fits and shape["S"] % (BLOCK * tiles) == 0:
                yield {
                    "lqp": BLOCK * tiles,
                    "lkp": BLOCK,
                    "num_q_tiles": tiles,
                    "heads_per_unroll": heads,
                    "stages": STAGES,
                }


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What the published kernel needs; each broken one was measured to hang or not to place."""
    lqp, tiles, unrolled = tile["lqp"], tile["num_q_tiles"], tile["heads_per_unroll"]
    cols = tiles * unrolled
    return [
        _equal("FA-TILE-Q", lqp, BLOCK * tiles, f"lqp is {BLOCK} query rows times num_q_tiles"),
        _equal("FA-LKP", tile["lkp"], BLOCK, "mask and L1 need square blocks of 64"),
        _equal("R-CASC", tile["stages"], STAGES, "the cascade spans the four rows of a column"),
        _within("R-SHIM-CH", unrolled, 2, "heads_per_unroll: each head has streams of its own"),
        _within("R-HERD", cols, 8, "columns = num_q_tiles * heads_per_unroll"),
        divides("FA-Q-CHUNKS", lqp, shape["S"], "S over lqp"),
        divides("FA-K-BLOCKS", BLOCK * STAGES, shape["S"], "S over lkp * stages"),
        divides("FA-GROUP", shape["kv_heads"], shape["heads"], "heads over kv_heads"),
        divides("FA-UNROLL", unrolled, shape["heads"], "heads over heads_per_unroll"),
        Requirement(
            "FA-HEAD-DIM",
            shape["head_dim"] in (64, 128),
            shape["head_dim"],
            "64 or 128",
            "elements",
            "the output and one load of K and V must fit L1",
        ),
    ]


def _equal(rule: str, used: int, needed: int, hint: str) -> Requirement:
    return Requirement(rule, used == needed, used, needed, "", hint)


def _within(rule: str, used: int, most: int, hint: str) -> Requirement:
    return Requirement(rule, 1 <= used <= most, used, most, "", hint)


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """q, y [S, heads*head_dim], k, v [S, kv_heads*head_dim], all bf16, heads side by side.

    Raises ValueError when a requirement does not hold: the core's code is written for them.
    """
    broken = [r.rule for r in requirements(shape, tile) if not r.ok]
    if broken:
        raise ValueError(f"flash_attention: {', '.join(broken)} not met")
    s, d = shape["S"], shape["head_dim"]
    wide, narrow = shape["heads"] * d, shape["kv_heads"] * d
    tensors = (
        Tensor("q", "in", (s, wide)),
        Tensor("k", "in", (s, narrow)),
        Tensor("v", "in", (s, narrow)),
        Tensor("y", "out", (s, wide)),
    )
    unrolled = tile["heads_per_unroll"]
    core = CoreObject(
        "flash_attention.cc",
        (
            ("HEAD_DIM", d),
            ("NUM_Q_TILES", tile["num_q_tiles"]),
            ("CAUSAL", int(shape["causal"])),
            ("SCALE", _scale(d)),
        ),
        _FUNCTIONS,
        STACK_BYTES,
    )
    heads = _Heads(shape, unrolled)
    launch = Launch(
        "attention",
        tensors,
        _buffers(d, heads),
        tile["num_q_tiles"] * unrolled,
        STAGES,
        (_iterations(shape, tile, heads),),
        core,
    )
    return TilePlan("flash_attention", freeze(shape), freeze(tile), tensors, (launch,))


_FUNCTIONS = (
    ("fa_begin", ("bf16", "bf16", "bf16")),
    ("fa_scores", ("const bf16", "const bf16", "bf16", "i32", "i32", "i32")),
    ("fa_softmax", ("bf16", "bf16", "bf16", "bf16", "i32", "i32")),
    ("fa_accumulate", ("bf16", "const bf16", "const bf16", "const bf16", "i32", "i32", "i32")),
    (
        "fa_merge_statistics",
        ("bf16", "bf16", "const bf16", "const bf16", "bf16", "bf16"),
    ),
    ("fa_merge", ("bf16", "const bf16", "const bf16", "const bf16")),
    ("fa_finish", ("bf16", "bf16")),
)


def _scale(head_dim: int) -> str:
    """log2(e) / sqrt(head_dim), rounded to bf16 (8 significant bits), as a C++ literal."""
    mantissa, exponent = math.frexp(math.log2(math.e) / math.sqrt(head_dim))
    return f"{math.ldexp(round(mantissa * 256), exponent - 8)!r}f"


class _Heads:
    """How loops and columns enumerate the heads, so that the KV head is affine in both.

    Heads unrolled over columns are neighbours in a group where the group allows it (they share K
    and V), else the same member of neighbouring groups.
    """

    def __init__(self, shape: Mapping[str, Any], unrolled: int) -> None:
        group = shape["heads"] // shape["kv_heads"]
        self.unrolled = unrolled
        self.shared = group % unrolled == 0
        within, across = (unrolled, 1) if self.shared else (1, unrolled)
        self.kv_count, self.member_count = shape["kv_heads"] // across, group // within
        self.kv = var("kv") * across
        self.query = self.kv * group + var("member") * within
        self.step = 1 if self.shared else group  # query heads from one unrolled head to the next


def _buffers(d: int, heads: _Heads) -> tuple[Buffer, ...]:
    loaded = 1 if heads.shared else heads.unrolled
    own: tuple[Axis, ...] = ("y",) if heads.shared else ("x", "y")
    rows = (BLOCK,)
    return (
        Buffer("Q_l2", 2, (BLOCK, d), per=("x",)),
        Buffer("K_l2", 2, (loaded, BLOCK, d), per=("y",), depth=2),
        Buffer("V_l2", 2, (loaded, BLOCK, d), per=("y",), depth=2),
        Buffer("Y_l2", 2, (BLOCK, d), per=("x",)),
        Buffer("Q_l1", 1, (d // 8, BLOCK // 8, 8, 8), per=("x",)),
        # K and V come in turn through one stream: a core has two, and Q takes the other.
        Buffer("KV_l1", 1, (CHUNK,), per=own, depth=2),
        # Scores, then probabilities; in the cascade the output of the stage above.
        Buffer("S_l1", 1, (BLOCK // 8, BLOCK // 8, 8, 8)),
        Buffer("O_l1", 1, (d // 8, BLOCK // 8, 8, 8)),
        Buffer("top", 1, rows),
        Buffer("sum", 1, rows),
        Buffer("factor", 1, rows),
        Buffer("top_above", 1, rows),
        Buffer("sum_above", 1, rows),
        Buffer("factor_above", 1, rows),
    )


def _iterations(shape: Mapping[str, Any], tile: Mapping[str, Any], heads: _Heads) -> Loop:
    s, d, tiles = shape["S"], shape["head_dim"], tile["num_q_tiles"]
    chunk = var("chunk")
    blocks = s // BLOCK // STAGES
    begin = Call(
        "fa_begin", (Access("O_l1"), Access("top"), Access("sum")), elements=BLOCK * (d + 2)
    )
    ahead = Y * blocks + var("block") + chunk * -tiles
    steps = (
        *_queries(shape, tile, heads, load=True),
        begin,
        Loop("block", blocks, _block(shape, tile, heads, ahead), "segment"),
        *_cascade(d),
        *_queries(shape, tile, heads, load=False),
    )
    per_chunk = Loop("chunk", s // tile["lqp"], steps)
    return Loop("kv", heads.kv_count, (Loop("member", heads.member_count, (per_chunk,)),))


def _columns(heads: _Heads, tiles: int, unrolled: int) -> dict[str, Any]:
    """The columns of one unrolled head; nothing to say when there is only one."""
    return {} if heads.unrolled == 1 else {"cols": (unrolled * tiles, (unrolled + 1) * tiles)}


def _queries(
    shape: Mapping[str, Any], tile: Mapping[str, Any], heads: _Heads, load: bool
) -> Iterator[Step]:
    """Q from L3 into 8x8 tiles, or the output back: one block of rows per column."""
    d, tiles = shape["head_dim"], tile["num_q_tiles"]
    wide = shape["heads"] * d
    tensor, l2, l1 = ("q", "Q_l2", "Q_l1") if load else ("y", "Y_l2", "O_l1")
    tiled = (512, 64, 8, 1)
    rows = (8, 8 * d, d, 1)
    sizes = (d // 8, BLOCK // 8, 8, 8)
    if not load:
        last = (STAGES - 1, STAGES)
        yield Copy(Access(l1, strides=tiled), Access(l2, strides=rows), sizes, rows=last)
    for unrolled in range(heads.unrolled):
        row = var("chunk") * tile["lqp"] + (X + -unrolled * tiles) * BLOCK
        place = row * wide + (heads.query + unrolled * heads.step) * d
        far, near = Access(tensor, place, (wide, 1)), Access(l2, strides=(d, 1))
        source, target = (far, near) if load else (near, far)
        limits = _columns(heads, tiles, unrolled)
        yield Copy(source, target, (BLOCK, d), over=("x",), **limits)
    if load:
        yield Copy(Access(l2, strides=rows), Access(l1, strides=tiled), sizes, over=("x",))


def _block(
    shape: Mapping[str, Any], tile: Mapping[str, Any], heads: _Heads, ahead: Affine
) -> tuple[Step, ...]:
    """One block of 64 keys: scores, probabilities, output. K and V come in loads of CHUNK."""
    d = shape["head_dim"]
    parts = d // BLOCK
    products = BLOCK * CHUNK
    steps: list[Step] = [*_fetch(shape, heads, "k", "K_l2"), *_fetch(shape, heads, "v", "V_l2")]
    keys = CHUNK // d
    place = (ahead, X)  # tells a core where the block lies from its query rows
    for part in range(parts):
        # tiles [key][depth], each 8 keys x 8 depths: the core transposes them
        sizes, strides = (keys // 8, d // 8, 8, 8), (8 * d, 8, d, 1)
        steps += _pass_down(tile, heads, "K_l2", d, part * CHUNK, sizes, strides)
        args = (Access("Q_l1"), Access("KV_l1"), Access("S_l1"), Affine(part), *place)
        steps.append(Call("fa_scores", args, macs=products))
    softmax = (Access("S_l1"), Access("top"), Access("sum"), Access("factor"), *place)
    steps.append(Call("fa_softmax", softmax, elements=BLOCK * BLOCK))
    for part in range(parts):
        # tiles [column][key], each 8 keys x 8 columns
        sizes, strides = (8, BLOCK // 8, 8, 8), (8, 8 * d, d, 1)
        steps += _pass_down(tile, heads, "V_l2", d, part * BLOCK, sizes, strides)
        places = (Access("O_l1"), Access("S_l1"), Access("KV_l1"), Access("factor"))
        steps.append(Call("fa_accumulate", (*places, Affine(part), *place), macs=products))
    return tuple(steps)


def _fetch(shape: Mapping[str, Any], heads: _Heads, tensor: str, l2: str) -> Iterator[Copy]:
    """A block of keys of each loaded KV head from L3: stage y owns the y-th quarter."""
    d = shape["head_dim"]
    narrow = shape["kv_heads"] * d
    row = (Y * (shape["S"] // BLOCK // STAGES) + var("block")) * BLOCK
    loaded = 1 if heads.shared else heads.unrolled
    yield Copy(
        Access(tensor, row * narrow + heads.kv * d, (d, narrow, 1)),
        Access(l2, strides=(BLOCK * d, d, 1)),
        (loaded, BLOCK, d),
        over=("y",),
    )


def _pass_down(
    tile: Mapping[str, Any],
    heads: _Heads,
    l2: str,
    d: int,
    place: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
) -> Iterator[Copy]:
    """A load of K or V from L2 to the cores of its head, as 8x8 tiles in the order of `sizes`."""
    target = Access("KV_l1", strides=(sizes[1] * 64, 64, 8, 1))
    if heads.shared:
        yield Copy(Access(l2, Affine(place), strides), target, sizes, over=("y",))
        return
    for unrolled in range(heads.unrolled):
        source = Access(l2, Affine(unrolled * BLOCK * d + place), strides)
        yield Copy(source, target, sizes, **_columns(heads, tile["num_q_tiles"], unrolled))


def _cascade(d: int) -> Iterator[Step]:
    """Stage after stage hands its statistics and output down; the last one divides."""
    for stage in range(1, STAGES):
        rows = (stage, stage + 1)

        def receive(
            source: str, target: str, size: int, place: int = 0, rows: tuple[int, int] = rows
        ) -> Copy:
            above = Access(source, Affine(place), (1,), at=(X, Y + -1))
            return Copy(above, Access(target, strides=(1,)), (size,), via="cascade", rows=rows)

        yield receive("top", "top_above", BLOCK)
        yield receive("sum", "sum_above", BLOCK)
        names = ("top", "sum", "top_above", "sum_above", "factor", "factor_above")
        statistics = tuple(Access(name) for name in names)
        yield Call("fa_merge_statistics", statistics, elements=2 * BLOCK, rows=rows)
        for part in range(d // BLOCK):
            place = part * CHUNK
            yield receive("O_l1", "S_l1", CHUNK, place)
            output = Access("O_l1", Affine(place))
            args = (output, Access("S_l1"), Access("factor"), Access("factor_above"))
            yield Call("fa_merge", args, elements=CHUNK, rows=rows)
    last = (STAGES - 1, STAGES)
    yield Call("fa_finish", (Access("O_l1"), Access("sum")), elements=BLOCK * d, rows=last)


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Random operands as the published measurements draw them: randn."""
    import numpy as np

    s, d = shape["S"], shape["head_dim"]
    widths = {"q": shape["heads"] * d, "k": shape["kv_heads"] * d, "v": shape["kv_heads"] * d}
    return {name: rng.standard_normal((s, n), dtype=np.float32) for name, n in widths.items()}


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"y": softmax(q k^T / sqrt(head_dim)) v} head by head."""
    import numpy as np

    s, d = shape["S"], shape["head_dim"]
    group = shape["heads"] // shape["kv_heads"]
    y = np.empty((s, shape["heads"] * d), np.float32)
    for head in range(shape["heads"]):
        own = slice(head * d, (head + 1) * d)
        kv = slice(head // group * d, (head // group + 1) * d)
        for first in range(0, s, REFERENCE_ROWS):  # all scores of a long prompt would fill memory
            rows = slice(first, min(first + REFERENCE_ROWS, s))
            scores = operands["q"][rows, own] @ operands["k"][:, kv].T / np.float32(np.sqrt(d))
            if shape["causal"]:
                scores[np.triu_indices(scores.shape[0], first + 1, s)] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            weights = np.exp(scores, out=scores)
            y[rows, own] = weights @ operands["v"][:, kv] / weights.sum(axis=1, keepdims=True)
    return {"y": y}
