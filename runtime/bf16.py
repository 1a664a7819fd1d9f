"""bfloat16 as numpy uint16: numpy has no such type, and the runtime depends on nothing more."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

STORAGE: dict[str, type[np.generic]] = {"bf16": np.uint16, "f32": np.float32, "i32": np.int32}
"""The numpy type that holds a dtype of a manifest."""


def narrow(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """f32 to bf16 bits, round to nearest even; NaN stays NaN."""
    array = np.ascontiguousarray(values, dtype=np.float32)
    bits = array.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)


def widen(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bf16 bits to f32, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def as_f32(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A copy in f32 of an array in storage form (uint16 means bf16)."""
    return widen(array) if array.dtype == np.uint16 else array.astype(np.float32)
