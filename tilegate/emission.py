"""`doit emit`: the MLIR-AIR module of every dispatch as text, with what is needed to build it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegate.config import Config
from tilegate.deployment import resolve
from tilegate.device import Device
from tilegate.dispatch import Dispatch, describe
from tilegate.emit import Module, emit
from tilegate.store import ROOT, default_cache

PLACE = ROOT / "build" / "emit"
MODULE = "module.mlir"
DESCRIPTION = "emission.json"


def main(config: Config) -> None:
    """Write build/emit/<model>/<target>/<dispatch>/ and say where."""
    place = PLACE / config.model.name / config.device.target
    for dispatch in resolve(config, default_cache()).dispatches:
        module = emit(dispatch)
        folder = write(place / dispatch.name, dispatch, module, config.device)
        lines, launches = module.text.count("\n"), sum(1 for _ in dispatch.launches())
        name = os.path.relpath(folder / MODULE)
        print(f"{name}: {launches} launches, {len(module.objects.found)} objects, {lines} lines")
    print(f"target {config.device.target}: emitted, not compiled; no chip has run it")


def write(folder: Path, dispatch: Dispatch, module: Module, device: Device) -> Path:
    """The text and its description in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODULE).write_text(module.text)
    document = description(dispatch, module, device)
    (folder / DESCRIPTION).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return folder


def description(dispatch: Dispatch, module: Module, device: Device) -> Mapping[str, Any]:
    """Arguments in the function's order, objects to compile, and how aircc is to be called."""
    objects = module.objects.table()
    return {
        "kernel": f"main:{module.name}",
        "target": device.target,
        "arch": device.arch,
        "arguments": describe(dispatch)["arguments"],
        "objects": objects,
        "stack_bytes": max(entry["stack_bytes"] for entry in objects),
    }
