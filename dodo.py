"""The entry: compose the configuration, yield the tasks. Wiring only.

doit deploy model=smollm2-1.7b tile.prefill.gate_up.tile_n=64
python dodo.py -m tile.prefill.gate_up.tile_n=64,128
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import doit.loader

from tilegate import explain, tasks
from tilegate.config import load, overrides_of
from tilegate.store import Store


def _load() -> list[dict[str, Any]]:
    """All tasks of this command line. Commands that build nothing need no graph."""
    config = load(overrides_of(sys.argv[1:]), cwd=Path(doit.loader.initial_workdir or "."))
    command, names = tasks.selected(sys.argv[1:])
    if command == "run" and names[:1] == ["explain"]:
        explain.main(config, names[1:])
        sys.exit(0)
    found: list[dict[str, Any]] = []
    if command != "run" or not names or any(name not in tasks.COMMANDS for name in names):
        from tilegate.graph import nodes

        store = Store()
        atexit.register(store.digests.save)
        found += tasks.graph_tasks(store, nodes(config, store))
    found += tasks.command_tasks(config)
    if command == "run":
        tasks.check_names(names, [tasks.full_name(task) for task in found])
    return found


def task_all() -> Iterator[dict[str, Any]]:
    """Every task."""
    tasks.keep_notes_harmless()
    yield from TASKS


tasks.quiet_interrupt()
try:
    if __name__ == "__main__":
        from tilegate import sweep

        sys.exit(sweep.main(sys.argv[1:], Path.cwd()))
    DOIT_CONFIG = tasks.doit_config()
    TASKS = _load()
except Exception as error:
    print(tasks.one_line("dodo", error), file=sys.stderr)
    sys.exit(2)
