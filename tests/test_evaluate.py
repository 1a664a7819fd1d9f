"""The evaluator: a sound bundle passes, and every attack on one is caught."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from runtime.manifest import MANIFEST, seal
from tilegate import audit, evaluate
from tilegate.config import load
from tilegate.graph import nodes
from tilegate.store import Store

sys.path.insert(0, str(Path(__file__).parent))
from faulty import build, overrides

MODEL = "tiny-llama"


@pytest.fixture(scope="module")
def promoted() -> Path:
    """The bundle of a tiny model as the chain promotes it."""
    words = ("chain=quick",)
    build(MODEL, *words)
    store = Store()
    deploy = nodes(load(overrides(MODEL, *words)), store)[-1]
    artifact = store.find(deploy)
    assert artifact is not None
    document = json.loads((artifact.path / "evaluation.json").read_text())
    assert document["verdict"] == "PASS with warnings"  # the weights are synthetic
    return artifact.path / "bundle"


@pytest.fixture
def bundle(promoted, tmp_path, monkeypatch) -> Path:
    """A copy to attack; dispatches are linked anew once for all tests."""
    monkeypatch.setattr(audit, "_linked", _linked)
    target = tmp_path / "bundle"
    shutil.copytree(promoted, target, copy_function=os.link)
    return target


_first = audit._linked
_cache: dict[str, str] = {}


def _linked(dispatch, store):
    if dispatch.name not in _cache:
        _cache[dispatch.name] = _first(dispatch, store)
    return _cache[dispatch.name]


def write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # never through a link into the store
    path.write_bytes(data)


def edit(path: Path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    write(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def reseal(folder: Path, change=lambda document: None) -> None:
    """What a careful attacker does: every digest and size recomputed, the manifest sealed."""
    document = json.loads((folder / MANIFEST).read_text())
    change(document)
    paths = [p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST]
    names = {p.relative_to(folder).as_posix(): p for p in paths}
    document["files"] = {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in names.items()}
    document["sizes"] = {n: p.stat().st_size for n, p in names.items()}
    write(folder / MANIFEST, seal(document))


def caught(folder: Path) -> list[str]:
    return [c.name for c in audit.audit(folder, Store()) if c.verdict == "fail"]


def record_of(gate: str, **changes):
    def change(document):
        found = next(r for r in document["gates"] if r["gate"] == gate)
        for key, value in changes.items():
            found[key] = value

    return change


def drop(task: str):
    def change(document):
        document["gates"] = [r for r in document["gates"] if r["task"] != task]

    return change


def drop_one(document):
    document["gates"].remove(next(r for r in document["gates"] if r["gate"] == "block"))


def set_in(*path, value):
    def change(document):
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def loosened(document):
    found = next(r for r in document["gates"] if r["gate"] == "block")
    found["thresholds"]["mean_rel_l1"]["value"] = 0.5


def worse(document):
    found = next(r for r in document["gates"] if r["gate"] == "block")
    found["metrics"]["mean_rel_l1"] = 0.5


def own_golden(document):
    found = next(r for r in document["gates"] if r["gate"] == "block")
    found["reference"] = found["candidate"]


def few_tokens(document):
    found = next(r for r in document["gates"] if r["gate"] == "model")
    found["counts"] |= {"compared": 4, "expected": 4, "oracle": 4}


def loose_policy(document):
    document["config"]["gate"]["block"]["cosine"]["value"] = 0.5


def other_prompts(document):
    document["config"]["gate"]["prompts"]["quick"] = ["Hello."]


EDITS = {
    "edited metrics": (worse, "records"),
    "edited verdict": (record_of("block", verdict="near-zero"), "records"),
    "loosened threshold": (loosened, "records"),
    "loosened policy": (loose_policy, "policy is the committed one"),
    "altered prompts": (other_prompts, "policy is the committed one"),
    "golden tensors are the candidate's": (own_golden, "records"),
    "fewer tokens": (few_tokens, "records"),
    "a gate skipped": (drop("gate:block"), "no gate was skipped"),
    "a comparison skipped": (drop_one, "no gate was skipped"),
    "another policy's verdict": (record_of("model", policy="0" * 64), "records"),
    "wrong rope": (set_in("rope", "theta", value=1e4), "manifest sections"),
    "a faster clock": (set_in("device", "sync_gbps", value=8400.0), "manifest sections"),
    "another epsilon": (set_in("config", "model", "norm_eps", value=0.1), "no gate was skipped"),
    "a fault planted": (set_in("config", "fault", value="stale_buffer"), "no fault"),
    "no configuration": (set_in("config", value={}), "manifest sections"),
    "not a manifest": (set_in("decode", value=None), "manifest"),
}


def test_a_sound_bundle_holds(bundle):
    checks = audit.audit(bundle, Store())
    assert [c for c in checks if c.verdict == "fail"] == []
    assert len(checks) >= 9


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_with_recomputed_digests(bundle, name):
    change, check = EDITS[name]
    reseal(bundle, change)
    assert check in caught(bundle)


def test_an_edited_manifest_without_its_seal(bundle):
    edit(bundle / MANIFEST, lambda document: document["gates"].pop())
    assert caught(bundle) == ["seal"]


def _swap(folder):
    one, other = sorted((folder / "dispatches").iterdir())[:2]
    first, second = (place / "dispatch.so" for place in (one, other))
    a, b = first.read_bytes(), second.read_bytes()
    write(first, b)
    write(second, a)


def _stale(folder):
    place = next((folder / "dispatches").iterdir()) / "dispatch.so"
    write(place, place.read_bytes() + b"\0")


def _mock_runner(folder):
    path = folder / "runtime" / "runner.py"
    write(path, path.read_bytes() + b"\n# answers from a table\n")


def _mock_command(folder):
    write(folder / "run", b"#!/bin/sh\necho '{\"ids\": [1, 2, 3]}'\n")


def _helper(folder):
    write(folder / "runtime" / "sitecustomize.py", b"")


def _fast(folder):
    path = next((folder / "dispatches").iterdir()) / "dispatch.json"
    edit(path, lambda document: document.update(predicted_us=1.0))


def _rebound(folder):
    path = folder / "dispatches" / "decode.rms_gemv_rope" / "dispatch.json"
    edit(path, lambda document: document["arguments"].reverse())


FILES = {
    "swapped dispatches": (_swap, "dispatches rebuilt"),
    "stale dispatch": (_stale, "dispatches rebuilt"),
    "mock runner": (_mock_runner, "runner"),
    "mock command": (_mock_command, "runner"),
    "a module beside the runner": (_helper, "runner"),
    "times that are too good": (_fast, "dispatch tables and predicted times"),
    "rebound arguments": (_rebound, "dispatch tables and predicted times"),
}


@pytest.mark.parametrize("name", FILES)
def test_an_exchanged_file_with_recomputed_digests(bundle, name):
    change, check = FILES[name]
    change(bundle)
    reseal(bundle)
    assert check in caught(bundle)


def test_files_that_do_not_hold_their_digests(bundle):
    _stale(bundle)
    assert caught(bundle) == ["files"]
    (bundle / "weights.safetensors").unlink()
    assert "files" in caught(bundle)


def test_a_cached_verdict_in_the_bundle_counts_for_nothing(bundle, tmp_path):
    """A planted verdict is an extra file; changed weights are found whatever it says."""
    path = bundle / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 0x40
    write(path, bytes(data))
    write(bundle / "evaluation.json", json.dumps({"verdict": "PASS"}).encode())
    reseal(bundle)
    document = evaluate.spawn(bundle, tmp_path / "out")
    assert document["verdict"] == "FAIL"
    wrong = [c["name"] for c in document["checks"] if c["verdict"] == "fail"]
    assert "weights and tokenizer" in wrong
    assert "FAIL" in (tmp_path / "out" / "evaluation.md").read_text()


def test_rehearsal_that_calls_itself_real(bundle, tmp_path):
    reseal(bundle, set_in("weights", "kind", value="real"))
    document = evaluate.spawn(bundle, tmp_path / "out")
    assert document["verdict"] == "FAIL"
