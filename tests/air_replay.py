"""Reads an emitted MLIR-AIR module and performs it on numpy arrays. Shares no code with its writer.

DDR, memory tiles and cores hold FP32 (or int32) arrays; external core functions are given by the
caller. What it is strict about: a put waits until every listener has taken it; fresh memory is NaN;
nests that run side by side may not share memory that one of them writes; a launch ends when all of
its nests have ended, with every channel empty, else the replay fails.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DYNAMIC = -(2**63)
Function = Callable[[list[Any]], None]


class ReplayError(Exception):
    """The module does not do what a device could do."""


@dataclass
class Op:
    """One operation: `regions` hold blocks as (argument names, operations)."""

    name: str
    operands: list[str]
    results: list[str]
    regions: list[tuple[list[str], list[Op]]]
    attributes: dict[str, str]
    types: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))

    def walk(self) -> Iterator[Op]:
        yield self
        for _, ops in self.regions:
            for op in ops:
                yield from op.walk()

    def integers(self, name: str) -> list[int]:
        return [int(n) for n in re.findall(r"-?\d+", self.attributes[name].split(":", 1)[-1])]

    def text(self, name: str) -> str:
        return self.attributes[name].strip('"@')


class Parser:
    """Generic form, one block per region."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def module(self) -> Op:
        op = self.op()
        self.space()
        if self.at != len(self.text) or op.name != "builtin.module":
            raise ReplayError(f"not one module: {self.text[self.at : self.at + 40]!r}")
        return op

    def space(self) -> None:
        self.match(r"\s*")

    def match(self, pattern: str) -> str | None:
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def take(self, pattern: str) -> str:
        self.space()
        found = self.match(pattern)
        if found is None:
            raise ReplayError(f"expected {pattern} at {self.text[self.at : self.at + 60]!r}")
        return found

    def sees(self, literal: str) -> bool:
        self.space()
        return self.text.startswith(literal, self.at)

    def names(self) -> list[str]:
        return re.findall(r"%\w+", self.take(r"(%\w+(,\s*)?)*"))

    def op(self) -> Op:
        self.space()
        results = self.names()
        if results:
            self.take("=")
        name = self.take(r'"[\w.]+"').strip('"')
        self.take(r"\(")
        operands = self.names()
        self.take(r"\)")
        regions = []
        while self.sees("({") or (regions and self.sees(",")):
            self.take(r"\(|,")
            regions.append(self.region())
            if self.sees(")"):
                self.take(r"\)")
                break
        attributes = self.dictionary() if self.sees("{") else {}
        self.take(":")
        types = self.take(r"[^\n]*").split("->")
        kinds = tuple(_split(part.strip().removeprefix("(").removesuffix(")")) for part in types)
        if [len(k) for k in kinds] != [len(operands), len(results)]:
            raise ReplayError(f"{name}: types {types} for {operands} and {results}")
        return Op(name, operands, results, regions, attributes, (kinds[0], kinds[1]))

    def region(self) -> tuple[list[str], list[Op]]:
        self.take(r"\{")
        arguments = []
        if self.sees("^"):
            arguments = re.findall(r"%\w+", self.take(r"\^bb0\([^\n]*\):"))
        ops = []
        while not self.sees("}"):
            ops.append(self.op())
        self.take(r"\}")
        return arguments, ops

    def dictionary(self) -> dict[str, str]:
        self.take(r"\{")
        depth, start = 1, self.at
        while depth:
            if self.match(r"->|>=|<=|=="):
                continue
            depth += {"{": 1, "[": 1, "(": 1, "<": 1}.get(self.text[self.at], 0)
            depth -= {"}": 1, "]": 1, ")": 1, ">": 1}.get(self.text[self.at], 0)
            self.at += 1
        found = {}
        for entry in _split(self.text[start : self.at - 1]):
            key, _, value = entry.partition(" = ")
            found[key] = value
        return found


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth, last = [], 0, 0
    for at, sign in enumerate(text):
        if text[at - 1 : at + 1] not in ("->", "=>") and text[at : at + 2] != ">=":
            depth += (sign in "([{<") - (sign in ")]}>")
        if sign == "," and depth == 0:
            parts.append(text[last:at].strip())
            last = at + 1
    return [*parts, text[last:].strip()] if text.strip() else []


Slot = tuple[str, tuple[int, ...]]
Process = Iterator[tuple[str, Slot]]


