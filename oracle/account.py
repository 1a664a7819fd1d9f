"""Every tensor accounted for: what the file says, what the model needs, and nothing left over."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from oracle.errors import WeightError
from oracle.ggufmap import ROPE_FACTORS
from oracle.rope import scaling_factors
from oracle.sources import WeightSource
from oracle.spec import ModelSpec, tensor_shapes

# Tensors a checkpoint may carry that no decoder consumes, with the reason.
IGNORED = {
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "computed from rope.theta",
    r"rope_freqs\.weight": "computed from rope.scaling, after comparison",
}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def account(spec: ModelSpec, source: WeightSource) -> list[str]:
    """Names to consume, in order; WeightError names the first contradiction. Reads no data but
    that of a tied model's own head and of rope factors."""
    _declared_dims(spec, source.info.declared)
    want = tensor_shapes(spec)
    have = set(source.names())
    for name in sorted(have - set(want)):
        _extra(spec, source, name)
    missing = [name for name in want if name not in have]
    if missing:
        raise WeightError(f"{source.info.origin}: {_missing(spec, missing)}")
    for name, shape in want.items():
        if source.shape(name) != shape:
            raise WeightError(
                f"{source.info.origin}: {name} is {list(source.shape(name))}, "
                f"model {spec.name} needs {list(shape)}"
            )
    return list(want)


def _declared_dims(spec: ModelSpec, declared: Mapping[str, Any]) -> None:
    for key, said in declared.items():
        want = _spec_value(spec, key)
        same = said == want
        if isinstance(want, float) and isinstance(said, int | float):
            same = math.isclose(said, want, rel_tol=1e-6)
        if not same:
            raise WeightError(
                f"the weights say {key}={said}, the config of model {spec.name} says {key}={want}"
            )


def _spec_value(spec: ModelSpec, key: str) -> Any:
    if key == "rope.scaling":
        return asdict(spec.rope.scaling) if spec.rope.scaling else None
    return spec.rope.theta if key == "rope.theta" else getattr(spec, key)


def _extra(spec: ModelSpec, source: WeightSource, name: str) -> None:
    """Accept a named, harmless surplus tensor; refuse all others."""
    if name == HEAD and spec.tied:
        head, embedding = source.get(name), source.get(EMBEDDING)
        if head.shape == embedding.shape and np.array_equal(head, embedding):
            return
        raise WeightError(
            f"{source.info.origin}: {name} differs from {EMBEDDING}, "
            f"but model {spec.name} says tied=true"
        )
    if name == ROPE_FACTORS:
        want = scaling_factors(spec)
        have = source.get(name)
        if have.shape == want.shape and np.allclose(have, want, rtol=1e-4):
            return
        raise WeightError(
            f"{source.info.origin}: {name} contradicts rope.scaling of model {spec.name}"
        )
    if any(re.fullmatch(pattern, name) for pattern in IGNORED):
        return
    hint = ""
    if re.search(r"\.[qkv]_proj\.bias$", name):
        hint = f"; model {spec.name} says qkv_bias={str(spec.qkv_bias).lower()}"
    elif re.search(r"\.[qk]_norm\.weight$", name):
        hint = f"; model {spec.name} says qk_norm={str(spec.qk_norm).lower()}"
    elif (layer := re.match(r"model\.layers\.(\d+)\.", name)) and int(layer[1]) >= spec.layers:
        hint = f"; model {spec.name} says layers={spec.layers}"
    raise WeightError(f"{source.info.origin}: tensor {name} is not consumed{hint}")


def _missing(spec: ModelSpec, missing: list[str]) -> str:
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    first = missing[0]
    hint = ""
    if first == HEAD:
        hint = f"; model {spec.name} says tied=false"
    elif first.endswith("_proj.bias"):
        hint = f"; model {spec.name} says qkv_bias=true"
    elif first.endswith(("q_norm.weight", "k_norm.weight")):
        hint = f"; model {spec.name} says qk_norm=true"
    return f"missing tensor {first}{more}{hint}"


def finite(name: str, values: np.ndarray) -> np.ndarray:
    """`values` (float, or bfloat16 bits) as they are; WeightError when any is NaN or infinite."""
    if values.dtype == np.uint16:
        bad = int(np.count_nonzero((values & 0x7F80) == 0x7F80))
        if bad:
            raise WeightError(f"{name}: {bad} of {values.size} values are NaN or infinite")
        return values
    # The sum is finite unless some value is not (or it overflows): one cheap pass in most cases.
    if not np.isfinite(np.sum(values, dtype=np.float64)):
        bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
        if bad:
            raise WeightError(f"{name}: {bad} of {values.size} values are NaN or infinite")
    return values
