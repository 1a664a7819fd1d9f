"""The emitted MLIR-AIR text, checked by others than its writer: see docs/verification.md."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from air_replay import DYNAMIC, Op, Parser, Replay, ReplayError
from core_reference import functions
from emission_cases import CASES, FUSED, alone, arguments, expected, fused

from tilegate.dispatch import Dispatch
from tilegate.emit import emit

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden" / "emit"
DIALECT: dict[str, dict[str, Any]] = yaml.safe_load(
    (HERE / "data" / "air_dialect.yaml").read_text()
)
MLIR_OPT = shutil.which("mlir-opt-19") or shutil.which("mlir-opt")
ALL = [*CASES, *FUSED]


def dispatch_of(case: str) -> Dispatch:
    return alone(case) if case in CASES else fused()[case]


def text_of(case: str) -> str:
    return emit(dispatch_of(case)).text


def replay(dispatch: Dispatch, text: str | None = None) -> None:
    """Raises AssertionError or ReplayError unless the text computes what the reference does."""
    module = emit(dispatch)
    program = Replay(text or module.text, functions(module.objects.table()))
    for seed in (0, 1):
        given = arguments(dispatch, seed)
        wanted = expected(dispatch, given)
        program(given)
        for argument, got, want in zip(dispatch.arguments, given, wanted, strict=True):
            if np.isnan(want).all():
                continue  # scratch between the launches of one op: no reference knows it
            assert np.isfinite(got).all(), argument.name
            scale = np.abs(want).max()
            assert np.abs(got - want).max() <= 2e-5 * scale, argument.name


@pytest.mark.parametrize("case", ALL)
def test_the_replayed_module_computes_the_reference(case: str) -> None:
    replay(dispatch_of(case))


@pytest.mark.parametrize("case", ALL)
def test_a_real_mlir_parses_verifies_and_round_trips_the_text(case: str, tmp_path: Path) -> None:
    if MLIR_OPT is None:
        pytest.skip("NOT CHECKED: no mlir-opt; `apt-get install mlir-19-tools`, as .ci/run does")
    # Symbols and affine scopes are not looked up through operations of an unknown dialect, so that
    # calls and conditions in a herd take an unknown name too; everything else is verified.
    text = text_of(case)
    for name in ("func.call", "affine.if", "affine.yield"):
        text = text.replace(f'"{name}"', f'"core.{name}"')
    once = _mlir_opt(text)
    assert _mlir_opt(once) == once
    names = re.findall(r'= "?([\w.]+)|^\s*"([\w.]+)"', text, re.M)
    assert names and once.count('"air.channel.put"') == text.count('"air.channel.put"')


def _mlir_opt(text: str) -> str:
    options = ["--allow-unregistered-dialect", "--mlir-print-op-generic"]
    done = subprocess.run(
        [str(MLIR_OPT), *options], input=text, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


@pytest.mark.parametrize("case", ALL)
def test_every_operation_is_as_the_dialect_defines_it(case: str) -> None:
    _check(Parser(text_of(case)).module(), "", {})


def _check(op: Op, parent: str, symbols: dict[str, Op]) -> None:
    rule = DIALECT[op.name]
    if op.name == "builtin.module":
        symbols = {o.text("sym_name"): o for o in op.regions[0][1]}
        assert len(symbols) == len(op.regions[0][1]), "two symbols of one name"
    assert parent in rule.get("inside", [parent]), f"{op.name} in {parent}"
    required, optional = set(rule.get("required", ())), set(rule.get("optional", ()))
    assert required <= set(op.attributes) <= required | optional, (op.name, op.attributes)
    _check_operands(op, rule)
    assert [_kind(t) for t in op.types[1]] == rule.get("results", []), op.name
    if op.name.startswith("air.channel."):
        _check_transfer(op, symbols)
    if op.name == "func.call":
        callee = symbols[op.text("callee")]
        assert callee.attributes["function_type"] == f"({', '.join(op.types[0])}) -> ()"
        assert callee.text("link_with") and callee.text("sym_visibility") == "private"
    for number, (_, ops) in enumerate(op.regions):
        if "ends" in rule and number == 0 and ops:
            assert ops[-1].name == rule["ends"], f"{op.name} ends with {ops[-1].name}"
        for inner in ops:
            _check(inner, op.name, symbols)


def _check_operands(op: Op, rule: dict[str, Any]) -> None:
    groups = rule["operands"]
    if "operandSegmentSizes" in rule.get("required", ()):
        assert op.attributes["operandSegmentSizes"].startswith("array<i32")
        counts = op.integers("operandSegmentSizes")
    elif len(groups) == 1 and groups[0][2] == "many":
        counts = [len(op.operands)]
    else:
        counts = [1] * len(groups)
    assert len(counts) == len(groups) and sum(counts) == len(op.operands), (op.name, counts)
    types = iter(op.types[0])
    for (name, kind, many), count in zip(groups, counts, strict=True):
        assert count == 1 if many == "one" else count <= 1 if many == "maybe" else True, name
        for _ in range(count):
            assert kind in ("any", _kind(next(types))), (op.name, name)


def _kind(type_: str) -> str:
    return "memref" if type_.startswith("memref<") else type_


def _check_transfer(op: Op, symbols: dict[str, Op]) -> None:
    assert symbols[op.text("chan_name")].name == "air.channel"
    side = "src" if op.name.endswith("put") else "dst"
    counts = op.integers("operandSegmentSizes")
    lists = [op.integers(f"static_{side}_{what}") for what in ("offsets", "sizes", "strides")]
    assert len({len(one) for one in lists}) == 1 and lists[0]
    assert [one.count(DYNAMIC) for one in lists] == counts[3:6]
    assert len(symbols[op.text("chan_name")].integers("size")) == counts[1]


@pytest.mark.parametrize("case", ALL)
def test_no_core_and_no_shim_gets_more_streams_than_it_has_channels(case: str) -> None:
    """Counted in the text: two each way in a core, two each way in each column's shim."""
    module = Parser(text_of(case)).module()
    channels = {op.text("sym_name"): op for op in module.walk() if op.name == "air.channel"}
    for launch in (op for op in module.walk() if op.name == "air.launch"):
        segment = next(op for op in launch.walk() if op.name == "air.segment")
        herd = next(op for op in segment.walk() if op.name == "air.herd")
        inside, core = set(map(id, segment.walk())), _streams(herd.walk(), channels)
        shim = _streams((op for op in launch.walk() if id(op) not in inside), channels)
        for way in ("put", "get"):
            assert len(core[way]) <= 2, core
            used = sum(np.prod(channels[name].integers("size")) for name in shim[way])
            assert used <= 2 * 8, shim


