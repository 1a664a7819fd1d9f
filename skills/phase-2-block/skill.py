"""Phase 2: fused dispatches, the runner that drives them, and one decoder block at a time."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tilegate import bundle, gate, policy, records
from tilegate.config import plain
from tilegate.deployment import Deployment
from tilegate.dispatch import dispatch_node
from tilegate.graph import Graph
from tilegate.store import Build, Node

FAR = 0.25  # mean_rel_l1 beyond which a value is named as the first wrong one


def nodes(graph: Graph, parameters: Mapping[str, Any]) -> Iterable[Node]:
    """dispatch:*, runner (the staged bundle) and gate:block."""
    config, deployment = graph.config, graph.deployment
    dispatches = [dispatch_node(dispatch) for dispatch in deployment.dispatches]
    yield from dispatches
    documents = [bundle.predicted(dispatch, config) for dispatch in deployment.dispatches]
    runner = Node(
        name="runner",
        kind="runner",
        doc="stage the bundle: runner, dispatches, weights, tokenizer, manifest",
        inputs={
            "documents": documents,
            "model": plain(config.model),
            "sequence": plain(config.sequence),
            "clock": bundle.clock(config.device),
            "tools": bundle.tools(),
            "fault": config.fault if config.fault == "head_rows" else None,
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
            "policy": policy.load(config.gate).sections["block"],
            "model": plain(config.model),
            "fault": config.fault,
        },
        needs=(runner, graph["oracle"]),
        after=tuple(_kernel_gates(graph)),
        build=functools.partial(_gate, config.gate),
    )


def _kernel_gates(graph: Graph) -> Iterable[Node]:
    return [node for node in graph.of_kind("gate") if node.name.startswith("gate:kernel:")]


def _stage(deployment: Deployment, build: Build) -> None:
    folder = build.out / "bundle"
    documents = build.inputs["documents"]
    if build.inputs["fault"] == "head_rows":
        documents = _shifted(documents)
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


def _shifted(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fault `head_rows`: the parts of the vocabulary change places."""
    copy: list[dict[str, Any]] = json.loads(json.dumps(documents))
    for document in copy:
        parts = [a for a in document["arguments"] if a["value"] == "logits"]
        starts = [part["row_start"] for part in parts]
        for part, start in zip(parts, starts[1:] + starts[:1], strict=True):
            part["row_start"] = start
    return copy


def _gate(raw: Mapping[str, Any], build: Build) -> None:
    import numpy as np

    from oracle.traces import Golden
    from runtime.bf16 import narrow
    from runtime.manifest import read_manifest
    from runtime.runner import Capture, Runner
    from runtime.session import open_session

    rules = policy.load(raw)
    golden = Golden(build.need("oracle").path)
    folder = build.need("runner").path / "bundle"
    session = open_session("emulated", read_manifest(folder).device, build.inputs["fault"])
    runner = Runner(folder, session)
    model = build.inputs["model"]
    found = []
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
            prefill = {name: t[:count] for (_, name), t in capture.tensors.items()}
            found.append(
                _compare(f"prefill prompt {number}", prefill, golden, number, layer, rules, model)
            )
            capture = Capture(values, frozenset({layer}))
            runner.decode_block(layer, narrow(x[-1]), count - 1, capture)
            decode = {name: t[:1] for (_, name), t in capture.tensors.items()}
            found.append(
                _compare(f"decode prompt {number}", decode, golden, number, layer, rules, model)
            )
    records.settle(
        build, model["name"], found, 2 * len(golden.prompts) * len(golden.record["layers"])
    )


def _compare(
    where: str,
    values: Mapping[str, Any],
    golden: Any,
    number: int,
    layer: int,
    rules: policy.Policy,
    model: Mapping[str, Any],
) -> gate.Record:
    """The block's output against the oracle's; a failure names the first value that is far off."""
    import numpy as np

    def truth(name: str) -> Any:
        reference = golden.get(number, f"layers.{layer}.{name}")
        return np.array(reference[-len(values[name]) :], np.float32)

    output = np.ascontiguousarray(values["mlp_residual"], np.float32)
    reference = truth("mlp_residual")
    record = gate.compare_block(
        "block",
        f"layer {layer} {where}",
        output,
        reference,
        rules,
        model["head_dim"],
        reference.size,
    )
    if record.passed:
        return record
    for name, value in values.items():
        if name == "x":
            continue
        reference = truth(name)
        error = float(np.abs(value.reshape(reference.shape) - reference).mean())
        if not error <= FAR * float(np.abs(reference).mean()):
            reason = f"the first value that is far from the oracle's is {name}"
            return dataclasses.replace(record, reasons=(*record.reasons, reason))
    return record
