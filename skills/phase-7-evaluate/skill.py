"""Phase 7: audit a bundle, then run its gates again on the original weights with transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilegate import audit, gate, policy
from tilegate.audit import Check
from tilegate.config import Config, plain
from tilegate.evaluate import KEPT, VERDICTS
from tilegate.evidence import Generation
from tilegate.store import Store

EXACT = 1e-6  # relative: predicted times are computed, not measured


def evaluate(folder: Path, weights_path: str | None = None) -> dict[str, Any]:
    """The audit, then the gates again; the document of evaluation.json."""
    store = Store()
    checks = audit.audit(folder, store, weights_path)
    numbers: list[dict[str, Any]] = []
    if all(check.verdict != "fail" for check in checks):
        with tempfile.TemporaryDirectory(prefix="tilegate-evaluate-") as place:
            more, numbers = _rerun(folder, store, Path(place), weights_path)
            checks += more
    worst = min((c.verdict for c in checks), key=["fail", "warn", "pass"].index)
    manifest = _document(folder)
    return {
        "verdict": VERDICTS[worst],
        "model": manifest.get("model", {}).get("name"),
        "weights": manifest.get("weights"),
        "bundle": manifest.get("digest"),
        "device": "emulated NPU2; times are predicted",
        "checks": [asdict(check) for check in checks],
        "generations": numbers,
    }


def _document(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "manifest.json").read_text()))
    except (OSError, ValueError):
        return {}


def _rerun(
    folder: Path, store: Store, place: Path, weights_path: str | None
) -> tuple[list[Check], list[dict[str, Any]]]:
    from oracle.pack import open_packed
    from oracle.spec import ModelSpec

    manifest = _document(folder)
    config = audit.config_of(manifest, weights_path)
    spec = ModelSpec.from_dict(plain(config.model))
    record = _fetch(config, spec, store.cache, place, weights_path)
    checks = [*_weights(folder, place, manifest, record)]
    rules = audit.rules_of(config)
    checks_of_tokens, numbers = _tokens(
        folder, config, spec, open_packed(place).tensors, place, rules
    )
    return [*checks, *checks_of_tokens, *_times(folder, manifest)], numbers


def _fetch(
    config: Config, spec: Any, cache: Path, place: Path, weights_path: str | None
) -> dict[str, Any]:
    """The original weights and tokenizer, from their source once more."""
    from oracle.pack import pack
    from oracle.spec import ModelSpec
    from oracle.weights import WeightRequest, resolve
    from tilegate.config import load

    other = config.model.tokenizer_from
    tokenizer = ModelSpec.from_dict(plain(load([f"model={other}"]).model)) if other else None
    request = WeightRequest(
        mode=config.weights.mode,
        path=Path(weights_path) if weights_path else None,
        rehearse=config.weights.rehearse,
        cache_dir=cache / "downloads",
        seed=config.weights.seed,
        tokenizer_model=tokenizer,
    )
    return dict(pack(spec, resolve(spec, request).source, place))


def _weights(folder: Path, place: Path, manifest: Any, record: dict[str, Any]) -> list[Check]:
    from oracle.pack import device_pack
    from oracle.tensorfile import file_digest

    wrong = []
    rounded = device_pack(place / "model.safetensors", place / "device.safetensors")
    if file_digest(folder / "weights.safetensors") != rounded:
        wrong.append("weights.safetensors is not the source's, rounded to bf16")
    for key in ("kind", "source", "identity", "sha256"):
        if manifest["weights"][key] != record[key]:
            wrong.append(f"weights.{key} is {manifest['weights'][key]}, the source's {record[key]}")
    for name in ("tokenizer.json", "chat.json"):
        ours, theirs = folder / name, place / name
        if ours.is_file() != theirs.is_file() or (
            ours.is_file() and ours.read_bytes() != theirs.read_bytes()
        ):
            wrong.append(f"{name} is not the source's")
    tokens = record.get("tokenizer") or {}
    for key, empty in (("eos_ids", []), ("bos_id", None), ("file", None)):
        if manifest["tokenizer"][key] != tokens.get(key, empty):
            wrong.append(f"tokenizer.{key} is not the source's")
    found = [Check("weights and tokenizer", "fail" if wrong else "pass", "; ".join(wrong))]
    if record["kind"] == "rehearsal":
        found.append(Check("real weights", "warn", "a rehearsal: the weights are synthetic"))
    return found


def _tokens(
    folder: Path, config: Config, spec: Any, tensors: Any, place: Path, rules: policy.Policy
) -> tuple[list[Check], list[dict[str, Any]]]:
    """Greedy tokens of the bundle's runner, each judged by transformers given the same prefix."""
    import numpy as np

    from oracle.check import reference_model, run_reference
    from oracle.prompts import token_ids

    first = next(e for e in config.chain.skills if e.skill == "phase-0-oracle")
    texts = rules.prompts[first.parameters.get("prompts", "quick")]
    prompts = token_ids(place, texts, spec.vocab)
    steps = int(rules.sections["model"]["steps"].value)
    ours = _generate(folder, prompts, steps)
    whole = [[*prompt, *tokens[:-1]] for prompt, (tokens, _) in zip(prompts, ours, strict=True)]
    theirs = run_reference(reference_model(spec, tensors), whole)
    checks, numbers = [], []
    for number, (prompt, (tokens, logits)) in enumerate(zip(prompts, ours, strict=True)):
        reference = np.ascontiguousarray(theirs[number][len(prompt) - 1 :], np.float32)
        golden = Generation(reference.argmax(-1).tolist(), reference)
        subject = f"prompt {number}"
        record = gate.compare_tokens(
            "evaluation", subject, Generation(tokens, logits), golden, rules
        )
        checks.append(
            Check(
                f"tokens, {subject}", "pass" if record.passed else "fail", "; ".join(record.reasons)
            )
        )
        numbers.append({"subject": subject, "tokens": tokens, **record.metrics})
    checks.append(_command(folder, prompts[0], ours[0][0]))
    return checks, numbers


