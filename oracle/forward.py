"""The decoder in FP32, one named value at a time, streaming layers (torch on the CPU).

Values carry the model vocabulary: x, attn_norm, q_proj, ..., mlp_residual in a layer, embedding,
final_norm and logits of the model. Prompts are laid end to end, never padded: everything but
attention works on all tokens at once, attention on each prompt alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from oracle.errors import WeightError
from oracle.rope import rope_table
from oracle.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

MODEL = -1  # the key of model-level values in a capture
LAYER_VALUES = (
    *("x", "attn_norm", "q_proj", "k_proj", "v_proj", "q_bias", "k_bias", "v_bias"),
    *("q_norm", "k_norm", "q_rope", "k_rope", "attention", "o_proj", "attn_residual"),
    *("mlp_norm", "gate_proj", "up_proj", "silu_mul", "down_proj", "mlp_residual"),
)
MODEL_VALUES = ("embedding", "final_norm")
Capture = Mapping[int, Collection[str]]
LITTLE_WORK = 1e8  # multiply-adds of one projection
HEAD_ROWS = 8192  # of the vocabulary at a time
Drafts = dict[str, "Tensor"]


class Tensors(Protocol):
    def raw(self, name: str) -> np.ndarray:
        """float32, float16, or bfloat16 bits as uint16."""


@dataclass
class Cache:
    """K (after rope) and V of one prompt: per layer, float32 [tokens, kv_heads, head_dim]."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        return int(self.keys[0].shape[0]) if self.keys else 0


@dataclass
class Trace:
    """Per prompt: captured values by "layers.{l}.{name}" or model-level name, [tokens, width];
    logits [tokens or 1, vocab]; and the caches to go on with."""

    values: list[dict[str, np.ndarray]]
    logits: list[np.ndarray]
    caches: list[Cache]


def forward(
    spec: ModelSpec,
    tensors: Tensors,
    batches: Sequence[Sequence[int]],
    capture: Capture | None = None,
    caches: Sequence[Cache] | None = None,
    all_logits: bool = False,
    drafts: Drafts | None = None,
) -> Trace:
    """Run every prompt's new tokens; `caches` (updated in place) hold what came before.

    Only the last position has logits unless `all_logits`. With `drafts`, which keeps rounded
    weights from call to call, operands of projections are rounded to bfloat16: quick guesses, no
    reference. WeightError on an empty prompt, a token outside the vocabulary, a context over the
    model's limit or an unknown value name.
    """
    import torch

    run = _Run(spec, tensors, batches, capture or {}, caches, drafts)
    with torch.inference_mode(), threads_for(len(run.tokens) * spec.dim * spec.hidden):
        x = run.embedding()
        for layer in range(spec.layers):
            x = run.layer(layer, x)
        return run.finish(x, all_logits)


