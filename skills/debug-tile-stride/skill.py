"""Tiles that are missing or at another's place, while the others are right."""

from __future__ import annotations

from typing import Any

from tilegate.diagnose import Case, Finding, poisoned

GRAIN = 16  # rows and columns of a cell: every tile is a multiple
RIGHT, WRONG = 0.05, 0.95  # shares of bad elements in a cell that is right or wrong
FAR = 0.25  # of the output's mean size: an element that is off by more is bad
LEAST = 0.02  # of all cells must be right, and as many wrong


def diagnose(case: Case) -> Finding:
    """Matches when cells of the output are either wholly right or wholly wrong, and both occur."""
    import numpy as np

    if not case.complete or not case.wrong or not case.kernel or not np.any(case.output):
        return case.finding(False)
    expected = np.asarray(case.expected, np.float32)
    expected = expected.reshape(-1, expected.shape[-1])
    output = np.asarray(case.output, np.float32).reshape(expected.shape)
    if case.phase.startswith("prefill") and case.layer is not None:  # padding is equal in any case
        used = expected.size * case.facts["tokens"] // case.facts["bucket"]
        width = expected.shape[-1] if used % expected.shape[-1] == 0 else used
        expected, output = (a.ravel()[:used].reshape(-1, width) for a in (expected, output))
    empty = poisoned(output)
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(output - expected) <= FAR * np.abs(expected).mean())
    if not np.isfinite(output[~empty]).all():
        return case.finding(False)
    cells = _cells(bad)
    right, wrong = float((cells <= RIGHT).mean()), float((cells >= 0.5).mean())
    if right < LEAST or wrong < LEAST or right + wrong < WRONG:
        return case.finding(False)
    never = float(empty.mean())
    first = np.argwhere(bad)[0].tolist()
    evidence = {"wrong": float(bad.mean()), "never written": never, "first at": first}
    if case.kernel in ("flash_attention", "decode_attention", "rope") and not never:
        return case.finding(False)  # heads and masks are blocks too; their own skills know them
    kind = "are never written" if never else "hold another tile's values"
    where = ", ".join(f"{k}={v}" for k, v in case.tile.items())
    cause = f"blocks of the output {kind}: a stride or offset of the plan ({where}) is wrong"
    return case.finding(True, cause, evidence=evidence)


def _cells(bad: Any) -> Any:
    """Share of bad elements per cell of GRAIN x GRAIN (or of one row)."""
    import numpy as np

    rows, columns = (min(GRAIN, n) for n in bad.shape)
    cut = bad[: bad.shape[0] // rows * rows, : bad.shape[1] // columns * columns]
    shaped = cut.reshape(cut.shape[0] // rows, rows, cut.shape[1] // columns, columns)
    return np.asarray(shaped.mean(axis=(1, 3)))
