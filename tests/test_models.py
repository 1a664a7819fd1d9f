"""A model that nobody committed, from its published files to a promoted bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Checkout
from test_deploy import run

from oracle.spec import ModelSpec
from oracle.synthetic import successor, synthetic
from oracle.tensorfile import write_tensors

COMMON = {
    "hidden_act": "silu",
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}
ODD_HEADS_AND_BIAS = {
    **COMMON,
    "model_type": "qwen2",
    "hidden_size": 448,
    "num_attention_heads": 7,
    "num_key_value_heads": 1,
    "intermediate_size": 832,
    "vocab_size": 1531,
    "tie_word_embeddings": True,
}
WIDE_HEADS_AND_NORMS = {
    **COMMON,
    "model_type": "qwen3",
    "hidden_size": 320,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 704,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    heads, dim = config["num_attention_heads"], config["hidden_size"]
    return ModelSpec.from_dict(
        {
            "name": "novel",
            "family": config["model_type"],
            "layers": config["num_hidden_layers"],
            "dim": dim,
            "heads": heads,
            "kv_heads": config["num_key_value_heads"],
            "head_dim": config.get("head_dim", dim // heads),
            "hidden": config["intermediate_size"],
            "vocab": config["vocab_size"],
            "rope": {"theta": config["rope_theta"]},
            "norm_eps": config["rms_norm_eps"],
            "tied": config["tie_word_embeddings"],
            "qkv_bias": config["model_type"] == "qwen2",
            "qk_norm": config["model_type"] == "qwen3",
            "max_context": config["max_position_embeddings"],
            "hub": None,
        }
    )


def publish(folder: Path, config: dict[str, Any]) -> ModelSpec:
    """config.json and two shards with their index, as a hub repository holds them."""
    spec = spec_of(config)
    source = synthetic(spec, seed=5)
    names = source.names()
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors":
             names[1::2]}  # fmt: skip
    folder.mkdir()
    for file, part in files.items():
        layout = {name: ("BF16", source.shape(name)) for name in part}
        write_tensors(folder / file, layout, source.raw)
    index = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config))
    return spec


@pytest.mark.parametrize("config", [ODD_HEADS_AND_BIAS, WIDE_HEADS_AND_NORMS],
                         ids=["odd-heads-bias", "wide-heads-norms"])  # fmt: skip
def test_onboard_and_deploy_published_files(
    config: dict[str, Any], checkout: Checkout, tmp_path: Path
) -> None:
    folder = tmp_path / "Novel-Instruct"
    spec = publish(folder, config)
    done = checkout.doit("onboard", f"hf={folder}")
    assert done.returncode == 0 and "wrote conf/model/novel.yaml" in done.stdout, done.stdout
    done = checkout.doit("deploy", "model=novel", f"weights.path={folder}", "sequence.context=256")
    assert done.returncode == 0, done.stdout
    bundle = checkout.bundle("novel")  # real weights: no rehearsal
    (tmp_path / "ids.json").write_text(json.dumps([3, 5, 8]))
    answer = run(bundle, "--ids", str(tmp_path / "ids.json"), "--max-tokens", "3", "--json")
    assert answer.returncode == 0, answer.stderr
    wanted = [8]
    for _ in range(3):
        wanted.append(successor(spec, wanted[-1]))
    assert json.loads(answer.stdout)["ids"] == wanted[1:]
