"""Emulated GEMM against torch's FP32 matmul: the same shapes and threads, one run, in turns.

    python benchmarks/gemm.py [--threads N] [--repeat N] [MxKxN ...]

The ratio is torch's time over the emulation's: 1.0 means equally fast. What is timed is the linked
dispatch as it ships: it walks its plan, block floating point included, on operands in its layout.
Both sides take the best of `repeat` turns, since this is a question about code, not about load.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilegate import device, dispatch, kernels, planner, solo
from tilegate.store import Store

SHAPES = ("256x576x576", "256x576x1536", "256x1536x576", "256x2048x2048", "512x2048x8192")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="MxKxN")
    parser.add_argument("--threads", type=int, default=0, help="default: the cores at hand")
    parser.add_argument("--repeat", type=int, default=25, help="turns, default %(default)s")
    options = parser.parse_args(argv)
    threads = options.threads or len(os.sched_getaffinity(0))
    print(f"{threads} threads, best of {options.repeat}")
    print(f"{'M x K x N':>18}  {'method':10}  {'emulated':>10}  {'torch FP32':>10}  {'ratio':>5}")
    for text in options.shapes:
        m, k, n = (int(word) for word in text.split("x"))
        tile, emulated = _emulated(m, k, n, threads)
        ours, theirs = in_turns(emulated, _torch(m, k, n, threads), options.repeat)
        print(
            f"{m:>6} x {k:>4} x {n:>4}  {tile['method']:10}  {ours * 1e3:7.2f} ms"
            f"  {theirs * 1e3:7.2f} ms  {theirs / ours:5.2f}"
        )
    return 0


def _emulated(m: int, k: int, n: int, threads: int) -> tuple[dict[str, Any], Callable[[], None]]:
    """The planner's tile, and a function that runs its dispatch once."""
    import numpy as np

    shape = {"M": m, "K": k, "N": n}
    tile = planner.choose("gemm", shape, "auto", device.load())
    contract = kernels.contract("gemm")
    plan = contract.plan(shape, tile)
    library = dispatch.load(solo.build(plan, Store()).file("dispatch.so"))
    operands = contract.inputs(shape, np.random.default_rng(0))
    arrays = []
    for tensor in plan.tensors:
        value = np.asarray(operands.get(tensor.name, np.zeros(tensor.shape)), np.float32)
        raw = value if tensor.dtype == "f32" else (value.view(np.uint32) >> 16).astype(np.uint16)
        arrays.append(np.ascontiguousarray(raw))
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))

    def run() -> None:
        status = library.tilegate_run(pointers, len(arrays), threads)
        assert status == 0, f"the dispatch returned {status}"
        assert arrays[2].any()

    return tile, run


def _torch(m: int, k: int, n: int, threads: int) -> Callable[[], None]:
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(m, k), torch.randn(k, n)
    out = torch.empty(m, n)

    def run() -> None:
        torch.mm(a, b, out=out)

    return run


def in_turns(
    one: Callable[[], None], other: Callable[[], None], repeat: int
) -> tuple[float, float]:
    """Best seconds of each, after one call to warm up."""
    best = [float("inf"), float("inf")]
    for turn in range(repeat + 1):
        for index, call in enumerate((one, other)):
            begun = time.perf_counter()
            call()
            if turn:
                best[index] = min(best[index], time.perf_counter() - begun)
    return best[0], best[1]


if __name__ == "__main__":
    sys.exit(main())
