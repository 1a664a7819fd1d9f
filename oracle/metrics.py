"""Error metrics, numpy only, in float64. A candidate that is not finite never looks good.

Every function takes `have` (candidate) and `want` (reference) of one shape; a mismatch or an
empty tensor raises ValueError. Where a value is not finite the error is inf, the similarity NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


def _pair(have: ArrayLike, want: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    left, right = np.asarray(have, np.float64), np.asarray(want, np.float64)
    if left.shape != right.shape or left.size == 0:
        raise ValueError(f"cannot compare shape {left.shape} with {right.shape}")
    return left, right


def _errors(have: ArrayLike, want: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Absolute errors, inf where either side is not finite, and |want|."""
    left, right = _pair(have, want)
    sound = np.isfinite(left) & np.isfinite(right)
    with np.errstate(invalid="ignore"):
        return np.where(sound, np.abs(left - right), np.inf), np.abs(right)


def max_abs(have: ArrayLike, want: ArrayLike) -> float:
    return float(_errors(have, want)[0].max())


def violation_share(have: ArrayLike, want: ArrayLike, atol: float, rtol: float) -> float:
    """Share of elements outside atol + rtol*|want|, 0..1."""
    errors, size = _errors(have, want)
    inside = np.isfinite(errors) & (errors <= atol + rtol * size)
    return float(1.0 - np.count_nonzero(inside) / inside.size)


def mean_rel_l1(have: ArrayLike, want: ArrayLike) -> float:
    """mean|have - want| / mean|want|; inf when the reference is all zero and they differ."""
    errors, size = _errors(have, want)
    total, scale = float(errors.mean()), float(size.mean())
    if scale == 0.0:
        return 0.0 if total == 0.0 else float("inf")
    return total / scale


def cosine(have: ArrayLike, want: ArrayLike) -> float:
    """Cosine of the flattened tensors; NaN when either is zero or not finite."""
    left, right = _pair(have, want)
    return float(cosine_rows(left.reshape(1, -1), right.reshape(1, -1))[0])


def cosine_rows(have: ArrayLike, want: ArrayLike) -> np.ndarray:
    """Cosine per position, [rows] of [rows, width]; NaN where either row is zero."""
    left, right = _pair(have, want)
    with np.errstate(all="ignore"):  # NaN is the answer here, not an accident
        left = left / np.abs(left).max(-1, keepdims=True)
        right = right / np.abs(right).max(-1, keepdims=True)
        norms = np.sqrt((left * left).sum(-1) * (right * right).sum(-1))
        return np.asarray((left * right).sum(-1) / norms)


def pearson(have: ArrayLike, want: ArrayLike) -> float:
    """Correlation of the flattened tensors; NaN when either is constant or not finite."""
    left, right = _pair(have, want)
    with np.errstate(all="ignore"):
        return cosine(left - left.mean(), right - right.mean())


def log_softmax(logits: ArrayLike) -> np.ndarray:
    values = np.asarray(logits, np.float64)
    with np.errstate(all="ignore"):
        shifted = values - values.max(-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def kl_divergence(have: ArrayLike, want: ArrayLike) -> np.ndarray:
    """KL(want || have) in nats per position, [rows] of logits [rows, vocab]; NaN if not finite."""
    left, right = _pair(have, want)
    candidate, reference = log_softmax(left), log_softmax(right)
    with np.errstate(all="ignore"):
        return np.asarray((np.exp(reference) * (reference - candidate)).sum(-1))


def top_k(logits: ArrayLike, k: int = 5) -> list[int]:
    """Ids of the k largest of [vocab] logits, best first, ties by id; ValueError on NaN."""
    values = np.asarray(logits, np.float64)
    if values.ndim != 1 or not 0 < k <= values.size or np.isnan(values).any():
        raise ValueError(f"top {k} of logits with shape {values.shape}: not comparable")
    return [int(index) for index in np.argsort(-values, kind="stable")[:k]]


@dataclass(frozen=True)
class Metrics:
    """The figures of one comparison, as a gate records them."""

    count: int
    max_abs: float
    violation_share: float
    mean_rel_l1: float
    pearson: float
    cosine: float
    min_cosine: float


def measure(have: ArrayLike, want: ArrayLike, atol: float, rtol: float) -> Metrics:
    """All tensor metrics; the last axis is a position's vector."""
    left, right = _pair(have, want)
    return Metrics(
        count=left.size,
        max_abs=max_abs(left, right),
        violation_share=violation_share(left, right, atol, rtol),
        mean_rel_l1=mean_rel_l1(left, right),
        pearson=pearson(left, right),
        cosine=cosine(left, right),
        min_cosine=float(np.min(cosine_rows(np.atleast_2d(left), np.atleast_2d(right)))),
    )
