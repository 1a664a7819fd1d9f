"""The configuration: composed by Hydra, checked against a typed schema, frozen, passed down.

One resolved document serves the whole graph. Below this door there is no OmegaConf, no environment
variable and no global. The resolved document is cached by (overrides, content of conf/, this
code), so that listing tasks and a build with nothing to do import no Hydra at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegate import faults, schema
from tilegate.device import Device
from tilegate.digests import digest
from tilegate.errors import UserError, nearest
from tilegate.settings import Config
from tilegate.store import ROOT, default_cache

__all__ = ["Config", "Variants", "choices", "digest", "load", "overrides_of", "plain", "show"]

CONF = ROOT / "conf"
GROUPS = ("model", "tile", "fusion", "device", "chain", "gate", "weights")
BLOCK = (
    *("attn_norm", "q_proj", "k_proj", "v_proj", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm"),
    *("q_rope", "k_rope", "attention", "o_proj", "attn_residual", "mlp_norm", "gate_proj"),
    *("up_proj", "silu_mul", "down_proj", "mlp_residual"),
)
HEAD = ("final_norm", "logits")


def overrides_of(argv: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line that are Hydra overrides (`key=value`, `+key=value`)."""
    return tuple(word for word in argv if "=" in word and not word.startswith("-"))


def load(overrides: Sequence[str] = (), *, cwd: Path | None = None, conf: Path = CONF) -> Config:
    """The configuration under `overrides`. A relative weights.path is taken from `cwd`.

    Raises UserError, one line, for whatever is wrong with it.
    """
    document = _cached(tuple(overrides), conf)
    config = schema.build(Config, document, "")
    # One reader for both ways to a device: costs of a function's variants start from its own.
    config = dataclasses.replace(config, device=Device.from_dict(document["device"]))
    _check(config)
    path = config.weights.path
    if path is not None:
        absolute = str((cwd or Path.cwd()) / Path(path).expanduser())
        config = dataclasses.replace(
            config, weights=dataclasses.replace(config.weights, path=absolute)
        )
    return config


class Variants:
    """Configurations that differ in a few values, without composing each one anew.

    Words that choose a file or are more than `key=value` are composed, once per combination.
    """

    def __init__(self, conf: Path = CONF) -> None:
        self.conf = conf
        self._bases: dict[tuple[str, ...], dict[str, Any]] = {}
        self._values: dict[str, tuple[str, Any]] = {}

    def load(self, overrides: Sequence[str]) -> Config:
        """As the function `load`, for words whose values are plain."""
        composed: list[str] = []
        values: list[str] = []
        for word in overrides:
            (values if self._plain(word) else composed).append(word)
        base = tuple(composed)
        if base not in self._bases:
            self._bases[base] = _cached(base, self.conf)
        document = self._bases[base]
        for word in values:
            document = self._with(document, word, *self._values[word])
        config = schema.build(Config, document, "")
        _check(config)
        return config

    def _plain(self, word: str) -> bool:
        """Whether the word gives a key a scalar or a list; its value is then known."""
        if word not in self._values:
            key = word.partition("=")[0]
            if key in GROUPS or key.startswith(("+", "~", "weights")) or "${" in word:
                return False
            _parse(word)
            value = _value(word)
            if isinstance(value, Mapping):
                return False
            self._values[word] = (key, value)
        return True

    def _with(self, document: dict[str, Any], word: str, key: str, value: Any) -> dict[str, Any]:
        changed = dict(document)
        inner = changed
        *parents, last = key.split(".")
        for name in parents:
            if not isinstance(inner.get(name), Mapping):
                raise UserError(f"{word}: unknown key {key!r}; {_hint(key, _keys(document))}")
            inner[name] = inner = dict(inner[name])
        if last not in inner or (isinstance(inner[last], Mapping) and value is not None):
            raise UserError(f"{word}: unknown key {key!r}; {_hint(key, _keys(document))}")
        if not isinstance(inner[last], Mapping):
            _same_shape({last: inner[last]}, {last: value}, ".".join(parents))
        inner[last] = value
        return changed


