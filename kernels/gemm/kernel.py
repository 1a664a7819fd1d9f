"""GEMM `C[M,N] = A[M,K] @ B[K,N]` on the matrix unit (bf16 through block floating point).

A is split over the columns of the herd and broadcast along each column, B over the rows and
broadcast along each row; C stays in L1 over the whole K loop. Methods differ in what happens to
the FP32 accumulator (measured by Xilinx/mlir-air, programming_examples/kernel_registry):

    external    FP32 output, nothing happens to it
    drain       cast once to bf16 in L1, nearest even
    fused-cast  FP32 to L3, then a second launch that casts to bf16 and truncates
    direct      the running sum is kept in bf16, rounded after every slice of tile_k_l1
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

SHAPE_FIELDS = ("M", "K", "N")
TILE_FIELDS = ("tile_m", "tile_k_l2", "tile_k_l1", "tile_n", "herd", "method")
METHODS = ("fused-cast", "drain", "direct", "external")
TIER = "gemm"
STACK_BYTES = 1024
CAST_TILE = 2048
HERDS = ((8, 4), (6, 4), (4, 4), (4, 3), (4, 2), (2, 4), (2, 2), (4, 1))


def tier(tile: Mapping[str, Any]) -> str:
    """Name of the tolerance tier in conf/gate for this tile's method."""
    return "gemm_direct" if tile["method"] == "direct" else TIER


def _divisors(value: int, step: int, most: int) -> list[int]:
    return [d for d in range(step, min(value, most) + 1, step) if value % d == 0]


