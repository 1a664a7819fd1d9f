"""The only comparator in the house: candidate against truth, and a record of what was seen.

Every comparison first asks for evidence (enough values, equal shapes, all finite), and is written
`not (error <= limit)`, so that NaN fails. Arrays are numpy float32; callers decode bf16 before.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from tilegate.errors import GateFailed, UserError
from tilegate.evidence import Generation, of_generation, of_tensors
from tilegate.metrics import errors, kl, outside
from tilegate.policy import Policy, Threshold, Tolerance

if TYPE_CHECKING:
    from rich.table import Table

Verdict = Literal["pass", "near-zero", "fail"]


@dataclass(frozen=True)
class Record:
    """What one comparison saw. Only the verdict `pass` passes."""

    gate: str
    subject: str
    verdict: Verdict
    metrics: Mapping[str, Any]
    thresholds: Mapping[str, Any]
    counts: Mapping[str, int]
    candidate: str  # digest of the bytes compared
    reference: str
    reasons: tuple[str, ...]
    policy: str  # digest of the part of the policy that judged

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not finite is spelled as text."""
        plain = asdict(self)
        plain["reasons"] = list(self.reasons)
        plain["metrics"] = {
            key: value if not isinstance(value, float) or math.isfinite(value) else str(value)
            for key, value in self.metrics.items()
        }
        return plain


def compare_tensors(
    gate: str,
    subject: str,
    candidate: Any,
    reference: Any,
    tolerance: Tolerance,
    expected_count: int,
) -> Record:
    """Output of a kernel against its FP32 reference (cast to the output's type), last axis = row.

    Fails on mean_rel_l1, on elements outside that are not near zero, on missing evidence. With
    near-zero elements alone outside, and more of them than waived, the verdict is `near-zero`.
    """
    reasons = of_tensors(candidate, reference, expected_count)
    metrics: dict[str, Any] = {}
    verdict: Verdict = "fail"
    if not reasons:
        metrics = {**errors(candidate, reference), **outside(candidate, reference, tolerance)}
        share, excess = "outside_share", "excess"
        limits = {"mean_rel_l1": tolerance["mean_rel_l1"], share: 0.0, excess: 1.0}
        if tolerance.inputs == "real":
            limits |= {share: tolerance[share], excess: tolerance[excess]}
        reasons = _above(metrics, limits)
        waived = max(tolerance["near_zero_share"], limits[share])
        verdict = "fail" if reasons else "pass"
        if not reasons and not (metrics["near_zero_share"] <= waived):
            verdict = "near-zero"
            reasons = _above(metrics, {"near_zero_share": waived})
        elif not reasons and metrics["near_zero_share"] > 0:
            metrics["waived"] = f"near_zero_share up to {waived:g}"
    return _record(
        gate,
        subject,
        verdict,
        metrics,
        tolerance.thresholds,
        {"expected": expected_count, "compared": _count(candidate)},
        (candidate, reference),
        reasons,
        tolerance.policy,
    )


def compare_block(
    gate: str,
    subject: str,
    candidate: Any,
    reference: Any,
    policy: Policy,
    head_dim: int,
    expected_count: int,
) -> Record:
    """A decoder block's output [positions, width] against the oracle's, whole and per position."""
    limits = policy.sections["block"]
    known = [64, 128]
    size = next((d for d in known if head_dim <= d), None)
    if size is None:
        raise UserError(f"head_dim {head_dim} has no block threshold: gate.block knows {known}")
    at_least = {"cosine": limits["cosine"], "cosine_min": limits[f"cosine_head_dim_{size}"]}
    at_most = {key: limits[key] for key in ("mean_rel_l1", "row_rel_l1")}
    reasons = of_tensors(candidate, reference, expected_count)
    metrics: dict[str, Any] = {}
    if not reasons:
        metrics = errors(candidate, reference)
        reasons = [
            f"{key} {metrics[key]:.6g} is below {limit.value:g}"
            for key, limit in at_least.items()
            if not (metrics[key] >= limit.value)
        ] + _above(metrics, {key: limit.value for key, limit in at_most.items()})
    return _record(
        gate,
        subject,
        "fail" if reasons else "pass",
        metrics,
        {**at_least, **at_most},
        {"expected": expected_count, "compared": _count(candidate)},
        (candidate, reference),
        reasons,
        policy.part("block"),
    )


