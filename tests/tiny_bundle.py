"""A whole bundle of a tiny decoder, whose dispatches are a few lines of C with the real ABI.

The decoder is no transformer of any family; it has what a runner must get right: a projection whose
weight is transposed in prefill, rope tables, a KV cache, residuals over layers, a padded and
partitioned head. `reference` is the same decoder in numpy.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtime.bf16 import narrow, widen
from runtime.manifest import WIDTH, seal

RUNTIME = Path(__file__).resolve().parent.parent / "runtime"
LAYERS, DIM, HEADS, CONTEXT, VOCAB, PART = 3, 64, 4, 24, 11, 8
HEAD_DIM = DIM // HEADS
BUCKETS = (4, 8)
TIMING: dict[str, Any] = {
    "sync_us": 2.0,
    "sync_gbps": 10.0,
}
PREDICTED_US, HOST_US = 100.0, 50.0

SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef uint16_t bf16;
const char *tilegate_abi(void) { return "tilegate-dispatch-1"; }
static float f(bf16 b) { uint32_t u = (uint32_t)b << 16; float v; memcpy(&v, &u, 4); return v; }
static bf16 h(float v) {
  uint32_t u; memcpy(&u, &v, 4);
  return v != v ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
#ifdef PROJECT /* x, w, table, bias -> q, k, v */
int tilegate_run(void *const *args, int n, int threads) {
  const bf16 *x = args[0], *w = args[1], *table = args[2], *bias = args[3];
  bf16 *q = args[4], *k = args[5], *v = args[6];
  for (int s = 0; s < S; s++)
    for (int o = 0; o < DIM; o++) {
      float sum = 0;
      for (int i = 0; i < DIM; i++)
        sum += f(x[s * DIM + i]) * f(TRANSPOSED ? w[i * DIM + o] : w[o * DIM + i]);
      q[s * DIM + o] = h(sum);
      k[s * DIM + o] = h(f(x[s * DIM + o]) * f(table[s * DIM + o])); /* HEADS rows of HEAD_DIM */
      v[s * DIM + o] = h(f(x[s * DIM + o]) + f(bias[o]));
    }
  return n == 7 ? 0 : 1;
}
#endif
#ifdef ATTEND /* x, q, k, v, position?, scratch, y */
int tilegate_run(void *const *args, int n, int threads) {
  const bf16 *x = args[0], *q = args[1], *k = args[2], *v = args[3];
  bf16 *scratch = args[n - 2], *y = args[n - 1];
  for (int s = 0; s < S; s++) {
    int last = n == 7 ? *(const int32_t *)args[4] : s;
    float p[CONTEXT], total = 0;
    for (int t = 0; t <= last; t++) {
      p[t] = 0;
      for (int i = 0; i < DIM; i++) p[t] += f(q[s * DIM + i]) * f(k[t * DIM + i]);
      total += p[t] = expf(p[t] / DIM);
    }
    for (int i = 0; i < DIM; i++) {
      float sum = 0;
      for (int t = 0; t <= last; t++) sum += p[t] / total * f(v[t * DIM + i]);
      scratch[s * DIM + i] = h(sum);
      y[s * DIM + i] = h(f(x[s * DIM + i]) + f(scratch[s * DIM + i]));
    }
  }
  return 0;
}
#endif
#ifdef HEAD /* x, scale, w0, w1 -> logits0, logits1 */
int tilegate_run(void *const *args, int n, int threads) {
  const bf16 *x = args[0], *scale = args[1];
  for (int part = 0; part < 2; part++)
    for (int o = 0; o < PART; o++) {
      const bf16 *w = (const bf16 *)args[2 + part] + o * DIM;
      float sum = 0;
      for (int i = 0; i < DIM; i++) sum += f(x[i]) * f(scale[i]) * f(w[i]);
      ((float *)args[4 + part])[o] = sum;
    }
  return 0;
}
#endif
"""


def argument(name: str, kind: str, role: str, shape: Sequence[int], **more: Any) -> dict[str, Any]:
    dtype = more.pop("dtype", "bf16")
    size = math.prod(shape) * WIDTH[dtype]
    base = {"name": name, "kind": kind, "role": role, "shape": list(shape), "dtype": dtype}
    if kind in ("activation", "intermediate", "cache"):
        more.setdefault("value", name)
    return {**base, "bytes": size, "value": None, "tensor": None, "layout": None, **more}


