"""Writes MLIR in generic form: values, operations, regions. Knows no dialect."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

INDEX = "index"


@dataclass(frozen=True)
class Value:
    """An SSA value: `%name` of a type."""

    name: str
    type: str


@dataclass(frozen=True)
class Region:
    """One block: its arguments and its operations."""

    arguments: tuple[Value, ...]
    block: Block


class Block:
    """The operations of one block, in order.

    Index constants go to the head of the nearest block that is isolated from above.
    """

    def __init__(self, parent: Block | None = None, isolated: bool = True) -> None:
        self._names: Iterator[int] = parent._names if parent else itertools.count()
        self._home: Block = self if parent is None or isolated else parent._home
        self._constants: dict[tuple[int, str], Value] = {}
        self._lines: list[str] = []

    def inner(self, isolated: bool = False) -> Block:
        """A block to be nested in this one."""
        return Block(self, isolated)

    def value(self, type_: str, stem: str = "") -> Value:
        """A new name, for a block argument or a result."""
        return Value(f"%{stem}{next(self._names)}", type_)

    def constant(self, number: int, type_: str = INDEX) -> Value:
        """The value of an integer constant."""
        home = self._home
        if (number, type_) not in home._constants:
            home._constants[number, type_] = home.value(type_)
        return home._constants[number, type_]

    def op(
        self,
        name: str,
        operands: Sequence[Value] = (),
        results: Sequence[str] = (),
        regions: Sequence[Region] = (),
        attributes: Mapping[str, str] | None = None,
    ) -> list[Value]:
        """Append an operation; its results."""
        values = [self.value(type_) for type_ in results]
        self._lines += _operation(name, operands, values, regions, attributes or {})
        return values

    def lines(self) -> list[str]:
        """The text, constants first."""
        head: list[str] = []
        for (number, type_), value in self._constants.items():
            attributes = {"value": f"{number} : {type_}"}
            head += _operation("arith.constant", (), [value], (), attributes)
        return head + self._lines


def _operation(
    name: str,
    operands: Sequence[Value],
    results: Sequence[Value],
    regions: Sequence[Region],
    attributes: Mapping[str, str],
) -> list[str]:
    left = f"{', '.join(v.name for v in results)} = " if results else ""
    head = f'{left}"{name}"({", ".join(v.name for v in operands)})'
    listed = ", ".join(f"{key} = {text}" if text else key for key, text in attributes.items())
    taken = f" {{{listed}}}" if listed else ""
    kinds = ", ".join(v.type for v in results)
    given = kinds if len(results) == 1 else f"({kinds})"
    tail = f"{taken} : ({', '.join(v.type for v in operands)}) -> {given}"
    if not regions:
        return [head + tail]
    lines = [f"{head} ({{"]
    for number, region in enumerate(regions):
        if number:
            lines.append("}, {")
        if region.arguments:
            listed = ", ".join(f"{v.name}: {v.type}" for v in region.arguments)
            lines.append(f"^bb0({listed}):")
        lines += [f"  {line}" for line in region.block.lines()]
    return [*lines, f"}}){tail}"]


def text(value: str) -> str:
    """A string attribute."""
    return f'"{value}"'


def array(numbers: Sequence[int], width: int = 64) -> str:
    """A dense array attribute of integers."""
    listed = ", ".join(map(str, numbers))
    return f"array<i{width}: {listed}>" if listed else f"array<i{width}>"


def numbers(values: Sequence[int]) -> str:
    """An array attribute of 64-bit integers."""
    return f"[{', '.join(map(str, values))}]"


def memref(elements: int, dtype: str, level: int) -> str:
    """A dense buffer of one dimension in DDR (3), a memory tile (2: L2) or a core (1: L1)."""
    space = {3: "", 2: ", 1 : i32", 1: ", 2 : i32"}[level]
    return f"memref<{elements}x{dtype}{space}>"


def function_type(arguments: Sequence[str]) -> str:
    return f"({', '.join(arguments)}) -> ()"
