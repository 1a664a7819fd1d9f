"""The FP32 decoder: against transformers for every family, rope, caches, traces, metrics."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from oracle import metrics
from oracle.chat import assemble, reduce_template
from oracle.check import against_transformers, reference_config
from oracle.errors import SpecError, WeightError
from oracle.forward import LAYER_VALUES, MODEL, forward
from oracle.greedy import greedy
from oracle.pack import open_packed, pack
from oracle.rope import rope_table
from oracle.spec import ModelSpec
from oracle.synthetic import successor, synthetic
from oracle.traces import Golden, golden
from oracle.weights import WeightRequest, resolve

ROOT = Path(__file__).parent.parent
MODELS = sorted((ROOT / "conf/model").glob("*.yaml"))
SCALING = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_context": 32,
}
SMALL = {
    "name": "small",
    "family": "llama",
    "layers": 2,
    "dim": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "hidden": 96,
    "vocab": 251,
    "rope": {"theta": 10000.0, "scaling": None},
    "norm_eps": 1e-5,
    "tied": True,
    "qkv_bias": False,
    "qk_norm": False,
    "max_context": 256,
    "hub": "nobody/nothing",
}
FAMILIES = {
    "llama-tied": {},
    "llama-untied-scaled": {"tied": False, "rope": {"theta": 5e5, "scaling": SCALING}},
    "qwen2-bias": {"family": "qwen2", "qkv_bias": True, "norm_eps": 1e-6},
    "qwen3-norm": {"family": "qwen3", "qk_norm": True, "head_dim": 24, "tied": False},
}
TALK = ("What is the capital of France?", "Write a short poem about the sea.")


def model_spec(path: Path) -> ModelSpec:
    return ModelSpec.from_dict(yaml.safe_load(path.read_text()))


def small(**changes: object) -> ModelSpec:
    return ModelSpec.from_dict(SMALL | changes)


@pytest.fixture(scope="session")
def default_model() -> tuple[ModelSpec, Path]:
    """The default model's real weights, packed once per cache."""
    spec = next(m for m in map(model_spec, MODELS) if m.wheel is not None)
    cache = Path(os.environ.get("TILEGATE_CACHE") or ROOT / "build/cache")
    source = resolve(spec, WeightRequest(mode="wheel", cache_dir=cache / "weights")).source
    folder = cache / "tests" / f"packed-{source.identity()[:16]}"
    try:
        open_packed(folder, verify=True)
    except (WeightError, OSError):
        pack(spec, source, folder)
    return spec, folder


def test_the_real_model_agrees_with_transformers(default_model: tuple[ModelSpec, Path]) -> None:
    from tokenizers import Tokenizer

    spec, folder = default_model
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chat = json.loads((folder / "chat.json").read_text())
    texts = [assemble(chat, [{"role": "user", "content": text}]) for text in TALK]
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    found = against_transformers(spec, folder, prompts)
    assert found["positions"] == sum(map(len, prompts)) + 2 * 31 > 100
    assert found["max_abs_logit"] <= 1e-3
    assert found["greedy_equal"] == found["prompts"] == 2
    assert len(found["ours"][0]) == found["steps"] == 32
    assert "Paris" in tokenizer.decode(found["ours"][0])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    spec = small(**FAMILIES[name])
    pack(spec, synthetic(spec, seed=3), tmp_path)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, spec.vocab, length).tolist() for length in (1, 7, 50)]
    found = against_transformers(spec, tmp_path, prompts)
    assert found["max_abs_logit"] <= 1e-3
    assert found["greedy_equal"] == 3


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_rope_tables_agree_beyond_the_original_context(path: Path) -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    spec = model_spec(path)
    config = LlamaConfig(**reference_config(dataclasses.replace(spec, family="llama")).to_dict())
    positions = np.array([0, 1, 100, 8191, 8192, min(20000, spec.max_context) - 1])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(positions)[None])
    half = spec.head_dim // 2
    want = torch.cat([cos[0, :, :half], sin[0, :, :half]], -1).numpy()
    # A last-bit difference of a float32 frequency is 1e-3 rad at position 20000.
    assert np.abs(rope_table(spec, positions) - want).max() < 2.5e-3
    assert np.abs(rope_table(spec, positions[:3]) - want[:3]).max() < 2e-5


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_model_files_are_short_and_named_like_their_model(path: Path) -> None:
    assert model_spec(path).name == path.stem
    assert len(path.read_text().splitlines()) <= 40


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": 0}, "layers=0"),
        ({"heads": 5}, "multiple of kv_heads"),
        ({"qk_norms": True}, "did you mean 'qk_norm'"),
        ({"rope": {"theta": 1e4, "scaling": {"type": "yarn"}}}, "'yarn' is not supported"),
        ({"tied": 1}, "must be true or false"),
        ({"norm_eps": math.nan}, "norm_eps"),
    ],
)
def test_impossible_models_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        small(**change)
    assert "\n" not in str(caught.value)


