"""`doit predict`: predicted time of every launch, dispatch, layer and model; nothing is built.

Prints a table and writes `build/reports/<model>/predict.json` and `predict.html` beside it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from tilegate import measured, page, timing, whole
from tilegate.config import Config
from tilegate.deployment import Deployment, host_us, resolve
from tilegate.device import Device
from tilegate.dispatch import Dispatch
from tilegate.settings import Lengths
from tilegate.store import ROOT, default_cache

REPORTS = ROOT / "build" / "reports"
FORMAT = "tilegate-predict-1"


def main(config: Config) -> int:
    """Predict, print, and leave the reports. Returns the exit status."""
    report = predict(config)
    folder = REPORTS / config.model.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "predict.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "predict.html").write_text(page.render(report))
    show(report)
    print(f"{folder / 'predict.json'}\n{folder / 'predict.html'}")
    return 0


def predict(config: Config) -> dict[str, Any]:
    """The report as plain data. Times in microseconds unless the name says else."""
    tokens = config.seq_len or max(config.sequence.buckets)
    lengths = Lengths((tokens,), max(config.sequence.context, tokens))
    deployment = resolve(dataclasses.replace(config, sequence=lengths), default_cache())
    device, layers = config.device, config.model.layers
    prefill, decode, head = (_phase(n, deployment) for n in ("prefill", "decode", "lm_head"))
    ttft = layers * prefill["us"] + head["us"] + _sync_us(deployment, "prefill")
    token = layers * decode["us"] + head["us"] + _sync_us(deployment, "decode")
    return {
        "format": FORMAT,
        "label": f"predicted ({device.name})",
        "model": config.model.name,
        "device": device.name,
        "layers": layers,
        "seq_len": tokens,
        "context": lengths.context,
        "ttft_s": ttft / 1e6,
        "decode_ms": token / 1e3,
        "decode_tok_s": 1e6 / token,
        "published": _published(config.model.name, tokens),
        "peaks": {"macs_per_us": _peak(device), "dram_gbps": device.dram_gbps},
        "unknown": [
            f"{v.rule} {v.used}/{v.available} {v.unit}: {v.hint}"
            for dispatch in deployment.dispatches
            for v in whole.judge(dispatch).violations
        ],
        "phases": [prefill, decode, head],
    }


def _phase(name: str, deployment: Deployment) -> dict[str, Any]:
    """One layer of a phase (the LM head is a layer of its own)."""
    config = deployment.config
    entries = [
        _dispatch(dispatch, config.device, host_us(dispatch, config))
        for dispatch in deployment.of_phase(name)
    ]
    return {
        "name": name,
        "us": sum(entry["us"] + entry["host_us"] for entry in entries),
        "npu_us": sum(entry["us"] for entry in entries),
        "host_us": sum(entry["host_us"] for entry in entries),
        **_sums(entries),
        "dispatches": entries,
    }


def _dispatch(dispatch: Dispatch, device: Device, host: float) -> dict[str, Any]:
    time = timing.predict_dispatch([op.plan for op in dispatch.ops], device)
    launches = [
        {
            "name": op.name if len(op.plan.launches) == 1 else f"{op.name}.{launch.name}",
            "op": op.plan.op,
            "shape": dict(op.plan.shape),
            "tile": dict(op.plan.tile),
            "configured_us": timing.reconfigure_us(timing.measure(launch), device),
            **{k: v for k, v in dataclasses.asdict(one).items() if k != "name"},
        }
        for (op, launch), one in zip(dispatch.launches(), time.launches, strict=True)
    ]
    return {
        "name": dispatch.name,
        "us": time.us,
        "configured_us": time.configured_us,
        "host_us": host,
        **_sums(launches),
        "launches": launches,
    }


def _sync_us(deployment: Deployment, phase: str) -> float:
    """Buffers that the runner moves around a pass: its input, the new cache rows, the logits."""
    config = deployment.config
    block = deployment.of_phase(phase)
    moved = (block[0].bucket or 1) * config.model.dim * 2
    if phase == "decode":  # the input changes with the position, k and v go out and into the cache
        arguments = [a for dispatch in block for a in dispatch.arguments]
        placed = {(a.kind, a.shape): a.bytes for a in arguments if a.kind in ("table", "position")}
        rows = sum(a.bytes // a.shape[0] for a in arguments if a.kind == "cache" and a.role == "in")
        moved += sum(placed.values()) + config.model.layers * 2 * rows
    moved += sum(
        a.bytes
        for dispatch in deployment.of_phase("lm_head")
        for a in dispatch.arguments
        if a.role == "out" and a.value == "logits"
    )
    return moved / (config.device.constant("bo_write_gbps") * 1e3)


def _sums(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {k: sum(e[k] for e in entries) for k in ("read_bytes", "write_bytes", "macs")}


def _peak(device: Device) -> float:
    """Multiply-accumulates per microsecond of the whole array through the matrix unit."""
    return device.functions["gemm_matmul"].macs_per_us * device.cols * device.rows


def _published(name: str, tokens: int) -> dict[str, Any] | None:
    """The published times of a model of this name at this length, if there are any."""
    for row in measured.load():
        if (row["op"], row.get("model"), row.get("seq_len")) == ("model", name, tokens):
            keys = ("ttft_s", "decode_tok_s", "source")
            return {key: row[key] for key in keys if key in row}
    return None


def show(report: dict[str, Any]) -> None:
    """The report as tables on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120)
    for phase in report["phases"]:
        title = f"{phase['name']}, one layer" if phase["name"] != "lm_head" else "LM head"
        table = Table(title=f"{report['model']} {title} - {report['label']}", title_justify="left")
        table.add_column("launch")
        for column in ("us", "configure", "bound", "read MB", "write MB", "MMAC", "busy"):
            table.add_column(column, justify="left" if column == "bound" else "right")
        for dispatch in phase["dispatches"]:
            for one in dispatch["launches"]:
                table.add_row(f"  {one['name']}", *_cells(one, one["bound"], one["utilisation"]))
            table.add_row(dispatch["name"], *_cells(dispatch, "", None), style="bold")
        console.print(table)
        us = {key: phase[key] / 1e3 for key in ("us", "npu_us", "host_us")}
        console.print(f"{us['us']:.2f} ms = NPU {us['npu_us']:.2f} + host {us['host_us']:.2f}\n")
    console.print(_verdict(report))
    for note in report["unknown"]:
        console.print(f"unknown, must be measured: {note}", soft_wrap=True)


def _cells(entry: dict[str, Any], bound: str, busy: float | None) -> tuple[str, ...]:
    return (
        f"{entry['us']:.0f}",
        f"{entry['configured_us']:.0f}",
        bound,
        f"{entry['read_bytes'] / 1e6:.2f}",
        f"{entry['write_bytes'] / 1e6:.2f}",
        f"{entry['macs'] / 1e6:.0f}",
        "" if busy is None else f"{busy:.0%}",
    )


def _verdict(report: dict[str, Any]) -> str:
    """Two lines: time to the first token and tokens per second, with the published ones."""
    known = report["published"] or {}
    first = f"TTFT {report['ttft_s']:.3f} s for {report['seq_len']} tokens (predicted)"
    if "ttft_s" in known:
        first += f"; published {known['ttft_s']} s"
    rate = f"decode {report['decode_tok_s']:.2f} tokens/s, context {report['context']} (predicted)"
    if "decode_tok_s" in known:
        rate += f"; published {known['decode_tok_s']}"
    return f"{first}\n{rate}"
