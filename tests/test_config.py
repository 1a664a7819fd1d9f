"""Configuration: composition, closed typed schema, one-line errors, cache, digest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tilegate import config
from tilegate.digests import digest
from tilegate.errors import UserError
from tilegate.store import ROOT


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEGATE_CACHE", str(tmp_path))
    return tmp_path / "config"


def test_defaults_and_overrides() -> None:
    plain = config.load()
    assert plain.choices["model"] == plain.model.name == "smollm2-135m"
    assert plain.fault is None and plain.tile.prefill.qkv.tile_n == "auto"
    changed = config.load(
        [
            "model=qwen3-0.6b",
            "tile.prefill.gate_up.tile_n=64",
            "tile.prefill.qkv.herd=[4,4]",
            "+fault=stale_buffer",
            "weights.path='a b,c/d'",
        ],
        cwd=Path("/somewhere"),
    )
    assert changed.model.qk_norm and changed.fault == "stale_buffer"
    assert changed.tile.prefill.gate_up.tile_n == 64
    assert changed.tile.prefill.qkv.herd == (4, 4)
    assert changed.weights.path == "/somewhere/a b,c/d"


@pytest.mark.parametrize("group", config.GROUPS)
def test_every_choice_of_every_group_loads(group: str) -> None:
    for name in config.choices()[group]:
        extra = ["weights.path=x"] if (group, name) == ("weights", "path") else []
        assert config.load([f"{group}={name}", *extra]).choices[group] == name


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.layerz=2", "did you mean 'model.layers'?"),
        ("+typo=1", "unknown key 'typo'; choose from cache, chain"),
        ("+model.new=1", "unknown key 'model.new'"),
        ("chain.on_failure={typo: 1}", "unknown key 'chain.on_failure.typo'"),
        ("modle=smollm2-135m", "did you mean 'model'?"),
        ("tile.prefil.qkv.tile_n=64", "did you mean 'tile.prefill.qkv.tile_n'?"),
        ("model=smollm2-135", "did you mean 'smollm2-135m'?"),
        ("model=", "no such model"),
        ("model.layers=-1", "-1 is impossible; the least is 1"),
        ("model.layers=many", "'many' is not an integer"),
        ("model.layers=true", "True is not an integer"),
        ("model.norm_eps=nan", "nan is not a number"),
        ("model.heads=7", "not a multiple of model.kv_heads=3; the nearest is 6"),
        ("model.name=../x", "names a folder"),
        ("tile.prefill.qkv.tile_n=6.5", "it takes an integer or 'auto'"),
        ("tile.prefill.qkv.method=drane", "did you mean 'drain'?"),
        ("tile.prefill.qkv.herd=[8]", "has 1 values; it takes 2"),
        ("tile.prefill.qkv.tile_n=64,128", "several values where one is needed"),
        ("model=smollm2-135m,smollm2-360m", "several values where one is needed"),
        ("model.layers=range(1,3)", "several values where one is needed"),
        ("fault=a=b", "quote the value: fault=\"'a=b'\""),
        ("hydra.verbose=true", "sweeps only"),
        ("=3", "not a key=value"),
        ("model.layers=${nope}", "nope"),
        ("sequence.buckets=[512,256]", "rising lengths"),
        ("sequence.context=16", "below the largest bucket 256"),
        ("sequence.buckets=256", "write [256]"),
        ("weights=path", "write weights.path="),
        ("gate.model.steps.value=abc", "'abc' is not a number"),
        ("gate.model.steps.valu=1", "did you mean 'gate.model.steps.value'?"),
        ("device.dram_gbps=abc", "'abc' is not a number"),
        ("fusion.prefill.flash_attn=[atention]", "did you mean 'attention'?"),
        ("fusion.prefill.flash_attn=[]", "attention stands 0 times"),
        ("chain.on_failure.retries=-1", "the least is 0"),
    ],
)
def test_bad_overrides_are_one_line(override: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        config.load([override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_of_a_command_line() -> None:
    argv = ["-n", "2", "deploy", "model=x", "--db-file=y", "+fault=z", "-o", "f"]
    assert config.overrides_of(argv) == ("model=x", "+fault=z")


def test_second_load_imports_no_hydra(own_cache: Path) -> None:
    code = (
        "import sys; from tilegate import config; config.load(['sequence.context=300']);"
        "print('hydra' in sys.modules, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    seen = [
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [run.stdout.split() for run in seen] == [["True", "False", "False"], ["False"] * 3]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"document": {}, "digest": "x"}'])
def test_damaged_cache_entry_is_ignored(own_cache: Path, damage: str) -> None:
    before = config.load()
    (entry,) = own_cache.glob("*.json")
    entry.write_text(damage)
    assert config.load() == before
    assert json.loads(entry.read_text())["document"]["model"]["name"] == before.model.name


def test_edited_file_is_seen(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    subprocess.run(["cp", "-r", str(config.CONF), str(conf)], check=True)
    assert config.load(conf=conf).sequence.context == 512
    path = conf / "config.yaml"
    path.write_text(path.read_text().replace("context: 512", "context: 600"))
    assert config.load(conf=conf).sequence.context == 600
    (conf / "fusion" / "own.yaml").write_text((conf / "fusion" / "default.yaml").read_text())
    assert config.load(["fusion=own"], conf=conf).choices["fusion"] == "own"


def test_digest_is_of_values() -> None:
    assert digest({"b": 1.0e-5, "a": (1, 2)}) == digest({"a": [1, 2], "b": 0.00001})
    assert digest(config.load().tile) == digest(config.load(["weights.seed=3"]).tile)
    assert digest(config.load().tile) != digest(config.load(["tile.prefill.o.tile_n=64"]).tile)
    with pytest.raises(UserError):
        digest({"path": Path("/x")})


def test_show_names_the_choices() -> None:
    text = config.show(config.load())
    assert "*smollm2-135m" in text and "# fusion: *default, unfused" in text