@contextlib.contextmanager
def threads_for(work: float) -> Iterator[None]:
    """One torch thread for little work: threads that wait for each other cost more than they
    bring, and forty times as much when the cores are busy with something else."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if work < LITTLE_WORK else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Run:
    """One pass over the model: the state that its steps share."""

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Tensors,
        batches: Sequence[Sequence[int]],
        capture: Capture,
        caches: Sequence[Cache] | None,
        drafts: Drafts | None,
    ) -> None:
        self.spec, self.tensors, self.capture, self.drafts = spec, tensors, capture, drafts
        self.widened: Tensor | None = None
        self.caches = list(caches) if caches is not None else [Cache() for _ in batches]
        self.lengths = [len(tokens) for tokens in batches]
        _check(spec, batches, self.caches, capture)
        self.tokens = np.concatenate([np.asarray(tokens, np.int64) for tokens in batches])
        starts = [cache.length for cache in self.caches]
        spans = zip(starts, self.lengths, strict=True)
        positions = np.concatenate([np.arange(start, start + n) for start, n in spans])
        self.table = self.tensor(rope_table(spec, positions))
        self.values: list[dict[str, np.ndarray]] = [{} for _ in batches]

    def tensor(self, array: np.ndarray) -> Tensor:
        import warnings

        import torch

        with warnings.catch_warnings():  # mapped weights are read-only, and stay so
            warnings.simplefilter("ignore", UserWarning)
            if array.dtype == np.uint16:
                return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(np.ascontiguousarray(array))

    def split(self, value: Tensor) -> Sequence[Tensor]:
        """[all tokens, width] cut into prompts."""
        import torch

        return cast("Sequence[Tensor]", torch.functional.split(value, self.lengths))

    def keep(self, layer: int, name: str, value: Tensor) -> Tensor:
        """Record `value` [all tokens, width] per prompt when it was asked for; pass it on."""
        if name in self.capture.get(layer, ()):
            key = name if layer == MODEL else f"layers.{layer}.{name}"
            for store, part in zip(self.values, self.split(value), strict=True):
                store[key] = part.numpy().copy()
        return value

    def weight(self, layer: int, name: str) -> Tensor:
        return self.tensor(self.tensors.raw(f"model.layers.{layer}.{name}")).float()

    def project(self, name: str, x: Tensor, rows: slice = slice(None)) -> Tensor:
        """x [tokens, in] through `rows` of the matrix `name` [out, in]."""
        import torch

        if self.drafts is not None:
            if name not in self.drafts:
                self.drafts[name] = self.tensor(self.tensors.raw(name)).bfloat16()
            return (x.bfloat16() @ self.drafts[name][rows].T).float()
        weight = self.tensor(self.tensors.raw(name)[rows])
        if weight.dtype != torch.float32:  # one buffer for all: new pages cost more than widening
            if self.widened is None or self.widened.numel() < weight.numel():
                self.widened = torch.empty(weight.numel())
            wide = self.widened[: weight.numel()].view(weight.shape)
            weight = wide.copy_(weight)
        return x @ weight.T

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        import torch

        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.spec.norm_eps)
        return weight * (x * scale)

    def embedding(self) -> Tensor:
        table = self.tensors.raw("model.embed_tokens.weight")
        return self.keep(MODEL, "embedding", self.tensor(table[self.tokens]).float())

    def layer(self, layer: int, x: Tensor) -> Tensor:
        def linear(name: str, operand: Tensor, group: str) -> Tensor:
            full = f"model.layers.{layer}.{group}.{name}.weight"
            return self.keep(layer, name, self.project(full, operand))

        import torch.nn.functional as functional

        self.keep(layer, "x", x)
        normed = self.norm(x, self.weight(layer, "input_layernorm.weight"))
        self.keep(layer, "attn_norm", normed)
        parts = {part: linear(f"{part}_proj", normed, "self_attn") for part in "qkv"}
        if self.spec.qkv_bias:
            for part in "qkv":
                bias = self.weight(layer, f"self_attn.{part}_proj.bias")
                parts[part] = self.keep(layer, f"{part}_bias", parts[part] + bias)
        for part in "qk":
            parts[part] = self.rotate(layer, part, parts[part])
        attention = self.keep(layer, "attention", self.attend(layer, **parts))
        x = self.keep(layer, "attn_residual", x + linear("o_proj", attention, "self_attn"))
        normed = self.norm(x, self.weight(layer, "post_attention_layernorm.weight"))
        self.keep(layer, "mlp_norm", normed)
        gate, up = linear("gate_proj", normed, "mlp"), linear("up_proj", normed, "mlp")
        mixed = self.keep(layer, "silu_mul", functional.silu(gate) * up)
        return self.keep(layer, "mlp_residual", x + linear("down_proj", mixed, "mlp"))

    def rotate(self, layer: int, part: str, flat: Tensor) -> Tensor:
        """QK-norm where the model has it, then rope; [tokens, heads*head_dim] in and out."""
        import torch

        heads = flat.view(len(flat), -1, self.spec.head_dim)
        if self.spec.qk_norm:
            heads = self.norm(heads, self.weight(layer, f"self_attn.{part}_norm.weight"))
            self.keep(layer, f"{part}_norm", heads.flatten(1))
        cos, sin = (half[:, None, :] for half in self.table.chunk(2, -1))
        low, high = heads.chunk(2, -1)
        turned = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
        return self.keep(layer, f"{part}_rope", turned.flatten(1))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of each prompt over its cache; [tokens, heads*head_dim]."""
        import torch

        results = []
        for cache, *new in zip(self.caches, *(self.split(part) for part in (q, k, v)), strict=True):
            queries, keys, values = (part.view(len(part), -1, self.spec.head_dim) for part in new)
            if len(cache.keys) > layer:
                keys = torch.cat([cache.keys[layer], keys])
                values = torch.cat([cache.values[layer], values])
                cache.keys[layer], cache.values[layer] = keys, values
            else:
                cache.keys.append(keys)
                cache.values.append(values)
            results.append(_attention(queries, keys, values))
        return torch.cat(results)

    def finish(self, x: Tensor, all_logits: bool) -> Trace:
        import torch

        normed = self.norm(x, self.tensor(self.tensors.raw("model.norm.weight")).float())
        self.keep(MODEL, "final_norm", normed)
        head = "model.embed_tokens.weight" if self.spec.tied else "lm_head.weight"
        parts = [part if all_logits else part[-1:] for part in self.split(normed)]
        rows = torch.cat(parts)
        logits = np.empty((len(rows), self.spec.vocab), np.float32)
        for start in range(0, self.spec.vocab, HEAD_ROWS):
            some = slice(start, start + HEAD_ROWS)
            logits[:, some] = self.project(head, rows, some).numpy()
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return Trace(self.values, np.split(logits, ends), self.caches)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[n, heads, d] over [m, kv_heads, d], the queries being the last n of m positions."""
    import torch

    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    outputs = []
    for head in range(k.shape[1]):  # one group of query heads at a time bounds the memory
        queries = q[:, head * group : (head + 1) * group].transpose(0, 1)
        scores = queries @ k[:, head].T / q.shape[2] ** 0.5
        shares = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
        outputs.append((shares @ v[:, head]).transpose(0, 1))
    return torch.cat(outputs, 1).flatten(1)


def _check(
    spec: ModelSpec, batches: Sequence[Sequence[int]], caches: Sequence[Cache], capture: Capture
) -> None:
    if not batches or len(caches) != len(batches):
        raise WeightError(f"{len(batches)} prompts with {len(caches)} caches; need one of each")
    for number, (tokens, cache) in enumerate(zip(batches, caches, strict=True)):
        total = cache.length + len(tokens)
        if not len(tokens):
            raise WeightError(f"prompt {number} is empty")
        if total > spec.max_context:
            raise WeightError(f"prompt {number}: {total} tokens, the limit is {spec.max_context}")
        if min(tokens) < 0 or max(tokens) >= spec.vocab:
            raise WeightError(f"prompt {number}: a token is outside 0..{spec.vocab - 1}")
    for layer, names in capture.items():
        known = MODEL_VALUES if layer == MODEL else LAYER_VALUES
        unknown = sorted(set(names) - set(known))
        if unknown or not MODEL <= layer < spec.layers:
            what = unknown[0] if unknown else f"layer {layer}"
            raise WeightError(f"cannot capture {what}; known: {', '.join(known)}")
