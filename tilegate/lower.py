"""Lowering of plans to the tables that `kernels/host/walker.cc` interprets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegate.compile import C_TYPES, in_block_float, symbol
from tilegate.errors import UserError
from tilegate.plan import (
    DTYPE_BYTES,
    Access,
    Affine,
    Buffer,
    Call,
    Copy,
    DType,
    Launch,
    Loop,
    Step,
    Tensor,
    X,
    Y,
    walk,
)

VARIABLES = 10  # x, y and up to eight loops, as in walker.hpp
DIMENSIONS = 6


@dataclass(frozen=True)
class Entry:
    """A launch of a dispatch: the kernel it belongs to and the argument of each of its tensors."""

    op: str
    launch: Launch
    arguments: tuple[int, ...]


def tables(entries: Sequence[Entry], argument_count: int, abi: str) -> str:
    """The C++ source of a dispatch's tables.

    Raises UserError for a plan that leaves its tensors or that the walker cannot hold.
    """
    declared: dict[str, str] = {}
    parts: list[str] = []
    rows: list[str] = []
    for number, entry in enumerate(entries):
        check_bounds(entry.launch)
        lowered = _Lowering(entry.op, entry.launch)
        declared.update(lowered.functions())
        parts.append(lowered.tables(number, entry.arguments))
        rows.append(lowered.entry(number))
    export = '__attribute__((visibility("default")))'
    head = ["#include <walker.hpp>", "#include <aie_api/aie.hpp>", "using namespace tilegate;"]
    tail = [
        f"static const Launch kLaunches[] = {{{', '.join(rows)}}};",
        f'extern "C" {export} const char *tilegate_abi(void) {{ return "{abi}"; }}',
        f'extern "C" {export} void *tilegate_pool(void *shared) {{ return pool(shared); }}',
        f'extern "C" {export} int tilegate_run(void *const *arguments, int count, int threads) {{',
        f"  return count == {argument_count}"
        f" ? run(kLaunches, {len(rows)}, arguments, threads) : 1;",
        "}",
    ]
    prototypes = [declared[name] for name in sorted(declared)]
    return "\n".join([*head, *prototypes, *parts, *tail]) + "\n"


class _Lowering:
    """One launch as tables; loop variables become slots from 2 on (0 is x, 1 is y)."""

    def __init__(self, op: str, launch: Launch) -> None:
        self.op = op
        self.launch = launch
        self.tensors = {t.name: i for i, t in enumerate(launch.tensors)}
        self.buffers = {b.name: i for i, b in enumerate(launch.buffers)}
        self.signatures = dict(launch.object.functions)
        self.aliases = _aliases(launch)
        self.steps: list[str] = []
        self.copies: list[str] = []
        self.calls: list[str] = []
        self._steps(launch.body, {"x": 0, "y": 1})

    def functions(self) -> Iterator[tuple[str, str]]:
        """(name, prototype and trampoline) of each core function that is called."""
        quantised = in_block_float(self.launch)
        for function, types in self.launch.object.functions:
            name = symbol(function, self.op, self.launch.object, quantised)
            declared, passed, p, s = [], [], 0, 0
            for kind in types:
                if kind == "i32":
                    declared.append("std::int32_t")
                    passed.append(f"s[{s}]")
                    s += 1
                else:
                    c_type = f"{C_TYPES[kind.removeprefix('const ').removesuffix('*')]} *"
                    declared.append(f"const {c_type}" if kind.startswith("const ") else c_type)
                    passed.append(f"static_cast<{c_type}>(p[{p}])")
                    p += 1
            unused = ("" if p else " (void)p;") + ("" if s else " (void)s;")
            yield (
                name,
                f'extern "C" void {name}({", ".join(declared)});\n'
                f"static void call_{name}(void *const *p, const std::int32_t *s) {{"
                f"{unused} {name}({', '.join(passed)}); }}",
            )

    def tables(self, number: int, arguments: Sequence[int]) -> str:
        launch = self.launch
        buffers = [
            f"{{{b.elements * DTYPE_BYTES[b.dtype]}, {DTYPE_BYTES[b.dtype]}, "
            f"{int('x' in b.per)}, {int('y' in b.per)}, {int(b.name in self.aliases)}}}"
            for b in launch.buffers
        ]
        widths = [str(DTYPE_BYTES[t.dtype]) for t in launch.tensors]
        rows = [
            ("Step", "steps", self.steps),
            ("Copy", "copies", self.copies),
            ("Call", "calls", self.calls),
            ("Buffer", "buffers", buffers),
            ("std::int32_t", "arguments", [str(a) for a in arguments]),
            ("std::int32_t", "widths", widths),
        ]
        return "\n".join(
            f"static const {kind} k{number}_{name}[] = {{\n  {_lines(items)}}};"
            for kind, name, items in rows
            if items
        )

    def entry(self, number: int) -> str:
        def table(name: str, items: Any) -> str:
            return f"k{number}_{name}" if items else "nullptr"

        launch = self.launch
        return (
            f"{{{launch.cols}, {launch.rows}, k{number}_steps, {len(self.steps)}, "
            f"{table('copies', self.copies)}, {table('calls', self.calls)}, "
            f"{table('buffers', launch.buffers)}, {len(launch.buffers)}, "
            f"k{number}_arguments, k{number}_widths}}"
        )

    def _steps(self, body: tuple[Step, ...], slots: Mapping[str, int]) -> None:
        for step in body:
            if isinstance(step, Loop):
                slot = max(slots.values()) + 1
                if slot >= VARIABLES:
                    raise UserError(f"{self.op}: loops nest deeper than {VARIABLES - 2}")
                at = len(self.steps)
                self.steps.append("")
                self._steps(step.body, {**slots, step.var: slot})
                self.steps[at] = (
                    f"{{Kind::loop, {slot}, {step.count}, {len(self.steps)}, 0, 0, 0, 0, 0, 0}}"
                )
                continue
            rows, columns = step.rows or (0, self.launch.rows), (0, self.launch.cols)
            if isinstance(step, Copy):
                kind, index = "copy", len(self.copies)
                columns = step.cols or columns
                over_x, over_y = int("x" in step.over), int("y" in step.over)
                self.copies.append(self._copy(step, slots))
            else:
                kind, index, over_x, over_y = "call", len(self.calls), 1, 1
                self.calls.append(self._call(step, slots))
            herd = ", ".join(map(str, (over_x, over_y, *rows, *columns)))
            self.steps.append(f"{{Kind::{kind}, {index}, 1, 0, {herd}}}")

    def _place(self, access: Access, slots: Mapping[str, int]) -> str:
        if access.target in self.tensors:
            target = self.tensors[access.target]
        else:
            target = -1 - self.buffers[access.target]
        at = ", ".join(_affine(a, slots) for a in access.at)
        return f"{{{target}, {_affine(access.offset, slots)}, {at}}}"

    def _copy(self, copy: Copy, slots: Mapping[str, int]) -> str:
        sizes, source, target = _collapse(copy.sizes, copy.src.strides, copy.dst.strides)
        if len(sizes) > DIMENSIONS:
            raise UserError(f"{self.op}: a copy of {len(sizes)} dimensions; at most {DIMENSIONS}")
        matrix, tiles, width = 0, 0, DTYPE_BYTES[_dtype(self.launch, copy.dst.target)]
        if copy.dst.target in self.buffers:
            buffer = self.launch.buffers[self.buffers[copy.dst.target]]
            matrix = {"": 0, "a": 1, "b": 2}[buffer.matrix]
            tiles = buffer.elements // 64 if matrix else 0
        places = f"{self._place(copy.src, slots)}, {self._place(copy.dst, slots)}"
        lists = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in (sizes, source, target))
        alias = int(copy.dst.target in self.aliases)
        return f"{{{places}, {width}, {len(sizes)}, {lists}, {alias}, {matrix}, {tiles}}}"

    def _call(self, call: Call, slots: Mapping[str, int]) -> str:
        quantised = in_block_float(self.launch)
        if call.function not in self.signatures:
            raise UserError(
                f"{self.op}: {call.function} is not a function of {self.launch.object.source}"
            )
        name = symbol(call.function, self.op, self.launch.object, quantised)
        places = [self._place(a, slots) for a in call.args if isinstance(a, Access)]
        scalars = [_affine(a, slots) for a in call.args if isinstance(a, Affine)]
        return (
            f"{{call_{name}, {len(places)}, {len(scalars)}, "
            f"{{{', '.join(places)}}}, {{{', '.join(scalars)}}}}}"
        )


def _lines(items: list[str]) -> str:
    return ",\n  ".join(items)


def _affine(affine: Affine, slots: Mapping[str, int]) -> str:
    row = [0] * VARIABLES
    for name, coefficient in affine.terms:
        row[slots[name]] += coefficient
    while row and not row[-1]:
        row.pop()
    return f"{{{affine.base}, {{{', '.join(map(str, row))}}}}}"


def _collapse(
    sizes: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]
) -> tuple[list[int], list[int], list[int]]:
    """Merge neighbouring dimensions that are contiguous on both sides; drop those of size 1."""
    merged: list[list[int]] = []
    for size, s, t in zip(sizes, source, target, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == s * size and merged[-1][2] == t * size:
            merged[-1] = [merged[-1][0] * size, s, t]
        else:
            merged.append([size, s, t])
    return [m[0] for m in merged], [m[1] for m in merged], [m[2] for m in merged]


def _aliases(launch: Launch) -> frozenset[str]:
    """Buffers that a copy only ever fills whole with dense data and that nobody writes.

    The emulated device lets them point at their source; the bytes that a core sees are the same.
    """
    copies = [v.step for v in walk(launch.body) if isinstance(v.step, Copy)]
    calls = [v.step for v in walk(launch.body) if isinstance(v.step, Call)]
    signatures = dict(launch.object.functions)
    written = {t.name for t in launch.tensors if t.role in ("out", "inout", "scratch")}
    for call in calls:
        for access, kind in zip(call.args, signatures[call.function], strict=True):
            if isinstance(access, Access) and not kind.startswith("const "):
                written.add(access.target)
    found: set[str] = set()
    for buffer in launch.buffers:
        fills = [c for c in copies if c.dst.target == buffer.name]
        if len(fills) != 1 or buffer.matrix or buffer.name in written:
            continue
        sizes, source, target = _collapse(
            fills[0].sizes, fills[0].src.strides, fills[0].dst.strides
        )
        whole = not sizes or (len(sizes) == 1 and sizes[0] == buffer.elements)
        dense = not sizes or (source == [1] and target == [1])
        own = fills[0].dst.at == (X, Y) and fills[0].dst.offset == Affine()
        if whole and dense and own and fills[0].src.target not in written:
            found.add(buffer.name)
    return frozenset(found)


def _dtype(launch: Launch, name: str) -> DType:
    places: tuple[Tensor | Buffer, ...] = (*launch.tensors, *launch.buffers)
    for place in places:
        if place.name == name:
            return place.dtype
    raise UserError(f"launch {launch.name}: no tensor or buffer {name!r}")


def check_bounds(launch: Launch) -> None:
    """Every copy stays inside its tensors and buffers and does not change the element type.

    Raises UserError naming the access, how far it reaches and what is there.
    """
    tensors = {t.name: t.elements for t in launch.tensors}
    places = tensors | {b.name: b.elements for b in launch.buffers}
    for visit in walk(launch.body):
        if not isinstance(visit.step, Copy):
            continue
        ranges = {name: (0, count) for name, count, _ in visit.loops}
        ranges["x"] = visit.step.cols or (0, launch.cols)
        ranges["y"] = visit.step.rows or (0, launch.rows)
        for access in (visit.step.src, visit.step.dst):
            low, high = _reach(access, visit.step.sizes, ranges)
            if low < 0 or high >= places[access.target]:
                raise UserError(
                    f"launch {launch.name}: a copy reaches element {low if low < 0 else high} of "
                    f"{access.target}, which has {places[access.target]}"
                )
        types = [_dtype(launch, a.target) for a in (visit.step.src, visit.step.dst)]
        if types[0] != types[1]:
            raise UserError(f"launch {launch.name}: a copy from {types[0]} to {types[1]}")


def _reach(
    access: Access, sizes: tuple[int, ...], ranges: Mapping[str, tuple[int, int]]
) -> tuple[int, int]:
    low = high = access.offset.base
    for name, coefficient in access.offset.terms:
        first, last = coefficient * ranges[name][0], coefficient * (ranges[name][1] - 1)
        low, high = low + min(first, last), high + max(first, last)
    for size, stride in zip(sizes, access.strides, strict=True):
        span = stride * (size - 1)
        low, high = low + min(span, 0), high + max(span, 0)
    return low, high
