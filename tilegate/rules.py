"""The limits of a device as rules over one launch of a plan.

Each rule is one function that yields a `Requirement` for what it looks at, held or not. The ids are
those of the limits: R-L1, R-L2 memories; R-TILE-CH, R-SHIM-CH DMA channels; R-STRIDE, R-WRAP,
R-DIMS, R-LEN, R-REPEAT descriptor fields; R-ALIGN the 4-byte grid; R-HERD the array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tilegate.device import Device, Engine
from tilegate.plan import DTYPE_BYTES, Access, Axis, Copy, Launch, Requirement, Visit, walk

Side: TypeAlias = tuple[Access, int, int]  # access, memory level (3, 2, 1), bytes per element


def check(launch: Launch, device: Device) -> Iterator[Requirement]:
    """Every limit that a launch touches."""
    yield from herd(launch, device)
    yield from l1(launch, device)
    yield from l2(launch, device)
    visits = [
        visit
        for visit in walk(launch.body)
        if isinstance(visit.step, Copy) and visit.step.via == "dma"
    ]
    places = levels(launch)
    yield from core_channels(launch, visits, places, device)
    yield from shim_channels(launch, visits, places, device)
    for visit in visits:
        yield from descriptor(launch, visit, places, device)


def levels(launch: Launch) -> dict[str, tuple[int, int]]:
    """Name of every tensor and buffer -> (memory level, bytes per element)."""
    places = {t.name: (3, DTYPE_BYTES[t.dtype]) for t in launch.tensors}
    places.update({b.name: (b.level, DTYPE_BYTES[b.dtype]) for b in launch.buffers})
    return places


def instances(axes: tuple[Axis, ...], launch: Launch) -> int:
    """How many herd coordinates a set of axes spans."""
    return (launch.cols if "x" in axes else 1) * (launch.rows if "y" in axes else 1)


def herd(launch: Launch, device: Device) -> Iterator[Requirement]:
    for axis, used, most in (
        ("columns", launch.cols, device.cols),
        ("rows", launch.rows, device.rows),
    ):
        hint = f"the array has {device.cols} columns x {device.rows} rows"
        yield Requirement("R-HERD", 1 <= used <= most, used, most, axis, hint)


def l1(launch: Launch, device: Device) -> Iterator[Requirement]:
    used = sum(b.bytes for b in launch.buffers if b.level == 1) + launch.object.stack_bytes
    parts = " + ".join(f"{b.name} {b.bytes}" for b in launch.buffers if b.level == 1)
    hint = f"{launch.name}: {parts} + stack {launch.object.stack_bytes}"
    yield Requirement("R-L1", used <= device.l1_bytes, used, device.l1_bytes, "bytes", hint)


def l2(launch: Launch, device: Device) -> Iterator[Requirement]:
    """All instances must find room in the memory tiles of the herd's columns, largest first."""
    sizes = sorted(
        (b.bytes for b in launch.buffers if b.level == 2 for _ in range(instances(b.per, launch))),
        reverse=True,
    )
    if not sizes:
        return
    free = [device.l2_bytes] * launch.cols
    for size in sizes:
        free[free.index(max(free))] -= size
    used, available = sum(sizes), device.l2_bytes * launch.cols
    if used <= available and min(free) < 0:
        used, available = device.l2_bytes - min(free), device.l2_bytes
    parts = " + ".join(
        f"{b.name} {instances(b.per, launch)} x {b.bytes}" for b in launch.buffers if b.level == 2
    )
    hint = f"{launch.name}: {parts} over {launch.cols} memory tiles"
    yield Requirement("R-L2", min(free) >= 0, used, available, "bytes", hint)


def core_channels(
    launch: Launch, visits: list[Visit], places: dict[str, tuple[int, int]], device: Device
) -> Iterator[Requirement]:
    """Streams into and out of the busiest core; copies into one buffer share its stream."""
    for row in range(launch.rows):
        into: set[str] = set()
        out: set[str] = set()
        for visit in visits:
            step = visit.step
            assert isinstance(step, Copy)
            if step.rows and not step.rows[0] <= row < step.rows[1]:
                continue
            if places[step.dst.target][0] == 1:
                into.add(step.dst.target)
            if places[step.src.target][0] == 1:
                out.add(step.src.target)
        for used, most, way in (
            (into, device.core.channels_in, "in"),
            (out, device.core.channels_out, "out"),
        ):
            hint = f"{launch.name}: {', '.join(sorted(used))}; pack or share streams"
            ok = len(used) <= most
            yield Requirement("R-TILE-CH", ok, len(used), most, f"streams {way} per core", hint)


