"""Weights: every source, every tensor accounted for, and each kind of damage named in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_oracle import SCALING, small

from oracle import ggufmap
from oracle.account import account
from oracle.errors import Unavailable, WeightError
from oracle.pack import device_pack, open_packed, pack
from oracle.rope import scaling_factors
from oracle.sources import GgufFile, SafetensorsFolder
from oracle.spec import ModelSpec
from oracle.synthetic import synthetic
from oracle.tensorfile import bf16_to_f32, f32_to_bf16, file_digest, write_tensors
from oracle.weights import WeightRequest, resolve

Tensors = dict[str, np.ndarray]


def tensors_of(spec: ModelSpec) -> Tensors:
    source = synthetic(spec)
    return {name: source.get(name) for name in source.names()}


def write_folder(
    folder: Path, spec: ModelSpec, tensors: Tensors, dtype: str = "F32", **config: object
) -> Path:
    """A published checkpoint: model.safetensors and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    layout = {name: (dtype, value.shape) for name, value in tensors.items()}
    write_tensors(folder / "model.safetensors", layout, tensors.__getitem__)
    said = {
        "model_type": spec.family,
        "num_hidden_layers": spec.layers,
        "hidden_size": spec.dim,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.hidden,
        "vocab_size": spec.vocab,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(said | config))
    return folder


