"""Fit the constants of the timing model to the published measurements, and say how well they hold.

    python benchmarks/fit_timing.py            errors of conf/device/npu2.yaml as it stands
    python benchmarks/fit_timing.py --fit      fit, print the constants and the errors
    python benchmarks/fit_timing.py --write    fit, and write the constants into the file
    python benchmarks/fit_timing.py --loso     fit, also leaving one shape (or model) out at a time
    python benchmarks/fit_timing.py --report   the same, and write the errors into docs/twin.md

Errors are |predicted / measured - 1| as median / p90 / max. The fit minimises a robust sum of log
ratios by damped least squares on the logarithms of the constants. Repeats of one kernel on hardware
differ by 1 to 11 %, so nothing far below a 3 % median would be honest.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilegate import device as devices
from tilegate import measured, timing
from tilegate.device import Device, FunctionCost
from tilegate.published import Published

PAGE = Path(__file__).resolve().parent.parent / "docs" / "twin.md"
MARKS = ("<!-- errors of the fit -->", "<!-- end -->")
SCALE = 0.03  # errors below the noise of the measurements count quadratically, above it linearly


@dataclass(frozen=True)
class Row:
    """One measurement with its plan reduced to work."""

    id: str
    shape: str
    us: float
    regime: str
    works: tuple[timing.Work, ...]

    def predict(self, device: Device) -> float:
        if self.regime == "elf-insitu":  # the slope of replicated launches: no dispatch floor
            bodies = sum(timing.price(w, device, "elf").us for w in self.works)
            return bodies + sum(timing.reconfigure_us(w, device) for w in self.works)
        regime: timing.Regime = "elf" if self.regime in ("elf", "dispatch") else "xclbin"
        time = timing.price_dispatch(self.works, device, regime)
        return time.us if self.regime == "dispatch" else time.host_us


@dataclass(frozen=True)
class Group:
    """Rows fitted together and the constants that they determine, as dotted names."""

    ops: tuple[str, ...]
    names: tuple[str, ...]
    by_shape: float = 0.0  # weight of a row: the number of rows of its shape to the minus this
    regimes: tuple[str, ...] = ("xclbin", "xclbin?", "elf", "elf-insitu")
    prior: Mapping[str, float] = field(default_factory=dict)  # start, where not the device's value
    hold: float = 2e-4  # how strongly a constant keeps to where it starts
    scored: str = ""  # only rows whose id starts so count for its errors
    by: str = "shape"  # what is left out


GROUPS = {
    "gemm": Group(
        ("gemm",),
        (
            "timing.fill_share",
            "timing.burst_bytes",
            "timing.burst_us",
            "timing.l2_step_us",
            "timing.drain_share",
            "functions.gemm_matmul.alone_us",
            "functions.gemm_matmul.alone_fill",
            "functions.gemm_matmul.call_us",
            "functions.gemm_matmul.outputs_per_us",
            "functions.gemm_matmul.accumulate_bf16.call_us",
            "functions.gemm_matmul.accumulate_bf16.macs_per_us",
            "functions.gemm_matmul.accumulate_bf16.outputs_per_us",
            "functions.gemm_drain.elements_per_us",
            "timing.dispatch_floor_us",
        ),
    ),
    "gemv": Group(
        ("gemv",),
        (
            "timing.panel_us",
            "functions.gemv_rows.macs_per_us",
            "functions.gemv_rows.call_us",
            "functions.gemv_rows.launch_us",
        ),
    ),
    "streaming": Group(
        ("eltwise_add", "silu_mul", "rope", "rmsnorm", "gelu", "layernorm", "bias_add"),
        (
            "dram_gbps",
            "timing.stream_us",
            "functions.add_tile.elements_per_us",
            "functions.silu_mul_tile.elements_per_us",
            "functions.rope_row.call_us",
            "functions.rope_row.elements_per_us",
            "functions.rms_norm_row.call_us",
            "functions.rms_norm_row.elements_per_us",
            "functions.rms_norm_row.conflict",
            "functions.gelu_tile.elements_per_us",
            "functions.layer_norm_row.elements_per_us",
        ),
        by_shape=0.5,
    ),
    "flash_attention": Group(
        ("flash_attention",),
        (
            "functions.fa_begin.launch_us",
            "functions.fa_begin.elements_per_us",
            "functions.fa_finish.causal.elements_per_us",
            "functions.fa_scores.call_us",
            "functions.fa_accumulate.outputs_per_us",
        ),
        prior={
            "functions.fa_begin.launch_us": 600.0,
            "functions.fa_begin.elements_per_us": 140.0,
            "functions.fa_finish.causal.elements_per_us": 280.0,
            "functions.fa_scores.call_us": 8.0,  # 4096 exponentials at the rate of SiLU
            "functions.fa_accumulate.outputs_per_us": 2500.0,
        },
        hold=5e-3,
    ),
    "dispatch": Group(
        ("dispatch", "gemm", "gelu", "layernorm", "bias_add"),
        (
            "timing.reconfigure_core_us",
            "functions.gemv_rows.elf",
            "functions.fa_begin.elf",
        ),
        regimes=("dispatch", "elf-insitu"),
        scored="dispatch",
    ),
    "model": Group(("model",), ("timing.host_dispatch_us", "timing.host_gbps"), by="model"),
}


def rows_of(ops: Sequence[str], published: Published) -> list[Row]:
    """The rows of some ops that are fit to compare with."""
    found = []
    for raw in published.records:
        wanted = raw["op"] in ops and raw["timing"] and raw.get("latency_us")
        if not wanted or raw["role"] in measured.NOT_FITTED:
            continue
        if raw["op"] == "dispatch":
            found += _dispatch(raw, published)
            continue
        plan = measured.plan(raw)
        assert plan is not None
        shape = "x".join(
            str(raw[k]) for k in ("M", "K", "N", "rows", "head_dim", "lq", "dk") if k in raw
        )
        works = tuple(timing.measure(launch) for launch in plan.launches)
        found.append(
            Row(raw["id"], f"{raw['op']} {shape}", raw["latency_us"], raw["regime"], works)
        )
    return found


def _dispatch(raw: Mapping[str, Any], published: Published) -> list[Row]:
    """A dispatch of a published decoder whose time on the NPU was published."""
    if raw["model"] not in published.models or raw["latency_kind"] != "npu_run":
        return []
    works = published.dispatch(raw["dispatch"], raw["model"], raw["phase"])
    return [Row(raw["id"], raw["model"], raw["latency_us"], "dispatch", works)]


def get(device: Device, name: str) -> float:
    """The constant of a dotted name."""
    group, _, rest = name.partition(".")
    if group == "timing":
        return device.timing[rest]
    if group == "functions":
        function, _, field = rest.rpartition(".")
        return float(getattr(device.functions[function], field))
    return float(getattr(device, name))


def put(device: Device, values: Mapping[str, float]) -> Device:
    """The device with other constants."""
    constants, functions = dict(device.timing), dict(device.functions)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        group, _, rest = name.partition(".")
        if group == "timing":
            constants[rest] = value
        elif group == "functions":
            function, _, field = rest.rpartition(".")
            old = functions.get(function, FunctionCost())
            functions[function] = dataclasses.replace(old, **{field: value})
        else:
            fields[name] = value
    return dataclasses.replace(device, timing=constants, functions=functions, **fields)


def fit(device: Device, rows: Sequence[Row], group: Group, rounds: int = 80) -> Device:
    """Constants that explain the rows best, starting from those of the device."""
    target = np.log([row.us for row in rows])
    shapes = Counter(row.shape for row in rows)
    share = np.array([shapes[row.shape] ** -group.by_shape for row in rows])
    names = group.names
    known = {name: group.prior.get(name, get(device, name)) for name in names}
    start = np.log([max(known[name], 1e-6) for name in names])

    def at(p: np.ndarray) -> Device:
        return put(device, dict(zip(names, map(float, np.exp(p)), strict=True)))

    def residual(p: np.ndarray) -> np.ndarray:
        now = at(p)
        return np.log([row.predict(now) for row in rows]) - target

    def cost(r: np.ndarray, p: np.ndarray) -> float:
        drift = group.hold * float(
            np.sum((p - start) ** 2)
        )  # keeps what no row determines in place
        return float(np.sum(share * (np.sqrt(r * r + SCALE**2) - SCALE))) + drift

    p, damping = start.copy(), 1e-2
    r = residual(p)
    best = cost(r, p)
    for _ in range(rounds):
        slope = np.stack([(residual(p + 1e-4 * e) - r) / 1e-4 for e in np.eye(len(p))], axis=1)
        weight = share / np.sqrt(r * r + SCALE**2)
        normal = slope.T @ (slope * weight[:, None]) + 2 * group.hold * np.eye(len(p))
        gradient = slope.T @ (weight * r) + 2 * group.hold * (p - start)
        gain = 0.0
        while damping < 1e6:
            scaled = normal + damping * np.diag(np.diag(normal))
            step = np.clip(np.linalg.solve(scaled, -gradient), -1, 1)
            new = residual(p + step)
            value = cost(new, p + step)
            if value < best:
                gain, best, p, r = best - value, value, p + step, new
                damping = max(damping / 3, 1e-7)
                break
            damping *= 4
        if gain < 1e-7:
            break
    return at(p)


def summary(errors: Sequence[float]) -> str:
    """median / p90 / max in percent."""
    e = np.abs(np.asarray(errors)) * 100
    return f"{np.median(e):5.1f} /{np.quantile(e, 0.9):5.1f} /{e.max():5.1f} %  n={len(e)}"


def errors(device: Device, rows: Sequence[Row]) -> list[float]:
    return [row.predict(device) / row.us - 1 for row in rows]


def left_out(device: Device, rows: Sequence[Row], group: Group) -> list[tuple[float, Row]]:
    """Errors of each row with its whole shape left out of the fit."""
    found = []
    for value in sorted({row.shape for row in rows}):
        rest = [row for row in rows if row.shape != value]
        held = [row for row in rows if row.shape == value]
        found += list(zip(errors(fit(device, rest, group, 25), held), held, strict=True))
    return found


def write(device: Device, names: Sequence[str]) -> None:
    """Replace the values of constants in the device's file, comments and order kept."""
    path = devices.ROOT / f"{device.name}.yaml"
    text = path.read_text()
    for name in names:
        value = f"{get(device, name):.4g}"
        group, _, rest = name.partition(".")
        if group == "functions":
            function, _, field = rest.rpartition(".")
            pattern = rf"(?m)^(  {re.escape(function)}: \{{.*?\b{field}: )[0-9.e+-]+"
        else:
            pattern = rf"(?m)^( *{rest or group}: )[0-9.e+-]+"
        text, count = re.subn(pattern, rf"\g<1>{value}", text)
        if count != 1:
            raise SystemExit(f"{path}: {count} places for {name}")
    path.write_text(text)


