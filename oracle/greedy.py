"""Greedy continuation in FP32, many tokens per pass over the weights.

A pass is bound by reading the weights, so a quick forward in bfloat16 guesses tokens ahead and one
FP32 pass checks all guesses: a token stands only as the argmax of FP32 logits whose own past is
all confirmed. Guesses decide how long it takes, never what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.forward import Cache, Drafts, Tensors, Trace, forward
from oracle.spec import ModelSpec


def greedy(
    spec: ModelSpec, tensors: Tensors, trace: Trace, steps: int
) -> tuple[list[list[int]], list[list[np.ndarray]]]:
    """Continue a trace greedily: per prompt, `steps` tokens and the logits [vocab] they are of.

    The trace's caches grow by what was confirmed.
    """
    rows: list[list[np.ndarray]] = [[logits[-1]] for logits in trace.logits]
    tokens = [[int(row[0].argmax())] for row in rows]
    drafts: Drafts = {}
    while active := [number for number, row in enumerate(tokens) if len(row) < steps]:
        caches = [trace.caches[number] for number in active]
        last = [tokens[number][-1] for number in active]
        room = [steps - len(tokens[number]) for number in active]
        guesses = _guess(spec, tensors, caches, last, room, drafts)
        before = [cache.length for cache in caches]
        checked = forward(spec, tensors, guesses, caches=caches, all_logits=True).logits
        for number, cache, start, fed, logits in zip(
            active, caches, before, guesses, checked, strict=True
        ):
            for index, row in enumerate(logits):
                tokens[number].append(int(row.argmax()))
                rows[number].append(row)
                if index + 1 < len(fed) and fed[index + 1] != tokens[number][-1]:
                    break
            _cut(cache, start + index + 1)
    return tokens, rows


def _guess(
    spec: ModelSpec,
    tensors: Tensors,
    caches: Sequence[Cache],
    last: Sequence[int],
    room: Sequence[int],
    drafts: Drafts,
) -> list[list[int]]:
    """Per prompt, its last token and guesses of those that follow: `room` tokens to check."""
    fed = [[token] for token in last]
    own = [Cache(list(cache.keys), list(cache.values)) for cache in caches]
    while open_ := [i for i, row in enumerate(fed) if len(row) < room[i]]:
        trace = forward(
            spec, tensors, [fed[i][-1:] for i in open_], caches=[own[i] for i in open_],
            drafts=drafts,
        )  # fmt: skip
        for i, logits in zip(open_, trace.logits, strict=True):
            fed[i].append(int(logits[-1].argmax()))
    return fed


def _cut(cache: Cache, length: int) -> None:
    cache.keys[:] = [keys[:length] for keys in cache.keys]
    cache.values[:] = [values[:length] for values in cache.values]
