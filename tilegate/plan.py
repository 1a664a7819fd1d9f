"""The tile plan: what moves where, in which order, and which core function runs on each tile.

A plan is written once, by a kernel's contract (`kernels/<op>/kernel.py`), and lowered many ways:
`tilegate.legality` judges it, `tilegate.timing` predicts it, `tilegate.dispatch` lowers it for the
emulated NPU2. It is plain data: frozen dataclasses without behaviour of their own.

Vocabulary: a *launch* is a host-visible unit of work on a *herd* of `cols x rows` compute tiles.
Inside it, loops nest around copies and calls. L3 is DDR, L2 the memory tiles, L1 the compute tiles.
Herd coordinates are the variables `x` (column) and `y` (row, cascade direction).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Union

DType = Literal["bf16", "f32", "i32"]
Role = Literal["in", "out", "inout", "param", "scratch"]
Axis = Literal["x", "y"]

DTYPE_BYTES: Mapping[str, int] = {"bf16": 2, "f32": 4, "i32": 4}


@dataclass(frozen=True)
class Affine:
    """`base + sum(coefficient * variable)`, in elements. Variables: `x`, `y` and loop names."""

    base: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.base + other, self.terms)
        merged: dict[str, int] = dict(self.terms)
        for name, coefficient in other.terms:
            merged[name] = merged.get(name, 0) + coefficient
        return Affine(self.base + other.base, tuple(sorted(merged.items())))

    __radd__ = __add__

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.base * factor, tuple((n, c * factor) for n, c in self.terms))

    __rmul__ = __mul__

    def value(self, variables: Mapping[str, int]) -> int:
        """The number it stands for. Raises KeyError for an unbound variable."""
        return self.base + sum(c * variables[n] for n, c in self.terms)


def var(name: str) -> Affine:
    """The affine expression that is one variable."""
    return Affine(0, ((name, 1),))


X = var("x")
Y = var("y")


@dataclass(frozen=True)
class Tensor:
    """An operand of a launch in L3, dense and row-major. `param` is a static weight or table."""

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: DType = "bf16"

    @property
    def elements(self) -> int:
        return _product(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Buffer:
    """A buffer in L2 or L1.

    `per` names the herd axes along which it has separate instances: an L1 buffer always occupies
    every core, but one whose contents are broadcast along an axis leaves that axis out of `per`.
    `depth` 2 is ping-pong. `matrix` marks an L1 buffer that only the matrix unit reads, as the left
    (`a`, M x K) or right (`b`, K x N) operand in 8x8 tiles: the emulated device rounds it to block
    floating point once when it is loaded, which equals rounding it at every multiply.
    """

    name: str
    level: Literal[1, 2]
    shape: tuple[int, ...]
    dtype: DType = "bf16"
    per: tuple[Axis, ...] = ("x", "y")
    depth: Literal[1, 2] = 1
    matrix: Literal["", "a", "b"] = ""

    @property
    def elements(self) -> int:
        return _product(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of one instance, ping-pong included."""
        return self.elements * DTYPE_BYTES[self.dtype] * self.depth


@dataclass(frozen=True)
class Access:
    """A place in a tensor or buffer: element offset and, for copies, one stride per dimension.

    `at` addresses the instance of a buffer on another core (cascade neighbours); the default is
    the executing core's own.
    """

    target: str
    offset: Affine = Affine()
    strides: tuple[int, ...] = ()
    at: tuple[Affine, Affine] = (X, Y)


@dataclass(frozen=True)
class Copy:
    """Move `sizes` elements (outermost first) from `src` to `dst`, each with its own strides.

    Runs once for every herd coordinate in `over`; axes left out of `over` receive a broadcast.
    `rows` and `cols` limit the herd rows and columns `[lo, hi)` that execute it.
    """

    src: Access
    dst: Access
    sizes: tuple[int, ...]
    over: tuple[Axis, ...] = ("x", "y")
    via: Literal["dma", "cascade"] = "dma"
    rows: tuple[int, int] | None = None
    cols: tuple[int, int] | None = None


