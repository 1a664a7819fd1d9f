"""A published `config.json`: what it says of a decoder, and what of it we do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oracle.errors import WeightError
from oracle.spec import ModelSpec, tensor_shapes

Config = Mapping[str, Any]


def _first(config: Config, *keys: str) -> str:
    """`key=value` of the first key that says something, or nothing."""
    for key in keys:
        value = config.get(key)
        if value is not None and value is not False:
            return f"{key}={value}"
    return ""


def _experts(config: Config) -> str:
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return next((f"{key}={config[key]}" for key in keys if (config.get(key) or 0) > 1), "")


def _alibi(config: Config) -> str:
    inner = config.get("attn_config") or {}
    for place in (config, inner):
        if place.get("alibi") or place.get("position_embedding_type") == "alibi":
            return _first(place, "alibi", "position_embedding_type")
    return ""


def _partial_rotary(config: Config) -> str:
    rope = config.get("rope_parameters") or {}
    for place in (config, rope):
        for key in ("partial_rotary_factor", "rotary_pct", "rope_pct"):
            if place.get(key, 1.0) != 1.0:
                return f"{key}={place[key]}"
    head = config.get("head_dim")
    turned = config.get("rotary_dim")
    return f"rotary_dim={turned}" if turned and turned != head else ""


def _window(config: Config) -> str:
    """A window counts when it is used: some configs name one that they switch off."""
    if "sliding_attention" in (config.get("layer_types") or ()):
        return "layer_types with sliding_attention"
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        return f"sliding_window={window}"
    if config.get("use_sliding_window"):
        return "use_sliding_window=True"
    return _first(config, "attention_chunk_size")


def _activation(config: Config) -> str:
    keys = ("hidden_act", "hidden_activation", "activation_function")
    key = next((key for key in keys if key in config), "")
    return f"{key}={config[key]!r}" if key and config[key] not in ("silu", "swish") else ""


def _scale(config: Config) -> str:
    keys = ("embedding_multiplier", "residual_multiplier", "attention_multiplier",
            "logits_scaling", "logit_scale", "scale_emb", "query_pre_attn_scalar")  # fmt: skip
    return next((f"{k}={config[k]}" for k in keys if config.get(k) not in (None, 1, 1.0)), "")


SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
REFUSED: tuple[tuple[str, Callable[[Config], str]], ...] = (
    ("an encoder-decoder", lambda c: _first(c, "is_encoder_decoder")),
    ("a model with parts for images or sound", lambda c: _part(c)),
    ("a mixture of experts", _experts),
    ("multi-head latent attention", lambda c: _first(c, "kv_lora_rank", "q_lora_rank")),
    ("ALiBi", _alibi),
    ("a partial rotary embedding", _partial_rotary),
    ("a sliding window in use", _window),
    ("an MLP that is not SwiGLU", _activation),
    ("a soft cap of logits", lambda c: _first(c, *SOFT_CAPS)),
    ("scaled embeddings, residuals or logits", _scale),
    ("attention beside the MLP", lambda c: _first(c, "parallel_attn", "use_parallel_residual")),
    ("clipped projections", lambda c: _first(c, "clip_qkv")),
    ("a bias in the MLP", lambda c: _first(c, "mlp_bias", "use_bias")),
    ("quantised weights", lambda c: "quantization_config" if c.get("quantization_config") else ""),
)


def _part(config: Config) -> str:
    keys = ("vision_config", "audio_config", "text_config")
    return next((key for key in keys if config.get(key)), "")


def refuse_unsupported(config: Config) -> None:
    """Raise WeightError with the name of the first feature that this decoder does not have."""
    for feature, find in REFUSED:
        said = find(config)
        if said:
            raise WeightError(f"config.json: {feature} is not supported ({said})")


def rope_of(config: Config) -> tuple[float | None, dict[str, Any] | None]:
    """Theta (None: not said) and scaling; WeightError on a scaling that we do not have."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise WeightError(
            f"config.json: rope scaling {kind!r} is not supported; supported: default, llama3"
        )
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    missing = [name for name in names if name not in rope]
    if missing:
        raise WeightError(f"config.json: rope scaling llama3 lacks {', '.join(missing)}")
    scaling = {name: float(rope[name]) for name in names[:3]}
    return theta, {"type": kind, **scaling, "original_context": int(rope[names[3]])}


def described(config: Config, name: str, hub: str | None) -> dict[str, Any]:
    """The fields of ModelSpec for a published configuration.

    Defaults are those of transformers' implementation of the family. Its tensors, one by one, must
    be those that our decoder consumes. WeightError names what is not supported.
    """
    refuse_unsupported(config)
    family = config.get("model_type")
    if not family:
        raise WeightError("config.json: no model_type")
    full, tensors = _reference(str(family), config)
    theta, scaling = rope_of(full)
    if theta is None or "rms_norm_eps" not in full:
        what = "no rope" if theta is None else "no RMS norm (rms_norm_eps)"
        raise WeightError(f"config.json: model type {family!r} has {what}")
    heads = full["num_attention_heads"]
    fields = {
        "name": name,
        "family": str(family),
        "layers": full["num_hidden_layers"],
        "dim": full["hidden_size"],
        "heads": heads,
        "kv_heads": full.get("num_key_value_heads") or heads,
        "head_dim": full.get("head_dim") or full["hidden_size"] // heads,
        "hidden": full["intermediate_size"],
        "vocab": full["vocab_size"],
        "rope": {"theta": float(theta), "scaling": scaling},
        "norm_eps": float(full["rms_norm_eps"]),
        "tied": bool(full["tie_word_embeddings"]),
        "qkv_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "qk_norm": "model.layers.0.self_attn.q_norm.weight" in tensors,
        "max_context": full["max_position_embeddings"],
        "hub": hub,
        "wheel": None,
        "tokenizer_from": None,
    }
    _same_tensors(ModelSpec.from_dict({**fields, "layers": 1}), tensors)
    return fields


def _reference(family: str, config: Config) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The configuration with the family's defaults, and the tensors of a model of one layer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {key: value for key, value in config.items() if key != "model_type"}
    one = {k: v for k, v in given.items() if k not in ("layer_types", "max_window_layers")}
    try:
        full = AutoConfig.for_model(family, **given)
        small = AutoConfig.for_model(family, **{**one, "num_hidden_layers": 1})
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(small)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        line = str(error).strip().splitlines()[0][:120]
        raise WeightError(
            f"config.json: transformers cannot make a {family!r} decoder of it: {line}"
        ) from None
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return full.to_dict(), shapes


def _same_tensors(spec: ModelSpec, tensors: Mapping[str, tuple[int, ...]]) -> None:
    wanted = dict(tensor_shapes(spec))
    if spec.tied:
        wanted["lm_head.weight"] = wanted["model.embed_tokens.weight"]
    for name in sorted(set(tensors) | set(wanted)):
        have, want = tensors.get(name), wanted.get(name)
        if have != want:
            what = f"has {name} {list(have)}" if have else f"has no {name}"
            ours = f"this decoder {list(want)}" if want else "this decoder does not"
            raise WeightError(f"config.json: model type {spec.family!r} {what}, {ours}")
