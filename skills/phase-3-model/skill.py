"""Phase 3: the whole model on the device, 32 greedy tokens per prompt against the oracle."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tilegate import gate, policy, records
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
            "model": config.model.name,
            "fault": config.fault,
        },
        needs=(graph["runner"], graph["oracle"]),
        after=(graph["gate:block"],),
        build=functools.partial(_gate, config.gate),
    )


def _gate(raw: Mapping[str, Any], build: Build) -> None:
    import json

    import numpy as np

    from oracle.traces import Golden
    from runtime.manifest import read_manifest
    from runtime.runner import Runner
    from runtime.session import open_session

    rules = policy.load(raw)
    golden = Golden(build.need("oracle").path)
    folder = build.need("runner").path / "bundle"
    session = open_session("emulated", read_manifest(folder).device, build.inputs["fault"])
    runner = Runner(folder, session)
    found, generated = [], []
    for number, entry in enumerate(golden.prompts):
        build.progress(f"prompt {number + 1} of {len(golden.prompts)}")
        logits = [runner.prefill(entry["tokens"])]
        tokens = [int(logits[0].argmax())]
        while len(tokens) < golden.record["steps"]:
            logits.append(runner.decode(tokens[-1]))
            tokens.append(int(logits[-1].argmax()))
        candidate = Generation(tokens, np.stack(logits))
        reference = Generation(entry["greedy"], np.array(golden.get(number, "step_logits")))
        found.append(gate.compare_tokens("model", f"prompt {number}", candidate, reference, rules))
        generated.append({"prompt": entry["tokens"], "tokens": tokens})
    records.settle(build, build.inputs["model"], found, len(golden.prompts))
    (build.out / "generated.json").write_text(json.dumps(generated) + "\n")
