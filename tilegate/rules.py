"""The limits of a device as rules over one launch of a plan.

Each rule is one function that yields a `Requirement` for what does not hold. The ids are
those of the limits: R-L1, R-L2 memories; R-TILE-CH, R-SHIM-CH DMA channels; R-STRIDE, R-WRAP,
R-DIMS, R-LEN, R-REPEAT descriptor fields; R-ALIGN the 4-byte grid; R-HERD the array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tilegate.device import Device, Engine
from tilegate.plan import DTYPE_BYTES, Access, Axis, Copy, Launch, Requirement, Visit, walk


def broken(launch: Launch, device: Device) -> Iterator[Requirement]:
    """Every limit that a launch breaks, the cheapest to find first."""
    yield from herd(launch, device)
    yield from l1(launch, device)
    yield from l2(launch, device)
    visits = [
        (visit, visit.step)
        for visit in walk(launch.body)
        if isinstance(visit.step, Copy) and visit.step.via == "dma"
    ]
    places = levels(launch)
    for visit, step in visits:
        yield from descriptor(launch, visit, step, places, device)
    copies = [step for _, step in visits]
    yield from core_channels(launch, copies, places, device)
    yield from shim_channels(launch, copies, places, device)


def levels(launch: Launch) -> dict[str, tuple[int, int]]:
    """Name of every tensor and buffer -> (memory level, bytes per element)."""
    places = {t.name: (3, DTYPE_BYTES[t.dtype]) for t in launch.tensors}
    places.update({b.name: (b.level, DTYPE_BYTES[b.dtype]) for b in launch.buffers})
    return places


def instances(axes: tuple[Axis, ...], launch: Launch) -> int:
    """How many herd coordinates a set of axes spans."""
    return (launch.cols if "x" in axes else 1) * (launch.rows if "y" in axes else 1)


def executions(step: Copy, launch: Launch) -> int:
    """How many herd coordinates run a copy: those in `over`, within its rows and columns."""
    low_x, high_x = step.cols or (0, launch.cols)
    low_y, high_y = step.rows or (0, launch.rows)
    return (high_x - low_x if "x" in step.over else 1) * (high_y - low_y if "y" in step.over else 1)


def streams(copy: Copy, launch: Launch) -> int:
    """How many herd coordinates execute a copy, one stream each."""
    low, high = copy.cols or (0, launch.cols)
    bottom, top = copy.rows or (0, launch.rows)
    return (high - low if "x" in copy.over else 1) * (top - bottom if "y" in copy.over else 1)


def herd(launch: Launch, device: Device) -> Iterator[Requirement]:
    hint = f"the array has {device.cols} columns x {device.rows} rows"
    if not 1 <= launch.cols <= device.cols:
        yield Requirement("R-HERD", False, launch.cols, device.cols, "columns", hint)
    if not 1 <= launch.rows <= device.rows:
        yield Requirement("R-HERD", False, launch.rows, device.rows, "rows", hint)


def l1(launch: Launch, device: Device) -> Iterator[Requirement]:
    used = sum(b.bytes for b in launch.buffers if b.level == 1) + launch.object.stack_bytes
    if used <= device.l1_bytes:
        return
    parts = " + ".join(f"{b.name} {b.bytes}" for b in launch.buffers if b.level == 1)
    hint = f"{launch.name}: {parts} + stack {launch.object.stack_bytes}"
    yield Requirement("R-L1", False, used, device.l1_bytes, "bytes", hint)


def l2(launch: Launch, device: Device) -> Iterator[Requirement]:
    """All instances must find room in the memory tiles of the herd's columns, largest first."""
    buffers = [b for b in launch.buffers if b.level == 2]
    sizes = sorted(
        (b.bytes for b in buffers for _ in range(instances(b.per, launch))), reverse=True
    )
    columns = max(1, min(launch.cols, device.cols))
    free = [device.l2_bytes] * columns
    for size in sizes:
        free[free.index(max(free))] -= size
    if min(free) >= 0:
        return
    used, available = sum(sizes), device.l2_bytes * columns
    if used <= available:  # the sum fits but the pieces do not
        used, available = device.l2_bytes - min(free), device.l2_bytes
    parts = " + ".join(f"{b.name} {instances(b.per, launch)} x {b.bytes}" for b in buffers)
    hint = f"{launch.name}: {parts} over {columns} memory tiles"
    yield Requirement("R-L2", False, used, available, "bytes", hint)


def core_channels(
    launch: Launch, copies: list[Copy], places: dict[str, tuple[int, int]], device: Device
) -> Iterator[Requirement]:
    """Streams into and out of the busiest core; copies into one buffer share its stream."""
    for way, most in (("in", device.core.channels_in), ("out", device.core.channels_out)):
        for row in range(launch.rows):
            into = {
                target
                for copy in copies
                if copy.rows is None or copy.rows[0] <= row < copy.rows[1]
                for target in ((copy.dst if way == "in" else copy.src).target,)
                if places[target][0] == 1
            }
            if len(into) > most:
                hint = f"{launch.name}: {', '.join(sorted(into))}; pack or share streams"
                unit = f"streams {way} per core"
                yield Requirement("R-TILE-CH", False, len(into), most, unit, hint)
                break


