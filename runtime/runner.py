"""The model runner: prefill in buckets, decode with a KV cache, on any session.

It knows dispatches by their argument tables only; nothing here depends on the model's family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .bf16 import as_f32
from .binding import BLOCK_IN, BLOCK_OUT, LOGITS, Binder, Bound, Buffer, storage
from .bundle import Bundle, load
from .errors import BundleError, DeviceError
from .session import Session

EMBEDDING = "model.embed_tokens.weight"

Logits = npt.NDArray[np.float32]


@dataclass
class Capture:
    """Asks for copies of values as dispatches leave them, read back from the device.

    `values` are value names, `layers` the layers of interest (None: all). `tensors` receives
    f32 arrays by (layer, value); layer is None for what the LM head's dispatches hold.
    """

    values: frozenset[str]
    layers: frozenset[int] | None = None
    tensors: dict[tuple[int | None, str], npt.NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """The bound dispatches of a prefill bucket or of decode, layer by layer."""

    blocks: tuple[Buffer, Buffer]
    layers: list[list[Bound]]

    def input(self, layer: int) -> Buffer:
        return self.blocks[layer % 2]

    @property
    def output(self) -> Buffer:
        return self.blocks[len(self.layers) % 2]


class Runner:
    """A model on a session. `position` is the number of tokens in the cache, `tokens` are they."""

    def __init__(self, bundle: Bundle | Path | str, session: Session) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else load(Path(bundle))
        self.session = session
        self.tokens: list[int] = []
        manifest = self.bundle.manifest
        self._vocab = manifest.model.vocab
        self._pad = manifest.eos_ids[0] if manifest.eos_ids else 0
        self._embedding = self.bundle.tensors.get(EMBEDDING)
        if self._embedding is None or self._embedding.shape != (self._vocab, manifest.model.dim):
            wanted = f"[{self._vocab}, {manifest.model.dim}]"
            raise BundleError(f"the weights have no {EMBEDDING!r} of {wanted}")
        binder = Binder(self.bundle, session)
        self._prefill = {
            bucket: self._phase(binder, f"prefill_{bucket}", names, bucket)
            for bucket, names in sorted(manifest.prefill.items())
        }
        self._decode = self._phase(binder, "decode", manifest.decode, None)
        self._tables = [table for (scope, _), table in binder.tables.items() if scope == "decode"]
        self._rope = binder.rope
        self._position = binder.position
        start = {BLOCK_IN: self._decode.output.bo, BLOCK_OUT: self._decode.output.bo}
        self._head = list(binder.chain("lm_head", manifest.lm_head, start, None, None))
        self._head_inputs = _indices(self._head, lambda a: a.read and a.value in start)
        self._head_outputs = _indices(self._head, lambda a: a.written and a.value == LOGITS)
        if not self._head_outputs or not self._head_inputs:
            raise BundleError(f"lm_head must read {BLOCK_IN!r} and put out {LOGITS!r}")

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(self._prefill)

    def bucket(self, length: int) -> int:
        """The smallest bucket that holds `length` tokens. Raises BundleError if none does."""
        fitting = [bucket for bucket in self._prefill if bucket >= length]
        if not fitting:
            lengths = ", ".join(str(bucket) for bucket in self._prefill)
            raise BundleError(
                f"the prompt has {length} tokens, more than the largest bucket ({lengths})"
            )
        return fitting[0]

    def prefill(self, ids: Sequence[int], capture: Capture | None = None) -> Logits:
        """Start anew with the tokens `ids`; logits f32 [vocab] after the last one."""
        self._check(ids)
        phase = self._prefill[self.bucket(len(ids))]
        x = phase.input(0)
        self.tokens = []
        x.host[: len(ids)] = self._embedding[list(ids)]  # type: ignore[index]
        x.host[len(ids) :] = self._embedding[self._pad]  # type: ignore[index]
        x.push()
        for layer in range(len(phase.layers)):
            self._layer(phase, layer, capture)
        self.tokens = list(ids)
        row = phase.output.row_bytes
        last = self.session.bo(phase.output.bo, row, (len(ids) - 1) * row)
        return self._logits(last, capture)

    def decode(self, token: int, capture: Capture | None = None) -> Logits:
        """Append one token; logits f32 [vocab] after it. BundleError: the context is full."""
        self._check([token])
        position, context = self.position, self.bundle.manifest.context
        if position >= context:
            raise BundleError(f"the context of {context} tokens is full")
        phase = self._decode
        x = phase.input(0)
        x.host[0] = self._embedding[token]  # type: ignore[index]
        x.push()
        self._place(position)
        for layer in range(len(phase.layers)):
            self._layer(phase, layer, capture)
        self.tokens.append(token)
        return self._logits(phase.output.bo, capture)

    def block(self, layer: int, x: npt.NDArray[np.uint16], capture: Capture) -> Capture:
        """Run one layer's prefill on x bf16 [bucket, dim]; the cache then holds its rows only."""
        phase = self._prefill[self.bucket(len(x))]
        source = phase.input(layer)
        if x.shape != source.host.shape:
            raise BundleError(f"block input {x.shape} is not {source.host.shape}")
        self.tokens = []
        source.host[:] = x
        source.push()
        self._layer(phase, layer, capture)
        return capture

    def decode_block(
        self, layer: int, x: npt.NDArray[np.uint16], position: int, capture: Capture
    ) -> Capture:
        """Run one layer's decode on x bf16 [dim] at `position`, on the cache as it is."""
        source = self._decode.input(layer)
        self.tokens = [self._pad] * position
        source.host[0] = x
        source.push()
        self._place(position)
        self._layer(self._decode, layer, capture)
        self.tokens = []
        return capture

    def start(self, ids: Sequence[int]) -> Logits:
        """Logits after `ids`: by prefill, or for a conversation that outgrew the largest bucket by
        decoding what the cache does not hold of it."""
        self._check(ids)
        known = 0
        while known < min(self.position, len(ids) - 1) and self.tokens[known] == ids[known]:
            known += 1
        if len(ids) <= max(self._prefill) or not known:
            return self.prefill(ids)
        del self.tokens[known:]
        for token in ids[known:-1]:
            self.decode(token)
        return self.decode(ids[-1])

    def generate(
        self,
        ids: Sequence[int],
        sample: Callable[[Logits], int],
        limit: int,
        stop_ids: frozenset[int] = frozenset(),
    ) -> Iterator[int]:
        """Up to `limit` tokens after the prompt `ids`; ends before a stop token.

        The context's end is a BundleError, raised once all that fits was given out.
        """
        logits = self.start(list(ids))
        for index in range(limit):
            token = sample(logits)
            if token in stop_ids:
                return
            yield token
            if index + 1 < limit:
                logits = self.decode(token)

    def _place(self, position: int) -> None:
        """Tell the device which position the decoded token has."""
        for table in self._tables:
            table.host[:] = self._rope[position]
            table.push()
        if self._position is not None:
            self._position.host[0] = position
            self._position.push()

    def _phase(self, binder: Binder, scope: str, names: Sequence[str], bucket: int | None) -> Phase:
        shape = (bucket or 1, self.bundle.manifest.model.dim)
        blocks = (binder.buffer(shape, "bf16"), binder.buffer(shape, "bf16"))
        layers = binder.layers(scope, names, [block.bo for block in blocks], bucket)
        return Phase(blocks, layers)

    def _layer(self, phase: Phase, layer: int, capture: Capture | None) -> None:
        for bound in phase.layers[layer]:
            for weights in bound.loads:
                weights.execute()
            for move in bound.moves:
                move.source.pull(0)
                move.cache.host[self.position] = move.source.host[0]
                move.cache.push(self.position)
            self._execute(bound, capture)

    def _execute(self, bound: Bound, capture: Capture | None) -> None:
        bound.execute()
        if capture is None:
            return
        if bound.layer is not None and capture.layers and bound.layer not in capture.layers:
            return
        direction = self.session.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        for index, argument in enumerate(bound.dispatch.arguments):
            key = (bound.layer, argument.value or "")
            if key[1] in capture.values and (argument.written or key not in capture.tensors):
                bound.bos[index].sync(direction)
                capture.tensors[key] = as_f32(storage(bound.dispatch, index, bound.bos[index]))

    def _logits(self, x: Any, capture: Capture | None) -> Logits:
        for bound, index in self._head_inputs:
            if bound.bos[index] is not x:
                bound.rebind(index, x)
        for bound in self._head:
            self._execute(bound, capture)
        logits = np.full(self._vocab, np.nan, np.float32)
        direction = self.session.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        for bound, index in self._head_outputs:
            argument, bo = bound.dispatch.arguments[index], bound.bos[index]
            bo.sync(direction, argument.bytes, 0)
            part = as_f32(storage(bound.dispatch, index, bo)).reshape(-1)
            room = self._vocab - argument.row_start
            logits[argument.row_start : argument.row_start + len(part)] = part[:room]
        low, high = float(logits.min()), float(logits.max())
        if not np.isfinite(low) or not np.isfinite(high):
            raise DeviceError("the logits are not finite: the device's results are not usable")
        if low == high:
            raise DeviceError(f"all logits are {low}: the device's results are not usable")
        return logits

    def _check(self, ids: Sequence[int]) -> None:
        if not len(ids):
            raise BundleError("the prompt is empty")
        outside = [token for token in ids if not 0 <= token < self._vocab]
        if outside:
            raise BundleError(f"token {outside[0]} is outside the vocabulary of {self._vocab}")


def _indices(bounds: Sequence[Bound], wanted: Callable[[Any], bool]) -> list[tuple[Bound, int]]:
    return [
        (bound, index)
        for bound in bounds
        for index, argument in enumerate(bound.dispatch.arguments)
        if argument.kind == "activation" and wanted(argument)
    ]
