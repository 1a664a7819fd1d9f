"""Loop nests of a plan as seen from one memory: filtered loops, buffers, transfers, offsets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tilegate import mlir
from tilegate.mlir import INDEX, Block, Region, Value
from tilegate.plan import Access, Affine, Buffer, Call, Copy, Loop, Step

Key = tuple[str, int, int]
Path = tuple[int, ...]
DYNAMIC = -(2**63)  # ShapedType::kDynamic: the entry is an operand


@dataclass(frozen=True)
class Scope:
    """What is known at a point of a nest: variables (values or numbers) and buffers."""

    variables: Mapping[str, Value | int] = field(default_factory=dict)
    memory: Mapping[Key, Value] = field(default_factory=dict)

    def at(self, x: int, y: int) -> Scope:
        """The scope of one herd coordinate, outside of the herd."""
        return self.fixed("x", x).fixed("y", y)

    def fixed(self, name: str, value: Value | int) -> Scope:
        return dataclasses.replace(self, variables={**self.variables, name: value})

    def holding(self, memory: Mapping[Key, Value]) -> Scope:
        return dataclasses.replace(self, memory={**self.memory, **memory})

    def moved(self, block: Block, dx: int, dy: int) -> Scope:
        """The scope of the core (x + dx, y + dy)."""
        x = affine(block, self, Affine(dx, (("x", 1),))) if dx else self.variables["x"]
        y = affine(block, self, Affine(dy, (("y", 1),))) if dy else self.variables["y"]
        return self.fixed("x", x).fixed("y", y)


def _no_buffers(step: Copy | Call) -> set[Key]:
    return set()


@dataclass(frozen=True)
class Steps:
    """Which steps a nest holds, what each becomes, and the buffers that live in it."""

    wanted: Callable[[Copy | Call], bool]
    write: Callable[[Block, Scope, Step], None]
    touches: Callable[[Copy | Call], set[Key]] = _no_buffers
    buffers: Mapping[Key, Buffer] = field(default_factory=dict)


def loop_nest(block: Block, body: tuple[Step, ...], steps: Steps, scope: Scope) -> None:
    """Append the loops of a plan around the steps that are wanted.

    A buffer with ping-pong is allocated in the innermost loop that holds all its uses, where the
    compiler's ping-pong pass looks for it; any other one before the nest.
    """
    _body(block, body, steps, scope, (), _homes(body, steps))


def _homes(body: tuple[Step, ...], steps: Steps) -> dict[Path, list[Key]]:
    """Where each buffer is allocated: the path of a loop body."""
    common: dict[Key, Path] = {}
    for path, step in _leaves(body):
        for key in sorted(steps.touches(step)):
            at = path[:-1] if steps.buffers[key].depth == 2 else ()
            common[key] = _prefix(common[key], at) if key in common else at
    homes: dict[Path, list[Key]] = {}
    for key, path in common.items():
        homes.setdefault(path, []).append(key)
    return homes


def _leaves(body: tuple[Step, ...], path: Path = ()) -> Iterator[tuple[Path, Copy | Call]]:
    for number, step in enumerate(body):
        if isinstance(step, Loop):
            yield from _leaves(step.body, (*path, number))
        else:
            yield (*path, number), step


def _prefix(one: Path, other: Path) -> Path:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


def _body(
    block: Block,
    body: tuple[Step, ...],
    steps: Steps,
    scope: Scope,
    path: Path,
    homes: Mapping[Path, list[Key]],
) -> None:
    own = {}
    for key in homes.get(path, ()):
        buffer = steps.buffers[key]
        kind = mlir.memref(buffer.elements, buffer.dtype, buffer.level)
        segments = {"operandSegmentSizes": mlir.array([0, 0], 32)}
        own[key] = block.op("memref.alloc", (), [kind], attributes=segments)[0]
    scope = scope.holding(own)
    for number, step in enumerate(body):
        if not isinstance(step, Loop):
            if steps.wanted(step):
                steps.write(block, scope, step)
            continue
        if not any(steps.wanted(leaf) for _, leaf in _leaves(step.body)):
            continue
        inner = block.inner()
        trip = inner.value(INDEX, step.var)
        within = scope.fixed(step.var, trip)
        _body(inner, step.body, steps, within, (*path, number), homes)
        inner.op("scf.yield")
        bounds = [block.constant(n) for n in (0, step.count, 1)]
        block.op("scf.for", bounds, regions=[Region((trip,), inner)])
    for memory in own.values():
        block.op("memref.dealloc", [memory])


def affine(block: Block, scope: Scope, expression: Affine) -> Value:
    """The value of an affine expression."""
    base, terms = _folded(scope, expression)
    total: Value | None = None
    for value, coefficient in terms:
        term = value
        if coefficient != 1:
            term = block.op("arith.muli", [value, block.constant(coefficient)], [INDEX])[0]
        total = term if total is None else block.op("arith.addi", [total, term], [INDEX])[0]
    if total is None:
        return block.constant(base)
    if base:
        total = block.op("arith.addi", [total, block.constant(base)], [INDEX])[0]
    return total


def _folded(scope: Scope, expression: Affine) -> tuple[int, list[tuple[Value, int]]]:
    """An expression with known numbers folded into its base."""
    base, terms = expression.base, []
    for name, coefficient in expression.terms:
        value = scope.variables[name]
        if isinstance(value, int):
            base += coefficient * value
        elif coefficient:
            terms.append((value, coefficient))
    return base, terms


def bounded(limits: tuple[tuple[tuple[int, int], int], ...]) -> str:
    """The affine set of the herd coordinates within limits; empty where all are.

    `limits` holds (lowest, end) and the extent of the herd, for columns and for rows.
    """
    found = []
    for number, ((low, high), most) in enumerate(limits):
        if high - low == 1 and most > 1:
            found.append(f"s{number} - {low} == 0" if low else f"s{number} == 0")
            continue
        if low > 0:
            found.append(f"s{number} - {low} >= 0")
        if high < most:
            found.append(f"-s{number} + {high - 1} >= 0")
    return f"affine_set<()[s0, s1] : ({', '.join(found)})>" if found else ""


def transfer(
    block: Block,
    scope: Scope,
    channel: str,
    index: list[Value],
    memory: Value,
    access: Access,
    sizes: tuple[int, ...],
    out: bool,
) -> None:
    """A put (`out`) or a get: the access as offsets, sizes and strides in elements."""
    strides = access.strides
    if not strides or strides[-1] != 1:  # the place of the offset needs a stride of 1
        sizes, strides = (1, *sizes), (1, *strides)
        place = 0
    else:
        place = len(strides) - 1
    offsets = [0] * len(strides)
    base, terms = _folded(scope, access.offset)
    dynamic: list[Value] = []
    if terms:
        dynamic.append(affine(block, scope, access.offset))
        offsets[place] = DYNAMIC
    else:
        offsets[place] = base
    way, side = ("put", "src") if out else ("get", "dst")
    segments = [0, len(index), 1, len(dynamic), 0, 0] + ([0] if out else [])
    attributes = {
        "chan_name": f"@{channel}",
        "operandSegmentSizes": mlir.array(segments, 32),
        f"static_{side}_offsets": mlir.array(offsets),
        f"static_{side}_sizes": mlir.array(sizes),
        f"static_{side}_strides": mlir.array(strides),
    }
    block.op(f"air.channel.{way}", [*index, memory, *dynamic], attributes=attributes)
