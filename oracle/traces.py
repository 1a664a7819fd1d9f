"""Golden traces: what the FP32 decoder computes for given token ids, written to be compared with.

`golden.json` names the reference (digest of the packed weights, of the prompts) and holds, per
prompt, the greedy tokens with the top 5 of every step; `prompt_{i}.safetensors` holds the tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oracle import metrics
from oracle.errors import WeightError
from oracle.forward import LAYER_VALUES, MODEL, MODEL_VALUES, forward
from oracle.greedy import greedy
from oracle.pack import open_packed
from oracle.spec import ModelSpec
from oracle.tensorfile import read_header, read_tensor, write_tensors

FORMAT, RECORD, TOP = "tilegate-golden-1", "golden.json", 5


def sampled_layers(spec: ModelSpec) -> tuple[int, ...]:
    """First, middle and last layer."""
    return tuple(sorted({0, spec.layers // 2, spec.layers - 1}))


def golden(
    spec: ModelSpec,
    packed_dir: Path,
    prompts: Sequence[Sequence[int]],
    out_dir: Path,
    layers: Sequence[int] | None = None,
    steps: int = 32,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Write the traces of all prompts and return the record.

    Per prompt file, float32: "layers.{l}.{name}" [tokens, width] for every value of `layers`
    (default: sampled_layers), "layers.{l}.mlp_residual" of all layers, "embedding", "final_norm",
    "logits" [1, vocab] after the prompt, and "step_logits" [steps, vocab], of which row 0 is the
    same and row i is after i greedy tokens.
    """
    if steps < 1:
        raise WeightError(f"steps={steps}: at least one greedy token is needed")
    packed = open_packed(packed_dir)
    chosen = sampled_layers(spec) if layers is None else tuple(layers)
    capture: dict[int, Sequence[str]] = {layer: ("mlp_residual",) for layer in range(spec.layers)}
    capture |= {layer: LAYER_VALUES for layer in chosen} | {MODEL: MODEL_VALUES}
    progress(f"{len(prompts)} prompts, {sum(map(len, prompts))} tokens")
    trace = forward(spec, packed.tensors, prompts, capture)
    values, first = trace.values, trace.logits
    progress(f"{steps} greedy tokens")
    tokens, logits = greedy(spec, packed.tensors, trace, steps)
    out_dir.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, prompt in enumerate(prompts):
        tensors = values[number] | {
            "logits": first[number],
            "step_logits": np.stack(logits[number]),
        }
        entries.append(_entry(number, prompt, tokens[number], tensors, out_dir))
    record = {
        "format": FORMAT,
        "model": spec.name,
        "reference": {key: packed.record[key] for key in ("kind", "source", "identity", "sha256")},
        "prompt_set": prompt_digest([token for prompt in prompts for token in (*prompt, -1)]),
        "layers": list(chosen),
        "steps": steps,
        "prompts": entries,
    }
    (out_dir / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return record


def prompt_digest(tokens: Sequence[int]) -> str:
    """sha256 of token ids."""
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()


def _entry(
    number: int,
    prompt: Sequence[int],
    tokens: Sequence[int],
    tensors: dict[str, np.ndarray],
    out_dir: Path,
) -> dict[str, Any]:
    bad = [name for name, value in tensors.items() if not np.isfinite(value).all()]
    if bad:
        raise WeightError(f"prompt {number}: the reference itself is not finite in {bad[0]}")
    path = out_dir / f"prompt_{number}.safetensors"
    layout = {name: ("F32", value.shape) for name, value in tensors.items()}
    digest = write_tensors(path, layout, lambda name: tensors[name])
    steps = []
    for row in tensors["step_logits"]:
        best = metrics.top_k(row, TOP)
        scores = [float(row[index]) for index in best]
        steps.append({"ids": best, "logits": scores, "margin": scores[0] - scores[1]})
    return {
        "file": path.name,
        "sha256": digest,
        "tokens": list(map(int, prompt)),
        "digest": prompt_digest(prompt),
        "greedy": list(tokens),
        "top": steps,
    }


class Golden:
    """A written trace set, opened; tensors are mapped when asked for."""

    def __init__(self, folder: Path) -> None:
        path = folder / RECORD
        if not path.is_file():
            raise WeightError(f"{folder}: no {RECORD}; not a folder of golden traces")
        self.record: dict[str, Any] = json.loads(path.read_text())
        if self.record.get("format") != FORMAT:
            raise WeightError(f"{path}: format {self.record.get('format')!r}, need {FORMAT}")
        self._folder = folder
        self._headers = [read_header(folder / entry["file"]) for entry in self.prompts]

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return list(self.record["prompts"])

    def names(self, prompt: int) -> list[str]:
        return list(self._headers[prompt])

    def get(self, prompt: int, name: str) -> np.ndarray:
        """float32 [tokens, width]; WeightError when the trace does not hold `name`."""
        header = self._headers[prompt]
        if name not in header:
            raise WeightError(f"golden trace of prompt {prompt} has no '{name}'")
        return read_tensor(self._folder / self.prompts[prompt]["file"], header[name])


__all__ = ["Golden", "golden", "prompt_digest", "sampled_layers"]
