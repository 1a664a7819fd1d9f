"""The decoder as lists of ops with shapes, written once for all models.

A `Phase` (prefill of one bucket, decode, LM head) lists its ops in program order and the values
they read and write. An op is named after the value it computes; golden traces of the oracle use the
same names. What distinguishes model families is a field of the model (`qkv_bias`, `qk_norm`, a
`head_dim` apart from `dim / heads`), never a branch on its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilegate.plan import DType, freeze
from tilegate.settings import Model

HEAD_ROWS = (16384, 8192)  # rows of one GEMV of the LM head: the measured launch sizes
POSITION_WORDS = 16  # a position is padded to one 64-byte line


@dataclass(frozen=True)
class Value:
    """A tensor that ops exchange; `kind` and what follows are those of a dispatch argument."""

    name: str
    shape: tuple[int, ...]
    dtype: DType = "bf16"
    kind: str = "activation"
    value: str | None = None
    tensor: str | None = None
    layout: str | None = None
    row_start: int = 0


@dataclass(frozen=True)
class Op:
    """One launch-level operation: kernel, shape, tile group, and (operand, value name) bindings."""

    name: str
    kernel: str
    shape: tuple[tuple[str, int | str | bool], ...]
    group: str
    bind: tuple[tuple[str, str], ...]

    @property
    def shape_dict(self) -> dict[str, Any]:
        return dict(self.shape)


@dataclass(frozen=True)
class Phase:
    """Ops in program order with their values. `name` is prefill_<bucket>, decode or lm_head."""

    name: str
    phase: str
    bucket: int | None
    values: Mapping[str, Value]
    ops: tuple[Op, ...]


class _Writer:
    """Collects the ops and values of one phase."""

    def __init__(self, model: Model, tokens: int, phase: str) -> None:
        self.model = model
        self.tokens = tokens
        self.phase = phase
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []

    def value(self, name: str, *shape: int, **fields: Any) -> str:
        fields.setdefault("value", name if fields.get("kind", "activation") != "static" else None)
        self.values[name] = Value(name, shape, **fields)
        return name

    def op(self, name: str, kernel: str, group: str, shape: Mapping[str, Any], **bind: str) -> str:
        self.ops.append(Op(name, kernel, freeze(shape), group, tuple(bind.items())))
        return name

    def static(self, name: str, tensor: str, *shape: int, **fields: Any) -> str:
        fields.setdefault("layout", "as-is")
        return self.value(name, *shape, kind="static", tensor=tensor, **fields)

    def linear(self, name: str, group: str, x: str, tensor: str, k: int, n: int) -> str:
        """A projection: GEMM over many tokens, GEMV over one."""
        if self.phase == "decode":
            weight = self.static(f"{name}.weight", tensor, n, k)
            y = self.value(name, 1, n)
            return self.op(name, "gemv", group, {"M": n, "K": k}, W=weight, x=x, y=y)
        weight = self.static(f"{name}.weight", tensor, k, n, layout="transposed")
        y = self.value(name, self.tokens, n)
        return self.op(name, "gemm", group, {"M": self.tokens, "K": k, "N": n}, A=x, B=weight, C=y)

    def norm(self, name: str, x: str, tensor: str, rows: int, width: int) -> str:
        weight = self.static(f"{name}.weight", tensor, width)
        y = self.value(name, self.tokens, rows * width // self.tokens)
        shape = {"M": rows, "N": width, "eps": self.model.norm_eps}
        return self.op(name, "rms_norm", "rms_norm", shape, x=x, weight=weight, y=y)

    def bias(self, name: str, x: str, tensor: str, width: int) -> str:
        b = self.static(f"{name}.bias", tensor, width)
        y = self.value(name, self.tokens, width)
        shape = {"M": self.tokens, "N": width, "broadcast": True}
        return self.op(name, "add", "add", shape, a=x, b=b, y=y)

    def residual(self, name: str, a: str, b: str) -> str:
        y = self.value(name, self.tokens, self.model.dim)
        shape = {"M": self.tokens, "N": self.model.dim, "broadcast": False}
        return self.op(name, "add", "add", shape, a=a, b=b, y=y)

    def rope(self, name: str, x: str, heads: int) -> str:
        rows, d = self.tokens * heads, self.model.head_dim
        lut = self.value(f"{name}.lut", rows, d, kind="table", value="rope", layout="rope_rows")
        y = self.value(name, self.tokens, heads * d)
        return self.op(name, "rope", "rope", {"R": rows, "head_dim": d}, x=x, lut=lut, y=y)


def prefill(model: Model, bucket: int) -> Phase:
    """The decoder block over a bucket of tokens."""
    w = _Writer(model, bucket, "prefill")
    q, k, v = _attention_inputs(w)
    a = w.value("attention", bucket, model.heads * model.head_dim)
    shape = {
        "S": bucket,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "causal": True,
    }
    w.op("attention", "flash_attention", "attention", shape, q=q, k=k, v=v, y=a)
    _after_attention(w)
    return Phase(f"prefill_{bucket}", "prefill", bucket, w.values, tuple(w.ops))


def decode(model: Model, context: int) -> Phase:
    """The decoder block for one token, its keys and values in a cache of `context` rows."""
    w = _Writer(model, 1, "decode")
    q, k, v = _attention_inputs(w)
    width = model.kv_heads * model.head_dim
    k_cache = w.value("k_cache", context, width, kind="cache", value=k)
    v_cache = w.value("v_cache", context, width, kind="cache", value=v)
    position = w.value("position", POSITION_WORDS, dtype="i32", kind="position")
    a = w.value("attention", 1, model.heads * model.head_dim)
    shape = {
        "context": context,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
    }
    bind = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "position": position, "y": a}
    w.op("attention", "decode_attention", "attention", shape, **bind)
    _after_attention(w)
    return Phase("decode", "decode", None, w.values, tuple(w.ops))


def lm_head(model: Model) -> Phase:
    """The final norm of one token and the logits, a GEMV per part of the vocabulary."""
    w = _Writer(model, 1, "decode")
    w.value("x", 1, model.dim)
    w.norm("final_norm", "x", "model.norm.weight", 1, model.dim)
    tensor = "model.embed_tokens.weight" if model.tied else "lm_head.weight"
    rows = min(HEAD_ROWS, key=lambda r: -(-model.vocab // r) * r)
    for part in range(-(-model.vocab // rows)):
        start = part * rows
        weight = w.static(
            f"logits_{part}.weight", tensor, rows, model.dim, layout="padded_rows", row_start=start
        )
        y = w.value(f"logits_{part}", 1, rows, value="logits", row_start=start)
        shape = {"M": rows, "K": model.dim}
        w.op(f"logits_{part}", "gemv", "lm_head", shape, W=weight, x="final_norm", y=y)
    return Phase("lm_head", "lm_head", None, w.values, tuple(w.ops))


def _attention_inputs(w: _Writer) -> tuple[str, str, str]:
    """Norm, projections, biases, QK-norm and RoPE; the names of the final q, k and v."""
    model, tokens, d = w.model, w.tokens, w.model.head_dim
    attention = "model.layers.{layer}.self_attn"
    x = w.value("x", tokens, model.dim)
    h = w.norm("attn_norm", x, "model.layers.{layer}.input_layernorm.weight", tokens, model.dim)
    heads = {"q": model.heads, "k": model.kv_heads, "v": model.kv_heads}
    last = {
        n: w.linear(f"{n}_proj", "qkv", h, f"{attention}.{n}_proj.weight", model.dim, heads[n] * d)
        for n in "qkv"
    }
    if model.qkv_bias:
        for n in "qkv":
            tensor = f"{attention}.{n}_proj.bias"
            last[n] = w.bias(f"{n}_bias", last[n], tensor, heads[n] * d)
    if model.qk_norm:
        for n in "qk":
            tensor = f"{attention}.{n}_norm.weight"
            last[n] = w.norm(f"{n}_norm", last[n], tensor, tokens * heads[n], d)
    return (
        w.rope("q_rope", last["q"], heads["q"]),
        w.rope("k_rope", last["k"], heads["k"]),
        last["v"],
    )


def _after_attention(w: _Writer) -> None:
    """Output projection, residuals and the SwiGLU MLP."""
    model, layer = w.model, "model.layers.{layer}"
    mlp = f"{layer}.mlp"
    width = model.heads * model.head_dim
    o = w.linear("o_proj", "o", "attention", f"{layer}.self_attn.o_proj.weight", width, model.dim)
    x1 = w.residual("attn_residual", "x", o)
    tensor = f"{layer}.post_attention_layernorm.weight"
    h = w.norm("mlp_norm", x1, tensor, w.tokens, model.dim)
    gate = w.linear("gate_proj", "gate_up", h, f"{mlp}.gate_proj.weight", model.dim, model.hidden)
    up = w.linear("up_proj", "gate_up", h, f"{mlp}.up_proj.weight", model.dim, model.hidden)
    y = w.value("silu_mul", w.tokens, model.hidden)
    shape = {"N": w.tokens * model.hidden}
    w.op("silu_mul", "silu_mul", "silu_mul", shape, gate=gate, up=up, y=y)
    down = w.linear("down_proj", "down", y, f"{mlp}.down_proj.weight", model.hidden, model.dim)
    w.residual("mlp_residual", x1, down)