def _generate(
    folder: Path, prompts: Sequence[Sequence[int]], steps: int
) -> list[tuple[list[int], Any]]:
    import numpy as np

    from runtime.manifest import read_manifest
    from runtime.runner import Runner
    from runtime.session import open_session

    runner = Runner(folder, open_session("emulated", read_manifest(folder).device))
    found = []
    for prompt in prompts:
        logits = [runner.prefill(prompt)]
        tokens = [int(logits[0].argmax())]
        while len(tokens) < steps:
            logits.append(runner.decode(tokens[-1]))
            tokens.append(int(logits[-1].argmax()))
        found.append((tokens, np.stack(logits)))
    return found


def _run(folder: Path, *words: str) -> tuple[int, str]:
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment["TILEGATE_PYTHON"] = sys.executable
    command = [str(folder / "run"), "--allow-rehearsal", *words]
    done = subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def _command(folder: Path, prompt: Sequence[int], tokens: Sequence[int]) -> Check:
    """The bundle's own command gives the same ids, up to a stop token."""
    stops = set(_document(folder)["tokenizer"]["eos_ids"])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as ids:
        ids.write(json.dumps(list(prompt)))
        ids.flush()
        status, text = _run(folder, "--ids", ids.name, "--max-tokens", str(len(tokens)), "--json")
    cut = next((i for i, t in enumerate(tokens) if t in stops), len(tokens))
    wanted = list(tokens[:cut])
    same = status == 0 and json.loads(text)["ids"] == wanted
    return Check("command", "pass" if same else "fail", "" if same else "`run` gives other tokens")


def _times(folder: Path, manifest: Any) -> list[Check]:
    """The benchmark cannot be faster than the dispatches that it runs."""
    status, text = _run(folder, "bench", "--json", "--decode-tokens", "4")
    if status:
        return [Check("times", "fail", "`run bench` does not end well")]
    times = json.loads(text)

    def least(names: Sequence[str]) -> float:
        paths = [folder / "dispatches" / name / "dispatch.json" for name in names]
        return sum(float(json.loads(path.read_text())["predicted_us"]) for path in paths) / 1e3

    layers, head = manifest["model"]["layers"], least(manifest["lm_head"])
    prefill = min(map(least, manifest["prefill"]["dispatches"].values()))
    wanted = {
        "ttft_ms": layers * prefill + head,
        "tpot_ms": layers * least(manifest["decode"]["dispatches"]) + head,
    }
    wrong = [
        f"{key} {times.get(key)} is below its dispatches' {value:.4g} ms"
        for key, value in wanted.items()
        if not (times.get(key, 0) >= value * (1 - EXACT))
    ]
    return [Check("times (predicted)", "fail" if wrong else "pass", "; ".join(wrong))]
