"""Logits of the wrong matrix, or parts of the vocabulary at the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilegate.diagnose import Case, Finding
from tilegate.model import HEAD_ROWS

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def diagnose(case: Case) -> Finding:
    """Matches the other matrix, or the head's parts in another order."""
    if case.op != "logits" or not case.complete:
        return case.finding(False)
    return case.judge(_mixups(case))


def _mixups(case: Case) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    import numpy as np

    if not case.model["tied"]:
        made = case.operands["x"] @ case.weight(TABLE).T
        yield (
            "the embedding serves as the head, but the model has its own",
            made,
            ("model.tied=false",),
        )
    flat = np.asarray(case.expected).reshape(-1)
    vocab = flat.size
    for rows in HEAD_ROWS:
        parts = -(-vocab // rows)
        for turn in range(1, parts):
            moved = np.zeros(parts * rows, np.float32)
            padded = np.zeros(parts * rows, np.float32)
            padded[:vocab] = flat
            for part in range(parts):
                source = (part + turn) % parts
                moved[part * rows : (part + 1) * rows] = padded[source * rows : (source + 1) * rows]
            cause = f"the head's parts of {rows} rows are {turn} place(s) off"
            yield cause, moved[:vocab], ()
