"""The prediction as one self-contained HTML page: a timeline of a layer, a roofline, the table."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from typing import Any

WIDTH, LEFT = 960, 150
COLOURS = {"core": "#3a7d44", "ddr": "#2b6cb0", "overhead": "#b7791f", "configure": "#a0aec0"}
STYLE = """body{font:14px system-ui,sans-serif;margin:2em;max-width:1000px;color:#222}
table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}svg text{font:12px system-ui,sans-serif}"""


def render(report: dict[str, Any]) -> str:
    """The page of a report of `tilegate.predict`."""
    layers = [phase for phase in report["phases"] if phase["name"] != "lm_head"]
    title = html.escape(f"{report['model']}: {report['label']}")
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>",
        f"<h1>{title}</h1>",
        f"<p>Time to the first token {report['ttft_s']:.3f} s for {report['seq_len']} tokens; "
        f"decode {report['decode_tok_s']:.2f} tokens/s at a context of {report['context']}.</p>",
    ]
    for phase in layers:
        parts.append(
            f"<h2>{phase['name']}: one layer, {phase['npu_us'] / 1e3:.2f} ms on the NPU</h2>"
        )
        parts.append(timeline(phase))
    parts.append("<h2>Roofline</h2>")
    parts.append(roofline(report))
    parts += [table(phase) for phase in report["phases"]]
    return "\n".join(parts) + "\n"


def _launches(phase: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for dispatch in phase["dispatches"]:
        yield from dispatch["launches"]


def timeline(phase: dict[str, Any]) -> str:
    """A row for every launch, in time: grey configures the array, colour tells the bound."""
    rows = list(_launches(phase))
    scale = (WIDTH - LEFT - 90) / max(phase["npu_us"], 1e-9)
    shapes, at = [], 0.0
    for number, one in enumerate(rows):
        y = 18 * number
        name = html.escape(one["name"])
        shapes.append(f"<text x={LEFT - 6} y={y + 12} text-anchor=end>{name}</text>")
        for us, kind in ((one["configured_us"], "configure"), (one["us"], one["bound"])):
            width = max(us * scale, 0.5)
            shapes.append(
                f"<rect x={LEFT + at * scale:.1f} y={y + 1} width={width:.1f} height=14 "
                f'fill="{COLOURS[kind]}"><title>{name}: {us:.0f} us {kind}</title></rect>'
            )
            at += us
        shapes.append(f"<text x={LEFT + at * scale + 4:.1f} y={y + 12}>{one['us']:.0f} us</text>")
    legend = " ".join(
        f'<tspan fill="{colour}">&#9632; {kind}</tspan>' for kind, colour in COLOURS.items()
    )
    shapes.append(f"<text x={LEFT} y={18 * len(rows) + 16}>{legend}</text>")
    return f"<svg width={WIDTH} height={18 * len(rows) + 24}>{''.join(shapes)}</svg>"


def roofline(report: dict[str, Any]) -> str:
    """Multiply-accumulates per microsecond over intensity (per byte of DDR), both logarithmic."""
    peaks = report["peaks"]
    bandwidth, peak = peaks["dram_gbps"] * 1e3, peaks["macs_per_us"]  # bytes, MACs per us
    low, high, floor = 0.1, 1e4, 1e2

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 40) * math.log(value / low) / math.log(high / low)

    def y(value: float) -> float:
        return 300 - 280 * math.log(max(value, floor) / floor) / math.log(peak * 2 / floor)

    ridge = peak / bandwidth
    points = " ".join(f"{x(a):.0f},{y(min(peak, a * bandwidth)):.0f}" for a in (low, ridge, high))
    shapes = [f'<polyline points="{points}" fill=none stroke="#222" />']
    for phase in report["phases"]:
        for one in _launches(phase):
            size = one["read_bytes"] + one["write_bytes"]
            if not one["macs"] or not size:
                continue
            place = x(min(max(one["macs"] / size, low), high)), y(one["macs"] / one["us"])
            label = html.escape(
                f"{phase['name']} {one['name']}: {one['macs'] / one['us']:.0f} MAC/us"
            )
            shapes.append(
                f"<circle cx={place[0]:.0f} cy={place[1]:.0f} r=4 "
                f'fill="{COLOURS[one["bound"]]}"><title>{label}</title></circle>'
            )
    for tick in (0.1, 1, 10, 100, 1000):
        shapes.append(f"<text x={x(tick):.0f} y=318 text-anchor=middle>{tick:g}</text>")
    shapes.append(f"<text x={LEFT} y=336>multiply-accumulates per byte of DDR</text>")
    shapes.append(
        f"<text x={LEFT - 6} y={y(peak) + 4:.0f} text-anchor=end>{peak:.3g} MAC/us</text>"
    )
    return f"<svg width={WIDTH} height=344>{''.join(shapes)}</svg>"


def table(phase: dict[str, Any]) -> str:
    """The launches of a phase with their figures."""
    head = ("launch", "us", "configure", "bound", "read MB", "write MB", "MMAC", "busy")
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for one in _launches(phase):
        cells = (
            html.escape(one["name"]),
            f"{one['us']:.0f}",
            f"{one['configured_us']:.0f}",
            one["bound"],
            f"{one['read_bytes'] / 1e6:.2f}",
            f"{one['write_bytes'] / 1e6:.2f}",
            f"{one['macs'] / 1e6:.0f}",
            f"{one['utilisation']:.0%}",
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<h2>{phase['name']}</h2><table>{''.join(rows)}</table>"
