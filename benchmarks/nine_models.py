"""Nine models: what was published, what ours is predicted to reach, and what would be left to gain.

    python benchmarks/nine_models.py            print the table
    python benchmarks/nine_models.py --report   write it into docs/better.md

Nothing here was measured on hardware by us: every figure but the published ones is predicted.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilegate import config, measured, timing
from tilegate.deployment import Deployment, host_us, resolve
from tilegate.device import Device, FunctionCost
from tilegate.published import LAYER, ModelRow, Published
from tilegate.settings import Lengths, Model

NAMES = tuple(Path(__file__).with_suffix(".txt").read_text().split())
TOKENS = 2048
PAGE = Path(__file__).resolve().parent.parent / "docs" / "better.md"
MARKS = ("<!-- nine models -->", "<!-- end -->")


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds to the first token of a prompt of 2048, and seconds per token."""

    first: float
    token: float


def as_published(published: Published, model: Model) -> Times:
    """The published dispatches and tiles, predicted, for a model of any dimensions."""
    published.models.setdefault(model.name, model)
    head = published.dispatch("lm_head_gemv", model.name, "decode")
    times = []
    for phase, tokens in (("prefill", TOKENS), ("decode", 1)):
        layer = [published.dispatch(d, model.name, phase, TOKENS) for d in LAYER[phase]]
        works = tuple(work for part in layer for work in part)
        row = ModelRow(
            model.name,
            model.name,
            1.0,
            model.layers,
            works,
            head,
            len(LAYER[phase]),
            tokens * model.dim * 2,
        )
        times.append(row.predict(published.device) / 1e6)
    return Times(*times)


def ours(name: str, cache: Path) -> Deployment:
    return resolve(
        dataclasses.replace(config.load([f"model={name}"]), sequence=Lengths((TOKENS,), TOKENS)),
        cache,
    )


JOINED = ("k_proj", "v_proj", "up_proj")


def predict(
    deployment: Deployment, device: Device, one_dispatch: bool = False, joined: bool = False
) -> Times:
    """The times of a deployment on a device, or with one dispatch for a whole pass.

    `joined`: q, k and v of decode are one GEMV over weights side by side, so are gate and up.
    """
    layers = deployment.config.model.layers
    head = _phase(deployment, "lm_head", device, one_dispatch)
    times = []
    for phase in ("prefill", "decode"):
        total = layers * _phase(deployment, phase, device, one_dispatch) + head
        if one_dispatch:
            total += host_us(deployment.of_phase(phase)[0], deployment.config)
        if joined and phase == "decode":
            total -= layers * _configured(deployment, device)
        times.append(total / 1e6)
    return Times(*times)


def _phase(deployment: Deployment, phase: str, device: Device, one_dispatch: bool) -> float:
    total = 0.0
    for dispatch in deployment.of_phase(phase):
        total += timing.predict_dispatch([op.plan for op in dispatch.ops], device).us
        total += 0.0 if one_dispatch else host_us(dispatch, deployment.config)
    return total


def _configured(deployment: Deployment, device: Device) -> float:
    """What it costs to configure the array for the launches that joining does away with."""
    return sum(
        timing.reconfigure_us(timing.measure(launch), device)
        for dispatch in deployment.of_phase("decode")
        for op, launch in dispatch.launches()
        if op.name in JOINED
    )


def changed(device: Device, **costs: FunctionCost) -> Device:
    return dataclasses.replace(device, functions={**device.functions, **costs})


def causal(device: Device) -> Device:
    """Blocks of keys that the mask hides cost nothing: half of them in a long prompt."""
    scores, output = device.functions["fa_scores"], device.functions["fa_accumulate"]
    return changed(
        device,
        fa_scores=dataclasses.replace(scores, call_us=scores.call_us / 2),
        fa_accumulate=dataclasses.replace(output, outputs_per_us=output.outputs_per_us * 2),
    )


def streaming(device: Device) -> Device:
    """GEMV in the shadow of its weights: the core computes on one panel while the next arrives."""
    return changed(device, gemv_rows=FunctionCost(elf=1.0))


def geometric(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table() -> list[str]:
    records = measured.load()
    device = config.load(()).device
    published = Published(records, device)
    known = {r["model"]: r for r in records if r["op"] == "model" and r["role"] == "e2e"}
    lines = [
        "| model | TTFT s: published | its plan, predicted | ours | one dispatch, causal skipping "
        "| tokens/s: published | its plan, predicted | ours | one dispatch "
        "| GEMV at the rate of DDR, joined |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    gains: list[list[float]] = [[] for _ in range(5)]
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            deployment = ours(name, Path(folder))
            base = as_published(published, deployment.config.model)
            row: dict[str, Any] = known.get(name, {})
            first = row.get("ttft_s", base.first)
            token = 1 / row["decode_tok_s"] if "decode_tok_s" in row else base.token
            now = predict(deployment, device)
            merged = predict(deployment, causal(device), one_dispatch=True)
            quick = predict(deployment, streaming(device), one_dispatch=True, joined=True)
            reached = (first / now.first, first / merged.first)
            reached += (token / now.token, token / merged.token, token / quick.token)
            for gain, value in zip(gains, reached, strict=True):
                gain.append(value)
            lines.append(
                f"| {name} | {row.get('ttft_s', '-')} | {base.first:.2f} | {now.first:.2f} "
                f"| {merged.first:.2f} | {row.get('decode_tok_s', '-')} | {1 / base.token:.1f} "
                f"| {1 / now.token:.1f} | {1 / merged.token:.1f} | {1 / quick.token:.1f} |"
            )
    g = [f"{geometric(gain):.2f}x" for gain in gains]
    lines.append(
        f"| geometric mean of the gain | 1 | | {g[0]} | {g[1]} | 1 | | {g[2]} | {g[3]} | {g[4]} |"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true")
    lines = table()
    print("\n".join(lines))
    if parser.parse_args().report:
        head, rest = PAGE.read_text().split(MARKS[0])
        text = f"{head}{MARKS[0]}\n" + "\n".join(lines) + f"\n{MARKS[1]}"
        PAGE.write_text(text + rest.split(MARKS[1])[1])


if __name__ == "__main__":
    main()
