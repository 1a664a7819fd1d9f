"""Phase 3: the whole model on the device, 32 greedy tokens per prompt against the oracle."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tilegate import diagnose, faults, gate, policy, records
from tilegate.config import plain
from tilegate.evidence import Generation
from tilegate.graph import Graph
from tilegate.store import Build, Node


def nodes(graph: Graph, parameters: Mapping[str, Any]) -> Iterable[Node]:
    """gate:model."""
    config = graph.config
    yield Node(
        name="gate:model",
        kind="gate",
        doc="greedy tokens of the staged runner against the oracle, two-sided top-5",
        inputs={
            "policy": policy.load(config.gate).sections["model"],
            "model": plain(config.model),
            "fault": config.fault,
        },
        needs=(graph["runner"], graph["oracle"], graph["device-weights"]),
        after=(graph["gate:block"],),
        build=functools.partial(_gate, graph.debug, config.gate),
    )


def _gate(debug: tuple[str, ...], raw: Mapping[str, Any], build: Build) -> None:
    import json

    import numpy as np

    from oracle.traces import Golden
    from runtime.bf16 import as_f32, narrow
    from runtime.manifest import read_manifest
    from runtime.runner import Capture, Runner
    from runtime.session import open_session

    rules = policy.load(raw)
    golden = Golden(build.need("oracle").path)
    folder = build.need("runner").path / "bundle"
    fault = build.inputs["fault"]
    session = open_session("emulated", read_manifest(folder).device, faults.device(fault))
    runner = Runner(folder, session)
    found, generated = [], []
    for number, entry in enumerate(golden.prompts):
        build.progress(f"prompt {number + 1} of {len(golden.prompts)}")
        entered = Capture(frozenset({"x"}), frozenset({0}))
        logits = [runner.prefill(faults.prompt(fault, entry["tokens"]), entered)]
        tokens = [int(logits[0].argmax())]
        while len(tokens) < golden.record["steps"]:
            logits.append(runner.decode(tokens[-1]))
            tokens.append(int(logits[-1].argmax()))
        candidate = Generation(tokens, np.stack(logits))
        reference = Generation(entry["greedy"], np.array(golden.get(number, "step_logits")))
        record = gate.compare_tokens("model", f"prompt {number}", candidate, reference, rules)
        fed = entered.tensors[0, "x"][: len(entry["tokens"])]
        if not np.array_equal(fed, as_f32(narrow(golden.get(number, "embedding")))):
            why = (*record.reasons, "the rows fed to the first block are not the prompt's")
            record = dataclasses.replace(record, verdict="fail", reasons=why)
        found.append(record)
        generated.append({"prompt": entry["tokens"], "tokens": tokens})
    cases = functools.partial(_cases, build, runner, golden, found)
    records.settle(build, build.inputs["model"]["name"], found, len(golden.prompts), cases, debug)
    (build.out / "generated.json").write_text(json.dumps(generated) + "\n")


def _cases(build: Build, runner: Any, golden: Any, found: list[gate.Record]) -> list[diagnose.Case]:
    """What goes into the first block and what leaves the head, for the first prompt that failed."""
    import numpy as np

    from runtime.runner import Capture

    number = next(i for i, record in enumerate(found) if not record.passed)
    tokens = golden.prompts[number]["tokens"]
    model = build.inputs["model"]
    capture = Capture(frozenset({"x", "final_norm"}), frozenset({0}))
    logits = runner.prefill(faults.prompt(build.inputs["fault"], tokens), capture)
    weights = build.need("device-weights").path / "weights.safetensors"
    facts = {"model": model, "weights": str(weights), "tokens": len(tokens)}
    values = {"embedding": golden.get(number, "embedding")}
    entry = diagnose.Case(
        "model", "embedding", "", None, f"prompt {number}", capture.tensors[0, "x"],
        values["embedding"], values=values, limit=0.01, facts=facts,
    )  # fmt: skip
    same = entry.output[: len(tokens)]
    if diagnose.error(same, values["embedding"]) > entry.limit:
        return [entry]
    head = "model.embed_tokens.weight" if model["tied"] else "lm_head.weight"
    normed = np.asarray(capture.tensors[None, "final_norm"], np.float32).reshape(1, -1)
    expected = normed @ entry.weight(head).T
    return [
        diagnose.Case(
            "model", "logits", "gemv", None, f"prompt {number}", logits[None], expected,
            operands={"x": normed}, values=values, limit=0.02, facts=facts,
        )
    ]  # fmt: skip
