"""The weights of a bundle: safetensors by mmap, and the layouts that static arguments ask for."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .bf16 import STORAGE, narrow
from .errors import BundleError
from .manifest import Argument, Rope

DTYPES: dict[str, type[np.generic]] = {"BF16": np.uint16, "F32": np.float32}

STRIP = 32
"""Rows per step of a transposition: one cache line of bf16."""

Tensors = Mapping[str, npt.NDArray[Any]]


def read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Every tensor of the file as a read-only view of the mapping (bf16 as uint16).

    Raises BundleError when the header is broken, a tensor leaves the file or bytes are left over.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length = int.from_bytes(data[:8], "little")
        start = 8 + length
        if len(data) < start:
            raise ValueError(f"the header of {length} bytes exceeds the file")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        tensors = {name: _view(data, start, name, entry) for name, entry in header.items()}
        used = sum(tensor.nbytes for tensor in tensors.values())
        if used != len(data) - start:
            raise ValueError(f"tensors hold {used} bytes, the file {len(data) - start}")
    except FileNotFoundError:
        raise BundleError(f"{path} is missing: this is not a whole bundle") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} is not a sound safetensors file: {error}") from None
    return tensors


def _view(data: mmap.mmap, start: int, name: str, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{name} is {entry['dtype']}; known are {', '.join(DTYPES)}")
    dtype = np.dtype(DTYPES[entry["dtype"]])
    begin, end = entry["data_offsets"]
    count = math.prod(entry["shape"])
    if count * dtype.itemsize != end - begin or begin < 0 or start + end > len(data):
        raise ValueError(f"{name} {entry['shape']} does not fit bytes {begin} to {end}")
    return np.frombuffer(data, dtype, count, start + begin).reshape(entry["shape"])


def static_value(tensors: Tensors, name: str, argument: Argument) -> npt.NDArray[Any]:
    """The bytes of a static argument: tensor `name` in the argument's layout, contiguous.

    Raises BundleError when the tensor is missing, or has another dtype or size.
    """
    where = f"static argument {argument.name!r}"
    if name not in tensors:
        raise BundleError(f"{where}: the weights have no tensor {name!r}")
    tensor = tensors[name]
    if tensor.dtype != STORAGE[argument.dtype]:
        raise BundleError(f"{where}: {name} is stored as {tensor.dtype}, not {argument.dtype}")
    start = argument.row_start
    if argument.layout == "transposed":
        value = _transposed(tensor)
    elif argument.layout == "padded_rows":
        value = tensor[start : start + argument.shape[0]]
        if not len(value) or value.shape[1:] != argument.shape[1:]:
            raise BundleError(f"{where}: rows from {start} of {name} {tensor.shape} do not fit")
        if len(value) < argument.shape[0]:
            rows, value = value, np.zeros(argument.shape, tensor.dtype)
            value[: len(rows)] = rows
    else:
        value = np.ascontiguousarray(tensor)
    if value.size != math.prod(argument.shape):
        shape = list(argument.shape)
        raise BundleError(f"{where}: {name} {list(tensor.shape)} does not fill {shape}")
    return value


def _transposed(tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The contiguous transpose, in strips that fit the cache: numpy's own copy is 4 times slower
    where rows are a power of two."""
    value = np.empty(tensor.shape[::-1], tensor.dtype)
    for start in range(0, len(tensor), STRIP):
        value[:, start : start + STRIP] = tensor[start : start + STRIP].T
    return value


def rope_table(rope: Rope, rows: int, head_dim: int) -> npt.NDArray[np.uint16]:
    """bf16 [rows, head_dim]: row p is cos(p * f) then sin(p * f) over the head_dim/2 frequencies.

    Frequencies and angles in FP32, as transformers has them.
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequency = (1.0 / np.float32(rope.theta) ** exponent).astype(np.float32)
    frequency = _scaled(frequency, rope.scaling)
    angle = np.arange(rows, dtype=np.float32)[:, None] * frequency[None, :]
    return narrow(np.concatenate([np.cos(angle), np.sin(angle)], axis=1))


def _scaled(
    frequency: npt.NDArray[np.float32], scaling: Mapping[str, Any] | None
) -> npt.NDArray[np.float32]:
    if scaling is None:
        return frequency
    kind = scaling.get("type", scaling.get("rope_type"))
    try:
        if kind == "default":
            return frequency
        if kind == "linear":
            return (frequency / np.float32(scaling["factor"])).astype(np.float32)
        if kind == "llama3":
            return _llama3(frequency, scaling)
    except (KeyError, TypeError) as error:
        raise BundleError(f"rope scaling {kind!r} lacks {error}") from None
    raise BundleError(f"rope scaling {kind!r} is not one of default, linear, llama3")


def _llama3(
    frequency: npt.NDArray[np.float32], scaling: Mapping[str, Any]
) -> npt.NDArray[np.float32]:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    factor = float(scaling["factor"])
    turns = original * frequency / np.float32(2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: npt.NDArray[np.float32] = (1 - smooth) * frequency / factor + smooth * frequency
    return blended.astype(np.float32)
