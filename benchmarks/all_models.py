"""Every model deployed from nothing, one after the other; the table in docs/models.md.

    python benchmarks/all_models.py [--downloads DIR] [--only NAME,NAME] [--table]

Each model is a clean deployment as in `deploy.py`. What was measured is kept by model in
benchmarks/models.json; the table holds all of them, so that models may be measured one by one.
`--table` writes the table from what is kept and deploys nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy import ROOT, Run, deploy, grouped

KEPT = ROOT / "benchmarks" / "models.json"
TABLE = ROOT / "docs" / "models.md"
PHASES = {
    "weights": ("weights", "device-weights"),
    "oracle": ("oracle", "gate:oracle"),
    "build": ("kernel:*", "dispatch:*", "runner"),
    "kernels": ("gate:kernel:*",),
    "block": ("gate:block",),
    "model": ("gate:model",),
    "runner": ("gate:runner", "deploy"),
}
HEAD = """# All models

Each model at full size through every phase of the default chain, from an empty cache with packages
installed, on the emulated NPU2. **Rehearsal** means synthetic weights of the exact shapes, because
published ones were not reached; everything is built and gated all the same. Written by
`benchmarks/all_models.py`; times are of the machine and of who else used it (the load is shown).

"""
NOTES = """
Seconds of the phases add up to more than the wall time, since two tasks run at a time. Memory is
the resident set of all processes together, mapped weights included; disk is what the deployment
leaves in cache and bundle, each file once: the bundle's weights are links into the cache.

Gates: `logits` is the worst difference of the oracle's logits from transformers in FP32; `cosine`
the lowest of any position of any gated block; `tokens` how many greedy tokens of the device agree
with the oracle's before the first divergence (of 32 per prompt), `KL` the largest divergence of
their logits. What the timing model predicts for a real NPU2: `doit predict`.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--downloads", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="NAME,NAME")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(argv)
    every = [path.stem for path in sorted((ROOT / "conf/model").glob("*.yaml"))]
    names = options.only.split(",") if options.only else every
    failed = []
    for name in [] if options.table else names:
        print(f"{name} ...", flush=True)
        load = os.getloadavg()[0]
        run = deploy([f"model={name}"], options.downloads)
        if run.status:
            print("".join(run.lines[-20:]), flush=True)
            failed.append(name)
            continue
        _keep(name, _measured(run, load))
        _write()
    _write()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measured(run: Run, load_before: float) -> dict[str, Any]:
    seconds, _ = grouped(run.lines)
    gates = run.manifest["gates"]
    of = {kind: [g["metrics"] for g in gates if g["gate"] == kind] for kind in
          ("oracle", "block", "model")}  # fmt: skip
    return {
        "weights": run.manifest["weights"]["kind"],
        "wall_s": round(run.wall, 1),
        "phases_s": {
            phase: round(sum(seconds.get(task, 0.0) for task in tasks), 1)
            for phase, tasks in PHASES.items()
        },
        "memory_gib": round(run.peak.tree / 2**30, 2),
        "disk_gib": round(run.disk / 2**30, 2),
        "gates": len(gates),
        "logits": max(m["max_abs"] for m in of["oracle"]),
        "cosine": min(m["cosine_min"] for m in of["block"]),
        "tokens": [m["matched"] for m in of["model"]],
        "kl": max(m["kl"] for m in of["model"]),
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _kept() -> dict[str, Any]:
    return dict(json.loads(KEPT.read_text())) if KEPT.exists() else {}


def _keep(name: str, measured: Mapping[str, Any]) -> None:
    document = {**_kept(), name: measured}
    KEPT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def _write() -> None:
    kept = _kept()
    phases = " | ".join(PHASES)
    rows = [
        f"| model | weights | wall s | {phases} | memory GiB | disk GiB | load |",
        "|---|---|--:|" + "--:|" * (len(PHASES) + 3),
    ]
    gates = ["| model | gates held | logits | cosine | tokens | KL |", "|---|--:|--:|--:|--:|--:|"]
    notes = [f"{name}: {m['note']}" for name, m in sorted(kept.items()) if "note" in m]
    for name, m in sorted(kept.items(), key=lambda item: item[1]["wall_s"]):
        spent = " | ".join(f"{m['phases_s'][phase]:.0f}" for phase in PHASES)
        load = "–".join(f"{value:.0f}" for value in m["load"])
        rows.append(
            f"| {name} | {m['weights']} | {m['wall_s']:.0f} | {spent} "
            f"| {m['memory_gib']:.1f} | {m['disk_gib'] or '-'} | {load} |"
        )
        tokens = ", ".join(map(str, m["tokens"]))
        gates.append(
            f"| {name} | {m['gates']} | {m['logits']:.1e} | {m['cosine']:.4f} | {tokens} "
            f"| {m['kl']:.1e} |"
        )
    TABLE.write_text(
        HEAD + "\n".join(rows) + "\n\n" + "\n".join([*gates, "", *notes]) + "\n" + NOTES
    )


if __name__ == "__main__":
    sys.exit(main())
