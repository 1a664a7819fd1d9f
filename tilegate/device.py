"""A device as plain data: its limits, its rates and its floors. The figures are in conf/device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tilegate.errors import UserError, nearest

ROOT = Path(__file__).resolve().parent.parent / "conf" / "device"


@dataclass(frozen=True)
class Engine:
    """The data movers of one kind of tile; sizes in 32-bit words, counts per tile."""

    channels_in: int
    channels_out: int
    step_words: int
    wrap: int
    length_words: int
    dimensions: int


@dataclass(frozen=True)
class FunctionCost:
    """Time of one core function.

    Per call: `call_us`, its multiply-accumulates, the elements it touches and the elements of the
    buffer it updates, each over its rate (a rate of 0: no such term). `launch_us` falls due once
    in a launch that uses the function. `elf` scales a launch that uses it inside an ELF.
    Where the outermost loop runs only once, nothing is fetched ahead for its next round: each outer
    iteration then costs `alone_us` and `alone_fill` times the shorter of compute and refill more.
    A buffer of a whole number of 4 KiB shares a memory bank with the operands: `conflict` scales
    the calls that update one.
    `name.macro` is the function compiled with a macro on; it takes over what it does not state.
    """

    call_us: float = 0.0
    macs_per_us: float = 0.0
    elements_per_us: float = 0.0
    outputs_per_us: float = 0.0
    launch_us: float = 0.0
    elf: float = 1.0
    alone_us: float = 0.0
    alone_fill: float = 0.0
    conflict: float = 1.0


@dataclass(frozen=True)
class Device:
    """One NPU. Times in microseconds, bandwidths in GB/s (1e9), sizes in bytes."""

    name: str
    backend: Literal["emulated", "xrt"]
    target: str
    arch: str
    binary: Literal["elf", "xclbin"]
    block_float: bool
    pci: tuple[str, ...]
    contexts: int
    toolchain: str
    cols: int
    rows: int
    l1_bytes: int
    l2_bytes: int
    repeat: int
    shim: Engine
    memtile: Engine
    core: Engine
    dram_gbps: float
    timing: Mapping[str, float] = field(default_factory=dict)
    functions: Mapping[str, FunctionCost] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Device:
        """Build from the mapping of a conf/device file. Raises UserError for a wrong key."""
        known = {f.name for f in dataclasses.fields(cls)}
        for key in raw:
            if key not in known:
                raise UserError(f"device: unknown key {key!r}; {nearest(str(key), known)}")
        data = dict(raw)
        try:
            for tile in ("shim", "memtile", "core"):
                data[tile] = Engine(**data[tile])
            costs = data.get("functions", {})
            data["pci"] = tuple(data["pci"])
            data["functions"] = {
                name: FunctionCost(**{**costs.get(name.partition(".")[0], {}), **cost})
                for name, cost in costs.items()
            }
            data["timing"] = {name: float(us) for name, us in data.get("timing", {}).items()}
            return cls(**data)
        except (KeyError, TypeError) as error:
            raise UserError(f"device: {error}") from error

    def constant(self, name: str) -> float:
        """A constant of the timing model. Raises UserError where the device does not state it."""
        try:
            return self.timing[name]
        except KeyError:
            raise UserError(f"device {self.name}: no timing.{name}") from None


@functools.cache
def load(name: str = "npu2") -> Device:
    """The device of `conf/device/<name>.yaml`, for use without a composed configuration."""
    return Device.from_dict(_read(name))


def _read(name: str) -> dict[str, Any]:
    """The mapping of a device file over those that its `defaults` name."""
    import yaml

    path = ROOT / f"{name}.yaml"
    if not path.exists():
        raise UserError(
            f"no device {name!r}; {nearest(name, (p.stem for p in ROOT.glob('*.yaml')))}"
        )
    with path.open() as stream:
        raw = dict(yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    merged: dict[str, Any] = {}
    for base in raw.pop("defaults", ()):
        if base != "_self_":
            merged = _over(merged, _read(base))
    return _over(merged, raw)


def _over(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `top`; groups of both are merged, as Hydra does."""
    merged = dict(base)
    for name, value in top.items():
        old = merged.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = _over(old, value) if both else value  # type: ignore[arg-type]
    return merged
