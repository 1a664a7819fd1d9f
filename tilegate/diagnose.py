"""From a failed gate to a named cause: cases, and the debug skills that look at them.

A `Case` is one wrong launch with its operands as the device had them. A debug skill is a pure
function of it: it computes what the output would be under one mistake, and compares. Cases are kept
under build/reports/<model>/failing, where `python -m tilegate.diagnose FOLDER` looks again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

POISON = (0xFFFF0000, 0xFFFFFFFF)  # device memory that was never written, as bf16 and as f32
DECISIVE = 0.5  # a mistake must explain the output this much better than the truth does


@dataclass(frozen=True)
class Finding:
    """What one debug skill says of one case. `change` is a list of overrides that avoid the cause
    (empty when it is no matter of configuration)."""

    skill: str
    matched: bool
    gate: str
    op: str
    layer: int | None
    phase: str
    cause: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    change: tuple[str, ...] = ()

    def line(self) -> str:
        where = self.op if self.layer is None else f"{self.op} of layer {self.layer}"
        seen = ", ".join(f"{key} {_short(value)}" for key, value in self.evidence.items())
        change = f"; try {' '.join(self.change)}" if self.change else ""
        return f"{self.skill}: {where} ({self.phase}): {self.cause} [{seen}]{change}"


@dataclass(frozen=True)
class Case:
    """One launch (or model-level value) whose output does not follow from its operands.

    Arrays are numpy float32. `operands` are by operand name as the device had them, `output` is
    what it left (None: it computed no such value), `expected` the FP32 reference on those operands.
    `values` are all values of the block by name, `history` what the same buffers held before.
    `limit` is the mean relative error that the op's tier allows here. `facts` hold the model.
    """

    gate: str
    op: str
    kernel: str
    layer: int | None
    phase: str
    output: Any
    expected: Any
    shape: Mapping[str, Any] = field(default_factory=dict)
    tile: Mapping[str, Any] = field(default_factory=dict)
    operands: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)
    limit: float = 0.06
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Mapping[str, Any]:
        return dict(self.facts.get("model", {}))

    @property
    def complete(self) -> bool:
        """Whether there are an output and its reference to compare hypotheses with."""
        return self.output is not None and self.expected is not None

    @property
    def wrong(self) -> bool:
        return not (self.complete and error(self.output, self.expected) <= self.limit)

    def weight(self, template: str, layer: int | None = None) -> Any:
        """A checkpoint tensor as float32, of `layer` or of the case's own."""
        from oracle.tensorfile import read_header, read_tensor

        path = Path(self.facts["weights"])
        at = self.layer if layer is None else layer
        return read_tensor(path, read_header(path)[template.format(layer=at)])

    def finding(self, matched: bool, cause: str = "", **given: Any) -> Finding:
        """A finding about this case; `run` fills in the skill's name."""
        change = tuple(given.pop("change", ()))
        evidence = given.pop("evidence", {})
        return Finding(
            "", matched, self.gate, self.op, self.layer, self.phase, cause, evidence, change
        )

    def judge(self, hypotheses: Iterable[tuple[str, Any, Sequence[str]]]) -> Finding:
        """The hypothesis (cause, output it would give, change) that explains the output, if one
        does: within the op's limit and decisively better than the truth."""
        if not (self.complete and self.wrong):
            return self.finding(False)
        truth = error(self.output, self.expected)
        best = min(
            ((error(self.output, made), cause, change) for cause, made, change in hypotheses),
            key=lambda entry: entry[0],
            default=None,
        )
        if best is None or not (best[0] <= self.limit and best[0] < DECISIVE * truth):
            return self.finding(False)
        evidence = {"error against the truth": truth, "against this cause": best[0]}
        return self.finding(True, best[1], evidence=evidence, change=best[2])


def error(candidate: Any, reference: Any) -> float:
    """mean|a - b| / mean|b|; infinite when shapes differ or something is not finite."""
    import numpy as np

    a, b = np.asarray(candidate, np.float32).ravel(), np.asarray(reference, np.float32).ravel()
    if a.size != b.size or not np.isfinite(a).all() or not np.isfinite(b).all():
        return float("inf")
    size = float(np.abs(b).mean(dtype=np.float64))
    off = float(np.abs(a - b).mean(dtype=np.float64))
    return off / size if size > 0 else (0.0 if off == 0 else float("inf"))


def poisoned(array: Any) -> Any:
    """Where `array` holds memory that was never written."""
    import numpy as np

    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return np.isin(bits, np.array(POISON, np.uint32))


def skill_names() -> list[str]:
    from tilegate.graph import skill_names as every

    return [name for name in every() if name.startswith("debug-")]


def run(cases: Sequence[Case], skills: Sequence[str]) -> list[Finding]:
    """What the skills say of the cases: matched findings only, the first wrong launch first.

    Raises UserError for an unknown skill.
    """
    from tilegate.graph import skill

    found = []
    for case in cases:
        for name in skills:
            code: Any = skill(name)
            finding: Finding = code.diagnose(case)
            if finding.matched:
                found.append(replace(finding, skill=name))
    return found


def keep(cases: Sequence[Case], folder: Path) -> None:
    """Write each case into `folder` as numbered .npz and .json files; older ones go."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.npz"), *folder.glob("*.json")):
        old.unlink()
    for number, case in enumerate(cases):
        arrays = {
            f"{group}/{name}": value
            for group in ("operands", "values", "history")
            for name, value in getattr(case, group).items()
        }
        arrays |= {k: v for k in ("output", "expected") if (v := getattr(case, k)) is not None}
        np.savez(folder / f"{number}.npz", **arrays)
        plain = {k: v for k, v in vars(case).items() if k in _PLAIN}
        (folder / f"{number}.json").write_text(json.dumps(plain, indent=1, default=list))


_PLAIN = ("gate", "op", "kernel", "layer", "phase", "shape", "tile", "bound", "limit", "facts")


def kept(folder: Path) -> list[Case]:
    """The cases that `keep` wrote."""
    import numpy as np

    found = []
    for path in sorted(folder.glob("*.json"), key=lambda p: int(p.stem)):
        plain: dict[str, Any] = json.loads(path.read_text())
        groups: dict[str, dict[str, Any]] = {"operands": {}, "values": {}, "history": {}}
        single: dict[str, Any] = {"output": None, "expected": None}
        with np.load(path.with_suffix(".npz")) as arrays:
            for key in arrays.files:
                group, _, name = key.partition("/")
                if name:
                    groups[group][name] = arrays[key]
                else:
                    single[group] = arrays[key]
        found.append(Case(**{**plain, **groups, **single}))
    return found


def report(findings: Sequence[Finding], path: Path) -> None:
    """findings.json: one document per failed gate, newest only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(f) for f in findings], indent=1, default=str)
    path.write_text(text + "\n")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        print("usage: python -m tilegate.diagnose FOLDER (build/reports/<model>/failing)")
        return 2
    findings = run(kept(Path(argv[0])), skill_names())
    for finding in findings:
        print(finding.line())
    if not findings:
        print("no debug skill knows this pattern")
    return 0 if findings else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
