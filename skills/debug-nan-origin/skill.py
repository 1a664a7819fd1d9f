"""Where a value that is no number comes from."""

from __future__ import annotations

from tilegate.diagnose import Case, Finding, poisoned


def diagnose(case: Case) -> Finding:
    """Matches when operands are finite and the output has NaN or Inf that was computed."""
    import numpy as np

    if case.output is None or not case.operands:
        return case.finding(False)
    output = np.asarray(case.output, np.float32)
    born = ~np.isfinite(output) & ~poisoned(output)
    whole = all(np.isfinite(np.asarray(a, np.float32)).all() for a in case.operands.values())
    if not born.any() or not whole:
        return case.finding(False)
    first = np.argwhere(born)[0].tolist()
    evidence = {
        "not finite": int(born.sum()),
        "of": int(output.size),
        "infinite": int(np.isinf(output).sum()),
        "first at": first,
    }
    cause = "finite operands give values that are not finite: a root, quotient or overflow in here"
    return case.finding(True, cause, evidence=evidence)
