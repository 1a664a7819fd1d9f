"""Run one kernel plan alone on the emulated NPU2: numpy arrays in, numpy arrays out.

Kernel gates and the twin use it. The plan is linked as a dispatch of its own through the store, so
what is run here is the same kernel object that the fused dispatches hold.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

from tilegate.dispatch import dispatch_node, load, solo
from tilegate.errors import BrokenTool
from tilegate.plan import TilePlan
from tilegate.store import Artifact, Store


def build(plan: TilePlan, store: Store) -> Artifact:
    """The plan's solo dispatch, with its kernel objects, from the store or made now."""
    node = dispatch_node(solo(plan))
    for need in node.needs:
        store.make(need)
    return store.make(node)


def runner(plan: TilePlan, artifact: Artifact, threads: int = 0) -> Callable[..., dict[str, Any]]:
    """A function of FP32 operands that returns the FP32 outputs; callable any number of times.

    Operands are rounded to the tensor's dtype (bf16: nearest even). Outputs start as NaN, so a
    plan that leaves part of its output unwritten shows.
    """
    import ml_dtypes
    import numpy as np

    dtypes = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "i32": np.int32}
    library = load(artifact.file("dispatch.so"))
    count = threads or os.cpu_count() or 1

    def call(operands: Mapping[str, Any]) -> dict[str, Any]:
        arrays = []
        for tensor in plan.tensors:
            dtype = np.dtype(dtypes[tensor.dtype])
            array = _aligned(tensor.bytes).view(dtype)[: tensor.elements].reshape(tensor.shape)
            if tensor.name in operands:
                array[...] = np.asarray(operands[tensor.name]).reshape(tensor.shape).astype(dtype)
            elif tensor.dtype != "i32":
                array.view(np.uint8)[...] = 0xFF  # NaN, and known as never written
            arrays.append(array)
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        status = library.tilegate_run(pointers, len(arrays), count)
        if status:
            raise BrokenTool(f"solo {plan.op}: the dispatch returned {status}")
        return {
            t.name: a.astype(np.float32)
            for t, a in zip(plan.tensors, arrays, strict=True)
            if t.role in ("out", "inout")
        }

    return call


def _aligned(size: int) -> Any:
    import numpy as np

    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
