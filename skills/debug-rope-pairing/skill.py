"""A rotation of the wrong pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding


def diagnose(case: Case) -> Finding:
    """Matches neighbours rotated instead of halves, or a rotation the other way round."""
    if case.kernel != "rope" or not case.operands or not case.complete:
        return case.finding(False)
    return case.judge(_pairings(case))


def _pairings(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    import numpy as np

    d = case.shape["head_dim"]
    x, lut = (np.asarray(case.operands[name]).reshape(-1, d) for name in ("x", "lut"))
    cos, sin = lut[:, : d // 2], lut[:, d // 2 :]
    even, odd = x[:, 0::2], x[:, 1::2]
    pairs = np.empty_like(x)
    pairs[:, 0::2], pairs[:, 1::2] = even * cos - odd * sin, even * sin + odd * cos
    yield "neighbours are rotated (interleaved); the model's pairs are half-split", pairs, ()
    low, high = x[:, : d // 2], x[:, d // 2 :]
    back = np.concatenate([low * cos + high * sin, high * cos - low * sin], axis=1)
    yield "the rotation goes the wrong way", back, ()
    yield "nothing is rotated", x, ()
