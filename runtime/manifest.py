"""The two contracts that a bundle carries as JSON: `manifest.json` and each `dispatch.json`.

`Manifest` and `Dispatch` parse and validate them; a violation is one `BundleError` line with the
file, the key, the value and what is wanted. This docstring is the definition that writers follow.

**dispatch.json** (beside `dispatch.so`, which exports `const char *tilegate_abi(void)` and
`int tilegate_run(void *const *args, int n_args, int threads)`)::

    {"abi": "tilegate-dispatch-1", "name": "decode.rms_gemv_rope", "phase": "decode",
     "bucket": null, "library": "dispatch.so", "predicted_us": 412.5, "host_us": 210.0,
     "arguments": [...], "launches": [...]}

`phase` is `prefill` (`bucket` = tokens S), `decode` or `lm_head` (`bucket` = null).
`predicted_us` is the time on the device, `host_us` what the host adds: starting and awaiting the
dispatch, and its handling of the activations. `launches` is read by people and profilers only.

Each argument has `name` (unique), `kind`, `role` (in, out, inout), `shape`, `dtype` (bf16, f32,
i32), `bytes` (= product of shape x width), and where the kind asks for it `value`, `tensor`,
`layout`, `row_start`:

========== =================== ====================================================================
kind       needs               bound to
========== =================== ====================================================================
activation value               the buffer of this value in the phase; `x` is the block's input and
                               `mlp_residual` its output, which is the next layer's `x`. An `in`
                               value must come from an earlier dispatch of the layer (or be `x`).
intermed.  value               as an activation, but neither host nor other dispatches touch it.
static     tensor, layout      a checkpoint tensor, written and synced once. `{layer}` in the name
                               is replaced. `row_start` (default 0) is the first row taken.
cache      value               rows 0..shape[0] of the layer's cache for this value, whose buffer is
                               [context, shape[1]]. In prefill a role `out` fills it and later
                               dispatches read it as `cache` or `activation`. In decode it is `in`:
                               before the dispatch the host moves the new row, which an earlier
                               dispatch put out as the activation of the same value, to `position`.
table      value, layout       a table that the host computes; value `rope`, layout `rope_rows`:
                               shape [R, head_dim]. Prefill: R = S * heads, row s * heads + h is the
                               table's row s. Decode: R = heads, every row is the one of the
                               current position. A row is bf16 cos (d/2) then sin (d/2).
position   -                   i32 [16], element 0 is the position of the current token.
========== =================== ====================================================================

Static layouts: `as-is` (the tensor, any shape with equal elements); `transposed` ([out, in] stored
as [in, out]); `padded_rows` ([rows, in] starting at `row_start`, zeros below the tensor's end).

**LM head**: the dispatches of `lm_head` start from `x` (= `mlp_residual`) as [1, dim], the last
real row of the last block's output. Their `out` activations with value `logits` (bf16 or f32)
are put together by `row_start`, the first vocabulary entry they hold; entries past the vocabulary
are padding.

**manifest.json**: see the fields of `Manifest`. `seal` gives its exact bytes, own digest included.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .errors import BundleError

BUNDLE_FORMAT = "tilegate-bundle-1"
DISPATCH_ABI = "tilegate-dispatch-1"
MANIFEST = "manifest.json"
UNHASHED = (MANIFEST, "python.hint")
"""Files of a bundle that `files` does not list: the manifest seals itself, the hint is local."""

WIDTH = {"bf16": 2, "f32": 4, "i32": 4}
KINDS = ("activation", "intermediate", "static", "cache", "table", "position")
LAYOUTS = {"static": ("as-is", "transposed", "padded_rows"), "table": ("rope_rows",)}
ROLES = ("in", "out", "inout")

T = TypeVar("T")


@dataclass(frozen=True)
class Argument:
    """One argument of a dispatch; see the module's docstring."""

    name: str
    kind: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    value: str | None
    tensor: str | None
    layout: str | None
    row_start: int

    @property
    def read(self) -> bool:
        return self.role != "out"

    @property
    def written(self) -> bool:
        return self.role != "in"


@dataclass(frozen=True)
class Dispatch:
    """A dispatch artifact: its folder, argument table and predicted times in microseconds."""

    folder: Path
    name: str
    phase: str
    bucket: int | None
    library: str
    predicted_us: float
    host_us: float
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Model:
    """The dimensions the runner needs."""

    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True)
