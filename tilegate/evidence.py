"""Is there anything to compare? What a gate asks before it looks at a single error.

An empty list of reasons means yes. Arrays are numpy float32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

CONSTANT_TOKENS = 4  # as many equal tokens and nothing else: a stuck output, not a model


@dataclass(frozen=True)
class Generation:
    """Greedy tokens and the logits each was taken from, float32 [tokens, vocab]."""

    tokens: Sequence[int]
    logits: Any


def of_tensors(candidate: Any, reference: Any, expected_count: int) -> list[str]:
    """Why these two cannot be compared; empty when they can."""
    import numpy as np

    for side, array in (("candidate", candidate), ("reference", reference)):
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            return [f"{side} is {getattr(array, 'dtype', type(array).__name__)}, want float32"]
        if array.ndim == 0 or array.size == 0:
            return [f"{side} is empty: nothing was compared"]
    if candidate.shape != reference.shape:
        return [f"candidate has shape {candidate.shape}, want {reference.shape}"]
    if candidate.size != expected_count:
        return [f"{candidate.size} values, want {expected_count}"]
    if np.may_share_memory(candidate, reference):
        return ["candidate and reference are the same memory"]
    for side, array in (("candidate", candidate), ("reference", reference)):
        bad = array.size - int(np.count_nonzero(np.isfinite(array)))
        if bad:
            return [f"{side} has {bad} values that are not finite"]
    if reference.size > 1 and reference.min() == reference.max():
        return ["the reference is constant: it proves nothing"]
    return []


def of_generation(side: Generation, steps: int, stop_ids: Collection[int]) -> list[str]:
    """What is wrong with one greedy generation by itself."""
    import numpy as np

    tokens, logits = [int(token) for token in side.tokens], side.logits
    if not tokens:
        return ["no tokens"]
    if len(tokens) > steps or (len(tokens) < steps and tokens[-1] not in stop_ids):
        return [f"{len(tokens)} tokens without a stop token at the end, want {steps}"]
    if not isinstance(logits, np.ndarray) or logits.dtype != np.float32 or logits.ndim != 2:
        return ["logits are not a float32 matrix"]
    if logits.shape[0] != len(tokens) or logits.shape[1] < 2:
        return [f"logits have shape {logits.shape} for {len(tokens)} tokens"]
    if not np.isfinite(logits).all():
        return ["logits are not finite"]
    if not all(0 <= token < logits.shape[1] for token in tokens):
        return ["a token is not in the vocabulary"]
    if (logits.min(1) == logits.max(1)).any():
        return ["logits of a step are constant"]
    if not (logits[np.arange(len(tokens)), tokens] == logits.max(1)).all():
        return ["a token is not the greedy choice of its logits"]
    if len(tokens) >= CONSTANT_TOKENS and len(set(tokens)) == 1:
        return [f"every token is {tokens[0]}: a constant output"]
    return []
