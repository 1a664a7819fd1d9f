"""Wrong tile plans, for the faults of kind `plan`: each is a mistake that a plan can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tilegate import kernels
from tilegate.model import Op
from tilegate.plan import Access, Affine, Call, Copy, Launch, Loop, Step, TilePlan

TRUNCATED = "down_proj"  # the longest sum of a block: the one where bf16 shows


def misplan(name: str, op: Op, true: TilePlan) -> TilePlan:
    """The plan of `op` under the fault `name`; ops that it does not concern keep theirs."""
    makers: Mapping[str, tuple[str, Callable[[TilePlan], TilePlan]]] = {
        "plan_stride": ("gemm", _early_store),
        "dropped_tile": ("gemm", _no_last_column),
        "rope_interleaved": ("rope", _interleaved),
        "no_causal_mask": ("flash_attention", lambda p: _other(p, {"causal": False}, {})),
        "mask_off_by_one": ("flash_attention", lambda p: _steps(p, _late_mask)),
        "gqa_mapping": ("flash_attention", _modulo_heads),
        "nan_norm": ("rms_norm", _negative_root),
        "truncated_accumulation": ("gemm", _bf16_sum),
    }
    kernel, make = makers[name]
    if op.kernel != kernel or (name == "truncated_accumulation" and op.name != TRUNCATED):
        return true
    return make(true)


def _other(true: TilePlan, shape: Mapping[str, Any], tile: Mapping[str, Any]) -> TilePlan:
    """The plan of another shape or tile under the true one's name."""
    made = kernels.contract(true.op).plan(
        {**dict(true.shape), **shape}, {**dict(true.tile), **tile}
    )
    return dataclasses.replace(made, shape=true.shape, tile=true.tile)


def _steps(true: TilePlan, change: Callable[[Step], Step]) -> TilePlan:
    """Every copy and call of every launch replaced by `change` of it."""

    def deep(step: Step) -> Step:
        if isinstance(step, Loop):
            return dataclasses.replace(step, body=tuple(deep(inner) for inner in step.body))
        return change(step)

    def launch(one: Launch) -> Launch:
        return dataclasses.replace(one, body=tuple(deep(step) for step in one.body))

    return dataclasses.replace(true, launches=tuple(launch(one) for one in true.launches))


def _terms(affine: Affine, change: Callable[[str, int], int], base: int | None = None) -> Affine:
    terms = tuple((name, change(name, n)) for name, n in affine.terms)
    return Affine(affine.base if base is None else base, terms)


def _early_store(true: TilePlan) -> TilePlan:
    def change(step: Step) -> Step:
        if isinstance(step, Copy) and step.src.target == "C_l2":
            offset = _terms(step.dst.offset, lambda name, n: n // 2 if name == "y" else n)
            return dataclasses.replace(step, dst=dataclasses.replace(step.dst, offset=offset))
        return step

    return _steps(true, change)


def _no_last_column(true: TilePlan) -> TilePlan:
    last = true.launches[0].cols - 1

    def change(step: Step) -> Step:
        if isinstance(step, Copy) and step.src.target == "C_l2":
            return dataclasses.replace(step, cols=(0, last))
        return step

    return _steps(true, change)


def _bf16_sum(true: TilePlan) -> TilePlan:
    """Whatever the tile says, the sum is kept in bf16."""
    return _other(true, {}, {"method": "direct"})


def _interleaved(true: TilePlan) -> TilePlan:
    half = int(dict(true.shape)["head_dim"]) // 2
    apart, together = (1, 2), (half, 1)

    def change(step: Step) -> Step:
        if not isinstance(step, Copy):
            return step
        if step.src.target == "x":
            return _reordered(step, apart, together, half)
        if step.dst.target == "y":
            return _reordered(step, together, apart, half)
        return step

    return _steps(true, change)


def _reordered(copy: Copy, source: tuple[int, ...], target: tuple[int, ...], half: int) -> Copy:
    return dataclasses.replace(
        copy,
        src=dataclasses.replace(copy.src, strides=source),
        dst=dataclasses.replace(copy.dst, strides=target),
        sizes=(2, half),
    )


def _late_mask(step: Step) -> Step:
    """The core believes each block of keys to lie one block earlier than it does."""
    if not isinstance(step, Call):
        return step
    moved = [
        arg + -1 if isinstance(arg, Affine) and "y" in dict(arg.terms) else arg for arg in step.args
    ]
    return dataclasses.replace(step, args=tuple(moved))


def _modulo_heads(true: TilePlan) -> TilePlan:
    """Queries and outputs of head kv + member * kv_heads meet KV head kv."""
    shape, tile = dict(true.shape), dict(true.tile)
    d, heads, kv_heads = (int(shape[key]) for key in ("head_dim", "heads", "kv_heads"))
    group, unrolled = heads // kv_heads, int(tile["heads_per_unroll"])
    shared = group % unrolled == 0
    step = kv_heads if shared else 1

    new = {
        "kv": (1 if shared else unrolled) * d,
        "member": kv_heads * (unrolled if shared else 1) * d,
    }

    def moved(access: Access, column: int) -> Access:
        base = access.offset.base + column * (step - (1 if shared else group)) * d
        return dataclasses.replace(
            access, offset=_terms(access.offset, lambda name, n: new.get(name, n), base)
        )

    def change(one: Step) -> Step:
        if not isinstance(one, Copy):
            return one
        column = one.cols[0] // int(tile["num_q_tiles"]) if one.cols else 0
        if one.src.target == "q":
            return dataclasses.replace(one, src=moved(one.src, column))
        if one.dst.target == "y":
            return dataclasses.replace(one, dst=moved(one.dst, column))
        return one

    return _steps(true, change)


def _negative_root(true: TilePlan) -> TilePlan:
    def launch(one: Launch) -> Launch:
        defines = tuple((k, "-1.0e9f" if k == "EPS" else v) for k, v in one.object.defines)
        return dataclasses.replace(one, object=dataclasses.replace(one.object, defines=defines))

    return dataclasses.replace(true, launches=tuple(launch(one) for one in true.launches))
