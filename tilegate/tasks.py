"""Nodes of the store as doit tasks. The artifacts are the truth; doit orders and reports.

doit's own database is a cache of nothing we rely on: a task is up to date when the store holds a
valid artifact for the key that its configuration, sources and inputs give now.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doit.cmd_base import DodoTaskLoader, DoitCmdBase
from doit.cmd_run import Run
from doit.cmdparse import CmdOption, CmdParse, CmdParseError
from doit.doit_cmd import DoitMain
from doit.exceptions import BaseFail, TaskError, TaskFailed
from doit.globals import Globals

from tilegate.config import Config, overrides_of
from tilegate.errors import BrokenTool, GateFailed, UserError, nearest
from tilegate.explain import explain
from tilegate.store import ROOT, Node, Store
from tilegate.terminal import Reporter, progress

STATE = ROOT / "build" / "state"
REPORTS = ROOT / "build" / "reports"
COMMANDS = {
    "explain": ("tilegate.explain:main", "Why each task is current or not; nothing is run"),
    "conf": ("tilegate.doctor:conf", "The resolved configuration and the choices of each group"),
    "doctor": ("tilegate.doctor:main", "What is installed, what is missing, and the fix"),
    "emit": ("tilegate.emission:main", "The MLIR-AIR text of every dispatch; needs no toolchain"),
    "bringup": ("tilegate.bringup:main", "First contact with a real NPU, stage by stage"),
    "gc": ("tilegate.gc:main", "What the cache could do without; cache.remove=true removes it"),
    "predict": ("tilegate.predict:main", "Predicted time of every launch and dispatch; no build"),
    "evaluate": ("tilegate.evaluate:main", "An untrusting look at what is promoted"),
    "onboard": ("tilegate.onboard:main", "A model file from a Hugging Face config (hf=ORG/NAME)"),
}
GROUPS = {
    "kernel": "Kernels: one object per distinct op, shape and tile",
    "gate": "Gates: each compares with the oracle and stands before promotion",
    "dispatch": "Dispatches: fused launches, one linked binary each",
    "object": "Kernel objects for the cores of a real NPU (Peano)",
    "elf": "Dispatches for a real NPU, one ELF each (aircc)",
    "xclbin": "Dispatches for a real NPU without ELF flow (aircc)",
}


@dataclass(frozen=True)
class Make:
    """The action of a node's task."""

    store: Store
    node: Node

    def __call__(self) -> BaseFail | dict[str, Any]:
        return guarded(self.node.name, self._make)

    def _make(self) -> dict[str, Any]:
        built = self.store.find(self.node) is None
        artifact = self.store.make(self.node, functools.partial(progress, self.node.name))
        return {"built": built, "summary": artifact.manifest["notes"].get("summary", "")}

    def __str__(self) -> str:
        return f"<make {self.node.name}>"


@dataclass(frozen=True)
class Current:
    """Whether the node's task is up to date; its text, for `doit info`, says why not."""

    store: Store
    node: Node

    def __call__(self) -> bool:
        with contextlib.suppress(UserError):  # the action will raise it again, and report it
            return self.store.done(self.node)
        return False

    def __str__(self) -> str:
        try:
            return f"artifact of {self.node.name}: {explain(self.store, self.node)}"
        except UserError as error:
            return str(error)


@dataclass(frozen=True)
class Remove:
    """The clean action of a node's task: what its artifact's record lists, and nothing else."""

    store: Store
    node: Node

    def __call__(self, dryrun: bool) -> None:
        for path in self.store.remove(self.node, dry=dryrun):
            print(f"{self.node.name}: {'would remove' if dryrun else 'removed'} {path}")

    def __str__(self) -> str:
        return f"<remove {self.node.name}>"


@dataclass(frozen=True)
class Command:
    """The action of a task that builds nothing: `module:function` called with the configuration.

    The function returns False for "no", which is exit status 1.
    """

    name: str
    target: str
    config: Config

    def __call__(self) -> BaseFail | dict[str, Any] | bool:
        return guarded(self.name, self._call)

    def _call(self) -> BaseFail | bool:
        module, _, function = self.target.partition(":")
        held = getattr(importlib.import_module(module), function)(self.config) is not False
        return held or TaskFailed(f"{self.name}: no; what is missing stands above")


def guarded(name: str, action: Callable[[], Any]) -> Any:
    """Run an action; what it raises becomes doit's failure with one line (or a gate's table)."""
    try:
        return action()
    except GateFailed as error:
        return TaskFailed(gate_table(name, error.record))
    except Exception as error:
        return TaskError(one_line(name, error))


def one_line(name: str, error: Exception) -> str:
    """An error as one line; that of a fault of ours names the file with its trace."""
    if isinstance(error, UserError | BrokenTool):
        return f"error: {error}"
    if isinstance(error, BrokenPipeError):
        return "error: the output was closed"
    last = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {last[-1] if last else 'no message'}"
    return f"error: {name}: {what} (trace: {_log(name)})"


