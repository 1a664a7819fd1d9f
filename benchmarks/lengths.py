"""Lengths of the default model: prompts around every bucket, a full one, the end of the context.

    python benchmarks/lengths.py [--buckets 256,512,2048] [--context 2112] [key=value ...]

Deploys the model with these buckets (all gates of the chain run), then on what was promoted:
every layer's block on a prompt that fills the largest bucket against the oracle, by the policy of
the block gate; the first token of prompts of 1, bucket - 1 and bucket tokens against the oracle's
top 5; that a longer prompt is refused; and decode to the last row of the context.
Exit status 1 when any of it does not hold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilegate import gate, policy
from tilegate.config import load, plain
from tilegate.graph import nodes
from tilegate.store import ROOT, Store


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--buckets", default="256,512,2048")
    parser.add_argument("--context", type=int, default=2112)
    options = parser.parse_args(argv)
    words = [
        *options.overrides,
        f"sequence.buckets=[{options.buckets}]",
        f"sequence.context={options.context}",
    ]
    done = subprocess.run([sys.executable, "-m", "doit", "deploy", *words], cwd=ROOT, check=False)
    if done.returncode:
        return done.returncode
    return Lengths(words).check()


class Lengths:
    """The promoted bundle and the oracle of one configuration."""

    def __init__(self, words: Sequence[str]) -> None:
        from oracle.pack import open_packed
        from oracle.spec import ModelSpec
        from runtime.manifest import read_manifest
        from runtime.runner import Runner
        from runtime.session import open_session

        config = load(list(words))
        store = Store()
        artifacts = {n.name: store.find(n) for n in nodes(config, store) if n.name in
                     ("weights", "runner")}  # fmt: skip
        weights, runner = artifacts["weights"], artifacts["runner"]
        assert weights is not None and runner is not None
        self.spec = ModelSpec.from_dict(plain(config.model))
        self.tensors = open_packed(weights.path).tensors
        self.rules = policy.load(config.gate)
        folder = runner.path / "bundle"
        self.runner = Runner(folder, open_session("emulated", read_manifest(folder).device))
        self.text = _tokens(weights.path / "tokenizer.json")
        self.failed = 0

    def check(self) -> int:
        largest = max(self.runner.buckets)
        self._blocks(largest)
        for bucket in self.runner.buckets:
            for length in sorted({1, bucket - 1, bucket}):
                self._first_token(length)
        self._refused(largest + 1)
        self._to_the_end(largest)
        return 1 if self.failed else 0

    def ids(self, length: int) -> list[int]:
        """Tokens of real text: after arbitrary ones the logits are nearly equal, and say little."""
        return self.text[:length]

    def say(self, what: str, holds: bool, detail: str) -> None:
        self.failed += not holds
        print(f"{'holds' if holds else 'FAILS'}  {what:42} {detail}", flush=True)

    def _blocks(self, length: int) -> None:
        """Each layer on the oracle's input of that layer."""
        import numpy as np

        from oracle.forward import forward
        from runtime.bf16 import narrow
        from runtime.runner import Capture

        capture = {layer: ("x", "mlp_residual") for layer in range(self.spec.layers)}
        truth = forward(self.spec, self.tensors, [self.ids(length)], capture).values[0]
        worst, passed = 1.0, 0
        for layer in range(self.spec.layers):
            seen = Capture(frozenset({"mlp_residual"}), frozenset({layer}))
            self.runner.block(layer, narrow(truth[f"layers.{layer}.x"]), seen)
            output = np.ascontiguousarray(seen.tensors[layer, "mlp_residual"], np.float32)
            reference = truth[f"layers.{layer}.mlp_residual"]
            record = gate.compare_block(
                "block", f"layer {layer}", output, reference, self.rules, self.spec.head_dim,
                reference.size,
            )  # fmt: skip
            passed += record.passed
            worst = min(worst, float(record.metrics["cosine_min"]))
            if not record.passed:
                print(f"       layer {layer}: {'; '.join(record.reasons)}")
        holds = passed == self.spec.layers
        detail = f"{passed} of {self.spec.layers} layers, worst cosine of a position {worst:.5f}"
        self.say(f"blocks of a prompt of {length} tokens", holds, detail)

    def _first_token(self, length: int) -> None:
        from oracle.forward import forward

        ids = self.ids(length)
        begun = time.perf_counter()
        ours = self.runner.prefill(ids)
        seconds = time.perf_counter() - begun
        theirs = forward(self.spec, self.tensors, [ids]).logits[0][-1]
        holds = _agree(ours, theirs)
        bucket = self.runner.bucket(length)
        self.say(
            f"prompt of {length} tokens", holds, f"bucket {bucket}, emulated in {seconds:.2f} s"
        )

    def _refused(self, length: int) -> None:
        from runtime.errors import BundleError

        try:
            self.runner.prefill(self.ids(length))
        except BundleError as error:
            self.say(f"prompt of {length} tokens is refused", True, str(error))
            return
        self.say(f"prompt of {length} tokens is refused", False, "it was not")

    def _to_the_end(self, start: int) -> None:
        """Decode a given continuation until the context is full; the last token is compared."""
        from oracle.forward import forward
        from runtime.errors import BundleError

        context = self.runner.bundle.manifest.context
        ids = self.ids(context)
        self.runner.prefill(ids[:start])
        for token in ids[start:]:
            ours = self.runner.decode(token)
        theirs = forward(self.spec, self.tensors, [ids]).logits[0][-1]
        try:
            self.runner.decode(1)
            said = "one more token was taken"
        except BundleError as error:
            said = str(error)
        holds = _agree(ours, theirs) and "is full" in said
        self.say(f"decode of rows {start} to {context}", holds, said)


def _tokens(tokenizer: Path) -> list[int]:
    """The project's own manual as token ids."""
    from tokenizers import Tokenizer

    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text() for page in pages)
    return list(Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids)


def _agree(ours: Any, theirs: Any) -> bool:
    """Each side's first token is among the other's best five."""
    best = [set(logits.argsort()[-5:].tolist()) for logits in (ours, theirs)]
    return int(ours.argmax()) in best[1] and int(theirs.argmax()) in best[0]


if __name__ == "__main__":
    sys.exit(main())
