"""Rules over a whole dispatch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tilegate import config, deployment, whole
from tilegate.deployment import Deployment


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    cache: Path = tmp_path_factory.mktemp("cache")
    return deployment.resolve(config.load(()), cache)


def test_what_is_deployed_is_legal_or_larger_than_any_measured(default: Deployment) -> None:
    verdicts = {d.name: whole.judge(d) for d in default.dispatches}
    assert {v.verdict for v in verdicts.values()} <= {"legal", "unknown"}
    assert verdicts["prefill_256.flash_attn"].verdict == "legal"
    big = verdicts["prefill_256.o_ffn"]
    assert big.verdict == "unknown"
    assert [v.rule for v in big.violations] == ["R-LAUNCHES"]


def test_a_read_before_the_write_is_found(default: Deployment) -> None:
    one = next(d for d in default.dispatches if d.name == "decode.rms_gemv_rope")
    backwards = dataclasses.replace(one, ops=one.ops[::-1])
    assert {v.rule for v in whole.judge(backwards).violations} == {"R-ORDER"}


def test_a_buffer_beyond_the_reach_of_an_offset(default: Deployment) -> None:
    one = next(d for d in default.dispatches if d.name == "lm_head")
    huge = dataclasses.replace(one.arguments[0], shape=(2**21, 2048))
    wide = dataclasses.replace(one, arguments=(huge, *one.arguments[1:]))
    assert {v.rule for v in whole.judge(wide).violations} == {"R-BO"}
