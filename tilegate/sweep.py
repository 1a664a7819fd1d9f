"""Sweeps: Hydra's multirun over the same task graph and one cache.

    python dodo.py -m tile.prefill.gate_up.tile_n=64,96,128 sweep.gates=none

Every point gets a verdict and keeps it: `ok`, `pruned` (illegal, with the limit), `failed` (a gate,
with the metric) or `error`. A point is known by all that determines it, so that a killed or
repeated sweep goes on where it was. Sweepers and launchers of Hydra's world call `job`; the
built-in ones below take the short way, without composing each point anew.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction

from tilegate import points, sweepreport
from tilegate.config import CONF, Variants, overrides_of
from tilegate.digests import digest
from tilegate.errors import UserError
from tilegate.points import Point
from tilegate.store import ROOT

Plugins.instance()  # loads the built-in plugins anew: what was imported before is another class
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # noqa: E402

REPORTS = ROOT / "build" / "reports"
QUIET_SECONDS = 5.0
PLUGINS = "hydra_plugins.tilegate"
SHORT = {"save": "sweep.save"}


class GridSweeper(BasicSweeper):
    """Hydra's grid; points are judged one by one, not composed beforehand."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """A point that is not legal is a result."""


class SerialLauncher(Launcher):
    """Points one after the other in this process."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: Any
    ) -> None:
        self.folder = Path(config.hydra.sweep.dir)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        variants, found = Variants(), []
        line = Progress(len(job_overrides))
        for overrides in job_overrides:
            point = points.judge(overrides, self.folder, variants, line.news)
            line.add(point)
            done = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
            done.return_value = point.objective
            found.append(done)
            if point.verdict in ("failed", "error") and point.fail_fast:
                break
        line.end()
        return found


def job(config: Any) -> float:
    """One point, for launchers that start it elsewhere; its objective, infinite if it has none."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    return points.judge(overrides, Path(hydra.sweep.dir), Variants(), lambda text: None).objective


class Progress:
    """One live line on a terminal, plain lines elsewhere; what fails is told at once."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.live = sys.stdout.isatty()
        self.found: list[Point] = []
        self.last = time.monotonic()
        self.doing = ""

    def news(self, text: str) -> None:
        self.doing = text
        self._show()

    def add(self, point: Point) -> None:
        self.found.append(point)
        if point.verdict in ("failed", "error"):
            self._print(f"{point.verdict}: {point.label}: {point.reason}")
        self._show()

    def end(self) -> None:
        self._print(self._text())

    def _text(self) -> str:
        count = {v: sum(p.verdict == v for p in self.found) for v in points.VERDICTS}
        told = ", ".join(f"{n} {verdict}" for verdict, n in count.items() if n)
        known = sum(point.known for point in self.found)
        again = f", {known} known from before" if known else ""
        return f"[{len(self.found)}/{self.total}] {told or 'starting'}{again}"

    def _show(self) -> None:
        now = time.monotonic()
        if self.live:
            if now - self.last > 0.05:
                self.last = now
                width = os.get_terminal_size().columns - 1
                print(f"\r\x1b[K{self._text()}  {self.doing}"[: width + 4], end="", flush=True)
        elif now - self.last > QUIET_SECONDS:
            self.last = now
            print(self._text(), flush=True)

    def _print(self, text: str) -> None:
        print(("\r\x1b[K" if self.live else "") + text, flush=True)


def main(argv: Sequence[str], cwd: Path) -> int:
    """Run the sweep of a command line (without `-m`); the exit status.

    0 when every point that is legal held, 1 when a gate failed, 2 when something broke.
    """
    import hydra

    words = [_long(word) for word in argv if word not in ("-m", "--multirun")]
    for word in words:
        if word not in overrides_of([word]):
            raise UserError(f"{word}: a sweep takes KEY=VALUE,VALUE, save=NAME and --fail-fast")
    folder = _folder(words)
    own = [
        *("hydra/launcher=serial", "hydra/sweeper=grid", "hydra.output_subdir=null"),
        *(f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=.", "hydra.job.chdir=false"),
        *("hydra/job_logging=none", "hydra/hydra_logging=none"),
    ]
    given = {word.partition("=")[0] for word in words}
    own = [word for word in own if word.partition("=")[0] not in given]
    _register()
    print(f"sweep {folder.name}: results in {os.path.relpath(folder, cwd)}", flush=True)
    sys.argv = [str(ROOT / "dodo.py"), "-m", *own, *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    start = points.started(folder)
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    found = points.read(folder, since=start)
    if not found:
        raise UserError("sweep: no point was run")
    settings = Variants().load([word for word in words if word.startswith("sweep.")]).sweep
    return sweepreport.close(folder, found, settings)


def _register() -> None:
    """Make our plugins known to Hydra, which takes them from the package `hydra_plugins` only."""
    module = types.ModuleType(PLUGINS)
    for plugin in (GridSweeper, SerialLauncher):
        plugin.__module__ = PLUGINS
        setattr(module, plugin.__name__, plugin)
    package = importlib.util.find_spec(PLUGINS.partition(".")[0])
    if package is None:
        sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        sys.modules["hydra_plugins"].__path__ = []
    vars(importlib.import_module("hydra_plugins"))["tilegate"] = module
    sys.modules[PLUGINS] = module
    for plugin in (GridSweeper, SerialLauncher):
        Plugins.instance().register(plugin)


def _long(word: str) -> str:
    """The short forms of a sweep's options as overrides."""
    if word == "--fail-fast":
        return "sweep.fail_fast=true"
    key, equals, value = word.partition("=")
    return f"{SHORT.get(key, key)}{equals}{value}"


def _folder(words: Sequence[str]) -> Path:
    """The same sweep has the same folder, so that it can go on."""
    transient = ("sweep.save=", "sweep.fail_fast=", "hydra/launcher=", "hydra.launcher.")
    asked = sorted(word for word in words if not word.startswith(transient))
    return REPORTS / f"sweep-{digest(asked)[:10]}"
