"""What every core function computes, in FP32 on flat arrays; written from the formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Defines = Mapping[str, Any]
LOWEST = np.float32(-1e30)
BLOCK = 64


def rows_of(tiles: Any, rows: int, columns: int) -> Any:
    """Tiles [column][row][8][8] as a matrix [rows, columns] (a copy)."""
    return tiles.reshape(columns // 8, rows // 8, 8, 8).transpose(1, 2, 0, 3).reshape(rows, columns)


def keys_of(tiles: Any, keys: int, depth: int) -> Any:
    """Tiles [key][depth][8][8] as a matrix [keys, depth] (a copy)."""
    return tiles.reshape(keys // 8, depth // 8, 8, 8).transpose(0, 2, 1, 3).reshape(keys, depth)


def tiles_of(matrix: Any) -> Any:
    """The inverse of `rows_of`, flat."""
    rows, columns = matrix.shape
    return matrix.reshape(rows // 8, 8, columns // 8, 8).transpose(2, 0, 1, 3).reshape(-1)


def gemm_zero(d: Defines, c: Any) -> None:
    c[:] = 0


def gemm_matmul(d: Defines, a: Any, b: Any, c: Any) -> None:
    m, k, n = d["TILE_M"], d["TILE_K"], d["TILE_N"]
    c += tiles_of(rows_of(a, m, k) @ rows_of(b, k, n))


def gemm_drain(d: Defines, c: Any, out: Any) -> None:
    out[:] = c


def gemm_cast(d: Defines, source: Any, out: Any) -> None:
    out[:] = source


def gemv_rows(d: Defines, w: Any, x: Any, y: Any) -> None:
    y[: d["M_INPUT"]] = w.reshape(-1, d["DIM_K"]) @ x


def rms_norm_row(d: Defines, x: Any, weight: Any, y: Any) -> None:
    eps = np.float32(str(d["EPS"]).rstrip("f"))
    y[:] = x / np.sqrt(np.mean(x * x) + eps) * weight


def rope_row(d: Defines, x: Any, lut: Any, y: Any) -> None:
    half = d["HEAD_DIM"] // 2
    low, high, cosine, sine = x[:half], x[half:], lut[:half], lut[half:]
    y[:] = np.concatenate([low * cosine - high * sine, low * sine + high * cosine])


def silu_mul_tile(d: Defines, gate: Any, up: Any, y: Any) -> None:
    y[:] = gate / (1 + np.exp(-gate)) * up


def add_tile(d: Defines, a: Any, b: Any, y: Any) -> None:
    y[:] = a + b


def fa_begin(d: Defines, o: Any, top: Any, total: Any) -> None:
    o[:], top[:], total[:] = 0, LOWEST, 0


def _ahead(d: Defines, block: int, column: int) -> int:
    return block - column % int(d["NUM_Q_TILES"])


def _hidden(d: Defines, block: int, column: int) -> bool:
    return bool(d["CAUSAL"]) and _ahead(d, block, column) > 0


def fa_scores(d: Defines, q: Any, k: Any, s: Any, part: int, block: int, column: int) -> None:
    if _hidden(d, block, column):
        return
    depth = d["HEAD_DIM"]
    keys = k.size // depth
    scores = rows_of(q, BLOCK, depth) @ keys_of(k, keys, depth).T
    s[part * keys * BLOCK : (part + 1) * keys * BLOCK] = tiles_of(scores)


def fa_softmax(d: Defines, s: Any, top: Any, total: Any, factor: Any, block: int, col: int) -> None:
    if _hidden(d, block, col):
        return
    scores = rows_of(s, BLOCK, BLOCK)
    if d["CAUSAL"] and _ahead(d, block, col) == 0:
        scores[np.triu_indices(BLOCK, 1)] = LOWEST
    after = np.maximum(top, scores.max(axis=1))
    scale = np.log2(np.e) / np.sqrt(np.float32(d["HEAD_DIM"]))
    factor[:] = np.exp2(scale * (top - after))
    p = np.exp2(scale * (scores - after[:, None]))
    top[:] = after
    total[:] = total * factor + p.sum(axis=1)
    s[:] = tiles_of(p)


def fa_accumulate(
    d: Defines, o: Any, p: Any, v: Any, factor: Any, part: int, block: int, column: int
) -> None:
    if _hidden(d, block, column):
        return
    own = o[part * v.size : (part + 1) * v.size]
    update = rows_of(p, BLOCK, BLOCK) @ rows_of(v, BLOCK, BLOCK)
    own[:] = tiles_of(rows_of(own, BLOCK, BLOCK) * factor[:, None] + update)


def fa_merge_statistics(
    d: Defines, top: Any, total: Any, top_above: Any, total_above: Any, r: Any, r_above: Any
) -> None:
    both = np.maximum(top, top_above)
    scale = np.log2(np.e) / np.sqrt(np.float32(d["HEAD_DIM"]))
    r[:], r_above[:] = np.exp2(scale * (top - both)), np.exp2(scale * (top_above - both))
    total[:] = total * r + total_above * r_above
    top[:] = both


def fa_merge(d: Defines, o: Any, above: Any, r: Any, r_above: Any) -> None:
    own = o[: above.size]
    here, there = (rows_of(x, BLOCK, BLOCK) for x in (own, above))
    own[:] = tiles_of(here * r[:, None] + there * r_above[:, None])


def fa_finish(d: Defines, o: Any, total: Any) -> None:
    o[:] = tiles_of(rows_of(o, BLOCK, d["HEAD_DIM"]) / total[:, None])


def da_begin(d: Defines, stream: Any, q: Any, o: Any, state: Any) -> None:
    q[:], o[:] = stream[: q.size], 0
    state[:] = 0
    state[:16] = LOWEST


def da_scores(
    d: Defines, q: Any, k: Any, s: Any, p: Any, state: Any, position: Any, first: int
) -> None:
    depth, keys, group = d["HEAD_DIM"], d["KEYS"], d["GROUP"]
    valid = min(max(int(position[0]) - first + 1, 0), keys)
    if not valid:
        return
    scale = np.log2(np.e) / np.sqrt(np.float32(depth))
    scores = q.reshape(group, depth) @ k.reshape(keys, depth).T * scale
    scores[:, valid:] = LOWEST
    top, total, factor = (state[i * 16 : i * 16 + group] for i in range(3))
    after = np.maximum(top, scores.max(axis=1))
    factor[:] = np.exp2(top - after)
    weights = np.exp2(scores - after[:, None])
    p[:] = weights.reshape(-1)
    total[:] = total * factor + weights.sum(axis=1)
    top[:] = after


def da_accumulate(
    d: Defines, o: Any, p: Any, v: Any, state: Any, position: Any, first: int
) -> None:
    depth, keys, group = d["HEAD_DIM"], d["KEYS"], d["GROUP"]
    valid = min(max(int(position[0]) - first + 1, 0), keys)
    if valid:
        own = o.reshape(group, depth)
        own *= state[32 : 32 + group, None]
        own += p.reshape(group, keys)[:, :valid] @ v.reshape(keys, depth)[:valid]


def da_finish(d: Defines, o: Any, state: Any, y: Any) -> None:
    group = d["GROUP"]
    y[:] = (o.reshape(group, -1) / state[16 : 16 + group, None]).reshape(-1)


def functions(objects: Sequence[Mapping[str, Any]]) -> dict[str, Callable[[list[Any]], None]]:
    """Symbol -> function of the call's arguments, for the objects of an emitted module."""
    found = {}
    for entry in objects:
        for what in entry["entries"]:
            function = globals()[what["function"]]
            found[what["symbol"]] = _bound(function, entry["defines"], what["moved"])
    return found


def _bound(function: Any, defines: Defines, moved: list[int]) -> Callable[[list[Any]], None]:
    def call(values: list[Any]) -> None:
        arguments = values[: len(values) - len(moved)]
        for place, offset in zip(moved, values[len(arguments) :], strict=True):
            arguments[place] = arguments[place][offset:]
        function(defines, *arguments)

    return call
