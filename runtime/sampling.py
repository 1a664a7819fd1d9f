"""Choosing the next token from logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Sampler:
    """Greedy at temperature 0, else softmax sampling from the smallest set with mass `top_p`."""

    def __init__(
        self, temperature: float = 0.0, top_p: float = 1.0, seed: int | None = None
    ) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._random = np.random.default_rng(seed)

    def __call__(self, logits: npt.NDArray[np.float32]) -> int:
        """The token id chosen from logits f32 [vocab]."""
        if self._temperature == 0.0:
            return int(np.argmax(logits))
        scaled = logits.astype(np.float64) / self._temperature
        weights = np.exp(scaled - scaled.max())
        order = np.argsort(-weights, kind="stable")
        mass = np.cumsum(weights[order])
        kept = int(np.searchsorted(mass, self._top_p * mass[-1])) + 1
        kept = min(kept, len(order))
        draw = self._random.random() * mass[kept - 1]
        return int(order[min(int(np.searchsorted(mass[:kept], draw, side="right")), kept - 1)])