class Rope:
    """`scaling` is null, {"type": "linear", "factor"} or {"type": "llama3", "factor",
    "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}."""

    theta: float
    scaling: Mapping[str, Any] | None


@dataclass(frozen=True)
class Timing:
    """Constants of the virtual clock for buffer syncs: microseconds, and GB/s."""

    sync_us: float
    sync_gbps: float


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`, in its own keys: `format`, `model` {name, layers, dim, heads, kv_heads,
    head_dim, vocab}, `weights` {kind: real | rehearsal}, `device` (see Timing), `prefill`
    {buckets, dispatches: {"256": [names]}}, `decode` {dispatches, context}, `lm_head` [names],
    `rope`, `tokenizer` {file | null, eos_ids, bos_id}, `files` {path: sha256} of every file but
    UNHASHED, and `sizes` {path: bytes} of the same. `raw` is the whole document, with what only
    people and other rooms read (config, gates, tools, provenance ...)."""

    model: Model
    weights_kind: str
    device: Timing
    prefill: Mapping[int, tuple[str, ...]]
    decode: tuple[str, ...]
    lm_head: tuple[str, ...]
    context: int
    rope: Rope
    tokenizer: str | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    files: Mapping[str, str]
    sizes: Mapping[str, int]
    raw: Mapping[str, Any]

    @property
    def dispatch_names(self) -> tuple[str, ...]:
        prefill = (name for names in self.prefill.values() for name in names)
        return tuple(dict.fromkeys((*prefill, *self.decode, *self.lm_head)))

    @property
    def rehearsal(self) -> bool:
        return self.weights_kind != "real"


class Reader:
    """A JSON object with typed access; every failure names the file, the key and the value."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise BundleError(f"{where}: an object is wanted, not {type(data).__name__}")
        self.data: dict[str, Any] = data
        self.where = where

    def get(self, key: str, kind: type[T], default: Any = ...) -> T:
        """The value of `key`, which must be of `kind` (an int serves as a float)."""
        value = self.data.get(key, default)
        if value is ...:
            raise BundleError(f"{self.where}: the key {key!r} is missing")
        if value is None and default is None:
            return None  # type: ignore[return-value]
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = f"{key!r} must be {kind.__name__}"
            raise BundleError(f"{self.where}: {wanted}, not {json.dumps(value)[:40]}")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings, or one string."""
        value = self.data.get(key)
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not items or any(not isinstance(n, str) for n in items):
            raise BundleError(f"{self.where}: {key!r} must name at least one dispatch")
        return tuple(items)

    def positive(self, key: str) -> int:
        value = self.get(key, int)
        if value <= 0:
            raise BundleError(f"{self.where}: {key!r} must be positive, not {value}")
        return value

    def section(self, key: str) -> Reader:
        return Reader(self.get(key, dict), f"{self.where}: {key}")


def read_dispatch(folder: Path) -> Dispatch:
    """Parse and validate `folder/dispatch.json`. Raises BundleError."""
    path = folder / "dispatch.json"
    reader = Reader(_load(path), str(path))
    abi = reader.get("abi", str)
    if abi != DISPATCH_ABI:
        raise BundleError(f"{path}: abi {abi!r} is not {DISPATCH_ABI!r}; rebuild the bundle")
    rows = reader.get("arguments", list)
    arguments = tuple(_argument(Reader(a, f"{path}: argument {i}")) for i, a in enumerate(rows))
    names = [argument.name for argument in arguments]
    if len(set(names)) != len(names) or not names:
        raise BundleError(f"{path}: arguments need names, each once")
    return Dispatch(
        folder=folder,
        name=reader.get("name", str),
        phase=reader.get("phase", str),
        bucket=reader.get("bucket", int, None),
        library=reader.get("library", str),
        predicted_us=reader.get("predicted_us", float),
        host_us=reader.get("host_us", float),
        arguments=arguments,
    )


def _argument(reader: Reader) -> Argument:
    shape = tuple(reader.get("shape", list))
    dtype, kind, role = (reader.get(key, str) for key in ("dtype", "kind", "role"))
    for key, given, known in (
        ("dtype", dtype, WIDTH),
        ("kind", kind, KINDS),
        ("role", role, ROLES),
    ):
        if given not in known:
            raise BundleError(f"{reader.where}: {key} {given!r} is not one of {', '.join(known)}")
    value = reader.get("value", str, None)
    tensor = reader.get("tensor", str, None)
    layout = reader.get("layout", str, None)
    if kind in LAYOUTS and layout not in LAYOUTS[kind]:
        names = ", ".join(LAYOUTS[kind])
        raise BundleError(f"{reader.where}: layout {layout!r} of a {kind} is not one of {names}")
    if kind == "static" and not tensor:
        raise BundleError(f"{reader.where}: a static argument names its tensor")
    if kind in ("activation", "intermediate", "cache", "table") and not value:
        raise BundleError(f"{reader.where}: an argument of kind {kind} names its value")
    size = reader.get("bytes", int)
    if any(not isinstance(n, int) or n <= 0 for n in shape) or not shape:
        raise BundleError(f"{reader.where}: shape {list(shape)} is not positive")
    if size != math.prod(shape) * WIDTH[dtype]:
        raise BundleError(f"{reader.where}: {size} bytes do not fit {dtype} {list(shape)}")
    name, row_start = reader.get("name", str), reader.get("row_start", int, 0)
    return Argument(name, kind, role, shape, dtype, size, value, tensor, layout, row_start)


def read_manifest(root: Path) -> Manifest:
    """Parse and validate `root/manifest.json`. Raises BundleError."""
    path = root / MANIFEST
    return parse_manifest(_load(path), str(path))


def parse_manifest(data: Any, where: str = MANIFEST) -> Manifest:
    """Validate a manifest document: every key that a runner reads is there and has its type."""
    top = Reader(data, where)
    version = top.get("format", str)
    if version != BUNDLE_FORMAT:
        raise BundleError(f"{where}: format {version!r}; this runner reads {BUNDLE_FORMAT!r} only")
    model, weights, tokens = (top.section(key) for key in ("model", "weights", "tokenizer"))
    dims = ("layers", "dim", "heads", "kv_heads", "head_dim", "vocab")
    kind = weights.get("kind", str)
    if kind not in ("real", "rehearsal"):
        raise BundleError(f"{weights.where}: kind {kind!r} is neither real nor rehearsal")
    decode, rope = top.section("decode"), top.section("rope")
    prefill = _buckets(top.section("prefill"))
    context = decode.positive("context")
    if max(prefill) > context:
        raise BundleError(f"{where}: bucket {max(prefill)} exceeds the context of {context}")
    return Manifest(
        model=Model(model.get("name", str), **{key: model.positive(key) for key in dims}),
        weights_kind=kind,
        device=parse_timing(top.get("device", dict), f"{where}: device"),
        prefill=prefill,
        decode=decode.names("dispatches"),
        lm_head=top.names("lm_head"),
        context=context,
        rope=Rope(rope.get("theta", float), rope.get("scaling", dict, None)),
        tokenizer=tokens.get("file", str, None),
        eos_ids=tuple(tokens.get("eos_ids", list)),
        bos_id=tokens.get("bos_id", int, None),
        files=top.get("files", dict),
        sizes=top.get("sizes", dict, {}),
        raw=top.data,
    )


def parse_timing(data: Any, where: str = "device") -> Timing:
    """The virtual clock's constants; other keys of `device` are left to other readers."""
    reader = Reader(data, where)
    fixed, rate = (reader.get(key, float) for key in ("sync_us", "sync_gbps"))
    if rate <= 0:
        raise BundleError(f"{where}: sync_gbps must be positive, not {rate}")
    return Timing(fixed, rate)


def _buckets(prefill: Reader) -> dict[int, tuple[str, ...]]:
    sizes = sorted(prefill.get("buckets", list))
    dispatches = prefill.section("dispatches")
    if not sizes or any(not isinstance(size, int) or size <= 0 for size in sizes):
        raise BundleError(f"{prefill.where}: buckets {sizes} must be positive token counts")
    return {size: dispatches.names(str(size)) for size in sizes}


def seal(data: Mapping[str, Any]) -> bytes:
    """The bytes of `manifest.json` for a document: canonical, with its own sha256 as `digest`."""
    body = {key: value for key, value in data.items() if key != "digest"}
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    return _canonical({**body, "digest": digest})


def sealed(data: bytes) -> bool:
    """Whether these bytes are exactly what `seal` wrote."""
    try:
        return seal(json.loads(data)) == data
    except (ValueError, TypeError, AttributeError):
        return False


def _canonical(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BundleError(f"{path} is missing: this is not a whole bundle") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from None
