"""An epsilon that is not the model's, found by solving for it."""

from __future__ import annotations

from tilegate.diagnose import Case, Finding, error

SPREAD = 0.2  # of the solution over rows: the same epsilon must explain them all


def diagnose(case: Case) -> Finding:
    """Matches when one epsilon explains every row."""
    import numpy as np

    if case.kernel != "rms_norm" or not case.complete or not case.wrong or not case.operands:
        return case.finding(False)
    n = case.shape["N"]
    x, out, ref = (
        np.asarray(a, np.float64).reshape(-1, n)
        for a in (case.operands["x"], case.output, case.expected)
    )
    used = np.abs(ref).sum(1) > 0
    if not used.any() or not np.isfinite(out).all():
        return case.finding(False)
    x, out, ref = x[used], out[used], ref[used]
    true = float(case.shape["eps"])
    mean = (x * x).mean(1)
    factor = (out * ref).sum(1) / (ref * ref).sum(1)
    if not (factor > 0).all():
        return case.finding(False)
    solved = (mean + true) / factor**2 - mean
    eps = float(np.median(solved))
    scaled = ref * np.sqrt((mean + true) / np.maximum(mean + eps, 1e-30))[:, None]
    agree = error(out, scaled)
    spread = float(np.median(np.abs(solved - eps)) / max(abs(eps), 1e-30))
    if not (agree <= case.limit and eps > 0 and spread <= SPREAD):
        return case.finding(False)
    evidence = {"epsilon": eps, "model": true, "error against it": agree}
    cause = f"the norm has epsilon {eps:.3g}, the model's is {true:g}"
    return case.finding(True, cause, evidence=evidence, change=(f"model.norm_eps={true:g}",))
