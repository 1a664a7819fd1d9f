"""Phase 7: the independent evaluator. `doit evaluate`, and the last step before every promotion.

It runs in a process of its own with a clean environment, and sees a bundle, the committed sources
and the original weights; neither staging nor the oracle's traces nor what the chain says of itself.
It audits (`tilegate.audit`), fetches the weights again, generates with the bundle's runner, and
judges every token with transformers in FP32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilegate.config import Config
from tilegate.errors import BrokenTool, GateFailed, UserError
from tilegate.graph import skill
from tilegate.store import ROOT

KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "TILEGATE_CACHE", "TILEGATE_THREADS", "HF_HUB_OFFLINE")
VERDICTS = {"fail": "FAIL", "warn": "PASS with warnings", "pass": "PASS"}


def main(config: Config) -> bool:
    """`doit evaluate`: judge what is promoted for the configured model. False for FAIL."""
    root = ROOT / "build" / "deploy"
    places = [root / (config.model.name + end) for end in ("", ".rehearsal")]
    found = next((place for place in places if (place / "manifest.json").is_file()), None)
    if found is None:
        raise UserError(f"nothing is promoted for {config.model.name}: doit deploy comes first")
    out = ROOT / "build" / "reports" / config.model.name
    verdict = spawn(found, out, config.weights.path)
    print((out / "evaluation.md").read_text())
    return bool(verdict["verdict"] != VERDICTS["fail"])


def spawn(folder: Path, out: Path, weights_path: str | None = None) -> dict[str, Any]:
    """Evaluate in a clean process; the document that it wrote to `out`/evaluation.json.

    Raises BrokenTool when the evaluator does not end by itself.
    """
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    command = [sys.executable, "-m", "tilegate.evaluate", str(folder), "--out", str(out)]
    command += ["--weights-path", weights_path] if weights_path else []
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise BrokenTool(f"the evaluator ended with {done.returncode}: {last[0]}")
    return dict(json.loads((out / "evaluation.json").read_text()))


def require(document: dict[str, Any]) -> None:
    """Raise GateFailed for the verdict FAIL."""
    if document["verdict"] == VERDICTS["fail"]:
        wrong = [c for c in document["checks"] if c["verdict"] == "fail"]
        reasons = [f"{c['name']}: {c['detail']}" for c in wrong]
        raise GateFailed({"gate": "evaluation", "subject": "evaluator", "reasons": reasons})


def page(document: dict[str, Any]) -> str:
    """The evaluation for a person."""
    lines = [
        f"# Evaluation of {document['model']}: {document['verdict']}",
        "",
        f"Bundle {str(document['bundle'])[:16]}, {document['device']}.",
        "",
        "| check | verdict | detail |",
        "|---|---|---|",
        *(f"| {c['name']} | {c['verdict']} | {c['detail']} |" for c in document["checks"]),
    ]
    if document["generations"]:
        lines += ["", "| generation | as FP32 until a divergence | KL (nats) |", "|---|---|---|"]
        lines += [
            f"| {g['subject']} | {g['matched']} of {len(g['tokens'])} | {g['kl']:.2e} |"
            for g in document["generations"]
        ]
    return "\n".join(lines) + "\n"


def _command_line(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tilegate.evaluate", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights-path")
    given = parser.parse_args(argv)
    code: Any = skill("phase-7-evaluate")
    document = code.evaluate(given.bundle, given.weights_path)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "evaluation.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.out / "evaluation.md").write_text(page(document))
    return 1 if document["verdict"] == VERDICTS["fail"] else 0


if __name__ == "__main__":
    sys.exit(_command_line(sys.argv[1:]))
