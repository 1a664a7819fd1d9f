"""Predicted time of launches, plans and dispatches, derived from the plan alone.

The model walks the step tree: bytes that cross DDR, multiply-accumulates and elements on the
busiest core, iterations and L2 steps that cost a fixed overhead each. Its constants are in the
device; nothing here is about one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegate import rules
from tilegate.device import Device, FunctionCost
from tilegate.plan import Call, Copy, Launch, TilePlan, Visit, walk


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
    """One dispatch: its launches, and the time from its start to its end."""

    us: float
    floor_us: float
    launches: tuple[LaunchTime, ...]


@dataclass(frozen=True)
class Work:
    """What a launch does, counted from its plan: per core, per DDR direction, per loop level."""

    core_us: float
    macs: int
    read_bytes: int
    write_bytes: int
    burst_reads: int
    iterations: int
    l2_steps: int
    cores: int


def measure(launch: Launch, device: Device) -> Work:
    """Count the work of a launch."""
    places = rules.levels(launch)
    per_row = [0.0] * launch.rows
    macs = read = write = bursts = 0
    iterations, l2_steps = 1, 0
    for visit in walk(launch.body):
        step, trips = visit.step, visit.trips
        if isinstance(step, Call):
            us, count = _call_us(step, device) * trips, 0
            for row in range(*(step.rows or (0, launch.rows))):
                per_row[row] += us
                count += launch.cols
            macs += step.macs * trips * count
            continue
        source, target = places[step.src.target], places[step.dst.target]
        elements = 1
        for size in step.sizes:
            elements *= size
        total = elements * trips * rules.instances(step.over, launch)
        if source[0] == 3:
            read += total * source[1]
            bursts += total // _run(step)
            l2_steps = max(l2_steps, trips if target[0] == 2 else 0)
        if target[0] == 3:
            write += total * target[1]
        if 3 in (source[0], target[0]):
            iterations = max(iterations, _outer(visit))
    cores = launch.cols * launch.rows
    return Work(max(per_row), macs, read, write, bursts, iterations, l2_steps, cores)


def predict_launch(launch: Launch, device: Device) -> LaunchTime:
    """Time of a launch alone, without the floor of its dispatch."""
    work = measure(launch, device)
    lost = work.burst_reads * device.constant("burst_bytes")
    ddr = (
        max(
            (work.read_bytes + work.write_bytes + lost) / device.dram_gbps,
            (work.read_bytes + lost) / device.dram_read_gbps,
        )
        / 1e3
    )
    overhead = (
        device.constant("launch_floor_us")
        + work.iterations * device.constant("iteration_us")
        + work.l2_steps * device.constant("l2_step_us")
    )
    busy = max(work.core_us, ddr)
    us = overhead + busy
    names = {"core": work.core_us, "ddr": ddr, "overhead": overhead}
    bound = max(names, key=lambda name: names[name])
    return LaunchTime(
        launch.name,
        us,
        bound,
        work.core_us,
        ddr,
        overhead,
        work.read_bytes,
        work.write_bytes,
        work.macs,
        busy / us if us else 0.0,
    )


def predict_plan(plan: TilePlan, device: Device) -> DispatchTime:
    """Time of one kernel dispatched alone, host to host."""
    return predict_dispatch([plan], device)


def predict_dispatch(plans: Sequence[TilePlan], device: Device) -> DispatchTime:
    """NPU time of one dispatch: every launch after the first reconfigures the array."""
    launches = [launch for plan in plans for launch in plan.launches]
    times = tuple(predict_launch(launch, device) for launch in launches)
    floor = device.constant("dispatch_floor_us") + sum(
        device.constant("reconfigure_us")
        + device.constant("reconfigure_core_us") * launch.cols * launch.rows
        for launch in launches[1:]
    )
    return DispatchTime(floor + sum(t.us for t in times), floor, times)


def _call_us(call: Call, device: Device) -> float:
    cost = device.functions.get(call.function) or device.functions.get("default", FunctionCost())
    us = cost.call_us
    if call.macs and cost.macs_per_us:
        us += call.macs / cost.macs_per_us
    if call.elements and cost.elements_per_us:
        us += call.elements / cost.elements_per_us
    return us


def _run(step: Copy) -> int:
    """Contiguous elements of a copy's DDR side, at least 1."""
    dims = rules.fold(step.sizes, step.src.strides)
    return dims[-1][0] if dims and dims[-1][1] == 1 else 1


def _outer(visit: Visit) -> int:
    """Iterations of the loops that the launch itself runs around a step."""
    count = 1
    for _, trips, level in visit.loops:
        if level == "launch":
            count *= trips
    return count
