"""The typed shape of the configuration: what a person decides, as frozen dataclasses.

`tilegate.config` composes and builds it; stages take the part that concerns them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tilegate.device import Device
from tilegate.schema import Count, Least, Positive

Auto = Literal["auto"]
Herd = tuple[Positive, Positive]


@dataclass(frozen=True)
class RopeScaling:
    """Frequency scaling; lengths in tokens."""

    type: Literal["llama3"]
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: Positive


@dataclass(frozen=True)
class Rope:
    theta: Annotated[float, Least(1)]
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that carries the weights; `sha256` is that of the wheel."""

    package: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True)
class Model:
    """A decoder: dimensions in elements, and where its weights are published."""

    name: str
    family: str
    rope: Rope
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    hub: str | None
    wheel: Wheel | None
    tokenizer_from: str | None
    layers: Positive
    dim: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    hidden: Positive
    vocab: Positive
    norm_eps: Annotated[float, Least(0)]
    max_context: Positive


@dataclass(frozen=True)
class GemmTile:
    tile_m: Positive | Auto
    tile_k_l2: Positive | Auto
    tile_k_l1: Positive | Auto
    tile_n: Positive | Auto
    herd: Herd | Auto
    method: Literal["fused-cast", "drain", "direct", "external", "auto"] = "auto"


@dataclass(frozen=True)
class GemvTile:
    herd_m: Positive | Auto
    tile_m: Positive | Auto
    m_input: Positive | Auto


@dataclass(frozen=True)
class VectorTile:
    herd: Herd | Auto
    tile_n: Positive | Auto


@dataclass(frozen=True)
class AttentionTile:
    lqp: Positive | Auto
    lkp: Positive | Auto
    num_q_tiles: Positive | Auto
    heads_per_unroll: Positive | Auto
    stages: Positive | Auto


@dataclass(frozen=True)
class PrefillTiles:
    qkv: GemmTile
    o: GemmTile
    gate_up: GemmTile
    down: GemmTile
    rms_norm: VectorTile
    rope: VectorTile
    attention: AttentionTile
    silu_mul: VectorTile
    add: VectorTile


@dataclass(frozen=True)
class DecodeTiles:
    qkv: GemvTile
    o: GemvTile
    gate_up: GemvTile
    down: GemvTile
    lm_head: GemvTile
    rms_norm: VectorTile
    rope: VectorTile
    attention: VectorTile
    silu_mul: VectorTile
    add: VectorTile


@dataclass(frozen=True)
class Tiles:
    prefill: PrefillTiles
    decode: DecodeTiles


@dataclass(frozen=True)
class Fusion:
    """Launches (by the name of the value they compute) of each dispatch, in program order."""

    prefill: Mapping[str, tuple[str, ...]]
    decode: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Skill:
    skill: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Escalation:
    command: str | None


@dataclass(frozen=True)
class OnFailure:
    debug: tuple[str, ...]
    escalation: Escalation
    retries: Count


@dataclass(frozen=True)
class Chain:
    skills: tuple[Skill, ...]
    on_failure: OnFailure


@dataclass(frozen=True)
class Weights:
    mode: Literal["auto", "path", "wheel", "hub", "synthetic"]
    path: str | None
    rehearse: bool
    seed: Count


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens: prefill buckets, and rows of the KV cache."""

    buckets: tuple[Positive, ...]
    context: Positive


@dataclass(frozen=True)
class Sweep:
    """What a sweep measures, how far each point is built, and what becomes of the best one."""

    objective: Literal["ttft", "tpot", "error"]
    gates: Literal["none", "kernel", "block", "all"]
    fail_fast: bool
    save: str | None


@dataclass(frozen=True)
class Keep:
    """Bounds of the cache for `doit gc`; null is no bound. Nothing goes without `remove`."""

    gigabytes: Annotated[float, Least(0)] | None
    days: Annotated[float, Least(0)] | None
    remove: bool


@dataclass(frozen=True)
class Config:
    """The whole resolved configuration. `choices` names the file taken from each group."""

    model: Model
    tile: Tiles
    fusion: Fusion
    device: Device
    chain: Chain
    gate: Mapping[str, Any]
    weights: Weights
    sequence: Lengths
    sweep: Sweep
    cache: Keep
    choices: Mapping[str, str]
    fault: str | None
    hf: str | None
    seq_len: Positive | None
