"""Decode attention that ends at the wrong key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding


def diagnose(case: Case) -> Finding:
    """Matches attention up to a neighbouring position, or without the token's own row."""
    if case.kernel != "decode_attention" or "position" not in case.operands or not case.complete:
        return case.finding(False)
    neighbour = case.judge(_positions(case))
    return neighbour if neighbour.matched else case.judge(_lost(case))


def _positions(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    import numpy as np

    from tilegate import kernels

    contract = kernels.contract(case.kernel)
    true = int(np.asarray(case.operands["position"]).ravel()[0])
    for other in (true - 1, true + 1):
        if not 0 <= other < case.shape["context"]:
            continue
        position = np.array(case.operands["position"])
        position.ravel()[0] = other
        made = contract.reference(dict(case.shape), {**case.operands, "position": position})["y"]
        yield f"attention ends at position {other}, the token's is {true}", made, ()


def _lost(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    import numpy as np

    from tilegate import kernels

    true = int(np.asarray(case.operands["position"]).ravel()[0])
    moved = {**case.operands}
    for name in ("k_cache", "v_cache"):
        moved[name] = np.array(case.operands[name])
        moved[name][true] = 0.0
    made = kernels.contract(case.kernel).reference(dict(case.shape), moved)["y"]
    yield f"the new row of the cache is not at position {true}", made, ()