def shim_channels(
    launch: Launch, visits: list[Visit], places: dict[str, tuple[int, int]], device: Device
) -> Iterator[Requirement]:
    """Streams from and to DDR; those of a memory tile's buffer join into one per column."""
    for way, most in (("in", device.shim.channels_in), ("out", device.shim.channels_out)):
        streams: dict[tuple[str, str], int] = {}
        for visit in visits:
            step = visit.step
            assert isinstance(step, Copy)
            far, near = (step.src, step.dst) if way == "in" else (step.dst, step.src)
            if places[far.target][0] != 3:
                continue
            count = instances(step.over, launch)
            if places[near.target][0] == 2:
                count = min(count, launch.cols)
            key = (far.target, near.target)
            streams[key] = max(streams.get(key, 0), count)
        used, available = sum(streams.values()), most * device.cols
        parts = " + ".join(f"{tensor} {n}" for (tensor, _), n in streams.items())
        hint = f"{launch.name}: {parts}"
        yield Requirement("R-SHIM-CH", used <= available, used, available, f"channels {way}", hint)


def fold(sizes: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """(size, stride) outermost first, with unit sizes dropped and contiguous neighbours merged."""
    folded: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=False):
        if size == 1:
            continue
        if folded and folded[-1][1] == size * stride:
            size *= folded.pop()[0]
        folded.append((size, stride))
    return folded


def descriptor(
    launch: Launch, visit: Visit, places: dict[str, tuple[int, int]], device: Device
) -> Iterator[Requirement]:
    """The fields of the buffer descriptors of one copy, on both of its ends."""
    step = visit.step
    assert isinstance(step, Copy)
    engines = {3: device.shim, 2: device.memtile, 1: device.core}
    total = 1
    for size in step.sizes:
        total *= size
    for access in (step.src, step.dst):
        level, width = places[access.target]
        where = f"{launch.name}: {access.target}"
        dims = fold(step.sizes, access.strides)
        yield from _alignment(where, access, dims, total, width)
        yield from _fields(where, dims, total * width, width, engines[level])
        if level == 3:
            yield from _loops(where, visit, access, width, device)


def _alignment(
    where: str, access: Access, dims: list[tuple[int, int]], total: int, width: int
) -> Iterator[Requirement]:
    run = dims[-1][0] if dims and dims[-1][1] == 1 else 1
    hint = f"{where}: contiguous runs of {run} elements of {width} bytes"
    whole = run * width % 4 == 0
    yield Requirement("R-ALIGN", whole, run * width, "multiple of 4", "bytes", hint)
    if dims and width < 4:
        unit = dims[-1][1] == 1
        hint = f"{where}: innermost stride must be 1 below 32 bits"
        yield Requirement("R-ALIGN", unit, dims[-1][1], 1, "elements", hint)
    steps = [stride for _, stride in dims if stride != 1]
    steps += [abs(c) for _, c in access.offset.terms] + [access.offset.base]
    off = next((s for s in steps if s * width % 4), None)
    if off is not None:
        hint = f"{where}: offsets and strides must fall on 4 bytes"
        yield Requirement("R-ALIGN", False, off * width, "multiple of 4", "bytes", hint)


def _fields(
    where: str, dims: list[tuple[int, int]], total: int, width: int, engine: Engine
) -> Iterator[Requirement]:
    length = total // 4
    yield Requirement(
        "R-LEN", length <= engine.length_words, length, engine.length_words, "words", where
    )
    if len(dims) <= 1 and (not dims or dims[0][1] == 1):
        return  # linear: neither wrap nor step apply
    yield Requirement(
        "R-DIMS", len(dims) <= engine.dimensions, len(dims), engine.dimensions, "dimensions", where
    )
    for place, (size, stride) in enumerate(dims):
        inner = place == len(dims) - 1 and stride == 1
        wrap = size * width // 4 if inner else size
        if place:  # the outermost dimension ends with the length
            yield Requirement("R-WRAP", wrap <= engine.wrap, wrap, engine.wrap, "elements", where)
        if not inner:
            words = stride * width // 4
            yield Requirement(
                "R-STRIDE", words <= engine.step_words, words, engine.step_words, "words", where
            )


def _loops(
    where: str, visit: Visit, access: Access, width: int, device: Device
) -> Iterator[Requirement]:
    """Loops below the launch become descriptor dimensions of the shim: their steps and repeats."""
    coefficients = dict(access.offset.terms)
    repeats = 1
    for name, count, level in visit.loops:
        if level == "launch" or count == 1:
            continue
        words = abs(coefficients.get(name, 0)) * width // 4
        if words == 0:
            repeats *= count
            continue
        hint = f"{where}: {words} words from one step of {name} to the next"
        limit = device.shim.step_words
        yield Requirement("R-STRIDE", words <= limit, words, limit, "words", hint)
    hint = f"{where}: sent {repeats} times"
    ok = _repeatable(repeats, device)
    yield Requirement("R-REPEAT", ok, repeats - 1, device.repeat, "repeats", hint)


def _repeatable(count: int, device: Device) -> bool:
    """A count fits the repeat field, or splits into it and one more descriptor dimension."""
    most = device.repeat + 1
    if count <= most:
        return True
    return any(
        count % factor == 0 and count // factor <= most for factor in range(2, device.shim.wrap + 1)
    )
