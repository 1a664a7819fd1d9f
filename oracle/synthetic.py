"""Seeded weights for rehearsals, scaled like a trained model's, with an answer to be wrong about.

Every tensor depends on (seed, name, shape) alone, is drawn with integer arithmetic and rounded to
bfloat16: the same bytes on any machine, without keeping any.

* Projections are uniform with standard deviation 1/sqrt(fan_in); Q and K are a little larger, so
  that attention is neither flat nor one-hot; the output projections of the 2*layers residual
  branches are scaled by 1/sqrt(2*layers), so that together they add as much as the embedding.
* Token t is a code of random phases: channels come in pairs (cos, sin)(2*pi*n_k*t/vocab) with a
  random whole n_k per pair. Codes of two tokens are nearly orthogonal, and stepping from t to
  t + STEP (mod vocab) is one fixed rotation of every pair. Channel 0 is a constant.
* The last layer's MLP holds that rotation: its first `dim` gates read the constant channel (and
  are open), its up rows rotate, its down columns add the result with weight BOOST. So the model
  predicts the successor t + STEP with a clear margin over all other tokens, through the whole
  network, whatever noise bfloat16 or block floating point add. An untied head holds the codes of
  the tokens before, so that it differs from the embedding: there the step is STEP + 1.
"""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np

from oracle.sources import Generated, SourceInfo
from oracle.spec import ModelSpec, tensor_shapes
from oracle.tensorfile import f32_to_bf16

STEP = 7919
LOGIT = 24.0  # about the logit of the right token for a noiseless stream
CONSTANT = 4.0  # channel 0, in units of the other channels' root mean square
BOOST = 3.0  # weight of the successor against the token itself
GATE = 2.0
SHARPEN = 1.5  # of Q and K each, so scores have a standard deviation near 2


def synthetic(spec: ModelSpec, seed: int = 0) -> Generated:
    """A rehearsal source of the model's exact shapes."""
    text = hashlib.sha256(f"synthetic-1 {seed} {spec}".encode()).hexdigest()
    info = SourceInfo("rehearsal", f"synthetic seed {seed}")
    return Generated(info, tensor_shapes(spec), functools.partial(_tensor, spec, seed), text)


def successor(spec: ModelSpec, token: int) -> int:
    """The token that synthetic weights predict after `token`."""
    return (token + STEP + (0 if spec.tied else 1)) % spec.vocab


def _rng(seed: int, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))


def _uniform(seed: int, name: str, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    values = _rng(seed, name).random(shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(deviation * math.sqrt(12))
    return values


def _tensor(spec: ModelSpec, seed: int, name: str) -> np.ndarray:
    """The tensor as bfloat16 bits."""
    return f32_to_bf16(_values(spec, seed, name))


def _values(spec: ModelSpec, seed: int, name: str) -> np.ndarray:
    shape = tensor_shapes(spec)[name]
    if name == "model.embed_tokens.weight":
        return _codes(spec, seed, 0)
    if name == "lm_head.weight":
        return _codes(spec, seed, -1)
    if name.endswith("norm.weight"):
        sharpen = SHARPEN if ".self_attn." in name else 1.0
        return (sharpen + _uniform(seed, name, shape, 0.05)).astype(np.float32)
    if name.endswith(".bias"):
        return _uniform(seed, name, shape, 0.1)
    values = _uniform(seed, name, shape, _deviation(spec, name, shape[1]))
    if name.startswith(f"model.layers.{spec.layers - 1}.mlp."):
        _plant(spec, seed, name, values)
    return values


def _embedding_scale(spec: ModelSpec) -> float:
    return LOGIT / spec.dim


def _deviation(spec: ModelSpec, name: str, fan_in: int) -> float:
    plain = 1.0 / math.sqrt(fan_in)
    if name.endswith(("q_proj.weight", "k_proj.weight")) and not spec.qk_norm:
        return SHARPEN * plain
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return plain * _embedding_scale(spec) / math.sqrt(2 * spec.layers)
    return plain


def _turns(spec: ModelSpec, seed: int) -> np.ndarray:
    """Whole turns n_k of every channel pair over the vocabulary, int64 [(dim-2)//2]."""
    return _rng(seed, "turns").integers(1, spec.vocab, (spec.dim - 2) // 2)


def _codes(spec: ModelSpec, seed: int, first: int) -> np.ndarray:
    """Codes of `vocab` tokens from `first` on, at the embedding's scale; float32 [vocab, dim]."""
    circle = np.arange(spec.vocab) * (2 * math.pi / spec.vocab)
    waves = math.sqrt(2) * np.stack([np.cos(circle), np.sin(circle)], axis=1)
    waves = (_embedding_scale(spec) * waves).astype(np.float32)
    turns = _turns(spec, seed)
    block = np.arange(1024)[:, None]  # rows at a time, which stays in the CPU's cache
    steps = (block * turns % spec.vocab).astype(np.int32)
    codes = np.zeros((spec.vocab, spec.dim), np.float32)
    codes[:, 0] = CONSTANT * _embedding_scale(spec)
    for start in range(0, spec.vocab, len(block)):
        rows = codes[start : start + len(block), 2 : 2 + 2 * len(turns)]
        phase = steps[: len(rows)] + ((start + first) * turns % spec.vocab).astype(np.int32)
        phase -= np.int32(spec.vocab) * (phase >= spec.vocab)
        rows[:] = waves.take(phase, axis=0).reshape(rows.shape)
    return codes


def _plant(spec: ModelSpec, seed: int, name: str, values: np.ndarray) -> None:
    """Overwrite the first `dim` hidden units of the last MLP with the step's rotation."""
    pairs = min((spec.dim - 2) // 2, (spec.hidden - 2) // 2)
    rows = np.arange(2, 2 + 2 * pairs)
    if name.endswith("gate_proj.weight"):
        values[rows] = 0.0
        values[rows, 0] = GATE
    elif name.endswith("up_proj.weight"):
        turns = _turns(spec, seed)[:pairs]
        angle = 2 * math.pi * (turns * STEP % spec.vocab) / spec.vocab
        cos, sin = rows[0::2], rows[1::2]
        values[rows] = 0.0
        values[cos, cos], values[cos, sin] = np.cos(angle), -np.sin(angle)
        values[sin, cos], values[sin, sin] = np.sin(angle), np.cos(angle)
    else:
        open_gate = GATE * CONSTANT / math.sqrt(2)
        values[:, rows] = 0.0
        values[rows, rows] = BOOST * _embedding_scale(spec) / open_gate