def test_prompts_do_not_disturb_each_other_and_caches_continue() -> None:
    spec = small(**FAMILIES["qwen2-bias"])
    source = synthetic(spec)
    prompts = [[1, 2, 3, 4, 5], [9], [7, 8, 7]]
    together = forward(spec, source, prompts, all_logits=True)
    for prompt, logits in zip(prompts, together.logits, strict=True):
        alone = forward(spec, source, [prompt], all_logits=True)
        np.testing.assert_allclose(logits, alone.logits[0], atol=1e-4)
    start = forward(spec, source, [prompts[0][:2]])
    rest = forward(spec, source, [prompts[0][2:]], caches=start.caches, all_logits=True)
    np.testing.assert_allclose(rest.logits[0], together.logits[0][2:], atol=1e-4)


def test_every_value_can_be_captured() -> None:
    spec = small(family="qwen3", qk_norm=True, qkv_bias=True)
    capture = {1: LAYER_VALUES, MODEL: ("embedding", "final_norm")}
    values = forward(spec, synthetic(spec), [[1, 2, 3]], capture).values[0]
    assert set(values) == {f"layers.1.{name}" for name in LAYER_VALUES} | {
        "embedding",
        "final_norm",
    }
    assert values["layers.1.q_rope"].shape == (3, spec.q_width)
    assert values["layers.1.k_norm"].shape == (3, spec.kv_width)
    residual = values["layers.1.attn_residual"] + values["layers.1.down_proj"]
    np.testing.assert_array_equal(residual, values["layers.1.mlp_residual"])
    biased = values["layers.1.q_proj"] + synthetic(spec).get("model.layers.1.self_attn.q_proj.bias")
    np.testing.assert_array_equal(biased, values["layers.1.q_bias"])


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ([], "0 prompts"),
        ([[]], "empty"),
        ([[251]], "outside"),
        ([[-1]], "outside"),
        ([[1] * 257], "limit is 256"),
    ],
)
def test_impossible_prompts_are_refused(prompts: list[list[int]], says: str) -> None:
    with pytest.raises(WeightError, match=says):
        forward(small(), synthetic(small()), prompts)
    with pytest.raises(WeightError, match="cannot capture q_prj"):
        forward(small(), synthetic(small()), [[1]], {0: ["q_prj"]})


@pytest.mark.parametrize("tied", [True, False])
def test_synthetic_weights_predict_the_successor_with_a_margin(tied: bool) -> None:
    spec = small(dim=256, heads=4, head_dim=64, hidden=512, vocab=4096, layers=6, tied=tied)
    source = synthetic(spec, seed=1)
    prompt = list(range(40, 60))
    logits = forward(spec, source, [prompt], all_logits=True).logits[0]
    assert logits.argmax(-1).tolist() == [successor(spec, token) for token in prompt]
    ordered = np.sort(logits, -1)
    assert (ordered[:, -1] - ordered[:, -2]).min() > 1.0
    assert 5 < ordered[:, -1].mean() < 50
    np.testing.assert_array_equal(
        source.get("model.layers.5.mlp.down_proj.weight"),
        synthetic(spec, seed=1).get("model.layers.5.mlp.down_proj.weight"),
    )
    other = synthetic(spec, seed=2)
    assert other.identity() != source.identity()


