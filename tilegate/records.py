"""Gate records as files: a passed gate is an artifact, a failed one a report that stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tilegate import diagnose
from tilegate.errors import GateFailed
from tilegate.gate import Record, require
from tilegate.store import ROOT, Artifact, Build

FILE = "records.json"
REPORTS = ROOT / "build" / "reports"


def settle(
    build: Build,
    model: str,
    records: Sequence[Record],
    expected: int,
    cases: Callable[[], Sequence[diagnose.Case]] = tuple,
    skills: Sequence[str] = (),
) -> None:
    """Write the records into the artifact; raise GateFailed unless `expected` of them passed.

    Either way they are left in build/reports/<model>/gates, where people look. After a failure the
    debug `skills` look at the `cases`, and the gate's record carries what they found.
    """
    document = json.dumps([r.to_json() for r in records], indent=1, sort_keys=True) + "\n"
    report = REPORTS / model / "gates" / f"{build.node.name.replace(':', '.')}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(document)
    try:
        require(records, expected)
    except GateFailed as failed:
        failed.record["task"] = build.node.name
        _explain(failed, model, cases, skills)
        raise
    (build.out / FILE).write_text(document)


def _explain(
    failed: GateFailed,
    model: str,
    cases: Callable[[], Sequence[diagnose.Case]],
    skills: Sequence[str],
) -> None:
    """Keep the failing tensors and add the debug skills' findings to the record."""
    found = cases()
    if not found:
        return
    folder = REPORTS / model / "failing"
    diagnose.keep(found, folder)
    findings = diagnose.run(found, skills)
    diagnose.report(findings, REPORTS / model / "findings.json")
    failed.record["findings"] = [finding.line() for finding in findings]
    failed.record["changes"] = [list(finding.change) for finding in findings if finding.change]
    failed.record["failing"] = str(folder)
    first = found[0]
    failed.record["first_wrong"] = {"op": first.op, "layer": first.layer, "phase": first.phase}


def read(artifact: Artifact) -> list[dict[str, object]]:
    """The records of a passed gate."""
    return list(json.loads(artifact.file(FILE).read_text()))


def source_files(*folders: Path) -> tuple[Path, ...]:
    """Python sources of rooms whose code determines a result."""
    return tuple(sorted(p for folder in folders for p in folder.glob("*.py")))