def static(
    name: str, tensor: str, shape: Sequence[int], layout: str = "as-is", start: int = 0
) -> Any:
    return argument(name, "static", "in", shape, tensor=tensor, layout=layout, row_start=start)


def project(phase: str, tokens: int) -> list[dict[str, Any]]:
    kv = "cache" if phase == "prefill" else "activation"
    layout = "transposed" if phase == "prefill" else "as-is"
    shape, layer = (tokens, DIM), "model.layers.{layer}."
    rope = {"value": "rope", "layout": "rope_rows"}
    return [
        argument("x", "activation", "in", shape),
        static("w", layer + "q.weight", (DIM, DIM), layout),
        argument("lut", "table", "in", (tokens * HEADS, HEAD_DIM), **rope),
        static("bias", layer + "v.bias", (DIM,)),
        argument("q_rope", "activation", "out", shape),
        argument("k_rope", kv, "out", shape),
        argument("v_proj", kv, "out", shape),
    ]


def attend(phase: str, tokens: int) -> list[dict[str, Any]]:
    shape = (tokens, DIM)
    rows = (CONTEXT if phase == "decode" else tokens, DIM)
    position = [argument("position", "position", "in", (16,), dtype="i32")]
    return [
        argument("x", "activation", "in", shape),
        argument("q_rope", "activation", "in", shape),
        argument("k_cache", "cache", "in", rows, value="k_rope"),
        argument(
            "v_cache", "cache" if phase == "decode" else "activation", "in", rows, value="v_proj"
        ),
        *(position if phase == "decode" else []),
        argument("attention", "intermediate", "out", shape),
        argument("mlp_residual", "activation", "out", shape),
    ]


def head() -> list[dict[str, Any]]:
    embedding = "model.embed_tokens.weight"
    parts = (0, PART)
    return [
        argument("x", "activation", "in", (1, DIM)),
        static("scale", "model.norm.weight", (DIM,)),
        *(static(f"w{i}", embedding, (PART, DIM), "padded_rows", i) for i in parts),
        *(
            argument(
                f"y{i}", "activation", "out", (PART,), dtype="f32", value="logits", row_start=i
            )
            for i in parts
        ),
    ]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """bf16 bits by checkpoint name."""
    random = np.random.default_rng(seed)
    values = {"model.embed_tokens.weight": random.normal(size=(VOCAB, DIM))}
    values["model.norm.weight"] = random.normal(size=DIM)
    for layer in range(LAYERS):
        values[f"model.layers.{layer}.q.weight"] = random.normal(size=(DIM, DIM))
        values[f"model.layers.{layer}.v.bias"] = random.normal(size=DIM)
    return {name: narrow(value) for name, value in values.items()}


def reference(tensors: Mapping[str, np.ndarray], rope: np.ndarray, ids: Sequence[int]) -> Any:
    """Logits f32 [vocab] after `ids`, and every layer's output f32 [tokens, DIM]."""

    def stored(value: np.ndarray) -> np.ndarray:
        return widen(narrow(value))

    wide = {name: widen(value) for name, value in tensors.items()}
    x = wide["model.embed_tokens.weight"][list(ids)]
    table = np.tile(widen(rope[: len(ids)]), (1, HEADS))
    outputs = []
    for layer in range(LAYERS):
        q = stored(x @ wide[f"model.layers.{layer}.q.weight"].T)
        k, v = stored(x * table), stored(x + wide[f"model.layers.{layer}.v.bias"])
        scores = np.exp(q @ k.T / DIM) * np.tri(len(ids))
        x = stored(x + stored(scores / scores.sum(1, keepdims=True) @ v))
        outputs.append(x)
    logits = wide["model.embed_tokens.weight"] @ (x[-1] * wide["model.norm.weight"])
    return logits, outputs


