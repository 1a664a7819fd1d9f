"""Kernel objects of a real NPU as an emitted module names them.

A core gets bare pointers: MLIR drops the offset of a view at a call. A function that the plan calls
with a place inside a buffer therefore gets an entry `<symbol>_at`, which takes the offsets as
further integers and is compiled from the same source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilegate import mlir
from tilegate.compile import C_TYPES, suffix, symbol
from tilegate.mlir import Block
from tilegate.plan import CoreObject


@dataclass(frozen=True)
class Entry:
    """One way in which a function is called: the arguments that carry an offset, and the types.

    A symbol has one type in MLIR; a function called with buffers of other sizes gets a `variant`.
    """

    symbol: str
    function: str
    moved: tuple[int, ...]
    types: tuple[str, ...]
    forwards: bool


@dataclass
class Object:
    """One object: what it is compiled from, and the entries that its module calls."""

    op: str
    core: CoreObject
    entries: list[Entry] = field(default_factory=list)

    @property
    def file(self) -> str:
        return f"{self.op}.{Path(self.core.source).stem}-{suffix(self.op, self.core, False)}.o"

    def entry(self, function: str, moved: tuple[int, ...], types: tuple[str, ...]) -> Entry:
        """The entry for a call, made when there is none."""
        alike = [e for e in self.entries if (e.function, e.moved) == (function, moved)]
        for entry in alike:
            if entry.types == types:
                return entry
        name = symbol(function, self.op, self.core, False)
        name += f"_at{'_'.join(map(str, moved))}" if moved else ""
        name += f"_v{len(alike)}" if alike else ""
        self.entries.append(Entry(name, function, moved, types, bool(moved or alike)))
        return self.entries[-1]


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
        """The symbol for a call."""
        return self.found[self.file(op, core)].entry(function, moved, tuple(types)).symbol

    def declare(self, top: Block) -> None:
        """Append the private functions of all entries."""
        for file, made in self.found.items():
            for entry in made.entries:
                attributes = {
                    "function_type": mlir.function_type(entry.types),
                    "sym_name": mlir.text(entry.symbol),
                    "sym_visibility": mlir.text("private"),
                    "link_with": mlir.text(file),
                    "llvm.emit_c_interface": "",
                }
                region = mlir.Region((), Block(top))
                top.op("func.func", regions=[region], attributes=attributes)

    def table(self) -> list[dict[str, Any]]:
        """JSON-ready: for each object its file, source, macros, signatures and entries."""
        return [
            {
                "file": file,
                "op": made.op,
                "source": made.core.source,
                "defines": dict(made.core.defines),
                "optimise": made.core.optimise,
                "stack_bytes": made.core.stack_bytes,
                "signatures": {name: list(types) for name, types in made.core.functions},
                "symbols": {
                    name: symbol(name, made.op, made.core, False) for name, _ in made.core.functions
                },
                "entries": [
                    {
                        "symbol": entry.symbol,
                        "function": entry.function,
                        "moved": list(entry.moved),
                        "forwards": entry.forwards,
                    }
                    for entry in made.entries
                ],
            }
            for file, made in self.found.items()
        ]


def unit(made: Mapping[str, Any]) -> str:
    """The C++ translation unit of an object: the kernel's source and the entries that forward."""
    lines = [f'#include "{made["source"]}"', "#include <cstdint>"]
    for entry in made["entries"]:
        if not entry["forwards"]:
            continue
        moved = entry["moved"]
        pointers, scalars, passed = [], [], []
        for place, kind in enumerate(made["signatures"][entry["function"]]):
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
        lines.append(f'extern "C" void {entry["symbol"]}({taken}) {{')
        lines.append(f"  {entry['function']}({', '.join(passed)});")
        lines.append("}")
    return "\n".join(lines) + "\n"
