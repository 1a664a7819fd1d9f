"""Lowers a dispatch's plans to one MLIR-AIR module in generic form, for a real NPU.

Nothing is restated: sizes, strides, offsets, loops, order and limits are those of the TilePlans
that the emulated device executes. A launch becomes `air.launch` > `air.segment` > `air.herd`; every
copy becomes a put on one side of a channel and a get on the other. The launch holds one loop nest
per stream from or to DDR, the segment one per set of memory-tile buffers that share streams, the
herd the program of a core. Nests of one body run side by side; each is a projection of the plan's
own order, so that blocking puts and gets cannot deadlock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilegate import mlir
from tilegate.channels import Channel, Channels, shift
from tilegate.corecode import Objects
from tilegate.dispatch import Dispatch
from tilegate.errors import UserError
from tilegate.lower import check_bounds
from tilegate.mlir import Block, Region, Value
from tilegate.nest import Scope, Steps, affine, bounded, loop_nest, transfer
from tilegate.plan import Access, Affine, Buffer, Call, Copy, Launch, Step, walk


@dataclass(frozen=True)
class Module:
    """The text of one dispatch for a device, and the objects that its cores are linked with."""

    name: str
    text: str
    objects: Objects


def symbol_of(dispatch: Dispatch) -> str:
    """The function's name, which is also the instance that the host asks for as `main:<name>`."""
    return re.sub(r"[^\w.$]", "_", dispatch.name)


