"""A decoder as data: dimensions, rope, axes (bias, QK-norm, tie), where weights are published."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from oracle.errors import SpecError


@dataclass(frozen=True)
class RopeScaling:
    """Frequency scaling of the `llama3` kind; lengths in tokens."""

    type: str
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class Rope:
    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class WheelPin:
    """A wheel that carries the weights as a GGUF file; `sha256` is that of the wheel."""

    package: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True)
class ModelSpec:
    """Dimensions are in elements; `family` is the reference implementation's model type."""

    name: str
    family: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    rope: Rope
    norm_eps: float
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    max_context: int
    hub: str | None
    wheel: WheelPin | None = None
    tokenizer_from: str | None = None

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelSpec:
        """Build from the fields of a model YAML; raises SpecError on any unknown or bad one."""
        values = dict(_known(cls, data, "model"))
        values["rope"] = _rope(values["rope"])
        if values.get("wheel") is not None:
            values["wheel"] = WheelPin(**_known(WheelPin, values["wheel"], "wheel"))
        spec = cls(**values)
        _validate(spec)
        return spec


def _known(cls: type, data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise SpecError(f"{where}: a mapping of fields is needed, got {data!r}")
    names = [field.name for field in fields(cls)]
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
            raise SpecError(f"{where}: unknown field '{key}'; {hint}")
    optional = {"scaling", "wheel", "tokenizer_from"}
    missing = [name for name in names if name not in data and name not in optional]
    if missing:
        raise SpecError(f"{where}: missing field {', '.join(missing)}")
    return data


def _rope(data: Any) -> Rope:
    values = _known(Rope, data, "rope")
    scaling = values.get("scaling")
    if scaling is None:
        return Rope(float(values["theta"]))
    if not isinstance(scaling, Mapping) or scaling.get("type") != "llama3":
        kind = scaling.get("type") if isinstance(scaling, Mapping) else scaling
        raise SpecError(f"rope: scaling type {kind!r} is not supported; supported: null, llama3")
    known = RopeScaling(**_known(RopeScaling, scaling, "rope.scaling"))
    if not 0 < known.low_freq_factor < known.high_freq_factor:
        raise SpecError("rope.scaling: 0 < low_freq_factor < high_freq_factor must hold")
    if known.factor < 1 or known.original_context < 1:
        raise SpecError("rope.scaling: factor and original_context must be at least 1")
    return Rope(float(values["theta"]), known)


def _validate(spec: ModelSpec) -> None:
    counts = "layers dim heads kv_heads head_dim hidden vocab max_context"
    for name in counts.split():
        value = getattr(spec, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{spec.name}: {name}={value!r} must be a whole number above 0")
    for name in ("tied", "qkv_bias", "qk_norm"):
        if not isinstance(getattr(spec, name), bool):
            raise SpecError(f"{spec.name}: {name}={getattr(spec, name)!r} must be true or false")
    if spec.heads % spec.kv_heads:
        raise SpecError(
            f"{spec.name}: heads={spec.heads} is not a multiple of kv_heads={spec.kv_heads}"
        )
    if spec.head_dim % 2:
        raise SpecError(f"{spec.name}: head_dim={spec.head_dim} must be even for rope")
    for name, value in (("rope.theta", spec.rope.theta), ("norm_eps", spec.norm_eps)):
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise SpecError(f"{spec.name}: {name}={value!r} must be a finite number above 0")


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every checkpoint tensor that this model consumes, by published name, as [out, in]."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab, spec.dim)}
    for layer in range(spec.layers):
        for name, shape in _layer_shapes(spec).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (spec.dim,)
    if not spec.tied:
        shapes["lm_head.weight"] = (spec.vocab, spec.dim)
    return shapes


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    widths = {"q": spec.q_width, "k": spec.kv_width, "v": spec.kv_width}
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (spec.dim,)}
    for head, width in widths.items():
        shapes[f"self_attn.{head}_proj.weight"] = (width, spec.dim)
        if spec.qkv_bias:
            shapes[f"self_attn.{head}_proj.bias"] = (width,)
    if spec.qk_norm:
        shapes["self_attn.q_norm.weight"] = (spec.head_dim,)
        shapes["self_attn.k_norm.weight"] = (spec.head_dim,)
    return shapes | {
        "self_attn.o_proj.weight": (spec.dim, spec.q_width),
        "post_attention_layernorm.weight": (spec.dim,),
        "mlp.gate_proj.weight": (spec.hidden, spec.dim),
        "mlp.up_proj.weight": (spec.hidden, spec.dim),
        "mlp.down_proj.weight": (spec.dim, spec.hidden),
    }
