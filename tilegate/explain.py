"""Why a task is up to date, cached or to run, and what changed from what to what.

Nothing is run and nothing is written. A task is compared with the newest artifact of its name; one
whose name is new (names of kernels carry their tile) with the artifact that resembles it most.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tilegate.digests import canonical
from tilegate.errors import UserError, nearest
from tilegate.settings import Config
from tilegate.store import MANIFEST, Node, Store

State = Literal["up to date", "cached", "to run"]
SHOWN = 4
WIDTH = 48
ABSENT = "(absent)"


@dataclass(frozen=True)
class Change:
    """One thing that determines a result, before and now, as text."""

    what: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.now}"


@dataclass(frozen=True)
class Verdict:
    """What would happen to a task, and why."""

    task: str
    state: State
    reason: str
    changes: tuple[Change, ...] = ()


class Explainer:
    """Verdicts on the nodes of one graph."""

    def __init__(self, store: Store, nodes: Sequence[Node] = ()) -> None:
        self.store = store
        self.nodes = nodes
        self._manifests: dict[str, list[dict[str, Any]]] = {}
        self._last = self._deployed()

    def verdict(self, node: Node) -> Verdict:
        """What would happen to the node now."""
        waits = [need.name for need in node.needs if not self.store.find(need)]
        if waits:
            more = f" and {len(waits) - 2} more" if len(waits) > 2 else ""
            reason = f"needs {', '.join(waits[:2])}{more}, not built"
            return Verdict(node.name, "to run", reason, self.changes(node))
        key = self.store.key(node)
        artifact = self.store.find(node)
        if artifact is None:
            if (self.store.cache / node.kind / f"{key}").exists():
                return Verdict(node.name, "to run", f"{key} is damaged and will be rebuilt")
            changes = self.changes(node)
            reason = "changed since last built" if changes else f"{key} was never built"
            return Verdict(node.name, "to run", reason, changes)
        if not (node.installed is None or node.installed(artifact)):
            return Verdict(node.name, "to run", f"{key} is valid, but is not installed")
        if self._last and artifact.key not in self._last:
            reason = f"{key} is valid, not in the last deployment"
            return Verdict(node.name, "cached", reason, self.changes(node, self._last))
        return Verdict(node.name, "up to date", f"{key} is valid")

    def changes(self, node: Node, among: frozenset[str] | None = None) -> tuple[Change, ...]:
        """How the node differs from its predecessor (with a key in `among`, if that is given)."""
        now = self._now(node)
        old = [m for m in self._of_kind(node.kind) if among is None or m["key"] in among]
        same = [m for m in old if m["name"] == node.name]
        ours = [m for m in same if _model(m["inputs"]) == _model(now[""])]
        if same:
            return tuple(_changes(_then((ours or same)[-1]), now))
        base = node.name.partition(".")[0]
        kin = [m for m in old if m["name"].partition(".")[0] == base]
        if not kin or ":" not in node.name:
            return ()
        found = min((tuple(_changes(_then(m), now)) for m in reversed(kin)), key=len)
        return (
            Change("task", kin[-1]["name"] if len(kin) == 1 else "a sibling", node.name),
            *found,
        )

    def _now(self, node: Node) -> dict[str, Any]:
        """All that determines the node, as its manifest would hold it."""
        known = {need.name: self.store.find(need) for need in node.needs}
        return {
            "": json.loads(canonical(node.inputs)),
            "source": dict(self.store.sources(node)),
            **self.store.python(node),
            "need": {n: a.key if node.by_key else a.digest for n, a in known.items() if a},
            "waits": {name: None for name, artifact in known.items() if not artifact},
        }

    def _of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The readable manifests of a kind, the one used last at the end."""
        if kind not in self._manifests:
            found = []
            for path in (self.store.cache / kind).glob(f"*/{MANIFEST}"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    manifest = json.loads(path.read_text())
                    found.append((path.stat().st_mtime_ns, manifest["key"], manifest))
            self._manifests[kind] = [m for _, _, m in sorted(found, key=lambda f: f[:2])]
        return self._manifests[kind]

    def _deployed(self) -> frozenset[str]:
        """Keys of the artifacts in the deployment that stands now; empty when there is none."""
        for node in self.nodes:
            if node.kind == "deploy":
                for manifest in reversed(self._of_kind("deploy")):
                    if _model(manifest["inputs"]) == _model(json.loads(canonical(node.inputs))):
                        return frozenset(closure(self.store.cache, manifest))
        return frozenset()


def closure(cache: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Keys of an artifact and of all that went into it, as their records say."""
    queue, seen = [manifest], set()
    while queue:
        one = queue.pop()
        yield one["key"]
        for need in one["needs"].values():
            if need["key"] not in seen:
                seen.add(need["key"])
                with contextlib.suppress(OSError, ValueError, KeyError):  # KeyError: an old record
                    place = cache / need["kind"] / need["key"] / MANIFEST
                    queue.append(json.loads(place.read_text()))


def explain(store: Store, node: Node) -> str:
    """The verdict on one node as a line, for `doit info`."""
    found = Explainer(store).verdict(node)
    hidden = len(found.changes) - SHOWN
    more = [f"and {hidden} more (doit explain {node.name})"] if hidden > 0 else []
    return "; ".join([found.reason, *map(str, found.changes[:SHOWN]), *more])


def main(config: Config, names: Sequence[str] = ()) -> None:
    """Print the verdict on every task, or on those named (a group or pattern names several)."""
    from tilegate.graph import nodes

    store = Store()
    found = nodes(config, store)
    explainer = Explainer(store, found)
    chosen = _chosen(found, names)
    verdicts = [explainer.verdict(node) for node in chosen]
    width = max(len(verdict.state) for verdict in verdicts)
    for verdict in verdicts:
        print(f"{verdict.state:{width}}  {verdict.task}  ({verdict.reason})")
        shown = verdict.changes if names else verdict.changes[:SHOWN]
        for change in shown:
            print(f"{'':{width}}    {change}")
        if len(shown) < len(verdict.changes):
            print(f"{'':{width}}    and {len(verdict.changes) - len(shown)} more changes")
    counts = [(s, sum(v.state == s for v in verdicts)) for s in ("up to date", "cached", "to run")]
    print(", ".join(f"{count} {state}" for state, count in counts))
    if any(verdict.reason.endswith("not built") for verdict in verdicts):
        print("a task that needs others is passed over if they turn out the same as before")


def _chosen(found: Sequence[Node], names: Sequence[str]) -> list[Node]:
    chosen = {node.name: node for node in found if not names}
    for name in names:
        hits = [n for n in found if fnmatch.fnmatchcase(n.name, name)]
        hits = hits or [n for n in found if n.name.startswith(f"{name}:")]
        if not hits:
            raise UserError(f"no task {name!r}; {nearest(name, [n.name for n in found])}")
        chosen |= {node.name: node for node in hits}
    return list(chosen.values())


def _model(inputs: Mapping[str, Any]) -> Any:
    """The name of the model that a task is about, if it is about one."""
    model = inputs.get("config", inputs).get("model")
    return model.get("name") if isinstance(model, Mapping) else model


def _then(manifest: Mapping[str, Any]) -> dict[str, Any]:
    counts = "key" if manifest.get("by_key") else "digest"
    return {
        "": manifest["inputs"],
        "source": dict(manifest["sources"]),
        "code": manifest.get("code", {}),
        "packages": manifest.get("packages", {}),
        "need": {name: need[counts] for name, need in manifest["needs"].items()},
    }


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    """What differs, inputs first, leaf by leaf. Needs that are not built yet cannot differ."""
    for part, label in (
        ("", ""),
        ("source", "source "),
        ("code", "code "),
        ("packages", "package "),
    ):
        was, new = dict(_leaves(then[part])), dict(_leaves(now[part]))
        for name in [*new, *(gone for gone in was if gone not in new)]:
            if was.get(name, ABSENT) != new.get(name, ABSENT):
                yield Change(f"{label}{name}", *_pair(was.get(name, ABSENT), new.get(name, ABSENT)))
    was, new = then["need"], now["need"]
    for name in [*new, *(gone for gone in was if gone not in new and gone not in now["waits"])]:
        if was.get(name) != new.get(name):
            yield Change(name, *_pair(was.get(name, ABSENT), new.get(name, ABSENT)))
    for name in now["waits"]:
        if name not in was:
            yield Change(name, ABSENT, "not built")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, scalar) of nested data. Names of files keep their dots and are no paths."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def _pair(was: Any, new: Any) -> tuple[str, str]:
    """Both as text: digests by their start, long texts by where they differ."""
    one, two = (v if isinstance(v, str) else json.dumps(v) for v in (was, new))
    if max(len(one), len(two)) <= WIDTH:
        return one, two
    if all(text == ABSENT or _is_digest(text) for text in (one, two)):
        return one[:12], two[:12]
    start = 0
    while start < min(len(one), len(two)) and one[start] == two[start]:
        start += 1
    end = 0
    while end < min(len(one), len(two)) - start and one[-1 - end] == two[-1 - end]:
        end += 1
    start, end = max(0, start - 12), max(0, end - 4)
    cut = [text[start : len(text) - end] for text in (one, two)]
    return tuple(_clip(text, start > 0) for text in cut)  # type: ignore[return-value]


def _clip(text: str, inside: bool) -> str:
    short = text if len(text) <= WIDTH else text[:WIDTH] + "..."
    return repr(("..." if inside else "") + short)


def _is_digest(text: str) -> bool:
    return len(text) in (32, 64) and not set(text) - set("0123456789abcdef")
