"""The task graph of a deployment: what each skill of the chain contributes, in order.

A skill is a folder `skills/<name>/` with a `SKILL.md` and a `skill.py` that offers
`nodes(graph, parameters) -> Iterable[Node]`. The folder is a data room, loaded by path.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from tilegate.deployment import Deployment, resolve
from tilegate.errors import UserError, nearest
from tilegate.settings import Config
from tilegate.store import ROOT, Node, Store

SKILLS = ROOT / "skills"


@dataclass
class Graph:
    """The deployment and the nodes that skills have contributed so far, by name.

    `config` is what was asked for; under a fault `deployment.config` is what is built.
    """

    config: Config
    deployment: Deployment
    store: Store
    nodes: dict[str, Node] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Node:
        """A node that an earlier skill contributed. Raises UserError when the chain lacks it."""
        if name not in self.nodes:
            raise UserError(f"chain: no skill before this one yields {name!r}")
        return self.nodes[name]

    @property
    def debug(self) -> tuple[str, ...]:
        """The debug skills that look at the tensors of a failed gate."""
        return debug_skills(self.config.chain.on_failure.debug)

    def of_kind(self, kind: str) -> Iterator[Node]:
        return (node for node in self.nodes.values() if node.kind == kind)

    def add(self, node: Node) -> None:
        """Enter a node after all that it needs."""
        if node.name in self.nodes:
            return
        for need in (*node.needs, *node.after):
            self.add(need)
        self.nodes[node.name] = node


class Skill(Protocol):
    """What the code of a skill offers to the chain."""

    def nodes(self, graph: Graph, parameters: Mapping[str, Any]) -> Iterable[Node]: ...


def nodes(config: Config, store: Store) -> list[Node]:
    """All nodes of the chain, each after what it needs; the last one is `deploy`.

    Raises UserError for an unknown skill, an illegal tile, or a chain that does not deploy.
    """
    graph = Graph(config, resolve(config, store.cache), store)
    if config.device.backend == "xrt":  # first, so that a missing toolchain is said at once
        from tilegate import hardware

        for binary in hardware.nodes(graph.deployment.dispatches, config.device):
            graph.add(binary)
    for entry in config.chain.skills:
        for node in skill(entry.skill).nodes(graph, entry.parameters):
            graph.add(node)
    if "deploy" not in graph.nodes:
        raise UserError("chain: no skill yields the task 'deploy'; add phase-6-runner")
    return list(graph.nodes.values())


def deployment(config: Config, store: Store) -> Deployment:
    """What the configuration deploys, planned anew."""
    return resolve(config, store.cache)


def skill_names() -> list[str]:
    return sorted(path.parent.name for path in SKILLS.glob("*/skill.py"))


def debug_skills(patterns: Sequence[str]) -> tuple[str, ...]:
    """Debug skills by name or pattern (`debug-*`). Raises UserError when one fits nothing."""
    known = [name for name in skill_names() if name.startswith("debug-")]
    found: dict[str, None] = {}
    for pattern in patterns:
        fitting = fnmatch.filter(known, pattern)
        if not fitting:
            raise UserError(
                f"chain.on_failure.debug: no skill {pattern!r}; {nearest(pattern, known)}"
            )
        found.update(dict.fromkeys(fitting))
    return tuple(found)


@functools.cache
def skill(name: str) -> Skill:
    """The code of a skill. Raises UserError with the nearest name for an unknown one."""
    if name not in skill_names():
        raise UserError(f"chain: no skill {name!r}; {nearest(name, skill_names())}")
    return cast(Skill, _load(name, SKILLS / name / "skill.py"))


def _load(name: str, path: Path) -> Any:
    module_name = f"tilegate_skill_{name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
