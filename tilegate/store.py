"""The content-addressed store: what was built, from what, and is it still what was built.

A `Node` names one step of the deployment. Its key is the digest of all that determines its bytes:
kind, inputs, the content of its source files and the *output* digests of what it needs, so that an
upstream change which yields identical bytes stops there. `Store.make` builds into a private
sibling folder and renames it whole to `<cache>/<kind>/<key>/`; `Store.find` hands an artifact back
only when its files hold their recorded digests. Existence is never freshness.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilegate import disk
from tilegate.digests import RACY_NS, Digests, canonical, digest, signature
from tilegate.disk import locked, sync
from tilegate.errors import BrokenTool, UserError
from tilegate.pycode import Code

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = 2
MANIFEST = "manifest.json"
KEY_DIGITS = 32
USE_S = 600  # an artifact in use is noted again after this time


def default_cache() -> Path:
    """`build/cache`, unless TILEGATE_CACHE names another folder."""
    moved = os.environ.get("TILEGATE_CACHE")
    return Path(moved).resolve() if moved else ROOT / "build" / "cache"


@dataclass(frozen=True)
class Artifact:
    """A published result: its folder, key, output digest and manifest."""

    path: Path
    key: str
    digest: str
    manifest: Mapping[str, Any]

    def file(self, name: str) -> Path:
        """The path of one recorded output. Raises KeyError for a name that is not one."""
        if name not in self.manifest["outputs"]:
            raise KeyError(f"{self.path.parent.name} artifact {self.key} has no file {name!r}")
        return self.path / name


@dataclass
class Build:
    """What a build function sees: where to write, what it was given, whom to tell."""

    node: Node
    out: Path
    needs: Mapping[str, Artifact]
    report: Callable[[str], None]
    notes: dict[str, Any] = field(default_factory=dict)
    """Facts for the manifest that are not part of the output digest (commands, versions)."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        return self.node.inputs

    def need(self, name: str) -> Artifact:
        """The artifact of a needed node. Raises KeyError for a node that was not declared."""
        return self.needs[name]

    def progress(self, text: str) -> None:
        self.report(text)


@dataclass(frozen=True, eq=False)
class Node:
    """One step. `build` is a module-level function (or functools.partial of one): it is pickled.

    `sources` are files whose content is part of the key, byte for byte. So is the Python that
    `build` reaches (see `tilegate.pycode`), with that of the modules in `code`, which it loads by
    path. All are hashed before and after the build. `after` only orders: those nodes come first,
    but what they are does not matter here. `by_key` is for a result that names where its needs
    came from: then their keys count too. `install` and `installed` serve the rare node whose
    result must also stand elsewhere (promotion): it holds only when `installed(artifact)`.
    """

    name: str
    kind: str
    doc: str
    inputs: Mapping[str, Any]
    needs: tuple[Node, ...]
    build: Callable[[Build], None]
    sources: tuple[Path, ...] = ()
    code: tuple[Path, ...] = ()
    after: tuple[Node, ...] = ()
    by_key: bool = False
    install: Callable[[Artifact], None] | None = None
    installed: Callable[[Artifact], bool] | None = None


