"""Kernel objects of a real NPU as an emitted module names them.

A core gets bare pointers: MLIR drops the offset of a view at a call. A function that the plan calls
with a place inside a buffer therefore gets an entry `<symbol>_at`, which takes the offsets as
further integers and is compiled from the same source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilegate import mlir
from tilegate.compile import C_TYPES, suffix, symbol
from tilegate.errors import UserError
from tilegate.mlir import Block
from tilegate.plan import CoreObject


@dataclass
class Object:
    """One object: what it is compiled from, and `(function, moved arguments)` of its entries."""

    op: str
    core: CoreObject
    entries: dict[tuple[str, tuple[int, ...]], list[str]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return f"{self.op}.{Path(self.core.source).stem}-{suffix(self.op, self.core, False)}.o"

    def symbol(self, function: str, moved: tuple[int, ...]) -> str:
        name = symbol(function, self.op, self.core, False)
        return f"{name}_at{'_'.join(map(str, moved))}" if moved else name


class Objects:
    """The objects of a module, collected while it is written."""

    def __init__(self) -> None:
        self.found: dict[str, Object] = {}

    def file(self, op: str, core: CoreObject) -> str:
        made = Object(op, core)
        return self.found.setdefault(made.file, made).file

    def callee(
        self, op: str, core: CoreObject, function: str, moved: tuple[int, ...], types: Sequence[str]
    ) -> str:
        """The symbol for a call. Raises UserError when two calls disagree about its types."""
        entry = self.found[self.file(op, core)]
        known = entry.entries.setdefault((function, moved), list(types))
        if known != list(types):
            raise UserError(f"{op}: {function} is called with {types} and with {known}")
        return entry.symbol(function, moved)

    def declare(self, top: Block) -> None:
        """Append the private functions of all entries."""
        for file, entry in self.found.items():
            for (function, moved), types in entry.entries.items():
                attributes = {
                    "function_type": mlir.function_type(types),
                    "sym_name": mlir.text(entry.symbol(function, moved)),
                    "sym_visibility": mlir.text("private"),
                    "link_with": mlir.text(file),
                    "llvm.emit_c_interface": "",
                }
                region = mlir.Region((), Block(top))
                top.op("func.func", regions=[region], attributes=attributes)

    def table(self) -> list[dict[str, Any]]:
        """JSON-ready: for each object its file, source, macros, and entries by symbol."""
        return [
            {
                "file": file,
                "op": entry.op,
                "source": entry.core.source,
                "defines": dict(entry.core.defines),
                "optimise": entry.core.optimise,
                "stack_bytes": entry.core.stack_bytes,
                "symbols": {
                    name: symbol(name, entry.op, entry.core, False)
                    for name, _ in entry.core.functions
                },
                "entries": {
                    entry.symbol(function, moved): {"function": function, "moved": list(moved)}
                    for function, moved in entry.entries
                },
            }
            for file, entry in self.found.items()
        ]


def unit(entry: dict[str, Any], signatures: dict[str, tuple[str, ...]]) -> str:
    """The C++ translation unit of an object: the kernel's source and the entries with offsets."""
    lines = [f'#include "{entry["source"]}"', "#include <cstdint>"]
    for name, what in entry["entries"].items():
        moved = what["moved"]
        if not moved:
            continue
        pointers, scalars, passed = [], [], []
        for place, kind in enumerate(signatures[what["function"]]):
            if kind == "i32":
                scalars.append(f"std::int32_t a{place}")
                passed.append(f"a{place}")
                continue
            c_type = C_TYPES[kind.removeprefix("const ").removesuffix("*")]
            const = "const " if kind.startswith("const ") else ""
            pointers.append(f"{const}{c_type} *a{place}")
            passed.append(f"a{place} + o{place}" if place in moved else f"a{place}")
        offsets = [f"std::int32_t o{place}" for place in moved]
        taken = ", ".join([*pointers, *scalars, *offsets])
        lines.append(f'extern "C" void {name}({taken}) {{')
        lines.append(f"  {what['function']}({', '.join(passed)});")
        lines.append("}")
    return "\n".join(lines) + "\n"
