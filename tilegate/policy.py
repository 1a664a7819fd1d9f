"""The numeric policy of the gates: thresholds that carry their note and source, or do not load."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tilegate.digests import digest
from tilegate.errors import UserError, nearest

ROOT = Path(__file__).resolve().parent.parent
Inputs = Literal["random", "real"]

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "block": (
        "cosine",
        "cosine_head_dim_64",
        "cosine_head_dim_128",
        "mean_rel_l1",
        "row_rel_l1",
        "launch",
    ),
    "model": ("steps", "top_k"),
    "oracle": ("max_abs", "steps"),
    "faster": ("too_good", "too_slow"),
}
TIER_KEYS = (
    "rtol",
    "atol",
    "published_scale",
    "mean_rel_l1",
    "near_zero",
    "near_zero_share",
    "real_mean_rel_l1",
    "real_outside_share",
    "real_excess",
)
PROMPT_SETS = ("quick", "full")


@dataclass(frozen=True)
class Threshold:
    """A number, why it is that number, and where it was published or measured."""

    value: float
    note: str
    source: str


@dataclass(frozen=True)
class Tolerance:
    """What a kernel's output may differ by, for one class of inputs.

    An element is outside when `|out - ref| > rtol*|ref| + atol*mean|ref row|/published_scale`.
    """

    name: str
    inputs: Inputs
    policy: str  # digest of the tier it belongs to
    thresholds: Mapping[str, Threshold]

    def __getitem__(self, key: str) -> float:
        return self.thresholds[key].value


@dataclass(frozen=True)
class Policy:
    """All thresholds and prompts. A record carries the digest of the part it was judged by."""

    tiers: Mapping[str, Mapping[str, Threshold]]
    sections: Mapping[str, Mapping[str, Threshold]]
    prompts: Mapping[str, tuple[str, ...]]
    digest: str

    def tier(self, name: str, inputs: Inputs = "random") -> Tolerance:
        """Tolerance of a kernel tier for random or for real activations."""
        if name not in self.tiers:
            raise UserError(f"gate policy has no tier {name!r}: {nearest(name, self.tiers)}")
        found = self.tiers[name]
        kept = {key: found[key] for key in TIER_KEYS[:6]}
        if inputs == "real":
            kept["mean_rel_l1"] = found["real_mean_rel_l1"]
            kept["outside_share"] = found["real_outside_share"]
            kept["excess"] = found["real_excess"]
        return Tolerance(name, inputs, digest(found), kept)

    def part(self, section: str) -> str:
        """The digest of one section's thresholds."""
        return digest(self.sections[section])

    def changed_from(self, committed: Policy) -> list[str]:
        """Thresholds and prompts that differ from the committed policy, as readable lines."""
        ours, theirs = _flat(self), _flat(committed)
        return [
            f"{key}: {theirs.get(key)} -> {ours.get(key)}"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
        ]


def _flat(policy: Policy) -> dict[str, Any]:
    groups = {**{f"tiers.{name}": tier for name, tier in policy.tiers.items()}, **policy.sections}
    flat: dict[str, Any] = {
        f"{group}.{key}": threshold.value
        for group, thresholds in groups.items()
        for key, threshold in thresholds.items()
    }
    return {**flat, **{f"prompts.{name}": texts for name, texts in policy.prompts.items()}}


def load(raw: Mapping[str, Any]) -> Policy:
    """The policy from the plain mapping of `conf/gate/*.yaml`.

    Raises UserError, one line, for an unknown or missing key, a value that is no finite number
    of at least zero, or a threshold without note or source.
    """
    _keys("gate", raw, ("sources", "tiers", *SECTIONS, "prompts"))
    sources = {
        str(name): str(text) for name, text in _mapping("gate.sources", raw["sources"]).items()
    }
    tiers = _mapping("gate.tiers", raw["tiers"])
    if not tiers:
        raise UserError("gate.tiers is empty: a policy needs a tier for every kernel")
    return Policy(
        tiers={
            str(name): _thresholds(f"gate.tiers.{name}", tier, TIER_KEYS, sources)
            for name, tier in tiers.items()
        },
        sections={
            name: _thresholds(f"gate.{name}", raw[name], keys, sources)
            for name, keys in SECTIONS.items()
        },
        prompts=_prompts(raw["prompts"]),
        digest=digest(raw),
    )


def committed(remember: Callable[[str, Path, Callable[[], Any]], Any] | None = None) -> Policy:
    """The policy of conf/gate/default.yaml, which others are held against.

    `remember` keeps what follows from a file's content (see `tilegate.digests`): YAML is slow.
    """
    path = ROOT / "conf" / "gate" / "default.yaml"
    return load(remember("policy", path, lambda: _yaml(path)) if remember else _yaml(path))


def _yaml(path: Path) -> Any:
    import yaml

    return yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _mapping(where: str, raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise UserError(f"{where} must be a mapping, not {raw!r}")
    return raw


def _keys(where: str, raw: Any, known: tuple[str, ...]) -> None:
    _mapping(where, raw)
    for key in raw:
        if key not in known:
            raise UserError(f"{where}.{key} is unknown: {nearest(str(key), known)}")
    for key in known:
        if key not in raw:
            raise UserError(f"{where}.{key} is missing: a gate without it would pass unseen")


def _thresholds(
    where: str, raw: Any, known: tuple[str, ...], sources: Mapping[str, str]
) -> dict[str, Threshold]:
    _keys(where, raw, known)
    return {key: _threshold(f"{where}.{key}", raw[key], sources) for key in known}


def _threshold(where: str, raw: Any, sources: Mapping[str, str]) -> Threshold:
    _keys(where, raw, ("value", "note", "source"))
    value, note, source = raw["value"], raw["note"], raw["source"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{where}.value must be a number, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{where}.value must be finite and at least 0, not {value!r}")
    if not isinstance(note, str) or not note.strip():
        raise UserError(f"{where}.note is empty: say what the number rests on")
    if source not in sources or not sources[source].strip():
        raise UserError(
            f"{where}.source {source!r} is not in gate.sources: {nearest(str(source), sources)}"
        )
    return Threshold(value, note, sources[source])


def _prompts(raw: Any) -> dict[str, tuple[str, ...]]:
    _keys("gate.prompts", raw, PROMPT_SETS)
    for name in PROMPT_SETS:
        texts = raw[name]
        if not isinstance(texts, list) or not texts:
            raise UserError(f"gate.prompts.{name} must be a list of at least one prompt")
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError(f"gate.prompts.{name} holds an empty prompt")
        if len(set(texts)) != len(texts):
            raise UserError(f"gate.prompts.{name} holds a prompt twice")
    return {name: tuple(raw[name]) for name in PROMPT_SETS}