class Channels:
    """Rendezvous between puts and gets, and the processes that wait for each other."""

    def __init__(self, declared: Mapping[str, Op]) -> None:
        self.declared = declared
        self.slots: dict[Slot, Any] = {}
        self.waiting: dict[tuple[str, Slot], list[Process]] = {}
        self.ready: deque[Process] = deque()

    def listeners(self, name: str, index: tuple[int, ...]) -> list[Slot]:
        channel = self.declared[name]
        size = channel.integers("size")
        if any(not 0 <= i < n for i, n in zip(index, size, strict=True)):
            raise ReplayError(f"@{name}{list(index)} is outside of {size}")
        reach = (
            channel.integers("broadcast_shape") if "broadcast_shape" in channel.attributes else size
        )
        spans = [
            range(whole) if n == 1 else range(i, i + 1)
            for i, n, whole in zip(index, size, reach, strict=True)
        ]
        return [(name, (x, y)) for x in spans[0] for y in spans[1]]

    def wake(self, key: tuple[str, Slot]) -> None:
        self.ready.extend(self.waiting.pop(key, ()))

    def put(self, name: str, index: tuple[int, ...], data: Any) -> Process:
        slots = self.listeners(name, index)
        for slot in slots:
            while slot in self.slots:
                yield ("empty", slot)
        for slot in slots:
            self.slots[slot] = data
            self.wake(("full", slot))
        for slot in slots:
            while self.slots.get(slot) is data:
                yield ("empty", slot)

    def get(self, name: str, index: tuple[int, ...], count: int) -> Iterator[Any]:
        slot = (name, index)
        while slot not in self.slots:
            yield ("full", slot)
        data = self.slots.pop(slot)
        self.wake(("empty", slot))
        if data.size != count:
            raise ReplayError(f"@{name}: {data.size} elements put, {count} taken")
        return data

    def join(self, processes: Sequence[Process]) -> None:
        """Run processes until all have ended."""
        self.ready.extend(processes)
        left = len(processes)
        while self.ready:
            process = self.ready.popleft()
            try:
                key = next(process)
            except StopIteration:
                left -= 1
                continue
            self.waiting.setdefault(key, []).append(process)
        if left or self.slots:
            stuck = sorted({f"{what} @{s[0]}{list(s[1])}" for what, s in self.waiting})
            left_over = sorted(f"@{name}{list(i)}" for name, i in self.slots)
            raise ReplayError(f"no end: waiting for {stuck[:4]}, never taken {left_over[:4]}")


