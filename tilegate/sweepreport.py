"""What a sweep leaves: a CSV, a page, a few lines on the terminal, and the best point as a file."""

from __future__ import annotations

import csv
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegate.config import CONF
from tilegate.errors import UserError
from tilegate.points import OBJECTIVES, Point
from tilegate.settings import Sweep

TEMPLATE = Path(__file__).resolve().parent / "data" / "sweep.html"
METRICS = ("ttft_ms", "tpot_ms", "error")
SHOWN = 10
SAVED = "# Tiles of the best point of"


def close(folder: Path, found: Sequence[Point], settings: Sweep) -> int:
    """Write the reports, print the outcome; the exit status of the sweep."""
    axes = _axes(found)
    rows = [_row(point, axes) for point in found]
    _csv(folder / "points.csv", rows)
    title = f"{folder.name}: {OBJECTIVES[settings.objective]}, {_depth(settings)}"
    data = {"title": title, "axes": axes, "metrics": METRICS, "rows": rows}
    text = TEMPLATE.read_text().replace("__TITLE__", html.escape(title))
    page = text.replace("__DATA__", json.dumps(data).replace("</", "<\\/"))
    (folder / "index.html").write_text(page)
    _print(found, axes, settings)
    best = next((point for point in found if point.verdict == "ok"), None)
    if settings.save is not None:
        if best is None:
            raise UserError(f"save={settings.save}: no point held, there is nothing to save")
        print(f"saved as {_save(folder, best, settings.save)}")
    print(f"{folder / 'index.html'}\n{folder / 'points.csv'}")
    verdicts = {point.verdict for point in found}
    return 2 if "error" in verdicts else int("failed" in verdicts)


def _depth(settings: Sweep) -> str:
    return "predicted only" if settings.gates == "none" else f"gates: {settings.gates}"


def _axes(found: Sequence[Point]) -> list[str]:
    """Keys whose value differs between points."""
    values: dict[str, set[str]] = {}
    for point in found:
        for key, value in _values(point).items():
            values.setdefault(key, set()).add(value)
    return sorted(key for key, seen in values.items() if len(seen) > 1)


def _values(point: Point) -> dict[str, str]:
    return dict(word.lstrip("+").split("=", 1) for word in point.label.split(" ") if "=" in word)


def _row(point: Point, axes: Sequence[str]) -> dict[str, Any]:
    values = _values(point)
    return {
        "verdict": point.verdict,
        **{axis: _number(values.get(axis, "")) for axis in axes},
        **{metric: getattr(point, metric) for metric in METRICS},
        "objective": None if math.isinf(point.objective) else point.objective,
        "seconds": point.seconds,
        "reason": point.reason,
        "config": f"configs/{point.key}.yaml",
    }


def _short(point: Point, axes: Sequence[str]) -> str:
    """What tells the point from the others."""
    values = _values(point)
    return " ".join(f"{axis}={values[axis]}" for axis in axes if axis in values) or point.label


def _number(text: str) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _print(found: Sequence[Point], axes: Sequence[str], settings: Sweep) -> None:
    unit = "" if settings.objective == "error" else " ms (predicted)"
    for rank, point in enumerate([p for p in found if p.verdict == "ok"][:SHOWN], 1):
        print(f"{rank:3}. {point.objective:.6g}{unit}  {_short(point, axes)}")
    for verdict in ("pruned", "failed", "error"):
        these = [point for point in found if point.verdict == verdict]
        for point in these[:SHOWN]:
            print(f"{verdict}: {_short(point, axes)}: {point.reason}")
        if len(these) > SHOWN:
            print(f"and {len(these) - SHOWN} more {verdict}, see the table")


def _save(folder: Path, best: Point, name: str) -> Path:
    """The tile section of the point's configuration as a choice of the group `tile`."""
    import yaml

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"save={name}: a file name of letters, digits, '.', '_', '-'")
    target = CONF / "tile" / f"{name}.yaml"
    if target.exists() and not target.read_text().startswith(SAVED):
        raise UserError(f"save={name}: {target} was written by hand; take another name")
    config = yaml.safe_load((folder / "configs" / f"{best.key}.yaml").read_text())
    text = yaml.safe_dump(config["tile"], sort_keys=False, default_flow_style=None)
    target.write_text(f"{SAVED} {folder.name}: {best.label}\n{text}")
    return target
