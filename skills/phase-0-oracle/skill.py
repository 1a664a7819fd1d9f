"""Phase 0: weights from their source, packed, and the FP32 truth that all gates compare with."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilegate import faults, gate, policy, records
from tilegate.config import load, plain
from tilegate.errors import UserError
from tilegate.evidence import Generation
from tilegate.graph import Graph
from tilegate.store import Build, Node


def nodes(graph: Graph, parameters: Mapping[str, Any]) -> Iterable[Node]:
    """weights, device-weights, oracle, gate:oracle. `prompts` names the prompt set."""
    config = graph.config
    model = plain(config.model)
    chosen = parameters.get("prompts", "quick")
    rules = policy.load(config.gate)
    prompts = rules.prompts[chosen]
    other = config.model.tokenizer_from
    asked = config.weights
    weights = Node(
        name="weights",
        kind="weights",
        doc=f"weights of {config.model.name}, every tensor accounted for",
        inputs={
            "model": model,
            "mode": asked.mode,
            "seed": asked.seed,
            "rehearse": asked.rehearse,
            "path": asked.path is not None,
            "tokenizer_model": plain(load([f"model={other}"]).model) if other else None,
        },
        needs=(),
        build=functools.partial(_weights, asked.path, graph.store.cache),
        sources=_files(asked.path),
    )
    device = Node(
        name="device-weights",
        kind="device-weights",
        doc="the same weights rounded to bf16, as the device holds them",
        inputs={},
        needs=(weights,),
        build=_device,
    )
    oracle = Node(
        name="oracle",
        kind="oracle",
        doc=f"FP32 forward on the CPU: golden tensors and tokens of {len(prompts)} prompts",
        inputs={"model": faults.oracle(config.fault, model), "prompts": list(prompts)},
        needs=(weights,),
        build=_oracle,
    )
    check = Node(
        name="gate:oracle",
        kind="gate",
        doc="the oracle against transformers in FP32: logits and greedy tokens",
        inputs={
            "model": model,
            "oracle": faults.oracle(config.fault, model),
            "policy": rules.sections["oracle"],
        },
        needs=(weights, oracle),
        build=functools.partial(_check, config.gate),
    )
    return weights, device, oracle, check


def _files(path: str | None) -> tuple[Path, ...]:
    """The files that a given path stands for: they are part of the key."""
    if path is None:
        return ()
    place = Path(path)
    if place.is_dir():
        return tuple(sorted(p for p in place.iterdir() if p.suffix in (".safetensors", ".json")))
    if not place.exists():
        raise UserError(f"weights.path: {path} does not exist")
    return (place,)


def _spec(model: Mapping[str, Any]) -> Any:
    from oracle.spec import ModelSpec

    return ModelSpec.from_dict(model)


def _weights(path: str | None, cache: Path, build: Build) -> None:
    from oracle.pack import pack
    from oracle.weights import WeightRequest, resolve

    model = build.inputs["model"]
    other = build.inputs["tokenizer_model"]
    request = WeightRequest(
        mode=build.inputs["mode"],
        path=Path(path) if path else None,
        rehearse=build.inputs["rehearse"],
        cache_dir=cache / "downloads",
        seed=build.inputs["seed"],
        tokenizer_model=_spec(other) if other else None,
    )
    build.progress("looking for the weights")
    with _explained():
        found = resolve(_spec(model), request)
        build.progress(f"packing {found.source.info.origin}")
        record = pack(_spec(model), found.source, build.out)
    build.notes["tried"] = list(found.tried)
    if record["kind"] == "rehearsal":
        for line in found.tried:
            build.progress(f"not available: {line}")


def _device(build: Build) -> None:
    from oracle.pack import device_pack

    source = build.need("weights").file("model.safetensors")
    with _explained():
        device_pack(source, build.out / "weights.safetensors")


def _oracle(build: Build) -> None:
    from oracle.prompts import token_ids
    from oracle.traces import golden

    packed = build.need("weights").path
    spec = _spec(build.inputs["model"])
    with _explained():
        ids = token_ids(packed, build.inputs["prompts"], spec.vocab)
        golden(spec, packed, ids, build.out, progress=build.progress)


def _check(raw: Mapping[str, Any], build: Build) -> None:
    from oracle.check import reference_model, run_reference
    from oracle.forward import forward
    from oracle.pack import open_packed
    from oracle.traces import Golden

    rules = policy.load(raw)
    spec = _spec(build.inputs["model"])
    golden = Golden(build.need("oracle").path)
    tensors = open_packed(build.need("weights").path).tensors
    texts = [[*entry["tokens"], *entry["greedy"][:-1]] for entry in golden.prompts]
    build.progress("transformers in FP32 on the same weights")
    ours = forward(_spec(build.inputs["oracle"]), tensors, texts, all_logits=True).logits
    theirs = run_reference(reference_model(spec, tensors), texts)
    found = []
    for number, entry in enumerate(golden.prompts):
        picked = theirs[number][len(entry["tokens"]) - 1 :].argmax(-1).tolist()
        candidate = Generation(entry["greedy"], ours[number])
        reference = Generation(picked, theirs[number])
        subject = f"prompt {number}"
        found.append(gate.compare_oracle("oracle", subject, candidate, reference, rules))
    records.settle(build, spec.name, found, len(texts))


class _explained:
    """Turns the oracle's own errors into one-line user errors."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from oracle.errors import SpecError, WeightError

        if isinstance(error, SpecError | WeightError):
            raise UserError(str(error)) from None