def test_golden_traces_hold_what_the_decoder_computes(tmp_path: Path) -> None:
    spec = small(layers=3)
    pack(spec, synthetic(spec), tmp_path / "packed")
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    record = golden(spec, tmp_path / "packed", prompts, tmp_path / "golden", steps=8)
    traces = Golden(tmp_path / "golden")
    assert traces.record == record
    tensors = open_packed(tmp_path / "packed").tensors
    trace = forward(spec, tensors, prompts, {2: ["silu_mul"]})
    tokens, logits = greedy(spec, tensors, trace, 8)
    for number, entry in enumerate(traces.prompts):
        want = trace.values[number]["layers.2.silu_mul"]
        np.testing.assert_array_equal(traces.get(number, "layers.2.silu_mul"), want)
        np.testing.assert_array_equal(traces.get(number, "step_logits"), np.stack(logits[number]))
        assert entry["greedy"] == tokens[number] == [step["ids"][0] for step in entry["top"]]
        assert all(step["margin"] > 0 and len(step["ids"]) == 5 for step in entry["top"])
    with pytest.raises(WeightError, match="has no"):
        traces.get(0, "layers.9.x")


def test_metrics_never_favour_what_is_not_finite() -> None:
    want = np.random.default_rng(0).normal(size=(4, 8))
    for bad in (math.nan, math.inf):
        have = want.copy()
        have[2, 3] = bad
        found = metrics.measure(have, want, 1e9, 1e9)
        assert found.violation_share > 0 and found.max_abs == found.mean_rel_l1 == math.inf
        assert not found.cosine >= 0.0 and not found.min_cosine >= 0.0 and not found.pearson >= 0.0
        assert not metrics.kl_divergence(have, want)[2] <= 1e9
    with pytest.raises(ValueError, match="not comparable"):
        metrics.top_k(np.array([1.0, math.nan]), 1)
    for shape in ((0,), (4, 7)):
        with pytest.raises(ValueError, match="cannot compare"):
            metrics.measure(np.zeros(shape), want, 1, 1)


def test_metrics_give_known_values() -> None:
    want = np.array([[3.0, 4.0], [1.0, 0.0]])
    have = np.array([[3.0, 4.5], [0.0, 1.0]])
    found = metrics.measure(have, want, atol=0.1, rtol=0.1)
    assert found.count == 4 and found.max_abs == 1.0
    assert found.violation_share == 0.5
    assert found.mean_rel_l1 == pytest.approx(2.5 / 8)
    assert found.min_cosine == 0.0
    assert metrics.cosine(want * 5, want) == pytest.approx(1.0)
    assert math.isnan(metrics.cosine_rows(np.zeros((1, 2)), np.ones((1, 2)))[0])
    assert metrics.kl_divergence(want, want).tolist() == [0.0, 0.0]
    assert metrics.top_k(np.array([1.0, 5.0, 5.0, 2.0]), 3) == [1, 2, 3]


TEMPLATES = {
    "plain": (
        "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant\n{% endif %}",
        "turns",
    ),
    "trimmed": (
        "<s>{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        "turns",
    ),
    "numbered": (
        "{% for m in messages %}{{ loop.index }}{{ m.role }}:{{ m.content }}\n{% endfor %}",
        "raw",
    ),
    "upper": ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "raw"),
    "refuses": ("{{ raise_exception('no') }}", "raw"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates_are_reduced_or_said_to_be_irreducible(name: str) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    template, kind = TEMPLATES[name]
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "a": 2}, []))
    chat = reduce_template(tokenizer, template, 0, [1])
    assert chat["kind"] == kind and (kind == "turns" or chat["reason"])
    if kind == "turns":
        reference = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template)
        turns = [{"role": role, "content": f" {role}! "} for role in ("system", "user")]
        turns += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y\n"}]
        want = reference.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert assemble(chat, turns) == want
        assert chat["trim"] == (name == "trimmed")


def test_the_built_tokenizer_splits_digits_and_round_trips(
    default_model: tuple[ModelSpec, Path],
) -> None:
    from tokenizers import Tokenizer

    spec, folder = default_model
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    record = open_packed(folder).record
    assert record["tokenizer"]["tokens"] == spec.vocab
    for text in ("1984 + 16 = 2000", "naïve façade\n\n\tx", "日本語 🙂", "a  b   c"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert len(tokenizer.encode("1984").ids) == 4
    chat = json.loads((folder / "chat.json").read_text())
    assert chat["kind"] == "turns" and chat["eos_ids"]
    text = assemble(chat, [{"role": "user", "content": "Hi"}])
    special = [i for i in tokenizer.encode(text).ids if i in (chat["bos_id"], *chat["eos_ids"])]
    assert len(special) == 5  # three turns begin, two end