def _streams(ops: Iterable[Op], channels: dict[str, Op]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"put": set(), "get": set()}
    for op in ops:
        if op.name.startswith("air.channel."):
            name = op.text("chan_name")
            if channels[name].text("channel_type") != "npu_cascade":
                found[op.name.rpartition(".")[2]].add(name)
    return found


MUTATIONS = {
    "wrong stride": (
        r"static_src_strides = array<i64: (\d+), 1>",
        r"static_src_strides = array<i64: 2, 1>",
    ),
    "wrong offset": (r'("arith.addi"\((%\w+), )%\w+\)', r"\1\2)"),
    "wrong order of tiles": (r"array<i64: 4, 2, 8, 8>", r"array<i64: 2, 4, 8, 8>"),
    "missing put": (r'.*"air.channel.put".*C_l2_out.*\n', ""),
    "missing wait for the result": (r'.*"air.channel.get"\(%\w+, %\w+, %a\d+.*C_l2_out.*\n', ""),
    "missing wait for an operand": (r'.*"air.channel.get".*@\w+_A_l1_in.*\n', ""),
    "too few trips": (r'("scf.for"\(%\w+, )(%\w+), (%\w+)\)', r"\1\3, \3)"),
    "core function left out": (r".*callee = @gemm_zero.*\n", ""),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_in_the_text_does_not_survive_the_replay(name: str) -> None:
    pattern, replacement = MUTATIONS[name]
    text = text_of("gemm-drain")
    broken, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1 and broken != text
    with pytest.raises((AssertionError, ReplayError)):
        replay(dispatch_of("gemm-drain"), broken)


def test_swapped_arguments_do_not_survive_the_replay() -> None:
    """Keys and values of the cache have one type: nothing but the numbers tells them apart."""
    text = text_of("decode.attn_o_ffn")
    operands = r'("air.launch"\(%\w+, )(%\w+), (%\w+)'
    broken = re.sub(operands, r"\1\3, \2", text, count=1)
    assert broken != text
    with pytest.raises((AssertionError, ReplayError)):
        replay(dispatch_of("decode.attn_o_ffn"), broken)


RACE = """
"builtin.module"() ({
  "air.channel"() {sym_name = "c", size = [1, 1], channel_type = "npu_dma_stream"} : () -> ()
  "func.func"() ({
    "air.launch"() ({
      "air.segment"() ({
        %0 = "arith.constant"() {value = 0 : index} : () -> index
        %1 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xf32, 1 : i32>
        "air.channel.get"(%0, %0, %1) {chan_name = @c, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xf32, 1 : i32>) -> ()
        "air.channel.put"(%0, %0, %1) {chan_name = @c, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xf32, 1 : i32>) -> ()
      }) {operandSegmentSizes = array<i32: 0, 0, 0>} : () -> ()
    }) {operandSegmentSizes = array<i32: 0, 0, 0>} : () -> ()
  }) {function_type = () -> (), sym_name = "f"} : () -> ()
}) : () -> ()
"""  # noqa: E501


def test_nests_that_share_a_buffer_and_do_not_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ReplayError, match="nothing makes one wait"):
        Replay(RACE, {})([])


@pytest.mark.parametrize("case", ["gemv", "rms_norm", "decode"])
def test_the_text_is_the_golden_one(case: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{case}.mlir"
    text = text_of(case)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.is_file(), "run pytest --update-golden"
    assert text == path.read_text(), f"{path} differs: if that is meant, run pytest --update-golden"


def test_launches_take_all_arguments_of_the_manifest_in_order() -> None:
    for name in FUSED:
        dispatch = fused()[name]
        function = Replay(text_of(name), {}).function
        kinds = [f"memref<{int(np.prod(a.shape))}x{a.dtype}>" for a in dispatch.arguments]
        assert function.attributes["function_type"] == f"({', '.join(kinds)}) -> ()"
        assert function.text("sym_name") == name
        launches = [op for op in function.regions[0][1] if op.name == "air.launch"]
        assert len(launches) == sum(1 for _ in dispatch.launches())
