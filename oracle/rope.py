"""Rotary position tables, half-split, with the `llama3` frequency scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from oracle.spec import ModelSpec


def scaling_factors(spec: ModelSpec) -> np.ndarray:
    """Divisor of every rotary frequency, float64 [head_dim/2]; ones without scaling.

    Wavelengths shorter than original_context / high_freq_factor stay as they are, longer than
    original_context / low_freq_factor are stretched by `factor`, in between it is blended.
    """
    base = _frequencies(spec)
    scaling = spec.rope.scaling
    if scaling is None:
        return np.ones_like(base)
    turns = scaling.original_context * base / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return 1.0 / (blend + (1.0 - blend) / scaling.factor)


def _frequencies(spec: ModelSpec) -> np.ndarray:
    return spec.rope.theta ** (-np.arange(0, spec.head_dim, 2) / spec.head_dim)


def rope_table(spec: ModelSpec, positions: Sequence[int] | np.ndarray) -> np.ndarray:
    """float32 [len(positions), head_dim]: cos of head_dim/2 angles, then their sin.

    Frequencies and angles are rounded to float32 first, as the published models were run.
    """
    frequencies = (_frequencies(spec) / scaling_factors(spec)).astype(np.float32)
    angles = np.asarray(positions, np.float32)[:, None] * frequencies[None, :]
    wide = angles.astype(np.float64)
    return np.concatenate([np.cos(wide), np.sin(wide)], axis=1).astype(np.float32)