def shim_channels(
    launch: Launch, copies: list[Copy], places: dict[str, tuple[int, int]], device: Device
) -> Iterator[Requirement]:
    """Streams from and to DDR; those of a memory tile's buffer join into one per column."""
    for way, most in (("in", device.shim.channels_in), ("out", device.shim.channels_out)):
        found: dict[tuple[str, str], int] = {}
        for copy in copies:
            far, near = (copy.src, copy.dst) if way == "in" else (copy.dst, copy.src)
            if places[far.target][0] != 3:
                continue
            count = streams(copy, launch)
            if places[near.target][0] == 2:
                count = min(count, launch.cols)
            key = (far.target, near.target)
            found[key] = max(found.get(key, 0), count)
        used, available = sum(found.values()), most * device.cols
        if used > available:
            parts = " + ".join(f"{tensor} {n}" for (tensor, _), n in found.items())
            hint = f"{launch.name}: {parts}"
            yield Requirement("R-SHIM-CH", False, used, available, f"channels {way}", hint)


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
    launch: Launch, visit: Visit, step: Copy, places: dict[str, tuple[int, int]], device: Device
) -> Iterator[Requirement]:
    """The fields of the buffer descriptors of one copy, on both of its ends."""
    engines = {3: device.shim, 2: device.memtile, 1: device.core}
    total = 1
    for size in step.sizes:
        total *= size
    for access in (step.src, step.dst):
        level, width = places[access.target]
        dims = fold(step.sizes, access.strides)
        for found in _fields(dims, total * width, width, engines[level]):
            yield _at(launch, access, found)
        for found in _alignment(access, dims, width):
            yield _at(launch, access, found)
        if level == 3:
            for found in _loops(visit, access, width, device):
                yield _at(launch, access, found)


def _at(launch: Launch, access: Access, found: Requirement) -> Requirement:
    """The requirement with the place where it does not hold."""
    where = f"{launch.name}: {access.target}"
    hint = f"{where}: {found.hint}" if found.hint else where
    return dataclasses.replace(found, hint=hint)


def _alignment(access: Access, dims: list[tuple[int, int]], width: int) -> Iterator[Requirement]:
    run = dims[-1][0] if dims and dims[-1][1] == 1 else 1
    if run * width % 4:
        hint = f"contiguous runs of {run} elements of {width} bytes"
        yield Requirement("R-ALIGN", False, run * width, "multiple of 4", "bytes", hint)
    if dims and width < 4 and dims[-1][1] != 1:
        hint = "innermost stride must be 1 below 32 bits"
        yield Requirement("R-ALIGN", False, dims[-1][1], 1, "elements", hint)
    steps = [stride for _, stride in dims if stride != 1]
    steps += [abs(c) for _, c in access.offset.terms] + [access.offset.base]
    off = next((s for s in steps if s * width % 4), None)
    if off is not None:
        hint = "offsets and strides must fall on 4 bytes"
        yield Requirement("R-ALIGN", False, off * width, "multiple of 4", "bytes", hint)


def _fields(
    dims: list[tuple[int, int]], total: int, width: int, engine: Engine
) -> Iterator[Requirement]:
    length = total // 4
    if length > engine.length_words:
        yield Requirement("R-LEN", False, length, engine.length_words, "words")
    if len(dims) <= 1 and (not dims or dims[0][1] == 1):
        return  # linear: neither wrap nor step apply
    if len(dims) > engine.dimensions:
        yield Requirement("R-DIMS", False, len(dims), engine.dimensions, "dimensions")
    for place, (size, stride) in enumerate(dims):
        inner = place == len(dims) - 1 and stride == 1
        wrap = size * width // 4 if inner else size
        if place and wrap > engine.wrap:  # the outermost dimension ends with the length
            yield Requirement("R-WRAP", False, wrap, engine.wrap, "elements")
        words = stride * width // 4
        if not inner and words > engine.step_words:
            yield Requirement("R-STRIDE", False, words, engine.step_words, "words")


def _loops(visit: Visit, access: Access, width: int, device: Device) -> Iterator[Requirement]:
    """Loops below the launch become descriptor dimensions of the shim: their steps and repeats."""
    coefficients = dict(access.offset.terms)
    repeats = 1
    for name, count, level in visit.loops:
        if level == "launch" or count == 1:
            continue
        words = abs(coefficients.get(name, 0)) * width // 4
        if words == 0:
            repeats *= count
        elif words > device.shim.step_words:
            hint = f"from one step of {name} to the next"
            yield Requirement("R-STRIDE", False, words, device.shim.step_words, "words", hint)
    if not _repeatable(repeats, device):
        hint = f"sent {repeats} times"
        yield Requirement("R-REPEAT", False, repeats - 1, device.repeat, "repeats", hint)


def _repeatable(count: int, device: Device) -> bool:
    """A count fits the repeat field, or splits into it and one more descriptor dimension."""
    most = device.repeat + 1
    if count <= most:
        return True
    return any(
        count % factor == 0 and count // factor <= most for factor in range(2, device.shim.wrap + 1)
    )
