"""Binding: every dispatch of every layer gets its run object and buffers once, before any token.

What is bound to what follows from the argument tables alone (see `runtime.manifest`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .bf16 import STORAGE
from .bundle import Bundle
from .errors import BundleError, DeviceError
from .manifest import WIDTH, Argument, Dispatch
from .session import Bo, Run, Session
from .weights import Tensors, rope_table, static_value

BLOCK_IN, BLOCK_OUT, LOGITS = "x", "mlp_residual", "logits"
MIN_WAIT_MS = 10_000
"""Longer than the driver's watchdog, which ends a stuck command after 2 to 4 s."""


class Buffer:
    """A buffer object and the numpy view of its host copy."""

    def __init__(self, session: Session, bo: Bo, shape: tuple[int, ...], dtype: str) -> None:
        direction = session.xclBOSyncDirection
        self._to = direction.XCL_BO_SYNC_BO_TO_DEVICE
        self._from = direction.XCL_BO_SYNC_BO_FROM_DEVICE
        self.bo = bo
        self.row_bytes = math.prod(shape[1:]) * WIDTH[dtype]
        count = math.prod(shape)
        self.host = np.frombuffer(bo.map(), STORAGE[dtype], count).reshape(shape)

    def push(self, row: int | None = None) -> None:
        """Host to device: everything, or one row."""
        if row is None:
            self.bo.sync(self._to)
        else:
            self.bo.sync(self._to, self.row_bytes, row * self.row_bytes)

    def pull(self, row: int | None = None) -> None:
        """Device to host: everything, or one row."""
        if row is None:
            self.bo.sync(self._from)
        else:
            self.bo.sync(self._from, self.row_bytes, row * self.row_bytes)


@dataclass(frozen=True)
class Move:
    """A new row of keys or values on its way from a dispatch's output into the cache."""

    source: Buffer
    cache: Buffer


@dataclass(frozen=True)
class Load:
    """Weights that share one buffer among the layers: laid out before the layer runs."""

    session: Session
    buffer: Buffer
    tensors: Tensors
    name: str
    argument: Argument

    def execute(self) -> None:
        with self.session.untimed():
            value = static_value(self.tensors, self.name, self.argument)
            self.buffer.host[:] = value.reshape(self.buffer.host.shape)
            self.buffer.push()


class Bound:
    """A dispatch of one layer with all arguments set."""

    def __init__(
        self, session: Session, dispatch: Dispatch, run: Run, bos: list[Bo], layer: int | None
    ) -> None:
        self.dispatch = dispatch
        self.run = run
        self.bos = bos
        self.layer = layer
        self.moves: list[Move] = []
        self.loads: list[Load] = []
        self._done = session.ert_cmd_state.ERT_CMD_STATE_COMPLETED
        self._wait_ms = max(MIN_WAIT_MS, int(dispatch.predicted_us / 50))
        for index, bo in enumerate(bos):
            run.set_arg(index, bo)

    def rebind(self, index: int, bo: Bo) -> None:
        self.run.set_arg(index, bo)
        self.bos[index] = bo

    def execute(self) -> None:
        """Start and wait. Raises DeviceError unless the command completed."""
        self.run.start()
        state = self.run.wait(self._wait_ms)
        if state != self._done:
            where = "" if self.layer is None else f" of layer {self.layer}"
            name = getattr(state, "name", state)
            raise DeviceError(f"dispatch {self.dispatch.name}{where} ended in state {name}")


