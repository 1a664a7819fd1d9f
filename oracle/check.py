"""Gate 0: is the oracle itself right? The same packed weights through transformers, in FP32."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.errors import WeightError
from oracle.forward import forward
from oracle.greedy import greedy
from oracle.metrics import max_abs
from oracle.pack import open_packed
from oracle.sources import WeightSource
from oracle.spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def against_transformers(
    spec: ModelSpec, packed_dir: Path, prompts: Sequence[Sequence[int]], steps: int = 32
) -> dict[str, Any]:
    """Compare logits at every position of prompt and answer, and `steps` greedy tokens.

    Returns max_abs_logit (worst of all prompts), positions (compared), greedy_equal (prompts
    whose tokens all agree), prompts, steps, and both token lists.
    """
    packed = open_packed(packed_dir)
    trace = forward(spec, packed.tensors, prompts)
    tokens, _ = greedy(spec, packed.tensors, trace, steps)
    whole = [[*prompt, *more[:-1]] for prompt, more in zip(prompts, tokens, strict=True)]
    ours = forward(spec, packed.tensors, whole, all_logits=True).logits
    theirs = run_reference(reference_model(spec, packed.tensors), whole)
    starts = [len(prompt) - 1 for prompt in prompts]
    picked = [
        logits[start:].argmax(-1).tolist() for logits, start in zip(theirs, starts, strict=True)
    ]
    return {
        "max_abs_logit": max(max_abs(a, b) for a, b in zip(ours, theirs, strict=True)),
        "positions": sum(len(logits) for logits in theirs),
        "greedy_equal": sum(a == b for a, b in zip(tokens, picked, strict=True)),
        "prompts": len(prompts),
        "steps": steps,
        "ours": tokens,
        "reference": picked,
    }


def run_reference(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Logits [tokens, vocab] of each text, all in one pass over the weights.

    Texts are padded at the end, which a causal model cannot see from before. Where a text is a
    prompt and its continuation, the continuation is the model's own greedy one exactly if each of
    its tokens is the argmax of the row before: then every row has the right past.
    """
    import torch

    longest = max(map(len, texts))
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(list(text))
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits
    return [row[: len(text)].numpy() for row, text in zip(logits, texts, strict=True)]


def reference_model(spec: ModelSpec, tensors: WeightSource) -> PreTrainedModel:
    """transformers' own model of `spec.family` in FP32 with our weights.

    A module has its weights only while it runs, so that memory is that of the largest module.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = reference_config(spec)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    named = {name: name for name in tensors.names()}
    if spec.tied:
        named["lm_head.weight"] = "model.embed_tokens.weight"
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if wanted != {name: tensors.shape(ours) for name, ours in named.items()}:
        raise WeightError(f"transformers' {spec.family} has other tensors than {spec.name}")
    for prefix, module in model.named_modules():
        own = {
            name: named[f"{prefix}.{name}"] for name, _ in module.named_parameters(recurse=False)
        }
        if own:
            module.register_forward_pre_hook(functools.partial(_lend, tensors, own))
            module.register_forward_hook(functools.partial(_take_back, list(own)))
    rotary = type(model.model.rotary_emb)(config=config)  # computed, so not in the state
    model.model.rotary_emb = rotary
    return model.eval()


def _lend(tensors: WeightSource, own: dict[str, str], module: Any, _inputs: Any) -> None:
    import torch

    for name, source in own.items():
        values = torch.from_numpy(np.array(tensors.get(source)))
        module._parameters[name] = torch.nn.Parameter(values, requires_grad=False)


def _take_back(names: list[str], module: Any, _inputs: Any, _outputs: Any) -> None:
    for name in names:
        module._parameters[name] = module._parameters[name].to("meta")


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