def tile_space(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Candidate tiles of a shape; legality is judged elsewhere."""
    m, k, n = int(shape["M"]), int(shape["K"]), int(shape["N"])
    for cols, rows in HERDS:
        if m % cols or n % rows:
            continue
        for tile_m in _divisors(m // cols, 16, 64):
            for tile_n in _divisors(n // rows, 16, 256):
                for tile_k_l1 in (32, 48, 64):
                    for tile_k_l2 in _divisors(k, tile_k_l1, 1024):
                        for method in METHODS[:3]:
                            yield {
                                "tile_m": tile_m,
                                "tile_k_l2": tile_k_l2,
                                "tile_k_l1": tile_k_l1,
                                "tile_n": tile_n,
                                "herd": (cols, rows),
                                "method": method,
                            }


def requirements(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> list[Requirement]:
    """What must hold before a plan can be written: divisibility and microkernel granularity."""
    cols, rows = tile["herd"]
    found = [
        divides("M-tiling", tile["tile_m"] * cols, shape["M"], "M over tile_m * herd columns"),
        divides("N-tiling", tile["tile_n"] * rows, shape["N"], "N over tile_n * herd rows"),
        divides("K-tiling-L2", tile["tile_k_l2"], shape["K"], "K over tile_k_l2"),
        divides("K-tiling-L1", tile["tile_k_l1"], tile["tile_k_l2"], "tile_k_l2 over tile_k_l1"),
        divides("R-MMUL", 16, tile["tile_m"], "tile_m"),
        divides("R-MMUL", 16, tile["tile_n"], "tile_n"),
        divides("R-MMUL", 8, tile["tile_k_l1"], "tile_k_l1"),
    ]
    if tile["method"] == "fused-cast":
        size = shape["M"] * shape["N"]
        found.append(divides("cast-tiling", _cast_tile(size) * 8, size, "cast launch"))
    return found


def _cast_tile(size: int) -> int:
    """Elements per core and step of the cast launch: the largest that covers the output evenly."""
    for tile in (CAST_TILE, 1024, 512, 256, 128, 64, 32):
        if size % (8 * tile) == 0:
            return tile
    return 16


def plan(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """Operands A [M,K] bf16, B [K,N] bf16, C [M,N] bf16 (FP32 for `external`)."""
    method = tile["method"]
    out = "f32" if method == "external" else "bf16"
    a = Tensor("A", "in", (shape["M"], shape["K"]))
    b = Tensor("B", "param", (shape["K"], shape["N"]))
    c = Tensor("C", "out", (shape["M"], shape["N"]), out)
    if method == "fused-cast":
        acc = Tensor("C_f32", "scratch", (shape["M"], shape["N"]), "f32")
        launches: tuple[Launch, ...] = (
            _matmul(shape, tile, (a, b, acc), "f32"),
            _cast(acc, c),
        )
        tensors: tuple[Tensor, ...] = (a, b, c, acc)
    else:
        launches = (_matmul(shape, tile, (a, b, c), "bf16" if method == "direct" else "f32"),)
        tensors = (a, b, c)
    return TilePlan("gemm", freeze(shape), freeze(tile), tensors, launches)


def _matmul(
    shape: Mapping[str, Any],
    tile: Mapping[str, Any],
    tensors: tuple[Tensor, Tensor, Tensor],
    accumulator: str,
) -> Launch:
    tm, tk2, tk1, tn = tile["tile_m"], tile["tile_k_l2"], tile["tile_k_l1"], tile["tile_n"]
    cols, rows = tile["herd"]
    functions: list[tuple[str, tuple[str, ...]]] = [
        ("gemm_zero", (accumulator,)),
        ("gemm_matmul", ("const bf16", "const bf16", accumulator)),
    ]
    drained: tuple[Call, ...] = ()
    if tile["method"] == "drain":
        functions.append(("gemm_drain", ("const f32", "bf16")))
        drained = (Call("gemm_drain", (Access("C_l1"), Access("C_out")), elements=tm * tn),)

    load_a, load_b, tile_a, tile_b = _inward(shape, tile)
    multiply = Call(
        "gemm_matmul", (Access("A_l1"), Access("B_l1"), Access("C_l1")), macs=tm * tk1 * tn
    )
    inner = Loop("k1", tk2 // tk1, (tile_a, tile_b, multiply), "herd")
    outer = Loop("k2", shape["K"] // tk2, (load_a, load_b, inner), "segment")
    zero = Call("gemm_zero", (Access("C_l1"),), elements=tm * tn)
    outward = _outward(shape, tile, tensors[2])
    per_n = Loop("n", shape["N"] // (tn * rows), (zero, outer, *drained, *outward))
    per_m = Loop("m", shape["M"] // (tm * cols), (per_n,))
    core = CoreObject(
        "gemm.cc",
        (
            ("TILE_M", tm),
            ("TILE_K", tk1),
            ("TILE_N", tn),
            ("ACCUMULATE_BF16", int(accumulator == "bf16")),
            ("DRAIN", int(tile["method"] == "drain")),
        ),
        tuple(functions),
        STACK_BYTES,
    )
    buffers = _buffers(tile, tensors[2], accumulator)
    return Launch("matmul", tensors, buffers, cols, rows, (per_m,), core)


def _buffers(tile: Mapping[str, Any], c: Tensor, accumulator: str) -> tuple[Buffer, ...]:
    """A by column, B by row, C on every core; `drain` converts into a buffer of its own."""
    tm, tk2, tk1, tn = tile["tile_m"], tile["tile_k_l2"], tile["tile_k_l1"], tile["tile_n"]
    tiled_c = (tn // 8, tm // 8, 8, 8)
    buffers = (
        Buffer("A_l2", 2, (tm, tk2), per=("x",), depth=2),
        Buffer("B_l2", 2, (tk2, tn), per=("y",), depth=2),
        Buffer("A_l1", 1, (tk1 // 8, tm // 8, 8, 8), per=("x",), depth=2, matrix="a"),
        Buffer("B_l1", 1, (tn // 8, tk1 // 8, 8, 8), per=("y",), depth=2, matrix="b"),
        Buffer("C_l1", 1, tiled_c, accumulator),  # type: ignore[arg-type]
        Buffer("C_l2", 2, (tm, tn), c.dtype),
    )
    return (*buffers, Buffer("C_out", 1, tiled_c, "bf16")) if tile["method"] == "drain" else buffers


def _inward(shape: Mapping[str, Any], tile: Mapping[str, Any]) -> tuple[Copy, Copy, Copy, Copy]:
    """A and B into the memory tiles, then into the cores in tiles of 8x8."""
    k, n = shape["K"], shape["N"]
    tm, tk2, tk1, tn = tile["tile_m"], tile["tile_k_l2"], tile["tile_k_l1"], tile["tile_n"]
    cols, rows = tile["herd"]
    load_a = Copy(
        Access("A", (var("m") * cols + X) * (tm * k) + var("k2") * tk2, (k, 1)),
        Access("A_l2", strides=(tk2, 1)),
        (tm, tk2),
        over=("x",),
    )
    load_b = Copy(
        Access("B", var("k2") * (tk2 * n) + (var("n") * rows + Y) * tn, (n, 1)),
        Access("B_l2", strides=(tn, 1)),
        (tk2, tn),
        over=("y",),
    )
    tile_a = Copy(
        Access("A_l2", var("k1") * tk1, (8, 8 * tk2, tk2, 1)),
        Access("A_l1", strides=(tm * 8, 64, 8, 1)),
        (tk1 // 8, tm // 8, 8, 8),
        over=("x",),
    )
    tile_b = Copy(
        Access("B_l2", var("k1") * (tk1 * tn), (8, 8 * tn, tn, 1)),
        Access("B_l1", strides=(tk1 * 8, 64, 8, 1)),
        (tn // 8, tk1 // 8, 8, 8),
        over=("y",),
    )
    return load_a, load_b, tile_a, tile_b


def _outward(shape: Mapping[str, Any], tile: Mapping[str, Any], c: Tensor) -> tuple[Copy, Copy]:
    """The result out of its 8x8 tiles into the memory tile, and to its place in C."""
    n, tm, tn = shape["N"], tile["tile_m"], tile["tile_n"]
    cols, rows = tile["herd"]
    result = "C_out" if tile["method"] == "drain" else "C_l1"
    untile = Copy(
        Access(result, strides=(tm * 8, 64, 8, 1)),
        Access("C_l2", strides=(8, 8 * tn, tn, 1)),
        (tn // 8, tm // 8, 8, 8),
    )
    store = Copy(
        Access("C_l2", strides=(tn, 1)),
        Access(c.name, (var("m") * cols + X) * (tm * n) + (var("n") * rows + Y) * tn, (n, 1)),
        (tm, tn),
    )
    return untile, store


def _cast(acc: Tensor, out: Tensor) -> Launch:
    size = out.elements
    tile = _cast_tile(size)
    i = var("i")
    place = (i * 8 + X) * tile
    body = Loop(
        "i",
        size // (8 * tile),
        (
            Copy(Access(acc.name, place, (1,)), Access("in_l1", strides=(1,)), (tile,), ("x",)),
            Call("gemm_cast", (Access("in_l1"), Access("out_l1")), elements=tile),
            Copy(Access("out_l1", strides=(1,)), Access(out.name, place, (1,)), (tile,), ("x",)),
        ),
    )
    core = CoreObject(
        "cast.cc", (("TILE", tile),), (("gemm_cast", ("const f32", "bf16")),), STACK_BYTES
    )
    buffers = (
        Buffer("in_l1", 1, (tile,), "f32", depth=2),
        Buffer("out_l1", 1, (tile,), "bf16", depth=2),
    )
    return Launch("cast", (acc, out), buffers, 8, 1, (body,), core)


def inputs(shape: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Random operands as the published measurements draw them: randn / sqrt(K)."""
    import numpy as np

    scale = np.float32(1.0 / np.sqrt(shape["K"]))
    return {
        "A": rng.standard_normal((shape["M"], shape["K"]), dtype=np.float32) * scale,
        "B": rng.standard_normal((shape["K"], shape["N"]), dtype=np.float32) * scale,
    }


def reference(shape: Mapping[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 truth: {"C": A @ B}."""
    return {"C": operands["A"] @ operands["B"]}
