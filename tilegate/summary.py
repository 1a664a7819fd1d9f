"""What a finished deployment tells the person who asked for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tilegate.deployment import Deployment
from tilegate.promote import REHEARSAL

# per kind of gate: the metric shown, how it reads, and which of its values is the worst
SHOWN = {
    "oracle": ("max_abs", "worst logit error {:.1e}", max),
    "kernel": ("mean_rel_l1", "worst mean relative error {:.2e}", max),
    "block": ("cosine_min", "worst cosine of a position {:.5f}", min),
    "model": ("matched", "at least {:.0f} tokens the same before any divergence", min),
}
WIDTH = 10


def place(manifest: Mapping[str, Any]) -> str:
    """The folder below build/deploy that a bundle belongs in."""
    rehearsal = manifest["weights"]["kind"] == "rehearsal"
    return str(manifest["model"]["name"]) + (REHEARSAL if rehearsal else "")


def text(deployment: Deployment, manifest: Mapping[str, Any]) -> str:
    """What was built, which gates held with which numbers, where it is, and what to run next."""
    where = f"build/deploy/{place(manifest)}"
    source = manifest["weights"]["source"]
    device = f"{manifest['device']['name']} (emulated)"
    launches = sum(len(list(dispatch.launches())) for dispatch in deployment.dispatches)
    lines = [
        "",
        f"{'model':{WIDTH}}{manifest['model']['name']}, weights: {source}",
        f"{'built':{WIDTH}}{len(deployment.dispatches)} dispatches of {launches} launches, "
        f"{len(deployment.kernels())} kernel plans, for the {device}",
        *_gates(manifest["gates"]),
        *(f"{'policy':{WIDTH}}NOT as committed: {line}" for line in manifest["policy_changes"]),
        f"{'bundle':{WIDTH}}{where}",
    ]
    if manifest["weights"]["kind"] == "rehearsal":
        return "\n".join([*lines, *_rehearsal(where)])
    return "\n".join(
        [
            *lines,
            f'{"next":{WIDTH}}{where}/run "What is the capital of France?"',
            *(f"{'':{WIDTH}}{where}/run {word}" for word in ("--chat", "bench", "verify")),
        ]
    )


def _gates(gates: Sequence[Mapping[str, Any]]) -> list[str]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in gates:
        found[str(record["gate"])].append(record)
    lines = []
    for kind, held in found.items():
        metric, words, worst = SHOWN.get(kind, ("", "", max))
        values = [r["metrics"][metric] for r in held if metric in r["metrics"]]
        number = f": {words.format(worst(values))}" if values else ""
        lines.append(f"{'gate':{WIDTH}}{kind}, {len(held)} comparisons held{number}")
    return lines


def _rehearsal(where: str) -> list[str]:
    return [
        "",
        "THIS IS A REHEARSAL: the weights are synthetic, because no published ones were reached",
        "or asked for. Everything was built and gated, but the text it generates means nothing.",
        "With real weights: doit deploy weights.path=FOLDER, or weights=hub with a network.",
        f"{'next':{WIDTH}}{where}/run bench",
    ]
