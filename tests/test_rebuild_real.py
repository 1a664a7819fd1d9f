"""Rebuilding with real tools: equal bytes stop a change, going back is free, explain tells why."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from conftest import TINY, Checkout, copy_checkout

TILE = "tile.prefill.gate_up.tile_m=16"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = copy_checkout(tmp_path_factory.mktemp("rebuild") / "checkout")
    done = made.doit("deploy", *TINY)
    assert done.returncode == 0, done.stdout
    return made


def ran(checkout: Checkout, *overrides: str) -> set[str]:
    """The tasks that a deployment looked at because they were not current, built or cached."""
    done = checkout.doit("deploy", *TINY, *overrides)
    assert done.returncode == 0, done.stdout
    return set(re.findall(r"^\[ *\d+/\d+\] (\S+)  (?:built|cached)", done.stdout, re.MULTILINE))


def test_a_comment_in_a_kernel_stops_at_its_object(tiny: Checkout) -> None:
    source = tiny.root / "kernels" / "silu_mul" / "silu_mul.cc"
    before = source.read_text()
    manifest = tiny.bundle("tiny.rehearsal") / "manifest.json"
    files = _files(manifest)
    source.write_text(f"// {uuid.uuid4()}\n\n{before}\n/* moved down by three lines */\n")
    told = tiny.doit("explain", *TINY).stdout
    assert "source kernels/silu_mul/silu_mul.cc: " in told and " -> " in told
    built = ran(tiny)
    assert {name.split("-")[0] for name in built} == {"kernel:silu_mul.silu_mul", "deploy"}
    assert _files(manifest) == files  # the bundle names its sources anew; its files are the same
    source.write_text(before)
    assert ran(tiny) == {"deploy"}


def _files(manifest: Path) -> str:
    found = re.search(r'"files": ?(\{.*?\})', manifest.read_text(), re.DOTALL)
    assert found
    return found[1]


def test_one_tile_and_back(tiny: Checkout) -> None:
    told = tiny.doit("explain", *TINY, TILE).stdout
    assert "config.tile.prefill.gate_up.tile_m: auto -> 16" in told
    changed = ran(tiny, TILE)
    allowed = {"dispatch:prefill_256.o_ffn", "runner", "gate:block", "gate:model", "gate:runner"}
    for name in changed - allowed - {"deploy"}:  # less, when an earlier test run left them
        assert "tile_m16" in name or name.startswith("kernel:gemm.")
    assert "deploy" in changed
    told = tiny.doit("explain", "runner", "deploy", *TINY).stdout
    assert "cached" in told or "is not installed" in told
    assert ran(tiny) == {"deploy"}  # all there: only promoted again
    assert tiny.doit("deploy", *TINY).stdout.startswith("nothing to do")


def test_explain_runs_nothing_and_names_one_task(tiny: Checkout, tmp_path: Path) -> None:
    told = tiny.doit("explain", "gate:model", *TINY, "gate.model.top_k.value=3")
    assert told.returncode == 0
    assert "policy.top_k.value: 5 -> 3" in told.stdout
    assert told.stdout.count("\n") <= 4
    unknown = tiny.doit("explain", "gate:modle", *TINY)
    assert unknown.returncode == 2 and "did you mean 'gate:model'" in unknown.stdout
    empty = tiny.doit("explain", *TINY, env={"TILEGATE_CACHE": str(tmp_path / "cache")})
    assert empty.returncode == 0 and "0 up to date" in empty.stdout
    assert not list((tmp_path / "cache").glob("*/*/manifest.json"))


def test_a_seed_and_a_policy_are_told_as_from_and_to(tiny: Checkout) -> None:
    told = tiny.doit("explain", *TINY, "weights.seed=3", "gate.block.cosine.value=0.98").stdout
    assert "seed: 0 -> 3" in told
    assert "policy.block.cosine.value: 0.99 -> 0.98" in told
    assert "kernel:walker  (" in told and "weights, not built" in told
