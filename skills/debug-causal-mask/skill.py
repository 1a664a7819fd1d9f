"""Attention that sees too much or too little of the future."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding

SHIFTS = (1, -1, 64, -64)  # keys; 64 is the kernel's block


def diagnose(case: Case) -> Finding:
    """Matches attention without a mask, or with the diagonal shifted by a key or a block."""
    if case.kernel != "flash_attention" or not case.shape.get("causal") or not case.operands:
        return case.finding(False)
    return case.judge(_masks(case))


def _masks(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    count = case.shape["S"]
    yield "there is no causal mask: every query sees every key", _attention(case, count), ()
    for shift in SHIFTS:
        word = "late" if shift > 0 else "early"
        cause = f"the mask begins {abs(shift)} key{'s' if abs(shift) > 1 else ''} {word}"
        yield cause, _attention(case, shift), ()


def _attention(case: Case, shift: int) -> Any:
    """Attention in which query i sees the keys up to i + shift (its first key at least)."""
    import numpy as np

    s, d = case.shape["S"], case.shape["head_dim"]
    group = case.shape["heads"] // case.shape["kv_heads"]
    reach = np.arange(s)[:, None] + shift
    hidden = np.arange(s)[None, :] > np.maximum(reach, 0)
    y = np.empty((s, case.shape["heads"] * d), np.float32)
    for head in range(case.shape["heads"]):
        own, kv = slice(head * d, head * d + d), slice(head // group * d, head // group * d + d)
        scores = case.operands["q"][:, own] @ case.operands["k"][:, kv].T / np.sqrt(d)
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        y[:, own] = weights @ case.operands["v"][:, kv] / weights.sum(axis=1, keepdims=True)
    return y
