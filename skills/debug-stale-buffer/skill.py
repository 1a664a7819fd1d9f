"""A buffer that holds what was there before: a sync or a copy that did not happen."""

from __future__ import annotations

from typing import Any

from tilegate.diagnose import Case, Finding, error, poisoned

WHOLE = 0.999


def diagnose(case: Case) -> Finding:
    """Matches never-written memory, an output of zeros, or an input that is an earlier value."""
    import numpy as np

    if case.output is None or not case.wrong:
        return case.finding(False)
    output = np.asarray(case.output, np.float32)
    share = float(poisoned(output).mean())
    if share > WHOLE:
        cause = "the buffer was never written: the copy or sync that fills it is missing"
        return case.finding(True, cause, evidence={"never written": share})
    expected: Any = case.expected
    if not output.any() and expected is not None and np.asarray(expected).any():
        cause = "the buffer is zero: nothing arrived, or the result was not synced back"
        return case.finding(True, cause, evidence={"zeros": 1.0})
    if case.kernel:
        return case.finding(False)
    for label, earlier in case.history.items():
        if np.size(earlier) == output.size and error(output, earlier) == 0.0:
            cause = f"the buffer still holds the {label}: the new data was not synced"
            return case.finding(True, cause, evidence={"equal to": label})
    return case.finding(False)
