"""Phase 2: fused dispatches, the runner that drives them, and one decoder block at a time."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tilegate import bisect, bundle, diagnose, faults, gate, policy, records
from tilegate.config import plain
from tilegate.deployment import Deployment
from tilegate.dispatch import dispatch_node
from tilegate.graph import Graph
from tilegate.model import Phase
from tilegate.real import Real
from tilegate.store import Build, Node

REMEMBERED = 8  # earlier inputs and outputs that a stale buffer may still hold


def nodes(graph: Graph, parameters: Mapping[str, Any]) -> Iterable[Node]:
    """dispatch:*, runner (the staged bundle) and gate:block."""
    config, deployment = graph.config, graph.deployment
    rules = policy.load(config.gate)
    dispatches = [dispatch_node(dispatch) for dispatch in deployment.dispatches]
    yield from dispatches
    documents = [bundle.predicted(dispatch, config) for dispatch in deployment.dispatches]
    runner = Node(
        name="runner",
        kind="runner",
        doc="stage the bundle: runner, dispatches, weights, tokenizer, manifest",
        inputs={
            "documents": documents,
            "model": plain(deployment.config.model),
            "sequence": plain(config.sequence),
            "clock": bundle.clock(config.device),
            "tools": bundle.tools(),
        },
        needs=(*dispatches, graph["device-weights"], graph["weights"]),
        build=functools.partial(_stage, deployment),
        sources=bundle.runtime_files(),
    )
    yield runner
    yield Node(
        name="gate:block",
        kind="gate",
        doc="prefill and decode of the first, middle and last layer against the oracle",
        inputs={
            "policy": {"block": rules.sections["block"], "tiers": rules.tiers},
            "model": plain(config.model),
            "fault": faults.device(config.fault),
        },
        needs=(runner, graph["oracle"], graph["device-weights"]),
        after=tuple(_kernel_gates(graph)),
        build=functools.partial(_gate, deployment, graph.debug, config.gate),
    )


def _kernel_gates(graph: Graph) -> Iterable[Node]:
    return [node for node in graph.of_kind("gate") if node.name.startswith("gate:kernel:")]


def _stage(deployment: Deployment, build: Build) -> None:
    folder = build.out / "bundle"
    documents = build.inputs["documents"]
    libraries = {
        name.removeprefix("dispatch:"): artifact
        for name, artifact in build.needs.items()
        if name.startswith("dispatch:")
    }
    weights = build.need("weights")
    bundle.lay(folder, documents, libraries, build.need("device-weights"), weights)
    record = json.loads(weights.file("weights.json").read_text())
    provenance = {name: {"digest": artifact.digest} for name, artifact in build.needs.items()}
    sealed = bundle.manifest(deployment, folder, record, provenance)
    (folder / "manifest.json").write_bytes(sealed)


def _gate(
    deployment: Deployment, debug: tuple[str, ...], raw: Mapping[str, Any], build: Build
) -> None:
    import numpy as np

    from oracle.traces import Golden
    from runtime.bf16 import as_f32, narrow
    from runtime.manifest import read_manifest
    from runtime.runner import Capture, Runner
    from runtime.session import open_session

    rules = policy.load(raw)
    golden = Golden(build.need("oracle").path)
    folder = build.need("runner").path / "bundle"
    session = open_session("emulated", read_manifest(folder).device, build.inputs["fault"])
    runner = Runner(folder, session)
    judge = _Judge(deployment, rules, golden, build)
    prefill, decode = {p.bucket: p for p in deployment.true_phases()}, deployment.true_phases()[-2]
    for number, entry in enumerate(golden.prompts):
        count = len(entry["tokens"])
        for layer in golden.record["layers"]:
            build.progress(f"layer {layer}, prompt {number}")
            before = "embedding" if layer == 0 else f"layers.{layer - 1}.mlp_residual"
            x = golden.get(number, before)
            values = frozenset(name.split(".")[2] for name in golden.names(number) if "." in name)
            padded = np.zeros((runner.bucket(count), x.shape[1]), np.float32)
            padded[:count] = x
            capture = Capture(values, frozenset({layer}))
            runner.block(layer, narrow(padded), capture)
            given = as_f32(narrow(padded))
            judge(prefill[len(padded)], number, layer, given, capture)
            capture = Capture(values, frozenset({layer}))
            runner.decode_block(layer, narrow(x[-1]), count - 1, capture)
            judge(decode, number, layer, given[count - 1 : count], capture)
    expected = 2 * len(golden.prompts) * len(golden.record["layers"])
    name = build.inputs["model"]["name"]
    records.settle(build, name, judge.found, expected, lambda: judge.failing[:1], debug)


class _Judge:
    """Compares runs of a layer, whole and launch by launch; keeps what fails for debug skills."""

    def __init__(
        self, deployment: Deployment, rules: policy.Policy, golden: Any, build: Build
    ) -> None:
        oracle, weights = build.need("oracle").path, build.need("device-weights").path
        self.deployment, self.rules, self.golden = deployment, rules, golden
        self.model = build.inputs["model"]
        self.real = [
            Real(self.model, oracle, weights, number) for number in range(len(golden.prompts))
        ]
        self.facts = {"model": self.model, "weights": str(weights / "weights.safetensors")}
        self.prefilled: Mapping[str, Any] = {}
        self.found: list[gate.Record] = []
        self.failing: list[diagnose.Case] = []
        self.history: dict[str, Any] = {}

    def __call__(self, phase: Phase, number: int, layer: int, given: Any, capture: Any) -> None:
        values = {name: tensor for (_, name), tensor in capture.tensors.items()}
        tokens = self.real[number].tokens
        kept = {name: tensor[: tokens if phase.bucket else 1] for name, tensor in values.items()}
        where = f"{phase.phase} prompt {number}"
        record = _compare(where, kept, self.golden, number, layer, self.rules, self.model)
        if phase.bucket:
            self.prefilled = values
        caches = {} if phase.bucket else self._caches(phase, values, tokens)
        block = bisect.Block(phase, layer, given, values, caches, dict(self.history))
        facts = {**self.facts, "tokens": tokens, "bucket": phase.bucket}
        planned = self.deployment.planned
        wrong = bisect.first_wrong(
            bisect.cases(block, planned, self.real[number], self.rules, facts)
        )
        if wrong:
            why = (*record.reasons, bisect.reason(wrong))
            record = dataclasses.replace(record, verdict="fail", reasons=why)
            self.failing.append(wrong)
        self.found.append(record)
        self.history[f"input of layer {layer}, {where}"] = given
        self.history[f"output of layer {layer}, {where}"] = values.get("mlp_residual")
        self.history = dict(list(self.history.items())[-REMEMBERED:])

    def _caches(self, phase: Phase, values: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        """K and V as decode should find them: what prefill left, the new row at its position."""
        import numpy as np

        caches = {}
        for value in phase.values.values():
            name = value.value or ""
            if value.kind == "cache" and name in self.prefilled and name in values:
                cache = np.zeros(value.shape, np.float32)
                cache[: len(self.prefilled[name])] = self.prefilled[name]
                cache[tokens - 1] = values[name][0]
                caches[name] = cache
        return caches


def _compare(
    where: str,
    values: Mapping[str, Any],
    golden: Any,
    number: int,
    layer: int,
    rules: policy.Policy,
    model: Mapping[str, Any],
) -> gate.Record:
    """The block's output against the oracle's."""
    import numpy as np

    def truth(name: str) -> Any:
        reference = golden.get(number, f"layers.{layer}.{name}")
        return np.array(reference[-len(values[name]) :], np.float32)

    output = np.ascontiguousarray(values["mlp_residual"], np.float32)
    reference = truth("mlp_residual")
    return gate.compare_block(
        "block",
        f"layer {layer} {where}",
        output,
        reference,
        rules,
        model["head_dim"],
        reference.size,
    )