class Store:
    """The artifacts under one cache folder. Safe to share between threads and processes."""

    def __init__(self, cache: Path | None = None, state: Path | None = None) -> None:
        self.cache = cache or default_cache()
        self.state = state or ROOT / "build" / "state"
        self.digests = Digests(self.state / "digests.json")
        self._code = Code(self.digests)
        self._found: dict[Node, Artifact] = {}
        self._swept = False

    def __getstate__(self) -> dict[str, Path]:
        return {"cache": self.cache, "state": self.state}

    def __setstate__(self, state: dict[str, Path]) -> None:
        Store.__init__(self, state["cache"], state["state"])

    def key(self, node: Node) -> str | None:
        """The node's key; None while something that it needs is not built.

        Raises UserError when a source file cannot be read.
        """
        needs = self.needs(node)
        return None if needs is None else self._key(node, needs)

    def find(self, node: Node) -> Artifact | None:
        """The valid artifact of the node as it is configured now, or None."""
        known = self._found.get(node)
        if known:
            return known
        key = self.key(node)
        found = self._read(node.kind, key) if key else None
        if found:
            _use(found, USE_S)
            self._found[node] = found
        return found

    def done(self, node: Node) -> bool:
        """Whether the node holds: its artifact is valid and, where it must be, installed."""
        artifact = self.find(node)
        return bool(artifact and (node.installed is None or node.installed(artifact)))

    def make(self, node: Node, report: Callable[[str], None] = lambda text: None) -> Artifact:
        """The node's artifact, built if need be; what it needs must have been made before.

        One builder per key: a second one waits and takes the result. Raises BrokenTool when the
        disk is full or read-only, UserError when a source changed during the build, and whatever
        `node.build` raises; in each case nothing is published.
        """
        needs = self.needs(node)
        if needs is None:
            missing = ", ".join(need.name for need in node.needs if not self.find(need))
            raise BrokenTool(f"{node.name}: needs {missing}, not built")
        key = self._key(node, needs)
        with disk.guarded(node.name, self.cache):
            self._sweep()
            (self.cache / node.kind).mkdir(parents=True, exist_ok=True)
            with locked(self._lock_path(node.kind, key)):
                artifact = self._read(node.kind, key)
                if artifact is None:
                    artifact = self._build(node, key, needs, report)
        _use(artifact, 0)
        self._found[node] = artifact
        if node.install and not (node.installed and node.installed(artifact)):
            node.install(artifact)
            time.sleep(RACY_NS / 1e9)  # links made just now have touched the files' time stamps
            self._read(node.kind, key)
        self.digests.save()
        return artifact

    def remove(self, node: Node, *, dry: bool = False) -> list[Path]:
        """Delete the node's artifact: what its manifest records, then the emptied folders."""
        artifact = self.find(node)
        if artifact is None:
            return []
        gone = [artifact.path / name for name in (*artifact.manifest["outputs"], MANIFEST)]
        if dry:
            return gone
        with locked(self._lock_path(node.kind, artifact.key)):
            for path in gone:
                path.unlink(missing_ok=True)
            folders = sorted({path.parent for path in gone}, reverse=True)
            for folder in (*folders, artifact.path):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        self._found.pop(node, None)
        return gone

    def needs(self, node: Node) -> dict[str, Artifact] | None:
        """The artifacts that the node needs, by name; None while one is not built."""
        found: dict[str, Artifact] = {}
        for need in node.needs:
            artifact = self.find(need)
            if artifact is None:
                return None
            found[need.name] = artifact
        return found

    def _key(self, node: Node, needs: Mapping[str, Artifact]) -> str:
        parts = {
            "schema": SCHEMA,
            "kind": node.kind,
            "inputs": node.inputs,
            "sources": self.sources(node),
            **self.python(node),
            "needs": sorted(
                [n.kind, n.name, needs[n.name].digest, needs[n.name].key if node.by_key else ""]
                for n in node.needs
            ),
        }
        return digest(parts)[:KEY_DIGITS]

    def sources(self, node: Node) -> list[list[str]]:
        """[name, digest] of each source; names are relative, so that checkouts share a cache."""
        try:
            return sorted([_relative(path), self.digests.of(path)] for path in node.sources)
        except OSError as error:
            raise UserError(
                f"{node.name}: cannot read source {error.filename}: {error.strerror}"
            ) from None

    def python(self, node: Node) -> dict[str, dict[str, str]]:
        """The digests of the code that the node runs, by file, and versions of its packages."""
        return self._code.of(node.build, node.code)

    def _lock_path(self, kind: str, key: str) -> Path:
        return self.cache / kind / f".{key}.lock"

    def _read(self, kind: str, key: str) -> Artifact | None:
        """The artifact at its place if manifest and files agree, else None."""
        path = self.cache / kind / key
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            outputs = manifest["outputs"]
            if manifest["schema"] != SCHEMA or manifest["key"] != key:
                return None
            if digest(outputs) != manifest["digest"]:
                return None
            for name, (size, sha) in outputs.items():
                file = path / name
                if file.stat().st_size != size or self.digests.of(file) != sha:
                    return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return Artifact(path, key, manifest["digest"], manifest)

    def _build(
        self, node: Node, key: str, needs: Mapping[str, Artifact], report: Callable[[str], None]
    ) -> Artifact:
        """Build under the key's lock: temp folder, outputs hashed and synced, one rename."""
        place = self.cache / node.kind / key
        temp = place.with_name(f".{key}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        sources, python = self.sources(node), self.python(node)
        start = time.monotonic()
        try:
            temp.mkdir()
            build = Build(node, temp, needs, report)
            node.build(build)
            again = Code(self.digests).of(node.build, node.code)
            if self.sources(node) != sources or again != python:
                raise UserError(f"{node.name}: a source file changed during the build; run again")
            outputs = _outputs(node.name, temp, self.digests)
            manifest = {
                "schema": SCHEMA,
                "name": node.name,
                "kind": node.kind,
                "key": key,
                "by_key": node.by_key,
                "digest": digest(outputs),
                "inputs": json.loads(canonical(node.inputs)),
                "sources": sources,
                **python,
                "needs": {
                    need.name: {
                        "kind": need.kind,
                        "key": needs[need.name].key,
                        "digest": needs[need.name].digest,
                    }
                    for need in node.needs
                },
                "notes": json.loads(canonical(build.notes)),
                "outputs": outputs,
                "seconds": round(time.monotonic() - start, 3),
            }
            (temp / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
            _publish(temp, place)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
        for name, (_, sha) in outputs.items():
            self.digests.remember(str(place / name), signature(place / name), sha)
        return Artifact(place, key, manifest["digest"], manifest)

    def _sweep(self) -> None:
        """Once per process: remove what killed builds left behind: nobody holds their lock."""
        if self._swept:
            return
        self._swept = True
        for temp in (*self.cache.glob("*/.*.tmp"), *self.cache.glob("*/.*.lock")):
            key = temp.name.split(".")[1]
            with (
                contextlib.suppress(BlockingIOError),
                locked(self._lock_path(temp.parent.name, key), wait=False),
            ):
                shutil.rmtree(temp, ignore_errors=True)


def _use(artifact: Artifact, after: float) -> None:
    """Note when an artifact was used, for those who tidy up: its manifest's time stamp."""
    with contextlib.suppress(OSError):  # a cache that others own
        manifest = artifact.path / MANIFEST
        if time.time() - manifest.stat().st_mtime >= after:
            os.utime(manifest)


@functools.cache
def _relative(path: Path) -> str:
    resolved = path.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else resolved.name


def _outputs(name: str, folder: Path, digests: Digests) -> dict[str, list[Any]]:
    """{relative name: [bytes, sha256]} of all files, each synced to disk."""
    outputs: dict[str, list[Any]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise BrokenTool(f"{name}: output {path.name} is a link, not a file")
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
                sha = hashlib.file_digest(stream, "sha256").hexdigest()
            outputs[path.relative_to(folder).as_posix()] = [path.stat().st_size, sha]
    if not outputs or MANIFEST in outputs:
        raise BrokenTool(f"{name}: the build wrote {'a ' + MANIFEST if outputs else 'nothing'}")
    return outputs


def _publish(temp: Path, place: Path) -> None:
    """Rename the finished folder to its place; a damaged predecessor makes way."""
    for folder in (temp / MANIFEST, temp):
        sync(folder)
    if place.exists():
        old = temp.with_suffix(".old.tmp")
        place.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    temp.rename(place)
    sync(place.parent)
