"""Packed weights: one checked folder that everything else reads, whatever the source was."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.account import account, finite
from oracle.errors import WeightError
from oracle.sources import SafetensorsFolder, WeightSource
from oracle.spec import ModelSpec
from oracle.tensorfile import file_digest, read_header, read_tensor, write_tensors
from oracle.tokens import write_tokenizer

MODEL, RECORD, FORMAT = "model.safetensors", "weights.json", "tilegate-weights-1"


@dataclass(frozen=True)
class Packed:
    """A packed folder: its tensors and its record."""

    tensors: SafetensorsFolder
    record: dict[str, Any]

    @property
    def rehearsal(self) -> bool:
        return bool(self.record["kind"] == "rehearsal")


def pack(spec: ModelSpec, source: WeightSource, out_dir: Path) -> dict[str, Any]:
    """Write model.safetensors, weights.json and, when the source has one, the tokenizer files.

    Values are exact: BF16 when every source tensor is BF16, else F32. Memory is that of the
    largest tensor. Returns the record; WeightError on any tensor that is not as it must be.
    """
    names = account(spec, source)
    exact = "BF16" if all(source.dtype(name) == "BF16" for name in names) else "F32"
    layout = {name: (exact, source.shape(name)) for name in names}
    out_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(spec, source.info.tokenizer, out_dir)
    values = source.raw if exact == "BF16" else source.get
    digest = write_tensors(out_dir / MODEL, layout, lambda name: finite(name, values(name)))
    record = {
        "format": FORMAT,
        "model": spec.name,
        "kind": source.info.kind,
        "source": source.info.origin,
        "identity": source.identity(),
        "sha256": digest,
        "dtype": exact,
        "tokenizer": tokenizer,
        "ignored": sorted(set(source.names()) - set(names)),
        "tensors": {
            name: {"shape": list(shape), "source_dtype": source.dtype(name)}
            for name, (_, shape) in layout.items()
        },
    }
    (out_dir / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return record


def open_packed(folder: Path, verify: bool = False) -> Packed:
    """Open what `pack` wrote; `verify` compares the digest of the tensors with the record."""
    path = folder / RECORD
    if not path.is_file():
        raise WeightError(f"{folder}: no {RECORD}; not a packed folder")
    record = json.loads(path.read_text())
    if record.get("format") != FORMAT:
        raise WeightError(f"{path}: format {record.get('format')!r}, this version reads {FORMAT}")
    if verify and (have := file_digest(folder / MODEL)) != record["sha256"]:
        want = record["sha256"]
        raise WeightError(f"{folder / MODEL}: sha256 is {have[:16]}..., recorded {want[:16]}...")
    return Packed(SafetensorsFolder(folder), record)


def link(source: Path, target: Path) -> None:
    """The same file at a second place; a copy where the file system has no hard links."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def device_pack(model_file: Path, out_file: Path) -> str:
    """Round a packed model.safetensors to bfloat16, nearest even; returns the new sha256.

    What is bfloat16 already becomes a hard link. A finite value that would round to infinity is
    refused.
    """
    entries = read_header(model_file)
    if all(entry.dtype == "BF16" for entry in entries.values()):
        link(model_file, out_file)
        return file_digest(out_file)
    layout = {name: ("BF16", entry.shape) for name, entry in entries.items()}

    def rounded(name: str) -> Any:
        values = finite(name, read_tensor(model_file, entries[name]))
        if values.size and float(abs(values).max()) > 3.3895e38:
            raise WeightError(f"{name}: a value is too large for bfloat16")
        return values

    return write_tensors(out_file, layout, rounded)
