"""Where tensors come from: a safetensors folder, a GGUF file, a seed. All speak published names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from oracle.errors import Unavailable, WeightError
from oracle.published import refuse_unsupported, rope_of
from oracle.tensorfile import (
    Entry,
    bf16_to_f32,
    file_digest,
    joint_digest,
    map_file,
    read_header,
    stored_tensor,
)

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class SourceInfo:
    """`declared` holds what the files say of the model, keyed like ModelSpec; absent = not said."""

    kind: Literal["real", "rehearsal"]
    origin: str
    declared: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Path | None = None  # a folder with tokenizer.json, or a GGUF file


class WeightSource(Protocol):
    """Tensors by published name; `get` gives float32 of shape [out, in].

    `raw` gives what is cheapest to have of the same values: float32, float16, or bfloat16 bits as
    uint16, often a view of a mapped file.
    """

    info: SourceInfo

    def names(self) -> list[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> str: ...
    def get(self, name: str) -> np.ndarray: ...
    def raw(self, name: str) -> np.ndarray: ...
    def identity(self) -> str:
        """sha256 of all that determines the values."""


class SafetensorsFolder:
    """A folder with `model.safetensors`, or shards and their index, and `config.json`."""

    def __init__(self, folder: Path, origin: str | None = None) -> None:
        self._files = _shards(folder)
        self._where: dict[str, tuple[Path, Entry]] = {}
        self._maps: dict[Path, np.ndarray] = {}
        for path in self._files:
            for name, entry in read_header(path).items():
                if name in self._where:
                    raise WeightError(f"{name} is in both {self._where[name][0].name}, {path.name}")
                self._where[name] = (path, entry)
        _verify_index(folder, self._where)
        tokenizer = folder if (folder / "tokenizer.json").is_file() else None
        self.info = SourceInfo(
            "real", origin or f"folder {folder.name}", declared_by_config(folder), tokenizer
        )

    def names(self) -> list[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._where[name][1].shape

    def dtype(self, name: str) -> str:
        return self._where[name][1].dtype

    def raw(self, name: str) -> np.ndarray:
        path, entry = self._where[name]
        if path not in self._maps:
            self._maps[path] = map_file(path)
        return stored_tensor(self._maps[path], entry)

    def get(self, name: str) -> np.ndarray:
        values = self.raw(name)
        if values.dtype == np.uint16:
            return bf16_to_f32(values)
        return values.astype(np.float32, copy=False)

    def identity(self) -> str:
        return joint_digest((path.name, file_digest(path)) for path in self._files)


def _shards(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
        for name in names:
            if not (folder / name).is_file():
                raise Unavailable(f"{folder.name}: the index names {name}, which is not there")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    raise Unavailable(f"{folder}: no model.safetensors and no {INDEX}")


def _weight_map(index: Path) -> dict[str, str]:
    try:
        table = json.loads(index.read_text())["weight_map"]
        return {str(name): str(file) for name, file in table.items()}
    except (ValueError, KeyError, AttributeError) as error:
        raise WeightError(f"{index.name}: not a valid index: {error}") from error


def _verify_index(folder: Path, where: Mapping[str, tuple[Path, Entry]]) -> None:
    index = folder / INDEX
    if not index.is_file():
        return
    table = _weight_map(index)
    for name, file in table.items():
        if name not in where or where[name][0].name != file:
            raise WeightError(f"{folder.name}: the index puts {name} in {file}, it is not there")
    extra = sorted(set(where) - set(table))
    if extra:
        raise WeightError(f"{folder.name}: {extra[0]} is in a shard but not in the index")


def declared_by_config(folder: Path) -> dict[str, Any]:
    """What `config.json` says, keyed like ModelSpec; WeightError on features we do not have."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise WeightError(f"{path}: not valid JSON: {error}") from error
    refuse_unsupported(config)
    theta, scaling = rope_of(config)
    declared = {
        "family": config.get("model_type"),
        "layers": config.get("num_hidden_layers"),
        "dim": config.get("hidden_size"),
        "heads": config.get("num_attention_heads"),
        "kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "hidden": config.get("intermediate_size"),
        "vocab": config.get("vocab_size"),
        "norm_eps": config.get("rms_norm_eps"),
        "tied": config.get("tie_word_embeddings"),
        "rope.theta": theta,
    }
    declared = {key: value for key, value in declared.items() if value is not None}
    return declared | {"rope.scaling": scaling}


class GgufFile:
    """A GGUF file of any quantisation that the `gguf` package can widen to float32."""

    def __init__(self, path: Path, origin: str | None = None, sha256: str | None = None) -> None:
        from oracle import ggufmap

        self._path = path
        self._sha256 = sha256
        self._reader = ggufmap.open_reader(path)
        self._tensors = ggufmap.named_tensors(self._reader, path.name)
        declared = ggufmap.declared(self._reader)
        tokenizer = path if self._reader.get_field("tokenizer.ggml.model") else None
        self.info = SourceInfo("real", origin or f"file {path.name}", declared, tokenizer)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def dtype(self, name: str) -> str:
        return str(self._tensors[name].tensor_type.name)

    def get(self, name: str) -> np.ndarray:
        from oracle import ggufmap

        return ggufmap.values(self._reader, name, self._tensors[name])

    def raw(self, name: str) -> np.ndarray:
        return self.get(name)

    def identity(self) -> str:
        return joint_digest([(self._path.name, self._sha256 or file_digest(self._path))])


class Generated:
    """Tensors made on demand, as bfloat16 bits, by a function of their name; nothing is kept."""

    def __init__(
        self,
        info: SourceInfo,
        shapes: Mapping[str, tuple[int, ...]],
        make: Callable[[str], np.ndarray],
        identity: str,
    ) -> None:
        self.info = info
        self._shapes = shapes
        self._make = make
        self._identity = identity

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> str:
        return "BF16"

    def get(self, name: str) -> np.ndarray:
        return bf16_to_f32(self._make(name))

    def raw(self, name: str) -> np.ndarray:
        return self._make(name)

    def identity(self) -> str:
        return self._identity
