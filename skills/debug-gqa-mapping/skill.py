"""Query heads that meet the wrong KV head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilegate.diagnose import Case, Finding


def diagnose(case: Case) -> Finding:
    """Matches interleaved, reversed and constant assignments of query heads to KV heads."""
    if case.kernel not in ("flash_attention", "decode_attention") or not case.operands:
        return case.finding(False)
    if case.shape["heads"] == case.shape["kv_heads"]:
        return case.finding(False)
    return case.judge(_mappings(case))


def _mappings(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    heads, kv_heads = case.shape["heads"], case.shape["kv_heads"]
    group = heads // kv_heads
    wrong: tuple[tuple[str, Callable[[int], int]], ...] = (
        (
            f"query head h reads KV head h % {kv_heads} instead of h // {group}",
            lambda h: h % kv_heads,
        ),
        ("every query head reads KV head 0", lambda h: 0),
        ("the KV heads are in reverse order", lambda h: kv_heads - 1 - h // group),
    )
    for cause, kv_of in wrong:
        yield cause, _attention(case, kv_of), ()


def _attention(case: Case, kv_of: Callable[[int], int]) -> Any:
    """Attention with a head mapping of choice: of a prompt, or of one token over a cache."""
    import numpy as np

    d, heads = case.shape["head_dim"], case.shape["heads"]
    whole = case.kernel == "flash_attention"
    k, v = (case.operands[name if whole else f"{name}_cache"] for name in "kv")
    q = np.asarray(case.operands["q"]).reshape(-1, heads * d)
    if not whole:
        count = int(np.asarray(case.operands["position"]).ravel()[0]) + 1
        k, v = k[:count], v[:count]
    hidden = np.arange(len(k))[None, :] > np.arange(len(q))[:, None]
    y = np.empty_like(q)
    for head in range(heads):
        own, kv = slice(head * d, head * d + d), slice(kv_of(head) * d, kv_of(head) * d + d)
        scores = q[:, own] @ k[:, kv].T / np.sqrt(d)
        if whole and case.shape.get("causal"):
            scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        y[:, own] = weights @ v[:, kv] / weights.sum(axis=1, keepdims=True)
    return y
