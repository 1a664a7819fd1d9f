"""The dispatches of the published models as plans, with the published tiles where there are any.

Used to fit and to score the timing model, not to deploy: tiles come from the measured table.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilegate import device as devices
from tilegate import kernels, measured, model, planner, timing
from tilegate.device import Device
from tilegate.model import Op
from tilegate.plan import TilePlan
from tilegate.settings import Model, Rope

INPUTS: tuple[str, ...] = (
    *("attn_norm", "q_proj", "k_proj", "v_proj", "q_bias", "k_bias", "v_bias"),
    *("q_norm", "k_norm", "q_rope", "k_rope"),
)
MLP = ("mlp_norm", "gate_proj", "up_proj", "silu_mul", "down_proj", "mlp_residual")
# Published dispatch -> the ops that it holds. Attention of decode runs on the host there.
DISPATCHES = {
    "rms_gemms_rope": INPUTS,
    "rms_qkv_bias_rope": INPUTS,
    "rms_gemv_rope": INPUTS,
    "flash_attn": ("attention",),
    "o_ffn": ("o_proj", "attn_residual", *MLP),
    "o_gemv_ffn": ("o_proj", "attn_residual", *MLP),
    "o_res_norm": ("o_proj", "attn_residual", "mlp_norm"),
    "gate": ("gate_proj",),
    "up": ("up_proj",),
    "swiglu": ("silu_mul",),
    "down_add": ("down_proj", "mlp_residual"),
}


def model_of(row: Mapping[str, Any]) -> Model:
    """Our model of a row's dimensions."""
    c = row["config"]
    return Model(
        name=row["model"],
        family=c["family"],
        rope=Rope(10000.0),
        tied=True,
        qkv_bias=c["family"] == "qwen2.5",
        qk_norm=c["family"] == "qwen3",
        hub=None,
        wheel=None,
        tokenizer_from=None,
        layers=c["layers"],
        dim=c["emb"],
        heads=c["n_q"],
        kv_heads=c["n_kv"],
        head_dim=c["head_dim"],
        hidden=c["hidden"],
        vocab=c["vocab"],
        norm_eps=1e-5,
        max_context=4096,
    )


@functools.cache
def models() -> dict[str, Model]:
    """Published decoders by name."""
    rows = [r for r in measured.load() if r["op"] == "model" and r["config"]["vocab"]]
    return {r["model"]: model_of(r) for r in rows}


@functools.cache
def _tiles(direct: bool) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The fastest measured tile of each op and shape with results in bf16."""
    best: dict[tuple[Any, ...], tuple[float, dict[str, Any]]] = {}
    for row in measured.load():
        named = measured.translate(row)
        if named is None or not row.get("latency_us") or row.get("out_dtype") == "f32":
            continue
        op, shape, tile = named
        if "method" in tile and (tile["method"] == "direct") != direct:
            continue
        key = (op, *sorted((n, v) for n, v in shape.items() if n != "eps"))
        if row["role"] in ("table", "sweep") and (
            key not in best or row["latency_us"] < best[key][0]
        ):
            best[key] = (row["latency_us"], tile)
    return {key: tile for key, (_, tile) in best.items()}


def plan(op: Op, decoder: Model) -> TilePlan:
    """The plan of an op with its published tile, else the planner's.

    The published builds with biases run their gate and up projections by the direct method.
    """
    return _plan(op.kernel, op.shape, decoder.qkv_bias and op.group == "gate_up")


@functools.cache
def _plan(kernel: str, fields: tuple[tuple[str, Any], ...], direct: bool) -> TilePlan:
    shape = dict(fields)
    key = (kernel, *sorted((n, v) for n, v in shape.items() if n != "eps"))
    tile = _tiles(direct).get(key)
    if kernel == "silu_mul":
        tile = {"herd": (8, 1), "tile_n": 4096} if shape["N"] % 32768 == 0 else None
    if tile is None or kernel == "flash_attention":
        tile = planner.choose(kernel, shape, "auto", devices.load(), stitched=kernel == "gemm")
    return kernels.contract(kernel).plan(shape, tile)


def dispatch(name: str, decoder: Model, phase: str, tokens: int = 2048) -> list[TilePlan]:
    """The plans of one published dispatch, in program order."""
    if name == "lm_head_gemv":  # its norm runs on the host
        return [plan(op, decoder) for op in model.lm_head(decoder).ops if op.kernel == "gemv"]
    block = model.decode if phase == "decode" else model.prefill
    ops = block(decoder, tokens).ops
    return [plan(op, decoder) for op in ops if op.name in DISPATCHES[name]]


@dataclass(frozen=True)
class ModelRow:
    """Time to the first token, or per token, of a whole published model."""

    id: str
    shape: str
    us: float
    layers: int
    works: tuple[timing.Work, ...]  # of one layer
    head: tuple[timing.Work, ...]
    dispatches: int  # of one layer
    activation_bytes: int

    def predict(self, device: Device) -> float:
        layer = timing.price_dispatch(self.works, device, "elf").us
        layer += self.dispatches * timing.host_us(device, self.activation_bytes)
        head = timing.price_dispatch(self.head, device, "elf").us
        return self.layers * layer + head + timing.host_us(device, 0)


@functools.cache
def model_rows() -> tuple[ModelRow, ...]:
    """Published times of whole models; repeats with other weights or toolchains left out."""
    phases: dict[str, tuple[str, ...]] = {
        "prefill": ("rms_gemms_rope", "flash_attn", "o_ffn"),
        "decode": ("rms_gemv_rope", "o_gemv_ffn"),
    }
    found = []
    for row in measured.load():
        if row["op"] != "model" or row["role"] != "e2e" or row["model"] not in models():
            continue
        decoder = models()[row["model"]]
        head = _works([dispatch("lm_head_gemv", decoder, "decode")])
        times = {"prefill": row["ttft_s"] * 1e6, "decode": 1e6 / row["decode_tok_s"]}
        for phase, names in phases.items():
            one = ModelRow(
                f"{row['id']}.{phase}",
                row["model"],
                times[phase],
                decoder.layers,
                _works([dispatch(name, decoder, phase) for name in names]),
                head,
                row[f"elf_per_layer_{phase}"],
                (row["seq_len"] if phase == "prefill" else 1) * decoder.dim * 2,
            )
            found.append(one)
    return tuple(found)


def _works(dispatches: list[list[TilePlan]]) -> tuple[timing.Work, ...]:
    plans = (one for plans in dispatches for one in plans)
    return tuple(timing.measure(launch) for one in plans for launch in one.launches)
