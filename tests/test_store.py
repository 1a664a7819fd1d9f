"""The store: keys, atomic publication, verification on read, locks, bad disks."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilegate.errors import BrokenTool, UserError
from tilegate.explain import explain
from tilegate.store import ROOT, Build, Node, Store

calls: list[str] = []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    calls.clear()
    return Store(tmp_path / "cache", tmp_path / "state")


def fresh(store: Store) -> Store:
    """A store as another process would open it."""
    return Store(store.cache, store.state)


def write(build: Build) -> None:
    calls.append(build.node.name)
    (build.out / "sub").mkdir()
    (build.out / "text").write_text(str(build.inputs.get("text", "")))
    (build.out / "sub" / "more").write_text("more")


def copy(build: Build) -> None:
    calls.append(build.node.name)
    (build.out / "copy").write_text(build.need("a").file("text").read_text())


def node(name: str = "a", build: Callable[[Build], None] = write, **given: Any) -> Node:
    fields: dict[str, Any] = {"inputs": {"text": "hi"}, "needs": ()} | given
    return Node(name, "thing", "A thing.", build=build, **fields)


def leftovers(store: Store) -> list[Path]:
    return [path for path in store.cache.rglob("*") if path.name.startswith(".")]


def test_builds_once_and_reads_back(store: Store) -> None:
    a = node()
    assert store.find(a) is None and not store.done(a)
    made = store.make(a)
    assert made.path == store.cache / "thing" / made.key
    assert made.file("sub/more").read_text() == "more"
    with pytest.raises(KeyError):
        made.file("other")
    again = fresh(store)
    assert again.done(a) and again.make(a).digest == made.digest
    assert calls == ["a"] and not leftovers(store)
    assert made.manifest["inputs"] == {"text": "hi"} and made.manifest["seconds"] >= 0


def test_key_follows_inputs_and_outputs_of_needs(store: Store) -> None:
    a, other = node(), node(inputs={"text": "other"})
    assert store.key(a) != store.key(other)
    assert store.key(node(inputs={"x": 1, "y": 2})) == store.key(node(inputs={"y": 2, "x": 1}))
    b = node("b", copy, needs=(a,))
    assert store.key(b) is None
    store.make(a)
    first = store.make(b)
    same_bytes = node(inputs={"text": "hi", "comment": "changes the key, not the bytes"})
    store.make(same_bytes)
    cut_off = node("b", copy, needs=(same_bytes,))
    assert store.key(same_bytes) != store.key(a)
    assert store.find(cut_off) and store.make(cut_off).key == first.key
    assert calls == ["a", "b", "a"]


def test_two_checkouts_share_a_key(store: Store, tmp_path: Path) -> None:
    keys = []
    for folder in ("one", "two"):
        source = tmp_path / folder / "kernel.cc"
        source.parent.mkdir()
        source.write_text("int x;")
        keys.append(store.key(node(sources=(source,))))
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.joinpath("text").write_text("ho"),
        lambda p: os.truncate(p / "text", 1),
        lambda p: p.joinpath("text").unlink(),
        lambda p: p.joinpath("manifest.json").unlink(),
        lambda p: os.truncate(p / "manifest.json", 30),
        lambda p: p.joinpath("manifest.json").write_text("[]"),
    ],
)
def test_damaged_artifact_is_rebuilt(store: Store, damage: Callable[[Path], Any]) -> None:
    a = node()
    made = store.make(a)
    damage(made.path)
    again = fresh(store)
    assert not again.done(a) and "damaged" in explain(again, a)
    assert again.make(a).file("text").read_text() == "hi"
    assert calls == ["a", "a"] and not leftovers(store)


def test_alteration_with_time_stamp_put_back_is_seen(store: Store) -> None:
    a = node()
    path = store.make(a).file("text")
    stat = path.stat()
    path.write_text("ho")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not fresh(store).done(a)


def test_manifest_with_another_digest_is_refused(store: Store) -> None:
    a = node()
    path = store.make(a).path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["outputs"]["text"][1] = "0" * 64
    path.write_text(json.dumps(manifest))
    assert not fresh(store).done(a)


@pytest.mark.parametrize("state", ["", "{", "[1]", '{"x": 3}'])
def test_damaged_state_file_costs_only_time(store: Store, state: str) -> None:
    store.make(node())
    (store.state / "digests.json").write_text(state)
    assert fresh(store).done(node())


def test_unchanged_files_are_not_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.make(node())

    def fail(*_: Any) -> None:
        raise AssertionError("a file was hashed")

    again = fresh(store)
    monkeypatch.setattr("hashlib.file_digest", fail)
    assert again.done(node())


def failing(build: Build) -> None:
    write(build)
    raise build.inputs["error"]


class Unbuilt(dict[str, Any]):
    """Inputs that carry an exception without it being part of the key."""

    def __getitem__(self, key: str) -> Any:
        return ERRORS[super().__getitem__(key)]


ERRORS: dict[str, BaseException] = {
    "value": ValueError("x"),
    "interrupt": KeyboardInterrupt(),
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "read-only": OSError(errno.EROFS, "Read-only file system"),
}


@pytest.mark.parametrize("kind", list(ERRORS))
def test_failure_publishes_nothing(store: Store, kind: str) -> None:
    wanted = BrokenTool if kind in ("full", "read-only") else type(ERRORS[kind])
    bad = node(build=failing, inputs=Unbuilt(error=kind))
    with pytest.raises(wanted) as caught:
        store.make(bad)
    assert "\n" not in str(caught.value)
    assert not fresh(store).done(bad) and not leftovers(store)


def test_full_disk_is_one_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = node(build=failing, inputs=Unbuilt(error="value"))
    monkeypatch.setattr("tilegate.disk.free_bytes", lambda folder: 0)
    with pytest.raises(BrokenTool, match="no space left on device"):
        store.make(bad)


def test_cache_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokenTool, match="cannot write"):
        Store(tmp_path / "file" / "cache", tmp_path / "state").make(node())


def nothing(build: Build) -> None:
    """Writes no file."""


def link(build: Build) -> None:
    (build.out / "link").symlink_to("/etc/hostname")


@pytest.mark.parametrize("build", [nothing, link])
def test_invalid_output_is_not_stored(store: Store, build: Callable[[Build], None]) -> None:
    with pytest.raises(BrokenTool):
        store.make(node(build=build))
    assert not leftovers(store)


def edit_source(build: Build) -> None:
    write(build)
    Path(str(build.inputs["edit"])).write_text("two")


def test_source_edited_during_the_build_publishes_nothing(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source.cc"
    source.write_text("one")
    a = node(build=edit_source, inputs={"edit": str(source)}, sources=(source,))
    with pytest.raises(UserError, match="changed during the build"):
        store.make(a)
    assert not store.done(a)
    store.make(a)
    assert fresh(store).done(a)
    source.write_text("three")
    assert "source source.cc" in explain(fresh(store), a)
    source.unlink()
    with pytest.raises(UserError, match="cannot read source"):
        fresh(store).make(a)


def slowly(build: Build) -> None:
    write(build)
    with (build.out.parent.parent / "count").open("a") as count:
        count.write("x")
    time.sleep(0.3)


def test_second_builder_waits_and_takes_the_result(store: Store) -> None:
    a = node(build=slowly)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=store.make, args=(a,)) for _ in range(3)]
    for process in others:
        process.start()
    for process in others:
        process.join()
    assert [process.exitcode for process in others] == [0, 0, 0]
    assert (store.cache / "count").read_text() == "x"
    assert not leftovers(store)


KILLED = """
import sys, time
from pathlib import Path
from tilegate.store import Node, Store
def hang(build):
    (build.out / "half").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
