"""Predicted time of launches, plans and dispatches, derived from the plan alone.

`measure` reduces a launch to a few *stages*: loop bodies that load from DDR while the cores work on
what was loaded before, and the serial remainder of each outer iteration. `price` turns them into
microseconds with the constants of a device. Nothing here is about one shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tilegate import rules
from tilegate.device import Device, FunctionCost
from tilegate.plan import Access, Call, Copy, Launch, Loop, Step, TilePlan, walk

Regime = Literal["xclbin", "elf"]
NO_COST = FunctionCost()
BANK_BYTES = 4096


@dataclass(frozen=True)
class Calls:
    """`count` calls of one core function on the busiest core, all alike."""

    function: str
    count: int
    macs: int
    elements: int
    outputs: int


@dataclass(frozen=True)
class Stage:
    """One loop body, run `trips` times; bytes and calls are per trip, bytes of the whole array.

    `kind`: `l1` DDR streams straight into the cores and overlaps with them, `l2` a step of a loop
    that fills the memory tiles (overlaps too), `panel` a whole iteration that fills a memory tile
    without ping-pong, `serial` what an outer iteration does outside of its stages.
    `column_bursts` counts separate runs of streams that differ from column to column, `bursts` the
    most runs that one stream of another kind sends.
    """

    kind: Literal["l1", "l2", "panel", "serial"]
    trips: int
    read_bytes: int = 0
    write_bytes: int = 0
    column_bursts: int = 0
    bursts: int = 0
    calls: tuple[Calls, ...] = ()


@dataclass(frozen=True)
class Work:
    """A launch reduced to what its time depends on."""

    name: str
    cores: int
    stages: tuple[Stage, ...]
    rounds: int  # outer iterations, each with a serial part
    alone: bool  # the outermost loop runs once: nothing is fetched ahead for a next round
    macs: int
    functions: tuple[str, ...]


@dataclass(frozen=True)
class LaunchTime:
    """One launch: time, what bounds it, and what it moves and computes (whole array)."""

    name: str
    us: float
    bound: str
    core_us: float
    ddr_us: float
    overhead_us: float
    read_bytes: int
    write_bytes: int
    macs: int
    utilisation: float


@dataclass(frozen=True)
class DispatchTime:
    """One dispatch: `us` on the device, of which `configured_us` load configurations.

    `floor_us` is what the host needs on top to start it and to see it end.
    """

    us: float
    floor_us: float
    configured_us: float
    launches: tuple[LaunchTime, ...]

    @property
    def host_us(self) -> float:
        """Time from host to host."""
        return self.us + self.floor_us


def measure(launch: Launch) -> Work:
    """Count the work of a launch, independent of any device's rates."""
    stages = tuple(_stages(launch, launch.body, 1, "launch"))
    macs = 0
    for visit in walk(launch.body):
        if isinstance(visit.step, Call) and visit.step.macs:
            low, high = visit.step.rows or (0, launch.rows)
            macs += visit.step.macs * visit.trips * launch.cols * (high - low)
    first = launch.body[0] if launch.body else None
    alone = isinstance(first, Loop) and first.count == 1
    rounds = max((s.trips for s in stages if s.kind == "serial"), default=1)
    functions = tuple(_variant(launch, name) for name, _ in launch.object.functions)
    cores = launch.cols * launch.rows
    return Work(launch.name, cores, stages, rounds, alone, macs, functions)


def _stages(launch: Launch, body: Sequence[Step], trips: int, level: str) -> Iterator[Stage]:
    """The stages of a loop body that runs `trips` times."""
    loops = [s for s in body if isinstance(s, Loop) and _fetches(launch, s)]
    if not loops:
        yield _stage(launch, body, trips, level)
        return
    rest = tuple(step for step in body if step not in loops)
    if rest:
        yield _stage(launch, rest, trips, "serial")
    for loop in loops:
        yield from _stages(launch, loop.body, trips * loop.count, loop.level)


