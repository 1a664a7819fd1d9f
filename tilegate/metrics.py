"""Error measures of two arrays; pure numpy, no verdicts (those are the gate's)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilegate.policy import Tolerance

if TYPE_CHECKING:
    import numpy as np


def errors(candidate: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Error measures of two equal shapes; cosines and row_rel_l1 take the last axis as a row."""
    import numpy as np

    out = candidate.reshape(-1, candidate.shape[-1])
    ref = reference.reshape(out.shape)
    error, size = np.abs(out - ref), np.abs(ref)
    row_error, row_size = error.mean(1, dtype=np.float64), size.mean(1, dtype=np.float64)
    dot = np.einsum("ij,ij->i", out, ref, dtype=np.float64)
    norms = np.einsum("ij,ij->i", out, out, dtype=np.float64) ** 0.5
    ref_norms = np.einsum("ij,ij->i", ref, ref, dtype=np.float64) ** 0.5
    mean, ref_mean = out.mean(dtype=np.float64), ref.mean(dtype=np.float64)
    covariance = dot.sum() - out.size * mean * ref_mean
    variance = (norms**2).sum() - out.size * mean**2
    ref_variance = (ref_norms**2).sum() - out.size * ref_mean**2
    with np.errstate(divide="ignore", invalid="ignore"):
        # A row of zeros is only like another row of zeros.
        empty = (norms == 0) & (ref_norms == 0)
        cosines = np.where(empty, 1.0, np.nan_to_num(dot / (norms * ref_norms), nan=0.0))
        row_rel = np.where(row_error == 0, 0.0, row_error / row_size)
        return {
            "max_abs": float(error.max()),
            "mean_rel_l1": float(row_error.mean() / row_size.mean()),
            "row_rel_l1": float(row_rel.max()),
            "pearson": float(covariance / np.sqrt(variance * ref_variance)),
            "cosine": float(dot.sum() / np.sqrt((norms**2).sum() * (ref_norms**2).sum())),
            "cosine_min": float(cosines.min()),
        }


def outside(candidate: np.ndarray, reference: np.ndarray, tolerance: Tolerance) -> dict[str, float]:
    """Shares outside their allowance, near zero and not, and the worst excess of the latter."""
    import numpy as np

    out = candidate.reshape(-1, candidate.shape[-1])
    ref = np.abs(reference.reshape(out.shape))
    error = np.abs(out - reference.reshape(out.shape))
    scale = ref.mean(1, keepdims=True, dtype=np.float64).astype(np.float32)
    allowed = tolerance["rtol"] * ref + tolerance["atol"] / tolerance["published_scale"] * scale
    beyond = ~(error <= allowed)
    bound = tolerance["near_zero"] * scale
    near = (ref <= bound) & (error <= bound)
    far = beyond & ~near
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = float((error[far] / allowed[far]).max()) if far.any() else 0.0
    return {
        "outside_share": float(np.count_nonzero(far) / far.size),
        "near_zero_share": float(np.count_nonzero(beyond & near) / far.size),
        "excess": worst,
    }


def kl(candidate: np.ndarray, golden: np.ndarray, steps: int) -> float:
    """Mean KL(oracle || candidate) of the first `steps` rows, in nats."""
    import numpy as np

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))

    p, q = log_softmax(golden[:steps]), log_softmax(candidate[:steps])
    return float((np.exp(p) * (p - q)).sum(1).mean())
