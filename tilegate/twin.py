"""`python -m tilegate.twin FILE.yaml`: the emulated NPU2 against a file of hardware measurements.

    --json          the comparison as JSON
    --no-numerics   times only; the kernels are not run
    --rows GLOB     only rows whose id matches

Each row: measured and predicted time, measured and emulated mean_rel_L1 (null where there is none).
Groups: median, 90th percentile and maximum of |predicted / measured - 1| per op.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegate import device as devices
from tilegate import kernels, measured, timing
from tilegate.device import Device
from tilegate.errors import UserError
from tilegate.published import Published

SEED = 0
PER_PROCESS = 12  # plans that one process emulates


def compare(
    records: Sequence[Mapping[str, Any]], device: Device, numerics: bool, pattern: str = "*"
) -> dict[str, Any]:
    """`rows` and `groups`; see the module."""
    published = Published([*measured.load(), *records], device)
    chosen = [record for record in records if fnmatch.fnmatchcase(record["id"], pattern)]
    accurate = [r for r in chosen if r.get("mean_rel_l1") is not None] if numerics else []
    emulated = dict(zip((r["id"] for r in accurate), emulate_all(accurate), strict=True))
    rows = [
        row
        for record in chosen
        for row in _rows(record, published, device, emulated.get(record["id"]))
    ]
    return {"rows": rows, "groups": _groups(rows)}


def _rows(
    record: Mapping[str, Any], published: Published, device: Device, emulated: float | None
) -> Iterator[dict[str, Any]]:
    accuracy = record.get("mean_rel_l1")
    blank = {"measured_mean_rel_l1": accuracy, "emulated_mean_rel_l1": emulated}
    if record["op"] == "model":
        for whole in published.model_rows(record):
            kind = whole.id.rpartition(".")[2]
            times = {"measured_us": whole.us, "predicted_us": whole.predict(device)}
            yield {"id": whole.id, "op": f"model.{kind}", **times, **blank, "fitted": True}
        return
    us = record.get("latency_us") if record.get("timing", True) else None
    row = {"id": record["id"], "op": record["op"], "measured_us": us}
    row |= {"predicted_us": _predict(record, published, device), **blank}
    row["fitted"] = record.get("role") not in measured.NOT_FITTED
    yield row


def _predict(record: Mapping[str, Any], published: Published, device: Device) -> float | None:
    """Predicted time of a row; None where we have no plan for it."""
    if record["op"] == "dispatch":
        try:
            works = published.dispatch(record["dispatch"], record["model"], record["phase"])
        except (KeyError, UserError):
            return None
        time = timing.price_dispatch(works, device, "elf")
        return time.us if record.get("latency_kind") == "npu_run" else time.host_us
    plan = measured.plan(record)
    return None if plan is None else measured.predict(record, plan, device)


def emulate_all(records: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """`emulate` of each; rows of one plan once, many of them in processes that are replaced.

    A process can hold only so many libraries with thread-local data, and each plan is one.
    """
    keys = [repr(measured.translate(record)) for record in records]
    distinct = dict(zip(keys, records, strict=True))
    if len(distinct) <= PER_PROCESS:
        values = [emulate(record) for record in distinct.values()]
    else:
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(os.cpu_count(), maxtasksperchild=PER_PROCESS) as pool:
            values = pool.map(emulate, distinct.values(), chunksize=1)
    found = dict(zip(distinct, values, strict=True))
    return [found[key] for key in keys]


def emulate(record: Mapping[str, Any]) -> float | None:
    """mean_rel_L1 of the emulated kernel against FP32 rounded to the output's type."""
    named = measured.translate(record)
    if named is None:
        return None
    import ml_dtypes
    import numpy as np

    from tilegate import metrics, solo
    from tilegate.store import Store

    op, shape, tile = named
    contract = kernels.contract(op)
    plan = contract.plan(shape, tile)
    operands = {
        name: value.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, value in contract.inputs(shape, np.random.default_rng(SEED)).items()
    }
    result = solo.runner(plan, solo.build(plan, Store()))(operands)
    reference = contract.reference(shape, operands)
    output = next(t for t in plan.tensors if t.role == "out")
    truth = reference[output.name]
    if output.dtype == "bf16":
        truth = truth.astype(ml_dtypes.bfloat16).astype(np.float32)
    value = metrics.errors(result[output.name], truth.reshape(output.shape))["mean_rel_l1"]
    return float(value)


def _groups(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["measured_us"] and row["predicted_us"] and row["fitted"]:
            error = abs(row["predicted_us"] / row["measured_us"] - 1)
            found.setdefault(row["op"], []).append(error)
    return {
        op: {
            "n": len(errors),
            "median": _quantile(errors, 0.5),
            "p90": _quantile(errors, 0.9),
            "max": max(errors),
        }
        for op, errors in found.items()
    }


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def render(report: Mapping[str, Any]) -> str:
    """The comparison as text."""
    lines = [f"{'row':64s} {'measured us':>12s} {'predicted':>12s} {'error':>7s} rel_L1"]
    for row in report["rows"]:
        us, predicted = row["measured_us"], row["predicted_us"]
        cells = [f"{us:12.1f}" if us else " " * 12, f"{predicted:12.1f}" if predicted else " " * 12]
        cells.append(f"{predicted / us - 1:+7.1%}" if us and predicted else " " * 7)
        pair = (row["measured_mean_rel_l1"], row["emulated_mean_rel_l1"])
        cells.append(" / ".join("-" if value is None else f"{value:.2e}" for value in pair))
        lines.append(f"{row['id']:64s} {' '.join(cells)}")
    lines.append("")
    for op, g in report["groups"].items():
        lines.append(
            f"{op:20s} n={g['n']:<4d} median {g['median']:6.1%}  p90 {g['p90']:6.1%}"
            f"  max {g['max']:6.1%}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tilegate.twin", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=measured.TABLE)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-numerics", action="store_true")
    parser.add_argument("--rows", default="*", metavar="GLOB")
    args = parser.parse_args(argv)
    try:
        records = measured.load(args.file)
        report = compare(records, devices.load(), not args.no_numerics, args.rows)
    except (OSError, UserError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report, indent=1) if args.json else render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
