"""Every limit refuses what it should, with its numbers, and nothing that is known to work."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest

from tilegate import check, device, kernels, legality, measured, rules
from tilegate.errors import UserError
from tilegate.plan import Access, Buffer, Copy, CoreObject, Launch, Tensor

NPU2 = device.load("npu2")
GEMM = {"tile_m": 64, "tile_k_l2": 256, "tile_k_l1": 32, "tile_n": 128, "herd": (8, 4)}


def judge(op: str, words: str, stitched: bool = False) -> legality.Verdict:
    return check.verdict(op, check.parse(words.split()), stitched)[1]


def gemm(m: int, k: int, n: int, method: str, tiles: str, herd: str = "8,4") -> str:
    names = ("tile_m", "tile_k_l2", "tile_k_l1", "tile_n")
    tile = " ".join(f"{a}={b}" for a, b in zip(names, tiles.split("/"), strict=True))
    return f"M={m} K={k} N={n} method={method} {tile} herd=[{herd}]"


MEASURED = [r for r in measured.load() if measured.translate(r) is not None]


@pytest.mark.parametrize("row", MEASURED, ids=lambda r: r["id"])
def test_every_measured_tile_is_legal(row: dict[str, Any]) -> None:
    named = measured.translate(row)
    assert named is not None
    assert legality.judge(*named, NPU2).verdict == "legal"


STAGES = "lkp=64 num_cascade_stages=4"
FLASH = "lq=2048 lk=2048 dk=64 dv=64 heads_q=32 heads_kv=8 causal=true "

GOOD = [
    ("gemm", gemm(2048, 8192, 2048, "fused-cast", "64/256/32/128")),
    ("gemm", gemm(2048, 2048, 8192, "drain", "32/256/32/128")),
    ("gemm", gemm(2048, 3072, 8192, "fused-cast", "64/256/32/128")),
    ("gemm", gemm(4096, 4096, 4096, "fused-cast", "64/512/32/128")),
    ("gemm", gemm(4096, 4096, 4096, "external", "64/512/32/128")),
    ("gemm", gemm(2048, 12288, 4096, "fused-cast", "64/512/32/128")),
    ("gemm", gemm(2048, 4096, 14336, "direct", "64/128/32/64")),
    ("gemm", gemm(2048, 4096, 12288, "direct", "64/128/32/64")),
    ("gemm", gemm(192, 320, 64, "drain", "32/320/32/16", "6,4")),
    ("gemm", gemm(64, 720, 32, "drain", "16/144/48/32", "4,1")),
    ("gemv", "M=16384 K=3072 herd_m=8 tile_m=8 m_input=8"),
    ("gemv", "M=49152 K=2048 herd_m=8 tile_m=8 m_input=8"),
    ("gemv", "M=3072 K=8192 herd_m=8 tile_m=2 m_input=2"),
    ("gemv", "M=8192 K=2048 herd_m=8 tile_m=8 m_input=4"),
    ("rmsnorm", "M=2048 N=3072 herd_x=8"),
    ("rmsnorm", "M=256 N=960 herd_x=8"),
    ("rope", "rows=49152 head_dim=128 herd_x=8 herd_y=1"),
    ("eltwise_add", "N=245760 tile_n=1920 herd_x=8 herd_y=1"),
    ("silu_mul", "N=22544384 tile_n=4096 herd_x=8 herd_y=1"),
    ("silu_mul", "N=16777216 tile_n=256 herd_x=8 herd_y=1"),
]


@pytest.mark.parametrize(("op", "words"), GOOD)
def test_known_good_near_the_limit(op: str, words: str) -> None:
    assert judge(op, words).verdict == "legal"


GOOD += [
    ("gelu", "N=3145728 tile_n=6144 herd_x=8 herd_y=2"),
    ("gelu", "N=3145728 tile_n=512 herd_x=4 herd_y=4"),
    ("layernorm", "M=1024 N=768 herd_x=8 vector_size=16"),
    ("gemm", gemm(64, 720, 960, "drain", "16/240/80/80", "4,4")),
    ("gemm", gemm(64, 1440, 720, "drain", "16/240/80/80", "4,3")),
    ("gemm", gemm(1024, 768, 768, "drain", "32/384/64/96")),
    ("gemm", gemm(192, 64, 320, "drain", "48/64/32/80", "4,4")),
    ("gemm", gemm(2048, 896, 896, "drain", "32/128/32/32")),
    ("gemm", gemm(2048, 3584, 18944, "fused-cast", "64/64/32/128")),
    ("gemv", "M=2560 K=9728 herd_m=8 tile_m=2 m_input=2"),
    ("gemv", "M=1536 K=8960 herd_m=8 tile_m=2 m_input=2"),
    ("gemv", "M=8960 K=1536 herd_m=8 tile_m=16 m_input=16"),
    ("gemv", "M=8192 K=3584 herd_m=8 tile_m=4 m_input=4"),
    ("eltwise_add", "N=245760 tile_n=3840 herd_x=8 herd_y=1"),
    ("eltwise_add", "N=4194304 tile_n=4096 herd_x=2 herd_y=4"),
    ("rope", "rows=65536 head_dim=64 herd_x=2 herd_y=4"),
    ("flash_attention", FLASH + "lqp=512 num_q_tiles=8 num_heads_per_unroll=1 " + STAGES),
    ("flash_attention", FLASH + "lqp=256 num_q_tiles=4 num_heads_per_unroll=2 " + STAGES),
]

BAD = [
    ("gemm", gemm(2048, 2048, 2048, "drain", "64/512/32/128"), "R-L1", 74752),
    ("gemm", gemm(2048, 2048, 2000, "drain", "32/256/32/128"), "N-tiling", 2000),
    ("gemm", gemm(2048, 2048, 11008, "direct", "64/256/32/64"), "R-STRIDE", 1409024),
    ("gemm", gemm(2048, 2560, 9728, "direct", "64/256/32/64"), "R-STRIDE", 1245184),
    ("gemm", gemm(2048, 2560, 10240, "direct", "64/256/32/64"), "R-STRIDE", 1310720),
    ("gemm", gemm(2048, 4096, 14336, "direct", "64/256/32/64"), "R-STRIDE", 1835008),
    ("gemm", gemm(64, 12288, 960, "drain", "16/512/32/240", "4,4"), "R-L2", None),
    ("gemm", gemm(2048, 2048, 2048, "drain", "32/256/32/128", "16,4"), "R-HERD", 16),
    ("gemm", gemm(2048, 2048, 2048, "drain", "24/256/32/128"), "R-MMUL", 24),
    ("gemm", gemm(2048, 4096, 2560, "fused-cast", "64/512/32/128"), "MEASURED-COMPILE", None),
    ("gemm", gemm(256, 960, 960, "drain", "32/160/32/80"), "K-SPLIT", None),
    ("gemm", gemm(64, 720, 960, "drain", "16/720/48/80", "4,4"), "K-SPLIT", None),
    ("gemv", "M=2048 K=2048 herd_m=8 tile_m=1 m_input=1", "R-ALIGN", None),
    ("gemv", "M=2048 K=4096 herd_m=8 tile_m=8 m_input=8", "R-L2", 524416),
    ("gemv", "M=2048 K=8192 herd_m=8 tile_m=4 m_input=4", "R-L2", 524352),
    ("gemv", "M=151936 K=2048 herd_m=8 tile_m=8 m_input=8", "R-REPEAT", None),
    ("gemv", "M=2560 K=4096 herd_m=4 tile_m=4 m_input=2", "HERD-COLUMNS", None),
    ("rmsnorm", "M=2050 N=2048 herd_x=8", "M-tiling", 2050),
    ("eltwise_add", "N=4194304 tile_n=2048 herd_x=8 herd_y=2", "R-SHIM-CH", 32),
    ("eltwise_add", "N=4194304 tile_n=2048 herd_x=4 herd_y=4", "R-SHIM-CH", 32),
    ("eltwise_add", "N=245760 tile_n=2048 herd_x=8 herd_y=1", "ODD-COUNT", None),
    ("silu_mul", "N=16777216 tile_n=1024 herd_x=8 herd_y=1", "R-BD", None),
    ("silu_mul", "N=16777216 tile_n=8192 herd_x=8 herd_y=1", "R-L1", None),
    ("silu_mul", "N=38797312 tile_n=4096 herd_x=8 herd_y=1", "R-BD", None),
    ("silu_mul", "N=16777216 tile_n=4096 herd_x=8 herd_y=2", "R-SHIM-CH", 32),
    ("gelu", "N=3145728 tile_n=4096 herd_x=8 herd_y=4", "R-SHIM-CH", 32),
    ("gelu", "N=3145728 tile_n=5000 herd_x=8 herd_y=2", "N-tiling", 3145728),
    ("layernorm", "M=1020 N=768 herd_x=8", "M-tiling", 1020),
    ("layernorm", "M=1024 N=770 herd_x=8", "lanes", 770),
    ("rmsnorm", "M=2048 N=2040 herd_x=8", "lanes", 2040),
    ("rope", "rows=65536 head_dim=64 herd_x=8 herd_y=1 rows_per_dma=4", "ROPE-ROWS", 4),
    ("gemm", gemm(2048, 4096, 12288, "direct", "64/256/32/64"), "R-STRIDE", 1572864),
    ("gemm", gemm(2048, 1536, 8960, "fused-cast", "64/128/32/64"), "R-L1", None),
    ("gemm", gemm(2048, 3584, 3584, "fused-cast", "64/512/32/128"), "R-L2", None),
    ("gemm", gemm(2048, 1024, 1024, "fused-cast", "64/256/32/128"), "R-L1", None),
    ("gemm", gemm(64, 1440, 720, "drain", "16/480/32/80", "4,3"), "K-SPLIT", None),
    ("gemm", gemm(192, 320, 64, "drain", "32/160/32/16", "6,4"), "K-SPLIT", None),
    ("gemm", gemm(2048, 896, 896, "drain", "32/128/32/128", "8,1"), "HERD-ROWS", None),
    ("gemm", gemm(576, 768, 768, "drain", "48/64/64/64", "4,4"), "R-PM", None),
    (
        "gemm",
        gemm(2048, 2048, 2048, "fused-cast", "64/256/32/128") + " regime=xclbin",
        "R-FORMAT",
        "xclbin",
    ),
    ("gemm", gemm(2048, 2048, 2048, "direct", "16/256/32/64") + " in_dtype=bfp16", "R-MMUL", 16),
    ("gemv", "M=2048 K=11008 herd_m=8 tile_m=2 m_input=2", "R-L1", None),
    (
        "flash_attention",
        FLASH + "lqp=128 num_q_tiles=4 num_heads_per_unroll=2 " + STAGES,
        "FA-TILE-Q",
        128,
    ),
    (
        "flash_attention",
        FLASH + "lqp=128 num_q_tiles=2 num_heads_per_unroll=4 " + STAGES,
        "R-SHIM-CH",
        4,
    ),
    (
        "flash_attention",
        FLASH + "lqp=512 num_q_tiles=8 num_heads_per_unroll=2 " + STAGES,
        "R-HERD",
        16,
    ),
    (
        "flash_attention",
        FLASH + "lqp=256 num_q_tiles=4 num_heads_per_unroll=2 lkp=64 num_cascade_stages=8",
        "R-CASC",
        8,
    ),
    (
        "flash_attention",
        FLASH + "lqp=256 num_q_tiles=4 num_heads_per_unroll=2 lkp=32 num_cascade_stages=4",
        "FA-LKP",
        32,
    ),
]


@pytest.mark.parametrize(("op", "words", "rule", "used"), BAD)
def test_refused_for_its_reason(op: str, words: str, rule: str, used: int | str | None) -> None:
    verdict = judge(op, words)
    assert verdict.verdict == "illegal"
    found = [v for v in verdict.violations if v.rule == rule]
    assert found, verdict
    assert used is None or found[0].used == used
    assert all(v.hint for v in verdict.violations)


UNKNOWN = [
    ("gemm", gemm(2048, 2048, 512, "drain", "32/512/32/128"), "ODD-N-COUNT"),
    ("gemm", gemm(128, 960, 960, "drain", "16/160/32/80"), "K-SPLIT"),
    ("gemm", gemm(2048, 1024, 512, "fused-cast", "64/256/32/128"), "THIN-N"),
    ("gemv", "M=2048 K=3072 herd_m=4 tile_m=8 m_input=8", "HERD-COLUMNS"),
    ("silu_mul", "N=12582912 tile_n=2048 herd_x=8 herd_y=1", "R-BD"),
]


@pytest.mark.parametrize(("op", "words", "rule"), UNKNOWN)
def test_neighbours_of_bad_points_are_unknown(op: str, words: str, rule: str) -> None:
    verdict = judge(op, words)
    assert (verdict.verdict, verdict.violations[0].rule) == ("unknown", rule)


def test_all_violations_are_reported_with_the_nearest_legal_tile() -> None:
    verdict = judge("gemm", gemm(2048, 2048, 11008, "drain", "64/256/32/128"))
    assert {v.rule for v in verdict.violations} >= {"N-tiling", "R-L1", "R-STRIDE"}
    assert all("nearest legal: " in v.hint for v in verdict.violations)


def test_the_hint_is_legal_and_a_single_step() -> None:
    verdict = judge("gemm", gemm(2048, 2048, 11008, "direct", "64/256/32/64"))
    assert verdict.violations[0].hint.endswith("nearest legal: tile_k_l2=128")
    assert judge("gemm", gemm(2048, 2048, 11008, "direct", "64/128/32/64")).verdict == "legal"


def test_stitched_builds_have_points_of_their_own() -> None:
    drain = gemm(2048, 2048, 512, "drain", "32/256/32/128")
    assert judge("gemm", drain).verdict == "legal"
    assert judge("gemm", drain, stitched=True).verdict == "unknown"
    rows = "M=2560 K=9728 herd_m=8 tile_m=2 m_input=2"
    assert judge("gemv", rows).verdict == "legal"
    assert judge("gemv", rows, stitched=True).verdict == "illegal"


def test_points_belong_to_a_toolchain() -> None:
    other = dataclasses.replace(NPU2, toolchain="another")
    named = check.resolve("silu_mul", check.parse(["N=16777216", "tile_n=1024", "herd=[8,1]"]))
    assert legality.judge(*named, NPU2).verdict == "illegal"
    assert legality.judge(*named, other).verdict == "legal"


def test_a_smaller_array_refuses_more() -> None:
    narrow = dataclasses.replace(NPU2, cols=4)
    shape = {"M": 2048, "K": 2048, "N": 2048}
    verdict = legality.judge("gemm", shape, {**GEMM, "method": "fused-cast"}, narrow)
    assert "R-HERD" in {v.rule for v in verdict.violations}


def test_a_verdict_takes_milliseconds() -> None:
    words = gemm(2048, 2048, 11008, "direct", "64/256/32/64")
    judge("gemm", words)
    start = time.process_time()
    judge("gemm", words)
    assert time.process_time() - start < 0.1


def launch(*copies: Copy, buffers: tuple[Buffer, ...], cols: int = 1, rows: int = 1) -> Launch:
    tensors = tuple(Tensor(name, "in", (1 << 20,)) for name in "abcd")
    return Launch("test", tensors, buffers, cols, rows, copies, CoreObject("", (), ()))


def load(name: str, strides: tuple[int, ...] = (1,), sizes: tuple[int, ...] = (64,)) -> Copy:
    return Copy(Access(name, strides=strides), Access(name + "1", strides=(1,)), sizes)


def broken(one: Launch) -> set[str]:
    return {found.rule for found in rules.broken(one, NPU2)}


def test_three_streams_into_one_core() -> None:
    buffers = tuple(Buffer(name + "1", 1, (64,)) for name in "abc")
    assert broken(launch(load("a"), load("b"), buffers=buffers)) == set()
    assert "R-TILE-CH" in broken(launch(load("a"), load("b"), load("c"), buffers=buffers))


@pytest.mark.parametrize(
    ("strides", "sizes", "rule"),
    [
        ((1,), (63,), "R-ALIGN"),
        ((2,), (64,), "R-ALIGN"),
        ((65, 1), (8, 8), "R-ALIGN"),
        ((4096, 1), (4, 2048), "R-WRAP"),
        ((4194304, 1), (2, 2), "R-STRIDE"),
        ((1,), (32768,), "R-LEN"),
    ],
)
def test_descriptor_fields(strides: tuple[int, ...], sizes: tuple[int, ...], rule: str) -> None:
    one = launch(load("a", strides, sizes), buffers=(Buffer("a1", 1, (64,)),))
    assert rule in broken(one)


def test_instances_must_fit_their_memory_tiles() -> None:
    fits = launch(buffers=(Buffer("w", 2, (65536,), per=("x",), depth=2),), cols=8)
    assert broken(fits) == set()
    big = launch(buffers=(Buffer("w", 2, (200000,), per=("x", "y")),), cols=2, rows=2)
    assert broken(big) == {"R-L2"}


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'gemm'"):
        kernels.contract("gemmm")
    with pytest.raises(UserError, match="did you mean 'tile_n'"):
        judge("gemm", gemm(2048, 2048, 2048, "drain", "32/512/32/128") + " tile_nn=3")
    with pytest.raises(UserError, match="'herd' is missing"):
        judge("gemm", "M=64 K=64 N=64 tile_m=16 tile_k_l2=64 tile_k_l1=32 tile_n=16 method=drain")


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = gemm(2048, 2048, 11008, "direct", "64/256/32/64").split()
    assert check.main(["gemm", *words, "out_dtype=bf16", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "illegal"
    assert set(data["violations"][0]) == {"rule", "used", "available", "unit", "hint"}
    assert check.main(["gemm", *gemm(2048, 2048, 512, "drain", "32/256/32/128").split()]) == 0
    assert check.main(["gemm", "M"]) == 2
    assert check.main([]) == 2


@pytest.mark.parametrize(
    "change", ["tile_m=0", "tile_m=-64", "tile_m=abc", "herd=8", "herd=[8,4,1]", "method=drian"]
)
def test_values_that_make_no_sense(change: str) -> None:
    name = change.partition("=")[0]
    words = gemm(2048, 2048, 512, "drain", "32/256/32/128").split()
    kept = [word for word in words if not word.startswith(f"{name}=")]
    with pytest.raises(UserError, match=name):
        judge("gemm", " ".join([*kept, change]))