@dataclass(frozen=True)
class Call:
    """Run a core function on every core of the herd (or of `rows`).

    `args` are buffer places (passed as pointers) and affine scalars (passed as int32).
    `macs` counts multiply-accumulates of the matrix unit or of a dot product, `elements` the
    elements a vector function touches, both per call; the timing model turns them into cycles.
    """

    function: str
    args: tuple[Access | Affine, ...]
    macs: int = 0
    elements: int = 0
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Loop:
    """Repeat `body`. `level` says who iterates: the launch, the segment (L2), or the herd (L1)."""

    var: str
    count: int
    body: tuple[Step, ...]
    level: Literal["launch", "segment", "herd"] = "launch"


Step = Union[Loop, Copy, Call]  # noqa: UP007 - Loop refers to it before it exists


@dataclass(frozen=True)
class CoreObject:
    """One compiled object: a source in the kernel's folder and the macros that bake its shape.

    `functions` maps each exported function to the C types of its arguments.
    """

    source: str
    defines: tuple[tuple[str, str | int], ...]
    functions: tuple[tuple[str, tuple[str, ...]], ...]
    stack_bytes: int = 1024
    optimise: str = "-O3"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: tensors in argument order, buffers, herd, and the step tree."""

    name: str
    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    cols: int
    rows: int
    body: tuple[Step, ...]
    object: CoreObject


@dataclass(frozen=True)
class TilePlan:
    """The plan of one kernel at one shape and tile: its operands and one or more launches.

    `scratch` tensors live in L3 between the launches and belong to the plan.
    """

    op: str
    shape: tuple[tuple[str, int | str | bool], ...]
    tile: tuple[tuple[str, int | str | bool], ...]
    tensors: tuple[Tensor, ...]
    launches: tuple[Launch, ...]

    @property
    def scratch(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "scratch")


@dataclass(frozen=True)
class Requirement:
    """One thing that must hold for a shape and tile, decided before any plan exists."""

    rule: str
    ok: bool
    used: int | float | str
    available: int | float | str
    unit: str = ""
    hint: str = ""


def divides(rule: str, divisor: int, value: int, what: str) -> Requirement:
    """`value` must be a positive multiple of `divisor`; the hint names the nearest multiples."""
    ok = divisor > 0 and value > 0 and value % divisor == 0
    hint = ""
    if not ok and divisor > 0:
        below = value // divisor * divisor
        near = [str(n) for n in (below, below + divisor) if n > 0]
        hint = f"{what}: {value} is not a multiple of {divisor}; nearest {' or '.join(near)}"
    return Requirement(rule, ok, value, f"multiple of {divisor}", "elements", hint)


@dataclass(frozen=True)
class Visit:
    """A step and its enclosing loops: ((var, count, level), ...), outermost first."""

    step: Copy | Call
    loops: tuple[tuple[str, int, str], ...] = field(default=())

    @property
    def trips(self) -> int:
        """How often the step runs per executing herd coordinate."""
        return _product(tuple(count for _, count, _ in self.loops))


def walk(body: tuple[Step, ...], loops: tuple[tuple[str, int, str], ...] = ()) -> Iterator[Visit]:
    """Every copy and call of a step tree, in program order, with its enclosing loops."""
    for step in body:
        if isinstance(step, Loop):
            yield from walk(step.body, (*loops, (step.var, step.count, step.level)))
        else:
            yield Visit(step, loops)


def to_json(plan: TilePlan) -> dict[str, object]:
    """The plan as JSON-ready data: stable, complete, the input to digests and manifests."""
    return dataclasses.asdict(plan)


def freeze(mapping: Mapping[str, int | str | bool]) -> tuple[tuple[str, int | str | bool], ...]:
    """A mapping as the sorted tuple that plans carry."""
    return tuple(sorted(mapping.items()))


def _product(values: tuple[int, ...]) -> int:
    result = 1
    for value in values:
        result *= value
    return result
