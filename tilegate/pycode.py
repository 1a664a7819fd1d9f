"""The Python that an action runs, as part of its key: no more of it, no less, and no comments.

From the build function on, names are followed through the rooms of the house, definition by
definition: a function that an action never reaches does not touch its key. Definitions are compared
as syntax trees without docstrings, so comments and formatting are free. Imports of other packages
that are reached become versions in the key.

Annotations are not followed, and neither are methods of objects that come from outside: what an
action is given counts by its inputs. Modules loaded by path (contracts) are named by the node.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tilegate.digests import Digests

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("tilegate", "oracle", "runtime")
DISTRIBUTIONS = {"yaml": "pyyaml", "hydra": "hydra_core"}
WHOLE = "*"
Definition = tuple[str, list[str], list[list[str]]]  # digest, names used, imports used


class Code:
    """Digests of what actions run. Tables per file are remembered in the digests' state."""

    def __init__(self, digests: Digests) -> None:
        self.digests = digests
        self.format = f"code {digests.of(Path(__file__))[:12]}"
        self._seen: dict[tuple[str, tuple[Path, ...]], dict[str, dict[str, str]]] = {}

    def of(
        self, build: Callable[..., Any], modules: Iterable[Path] = ()
    ) -> dict[str, dict[str, str]]:
        """{"code": {file: digest of what is reached in it}, "packages": {name: version}}."""
        while isinstance(build, functools.partial):
            build = build.func
        body = getattr(build, "__code__", None)
        start = f"{body.co_filename}:{build.__name__}" if body else ""
        known = (start, tuple(modules))
        if known not in self._seen:
            file = Path(body.co_filename) if body else None
            queue = [(file, build.__name__)] if file and file.is_file() else []
            self._seen[known] = self._reach([*queue, *((path, WHOLE) for path in known[1])])
        return self._seen[known]

    def _reach(self, queue: list[tuple[Path, str]]) -> dict[str, dict[str, str]]:
        found: dict[Path, dict[str, str]] = {}
        packages: set[str] = set()
        done: set[tuple[Path, str]] = set()
        while queue:
            path, name = queue.pop()
            if (path, name) in done:
                continue
            done.add((path, name))
            table = self._table(path)
            if name == WHOLE:
                queue += [(path, each) for each in table]
            if name not in table:
                continue
            text, names, imports = table[name]
            found.setdefault(path, {})[name] = text
            queue += [(path, each) for each in names]
            for module, member in imports:
                inside = _house(module, member)
                queue += inside
                top = module.split(".")[0]
                if not inside and top not in ROOMS and top not in sys.stdlib_module_names:
                    packages.add(DISTRIBUTIONS.get(top, top).lower())
        return {
            "code": {
                _relative(path): hashlib.sha256(repr(sorted(part.items())).encode()).hexdigest()
                for path, part in sorted(found.items())
            },
            "packages": {name: version(name) for name in sorted(packages)},
        }

    def _table(self, path: Path) -> dict[str, Definition]:
        """The top-level definitions of a module, by name."""
        table = self.digests.derived(
            self.format, path, lambda: definitions(path.read_text(), path.parent.name)
        )
        return table if isinstance(table, dict) else {}


def version(package: str) -> str:
    """The installed version of a distribution, from the name of its folder; else `absent`."""
    return _installed().get(package.replace("-", "_"), "absent")


@functools.cache
def _installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in reversed(sys.path):
        try:
            names = os.listdir(folder) if folder else []
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                package, _, number = name.removesuffix(".dist-info").partition("-")
                found[package.replace("-", "_").replace(".", "_").lower()] = number
    return found


@functools.cache
def _house(module: str, member: str) -> list[tuple[Path, str]]:
    """The file and name that an import of ours stands for; nothing for one of others."""
    if module.split(".")[0] not in ROOMS:
        return []
    base = ROOT.joinpath(*module.split("."))
    inner = base / f"{member}.py"
    if inner.is_file():
        return []  # a module: its members are imported as module.member
    path = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
    return [(path, member)] if path.is_file() else []


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def definitions(text: str, package: str) -> dict[str, list[Any]]:
    """{name: [digest, names of this module used, [module, member] of imports used]}."""
    tree = ast.parse(text)
    imports = _imports(tree, package)
    bodies: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _bound(statement):
            bodies.setdefault(name, []).append(statement)
    found = {}
    for name, statements in bodies.items():
        text = "".join(ast.dump(_bare(statement)) for statement in statements)
        names, reached = _used(statements, imports)
        inside = sorted(each for each in names if each in bodies and each != name)
        shown = hashlib.sha256(text.encode()).hexdigest()
        found[name] = [shown, inside, sorted(map(list, reached))]
    return found


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return []
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _imports(tree: ast.AST, package: str) -> dict[str, tuple[str, str]]:
    """{local name: (module, member)}; member is "" where a whole module is bound."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                found[local] = (alias.name, "")
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, (package if node.level else "", node.module)))
            for alias in node.names:
                found[alias.asname or alias.name] = (module, alias.name)
    return found


def _used(
    statements: list[ast.stmt], imports: Mapping[str, tuple[str, str]]
) -> tuple[set[str], set[tuple[str, str]]]:
    """Names and imports that the statements use; `module.member` counts as that member."""
    names: set[str] = set()
    reached: set[tuple[str, str]] = set()
    queue: list[ast.AST] = list(statements)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, member = imports.get(node.value.id, ("", ""))
            if module:
                whole = f"{module}.{member}" if member else module
                reached |= {(module, member), (whole, node.attr)}
        if isinstance(node, ast.Name):
            names.add(node.id)
            if node.id in imports:
                reached.add(imports[node.id])
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                items = value if isinstance(value, list) else [value]
                queue += [item for item in items if isinstance(item, ast.AST)]
    return names, reached


def _bare(node: ast.AST) -> ast.AST:
    """The node without docstrings."""
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list):
            kept = [
                s
                for s in body
                if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            ]
            inner.body = kept  # type: ignore[attr-defined]
    return node
