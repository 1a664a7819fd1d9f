"""A bundle on disk: what the runner needs of it, and the check that nothing of it changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BundleError
from .manifest import MANIFEST, UNHASHED, Dispatch, Manifest, read_dispatch, read_manifest, sealed

if TYPE_CHECKING:
    from .weights import Tensors

WEIGHTS = "weights.safetensors"
DISPATCHES = "dispatches"


@dataclass(frozen=True)
class Bundle:
    """What a runner runs: manifest, tensors by checkpoint name, dispatches by name."""

    manifest: Manifest
    tensors: Tensors
    dispatches: Mapping[str, Dispatch]


def load(root: Path) -> Bundle:
    """The bundle in `root`. Raises BundleError, also when a file is missing or has another size."""
    from .weights import read_safetensors

    manifest = read_manifest(root)
    check_structure(root, manifest)
    names = manifest.dispatch_names
    dispatches = {name: read_dispatch(root / DISPATCHES / name) for name in names}
    return Bundle(manifest, read_safetensors(root / WEIGHTS), dispatches)


def check_structure(root: Path, manifest: Manifest) -> None:
    """The quick check at every start: each listed file is there, with its size."""
    for name in manifest.files:
        path = root / name
        if not path.is_file():
            raise BundleError(f"broken bundle: {name} is missing from {root}")
        size, wanted = path.stat().st_size, manifest.sizes.get(name)
        if wanted is not None and size != wanted:
            raise BundleError(f"broken bundle: {name} has {size} bytes, not {wanted}")


def differences(root: Path, manifest: Manifest) -> Iterator[str]:
    """One line for every file that is changed, missing or extra; none when all is as promoted."""
    if not sealed((root / MANIFEST).read_bytes()):
        yield f"changed: {MANIFEST}"
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    for name, wanted in sorted(manifest.files.items()):
        if name not in found:
            yield f"missing: {name}"
        elif _sha256(root / name) != wanted:
            yield f"changed: {name}"
    for name in sorted(found - set(manifest.files) - set(UNHASHED)):
        yield f"extra:   {name}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
