"""The dispatches of the published models as plans, with the published tiles where there are any.

Used to fit and to score the timing model, never to deploy: tiles come from the measured table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilegate import kernels, measured, planner, timing
from tilegate import model as decoders
from tilegate.device import Device
from tilegate.model import Op
from tilegate.plan import TilePlan
from tilegate.settings import Model, Rope

INPUTS: tuple[str, ...] = (
    *("attn_norm", "q_proj", "k_proj", "v_proj", "q_bias", "k_bias", "v_bias"),
    *("q_norm", "k_norm", "q_rope", "k_rope"),
)
MLP = ("mlp_norm", "gate_proj", "up_proj", "silu_mul", "down_proj", "mlp_residual")
Works: TypeAlias = tuple[timing.Work, ...]

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
LAYER = {
    "prefill": ("rms_gemms_rope", "flash_attn", "o_ffn"),
    "decode": ("rms_gemv_rope", "o_gemv_ffn"),
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


class Published:
    """The published decoders of a file of measurements: their dispatches and whole-model times."""

    def __init__(self, records: Sequence[Mapping[str, Any]], device: Device) -> None:
        self.device = device
        self.records = records
        self.models = {
            r["model"]: model_of(r) for r in records if r["op"] == "model" and r["config"]["vocab"]
        }
        self.tiles = {direct: fastest_tiles(records, direct) for direct in (False, True)}
        self._plans: dict[tuple[Any, ...], TilePlan] = {}

    def plan(self, op: Op, decoder: Model) -> TilePlan:
        """The plan of an op with its published tile, else the planner's.

        The published builds with biases run their gate and up projections by the direct method.
        """
        direct = decoder.qkv_bias and op.group == "gate_up"
        key = (op.kernel, op.shape, direct)
        if key not in self._plans:
            shape = op.shape_dict
            tile = self.tiles[direct].get(_key(op.kernel, shape))
            if op.kernel == "silu_mul":
                tile = {"herd": (8, 1), "tile_n": 4096} if shape["N"] % 32768 == 0 else None
            if tile is None or op.kernel == "flash_attention":
                stitched = op.kernel == "gemm"
                tile = planner.choose(op.kernel, shape, "auto", self.device, stitched)
            self._plans[key] = kernels.contract(op.kernel).plan(shape, tile)
        return self._plans[key]

    def dispatch(self, name: str, model: str, phase: str, tokens: int = 2048) -> Works:
        """The work of one published dispatch, in program order.

        Raises KeyError for a model or dispatch that is not known here.
        """
        decoder = self.models[model]
        if name == "lm_head_gemv":  # its norm runs on the host
            ops = [op for op in decoders.lm_head(decoder).ops if op.kernel == "gemv"]
        else:
            block = decoders.decode if phase == "decode" else decoders.prefill
            wanted = DISPATCHES[name]
            ops = [op for op in block(decoder, tokens).ops if op.name in wanted]
        plans = [self.plan(op, decoder) for op in ops]
        return tuple(timing.measure(launch) for plan in plans for launch in plan.launches)

    def model_rows(self, record: Mapping[str, Any]) -> Iterator[ModelRow]:
        """Time to the first token and per token of a record of a whole model.

        Repeats with other weights or toolchains are left out.
        """
        if record["role"] != "e2e" or record["model"] not in self.models:
            return
        if "ttft_s" in record:
            yield self._model_row(record, "prefill", record["ttft_s"] * 1e6)
        if "decode_tok_s" in record:
            yield self._model_row(record, "decode", 1e6 / record["decode_tok_s"])

    def _model_row(self, row: Mapping[str, Any], phase: str, us: float) -> ModelRow:
        name, tokens = row["model"], row.get("seq_len", 2048)
        layer = [self.dispatch(d, name, phase, tokens) for d in LAYER[phase]]
        decoder = self.models[name]
        return ModelRow(
            f"{row['id']}.{'ttft' if phase == 'prefill' else 'token'}",
            name,
            us,
            decoder.layers,
            tuple(work for works in layer for work in works),
            self.dispatch("lm_head_gemv", name, "decode"),
            row.get(f"elf_per_layer_{phase}", len(LAYER[phase])),
            (tokens if phase == "prefill" else 1) * decoder.dim * 2,
        )


def _key(op: str, shape: Mapping[str, Any]) -> tuple[Any, ...]:
    return (op, *sorted((n, v) for n, v in shape.items() if n != "eps"))


def fastest_tiles(
    records: Sequence[Mapping[str, Any]], direct: bool
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The fastest measured tile of each op and shape with results in bf16."""
    best: dict[tuple[Any, ...], tuple[float, dict[str, Any]]] = {}
    for row in records:
        named = measured.translate(row)
        if named is None or not row.get("latency_us") or row.get("out_dtype") == "f32":
            continue
        op, shape, tile = named
        if "method" in tile and (tile["method"] == "direct") != direct:
            continue
        key, us = _key(op, shape), row["latency_us"]
        if row["role"] in ("table", "sweep") and (key not in best or us < best[key][0]):
            best[key] = (us, tile)
    return {key: tile for key, (_, tile) in best.items()}


@dataclass(frozen=True)
class ModelRow:
    """Time to the first token, or per token, of a whole published model."""

    id: str
    shape: str
    us: float
    layers: int
    works: Works  # of one layer
    head: Works
    dispatches: int  # of one layer
    activation_bytes: int

    def predict(self, device: Device) -> float:
        layer = timing.price_dispatch(self.works, device, "elf").us
        layer += self.dispatches * timing.host_us(device, self.activation_bytes)
        head = timing.price_dispatch(self.head, device, "elf").us
        return self.layers * layer + head + timing.host_us(device, 0)