class Replay:
    """One module with the functions that its cores call."""

    def __init__(self, text: str, functions: Mapping[str, Function]) -> None:
        self.module = Parser(text).module()
        ops = self.module.regions[0][1]
        self.channels = Channels({o.text("sym_name"): o for o in ops if o.name == "air.channel"})
        self.functions = functions
        found = [o for o in ops if o.name == "func.func" and o.regions[0][1]]
        if len(found) != 1:
            raise ReplayError(f"{len(found)} functions with a body")
        self.function = found[0]

    def __call__(self, arguments: Sequence[Any]) -> None:
        """Perform the function on flat arrays, in place; launches strictly one after the other."""
        names, ops = self.function.regions[0]
        env: dict[str, Any] = dict(zip(names, arguments, strict=True))
        for op in ops:
            if op.name == "air.launch":
                processes = list(self.hierarchy(op, env))
                self.channels.join(processes)
            elif op.name != "func.return":
                raise ReplayError(f"{op.name} in the function's body")

    def hierarchy(self, op: Op, env: Mapping[str, Any]) -> Iterator[Process]:
        """The processes of a launch, a segment or a herd, the nested ones included."""
        _, n_sizes, _ = op.integers("operandSegmentSizes")
        sizes = [env[name] for name in op.operands[:n_sizes]]
        given = [env[name] for name in op.operands[n_sizes:]]
        names, ops = op.regions[0]
        if op.name == "air.herd":
            for x in range(sizes[0]):
                for y in range(sizes[1]):
                    own = dict(zip(names, (x, y, *sizes, *given), strict=True))
                    yield self.sequence(ops, own)
            return
        inner = dict(zip(names, (*sizes, *given), strict=True))
        used: dict[str, bool] = {}
        for child in ops:
            if child.name in ("scf.for", "air.channel.put", "air.channel.get"):
                _apart(child, used)
                yield self.sequence([child], inner)
            elif child.name in ("air.segment", "air.herd"):
                yield from self.hierarchy(child, inner)
            elif child.name != "memref.dealloc":  # waits for the nests that use it
                for _ in self.step(child, inner):
                    raise ReplayError(f"{child.name} waits in the body of {op.name}")

    def sequence(self, ops: Sequence[Op], env: dict[str, Any]) -> Process:
        for op in ops:
            yield from self.step(op, env)

    def step(self, op: Op, env: dict[str, Any]) -> Process:
        values = [env[name] for name in op.operands]
        match op.name:
            case "arith.constant":
                env[op.results[0]] = (
                    op.integers("value")[0]
                    if ":" not in op.attributes["value"]
                    else int(op.attributes["value"].split(":")[0])
                )
            case "arith.muli":
                env[op.results[0]] = values[0] * values[1]
            case "arith.addi":
                env[op.results[0]] = values[0] + values[1]
            case "arith.index_cast":
                env[op.results[0]] = values[0]
            case "memref.alloc":
                env[op.results[0]] = _fresh(op.types[1][0])
            case "memref.dealloc":
                env[op.operands[0]] = None
            case "scf.for":
                names, body = op.regions[0]
                for trip in range(*values):
                    env[names[0]] = trip
                    yield from self.sequence(body, env)
            case "affine.if":
                if _inside(op.attributes["condition"], values):
                    yield from self.sequence(op.regions[0][1], env)
                else:
                    yield from self.sequence(op.regions[1][1], env)
            case "air.channel.put" | "air.channel.get":
                yield from self.transfer(op, values)
            case "func.call":
                self.functions[op.text("callee")](values)
            case name if name.endswith(("yield", "_terminator")):
                pass
            case _:
                raise ReplayError(f"unknown operation {op.name}")

    def transfer(self, op: Op, values: list[Any]) -> Process:
        side = "src" if op.name.endswith("put") else "dst"
        counts = op.integers("operandSegmentSizes")
        _, n_index, _, n_offsets, n_sizes, n_strides = counts[:6]
        if counts[0] or n_sizes or n_strides or any(counts[6:]):
            raise ReplayError(f"{op.name}: operand segments {counts}")
        index = tuple(values[:n_index])
        memory, rest = values[n_index], values[n_index + 1 :]
        offsets = op.integers(f"static_{side}_offsets")
        dynamic = iter(rest[:n_offsets])
        offsets = [next(dynamic) if o == DYNAMIC else o for o in offsets]
        sizes, strides = (op.integers(f"static_{side}_{what}") for what in ("sizes", "strides"))
        places = np.array([sum(o * s for o, s in zip(offsets, strides, strict=True))])
        for size, stride in zip(sizes, strides, strict=True):
            places = (places[:, None] + np.arange(size) * stride).reshape(-1)
        if memory is None or places.min() < 0 or places.max() >= memory.size:
            raise ReplayError(f"{op.name} @{op.text('chan_name')} leaves its memory")
        if side == "src":
            yield from self.channels.put(op.text("chan_name"), index, memory[places])
        else:
            name = op.text("chan_name")
            memory[places] = yield from self.channels.get(name, index, math.prod(sizes))


def _apart(nest: Op, used: dict[str, bool]) -> None:
    """Nests of one body run side by side: what one writes, no other may touch."""
    own = {name for op in nest.walk() for _, ops in op.regions for o in ops for name in o.results}
    touched: dict[str, bool] = {}
    for op in nest.walk():
        if op.name.startswith("air.channel."):
            memory = op.operands[op.integers("operandSegmentSizes")[1]]
            if memory not in own:
                touched[memory] = touched.get(memory, False) or op.name.endswith("get")
    for memory, written in touched.items():
        if memory in used and (written or used[memory]):
            raise ReplayError(f"{memory}: two nests touch it and nothing makes one wait")
        used[memory] = used.get(memory, False) or written


def _fresh(kind: str) -> Any:
    size, dtype = re.fullmatch(r"memref<(\d+)x(\w+), [12] : i32>", kind).groups()  # type: ignore[union-attr]
    if dtype == "i32":
        return np.full(int(size), -(2**31), np.int32)
    return np.full(int(size), np.nan, np.float32)


def _inside(condition: str, symbols: Sequence[int]) -> bool:
    """`affine_set<()[s0, s1] : (s0 - 2 >= 0, ...)>` at a point."""
    constraints = re.fullmatch(r"affine_set<\(\)\[s0, s1\] : \((.*)\)>", condition)
    if constraints is None:
        raise ReplayError(f"condition {condition}")
    for part in constraints.group(1).split(", "):
        found = re.fullmatch(r"(-?)s([01])(?: ([+-]) (\d+))? (==|>=) 0", part)
        if found is None:
            raise ReplayError(f"constraint {part}")
        sign, symbol, way, number, relation = found.groups()
        value = symbols[int(symbol)] * (-1 if sign else 1)
        value += int(number or 0) * (-1 if way == "-" else 1)
        if not (value == 0 if relation == "==" else value >= 0):
            return False
    return True
