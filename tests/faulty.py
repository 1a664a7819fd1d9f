"""Tiny models of each family, and a chain run in this process until a gate fails."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tilegate import records
from tilegate.config import load
from tilegate.errors import GateFailed
from tilegate.graph import nodes
from tilegate.store import Build, Store, default_cache

TINY = (
    "weights=synthetic",
    "model.layers=3",
    "model.dim=384",
    "model.heads=6",
    "model.kv_heads=2",
    "model.head_dim=64",
    "model.hidden=2048",
    "model.vocab=17000",  # two parts of the head
    "model.max_context=1024",
    "model.tokenizer_from=null",
    "model.wheel=null",
    "sequence.buckets=[256]",
    "sequence.context=512",
)
FAMILIES = {
    "tiny-llama": ("model=llama-3.2-1b", "model.rope.scaling.original_context=32"),
    "tiny-qwen2": ("model=qwen2.5-0.5b",),
    "tiny-qwen3": ("model=qwen3-0.6b",),
    "tiny-untied": ("model=llama-3.2-1b", "model.tied=false", "model.rope.scaling=null"),
}


def overrides(family: str, *more: str) -> list[str]:
    group, *rest = FAMILIES[family]
    return [group, *TINY, f"model.name={family}", *rest, *more]


def build(family: str, *more: str, until: str = "deploy") -> None:
    """Make the chain's nodes in order, up to and including `until`. Raises what a gate raises."""
    store = Store(default_cache())
    for node in nodes(load(overrides(family, *more)), store):
        store.make(node)
        if node.name == until:
            return


def failure(family: str, fault: str) -> dict:
    """The record of the gate that catches `fault`; fails when none does."""
    try:
        build(family, f"fault={fault}", until="gate:runner")
    except GateFailed as failed:
        return failed.record
    raise AssertionError(f"no gate caught {fault}")


def healthy(family: str) -> list[str]:
    """What the debug skills say of every launch of every layer of a healthy run: nothing."""
    from tilegate import bisect, diagnose

    seen: list[diagnose.Case] = []
    judge = bisect.first_wrong

    def spy(cases: list[diagnose.Case]) -> diagnose.Case | None:
        seen.extend(cases)
        return judge(cases)

    bisect.first_wrong = spy
    store = Store(default_cache())
    for node in nodes(load(overrides(family)), store):
        store.make(node)
        if node.name == "gate:block":
            with tempfile.TemporaryDirectory() as out:
                node.build(Build(node, Path(out), store.needs(node), lambda text: None))
            break
    assert len(seen) > 50
    return [finding.line() for finding in diagnose.run(seen, diagnose.skill_names())]


if __name__ == "__main__":
    records.REPORTS = Path(sys.argv[1])
    answer = healthy(sys.argv[3]) if sys.argv[2] == "healthy" else failure(*sys.argv[2:])
    print(json.dumps(answer, default=str))
