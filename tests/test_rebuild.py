"""What a change rebuilds: the exact set of tasks, for each kind of change.

Keys alone decide. `Keys` computes them for the whole real graph without building anything, taking
every rebuilt result for a changed one. Cut-offs by equal bytes are tested with real builds, in
test_rebuild_real.py.
"""

from __future__ import annotations

import ast
import dataclasses
import subprocess
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY

from tilegate import compile as compiler
from tilegate import pycode
from tilegate.config import load
from tilegate.graph import nodes
from tilegate.store import ROOT, Artifact, Store

AFTER_RUNNER = {"runner", "gate:block", "gate:model", "gate:runner", "deploy"}
AFTER_ORACLE = {"gate:oracle", "gate:kernel:*", "gate:block", "gate:model", "gate:runner", "deploy"}
AFTER_KERNELS = {"dispatch:*", "gate:kernel:*", *AFTER_RUNNER}
PREFILL_GEMMS = {"dispatch:prefill_256.rms_gemms_rope", "dispatch:prefill_256.o_ffn"}


class Keys:
    """Keys of all nodes, as if each result were as new as its key; files can be edited in mind."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "cache", folder / "state")
        self.base = self.of(())

    def of(self, overrides: Sequence[str], edits: dict[str, str] | None = None) -> dict[str, str]:
        store = Store(self.store.cache, self.store.state)
        _edit(store, {ROOT / name: text for name, text in (edits or {}).items()})
        made: dict[str, Artifact] = {}
        for node in nodes(load([*TINY, *overrides]), store):
            key = store._key(node, {need.name: made[need.name] for need in node.needs})
            made[node.name] = Artifact(Path(), key, key, {})
        store.digests.save()
        return {name: artifact.key for name, artifact in made.items()}

    def rebuilt(self, *overrides: str, edits: dict[str, str] | None = None) -> set[str]:
        """The tasks that would run after the base has been built."""
        known = set(self.base.values())
        return {name for name, key in self.of(overrides, edits).items() if key not in known}


def _edit(store: Store, edits: dict[Path, str]) -> None:
    read, derive = store.digests.of, store.digests.derived

    def of(path: Path) -> str:
        return f"edited {hash(edits[path])}" if path in edits else read(path)

    def derived(what: str, path: Path, compute: Callable[[], Any]) -> Any:
        if path in edits:
            return pycode.definitions(edits[path], path.parent.name)
        return derive(what, path, compute)

    store.digests.of, store.digests.derived = of, derived  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def check(keys: Keys, rebuilt: set[str], expected: set[str]) -> None:
    """`rebuilt` is exactly what the patterns name: each names something, and nothing is over."""
    for pattern in expected:
        assert any(fnmatchcase(name, pattern) for name in rebuilt), f"{pattern} is not rebuilt"
    over = {n for n in rebuilt if not any(fnmatchcase(n, pattern) for pattern in expected)}
    assert not over, f"rebuilt without need: {sorted(over)}, {sorted(rebuilt)}"
    whole = [p for p in expected if p.endswith(":*")]
    missed = {n for p in whole for n in keys.base if fnmatchcase(n, p)} - rebuilt
    assert not missed, f"not rebuilt: {sorted(missed)}"


CONFIG = {
    "one tile": (
        ["tile.prefill.gate_up.tile_m=16"],
        {
            "kernel:gemm.gemm-*",
            "dispatch:alone:gemm.M256.K128.N256.tile_m16.*",
            "gate:kernel:gemm.M256.K128.N256.tile_m16.*",
            "dispatch:prefill_256.o_ffn",
            *AFTER_RUNNER,
        },
    ),
    "model depth": (
        ["model.layers=3"],
        {"weights", "device-weights", "oracle", "gate:*", "runner", "deploy"},
    ),
    "weights": (
        ["weights.seed=1"],
        {"weights", "device-weights", "oracle", "gate:oracle", "gate:kernel:*", *AFTER_RUNNER},
    ),
    "prompt set": (["gate.prompts.quick=[hello]"], {"oracle", *AFTER_ORACLE}),
    "unused prompts": (["gate.prompts.full=[hello]"], {"deploy"}),
    "policy of a tier": (
        ["gate.tiers.rope.mean_rel_l1.value=0.004"],
        {"gate:kernel:rope.*", "gate:block", "deploy"},
    ),
    "policy of the block gate": (["gate.block.cosine.value=0.991"], {"gate:block", "deploy"}),
    "policy of the model gate": (
        ["gate.model.top_k.value=4"],
        {"gate:model", "gate:runner", "deploy"},
    ),
    "policy of the oracle's gate": (["gate.oracle.max_abs.value=1e-4"], {"gate:oracle", "deploy"}),
    "fusion": (
        ["fusion=unfused"],
        {
            # alone is planned otherwise than among others, so tiles may change too
            *("kernel:?*", "dispatch:alone:?*", "gate:kernel:?*"),
            *("dispatch:prefill_256.*", "dispatch:decode.*", "dispatch:final_norm"),
            *("dispatch:logits", *AFTER_RUNNER),
        },
    ),
    "device numbers": (["device.timing.bo_write_gbps=8.0"], AFTER_RUNNER),
    "a fault": (["fault=zero_output"], {"gate:block", "gate:model", "gate:runner", "deploy"}),
    "debugging on failure": (["chain.on_failure.retries=1"], {"deploy"}),
    "what is asked of other commands": (["seq_len=512", "hf=some/model"], set()),
}


@pytest.mark.parametrize("kind", CONFIG)
def test_change_of_configuration(keys: Keys, kind: str) -> None:
    overrides, expected = CONFIG[kind]
    check(keys, keys.rebuilt(*overrides), expected)


def test_nothing_changed_and_going_back(keys: Keys) -> None:
    assert keys.rebuilt() == set()
    assert keys.of(()) == keys.base


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def changed(name: str, function: str) -> dict[str, str]:
    """The file with one more statement in a function (or method)."""
    tree = ast.parse(text_of(name))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function]
    assert len(found) == 1, f"{name} has {len(found)} functions {function}"
    found[0].body.append(ast.parse("assert True").body[0])
    return {name: ast.unparse(tree)}


SOURCES = {
    "kernel": (
        {"kernels/gemm/gemm.cc": "changed"},
        {
            *("kernel:gemm.gemm-*", "dispatch:alone:gemm.*", "gate:kernel:gemm.*"),
            *(*PREFILL_GEMMS, *AFTER_RUNNER),
        },
    ),
    "plan walker": ({"kernels/host/walker.cc": "changed"}, {"kernel:walker", *AFTER_KERNELS}),
    "contract": (changed("kernels/add/kernel.py", "reference"), {"gate:kernel:add.*", "deploy"}),
    "truth": (changed("oracle/forward.py", "forward"), {"oracle", *AFTER_ORACLE}),
    "metric": (
        changed("tilegate/metrics.py", "errors"),
        {"gate:oracle", "gate:kernel:*", "gate:block", "deploy"},
    ),
    "comparator of the block": (
        changed("tilegate/gate.py", "compare_block"),
        {"gate:block", "deploy"},
    ),
    "runner": (
        {"runtime/sampling.py": text_of("runtime/sampling.py") + "# shipped as it is"},
        AFTER_RUNNER,
    ),
    "linking": (changed("tilegate/dispatch.py", "_check_library"), AFTER_KERNELS),
    "compiling": (
        changed("tilegate/compile.py", "compile_source"),
        {"kernel:*", *AFTER_KERNELS},
    ),
    "planning with the same outcome": (changed("tilegate/planner.py", "choose"), set()),
    "what only tells": (changed("tilegate/explain.py", "explain"), set()),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_change_of_source(keys: Keys, kind: str) -> None:
    edits, expected = SOURCES[kind]
    check(keys, keys.rebuilt(edits=edits), expected)


def test_comments_and_formatting_of_python_rebuild_nothing(keys: Keys) -> None:
    rooms = ("tilegate/*.py", "oracle/*.py", "skills/*/*.py", "kernels/*/*.py")
    files = [path for room in rooms for path in ROOT.glob(room)]
    edits = {
        str(path.relative_to(ROOT)): "# a comment\n" + ast.unparse(ast.parse(path.read_text()))
        for path in files
    }
    assert len(edits) > 50
    assert keys.rebuilt(edits=edits) == set()


def test_a_header_rebuilds_the_kernels_that_include_it(keys: Keys) -> None:
    """The compiler's own list of dependencies says which."""
    headers = sorted((ROOT / "kernels/host").rglob("*.hpp"))
    including: dict[Path, set[str]] = {header: set() for header in headers}
    for source in sorted(ROOT.glob("kernels/*/*.cc")):
        command = [*compiler.toolchain().command, "-MM", *compiler.FLAGS, f"-I{compiler.HOST}"]
        listed = subprocess.run([*command, str(source)], capture_output=True, text=True, check=True)
        stem = "walker" if source.stem == "walker" else f"{source.parent.name}.{source.stem}-"
        for header in headers:
            if str(header) in listed.stdout:
                including[header].add(f"kernel:{stem}")
    for header, stems in including.items():
        name = str(header.relative_to(ROOT))
        rebuilt = {n for n in keys.rebuilt(edits={name: "x"}) if n.startswith("kernel:")}
        wanted = {n for n in keys.base if any(n.startswith(stem) for stem in stems)}
        assert rebuilt == wanted, name