class Binder:
    """Makes the buffers of a bundle on a session and binds the dispatches of each phase to them."""

    def __init__(self, bundle: Bundle, session: Session) -> None:
        self._bundle = bundle
        self._session = session
        self._device = session.device(0)
        self._contexts: dict[str, Any] = {}
        self._kernels: dict[str, Any] = {}
        self._statics: dict[tuple[Any, ...], Bo] = {}
        self._shared: dict[tuple[Any, ...], Buffer] = {}
        self._values: dict[tuple[str, str, str], Bo] = {}
        self._caches: dict[tuple[int, str], Buffer] = {}
        manifest = bundle.manifest
        self.rope = rope_table(manifest.rope, manifest.context, manifest.model.head_dim)
        self.tables: dict[tuple[str, tuple[int, ...]], Buffer] = {}
        self.position: Buffer | None = None
        self._load_programs()
        limit = session.resident_bytes
        self._share = limit is not None and self._transposed_bytes() > limit

    def _transposed_bytes(self) -> int:
        """Weights of all layers that the device holds in another layout than the file."""
        keys = {
            (a.tensor, a.shape): a.bytes
            for dispatch in self._bundle.dispatches.values()
            for a in dispatch.arguments
            if a.layout == "transposed"
        }
        return sum(keys.values()) * self._bundle.manifest.model.layers

    def buffer(self, shape: tuple[int, ...], dtype: str) -> Buffer:
        bo = self._session.ext.bo(self._device, math.prod(shape) * WIDTH[dtype])
        return Buffer(self._session, bo, shape, dtype)

    def layers(
        self, scope: str, names: Sequence[str], blocks: Sequence[Bo], bucket: int | None
    ) -> list[list[Bound]]:
        """The dispatches `names` bound for each layer; block inputs and outputs take turns."""
        bound = []
        for layer in range(self._bundle.manifest.model.layers):
            values = {BLOCK_IN: blocks[layer % 2], BLOCK_OUT: blocks[(layer + 1) % 2]}
            bound.append(list(self.chain(scope, names, values, bucket, layer)))
        return bound

    def chain(
        self,
        scope: str,
        names: Sequence[str],
        values: dict[str, Bo],
        bucket: int | None,
        layer: int | None,
    ) -> Iterator[Bound]:
        """Bind `names` one after the other; `values` holds what exists, and grows."""
        for name in names:
            dispatch = self._bundle.dispatches[name]
            bos = [self._argument(scope, dispatch, a, values, layer) for a in dispatch.arguments]
            run = self._session.run(self._kernels[name])
            bound = Bound(self._session, dispatch, run, bos, layer)
            bound.loads = list(self._loads(dispatch, layer))
            if bucket is None and layer is not None:
                bound.moves = list(self._moves(dispatch, values, layer))
            yield bound

    def _argument(
        self,
        scope: str,
        dispatch: Dispatch,
        argument: Argument,
        values: dict[str, Bo],
        layer: int | None,
    ) -> Bo:
        where = f"{dispatch.name}: argument {argument.name!r}"
        match argument.kind:
            case "static":
                return self._static(argument, layer)
            case "table":
                return self._table(scope, dispatch, argument)
            case "position":
                return self._position().bo
            case "cache":
                return self._cache(argument, values, layer, where)
            case "intermediate":
                return self._value(f"{scope}.{dispatch.name}", argument)
        name = argument.value or ""
        if argument.role == "out" and name != BLOCK_OUT:
            values[name] = self._value(scope, argument)
        if name not in values:
            known = ", ".join(sorted(values))
            raise BundleError(f"{where}: no earlier dispatch puts out {name!r}; there are {known}")
        return values[name]

    def _value(self, scope: str, argument: Argument) -> Bo:
        key = (scope, f"{argument.value}+{argument.row_start}", str(argument.bytes))
        if key not in self._values:
            self._values[key] = self._session.ext.bo(self._device, argument.bytes)
        return self._values[key]

    def _loads(self, dispatch: Dispatch, layer: int | None) -> Iterator[Load]:
        for argument in dispatch.arguments:
            if self._share and argument.layout == "transposed":
                name = (argument.tensor or "").replace("{layer}", str(layer))
                shared = self._shared[argument.tensor, argument.shape]
                yield Load(self._session, shared, self._bundle.tensors, name, argument)

    def _static(self, argument: Argument, layer: int | None) -> Bo:
        if self._share and argument.layout == "transposed":
            place = (argument.tensor, argument.shape)
            if place not in self._shared:
                self._shared[place] = self.buffer(argument.shape, argument.dtype)
            return self._shared[place].bo
        name = (argument.tensor or "").replace("{layer}", str(layer))
        key = (name, argument.layout, argument.row_start, argument.shape)
        if key not in self._statics:
            value = static_value(self._bundle.tensors, name, argument)
            bo = self._session.ext.bo(self._device, argument.bytes)
            bo.write(value.reshape(-1).view(np.uint8), 0)
            bo.sync(self._session.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
            self._statics[key] = bo
        return self._statics[key]

    def _table(self, scope: str, dispatch: Dispatch, argument: Argument) -> Bo:
        """Prefill tables are filled here, those of decode before each token."""
        rows, width = argument.shape
        tokens = dispatch.bucket or 1
        if width != self.rope.shape[1] or rows % tokens or argument.value != "rope":
            shape = list(argument.shape)
            raise BundleError(
                f"{dispatch.name}: table {argument.name!r} of {shape} is no rope table"
            )
        key = (scope, argument.shape)
        if key not in self.tables:
            table = self.buffer(argument.shape, argument.dtype)
            if dispatch.bucket:
                table.host[:] = np.repeat(self.rope[:tokens], rows // tokens, axis=0)
                table.push()
            self.tables[key] = table
        return self.tables[key].bo

    def _position(self) -> Buffer:
        if self.position is None:
            self.position = self.buffer((16,), "i32")
            self.position.host[:] = 0
        return self.position

    def _cache(
        self, argument: Argument, values: dict[str, Bo], layer: int | None, where: str
    ) -> Bo:
        rows, context = argument.shape[0], self._bundle.manifest.context
        if layer is None or rows > context:
            raise BundleError(f"{where}: {rows} rows exceed the cache of {context}")
        key = (layer, argument.value or "")
        if key not in self._caches:
            # Zeros, not what memory held: rows that are masked out still meet a multiply by zero.
            cache = self.buffer((context, *argument.shape[1:]), argument.dtype)
            cache.host[:] = 0
            cache.push()
            self._caches[key] = cache
        bo = self._caches[key].bo
        if argument.bytes != bo.size():
            bo = self._session.bo(bo, argument.bytes, 0)
        if argument.written:
            values[key[1]] = bo
        return bo

    def _moves(self, dispatch: Dispatch, values: Mapping[str, Bo], layer: int) -> Iterator[Move]:
        for argument in dispatch.arguments:
            if argument.kind == "cache" and argument.role == "in":
                name = argument.value or ""
                if name not in values:
                    what = f"{dispatch.name}: no earlier dispatch puts out {name!r}"
                    raise BundleError(f"{what}, the new row of cache {argument.name!r}")
                row = (1, *argument.shape[1:])
                source = Buffer(self._session, values[name], row, argument.dtype)
                yield Move(source, self._caches[layer, name])

    def _load_programs(self) -> None:
        """One context per phase: a device has few, and a context takes many programs."""
        session = self._session
        for name, dispatch in self._bundle.dispatches.items():
            elf = session.elf(str(dispatch.folder / session.program))
            scope = f"{dispatch.phase}.{dispatch.bucket}"
            if scope in self._contexts:
                self._contexts[scope].add_config(elf)
            else:
                self._contexts[scope] = session.hw_context(self._device, elf)
            self._kernels[name] = session.ext.kernel(self._contexts[scope], f"main:{dispatch.name}")


def storage(dispatch: Dispatch, index: int, bo: Bo) -> npt.NDArray[Any]:
    """The host copy of argument `index` in its shape; a view that later syncs change."""
    argument = dispatch.arguments[index]
    count = math.prod(argument.shape)
    return np.frombuffer(bo.map(), STORAGE[argument.dtype], count).reshape(argument.shape)
