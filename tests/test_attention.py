"""Attention on the emulated NPU2: published accuracy, head mapping, mask, legality, decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilegate import device, kernels, legality, solo
from tilegate.lower import check_bounds
from tilegate.store import Store

Operands = dict[str, Any]
Run = Callable[..., np.ndarray]

MODELS = [
    (9, 3, 64),
    (15, 5, 64),
    (14, 2, 64),
    (32, 8, 64),
    (32, 32, 64),
    (12, 2, 128),
    (24, 8, 128),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a kernel alone: (op, shape, tile, operands) -> y."""
    store = Store(tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("state"))

    def call(
        op: str,
        shape: Mapping[str, Any],
        tile: Mapping[str, Any],
        operands: Operands,
        threads: int = 2,
    ) -> np.ndarray:
        plan = kernels.contract(op).plan(shape, tile)
        result = solo.runner(plan, solo.build(plan, store), threads)(operands)["y"]
        assert isinstance(result, np.ndarray)
        return result

    return call


def nearest(values: np.ndarray) -> np.ndarray:
    """Rounded to bf16, as FP32."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def prompt(s: int, heads: int, kv_heads: int, head_dim: int, causal: bool) -> dict[str, Any]:
    names = ("S", "heads", "kv_heads", "head_dim", "causal")
    return dict(zip(names, (s, heads, kv_heads, head_dim, causal), strict=True))


def tile_of(q_tiles: int, unrolled: int = 1) -> dict[str, Any]:
    return {
        "lqp": 64 * q_tiles,
        "lkp": 64,
        "num_q_tiles": q_tiles,
        "heads_per_unroll": unrolled,
        "stages": 4,
    }


def operands_of(op: str, shape: Mapping[str, Any]) -> Operands:
    drawn = kernels.contract(op).inputs(shape, np.random.default_rng(0))
    return {name: a if name == "position" else nearest(a) for name, a in drawn.items()}


def expected(op: str, shape: Mapping[str, Any], operands: Operands) -> np.ndarray:
    return nearest(kernels.contract(op).reference(shape, operands)["y"])


def mean_rel_l1(got: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(got - reference).mean() / np.abs(reference).mean())


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        (prompt(512, 8, 2, 64, False), 4.6e-2),
        (prompt(512, 2, 2, 64, False), 4.4e-2),
        (prompt(512, 4, 2, 128, False), 4.4e-2),
        (prompt(2048, 2, 1, 64, True), 3.9e-2),
        (prompt(2048, 2, 1, 128, True), 3.8e-2),
    ],
)
def test_accuracy_is_the_published_one(run: Run, shape: dict[str, Any], published: float) -> None:
    operands = operands_of("flash_attention", shape)
    got = run("flash_attention", shape, tile_of(4), operands)
    reference = expected("flash_attention", shape, operands)
    assert mean_rel_l1(got, reference) == pytest.approx(published, rel=0.15)
    assert (np.abs(got - reference) <= 1e-1 + 1.6e-2 * np.abs(reference)).all()


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (14, 2)])
def test_each_query_head_meets_its_kv_head(run: Run, heads: int, kv_heads: int) -> None:
    shape = prompt(256, heads, kv_heads, 64, True)
    operands = operands_of("flash_attention", shape)
    got = run("flash_attention", shape, tile_of(4), operands)
    reference = expected("flash_attention", shape, operands)
    for head in range(heads):
        own = slice(head * 64, (head + 1) * 64)
        assert mean_rel_l1(got[:, own], reference[:, own]) < 5e-2


def test_a_later_key_changes_no_earlier_row(run: Run) -> None:
    shape = prompt(512, 2, 1, 64, True)
    operands = operands_of("flash_attention", shape)
    before = run("flash_attention", shape, tile_of(8), operands)
    for row in (1, 63, 64, 200, 511):
        changed = {name: array.copy() for name, array in operands.items()}
        changed["k"][row:] = 7.0
        # eight keys of V share an exponent: a value beyond them cannot reach an earlier row at all
        changed["v"][(row + 7) // 8 * 8 :] = 100.0
        after = run("flash_attention", shape, tile_of(8), changed)
        assert np.array_equal(after[:row], before[:row])
        assert (after[row] != before[row]).any()


def test_a_later_value_reaches_earlier_rows_only_through_the_shared_exponent(run: Run) -> None:
    shape = prompt(256, 2, 1, 64, True)
    operands = operands_of("flash_attention", shape)
    before = run("flash_attention", shape, tile_of(4), operands)
    sign_flipped = {**operands, "v": operands["v"].copy()}
    sign_flipped["v"][100:] *= -1
    after = run("flash_attention", shape, tile_of(4), sign_flipped)
    assert np.array_equal(after[:100], before[:100])
    assert (after[100] != before[100]).any()


def test_the_tile_and_the_threads_do_not_change_the_result(run: Run) -> None:
    shape = prompt(512, 3, 1, 64, True)
    operands = operands_of("flash_attention", shape)
    results = [
        run("flash_attention", shape, tile_of(tiles), operands, threads)
        for tiles, threads in ((8, 1), (8, 2), (4, 2), (1, 1))
    ]
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (14, 2), (2, 2)])
def test_unrolled_heads_give_the_same_bits(run: Run, heads: int, kv_heads: int) -> None:
    shape = prompt(512, heads, kv_heads, 64, True)
    operands = operands_of("flash_attention", shape)
    one, two = (
        run("flash_attention", shape, tile_of(4, unrolled), operands) for unrolled in (1, 2)
    )
    assert np.array_equal(one, two)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), MODELS)
def test_every_candidate_of_a_model_is_legal(heads: int, kv_heads: int, head_dim: int) -> None:
    npu = device.load()
    for s in (256, 512, 1024, 2048):
        shape = prompt(s, heads, kv_heads, head_dim, True)
        tiles = list(kernels.contract("flash_attention").tile_space(shape))
        assert {tile["heads_per_unroll"] for tile in tiles} == ({1, 2} if heads % 2 == 0 else {1})
        for tile in tiles:
            assert legality.judge("flash_attention", shape, tile, npu).verdict == "legal"
            check_bounds(kernels.contract("flash_attention").plan(shape, tile).launches[0])
    cache = {"context": 1024, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    verdicts = [
        legality.judge("decode_attention", cache, tile, npu, hints=False).verdict
        for tile in kernels.contract("decode_attention").tile_space(cache)
    ]
    assert "legal" in verdicts


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"lqp": 128}, "FA-TILE-Q"),
        ({"lqp": 512}, "FA-TILE-Q"),
        ({"lkp": 32}, "FA-LKP"),
        ({"stages": 8}, "R-CASC"),
        ({"stages": 2}, "R-CASC"),
        ({"heads_per_unroll": 4}, "R-SHIM-CH"),
        ({"num_q_tiles": 8, "lqp": 512, "heads_per_unroll": 2}, "R-HERD"),
        ({"num_q_tiles": 6, "lqp": 384}, "FA-Q-CHUNKS"),
    ],
)
def test_what_hangs_or_does_not_place_is_refused(change: dict[str, Any], rule: str) -> None:
    shape = prompt(512, 32, 8, 64, False)
    verdict = legality.judge("flash_attention", shape, {**tile_of(4), **change}, device.load())
    assert verdict.verdict == "illegal"
    assert rule in {violation.rule for violation in verdict.violations}


@pytest.mark.parametrize(
    ("shape", "herd"),
    [
        ({"context": 512, "heads": 9, "kv_heads": 3, "head_dim": 64}, (3, 1)),
        ({"context": 512, "heads": 16, "kv_heads": 8, "head_dim": 128}, (4, 2)),
        ({"context": 512, "heads": 8, "kv_heads": 8, "head_dim": 64}, (1, 4)),
    ],
)
def test_decode_counts_the_keys_up_to_the_position(
    run: Run, shape: dict[str, Any], herd: tuple[int, int]
) -> None:
    operands = operands_of("decode_attention", shape)
    for position in (511, 0, 63, 64, 300):
        operands["position"][0] = position
        reference = expected("decode_attention", shape, operands)
        stale = {name: array.copy() for name, array in operands.items()}
        for cache in ("k_cache", "v_cache"):
            stale[cache][position + 1 :] = np.nan
        got = run("decode_attention", shape, {"herd": herd}, stale)
        assert mean_rel_l1(got, reference) < 5e-2


def test_decode_agrees_with_the_last_row_of_a_prompt(run: Run) -> None:
    shape = prompt(256, 9, 3, 64, True)
    operands = operands_of("flash_attention", shape)
    row = run("flash_attention", shape, tile_of(4), operands)[-1]
    position = np.zeros(16, np.int32)
    position[0] = 255
    token = {
        "q": operands["q"][-1],
        "k_cache": operands["k"],
        "v_cache": operands["v"],
        "position": position,
    }
    cache = {"context": 256, "heads": 9, "kv_heads": 3, "head_dim": 64}
    assert mean_rel_l1(run("decode_attention", cache, {"herd": (3, 1)}, token), row) < 5e-2