def emit(dispatch: Dispatch) -> Module:
    """The module of a dispatch: one function of all arguments, launches in program order.

    Raises UserError for a plan that cannot be put into words of the dialect.
    """
    objects = Objects()
    top = Block()
    types = [mlir.memref(a.bytes // _width(a.dtype), a.dtype, 3) for a in dispatch.arguments]
    body = top.inner(isolated=True)
    arguments = tuple(body.value(t, "arg") for t in types)
    launches = []
    for number, (op, launch) in enumerate(dispatch.launches()):
        check_bounds(launch)
        binding = dict(op.arguments)
        tensors = {t.name: arguments[binding[t.name]] for t in launch.tensors}
        for tensor in launch.tensors:
            argument = dispatch.arguments[binding[tensor.name]]
            if argument.dtype != tensor.dtype or argument.bytes < tensor.bytes:
                raise UserError(f"{op.name}: {tensor.name} does not fit argument {argument.name}")
        launches.append(_Launch(f"l{number}_{op.name}", op.plan.op, launch, tensors, objects))
    for lowered in launches:
        for channel in lowered.channels:
            _declare(top, channel)
    for lowered in launches:
        lowered.write(body)
    body.op("func.return")
    objects.declare(top)
    attributes = {
        "function_type": mlir.function_type(types),
        "sym_name": mlir.text(symbol_of(dispatch)),
    }
    top.op("func.func", regions=[Region(arguments, body)], attributes=attributes)
    whole = Block()
    whole.op("builtin.module", regions=[Region((), top)])
    return Module(symbol_of(dispatch), "\n".join(whole.lines()) + "\n", objects)


def _width(dtype: str) -> int:
    return 2 if dtype == "bf16" else 4


def _declare(top: Block, channel: Channel) -> None:
    kind = "npu_cascade" if channel.cascade else "npu_dma_stream"
    attributes = {
        "sym_name": mlir.text(channel.name),
        "size": mlir.numbers(channel.size),
        "channel_type": mlir.text(kind),
    }
    if channel.broadcast and channel.reach != channel.size:
        attributes["broadcast_shape"] = mlir.numbers(channel.reach)
    top.op("air.channel", attributes=attributes)


class _Launch:
    """One launch: its channels, and its text."""

    def __init__(
        self,
        label: str,
        op: str,
        launch: Launch,
        tensors: Mapping[str, Value],
        objects: Objects,
    ) -> None:
        self.label = re.sub(r"\W", "_", label)
        self.op = op
        self.launch = launch
        self.tensors = tensors
        self.objects = objects
        self.buffers = {b.name: b for b in launch.buffers}
        self.channels = Channels(launch, self.label)

    def write(self, body: Block) -> None:
        """Append the launch to the function's body."""
        operands = list(dict.fromkeys(self.tensors.values()))
        inner = body.inner(isolated=True)
        passed = {outer: inner.value(outer.type, "a") for outer in operands}
        memories = {name: passed[outer] for name, outer in self.tensors.items()}
        for channel in self.channels:
            self._far_nest(inner, channel, memories)
        self._segment(inner)
        inner.op("air.launch_terminator")
        region = Region(tuple(passed[o] for o in operands), inner)
        _hierarchy(body, "launch", self.label, region, operands=operands)

    def _far_nest(self, block: Block, channel: Channel, memories: Mapping[str, Value]) -> None:
        """The DDR side of a channel, for those that have one."""

        def write(inner: Block, scope: Scope, step: Step) -> None:
            assert isinstance(step, Copy)
            out = step.src.target in memories
            access = step.src if out else step.dst
            for x, y in self.channels.instances(step):
                index = [inner.constant(i) for i in channel.index(x, y)]
                place = memories[access.target]
                here = scope.at(x, y)
                transfer(inner, here, channel.name, index, place, access, step.sizes, out)

        def wanted(step: Copy | Call) -> bool:
            return (
                isinstance(step, Copy)
                and self.channels.of(step) is channel
                and (step.src.target in memories or step.dst.target in memories)
            )

        loop_nest(block, self.launch.body, Steps(wanted, write), Scope())

    def _segment(self, block: Block) -> None:
        inner = block.inner(isolated=True)
        for group in self._groups():
            self._near_nest(inner, group)
        self._herd(inner)
        inner.op("air.segment_terminator")
        place = {
            "x_loc": "0 : i64",
            "y_loc": "2 : i64",
            "x_size": f"{self.launch.cols} : i64",
            "y_size": f"{self.launch.rows} : i64",
        }
        _hierarchy(block, "segment", f"{self.label}_segment", Region((), inner), place)

    def _instance(self, access: Access, x: int, y: int) -> tuple[str, int, int]:
        """The instance of a memory tile's buffer that herd coordinate (x, y) uses."""
        variables = {"x": x, "y": y}
        per = self.buffers[access.target].per
        column, row = (a.value(variables) for a in access.at)
        return (access.target, column if "x" in per else 0, row if "y" in per else 0)

    def _level2(self, step: Copy) -> list[Access]:
        return [a for a in (step.src, step.dst) if self.channels.levels[a.target] == 2]

    def _groups(self) -> list[set[tuple[str, int, int]]]:
        """Instances of L2 buffers, together where they share a stream and so must take turns."""
        sharing: dict[tuple[str, int, int], set[tuple[str, int, int]]] = {}
        for visit in walk(self.launch.body):
            if isinstance(visit.step, Copy):
                channel = self.channels.of(visit.step)
                for access in self._level2(visit.step):
                    for x, y in self.channels.instances(visit.step):
                        key = (channel.name, *channel.index(x, y))
                        sharing.setdefault(key, set()).add(self._instance(access, x, y))
        groups: list[set[tuple[str, int, int]]] = []
        for members in sharing.values():
            joined = set(members)
            for group in [g for g in groups if g & joined]:
                groups.remove(group)
                joined |= group
            groups.append(joined)
        return sorted(groups, key=lambda group: min(group))

    def _near_nest(self, block: Block, group: set[tuple[str, int, int]]) -> None:
        """The memory tiles' side of the streams of a group of buffers."""

        def mine(step: Copy) -> list[tuple[Access, int, int]]:
            return [
                (access, x, y)
                for access in self._level2(step)
                for x, y in self.channels.instances(step)
                if self._instance(access, x, y) in group
            ]

        def write(inner: Block, scope: Scope, step: Step) -> None:
            assert isinstance(step, Copy)
            channel = self.channels.of(step)
            for access, x, y in mine(step):
                index = [inner.constant(i) for i in channel.index(x, y)]
                memory = scope.memory[self._instance(access, x, y)]
                out = access is step.src
                here = scope.at(x, y)
                transfer(inner, here, channel.name, index, memory, access, step.sizes, out)

        def wanted(step: Copy | Call) -> bool:
            return isinstance(step, Copy) and bool(mine(step))

        def touches(step: Copy | Call) -> set[tuple[str, int, int]]:
            if not isinstance(step, Copy):
                return set()
            return {self._instance(access, x, y) for access, x, y in mine(step)}

        kinds = {key: self.buffers[key[0]] for key in sorted(group)}
        loop_nest(block, self.launch.body, Steps(wanted, write, touches, kinds), Scope())

    def _herd(self, block: Block) -> None:
        sizes = [block.constant(self.launch.cols), block.constant(self.launch.rows)]
        inner = block.inner(isolated=True)
        heads = tuple(inner.value(mlir.INDEX, stem) for stem in ("x", "y", "sx", "sy"))
        scope = Scope({"x": heads[0], "y": heads[1]})
        own: dict[tuple[str, int, int], Buffer] = {
            (b.name, 0, 0): b for b in self.launch.buffers if b.level == 1
        }

        def touches(step: Copy | Call) -> set[tuple[str, int, int]]:
            places: tuple[Access | Affine, ...]
            places = (step.src, step.dst) if isinstance(step, Copy) else step.args
            names = {a.target for a in places if isinstance(a, Access)}
            return {(name, 0, 0) for name in names} & set(own)

        steps = Steps(lambda step: bool(touches(step)), self._core_step, touches, own)
        loop_nest(inner, self.launch.body, steps, scope)
        inner.op("air.herd_terminator")
        link = {"link_with": mlir.text(self.objects.file(self.op, self.launch.object))}
        region = Region(heads, inner)
        _hierarchy(block, "herd", f"{self.label}_herd", region, link, sizes)

    def _core_step(self, block: Block, scope: Scope, step: Step) -> None:
        """A copy or a call as a core sees it, under the limits of the step."""
        if isinstance(step, Call):
            everyone = (0, self.launch.cols)
            rows = step.rows or (0, self.launch.rows)
            self._limited(block, scope, everyone, rows, self._call(scope, step))
            return
        assert isinstance(step, Copy)
        channel = self.channels.of(step)
        columns, rows = self.channels.spans(step)
        if step.via == "cascade":
            dx, dy = shift(step.src.at)
            sender = scope.moved(block, -dx, -dy)
            spans = ((columns[0] + dx, columns[1] + dx), (rows[0] + dy, rows[1] + dy))
            put = self._port(sender, channel, step.src, step.sizes, True)
            self._limited(block, scope, *spans, put)
        elif self.channels.levels[step.src.target] == 1:
            put = self._port(scope, channel, step.src, step.sizes, True)
            self._limited(block, scope, columns, rows, put)
            return
        here = scope
        if step.via == "dma":  # what a broadcast's other listeners see is what the first one sees
            here = here if channel.spread_x else here.fixed("x", columns[0])
            here = here if channel.spread_y else here.fixed("y", rows[0])
            columns = columns if channel.spread_x else channel.columns
            rows = rows if channel.spread_y else channel.rows
        get = self._port(scope, channel, step.dst, step.sizes, False, here)
        self._limited(block, scope, columns, rows, get)

    def _port(
        self,
        scope: Scope,
        channel: Channel,
        access: Access,
        sizes: tuple[int, ...],
        out: bool,
        offsets: Scope | None = None,
    ) -> Callable[[Block], None]:
        """The core's end of a channel; broadcasts are told apart by their listeners."""

        def write(block: Block) -> None:
            index = []
            for axis, first, extent in (
                ("x", channel.columns[0], channel.reach[0]),
                ("y", channel.rows[0], channel.reach[1]),
            ):
                alone = extent == 1
                index.append(
                    block.constant(0)
                    if alone
                    else affine(block, scope, Affine(-first, ((axis, 1),)))
                )
            memory = scope.memory[access.target, 0, 0]
            transfer(block, offsets or scope, channel.name, index, memory, access, sizes, out)

        return write

    def _limited(
        self,
        block: Block,
        scope: Scope,
        columns: tuple[int, int],
        rows: tuple[int, int],
        write: Callable[[Block], None],
    ) -> None:
        """What `write` appends, executed by the cores within `columns` and `rows` only.

        As `affine.if` on the herd's ids, which the compiler decides core by core.
        """
        inside = bounded(((columns, self.launch.cols), (rows, self.launch.rows)))
        if not inside:
            write(block)
            return
        then = block.inner()
        write(then)
        then.op("affine.yield")
        ids = [scope.variables["x"], scope.variables["y"]]
        operands = [value for value in ids if isinstance(value, Value)]
        regions = [Region((), then), Region((), block.inner())]
        block.op("affine.if", operands, regions=regions, attributes={"condition": inside})

    def _call(self, scope: Scope, call: Call) -> Callable[[Block], None]:
        def write(block: Block) -> None:
            memories: list[Value] = []
            scalars: list[Value] = []
            offsets: list[Value] = []
            moved: list[int] = []
            for place, arg in enumerate(call.args):
                if isinstance(arg, Affine):
                    scalars.append(_i32(block, affine(block, scope, arg)))
                    continue
                memories.append(scope.memory[arg.target, 0, 0])
                if arg.offset != Affine():
                    moved.append(place)
                    offsets.append(_i32(block, affine(block, scope, arg.offset)))
            operands = [*memories, *scalars, *offsets]
            core = self.launch.object
            types = [v.type for v in operands]
            callee = self.objects.callee(self.op, core, call.function, tuple(moved), types)
            block.op("func.call", operands, attributes={"callee": f"@{callee}"})

        return write


def _i32(block: Block, index: Value) -> Value:
    return block.op("arith.index_cast", [index], ["i32"])[0]


def _hierarchy(
    block: Block,
    kind: str,
    name: str,
    region: Region,
    attributes: Mapping[str, str] | None = None,
    sizes: list[Value] | None = None,
    operands: list[Value] | None = None,
) -> None:
    """An air.launch, air.segment or air.herd: no dependencies, its sizes, what it is given."""
    given = [*(sizes or ()), *(operands or ())]
    segments = mlir.array([0, len(sizes or ()), len(operands or ())], 32)
    listed = {
        "sym_name": mlir.text(name),
        "operandSegmentSizes": segments,
        **(attributes or {}),
    }
    block.op(f"air.{kind}", given, regions=[region], attributes=listed)