def write_gguf(path: Path, spec: ModelSpec, tensors: Tensors, quantised: bool = False) -> Path:
    """A converted checkpoint: short names, interleaved Q and K rows where converters do that."""
    import gguf

    writer = gguf.GGUFWriter(path, spec.family)
    writer.add_block_count(spec.layers)
    writer.add_embedding_length(spec.dim)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_feed_forward_length(spec.hidden)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_vocab_size(spec.vocab)
    names = {long: short for short, long in (ggufmap.TOP | ggufmap.BLOCK).items()}
    for name, value in tensors.items():
        stem, _, kind = name.rpartition(".")
        parts = stem.split(".", 3)
        short = names[stem] if stem in names else f"blk.{parts[2]}.{names[parts[3]]}"
        for part, heads in (("q_proj", spec.heads), ("k_proj", spec.kv_heads)):
            if name.endswith((f"{part}.weight", f"{part}.bias")) and spec.family == "llama":
                value = ggufmap.interleave_halves(value, heads)
        if quantised and value.ndim == 2:
            kind_of = gguf.GGMLQuantizationType.Q8_0
            value = gguf.quants.quantize(value, kind_of)
            writer.add_tensor(f"{short}.{kind}", value, raw_dtype=kind_of)
        else:
            writer.add_tensor(f"{short}.{kind}", value)
    if spec.rope.scaling:
        writer.add_tensor("rope_freqs.weight", scaling_factors(spec).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def one_line(error: pytest.ExceptionInfo[WeightError], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text and len(text) < 250
    assert all(word in text for word in words), text


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_packing_is_exact_and_readable_by_others(dtype: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file
    from safetensors.torch import load_file as load_torch

    spec = small()
    tensors = tensors_of(spec)
    folder = write_folder(tmp_path / "in", spec, tensors, dtype)
    record = pack(spec, SafetensorsFolder(folder), tmp_path / "out")
    assert record["dtype"] == dtype and record["kind"] == "real"
    packed = open_packed(tmp_path / "out", verify=True)
    for name, want in tensors.items():
        np.testing.assert_array_equal(packed.tensors.get(name), want)
    others = load_torch(tmp_path / "out/model.safetensors")
    assert set(others) == set(tensors)
    if dtype == "F32":
        assert np.array_equal(load_file(tmp_path / "out/model.safetensors")[name], want)


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    spec = small()
    first = pack(spec, synthetic(spec), tmp_path / "a")
    second = pack(spec, synthetic(spec), tmp_path / "b")
    assert first == second and first["kind"] == "rehearsal"
    assert first["sha256"] == file_digest(tmp_path / "a/model.safetensors")


def test_device_weights_are_rounded_to_nearest_even(tmp_path: Path) -> None:
    import torch

    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    values[:4] = [1 + 2**-8, 1 + 3 * 2**-8, -0.0, 1e-40]
    want = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(f32_to_bf16(values), want)
    odd = f32_to_bf16(np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32))
    wide = bf16_to_f32(odd)
    assert np.isnan(wide[:2]).all() and wide[2:].tolist() == [np.inf, -np.inf]
    write_tensors(tmp_path / "a", {"w": ("F32", (5000,))}, {"w": values}.__getitem__)
    assert device_pack(tmp_path / "a", tmp_path / "b") == file_digest(tmp_path / "b")
    write_tensors(tmp_path / "a", {"w": ("F32", (1,))}, lambda _: np.float32([3.4e38]))
    with pytest.raises(WeightError, match="too large"):
        device_pack(tmp_path / "a", tmp_path / "b")


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
Damage = Callable[[Path, Tensors], Tensors]


def _drop(name: str) -> Damage:
    return lambda _, tensors: {key: value for key, value in tensors.items() if key != name}


def _set(name: str, value: np.ndarray) -> Damage:
    return lambda _, tensors: tensors | {name: value}


def _nan(name: str) -> Damage:
    def damage(_: Path, tensors: Tensors) -> Tensors:
        bad = tensors[name].copy()
        bad.flat[5] = np.nan
        return tensors | {name: bad}

    return damage


Q = "model.layers.1.self_attn.q_proj"
HEAD = np.ones((251, 64), np.float32)
DAMAGED: list[tuple[dict[str, object], Damage, list[str]]] = [
    ({}, _drop(f"{Q}.weight"), ["missing tensor", Q]),
    ({}, _set("model.extra.weight", HEAD), ["model.extra.weight is not consumed"]),
    ({}, _nan(f"{Q}.weight"), [Q, "NaN"]),
    ({}, _set(f"{Q}.weight", HEAD), [Q, "[251, 64]", "[64, 64]"]),
    ({}, _set(f"{Q}.bias", np.ones(64, np.float32)), [f"{Q}.bias", "qkv_bias=false"]),
    ({"qkv_bias": True}, _drop(f"{Q}.bias"), ["missing", f"{Q}.bias", "qkv_bias=true"]),
    (
        {},
        _set("model.layers.0.self_attn.q_norm.weight", np.ones(16, np.float32)),
        ["q_norm.weight", "qk_norm=false"],
    ),
    ({}, _set("lm_head.weight", HEAD), ["lm_head.weight differs", "tied=true"]),
    ({"tied": False}, _drop("lm_head.weight"), ["missing", "lm_head.weight", "tied=false"]),
    ({}, _set("model.layers.2.input_layernorm.weight", HEAD), ["layers=2"]),
]


@pytest.mark.parametrize(("changes", "damage", "words"), DAMAGED)
def test_damaged_checkpoints_stop_the_build(
    changes: dict[str, object], damage: Damage, words: list[str], tmp_path: Path
) -> None:
    spec = small(**changes)
    folder = write_folder(tmp_path / "in", spec, damage(tmp_path, tensors_of(spec)))
    with pytest.raises(WeightError) as caught:
        pack(spec, SafetensorsFolder(folder), tmp_path / "out")
    one_line(caught, *words)
    assert not (tmp_path / "out/weights.json").exists()


def test_harmless_surplus_is_accepted_by_name(tmp_path: Path) -> None:
    spec = small()
    tensors = tensors_of(spec)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    record = pack(
        spec, SafetensorsFolder(write_folder(tmp_path / "in", spec, tensors)), tmp_path / "out"
    )
    assert record["ignored"] == [
        "lm_head.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"intermediate_size": 128}, ["hidden=128", "hidden=96"]),
        ({"rope_theta": 5e5}, ["rope.theta=500000.0", "rope.theta=10000.0"]),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, ["rope.theta=7.0"]),
        ({"rms_norm_eps": 1e-6}, ["norm_eps=1e-06"]),
        ({"tie_word_embeddings": False}, ["tied=False", "tied=True"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["'yarn'"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["lacks low_freq_factor"]),
        ({"rope_scaling": LLAMA3}, ["rope.scaling={'type': 'llama3'", "rope.scaling=None"]),
        ({"model_type": "other"}, ["family=other"]),
        ({"hidden_act": "gelu"}, ["gelu"]),
        ({"use_sliding_window": True}, ["sliding"]),
    ],
)
def test_contradictions_of_config_and_model_are_named(
    config: dict[str, object], words: list[str], tmp_path: Path
) -> None:
    spec = small()
    folder = write_folder(tmp_path, spec, tensors_of(spec), **config)
    with pytest.raises(WeightError) as caught:
        account(spec, SafetensorsFolder(folder))
    one_line(caught, *words)


@pytest.mark.parametrize("size", [0, 4, 200, -1])
def test_truncated_safetensors_are_recognised(size: int, tmp_path: Path) -> None:
    spec = small()
    path = write_folder(tmp_path, spec, tensors_of(spec)) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WeightError) as caught:
        resolve(spec, WeightRequest(path=tmp_path))
    one_line(caught, "model.safetensors", "truncated")


def test_shards_must_be_whole_and_covered_by_the_index(tmp_path: Path) -> None:
    spec = small()
    tensors = tensors_of(spec)
    names = list(tensors)
    files = {"one.safetensors": names[:9], "two.safetensors": names[9:]}
    for file, part in files.items():
        layout = {name: ("BF16", tensors[name].shape) for name in part}
        write_tensors(tmp_path / file, layout, tensors.__getitem__)
    table = {name: file for file, part in files.items() for name in part}
    index = tmp_path / "model.safetensors.index.json"

    def write_index(weight_map: dict[str, str]) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}))

    write_index(table)
    pack(spec, SafetensorsFolder(tmp_path), tmp_path / "out")
    np.testing.assert_array_equal(
        open_packed(tmp_path / "out").tensors.get(names[-1]), tensors[names[-1]]
    )
    write_index({name: table[name] for name in names[1:]})
    with pytest.raises(WeightError, match="not in the index"):
        SafetensorsFolder(tmp_path)
    write_index(table | {"model.ghost": "one.safetensors"})
    with pytest.raises(WeightError, match=r"model\.ghost"):
        SafetensorsFolder(tmp_path)
    write_index(table)
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(Unavailable, match=r"two\.safetensors"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("quantised", [False, True])
def test_gguf_gives_the_published_tensors(family: str, quantised: bool, tmp_path: Path) -> None:
    spec = small(family=family, qkv_bias=family == "qwen2", tied=False)
    tensors = tensors_of(spec)
    source = GgufFile(write_gguf(tmp_path / "m.gguf", spec, tensors, quantised))
    record = pack(spec, source, tmp_path / "out")
    assert record["dtype"] == "F32"
    packed = open_packed(tmp_path / "out").tensors
    for name, want in tensors.items():
        tolerance = np.abs(want).max() / 127 if quantised else 0
        np.testing.assert_allclose(packed.get(name), want, atol=tolerance)


def test_row_order_of_grouped_heads_has_an_inverse() -> None:
    rows = np.arange(3 * 8 * 2).reshape(24, 2)
    for heads in (1, 3):
        there = ggufmap.interleave_halves(rows, heads)
        assert not np.array_equal(there, rows)
        np.testing.assert_array_equal(ggufmap.split_halves(there, heads), rows)
    assert ggufmap.interleave_halves(np.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_gguf_rope_factors_must_be_those_of_the_model(tmp_path: Path) -> None:
    scaled = small(rope={"theta": 10000.0, "scaling": SCALING})
    source = GgufFile(write_gguf(tmp_path / "m.gguf", scaled, tensors_of(scaled)))
    assert "rope_freqs.weight" not in account(scaled, source)
    with pytest.raises(WeightError) as caught:
        account(small(), source)
    one_line(caught, "rope_freqs.weight", "rope.scaling")
    plain = GgufFile(write_gguf(tmp_path / "p.gguf", small(), tensors_of(small())))
    with pytest.raises(WeightError, match=r"rope\.scaling"):
        account(scaled, plain)
    with pytest.raises(WeightError, match="hidden=96"):
        account(small(hidden=128), plain)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.9])
def test_truncated_gguf_is_recognised(share: float, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", small(), tensors_of(small()))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(WeightError) as caught:
        resolve(small(), WeightRequest(mode="path", path=path))
    one_line(caught, "m.gguf", "truncated")


def test_an_altered_packed_file_is_refused(tmp_path: Path) -> None:
    pack(small(), synthetic(small()), tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightError) as caught:
        open_packed(tmp_path, verify=True)
    one_line(caught, "sha256")