def test_compiler_flags_cpu_and_packages(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    native = {"kernel:*", *AFTER_KERNELS}
    binaries = compiler.toolchain().binaries
    assert any("cc1plus" in path.name for path in binaries) or len(binaries) == 1
    for binary in binaries:
        check(keys, keys.rebuilt(edits={str(binary): "another compiler"}), native)
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-O1"))
        patch.setattr("tilegate.dispatch.FLAGS", compiler.FLAGS)
        check(keys, keys.rebuilt(), native)
    with monkeypatch.context() as patch:
        other = dataclasses.replace(compiler.toolchain(), cpu="x86_64 another machine")
        for module in ("compile", "dispatch", "bundle"):
            patch.setattr(f"tilegate.{module}.toolchain", lambda: other)
        check(keys, keys.rebuilt(), native)
    with monkeypatch.context() as patch:
        installed = pycode.version
        patch.setattr(pycode, "version", lambda n: "9" if n == "ml_dtypes" else installed(n))
        check(keys, keys.rebuilt(), {"gate:kernel:*", "gate:block", "deploy"})
        patch.setattr(pycode, "version", lambda n: "9" if n == "transformers" else installed(n))
        assert keys.rebuilt() >= {"weights", "gate:oracle"}
        assert not any(name.startswith(("kernel:", "dispatch:")) for name in keys.rebuilt())


def test_two_models_share_equal_kernels(keys: Keys) -> None:
    """The same decoder with more layers and another name compiles and links nothing."""
    rebuilt = keys.rebuilt("model.name=other", "model.layers=3", "model.norm_eps=1e-5")
    assert not any(name.startswith(("kernel:", "dispatch:")) for name in rebuilt)
