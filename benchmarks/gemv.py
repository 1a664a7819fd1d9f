"""Emulated GEMV against the memory bandwidth that a plain read reaches: one run, in turns.

    python benchmarks/gemv.py [--threads N] [--repeat N] [MxK ...]

The ratio is the bytes of W per second of the emulated GEMV over those of the read, on the same
memory and threads. The read is a vectorised sum in C, compiled by the compiler of the dispatches.
Each call works on another of several matrices, so that none stays in the CPU's caches.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gemm import in_turns

from tilegate import compile as compiling
from tilegate import device, dispatch, kernels, planner, solo
from tilegate.store import Store

SHAPES = ("1536x576", "576x1536", "2048x2048", "8192x2048", "2560x9728", "16384x2560")
SPREAD = 256 << 20  # bytes of all matrices together, well over any cache
READ = r"""
#include <stdint.h>
typedef uint64_t lane __attribute__((vector_size(64)));
uint64_t read_all(const lane *data, long count) {
  lane a = {0}, b = {0}, c = {0}, d = {0};
  for (long i = 0; i + 4 <= count; i += 4) {
    a ^= data[i]; b ^= data[i + 1]; c ^= data[i + 2]; d ^= data[i + 3];
  }
  a ^= b ^ c ^ d;
  uint64_t all = 0;
  for (int i = 0; i < 8; ++i) all ^= a[i];
  return all;
}
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="MxK")
    parser.add_argument("--threads", type=int, default=0, help="default: the cores at hand")
    parser.add_argument("--repeat", type=int, default=9, help="turns, default %(default)s")
    options = parser.parse_args(argv)
    threads = options.threads or len(os.sched_getaffinity(0))
    library = _reader()
    print(f"{threads} threads, best of {options.repeat}")
    print(f"{'M x K':>14}  {'emulated':>10}  {'plain read':>10}  {'ratio':>5}")
    for text in options.shapes:
        m, k = (int(word) for word in text.split("x"))
        copies = max(1, SPREAD // (2 * m * k))
        gemv, weights = _emulated(m, k, copies, threads)
        ours, theirs = in_turns(gemv, _read(library, weights, threads), options.repeat)
        moved = copies * 2 * m * k / 1e9
        print(
            f"{m:>6} x {k:>5}  {moved / ours:5.1f} GB/s  {moved / theirs:5.1f} GB/s"
            f"  {theirs / ours:5.2f}"
        )
    return 0


def _emulated(m: int, k: int, copies: int, threads: int) -> tuple[Callable[[], None], Any]:
    """A function that multiplies by `copies` matrices one after the other, and their memory."""
    import numpy as np

    shape = {"M": m, "K": k}
    tile = planner.choose("gemv", shape, "auto", device.load())
    plan = kernels.contract("gemv").plan(shape, tile)
    library = dispatch.load(solo.build(plan, Store()).file("dispatch.so"))
    raw = np.zeros(copies * m * k + 32, np.uint16)
    start = -raw.ctypes.data % 64 // 2
    weights = raw[start : start + copies * m * k]
    weights[:] = 0x3C00 + np.arange(weights.size, dtype=np.uint32) % 251
    x, y = np.full(k, 0x3C00, np.uint16), np.zeros(m, np.uint16)

    def run() -> None:
        for copy in range(copies):
            pointers = (ctypes.c_void_p * 3)(
                weights.ctypes.data + copy * 2 * m * k, x.ctypes.data, y.ctypes.data
            )
            status = library.tilegate_run(pointers, 3, threads)
            assert status == 0, f"the dispatch returned {status}"
        assert y.any()

    return run, weights


def _reader() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as place:
        source, library = Path(place, "read.c"), Path(place, "read.so")
        source.write_text(READ)
        flags = ["-x", "c", "-O3", "-march=native", "-shared", "-fPIC"]
        command = [*compiling.toolchain().command, *flags, str(source), "-o", str(library)]
        compiling.execute(command, "read")
        loaded = ctypes.CDLL(str(library))
    loaded.read_all.argtypes = (ctypes.c_void_p, ctypes.c_long)
    loaded.read_all.restype = ctypes.c_uint64
    return loaded


def _read(library: ctypes.CDLL, data: Any, threads: int) -> Callable[[], None]:
    """Read all of `data`, a share per thread; ctypes lets them run at the same time."""
    share = data.nbytes // threads // 64

    def run() -> None:
        others = [
            threading.Thread(
                target=library.read_all, args=(data.ctypes.data + i * share * 64, share)
            )
            for i in range(1, threads)
        ]
        for other in others:
            other.start()
        library.read_all(data.ctypes.data, share)
        for other in others:
            other.join()

    return run


if __name__ == "__main__":
    sys.exit(main())
