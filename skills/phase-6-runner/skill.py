"""Phase 6: the runner as people will use it, then promotion of exactly what was gated."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilegate import bundle, evaluate, gate, policy, records, summary
from tilegate.config import plain
from tilegate.deployment import Deployment
from tilegate.errors import BrokenTool
from tilegate.graph import Graph
from tilegate.hardware import OUTPUTS
from tilegate.promote import promote
from tilegate.store import ROOT, Artifact, Build, Node

DEPLOY = ROOT / "build" / "deploy"
TIMEOUT_S = 1800


def nodes(graph: Graph, parameters: Mapping[str, Any]) -> Iterable[Node]:
    """gate:runner and deploy."""
    config = graph.config
    check = Node(
        name="gate:runner",
        kind="gate",
        doc="the bundle's own command, moved elsewhere, in a process of its own",
        inputs={
            "model": config.model.name,
            "fault": config.fault if config.fault == "bundle_byte" else None,
        },
        needs=(graph["runner"], graph["gate:model"]),
        build=functools.partial(_gate, config.gate),
    )
    yield check
    before = [node for node in graph.nodes.values() if node is not check]
    yield Node(
        name="deploy",
        kind="deploy",
        doc=f"promote the gated bundle to build/deploy/{config.model.name}",
        inputs={
            "config": bundle.portable(plain(config)),
            "fault": config.fault,
            "tools": bundle.tools(),
            "policy_changes": _policy_changes(graph),
        },
        needs=(*before, check),
        by_key=True,
        build=functools.partial(_deploy, graph.deployment, config.weights.path),
        install=functools.partial(_promote, config.model.name),
        installed=functools.partial(_promoted, config.model.name),
    )


def _policy_changes(graph: Graph) -> list[str]:
    """How the gate policy differs from the committed one."""
    committed = policy.committed(graph.store.digests.derived)
    return policy.load(graph.config.gate).changed_from(committed)


def _gate(raw: Mapping[str, Any], build: Build) -> None:
    """Token ids, digests and times as the `run` of a moved copy gives them."""
    rules = policy.load(raw)
    generated = json.loads(build.need("gate:model").file("generated.json").read_text())
    staged = build.need("runner").path / "bundle"
    stops = _stop_ids(staged)
    found = []
    with tempfile.TemporaryDirectory(dir=build.out) as place:
        moved = Path(place) / "elsewhere"
        shutil.copytree(staged, moved, copy_function=_link)
        if build.inputs["fault"] == "bundle_byte":
            _flip(next(moved.glob("dispatches/*/dispatch.so")))
        for number, entry in enumerate(generated):
            build.progress(f"prompt {number + 1} of {len(generated)}")
            ids = Path(place) / "ids.json"
            ids.write_text(json.dumps(entry["prompt"]))
            wanted = _until_stop(entry["tokens"], stops)
            limit = str(len(entry["tokens"]))
            status, text = _run(moved, "--ids", str(ids), "--max-tokens", limit, "--json")
            got = json.loads(text)["ids"] if status == 0 else []
            found.append(gate.compare_exact("runner", f"prompt {number}", got, wanted, rules))
        status, text = _run(moved, "verify")
        got = [f"exit status {status}", *(text.splitlines() if status else [])]
        found.append(gate.compare_exact("runner", "verify", got, ["exit status 0"], rules))
        status, text = _run(moved, "bench", "--json", "--decode-tokens", "4")
        times = json.loads(text) if status == 0 else {}
        names = ["ttft_ms", "tpot_ms"]
        got = [name for name in names if _positive(times.get(name))]
        found.append(gate.compare_exact("runner", "bench", got, names, rules))
    records.settle(build, build.inputs["model"], found, len(generated) + 2)


def _stop_ids(folder: Path) -> frozenset[int]:
    document = json.loads((folder / "manifest.json").read_text())
    return frozenset(document["tokenizer"]["eos_ids"])


def _until_stop(tokens: list[int], stops: frozenset[int]) -> list[int]:
    at = next((i for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:at]


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and standard output of the bundle's command, in a clean environment."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "TILEGATE_THREADS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["TILEGATE_PYTHON"] = sys.executable
    command = [str(folder / bundle.EXECUTABLE), "--allow-rehearsal", *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokenTool(f"gate:runner: the bundle's command did not end: {error}") from None
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def _flip(path: Path) -> None:
    """The fault `bundle_byte`: one bit of a copy, never of the linked original."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
        return target
    except OSError:
        return str(shutil.copy2(source, target))


def _deploy(deployment: Deployment, weights_path: str | None, build: Build) -> None:
    """The final bundle: the gated files, and a manifest that carries the gates' records."""
    fault = build.inputs["fault"]
    if fault:
        raise BrokenTool(f"fault={fault} was injected and no gate caught it: nothing is promoted")
    folder = build.out / "bundle"
    shutil.copytree(build.need("runner").path / "bundle", folder, copy_function=_link)
    (folder / "manifest.json").unlink()
    built = _add_binaries(build, folder)
    weights = json.loads(build.need("weights").file("weights.json").read_text())
    provenance = {
        name: {
            "key": artifact.key,
            "digest": artifact.digest,
            "needs": {name: need["digest"] for name, need in artifact.manifest["needs"].items()},
            **{part: artifact.manifest[part] for part in ("sources", "code", "packages")},
        }
        for name, artifact in build.needs.items()
    }
    gates = [
        {"task": name, **record}
        for name, artifact in sorted(build.needs.items())
        if name.startswith("gate:")
        for record in records.read(artifact)
    ]
    sealed = bundle.manifest(
        deployment,
        folder,
        weights,
        provenance,
        gates=gates,
        policy_changes=build.inputs["policy_changes"],
        config=build.inputs["config"],
    )
    (folder / "manifest.json").write_bytes(sealed)
    build.progress("the independent evaluator")
    evaluate.require(evaluate.spawn(folder, build.out, weights_path))
    build.notes["summary"] = summary.text(deployment, json.loads(sealed)) + built


def _add_binaries(build: Build, folder: Path) -> str:
    """Lay what was built for a real NPU beside what was gated; a line that says what it is."""
    count = 0
    for name, artifact in build.needs.items():
        kind, _, dispatch = name.partition(":")
        for file in OUTPUTS.get(kind, ()):
            shutil.copy(artifact.file(file), folder / "dispatches" / dispatch / file)
            count += 1
    text = f"{count} binaries for the NPU beside them: gated on the emulated device only; next"
    return f"\n{text} doit bringup device=npu2 on a machine that has one" if count else ""


def target_of(model: str, artifact: Artifact) -> Path:
    """Where the bundle belongs: rehearsals stay apart from what answers people."""
    document = json.loads(artifact.file("bundle/manifest.json").read_text())
    return DEPLOY / summary.place(document)


def _promote(model: str, artifact: Artifact) -> None:
    target = target_of(model, artifact)
    promote(artifact.path / "bundle", target)
    (target / "python.hint").write_text(sys.executable + "\n")


def _promoted(model: str, artifact: Artifact) -> bool:
    """Whether exactly this bundle stands at its place, every file with its size."""
    target = target_of(model, artifact)
    sealed = artifact.file("bundle/manifest.json").read_bytes()
    try:
        hint = target / "python.hint"
        if (target / "manifest.json").read_bytes() != sealed or not hint.is_file():
            return False
        sizes = json.loads(sealed)["sizes"]
        return all((target / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False
