"""The streams of a launch: which copies share a channel, and who takes part in each.

A copy between two memories is a put on one side and a get on the other. Copies that fill one
buffer from one level share a stream, as the legality rules count them; streams between DDR and a
memory tile's buffers join into one per column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilegate.errors import UserError
from tilegate.plan import Affine, Copy, Launch, walk
from tilegate.rules import levels

Span = tuple[int, int]


@dataclass(frozen=True)
class Channel:
    """One air.channel: herd columns and rows that it serves, and how it spreads over them.

    `spread_x` and `spread_y` say whether each column or row has a stream of its own; where not, one
    put reaches all of them (`broadcast`) or they take turns (`broadcast` false).
    """

    name: str
    columns: Span
    rows: Span
    spread_x: bool
    spread_y: bool
    broadcast: bool
    cascade: bool

    @property
    def size(self) -> tuple[int, int]:
        width, height = self.columns[1] - self.columns[0], self.rows[1] - self.rows[0]
        return (width if self.spread_x else 1, height if self.spread_y else 1)

    @property
    def reach(self) -> tuple[int, int]:
        """The number of columns and rows where puts arrive."""
        return (self.columns[1] - self.columns[0], self.rows[1] - self.rows[0])

    def index(self, x: int, y: int) -> tuple[int, int]:
        """The stream of a herd coordinate."""
        return (
            x - self.columns[0] if self.spread_x else 0,
            y - self.rows[0] if self.spread_y else 0,
        )


class Channels:
    """All channels of a launch."""

    def __init__(self, launch: Launch, prefix: str) -> None:
        self.launch = launch
        self.levels = {name: level for name, (level, _) in levels(launch).items()}
        members: dict[tuple[object, ...], list[Copy]] = {}
        for visit in walk(launch.body):
            if isinstance(visit.step, Copy):
                members.setdefault(self._key(visit.step), []).append(visit.step)
        self._found: dict[tuple[object, ...], Channel] = {}
        names: set[str] = set()
        for key, copies in members.items():
            channel = self._channel(f"{prefix}_{key[0]}", copies, names)
            names.add(channel.name)
            self._found[key] = channel

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._found.values())

    def of(self, copy: Copy) -> Channel:
        return self._found[self._key(copy)]

    def _key(self, copy: Copy) -> tuple[object, ...]:
        source, target = self.levels[copy.src.target], self.levels[copy.dst.target]
        if copy.via == "cascade":
            return (f"{copy.dst.target}_cascade", copy.src.target, copy.rows)
        near = copy.dst.target if target <= source else copy.src.target
        way = "in" if target <= source else "out"
        return (f"{near}_{way}", source, target, copy.over)

    def _channel(self, name: str, copies: list[Copy], taken: set[str]) -> Channel:
        first = copies[0]
        source, target = self.levels[first.src.target], self.levels[first.dst.target]
        joined = {source, target} == {2, 3} and first.over == ("x", "y")
        into_cores = target == 1 and first.via == "dma"
        while name in taken:
            name += "_"
        spans = [self.spans(copy) for copy in copies]
        columns = (min(s[0][0] for s in spans), max(s[0][1] for s in spans))
        rows = (min(s[1][0] for s in spans), max(s[1][1] for s in spans))
        spread_x, spread_y = "x" in first.over, "y" in first.over and not joined
        if into_cores:
            columns = columns if spread_x else (0, self.launch.cols)
            rows = rows if spread_y else (0, self.launch.rows)
        broadcast = into_cores and not (spread_x and spread_y)
        cascade = first.via == "cascade"
        return Channel(name, columns, rows, spread_x, spread_y, broadcast, cascade)

    def spans(self, copy: Copy) -> tuple[Span, Span]:
        """The columns and rows [lo, hi) that execute a copy.

        Raises UserError for a limit along an axis that receives a broadcast: who would listen?
        """
        into_cores = self.levels[copy.dst.target] == 1
        found = []
        for axis, limit, most in (
            ("x", copy.cols, self.launch.cols),
            ("y", copy.rows, self.launch.rows),
        ):
            low, high = limit or (0, most)
            if axis not in copy.over:
                if limit is not None and into_cores:
                    raise UserError(f"launch {self.launch.name}: a broadcast along {axis} to some")
                high = low + 1
            found.append((low, high))
        return found[0], found[1]

    def instances(self, copy: Copy) -> Iterator[tuple[int, int]]:
        """The herd coordinates that execute a copy, in the plan's order."""
        (left, right), (top, bottom) = self.spans(copy)
        for x in range(left, right):
            for y in range(top, bottom):
                yield x, y


def shift(at: tuple[Affine, Affine]) -> tuple[int, int]:
    """How far a cascade's source lies from its target. Raises UserError where that varies."""
    wanted = ((("x", 1),), (("y", 1),))
    if (at[0].terms, at[1].terms) != wanted:
        raise UserError("a cascade comes from a neighbour at a fixed distance")
    return at[0].base, at[1].base
