"""A dispatch: launches fused into one binary with one argument table.

`tables` lowers the launches' plans to the tables that `kernels/host/walker.cc` interprets; the node
compiles them and links them with the kernel objects into a `dispatch.so` of its own.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate.compile import (
    C_TYPES,
    compile_source,
    execute,
    in_block_float,
    kernel_node,
    symbol,
    toolchain,
    walker_node,
)
from tilegate.errors import UserError
from tilegate.plan import (
    DTYPE_BYTES,
    Access,
    Affine,
    Call,
    Copy,
    DType,
    Launch,
    Loop,
    Step,
    TilePlan,
    X,
    Y,
    walk,
)
from tilegate.store import Build, Node

ABI = "tilegate-dispatch-1"
VARIABLES = 10  # x, y and up to eight loops, as in walker.hpp
DIMENSIONS = 6


@dataclass(frozen=True)
class Argument:
    """One entry of a dispatch's argument table; `runtime/manifest.py` defines the kinds."""

    name: str
    kind: str
    role: str
    shape: tuple[int, ...]
    dtype: DType = "bf16"
    value: str | None = None
    tensor: str | None = None
    layout: str | None = None
    row_start: int = 0

    @property
    def bytes(self) -> int:
        size = DTYPE_BYTES[self.dtype]
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True)
class Fused:
    """One op of a dispatch: its plan and the argument index of each plan tensor."""

    name: str
    plan: TilePlan
    arguments: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Dispatch:
    """Launches in order, and the argument table they share."""

    name: str
    phase: str
    bucket: int | None
    arguments: tuple[Argument, ...]
    ops: tuple[Fused, ...]

    def launches(self) -> Iterator[tuple[Fused, Launch]]:
        for op in self.ops:
            for launch in op.plan.launches:
                yield op, launch


def solo(plan: TilePlan) -> Dispatch:
    """A dispatch of one kernel: its tensors are the arguments, in the plan's order."""
    arguments = tuple(
        Argument(t.name, "activation", "in" if t.role in ("in", "param") else "out", t.shape, t.dtype, t.name)
        for t in plan.tensors
    )
    binding = tuple((t.name, i) for i, t in enumerate(plan.tensors))
    return Dispatch(f"solo.{plan.op}", "solo", None, arguments, (Fused(plan.op, plan, binding),))


def describe(dispatch: Dispatch) -> dict[str, Any]:
    """The document `dispatch.json`; predicted times are filled in where a bundle is laid."""
    return {
        "abi": ABI,
        "name": dispatch.name,
        "phase": dispatch.phase,
        "bucket": dispatch.bucket,
        "library": "dispatch.so",
        "predicted_us": 0.0,
        "arguments": [
            {
                "name": a.name,
                "kind": a.kind,
                "role": a.role,
                "shape": list(a.shape),
                "dtype": a.dtype,
                "bytes": a.bytes,
                "value": a.value,
                "tensor": a.tensor,
                "layout": a.layout,
                "row_start": a.row_start,
            }
            for a in dispatch.arguments
        ],
        "launches": [
            {
                "name": op.name if len(op.plan.launches) == 1 else f"{op.name}.{launch.name}",
                "op": op.plan.op,
                "arguments": [dict(op.arguments)[t.name] for t in launch.tensors],
            }
            for op, launch in dispatch.launches()
        ],
    }


def dispatch_node(dispatch: Dispatch, doc: str = "") -> Node:
    """The node that lowers, compiles and links one dispatch, with its kernel nodes as needs."""
    kernels: dict[str, Node] = {}
    for op, launch in dispatch.launches():
        node = kernel_node(op.plan.op, launch.object, in_block_float(launch))
        kernels[node.name] = node
    names = ", ".join(op.name for op in dispatch.ops)
    return Node(
        name=f"dispatch:{dispatch.name}",
        kind="dispatch",
        doc=doc or f"link {names}",
        inputs={"tables": tables(dispatch), "description": describe(dispatch)},
        needs=(*(kernels[name] for name in sorted(kernels)), walker_node()),
        build=_build,
        sources=(toolchain().binary,),
    )


def _build(build: Build) -> None:
    source = build.out / "tables.cc"
    source.write_text(build.inputs["tables"])
    compile_source(source, build.out / "tables.o", ["-O1"])
    objects = [str(artifact.file("kernel.o")) for artifact in build.needs.values()]
    library = build.out / "dispatch.so"
    link = ["-shared", "-pthread", "-Wl,--build-id=none", "-Wl,--no-undefined", "-o", str(library)]
    execute(
        [*toolchain().command, *link, str(build.out / "tables.o"), *objects],
        f"link {build.node.name}",
    )
    (build.out / "tables.o").unlink()
    _check_library(library)
    document = json.dumps(build.inputs["description"], indent=1, sort_keys=True)
    (build.out / "dispatch.json").write_text(document + "\n")


def _check_library(library: Path) -> None:
    """A linker's exit status proves little: the result must be an ELF that names our ABI."""
    if library.read_bytes()[:4] != b"\x7fELF":
        raise UserError(f"{library.name} is not an ELF file")
    abi = load(library).tilegate_abi
    abi.restype = ctypes.c_char_p
    if abi() != ABI.encode():
        raise UserError(f"{library.name}: unexpected ABI {abi()!r}")