def _value(word: str) -> Any:
    """The value of an override as plain data."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString

    def plain_value(value: Any) -> Any:
        if isinstance(value, QuotedString):
            return value.text
        if isinstance(value, list):
            return [plain_value(each) for each in value]
        return value

    return plain_value(OverridesParser.create().parse_override(word).value())


def choices(conf: Path = CONF) -> dict[str, list[str]]:
    """The choices of each group: the names of its files."""
    return {group: sorted(p.stem for p in (conf / group).glob("*.yaml")) for group in GROUPS}


def plain(part: Any) -> Any:
    """`part` of a configuration as plain JSON data (mappings, lists, scalars)."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        part = dataclasses.asdict(part)
    return json.loads(json.dumps(part))


def show(config: Config) -> str:
    """The resolved configuration as YAML, then the choices of each group."""
    import yaml

    document = plain(config)
    taken = document.pop("choices")
    lines = [yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)]
    lines.append("# choices of each group (* taken)")
    for group, names in choices().items():
        marked = ", ".join(f"*{name}" if name == taken.get(group) else name for name in names)
        lines.append(f"# {group}: {marked}")
    return "\n".join(lines)


def _check(config: Config) -> None:
    """What no single value shows: contradicting dimensions, a fusion that loses an op."""
    m = config.model
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", m.name):
        raise UserError(
            f"model.name: {m.name!r} names a folder; use letters, digits, '.', '_', '-'"
        )
    faults.check(config.fault, m)
    if m.heads % m.kv_heads:
        raise UserError(
            f"model.heads: {m.heads} is not a multiple of model.kv_heads={m.kv_heads}; "
            f"the nearest is {max(1, round(m.heads / m.kv_heads)) * m.kv_heads}"
        )
    if m.head_dim % 2:
        raise UserError(f"model.head_dim: {m.head_dim} is odd; rope rotates pairs")
    s = config.sequence
    if not s.buckets or list(s.buckets) != sorted(set(s.buckets)):
        raise UserError(f"sequence.buckets: {list(s.buckets)} must be one or more rising lengths")
    if s.buckets[-1] > s.context:
        raise UserError(
            f"sequence.context: {s.context} is below the largest bucket {s.buckets[-1]}; "
            f"the least is {s.buckets[-1]}"
        )
    if s.context > m.max_context:
        raise UserError(f"sequence.context: {s.context} is over model.max_context={m.max_context}")
    if config.weights.mode == "path" and config.weights.path is None:
        raise UserError("weights.path: weights=path needs it; write weights.path=FOLDER_OR_FILE")
    _check_fusion("prefill", config.fusion.prefill, BLOCK)
    _check_fusion("decode", config.fusion.decode, BLOCK + HEAD)


def _check_fusion(
    phase: str, dispatches: Mapping[str, tuple[str, ...]], order: tuple[str, ...]
) -> None:
    listed = [op for ops in dispatches.values() for op in ops]
    for op in listed:
        if op not in order:
            raise UserError(f"fusion.{phase}: unknown op {op!r}; {nearest(op, order)}")
    for op in order:
        if listed.count(op) != 1:
            raise UserError(f"fusion.{phase}: {op} stands {listed.count(op)} times; it must once")
    if listed != list(order):
        first = next(got for got, want in zip(listed, order, strict=True) if got != want)
        raise UserError(f"fusion.{phase}: {first} is out of order; the order is {', '.join(order)}")


