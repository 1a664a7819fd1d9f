"""Tidying the cache: shown first, oldest first, never what is in use."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tilegate import gc
from tilegate.config import load
from tilegate.disk import locked
from tilegate.store import Build, Node, Store


def write(build: Build) -> None:
    (build.out / "data").write_bytes(b"x" * int(build.inputs["size"]))


def bundle(build: Build) -> None:
    (build.out / "bundle").mkdir()
    (build.out / "bundle" / "manifest.json").write_text(build.node.name)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Ten artifacts of 1 MB, the first used longest ago; the third went into a promoted bundle."""
    monkeypatch.setenv("TILEGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gc, "DEPLOY", tmp_path / "deploy")
    found = Store(tmp_path / "cache", tmp_path / "state")
    nodes = [Node(f"n{i}", "thing", "", {"size": 10**6, "i": i}, (), write) for i in range(10)]
    made = [found.make(node) for node in nodes]
    deploy = found.make(Node("deploy", "deploy", "", {"config": {}}, (nodes[2],), bundle))
    place = tmp_path / "deploy" / "model"
    place.mkdir(parents=True)
    (place / "manifest.json").write_bytes(deploy.file("bundle/manifest.json").read_bytes())
    for number, artifact in enumerate([*made, deploy]):
        days = 100 - 10 * number
        os.utime(artifact.path / "manifest.json", (0, time.time() - days * gc.DAY_S))
    return found


def left(store: Store) -> set[str]:
    manifests = store.cache.glob("*/*/manifest.json")
    return {json.loads(path.read_text())["name"] for path in manifests}


def tidy(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    gc.main(load(overrides))
    return capsys.readouterr().out


def test_shows_before_it_removes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = left(store)
    said = tidy(capsys, "cache.days=75")
    assert "would remove  1 MB  unused 100.0 days  n0" in said
    assert "cache.remove=true" in said and left(store) == before


def test_age_spares_what_is_promoted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    tidy(capsys, "cache.days=75", "cache.remove=true")
    assert left(store) == {f"n{i}" for i in range(2, 10)} | {"deploy"}
    assert not list(store.cache.glob("*/.*gc*"))


def test_size_takes_the_longest_unused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    tidy(capsys, "cache.gigabytes=0.0055", "cache.days=null", "cache.remove=true")
    assert left(store) == {"n2", "n6", "n7", "n8", "n9", "deploy"}


def test_what_a_build_holds_or_just_used_stays(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node("n0", "thing", "", {"size": 10**6, "i": 0}, (), write)
    held = Node("n1", "thing", "", {"size": 10**6, "i": 1}, (), write)
    assert Store(store.cache, store.state).find(node)  # notes the use
    key = Store(store.cache, store.state).key(held)
    with locked(store.cache / "thing" / f".{key}.lock"):
        said = tidy(capsys, "cache.days=75", "cache.remove=true")
    assert {"n0", "n1"} <= left(store)
    assert "in use, kept  n1" in said


def test_a_removed_artifact_is_built_again(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    tidy(capsys, "cache.days=0", "cache.remove=true")
    assert left(store) == {"n2", "deploy"}
    node = Node("n5", "thing", "", {"size": 10**6, "i": 5}, (), write)
    again = Store(store.cache, store.state)
    assert again.find(node) is None and again.make(node).file("data").stat().st_size == 10**6