def gate_table(name: str, record: Mapping[str, Any]) -> str:
    """A failed gate as text: each metric beside its limit and the limit's source, then why."""
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "measured", "limit", "source", title=f"{name} FAILED")
    limits = record.get("thresholds", {})
    metrics = record.get("metrics", {})
    for metric in [*limits, *(m for m in metrics if m not in limits)]:
        limit = limits.get(metric, {})
        limit = limit if isinstance(limit, Mapping) else {"value": limit}
        cells = (metrics.get(metric), limit.get("value"), limit.get("source"))
        table.add_row(metric, *(_cell(cell) for cell in cells))
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=sys.stdout.isatty())
    if table.row_count:
        console.print(table)
    else:
        console.print(f"{name} FAILED", markup=False, highlight=False)
    for reason in record.get("reasons", ()):
        console.print(f"{record.get('subject', name)}: {reason}", markup=False, highlight=False)
    for line in record.get("findings", ()):
        console.print(line, markup=False, highlight=False)
    with contextlib.suppress(OSError):
        path = REPORTS / "failed" / f"{_file_name(name)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1, default=str))
        console.print(f"record: {os.path.relpath(path, ROOT)}", markup=False, highlight=False)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _file_name(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")


def _log(name: str) -> str:
    """Write the trace of the exception at hand to a file of its own; its path, or why not."""
    path = REPORTS / "errors" / f"{_file_name(name)}-{os.getpid()}-{os.urandom(3).hex()}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc())
    except OSError as error:
        return f"none, {error.strerror}"
    return str(path)


def graph_tasks(store: Store, nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """doit's task dictionaries for the nodes, in order, a group's before its first member."""
    groups: set[str] = set()
    for node in nodes:
        base, _, name = node.name.partition(":")
        if name and base not in groups:
            groups.add(base)
            yield {"basename": base, "name": None, "doc": GROUPS.get(base, base)}
        yield {
            "basename": base,
            **({"name": name} if name else {}),
            "doc": node.doc,
            "actions": [Make(store, node)],
            "uptodate": [Current(store, node)],
            "task_dep": [need.name for need in (*node.needs, *node.after)],
            "clean": [Remove(store, node)],
        }


def command_tasks(config: Config) -> Iterator[dict[str, Any]]:
    """The tasks that always run and build nothing; those whose module is there."""
    for name, (target, doc) in COMMANDS.items():
        if ROOT.joinpath(*target.partition(":")[0].split(".")).with_suffix(".py").exists():
            yield {
                "basename": name,
                "doc": doc,
                "actions": [Command(name, target, config)],
                "uptodate": [False],
                "verbosity": 2,
                "meta": {"command": True},
            }


def full_name(task: Mapping[str, Any]) -> str:
    """The name by which doit knows a task dictionary."""
    return f"{task['basename']}:{task['name']}" if task.get("name") else str(task["basename"])


def selected(argv: Sequence[str]) -> tuple[str, list[str]]:
    """doit's command and the tasks named on a command line (without our overrides)."""
    words = [word for word in argv if word not in overrides_of(argv)]
    names = [command.get_name() for command in DoitMain.DOIT_CMDS]
    command = words.pop(0) if words and words[0] in names else "run"
    if command != "run":
        return command, [word for word in words if not word.startswith("-")]
    options = (*DoitCmdBase.base_options, *DodoTaskLoader.cmd_options, *Run.cmd_options)
    try:
        return command, CmdParse([CmdOption(option) for option in options]).parse(words)[1]
    except CmdParseError:
        return command, []  # doit will say so itself


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UserError for a task that does not exist."""
    for name in names:
        if name not in known and "*" not in name:
            raise UserError(f"no task {name!r}; {nearest(name, known)}")


def doit_config(state: Path = STATE) -> dict[str, Any]:
    """DOIT_CONFIG: what is built by default, who reports, and where doit keeps its notes."""
    return {
        "default_tasks": ["deploy"],
        "reporter": Reporter,
        "verbosity": 0,
        "sort": "definition",
        "num_process": 2,  # compilers run beside the oracle; a node's own work has two cores
        "par_type": "thread",
        "backend": "json",
        "dep_file": str(_database(state / "doit.json")),
    }


def _database(path: Path) -> Path:
    """The file for doit's notes; a damaged one is set aside, since it holds nothing we need."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        notes = json.loads(path.read_text())
        if isinstance(notes, dict) and all(isinstance(v, dict) for v in notes.values()):
            return path
    except FileNotFoundError:
        return path
    except (OSError, ValueError):
        pass
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
    except OSError:
        return path.with_name(f"doit-{os.getpid()}.json")
    print(f"note: {path} was damaged and is set aside; nothing is lost", file=sys.stderr)
    return path


def keep_notes_harmless() -> None:
    """Let doit write its notes atomically, and do without where the disk refuses.

    Called while tasks are loaded, when doit has opened its database.
    """
    if Globals.dep_manager is not None:
        backend = Globals.dep_manager.backend
        backend.dump = functools.partial(_dump, backend)


def _dump(backend: Any) -> None:
    path = Path(backend.name)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temp.write_text(backend.codec.encode(backend._db))
        temp.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temp.unlink()


def quiet_interrupt() -> None:
    """End Ctrl-C with one line instead of a trace."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            text = "\ninterrupted: what is finished is kept; run again to go on"
            print(text, file=sys.__stderr__)  # sys.stderr may be a task's, under threads
        else:
            before(kind, error, trace)

    sys.excepthook = hook