def compare_tokens(
    gate: str,
    subject: str,
    candidate: Generation,
    golden: Generation,
    policy: Policy,
    stop_ids: Collection[int] = (),
) -> Record:
    """Two-sided top-k check at the first divergence of two greedy generations of one prompt.

    Each side holds `steps` tokens, or fewer that end with a stop token. Until the divergence both
    saw the same prefix; there, each side's token must be among the other's top k.
    """
    limits = policy.sections["model"]
    steps, top = int(limits["steps"].value), int(limits["top_k"].value)
    reasons = [
        f"{side}: {reason}"
        for side, generation in (("candidate", candidate), ("oracle", golden))
        for reason in of_generation(generation, steps, stop_ids)
    ]
    if not reasons and candidate.logits.shape[1] != golden.logits.shape[1]:
        reasons = [f"vocabulary {candidate.logits.shape[1]}, want {golden.logits.shape[1]}"]
    metrics: dict[str, Any] = {}
    if not reasons:
        metrics, reasons = _divergence(candidate, golden, top)
    return _record(
        gate,
        subject,
        "fail" if reasons else "pass",
        metrics,
        limits,
        {"expected": steps, "compared": len(candidate.tokens), "oracle": len(golden.tokens)},
        (candidate, golden),
        reasons,
        policy.part("model"),
    )


def compare_oracle(
    gate: str, subject: str, candidate: Generation, reference: Generation, policy: Policy
) -> Record:
    """Gate 0: the oracle's logits and greedy tokens against another FP32 implementation's.

    Logits are [n, vocab] and may hold more rows than there are tokens (those of the prompt).
    """
    limits = policy.sections["oracle"]
    steps = int(limits["steps"].value)
    ours, theirs = list(candidate.tokens), list(reference.tokens)
    reasons = of_tensors(candidate.logits, reference.logits, _count(reference.logits))
    metrics: dict[str, Any] = {}
    if not reasons:
        metrics = errors(candidate.logits, reference.logits)
        reasons = _above(metrics, {"max_abs": limits["max_abs"].value})
    for side, tokens in (("candidate", ours), ("reference", theirs)):
        if len(tokens) != steps:
            reasons.append(f"{side}: {len(tokens)} tokens, want {steps}")
    if ours != theirs:
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), -1)
        reasons.append(f"greedy tokens differ at step {at}" if at >= 0 else "token counts differ")
    return _record(
        gate,
        subject,
        "fail" if reasons else "pass",
        metrics,
        limits,
        {"expected": steps, "compared": len(ours)},
        (candidate, reference),
        reasons,
        policy.part("oracle"),
    )


