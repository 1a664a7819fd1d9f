"""The points of a sweep: judged by legality, predicted time and, when asked, by real gates."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import predict, records
from tilegate.compile import toolchain
from tilegate.config import Variants, plain
from tilegate.digests import digest
from tilegate.errors import BrokenTool, GateFailed, UserError
from tilegate.settings import Config
from tilegate.store import ROOT, Node, Store

VERDICTS = ("ok", "pruned", "failed", "error")
GATES = {
    "kernel": ("gate:oracle", "gate:kernel:"),
    "block": ("gate:oracle", "gate:kernel:", "gate:block"),
    "all": ("gate:",),
}
OBJECTIVES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "error": "error"}
HIDDEN = ("sweep.", "hydra")


@dataclass(frozen=True)
class Point:
    """One point: what was asked, and what came of it. Times are predicted, in milliseconds."""

    key: str
    overrides: tuple[str, ...]
    verdict: str
    reason: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    error: float | None = None
    seconds: float = 0.0
    objective: float = math.inf
    known: bool = False
    fail_fast: bool = False

    @property
    def label(self) -> str:
        return " ".join(word for word in self.overrides if not word.startswith(HIDDEN))


def judge(
    overrides: Sequence[str], folder: Path, variants: Variants, report: Callable[[str], None]
) -> Point:
    """The verdict on a point, from `folder` if it is known there, and written there if not."""
    asked = tuple(word for word in overrides if not word.startswith("hydra"))
    begun = time.monotonic()
    try:
        config = variants.load(asked)
    except UserError as error:
        if "unknown" in str(error) or "no such" in str(error):
            raise
        return _write(folder, Point(digest(asked)[:20], asked, "pruned", str(error)), None)
    key = _key(config)
    before = _read(folder / "points" / f"{key}.json")
    if before is not None and before.verdict != "error":
        os.utime(folder / "points" / f"{key}.json")
        return dataclasses.replace(before, known=True, fail_fast=config.sweep.fail_fast)
    report(Point(key, asked, "").label)
    point = _judged(Point(key, asked, "ok"), config, report)
    value = getattr(point, OBJECTIVES[config.sweep.objective])
    point = dataclasses.replace(
        point,
        seconds=round(time.monotonic() - begun, 3),
        objective=value if point.verdict == "ok" and value is not None else math.inf,
        fail_fast=config.sweep.fail_fast,
    )
    return _write(folder, point, config)


def _judged(point: Point, config: Config, report: Callable[[str], None]) -> Point:
    try:
        times = predict.predict(config)
    except UserError as error:
        return dataclasses.replace(point, verdict="pruned", reason=str(error))
    point = dataclasses.replace(
        point, ttft_ms=1e3 * times["ttft_s"], tpot_ms=float(times["decode_ms"])
    )
    if config.sweep.gates == "none":
        return point
    try:
        return dataclasses.replace(point, error=_build(config, report))
    except GateFailed as error:
        reasons = error.record.get("reasons") or ["no reason given"]
        metric = error.record.get("metrics", {}).get("mean_rel_l1")
        where = f"{error.record.get('gate')} gate, {error.record.get('subject')}"
        return dataclasses.replace(
            point, verdict="failed", reason=f"{where}: {reasons[0]}", error=metric
        )
    except (UserError, BrokenTool) as error:
        return dataclasses.replace(point, verdict="error", reason=str(error))
    except Exception as error:  # one broken point never ends a sweep
        return dataclasses.replace(
            point, verdict="error", reason=f"{type(error).__name__}: {error}"
        )


def _build(config: Config, report: Callable[[str], None]) -> float | None:
    """Make the gates that are asked for, and their needs; the error of the block or the kernels."""
    from tilegate.graph import nodes

    store = Store()
    graph = nodes(config, store)
    wanted = [n for n in graph if n.name.startswith(GATES[config.sweep.gates])]
    needed = set(_with_needs(wanted))
    error = None
    for node in graph:
        if node in needed:
            report(node.name)
            artifact = store.make(node)
            if node.kind == "gate" and not node.name.startswith("gate:oracle"):
                found: list[Any] = records.read(artifact)
                seen = [record["metrics"].get("mean_rel_l1") for record in found]
                worst = [float(value) for value in seen if value is not None]
                if worst and (node.name == "gate:block" or config.sweep.gates == "kernel"):
                    error = max(worst) if error is None else max(error, *worst)
    return error


def _with_needs(nodes: Sequence[Node]) -> Iterator[Node]:
    queue, seen = list(nodes), set()
    while queue:
        node = queue.pop()
        if node not in seen:
            seen.add(node)
            yield node
            queue += node.needs


def _key(config: Config) -> str:
    """All that determines a verdict: the configuration and the house itself."""
    document = plain(config)
    document["sweep"] = {k: document["sweep"][k] for k in ("objective", "gates")}
    document.pop("cache")
    return digest([document, _house()])[:20]


@functools.cache
def _house() -> str:
    """The content of all code that can change a verdict."""
    rooms = ("tilegate", "oracle", "runtime", "skills", "kernels")
    kinds = (".py", ".cc", ".hpp", ".yaml")
    files = sorted(p for room in rooms for p in (ROOT / room).rglob("*") if p.suffix in kinds)
    tools = [[path.name, path.stat().st_size] for path in toolchain().binaries]
    return digest([tools, [[str(p.relative_to(ROOT)), p.read_text()] for p in files]])


def _write(folder: Path, point: Point, config: Config | None) -> Point:
    import yaml

    if config is not None:
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump(plain(config), Dumper=dumper, sort_keys=False, default_flow_style=None)
        _put(folder / "configs" / f"{point.key}.yaml", text)
    document = dataclasses.asdict(point)
    document["objective"] = None if math.isinf(point.objective) else point.objective
    for name in ("known", "fail_fast"):
        document.pop(name)
    _put(folder / "points" / f"{point.key}.json", json.dumps(document) + "\n")
    return point


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    temp.write_text(text)
    temp.replace(path)


def _read(path: Path) -> Point | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        document = json.loads(path.read_text())
        document["overrides"] = tuple(document["overrides"])
        if document["objective"] is None:
            document["objective"] = math.inf
        return Point(**document)
    return None


def started(folder: Path) -> int:
    """A stamp of the folder's own clock: what is read or written from now on is newer."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / ".started"
    stamp.write_text("")
    return stamp.stat().st_mtime_ns


def read(folder: Path, since: int) -> list[Point]:
    """The points that this run judged or took from before, best first, then pruned, failed."""
    paths = (p for p in (folder / "points").glob("*.json") if p.stat().st_mtime_ns >= since)
    found = [point for point in map(_read, paths) if point]
    return sorted(found, key=lambda p: (VERDICTS.index(p.verdict), p.objective, p.label))
