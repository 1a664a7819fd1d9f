"""Lays a bundle: runner, dispatches with their predicted times, weights, tokenizer, manifest."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.manifest import BUNDLE_FORMAT, seal
from tilegate.compile import cpu_features, toolchain
from tilegate.deployment import Deployment, host_us
from tilegate.device import Device
from tilegate.digests import digest
from tilegate.dispatch import Dispatch, describe
from tilegate.settings import Config
from tilegate.store import ROOT, Artifact
from tilegate.timing import predict_dispatch

RUNTIME = ROOT / "runtime"
EXECUTABLE = "run"
ELSEWHERE = ("hf", "seq_len", "sweep", "cache")  # configuration that no deployment depends on


def runtime_files() -> tuple[Path, ...]:
    """The sources of the runner that go into every bundle."""
    return (RUNTIME / EXECUTABLE, *sorted(RUNTIME.glob("*.py")))


def predicted(dispatch: Dispatch, config: Config) -> dict[str, Any]:
    """`dispatch.json` with the predicted time of the dispatch, of its launches and of the host."""
    document = describe(dispatch)
    time = predict_dispatch([op.plan for op in dispatch.ops], config.device)
    document["predicted_us"] = time.us
    document["host_us"] = host_us(dispatch, config)
    for launch, one in zip(document["launches"], time.launches, strict=True):
        launch["predicted_us"] = one.us
        launch["bound"] = one.bound
    return document


def lay(
    folder: Path,
    documents: Sequence[Mapping[str, Any]],
    libraries: Mapping[str, Artifact],
    device_weights: Artifact,
    weights: Artifact,
) -> None:
    """Copy the parts of a bundle into `folder`; large files are hard links into the cache."""
    (folder / "runtime").mkdir(parents=True)
    for path in runtime_files():
        shutil.copy(
            path, folder / (EXECUTABLE if path.name == EXECUTABLE else f"runtime/{path.name}")
        )
    (folder / EXECUTABLE).chmod(0o755)
    for document in documents:
        place = folder / "dispatches" / document["name"]
        place.mkdir(parents=True)
        shutil.copy(libraries[document["name"]].file("dispatch.so"), place / "dispatch.so")
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        (place / "dispatch.json").write_text(text)
    _link(device_weights.file("weights.safetensors"), folder / "weights.safetensors")
    for name in ("tokenizer.json", "chat.json"):
        if name in weights.manifest["outputs"]:
            shutil.copy(weights.file(name), folder / name)


def manifest(
    deployment: Deployment,
    folder: Path,
    record: Mapping[str, Any],
    provenance: Mapping[str, Any],
    *,
    gates: Sequence[Any] = (),
    policy_changes: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
) -> bytes:
    """The sealed `manifest.json` of the bundle in `folder`; `record` is that of the weights.

    `policy_changes` tells how the gate policy differs from the committed one. A staged bundle has
    neither gates nor config: what it holds does not depend on them.
    """
    from tilegate.config import plain

    resolved = deployment.config
    model = plain(resolved.model)
    tokens = record.get("tokenizer") or {}
    files, sizes = _files(folder)
    prefill: dict[str, list[str]] = {}
    for dispatch in deployment.of_phase("prefill"):
        prefill.setdefault(str(dispatch.bucket), []).append(dispatch.name)
    document = {
        "format": BUNDLE_FORMAT,
        "model": {"name": resolved.model.name, **model},
        "weights": {key: record[key] for key in ("kind", "source", "identity", "sha256")},
        "device": clock(resolved.device),
        "prefill": {"buckets": list(resolved.sequence.buckets), "dispatches": prefill},
        "decode": {
            "dispatches": [d.name for d in deployment.of_phase("decode")],
            "context": resolved.sequence.context,
        },
        "lm_head": [d.name for d in deployment.of_phase("lm_head")],
        "rope": _rope(model["rope"]),
        "tokenizer": {
            "file": tokens.get("file"),
            "eos_ids": tokens.get("eos_ids", []),
            "bos_id": tokens.get("bos_id"),
        },
        "files": files,
        "sizes": sizes,
        "gates": list(gates),
        "policy_changes": list(policy_changes),
        "config": dict(config or {}),
        "tools": tools(),
        "provenance": dict(provenance),
    }
    return seal(document)


def _rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The rope section in the runner's words, which are those of the published configs."""
    scaling = rope["scaling"] and dict(rope["scaling"])
    if scaling:
        scaling["original_max_position_embeddings"] = scaling.pop("original_context")
    return {"theta": rope["theta"], "scaling": scaling}


def tools() -> dict[str, str]:
    """What the bundle was made with."""
    return {
        "cpu": digest(cpu_features()),
        "compiler": Path(toolchain().command[0]).name,
        "python": platform.python_version(),
    }


def clock(device: Device) -> dict[str, Any]:
    """The constants of the virtual clock that a runner needs; see runtime/manifest.py."""
    return {"name": device.name, "sync_us": 0.0, "sync_gbps": device.constant("bo_write_gbps")}


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without paths of this machine and what only other commands read."""
    config = {key: value for key, value in config.items() if key not in ELSEWHERE}
    if config["weights"]["path"]:
        config["weights"]["path"] = Path(config["weights"]["path"]).name
    return config


def _files(folder: Path) -> tuple[dict[str, str], dict[str, int]]:
    import hashlib

    digests, sizes = {}, {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name == "manifest.json":
            continue
        with path.open("rb") as stream:
            digests[name] = hashlib.file_digest(stream, "sha256").hexdigest()
        sizes[name] = path.stat().st_size
    return digests, sizes


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)  # another filesystem
