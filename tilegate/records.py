"""Gate records as files: a passed gate is an artifact, a failed one a report that stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tilegate.gate import Record, require
from tilegate.store import ROOT, Artifact, Build

FILE = "records.json"
REPORTS = ROOT / "build" / "reports"


def settle(build: Build, model: str, records: Sequence[Record], expected: int) -> None:
    """Write the records into the artifact; raise GateFailed unless `expected` of them passed.

    Either way they are left in build/reports/<model>/gates, where people look.
    """
    document = json.dumps([r.to_json() for r in records], indent=1, sort_keys=True) + "\n"
    report = REPORTS / model / "gates" / f"{build.node.name.replace(':', '.')}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(document)
    require(records, expected)
    (build.out / FILE).write_text(document)


def read(artifact: Artifact) -> list[dict[str, object]]:
    """The records of a passed gate."""
    return list(json.loads(artifact.file(FILE).read_text()))


def source_files(*folders: Path) -> tuple[Path, ...]:
    """Python sources of rooms whose code determines a result."""
    return tuple(sorted(p for folder in folders for p in folder.glob("*.py")))