def load(library: Path) -> ctypes.CDLL:
    """Open a dispatch for this process. Raises OSError when it does not load."""
    return ctypes.CDLL(str(library))


# --- lowering to walker tables ----------------------------------------------------------------


def tables(dispatch: Dispatch) -> str:
    """The C++ source of a dispatch's tables. Raises UserError for a plan that leaves its tensors."""
    parts = ["#include <walker.hpp>", "#include <aie_api/aie.hpp>", "using namespace tilegate;"]
    entries = []
    declared: dict[str, str] = {}
    for number, (op, launch) in enumerate(dispatch.launches()):
        check_bounds(launch)
        lowered = _Lowering(op.plan.op, launch)
        for name, text in lowered.functions():
            declared[name] = text
        parts.append(lowered.tables(number, [dict(op.arguments)[t.name] for t in launch.tensors]))
        entries.append(lowered.entry(number))
    prototypes = [declared[name] for name in sorted(declared)]
    export = '__attribute__((visibility("default")))'
    tail = [
        f"static const Launch kLaunches[] = {{{', '.join(entries)}}};",
        f'extern "C" {export} const char *tilegate_abi(void) {{ return "{ABI}"; }}',
        f'extern "C" {export} int tilegate_run(void *const *arguments, int count, int threads) {{',
        f"  return count == {len(dispatch.arguments)}"
        f" ? run(kLaunches, {len(entries)}, arguments, threads) : 1;",
        "}",
    ]
    return "\n".join([*parts[:3], *prototypes, *parts[3:], *tail]) + "\n"


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

    def tables(self, number: int, arguments: list[int]) -> str:
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
                    f"{{Kind::loop, {slot}, {step.count}, {len(self.steps)}, 0, 0, 0, 0}}"
                )
                continue
            low, high = step.rows or (0, self.launch.rows)
            if isinstance(step, Copy):
                kind, index = "copy", len(self.copies)
                over_x, over_y = int("x" in step.over), int("y" in step.over)
                self.copies.append(self._copy(step, slots))
            else:
                kind, index, over_x, over_y = "call", len(self.calls), 1, 1
                self.calls.append(self._call(step, slots))
            self.steps.append(
                f"{{Kind::{kind}, {index}, 1, 0, {over_x}, {over_y}, {low}, {high}}}"
            )

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
            raise UserError(f"{self.op}: {call.function} is not a function of {self.launch.object.source}")
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
        sizes, source, target = _collapse(fills[0].sizes, fills[0].src.strides, fills[0].dst.strides)
        whole = not sizes or (len(sizes) == 1 and sizes[0] == buffer.elements)
        dense = not sizes or (source == [1] and target == [1])
        own = fills[0].dst.at == (X, Y) and fills[0].dst.offset == Affine()
        if whole and dense and own and fills[0].src.target not in written:
            found.add(buffer.name)
    return frozenset(found)


def _dtype(launch: Launch, name: str) -> DType:
    for place in (*launch.tensors, *launch.buffers):
        if place.name == name:
            return place.dtype
    raise UserError(f"launch {launch.name}: no tensor or buffer {name!r}")


def check_bounds(launch: Launch) -> None:
    """Every copy stays inside its tensors and buffers and does not change the element type.

    Raises UserError naming the access, how far it reaches and what is there.
    """
    places = {p.name: p.elements for p in (*launch.tensors, *launch.buffers)}
    ranges = {"x": launch.cols, "y": launch.rows}
    for visit in walk(launch.body):
        if not isinstance(visit.step, Copy):
            continue
        trips = {**ranges, **{name: count for name, count, _ in visit.loops}}
        if visit.step.rows:
            trips["y"] = visit.step.rows[1]
        for access in (visit.step.src, visit.step.dst):
            low, high = _reach(access, visit.step.sizes, trips)
            if low < 0 or high >= places[access.target]:
                raise UserError(
                    f"launch {launch.name}: a copy reaches element {low if low < 0 else high} of "
                    f"{access.target}, which has {places[access.target]}"
                )
        types = [_dtype(launch, a.target) for a in (visit.step.src, visit.step.dst)]
        if types[0] != types[1]:
            raise UserError(f"launch {launch.name}: a copy from {types[0]} to {types[1]}")


def _reach(access: Access, sizes: tuple[int, ...], trips: Mapping[str, int]) -> tuple[int, int]:
    low = high = access.offset.base
    for name, coefficient in access.offset.terms:
        span = coefficient * (trips[name] - 1)
        low, high = low + min(span, 0), high + max(span, 0)
    for size, stride in zip(sizes, access.strides, strict=True):
        span = stride * (size - 1)
        low, high = low + min(span, 0), high + max(span, 0)
    return low, high


@functools.cache
def node_of_plan(plan: TilePlan) -> Node:
    """The solo dispatch node of a kernel plan."""
    return dispatch_node(solo(plan), f"link {plan.op} alone")