def write_dispatch(
    root: Path, name: str, phase: str, bucket: int | None, arguments: list[Any], *macros: str
) -> Path:
    """Compile and describe one dispatch in root/name."""
    folder = root / name
    folder.mkdir(parents=True)
    sizes = (f"DIM={DIM}", f"CONTEXT={CONTEXT}", f"PART={PART}", f"S={bucket or 1}")
    defines = [f"-D{macro}" for macro in (*sizes, *macros)]
    command = ["cc", "-O1", "-shared", "-fPIC", "-xc", *defines, "-o", str(folder / "dispatch.so")]
    subprocess.run([*command, "-", "-lm"], input=SOURCE.encode(), check=True)
    document = {
        "abi": "tilegate-dispatch-1",
        "name": name,
        "phase": phase,
        "bucket": bucket,
        "library": "dispatch.so",
        "predicted_us": PREDICTED_US,
        "host_us": HOST_US,
        "arguments": arguments,
        "launches": [],
    }
    (folder / "dispatch.json").write_text(json.dumps(document))
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    header, offset = {}, 0
    for name, value in tensors.items():
        span = [offset, offset + value.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": span}
        offset += value.nbytes
    text = json.dumps(header).encode()
    data = b"".join(value.tobytes() for value in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_tokenizer(root: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["</s>", "<user>", "<bot>", "a", "b", "c", "d", "e", "f", "g", "?"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(root / "tokenizer.json"))
    chat = {
        "format": "tilegate-chat-1",
        "kind": "turns",
        "eos_ids": [],
        "trim": False,
        "begin": "",
        "no_system": "",
        "roles": {
            "user": {"prefix": "<user> ", "suffix": " "},
            "assistant": {"prefix": "<bot> ", "suffix": " "},
        },
        "generation": "<bot>",
    }
    (root / "chat.json").write_text(json.dumps(chat))


def write_bundle(root: Path, kind: str = "real") -> Path:
    """A complete, sealed bundle in `root`."""
    root.mkdir(parents=True)
    prefill = {}
    for size in BUCKETS:
        names = [f"prefill_{size}.project", f"prefill_{size}.attend"]
        folder = root / "dispatches"
        write_dispatch(
            folder, names[0], "prefill", size, project("prefill", size), "PROJECT", "TRANSPOSED=1"
        )
        write_dispatch(folder, names[1], "prefill", size, attend("prefill", size), "ATTEND")
        prefill[str(size)] = names
    write_dispatch(
        folder, "decode.project", "decode", None, project("decode", 1), "PROJECT", "TRANSPOSED=0"
    )
    write_dispatch(folder, "decode.attend", "decode", None, attend("decode", 1), "ATTEND")
    write_dispatch(folder, "lm_head", "lm_head", None, head(), "HEAD")
    write_safetensors(root / "weights.safetensors", weights())
    write_tokenizer(root)
    shutil.copytree(RUNTIME, root / "runtime", ignore=shutil.ignore_patterns("__pycache__", "run"))
    shutil.copy(RUNTIME / "run", root / "run")
    model = {"name": "tiny", "layers": LAYERS, "dim": DIM, "heads": HEADS, "kv_heads": HEADS}
    document = {
        "format": "tilegate-bundle-1",
        "model": {**model, "head_dim": HEAD_DIM, "vocab": VOCAB},
        "weights": {"kind": kind},
        "device": TIMING,
        "prefill": {"buckets": list(BUCKETS), "dispatches": prefill},
        "decode": {"dispatches": ["decode.project", "decode.attend"], "context": CONTEXT},
        "lm_head": ["lm_head"],
        "rope": {"theta": 10000.0, "scaling": None},
        "tokenizer": {"file": "tokenizer.json", "eos_ids": [0], "bos_id": None},
        "gates": [],
    }
    reseal(root, document)
    return root


def reseal(root: Path, document: Mapping[str, Any]) -> None:
    """Write `manifest.json` for the files as they are."""
    paths = [p for p in sorted(root.rglob("*")) if p.is_file() and p.name != "manifest.json"]
    files = {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths
    }
    sizes = {p.relative_to(root).as_posix(): p.stat().st_size for p in paths}
    (root / "manifest.json").write_bytes(seal({**document, "files": files, "sizes": sizes}))
