"""Promotion: all or nothing, at any moment, for any reader."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.manifest import MANIFEST, seal, sealed
from tilegate import promote as promotion
from tilegate.errors import BrokenTool, GateFailed, UserError
from tilegate.promote import promote

ROOT = Path(__file__).resolve().parent.parent
PASSED = {"gate": "gate:model", "verdict": "pass"}


def lay(folder: Path, tag: str, kind: str = "real", gates: list | None = None, files: int = 6):
    """A small bundle whose every file names its generation, one of them large enough to link."""
    contents = {f"dispatches/d{i}/dispatch.so": f"{tag}:{i}".encode() for i in range(files)}
    contents["weights.safetensors"] = tag.encode() * (promotion.LINK_BYTES // len(tag) + 1)
    contents["run"] = b"#!/usr/bin/env python3\n" + tag.encode()
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "run").chmod(0o755)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    records = [PASSED] if gates is None else gates
    document = {"files": digests, "weights": {"kind": kind}, "gates": records, "tag": tag}
    (folder / MANIFEST).write_bytes(seal(document))
    return folder


def tag_of(bundle: Path) -> str:
    """The generation of a whole bundle; fails on a mixed, partial or altered one."""
    return _tag(os.open(bundle, os.O_RDONLY))


def _tag(folder: int) -> str:
    import json

    def read(name: str) -> bytes:
        with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as handle:
            return handle.read()

    try:
        data = read(MANIFEST)
        assert sealed(data)
        document = json.loads(data)
        for name, digest in document["files"].items():
            assert hashlib.sha256(read(name)).hexdigest() == digest, name
        return document["tag"]
    finally:
        os.close(folder)


def litter(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir() if path.name.endswith((".next", ".old"))]


def test_first_and_second_promotion(tmp_path):
    target = tmp_path / "deploy" / "m"
    promote(lay(tmp_path / "a", "one"), target)
    assert tag_of(target) == "one"
    promote(lay(tmp_path / "b", "two"), target)
    assert tag_of(target) == "two"
    assert tag_of(tmp_path / "a") == "one"  # the candidates stay
    assert not target.is_symlink() and os.access(target / "run", os.X_OK)
    assert not litter(target.parent)
    moved = tmp_path / "elsewhere"
    shutil.move(target, moved)
    shutil.rmtree(tmp_path / "b")
    assert tag_of(moved) == "two"


def test_without_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr(promotion, "_exchange", lambda one, other: False)
    target = tmp_path / "m"
    for tag in ("one", "two"):
        promote(lay(tmp_path / f"from-{tag}", tag), target)
        assert tag_of(target) == tag and not litter(tmp_path)


def test_killed_between_the_two_renames_of_the_fallback(tmp_path):
    target = tmp_path / "m"
    lay(tmp_path / ".m.old", "one")
    lay(tmp_path / ".m.next", "half")
    candidate = lay(tmp_path / "b", "two")
    (candidate / "run").write_bytes(b"altered")
    with pytest.raises(BrokenTool):
        promote(candidate, target)
    assert tag_of(target) == "one" and not litter(tmp_path)


def _alter(bundle):
    (bundle / "run").write_bytes(b"altered")


def _lose(bundle):
    (bundle / "weights.safetensors").unlink()


def _add(bundle):
    (bundle / "stranger").write_bytes(b"x")


def _link(bundle):
    data = bundle / "weights.safetensors"
    shutil.move(data, bundle.parent / "outside")
    data.symlink_to(bundle.parent / "outside")


def _edit_manifest(bundle):
    path = bundle / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"tag": "two"', b'"tag": "2wo"'))


def _lose_manifest(bundle):
    (bundle / MANIFEST).unlink()


@pytest.mark.parametrize("harm", [_alter, _lose, _add, _link, _edit_manifest, _lose_manifest])
def test_a_harmed_candidate_leaves_the_old_bundle(tmp_path, harm):
    target = tmp_path / "m"
    promote(lay(tmp_path / "a", "one"), target)
    candidate = lay(tmp_path / "b", "two")
    harm(candidate)
    with pytest.raises(BrokenTool, match="not promoted"):
        promote(candidate, target)
    assert tag_of(target) == "one" and not litter(tmp_path)


@pytest.mark.parametrize("verdict", ["fail", "near-zero", "skipped", None])
def test_gates_that_do_not_hold(tmp_path, verdict):
    target = tmp_path / "m"
    promote(lay(tmp_path / "a", "one"), target)
    gates = [PASSED, {"gate": "gate:block", "verdict": verdict}]
    with pytest.raises(GateFailed):
        promote(lay(tmp_path / "b", "two", gates=gates), target)
    with pytest.raises(GateFailed):
        promote(lay(tmp_path / "c", "two", gates=[]), target)
    assert tag_of(target) == "one"


def test_rehearsals_have_their_own_place(tmp_path):
    rehearsal = lay(tmp_path / "a", "one", kind="rehearsal")
    with pytest.raises(UserError, match=r"promote to m\.rehearsal"):
        promote(rehearsal, tmp_path / "m")
    with pytest.raises(UserError, match="promote to m"):
        promote(lay(tmp_path / "b", "two"), tmp_path / "m.rehearsal")
    with pytest.raises(UserError, match="kind"):
        promote(lay(tmp_path / "c", "two", kind="unknown"), tmp_path / "m")
    promote(rehearsal, tmp_path / "m.rehearsal")
    assert tag_of(tmp_path / "m.rehearsal") == "one" and not (tmp_path / "m").exists()


def test_a_target_that_is_no_bundle_is_not_touched(tmp_path):
    target = tmp_path / "m"
    candidate = lay(tmp_path / "a", "one")
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="no bundle"):
        promote(candidate, target)
    assert (target / "thesis.txt").read_text() == "mine"
    (tmp_path / "link").symlink_to(candidate)
    with pytest.raises(UserError, match="no bundle"):
        promote(candidate, tmp_path / "link")


def test_disk_full_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    target = tmp_path / "m"
    promote(lay(tmp_path / "a", "one"), target)

    def full(source, goal):
        raise OSError(28, "No space left on device", goal)

    monkeypatch.setattr(promotion, "_link_or_copy", full)
    with pytest.raises(BrokenTool, match="No space left") as caught:
        promote(lay(tmp_path / "b", "two"), target)
    assert "\n" not in str(caught.value)
    assert tag_of(target) == "one" and not litter(tmp_path)


def _in_a_process(code: str, *arguments: Path) -> subprocess.Popen:
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)


FOREVER = """
import sys
from pathlib import Path
from tilegate.promote import promote
print("ready", flush=True)
while True:
    for candidate in sys.argv[2:]:
        promote(Path(candidate), Path(sys.argv[1]))
