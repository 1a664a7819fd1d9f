"""Gate 0: is the oracle itself right? The same packed weights through transformers, in FP32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.forward import forward, greedy, threads_for
from oracle.metrics import max_abs
from oracle.pack import open_packed
from oracle.sources import WeightSource
from oracle.spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def against_transformers(
    spec: ModelSpec, packed_dir: Path, prompts: Sequence[Sequence[int]], steps: int = 32
) -> dict[str, Any]:
    """Compare logits at every prompt position and `steps` greedy tokens with transformers.

    Returns max_abs_logit (worst of all prompts), positions (compared), greedy_equal (prompts
    whose tokens all agree), prompts, steps, and both token lists.
    """
    packed = open_packed(packed_dir)
    trace = forward(spec, packed.tensors, prompts, all_logits=True)
    ours = [logits.copy() for logits in trace.logits]
    tokens, _ = greedy(spec, packed.tensors, trace, steps)
    model = reference_model(spec, packed.tensors)
    theirs, worst = [], 0.0
    for prompt, logits in zip(prompts, ours, strict=True):
        want, continued = run_reference(model, prompt, steps)
        worst = max(worst, max_abs(logits, want))
        theirs.append(continued)
    return {
        "max_abs_logit": worst,
        "positions": sum(len(logits) for logits in ours),
        "greedy_equal": sum(a == b for a, b in zip(tokens, theirs, strict=True)),
        "prompts": len(prompts),
        "steps": steps,
        "ours": tokens,
        "reference": theirs,
    }


def run_reference(
    model: PreTrainedModel, prompt: Sequence[int], steps: int
) -> tuple[np.ndarray, list[int]]:
    """Logits [tokens, vocab] of the prompt, and the greedy continuation."""
    import torch

    ids = torch.tensor([list(prompt)])
    mask = torch.ones_like(ids)
    with torch.inference_mode(), threads_for(len(prompt)):
        logits = model(input_ids=ids).logits[0].numpy()
        whole = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=steps)
    return logits, whole[0, len(prompt) :].tolist()


def reference_model(spec: ModelSpec, tensors: WeightSource) -> PreTrainedModel:
    """transformers' own model of `spec.family` in FP32, with all weights replaced by ours."""
    import torch
    from transformers import AutoModelForCausalLM

    config = reference_config(spec)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    state = {name: torch.from_numpy(np.array(tensors.get(name))) for name in tensors.names()}
    if spec.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    if spec.tied:
        model.tie_weights()
    rotary = type(model.model.rotary_emb)(config=config)  # computed, so not in the state
    model.model.rotary_emb = rotary
    return model.float().eval()


def reference_config(spec: ModelSpec) -> Any:
    """The transformers configuration of the spec's family."""
    from transformers import AutoConfig

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.rope.theta}
    if spec.rope.scaling is not None:
        scaling = asdict(spec.rope.scaling)
        rope |= {
            "rope_type": scaling.pop("type"),
            "original_max_position_embeddings": scaling.pop("original_context"),
            **scaling,
        }
    return AutoConfig.for_model(
        spec.family,
        num_hidden_layers=spec.layers,
        hidden_size=spec.dim,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.hidden,
        vocab_size=spec.vocab,
        rms_norm_eps=spec.norm_eps,
        rope_parameters=rope,
        tie_word_embeddings=spec.tied,
        max_position_embeddings=spec.max_context,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
