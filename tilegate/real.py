"""Real inputs of a kernel: the oracle's activations and the model's weights, by op."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegate.model import Op, Phase, Value


class Real:
    """Golden activations of one layer and prompt, and the bf16 weights, as FP32 arrays.

    Raises the oracle's WeightError for a tensor or trace that is not there.
    """

    def __init__(
        self, model: Mapping[str, Any], golden: Path, weights: Path, prompt: int = 0
    ) -> None:
        from oracle.spec import ModelSpec
        from oracle.tensorfile import read_header
        from oracle.traces import Golden

        self.spec = ModelSpec.from_dict(model)
        self.golden = Golden(golden)
        self.prompt = prompt
        self.tokens = len(self.golden.prompts[prompt]["tokens"])
        file = weights / "weights.safetensors"
        self.header = read_header(file)
        self.weights = file

    def operands(self, op: Op, phase: Phase, layer: int) -> tuple[dict[str, Any], int]:
        """Arrays by operand name, and how many rows of the output are real (the rest is padding).

        Prefill uses the prompt's tokens, decode its last one with the earlier ones in the cache.
        """
        arrays = {
            operand: self.value(phase.values[name], phase, layer)
            for operand, name in op.bind
            if name != op.name
        }
        rows = min(self.tokens, phase.bucket) if phase.bucket else 1
        return arrays, rows

    def expected(self, name: str, phase: Phase, layer: int) -> Any:
        """The oracle's own value [rows, width] of the phase, without padding."""
        golden = self._golden(name, layer)
        return golden if phase.bucket else golden[-1:]

    def value(self, value: Value, phase: Phase, layer: int) -> Any:
        """What the oracle, the checkpoint or the host puts into a value of the phase."""
        import numpy as np

        if value.kind == "static":
            return self._static(value, layer)
        if value.kind == "table":
            return self._table(value, phase)
        if value.kind == "position":
            position = np.zeros(value.shape, np.int32)
            position[0] = self.tokens - 1
            return position
        if value.name == "final_norm":
            golden = self.golden.get(self.prompt, "final_norm")
        else:
            golden = self._golden(value.value or value.name, layer)
        if value.kind != "cache" and not phase.bucket:
            golden = golden[-1:]
        padded = np.zeros(value.shape, np.float32)
        padded[: len(golden)] = golden[: value.shape[0]]
        return padded

    def _golden(self, name: str, layer: int) -> Any:
        if name == "x" and layer > 0:
            return self.golden.get(self.prompt, f"layers.{layer - 1}.mlp_residual")
        if name == "x":
            return self.golden.get(self.prompt, "embedding")
        return self.golden.get(self.prompt, f"layers.{layer}.{name}")

    def _static(self, value: Value, layer: int) -> Any:
        import numpy as np

        from oracle.tensorfile import read_tensor

        assert value.tensor is not None
        name = value.tensor.format(layer=layer)
        tensor = read_tensor(self.weights, self.header[name])
        if value.layout == "transposed":
            return np.ascontiguousarray(tensor.T)
        if value.layout == "padded_rows":
            part = tensor[value.row_start : value.row_start + value.shape[0]]
            padded = np.zeros(value.shape, np.float32)
            padded[: len(part)] = part
            return padded
        return tensor

    def _table(self, value: Value, phase: Phase) -> Any:
        import numpy as np

        from oracle.rope import rope_table

        positions = range(phase.bucket) if phase.bucket else [self.tokens - 1]
        table = rope_table(self.spec, list(positions))
        return np.repeat(table, value.shape[0] // len(table), axis=0)
