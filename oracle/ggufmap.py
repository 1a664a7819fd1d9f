"""GGUF as published checkpoints see it: tensor names, row order of Q and K, metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.errors import WeightError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

ROPE_FACTORS = "rope_freqs.weight"  # inverse of the frequency scaling, per frequency
# Converters of this architecture interleave the two rope halves of every Q and K head.
INTERLEAVED = frozenset({"llama"})
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FIELDS = {
    "layers": "block_count",
    "dim": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "rope.dimension_count",
    "hidden": "feed_forward_length",
    "vocab": "vocab_size",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope.theta": "rope.freq_base",
}


def open_reader(path: Path) -> GGUFReader:
    """Map a GGUF file; WeightError when it is truncated or not one."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except FileNotFoundError as error:
        raise WeightError(f"{path}: no such file") from error
    except Exception as error:  # the reader lets numpy's and struct's own errors through
        raise WeightError(f"{path.name}: not a whole GGUF file (truncated?): {error}") from error
    for tensor in reader.tensors:
        if tensor.data_offset + tensor.n_bytes > path.stat().st_size:
            raise WeightError(f"{path.name}: truncated inside {tensor.name}")
    return reader


def field(reader: GGUFReader, key: str, default: Any = None) -> Any:
    found = reader.get_field(key)
    return default if found is None else found.contents()


def published_name(name: str) -> str | None:
    """`blk.0.attn_q.weight` -> `model.layers.0.self_attn.q_proj.weight`; None when unknown."""
    stem, _, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block and block[2] in BLOCK:
        return f"model.layers.{block[1]}.{BLOCK[block[2]]}.{kind}"
    return None


def named_tensors(reader: GGUFReader, file: str) -> dict[str, ReaderTensor]:
    """Tensors by published name; one that we do not know keeps its own name."""
    tensors: dict[str, ReaderTensor] = {}
    for tensor in reader.tensors:
        name = published_name(tensor.name) or tensor.name
        if name in tensors:
            raise WeightError(f"{file}: two tensors are {name}")
        tensors[name] = tensor
    return tensors


def declared(reader: GGUFReader) -> dict[str, Any]:
    """What the metadata says of the model, keyed like ModelSpec."""
    family = field(reader, "general.architecture")
    found: dict[str, Any] = {"family": family}
    for name, key in FIELDS.items():
        value = field(reader, f"{family}.{key}")
        if value is not None:
            found[name] = value
    key_length = field(reader, f"{family}.attention.key_length")
    if key_length is not None:
        found["head_dim"] = key_length
    kind = field(reader, f"{family}.rope.scaling.type", "none")
    if kind != "none":
        raise WeightError(f"GGUF: rope scaling {kind!r}; supported: none, per-frequency factors")
    if all(tensor.name != ROPE_FACTORS for tensor in reader.tensors):
        found["rope.scaling"] = None
    return found


def values(reader: GGUFReader, name: str, tensor: ReaderTensor) -> np.ndarray:
    """One tensor widened to float32, rows of Q and K in the published half-split order."""
    from gguf.quants import dequantize

    wide = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    shape = tuple(int(n) for n in reversed(tensor.shape))
    wide = wide.reshape(shape)
    family = field(reader, "general.architecture")
    if family not in INTERLEAVED or not re.search(r"\.[qk]_proj\.(weight|bias)$", name):
        return wide
    heads = field(reader, f"{family}.attention.head_count")
    if ".k_proj." in name:
        heads = field(reader, f"{family}.attention.head_count_kv", heads)
    return split_halves(wide, heads)


def split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo `interleave_halves`: within every head, (a0 b0 a1 b1 ...) -> (a0 a1 ... b0 b1 ...)."""
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def interleave_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """What converters do to Q and K rows: (a0 a1 ... b0 b1 ...) -> (a0 b0 a1 b1 ...)."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def tokenizer_fields(path: Path) -> Mapping[str, Any]:
    """The `tokenizer.*` metadata without its prefix; `ggml.` is dropped as well."""
    reader = open_reader(path)
    prefix = "tokenizer."
    keys = [key for key in reader.fields if key.startswith(prefix)]
    return {key.removeprefix(prefix).removeprefix("ggml."): field(reader, key) for key in keys}
