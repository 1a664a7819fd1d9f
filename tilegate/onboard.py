"""`doit onboard hf=ORG/NAME`: a model file from a published `config.json`, or what forbids it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilegate.deployment import resolve
from tilegate.errors import UserError
from tilegate.settings import Config, Model, Rope, RopeScaling
from tilegate.store import ROOT, default_cache

MODELS = ROOT / "conf" / "model"
VARIANTS = ("-instruct", "-it", "-chat", "-base")  # of one model; its name goes without
NOT_PUBLISHED = "wheel: null\ntokenizer_from: null\n"


def main(config: Config) -> None:
    """Write conf/model/<name>.yaml and say what comes next. Raises UserError."""
    if not config.hf:
        raise UserError("onboard: hf=ORG/NAME, or hf=FOLDER with a config.json, is needed")
    published, hub = fetch(config.hf)
    name = name_of(hub or Path(config.hf).resolve().name)
    model = described(published, name, hub)
    planned(config, model)
    path = MODELS / f"{name}.yaml"
    before = path.read_text() if path.exists() else None
    text = render(model, before)
    weights = "" if hub else f" weights.path={Path(config.hf).resolve()}"
    if before == text:
        print(f"{path.relative_to(ROOT)} is as published; nothing to write")
    elif before is not None:
        line = next(
            a for a, b in zip(text.splitlines(), before.splitlines(), strict=False) if a != b
        )
        raise UserError(
            f"onboard: {path.relative_to(ROOT)} says otherwise (published: {line.strip()}); "
            "remove it to have it written anew"
        )
    else:
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    print(f"next: doit deploy model={name}{weights}")


def fetch(hf: str) -> tuple[dict[str, Any], str | None]:
    """The `config.json` of a folder, or of a repository on the hub, and the latter's name."""
    place = Path(hf)
    hub = None
    if place.is_dir():
        path = place / "config.json"
    elif place.is_file():
        path = place
    elif len(hf.split("/")) == 2 and not hf.startswith((".", "/", "~")):
        path, hub = _from_hub(hf), hf
    else:
        raise UserError(f"onboard: hf={hf} is neither ORG/NAME nor a folder that exists")
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"onboard: {hf} has no config.json") from None
    except ValueError as error:
        raise UserError(f"onboard: {path} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UserError(f"onboard: {path} is not a JSON object")
    return document, hub


def _from_hub(repository: str) -> Path:
    from oracle.errors import Unavailable
    from oracle.fetch import hub_config

    try:
        return hub_config(repository)
    except Unavailable as error:
        raise UserError(
            f"onboard: {error}; give a folder with its config.json instead (hf=FOLDER)"
        ) from None


def name_of(published: str) -> str:
    """The model's name here: that of the repository, lower case, without the kind of tuning."""
    name = published.split("/")[-1].lower()
    for ending in VARIANTS:
        name = name.removesuffix(ending)
    return name


def described(published: Mapping[str, Any], name: str, hub: str | None) -> Model:
    """The typed model of a published configuration. Raises UserError naming what is in the way."""
    from oracle import published as reading
    from oracle.errors import SpecError, WeightError

    try:
        fields = reading.described(published, name, hub)
    except (WeightError, SpecError) as error:
        raise UserError(f"onboard {name}: {error}") from None
    scaling = fields["rope"]["scaling"]
    rope = Rope(fields["rope"]["theta"], RopeScaling(**scaling) if scaling else None)
    return Model(**{**fields, "rope": rope})


def planned(config: Config, model: Model) -> None:
    """Every op of the model has a legal plan. Raises UserError for the first that has none."""
    try:
        resolve(dataclasses.replace(config, model=model), default_cache())
    except UserError as error:
        raise UserError(f"onboard {model.name}: no plan for the device: {error}") from None


def render(model: Model, before: str | None = None) -> str:
    """The text of the model's file; what no config.json says is kept from the file of before."""
    _, found, rest = (before or "").partition("\nwheel:")
    kept = f"wheel:{rest}" if found else NOT_PUBLISHED
    title = (model.hub or model.name).split("/")[-1]
    scaling = "null"
    if model.rope.scaling:
        items = dataclasses.asdict(model.rope.scaling).items()
        scaling = "{" + ", ".join(f"{key}: {value}" for key, value in items) + "}"
    flags = {name: str(getattr(model, name)).lower() for name in ("tied", "qkv_bias", "qk_norm")}
    return f"""# {title}, dimensions as in its published config.json.
name: {model.name}
family: {model.family}  # model type as published; gate 0 compares with its reference implementation

layers: {model.layers}
dim: {model.dim}
heads: {model.heads}
kv_heads: {model.kv_heads}
head_dim: {model.head_dim}
hidden: {model.hidden}
vocab: {model.vocab}
rope:
  theta: {model.rope.theta}
  scaling: {scaling}
norm_eps: {_small(model.norm_eps)}
tied: {flags["tied"]}
qkv_bias: {flags["qkv_bias"]}
qk_norm: {flags["qk_norm"]}
max_context: {model.max_context}

hub: {model.hub or "null"}
{kept}"""


def _small(value: float) -> str:
    """A small number as YAML reads it as one: with a point and without leading zeros."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa)}e{int(exponent)}"
