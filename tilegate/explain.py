"""Why an artifact is current or not: what differs from the newest one of the same name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tilegate.digests import canonical
from tilegate.store import MANIFEST, Node, Store


def explain(store: Store, node: Node) -> str:
    """Why the node is current or not: the first reason, in words."""
    missing = [need.name for need in node.needs if not store.find(need)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"needs {', '.join(missing[:3])}{more}, not built"
    key = store.key(node)
    artifact = store.find(node)
    if artifact:
        held = node.installed is None or node.installed(artifact)
        return f"{key} is valid" + ("" if held else ", but is not installed")
    if (store.cache / node.kind / f"{key}").exists():
        return f"{key} is damaged and will be rebuilt"
    return _changes(store, node) or f"{key} was never built"


def _changes(store: Store, node: Node) -> str:
    """What differs from the newest artifact of the same name."""
    found = []
    for path in (store.cache / node.kind).glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):
            manifest = json.loads(path.read_text())
            if manifest.get("name") == node.name:
                found.append((path.stat().st_mtime_ns, manifest))
    if not found:
        return ""
    old = max(found, key=lambda pair: pair[0])[1]
    now: dict[str, Any] = json.loads(canonical(node.inputs))
    was = old["inputs"]
    changed = [f"input {k}" for k in sorted(now | was) if now.get(k) != was.get(k)]
    was = {tuple(pair) for pair in old["sources"]}
    changed += [f"source {name}" for name, sha in store.sources(node) if (name, sha) not in was]
    needs = store.needs(node) or {}
    was = {name: need["digest"] for name, need in old["needs"].items()}
    changed += [f"{name}" for name, need in needs.items() if was.get(name) != need.digest]
    return f"changed since last built: {', '.join(changed)}" if changed else ""