def _cached(overrides: tuple[str, ...], conf: Path) -> dict[str, Any]:
    """The composed document, from the cache when nothing that determines it has changed."""
    place = default_cache() / "config" / f"{_fingerprint(overrides, conf)}.json"
    try:
        entry = json.loads(place.read_text())
        if entry["digest"] == digest(entry["document"]):
            return dict(entry["document"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent or damaged: compose again
    document = _compose(overrides, conf)
    schema.build(Config, document, "")  # its errors say more than those of the digest below
    if any("${oc." in word for word in overrides):
        return document  # depends on more than the fingerprint
    temp = place.with_name(f".{place.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temp.write_text(json.dumps({"document": document, "digest": digest(document)}))
        temp.replace(place)
    except OSError:  # only slower without
        with contextlib.suppress(OSError):
            temp.unlink()
    return document


def _fingerprint(overrides: tuple[str, ...], conf: Path) -> str:
    found = hashlib.sha256(repr(overrides).encode())
    code = (Path(__file__), Path(schema.__file__))
    for path in (*sorted(conf.rglob("*.yaml")), *code):
        found.update(f"\0{path.name}\0{path.parent.name}\0".encode() + path.read_bytes())
    return found.hexdigest()[:32]


def _compose(overrides: tuple[str, ...], conf: Path) -> dict[str, Any]:
    """Compose twice, with the group choices alone and with all, so that no key can be invented."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def resolved(words: Sequence[str]) -> dict[str, Any]:
        config: Any = compose("config", overrides=list(words), return_hydra_config=True)
        taken = config.hydra.runtime.choices
        picked = {group: str(taken[group]) for group in GROUPS}
        OmegaConf.set_readonly(config, False)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        document = OmegaConf.to_container(config, resolve=True)
        assert isinstance(document, dict)
        return {**document, "choices": picked}

    with _aside(), initialize_config_dir(config_dir=str(conf), version_base="1.3"):
        parsed = [_parse(word) for word in overrides]
        groups = [word for word, key in zip(overrides, parsed, strict=True) if key in GROUPS]
        for word, key in zip(overrides, parsed, strict=True):
            _check_choice(word, key, conf)
        known: set[str] = set()
        try:
            base = resolved(groups)
            known |= {key for key in _keys(base) if not key.startswith("choices")}
            for word, key in zip(overrides, parsed, strict=True):
                if key not in known and key not in GROUPS:
                    raise UserError(f"{word}: unknown key {key!r}; {_hint(key, known)}")
            document = resolved(overrides)
        except (HydraException, OmegaConfBaseException) as error:
            key = str(getattr(error.__cause__, "full_key", None) or "")
            if key and known and key not in known:
                raise UserError(f"unknown key {key!r}; {_hint(key, known)}") from None
            raise UserError(f"configuration: {str(error).splitlines()[0]}") from None
    _same_shape(base, document)
    return document


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Compose while Hydra itself is at work, as in a sweep: it holds one state per process."""
    from hydra.core.global_hydra import GlobalHydra

    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = before


def _parse(word: str) -> str:
    """The key of one override. Raises UserError for bad syntax or for several values."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = word.lstrip("+~").partition("=")
    try:
        override = OverridesParser.create().parse_override(word)
    except (HydraException, ValueError):
        raise UserError(
            f"{word}: cannot be read as key=value; quote the value: {key}=\"'{value}'\""
        ) from None
    if override.is_sweep_override():
        raise UserError(
            f"{word}: several values where one is needed; "
            f"a list is {key}=[{value}], a sweep is python dodo.py -m {word}"
        )
    if override.package or not key:
        raise UserError(f"{word}: not a key=value of this configuration")
    if key.split(".")[0].split("/")[0] == "hydra":
        raise UserError(f"{word}: settings of hydra apply to sweeps only (python dodo.py -m)")
    if word.startswith("~"):
        raise UserError(f"{word}: a key cannot be removed; set it to null")
    return str(override.key_or_group)


def _check_choice(word: str, key: str, conf: Path) -> None:
    if key in GROUPS:
        name = word.partition("=")[2].strip("'\"")
        known = choices(conf)[key]
        if name not in known:
            raise UserError(f"{key}={name}: no such {key}; {nearest(name, known)}")


def _same_shape(base: Mapping[str, Any], document: Mapping[str, Any], prefix: str = "") -> None:
    """No override may add a key to what the files hold, or put text in the place of a number.

    What a file leaves at null may become a group; the typed schema judges it.
    """
    for name, value in document.items():
        path = schema.join(prefix, name)
        if name not in base:
            raise UserError(f"unknown key {path!r}; {_hint(path, _keys(base, prefix))}")
        old = base[name]
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            _same_shape(old, value, path)
        elif prefix.startswith("gate") and isinstance(old, int | float) and isinstance(value, str):
            raise UserError(f"{path}: {value!r} is not a number")


def _hint(key: str, known: set[str]) -> str:
    """The nearest key: in the same group first, then anywhere, else what stands in the group."""
    parent = key.rpartition(".")[0]
    while parent and parent not in known:
        parent = parent.rpartition(".")[0]
    depth = parent.count(".") + 2 if parent else 1
    inside = parent + "." if parent else ""
    group = {k for k in known if k.startswith(inside)}
    for names in (group, known):
        hint = nearest(key, names)
        if hint.startswith("did you mean"):
            return hint
    return nearest(key, {".".join(k.split(".")[:depth]) for k in group})


def _keys(document: Mapping[str, Any], prefix: str = "") -> set[str]:
    """All dotted keys of a document, groups included."""
    found: set[str] = set()
    for name, value in document.items():
        path = schema.join(prefix, name)
        found.add(path)
        if isinstance(value, Mapping):
            found |= _keys(value, path)
    return found
