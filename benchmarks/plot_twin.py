"""Plots of the twin against the published measurements, and their tables, for docs/measured.md.

python -m tilegate.twin --json > twin.json      the emulated kernels run: minutes
python benchmarks/plot_twin.py twin.json
python benchmarks/plot_twin.py                  times only; the accuracies of before stay
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilegate import device, measured, twin

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "measured.md"
COLOURS = ("#2b6cb0", "#3a7d44", "#b7791f", "#c53030", "#6b46c1", "#2c7a7b", "#718096")


def scatter(points: Mapping[str, Sequence[tuple[float, float]]], unit: str, path: Path) -> None:
    """Ours over theirs, both logarithmic, with a band of 10 %."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tilegate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 5.6))
    every = [value for pairs in points.values() for pair in pairs for value in pair]
    ends = [min(every) * 0.8, max(every) * 1.25]
    axes.plot(ends, ends, color="#222", linewidth=0.8)
    axes.fill_between(
        ends, [e * 0.9 for e in ends], [e * 1.1 for e in ends], color="#ddd", linewidth=0
    )
    for number, (op, pairs) in enumerate(points.items()):
        style = "ox^"[number // len(COLOURS) % 3]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(*zip(*pairs, strict=True), style, color=colour, markersize=4, label=op)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel(f"measured, {unit}")
    axes.set_ylabel(f"the twin, {unit}")
    axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def pairs(
    rows: Sequence[Mapping[str, Any]], theirs: str, ours: str
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row[theirs] and row[ours]:
            found.setdefault(row["op"], []).append((row[theirs], row[ours]))
    return found


def table(points: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    """Median and largest relative difference per op."""
    lines = ["| op | rows | median | largest |", "|---|---|---|---|"]
    for op, found in points.items():
        errors = [abs(mine / theirs - 1) for theirs, mine in found]
        lines.append(
            f"| {op} | {len(found)} | {statistics.median(errors):.1%} | {max(errors):.1%} |"
        )
    return lines


def fill(mark: str, lines: Sequence[str]) -> None:
    """Put lines between a mark of the page and the next end."""
    head, rest = PAGE.read_text().split(f"<!-- {mark} -->")
    tail = rest.split("<!-- end -->", 1)[1]
    PAGE.write_text(f"{head}<!-- {mark} -->\n" + "\n".join(lines) + f"\n<!-- end -->{tail}")


def main() -> None:
    timed = twin.compare(measured.load(), device.load(), numerics=False)["rows"]
    times = pairs([row for row in timed if row["fitted"]], "measured_us", "predicted_us")
    scatter(times, "microseconds", DOCS / "images" / "twin_time.svg")
    fill("times", table(times))
    if len(sys.argv) > 1:
        rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
        exact = [row for row in rows if row["op"] != "gemv"]  # those are 0 to 2e-6
        found = pairs(exact, "measured_mean_rel_l1", "emulated_mean_rel_l1")
        scatter(found, "mean relative L1 error", DOCS / "images" / "twin_accuracy.svg")
        fill("accuracies", table(found))


if __name__ == "__main__":
    main()
