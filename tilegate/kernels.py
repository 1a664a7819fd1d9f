"""Finds the kernel folders and loads their contracts.

A kernel is a folder `kernels/<op>/` with a `kernel.py`. Adding one is adding a folder: nothing here
lists them. The folder is a data room without `__init__.py`, so contracts are loaded by path.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from tilegate.errors import UserError, nearest
from tilegate.plan import Requirement, TilePlan

ROOT = Path(__file__).resolve().parent.parent / "kernels"


class Contract(Protocol):
    """What every `kernel.py` offers."""

    SHAPE_FIELDS: tuple[str, ...]
    TILE_FIELDS: tuple[str, ...]
    STACK_BYTES: int

    def tile_space(self, shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]: ...

    def requirements(
        self, shape: Mapping[str, Any], tile: Mapping[str, Any]
    ) -> list[Requirement]: ...

    def plan(self, shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan: ...

    def inputs(self, shape: Mapping[str, Any], rng: Any) -> dict[str, Any]: ...

    def reference(
        self, shape: Mapping[str, Any], operands: Mapping[str, Any]
    ) -> dict[str, Any]: ...


def ops() -> list[str]:
    """Names of the kernels that exist, sorted."""
    return sorted(path.parent.name for path in ROOT.glob("*/kernel.py"))


def folder(op: str) -> Path:
    """The folder of a kernel. Raises UserError with the nearest name for an unknown one."""
    if op not in ops():
        raise UserError(f"no kernel {op!r}; {nearest(op, ops())}")
    return ROOT / op


@functools.cache
def contract(op: str) -> Contract:
    """The contract module of `op`, loaded once per process."""
    path = folder(op) / "kernel.py"
    name = f"tilegate_kernel_{op}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return cast(Contract, module)


def tier(op: str, tile: Mapping[str, Any]) -> str:
    """The tolerance tier of a kernel in conf/gate: its `tier(tile)`, else its `TIER`."""
    module: Any = contract(op)
    return str(module.tier(tile) if hasattr(module, "tier") else module.TIER)