def compare_exact(
    gate: str, subject: str, candidate: Sequence[Any], reference: Sequence[Any], policy: Policy
) -> Record:
    """Token ids, names or lines that must be the same, one by one; an empty reference fails."""
    reasons = [] if len(reference) else ["the reference is empty: nothing was compared"]
    if list(candidate) != list(reference):
        pairs = zip(candidate, reference, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        seen = "its length" if at is None else f"entry {at} ({candidate[at]!r}, {reference[at]!r})"
        reasons.append(f"{len(candidate)} entries, want {len(reference)}; differs in {seen}")
    counts = {"expected": len(reference), "compared": len(candidate)}
    verdict: Verdict = "fail" if reasons else "pass"
    sides = (tuple(candidate), tuple(reference))
    return _record(gate, subject, verdict, {}, {}, counts, sides, reasons, "exact")


def compare_faster(
    gate: str,
    subject: str,
    candidate_us: float,
    before_us: float,
    predicted_us: float,
    correctness: Sequence[Record],
    policy: Policy,
) -> Record:
    """A time in microseconds: strictly better than before, near its prediction, still correct."""
    limits = policy.sections["faster"]
    reasons = [
        f"{name} {value!r} is not a positive time"
        for name, value in (
            ("candidate_us", candidate_us),
            ("before_us", before_us),
            ("predicted_us", predicted_us),
        )
        if not (0 < value < math.inf)
    ]
    metrics: dict[str, Any] = {
        "candidate_us": candidate_us,
        "before_us": before_us,
        "predicted_us": predicted_us,
    }
    if not reasons:
        ratio = metrics["of_predicted"] = candidate_us / predicted_us
        if not (candidate_us < before_us):
            reasons.append(f"{candidate_us:g} us is not better than {before_us:g} us")
        if not (ratio >= limits["too_good"].value):
            reasons.append(f"{ratio:.3g} of the predicted time: too good to be true")
        if not (ratio <= limits["too_slow"].value):
            reasons.append(f"{ratio:.3g} of the predicted time: the prediction does not hold")
    if not correctness:
        reasons.append("no correctness gate ran on this candidate")
    reasons += [
        f"{r.gate} {r.subject} does not hold: {r.verdict}" for r in correctness if not r.passed
    ]
    return _record(
        gate,
        subject,
        "fail" if reasons else "pass",
        metrics,
        limits,
        {"expected": 1, "compared": 1, "correctness": len(correctness)},
        (candidate_us, before_us),
        reasons,
        policy.part("faster"),
    )


def require(records: Sequence[Record], expected: int) -> None:
    """Raise GateFailed unless exactly `expected` (> 0) records exist and every one passed."""
    failed = [record for record in records if not record.passed]
    if failed:
        raise GateFailed(failed[0].to_json())
    if not (0 < expected == len(records)):
        reason = f"{len(records)} comparisons ran, want {expected}: skipped is not passed"
        gate = records[0].gate if records else "?"
        raise GateFailed({"gate": gate, "verdict": "fail", "reasons": [reason]})


def table(records: Sequence[Record]) -> Table:
    """The records as a rich table, one comparison a row."""
    from rich.table import Table

    shown = ("mean_rel_l1", "max_abs", "outside_share", "cosine", "cosine_min", "matched")
    result = Table("gate", "subject", "verdict", *shown, "why")
    colours = {"pass": "green", "near-zero": "yellow", "fail": "red"}
    for record in records:
        cells = [f"{record.metrics[key]:.4g}" if key in record.metrics else "" for key in shown]
        verdict = f"[{colours[record.verdict]}]{record.verdict}[/]"
        result.add_row(record.gate, record.subject, verdict, *cells, "; ".join(record.reasons))
    return result


def _record(
    gate: str,
    subject: str,
    verdict: Verdict,
    metrics: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
    counts: Mapping[str, int],
    sides: tuple[Any, Any],
    reasons: Sequence[str],
    policy: str,
) -> Record:
    limits = {key: asdict(limit) for key, limit in thresholds.items()}
    digests = _digest(sides[0]), _digest(sides[1])
    return Record(
        gate,
        subject,
        verdict,
        dict(metrics),
        limits,
        dict(counts),
        *digests,
        tuple(reasons),
        policy,
    )


def _digest(side: Any) -> str:
    import numpy as np

    parts = (np.asarray(side.tokens), side.logits) if isinstance(side, Generation) else (side,)
    state = hashlib.sha256()
    for part in parts:
        array = part if isinstance(part, np.ndarray) else np.asarray(repr(part))
        state.update(f"{array.dtype}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def _count(array: Any) -> int:
    return int(getattr(array, "size", 0))


def _above(metrics: Mapping[str, Any], limits: Mapping[str, float]) -> list[str]:
    return [
        f"{key} {metrics[key]:.4g} is above {limit:g}"
        for key, limit in limits.items()
        if not (metrics[key] <= limit)
    ]


def _divergence(
    candidate: Generation, golden: Generation, top: int
) -> tuple[dict[str, Any], list[str]]:
    ours, theirs = list(candidate.tokens), list(golden.tokens)
    shared = min(len(ours), len(theirs))
    at = next((i for i in range(shared) if ours[i] != theirs[i]), shared)
    compared = min(at + 1, shared)  # the prefix is the same up to and including step `at`
    metrics: dict[str, Any] = {"matched": at, "kl": kl(candidate.logits, golden.logits, compared)}
    if at == shared:
        return metrics, [] if len(ours) == len(theirs) else ["one side goes on after a stop token"]
    metrics["candidate_rank"] = int((golden.logits[at] > golden.logits[at][ours[at]]).sum())
    metrics["oracle_rank"] = int((candidate.logits[at] > candidate.logits[at][theirs[at]]).sum())
    return metrics, [
        f"step {at}: {whose} is number {metrics[key] + 1} of {other}, want top {top}"
        for key, whose, other in (
            ("candidate_rank", f"the candidate's token {ours[at]}", "the oracle"),
            ("oracle_rank", f"the oracle's token {theirs[at]}", "the candidate"),
        )
        if not (metrics[key] < top)
    ]