def _fetches(launch: Launch, step: Step) -> bool:
    """Whether a step moves data from or to DDR, vectors sent to all cores aside."""
    tensors = {t.name for t in launch.tensors}
    return any(
        isinstance(v.step, Copy)
        and v.step.over
        and tensors & {v.step.src.target, v.step.dst.target}
        for v in walk((step,))
    )


def _stage(launch: Launch, body: Sequence[Step], trips: int, level: str) -> Stage:
    places = rules.levels(launch)
    read = write = column_bursts = bursts = 0
    calls: list[Calls] = []
    through_l2 = False
    for visit in walk(tuple(body)):
        step, times = visit.step, visit.trips
        if isinstance(step, Call):
            calls.append(_calls(launch, step, times))
            continue
        source, target = places[step.src.target][0], places[step.dst.target][0]
        if 3 not in (source, target):
            continue
        elements, run = _extent(step)
        streams = rules.executions(step, launch)
        size = elements * times * streams * places[step.src.target][1]
        if target == 3:
            write += size
            continue
        read += size
        through_l2 = through_l2 or target == 2
        if step.over == ("x",):
            column_bursts += elements // run * times * streams
        elif step.over:
            bursts = max(bursts, elements // run * times)
    kind: Literal["l1", "l2", "panel", "serial"] = "l1"
    if level == "serial":
        kind = "serial"
    elif through_l2:
        kind = "l2" if level == "segment" else "panel"
    return Stage(kind, trips, read, write, column_bursts, bursts, tuple(calls))


def _calls(launch: Launch, call: Call, times: int) -> Calls:
    """A call with the size of the buffer that it updates: its last one that is not const."""
    types = dict(launch.object.functions).get(call.function, ())
    updated = ""
    for place, arg in enumerate(call.args):
        constant = place < len(types) and types[place].startswith("const")
        if isinstance(arg, Access) and not constant:
            updated = arg.target
    outputs = next((b.elements for b in launch.buffers if b.name == updated), 0)
    return Calls(_variant(launch, call.function), times, call.macs, call.elements, outputs)


def _variant(launch: Launch, function: str) -> str:
    """The function with the macros that are switched on, `name.macro`, a key of its cost."""
    on = sorted(name.lower() for name, value in launch.object.defines if value == 1)
    return ".".join((function, *on))


def _extent(step: Copy) -> tuple[int, int]:
    """Elements of a copy, and the length of a contiguous run on its source."""
    elements = 1
    for size in step.sizes:
        elements *= size
    dims = rules.fold(step.sizes, step.src.strides)
    run = dims[-1][0] if dims and dims[-1][1] == 1 else 1
    return elements, run


def price(work: Work, device: Device, regime: Regime = "xclbin") -> LaunchTime:
    """Time of a launch on a device, without floors and reconfiguration."""
    total = sum(_function(name, device).launch_us for name in work.functions)
    if any(stage.kind == "l1" for stage in work.stages):
        total += device.constant("stream_us")
    core = ddr = 0.0
    for stage in work.stages:
        busy, moved, extra = _stage_us(stage, device)
        core += busy * stage.trips
        ddr += moved * stage.trips
        overlapped = stage.kind in ("l1", "l2")
        total += ((max(busy, moved) if overlapped else busy + moved) + extra) * stage.trips
        if work.alone and stage.kind == "l2":
            for cost in (_function(name, device) for name in work.functions):
                total += (cost.alone_us + cost.alone_fill * min(busy, moved)) * work.rounds
    if regime == "elf":
        total *= math.prod(_function(name, device).elf for name in work.functions)
    read = sum(s.read_bytes * s.trips for s in work.stages)
    write = sum(s.write_bytes * s.trips for s in work.stages)
    overhead = max(0.0, total - max(core, ddr))
    shares = {"core": core, "ddr": ddr, "overhead": overhead}
    bound = max(shares, key=lambda name: shares[name])
    used = max(core, ddr) / total if total else 0.0
    return LaunchTime(work.name, total, bound, core, ddr, overhead, read, write, work.macs, used)


def _stage_us(stage: Stage, device: Device) -> tuple[float, float, float]:
    """(core, DDR, overhead) microseconds of one trip."""
    constant = device.constant
    core = sum(_calls_us(c, device) for c in stage.calls)
    lost = stage.column_bursts * constant("burst_bytes")
    if stage.kind == "serial":
        moved = (stage.read_bytes + lost) / _rate(device, "read_share")
        moved += stage.write_bytes / _rate(device, "drain_share")
        return core, moved, 0.0
    if stage.kind == "panel":
        moved = stage.read_bytes / _rate(device, "read_share")
        return core, moved, constant("panel_us")
    if stage.kind == "l1":
        moved = (stage.read_bytes + stage.write_bytes) / (device.dram_gbps * 1e3)
        return core, moved, 0.0
    moved = (stage.read_bytes + lost) / _rate(device, "fill_share")
    moved = max(moved, stage.bursts * constant("burst_us"))
    return core, moved, constant("l2_step_us")


def _rate(device: Device, share: str) -> float:
    """Bytes per microsecond of a kind of traffic, a share of the full bandwidth of DDR."""
    return device.dram_gbps * device.constant(share) * 1e3


def _calls_us(calls: Calls, device: Device) -> float:
    cost = _function(calls.function, device)
    us = cost.call_us
    for amount, rate in (
        (calls.macs, cost.macs_per_us),
        (calls.elements, cost.elements_per_us),
        (calls.outputs, cost.outputs_per_us),
    ):
        us += amount / rate if rate else 0.0
    shared = calls.outputs * 2 % BANK_BYTES == 0
    return us * calls.count * (cost.conflict if shared else 1.0)


def _function(key: str, device: Device) -> FunctionCost:
    """The cost of `name.macro...`: of the first `name.macro` that has one, else of `name`."""
    name, *macros = key.split(".")
    for choice in (*(f"{name}.{macro}" for macro in macros), name, "default"):
        if choice in device.functions:
            return device.functions[choice]
    return NO_COST


def predict_launch(launch: Launch, device: Device, regime: Regime = "xclbin") -> LaunchTime:
    """Time of a launch without the floor of its dispatch or its reconfiguration."""
    return price(measure(launch), device, regime)


def predict_plan(plan: TilePlan, device: Device) -> DispatchTime:
    """Time of one kernel dispatched alone: more than one launch needs an ELF."""
    return predict_dispatch([plan], device, "xclbin" if len(plan.launches) == 1 else "elf")


def predict_dispatch(
    plans: Sequence[TilePlan], device: Device, regime: Regime = "elf"
) -> DispatchTime:
    """Time of one dispatch.

    In an `elf` every launch reconfigures the array, the more the more cores it covers; an `xclbin`
    is loaded before and holds a single launch, so that each of several is a dispatch of its own.
    """
    return price_dispatch([measure(x) for plan in plans for x in plan.launches], device, regime)


def price_dispatch(works: Sequence[Work], device: Device, regime: Regime) -> DispatchTime:
    """Time of the launches of a dispatch, with its floors.

    A generation without ELF flow runs several launches as so many dispatches in turn, and each
    turn configures the array anew.
    """
    apart = device.binary == "xclbin" and len(works) > 1
    if device.binary == "xclbin":
        regime = "xclbin"
    times = tuple(price(work, device, regime) for work in works)
    dispatches, configured = len(works), 0.0
    if regime == "elf" or apart:
        configured = sum(reconfigure_us(work, device) for work in works)
    if regime == "elf":
        dispatches = 1
    floor = device.constant("dispatch_floor_us") * dispatches
    return DispatchTime(configured + sum(t.us for t in times), floor, configured, times)


def reconfigure_us(work: Work, device: Device) -> float:
    """Time to load a launch's configuration inside an ELF."""
    return device.constant("reconfigure_core_us") * work.cores


def host_us(device: Device, activation_bytes: int) -> float:
    """What the host adds to one dispatch of a model: starting it, and handling its activations."""
    start = device.constant("dispatch_floor_us") + device.constant("host_dispatch_us")
    return start + activation_bytes / (device.constant("host_gbps") * 1e3)