store = Store(Path(sys.argv[1]), Path(sys.argv[2]))
store.make(Node("a", "thing", "", {"text": "hi"}, (), hang))
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_killed_build_leaves_nothing_that_counts(store: Store, sent: signal.Signals) -> None:
    words = [sys.executable, "-c", KILLED, str(store.cache), str(store.state)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        child.send_signal(sent)
        child.wait()
    assert not store.done(node())
    assert bool(leftovers(store)) == (sent == signal.SIGKILL)
    store.make(node("b", inputs={"text": "another key"}))
    assert not leftovers(store)
    assert store.make(node()).file("text").read_text() == "hi"


def test_remove_takes_what_the_record_lists(store: Store) -> None:
    a = node()
    made = store.make(a)
    stray = made.path / "stray"
    stray.write_text("not ours")
    assert len(store.remove(a, dry=True)) == 3 and store.done(a)
    store.remove(a)
    assert [p for p in made.path.rglob("*")] == [stray] and not fresh(store).done(a)


def test_installed_elsewhere_is_part_of_done(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "deploy"
    a = node(
        install=lambda artifact: place.write_text(artifact.digest) and None,
        installed=lambda artifact: place.exists() and place.read_text() == artifact.digest,
    )
    store.make(a)
    assert fresh(store).done(a)
    place.unlink()
    again = fresh(store)
    assert not again.done(a)
    again.make(a)
    assert place.exists() and calls == ["a"]