"""


@pytest.mark.parametrize("exchange", [True, False])
def test_killed_at_random_moments(tmp_path, exchange):
    target = tmp_path / "m"
    one, two = lay(tmp_path / "a", "one"), lay(tmp_path / "b", "two")
    promote(one, target)
    code = FOREVER
    if not exchange:
        code = code.replace(
            "print(", "import tilegate.promote as p; p._exchange = lambda *_: 0\nprint(", 1
        )
    for moment in random.Random(7).choices(range(40), k=20 if exchange else 5):
        process = _in_a_process(code, target, two, one)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(moment / 1000)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if exchange:
            assert tag_of(target) in ("one", "two")
    promote(two, target)
    assert tag_of(target) == "two" and not litter(tmp_path)


def test_a_reader_always_sees_a_whole_bundle(tmp_path):
    target = tmp_path / "m"
    one, two = lay(tmp_path / "a", "one"), lay(tmp_path / "b", "two")
    promote(one, target)
    seen: list[str] = []
    failures: list[Exception] = []
    done = threading.Event()

    def read():
        while not done.is_set():
            folder = os.open(target, os.O_RDONLY)  # never absent
            opened = os.fstat(folder).st_ino
            try:
                seen.append(_tag(folder))
            except (AssertionError, OSError) as error:
                if os.stat(target).st_ino == opened:  # else it was replaced while being read
                    failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(10):
            promote(two, target)
            promote(one, target)
    finally:
        done.set()
        reader.join()
    assert not failures and seen


def test_promotions_at_once_take_turns(tmp_path):
    target = tmp_path / "m"
    candidates = [lay(tmp_path / f"from-{i}", f"tag{i}") for i in range(4)]
    errors: list[Exception] = []

    def work(candidate):
        try:
            for _ in range(3):
                promote(candidate, target)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(c,)) for c in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert tag_of(target).startswith("tag") and not litter(tmp_path)
