"""The safetensors format by hand: 8 bytes of header length, a JSON header, then the data.

Reading maps the file (no copy for F32); writing streams one tensor at a time, so that memory
stays that of a single tensor. bfloat16 is held as `np.uint16` on the way.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oracle.errors import WeightError

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
MAX_HEADER = 100_000_000  # bytes; the format's own limit
ALIGNMENT = 64  # of the data that follows the header: what vector loads of a mapped file need


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: byte offsets are counted from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Widen bfloat16 bits (uint16) to float32; exact."""
    import torch

    return torch.from_numpy(bits.astype(np.int16)).view(torch.bfloat16).float().numpy()


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 bits (uint16), to nearest even; NaN stays a quiet NaN."""
    import torch

    wide = torch.from_numpy(np.array(values, np.float32, copy=not values.flags.writeable))
    return wide.bfloat16().view(torch.int16).numpy().view(np.uint16)


def read_header(path: Path) -> dict[str, Entry]:
    """Parse and verify a header against the file's length; WeightError on any mismatch."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
            raise WeightError(f"{path.name}: {size} bytes hold no safetensors header (truncated?)")
        raw = file.read(length)
    try:
        table = json.loads(raw)
        table.pop("__metadata__", None)
        entries = {name: _entry(item, 8 + length) for name, item in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightError(f"{path.name}: the safetensors header is not valid: {error}") from error
    _verify_layout(path, entries, 8 + length, size)
    return entries


def _entry(item: Mapping[str, Any], base: int) -> Entry:
    start, end = item["data_offsets"]
    return Entry(item["dtype"], tuple(item["shape"]), base + start, base + end)


def _verify_layout(path: Path, entries: Mapping[str, Entry], base: int, size: int) -> None:
    position = base
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise WeightError(f"{path.name}: {name} is {entry.dtype}; supported: {known}")
        want = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        if entry.start != position or entry.end - entry.start != want:
            raise WeightError(
                f"{path.name}: {name} {list(entry.shape)} needs {want} bytes at offset "
                f"{position - base}, the header gives {entry.end - entry.start} at "
                f"{entry.start - base}"
            )
        position = entry.end
    if position != size:
        state = "truncated" if size < position else "longer than its header says"
        raise WeightError(f"{path.name}: {state}: {size} bytes, the header describes {position}")


def map_file(path: Path) -> np.ndarray:
    """The bytes of a file, mapped read-only; map once, since each new mapping faults anew."""
    return np.memmap(path, np.uint8, "r")


def stored_tensor(data: np.ndarray, entry: Entry) -> np.ndarray:
    """One tensor of a mapped file in its stored dtype (BF16 as uint16): a read-only view."""
    values = np.asarray(data[entry.start : entry.end]).view(DTYPES[entry.dtype])
    values = values.reshape(entry.shape)
    return values if values.flags.aligned else values.copy()  # a foreign header ends anywhere


def read_tensor(path: Path, entry: Entry) -> np.ndarray:
    """One tensor of a file as float32; F32 is a view of the mapped file."""
    values = stored_tensor(map_file(path), entry)
    if entry.dtype == "BF16":
        return bf16_to_f32(values)
    return values.astype(np.float32, copy=False)


def write_tensors(
    path: Path,
    layout: Mapping[str, tuple[str, tuple[int, ...]]],
    get: Callable[[str], np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write `layout` (name -> dtype, shape) from `get(name)` arrays; returns the sha256.

    Arrays are float32, of which a BF16 tensor is rounded to nearest even, or for BF16 its bits as
    uint16. The file is complete and synced on return.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, (dtype, shape) in layout.items():
        end = position + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in (len(text).to_bytes(8, "little"), text):
            file.write(chunk)
            digest.update(chunk)
        for (name, (dtype, shape)), values in zip(layout.items(), _ahead(layout, get), strict=True):
            if values.shape != shape:
                raise WeightError(f"{name}: shape {values.shape} where {shape} was announced")
            if dtype == "BF16" and values.dtype != np.uint16:
                bits = f32_to_bf16(values)
            else:
                bits = values.astype(DTYPES[dtype], copy=False)
            view = np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data
            file.write(view)
            digest.update(view)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _ahead(names: Iterable[str], get: Callable[[str], np.ndarray]) -> Iterator[np.ndarray]:
    """`get` of each name in order, the next one in a thread while the last one is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future[np.ndarray]] = []
        for name in names:
            waiting.append(pool.submit(get, name))
            if len(waiting) > 1:
                yield waiting.pop(0).result()
        for last in waiting:
            yield last.result()


def file_digest(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def joint_digest(parts: Iterable[tuple[str, str]]) -> str:
    """One sha256 of named digests, independent of their order."""
    return hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()
