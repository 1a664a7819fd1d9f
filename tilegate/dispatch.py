"""A dispatch: launches fused into one binary with one argument table.

The launches' plans are lowered to tables, compiled, and linked with their kernel objects and the
plan walker into a `dispatch.so` of its own.
"""

from __future__ import annotations

import _ctypes
import ctypes
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import lower
from tilegate.compile import (
    FLAGS,
    compile_source,
    execute,
    in_block_float,
    kernel_node,
    toolchain,
    walker_node,
)
from tilegate.errors import BrokenTool
from tilegate.plan import DTYPE_BYTES, DType, Launch, TilePlan
from tilegate.store import Build, Node

ABI = "tilegate-dispatch-1"
LINK = ("-shared", "-pthread", "-Wl,--build-id=none", "-Wl,--no-undefined")


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


def solo(plan: TilePlan, label: str = "") -> Dispatch:
    """A dispatch of one kernel: its tensors are the arguments, in the plan's order."""
    arguments = tuple(
        Argument(
            t.name,
            "activation",
            "in" if t.role in ("in", "param") else "out",
            t.shape,
            t.dtype,
            t.name,
        )
        for t in plan.tensors
    )
    binding = tuple((t.name, i) for i, t in enumerate(plan.tensors))
    return Dispatch(
        f"alone:{label or plan.op}", "solo", None, arguments, (Fused(plan.op, plan, binding),)
    )


def describe(dispatch: Dispatch) -> dict[str, Any]:
    """The document `dispatch.json`; predicted times are filled in where a bundle is laid."""
    return {
        "abi": ABI,
        "name": dispatch.name,
        "phase": dispatch.phase,
        "bucket": dispatch.bucket,
        "library": "dispatch.so",
        "predicted_us": 0.0,
        "host_us": 0.0,
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
        inputs={
            "tables": _tables(dispatch),
            "description": describe(dispatch),
            "flags": [*FLAGS, *LINK],
            "cpu": toolchain().cpu,
        },
        needs=(*(kernels[name] for name in sorted(kernels)), walker_node()),
        build=_build,
        sources=toolchain().binaries,
    )


def _tables(dispatch: Dispatch) -> str:
    entries = [
        lower.Entry(op.plan.op, launch, tuple(dict(op.arguments)[t.name] for t in launch.tensors))
        for op, launch in dispatch.launches()
    ]
    return lower.tables(entries, len(dispatch.arguments), ABI)


def _build(build: Build) -> None:
    source = build.out / "tables.cc"
    source.write_text(build.inputs["tables"])
    compile_source(source, build.out / "tables.o", ["-O1"])
    objects = [str(artifact.file("kernel.o")) for artifact in build.needs.values()]
    library = build.out / "dispatch.so"
    execute(
        [*toolchain().command, *LINK, "-o", str(library), str(build.out / "tables.o"), *objects],
        f"link {build.node.name}",
    )
    (build.out / "tables.o").unlink()
    _check_library(library)
    document = json.dumps(build.inputs["description"], indent=1, sort_keys=True)
    (build.out / "dispatch.json").write_text(document + "\n")


def _check_library(library: Path) -> None:
    """A linker's exit status proves little: the result must be an ELF that names our ABI."""
    if library.read_bytes()[:4] != b"\x7fELF":
        raise BrokenTool(f"{library.name} is not an ELF file")
    opened = load(library)
    abi = opened.tilegate_abi
    abi.restype = ctypes.c_char_p
    found = abi()
    unload(opened)
    if found != ABI.encode():
        raise BrokenTool(f"{library.name}: unexpected ABI {found!r}")


def load(library: Path) -> ctypes.CDLL:
    """Open a dispatch for this process. Raises OSError when it does not load."""
    return ctypes.CDLL(str(library))


def unload(library: ctypes.CDLL) -> None:
    """Close a dispatch that never ran (one that did has workers in it). Open ones each take a piece
    of a small thread-local area."""
    _ctypes.dlclose(library._handle)