def rows_for(group: Group, published: Published) -> list[Any]:
    """The rows that a group is fitted to."""
    if "model" in group.ops:
        models = [record for record in published.records if record["op"] == "model"]
        return [row for record in models for row in published.model_rows(record)]
    return [row for row in rows_of(group.ops, published) if row.regime in group.regimes]


def scored(group: Group, found: Sequence[tuple[float, Any]]) -> list[tuple[float, Any]]:
    return [(e, row) for e, row in found if row.id.startswith(group.scored)]


def report(lines: Mapping[str, tuple[Group, str, str]]) -> None:
    """Write the errors as a table into the manual."""
    names = {"dispatch": "fused dispatches", "model": "whole models: first token, time per token"}
    table = [
        "| group | rows | constants | fitted | left out |",
        "|---|---|---|---|---|",
    ]
    for name, (group, inside, outside) in lines.items():
        count = inside.rpartition("n=")[2]
        cells = (part.partition("%")[0].strip() for part in (inside, outside))
        out = " | ".join(" ".join(cell.split()) for cell in cells)
        label = names.get(name, name.replace("_", " "))
        table.append(f"| {label} | {count} | {len(group.names)} | {out} (one {group.by}) |")
    text = PAGE.read_text()
    head, rest = text.split(MARKS[0])
    tail = rest.split(MARKS[1])[1]
    PAGE.write_text(head + MARKS[0] + "\n" + "\n".join(table) + "\n" + MARKS[1] + tail)


def worst(found: Sequence[tuple[float, Any]], count: int) -> None:
    for e, row in sorted(found, key=lambda t: -abs(t[0]))[:count]:
        print(f"      {row.id:60s} {row.us:10.1f} {e * 100:+6.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--fit", "--write", "--loso", "--report"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--also", type=Path, help="more measurements, as bringup writes them")
    parser.add_argument("--group", choices=sorted(GROUPS), action="append")
    parser.add_argument("--worst", type=int, default=0, help="print that many rows")
    args = parser.parse_args()
    device = devices.load("npu2")
    more = measured.load(args.also) if args.also else []
    published = Published([*measured.load(), *more], device)
    lines: dict[str, tuple[Group, str, str]] = {}
    for name, group in GROUPS.items():
        if args.group and name not in args.group:
            continue
        rows: Sequence[Any] = rows_for(group, published)
        if args.fit or args.write or args.loso or args.report:
            device = fit(device, rows, group)
            for constant in group.names:
                print(f"    {constant} = {get(device, constant):.6g}")
        if args.write:
            write(device, group.names)
        found = scored(group, list(zip(errors(device, rows), rows, strict=True)))
        inside = summary([e for e, _ in found])
        print(f"{name:16s} in-sample   {inside}")
        worst(found, args.worst)
        if args.loso or args.report:
            out = scored(group, left_out(device, rows, group))
            outside = summary([e for e, _ in out])
            print(f"{name:16s} {group.by} out   {outside}")
            worst(out, args.worst)
            lines[name] = (group, inside, outside)
    if args.report:
        report(lines)


if __name__ == "__main__":
    main()
