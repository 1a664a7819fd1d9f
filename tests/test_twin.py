"""The twin's comparison and `doit predict`: shapes of the output, and how close they come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tilegate import config, device, measured, page, predict, twin

NPU2 = device.load("npu2")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return twin.compare(measured.load(), NPU2, numerics=False)


def test_every_row_of_a_kernel_is_predicted(report: dict[str, Any]) -> None:
    keys = {"id", "op", "measured_us", "predicted_us", "measured_mean_rel_l1"}
    for row in report["rows"]:
        assert keys < set(row)
        assert row["emulated_mean_rel_l1"] is None
        if row["op"] in measured.OPS or row["op"].startswith("model"):
            assert row["predicted_us"] > 0


@pytest.mark.parametrize(
    ("op", "median", "most"),
    [("dispatch", 0.05, 0.165), ("model.ttft", 0.05, 0.11), ("model.token", 0.08, 0.14)],
)
def test_dispatches_and_models(report: dict[str, Any], op: str, median: float, most: float) -> None:
    group = report["groups"][op]
    assert group["n"] >= 6
    assert group["median"] <= median
    assert group["max"] <= most


def test_the_emulated_accuracy_is_the_measured_one() -> None:
    found = twin.compare(measured.load(), NPU2, numerics=True, pattern="gemm.bf16.drain.192x64x320")
    (row,) = found["rows"]
    assert row["emulated_mean_rel_l1"] == pytest.approx(row["measured_mean_rel_l1"], rel=0.05)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert twin.main(["--json", "--no-numerics", "--rows", "gemv.*"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["groups"]) == {"gemv"}
    assert set(data["groups"]["gemv"]) == {"n", "median", "p90", "max"}
    assert twin.main(["no-such-file.yaml"]) == 2


def test_predict_adds_up() -> None:
    found = predict.predict(config.load(["seq_len=256"]))
    prefill, decode, head = found["phases"]
    layers = found["layers"]
    for whole, phase in ((found["ttft_s"] * 1e6, prefill), (found["decode_ms"] * 1e3, decode)):
        syncs = whole - (layers * phase["us"] + head["us"])  # of the model's inputs and outputs
        assert 0 <= syncs < 0.01 * whole
    for phase in found["phases"]:
        for dispatch in phase["dispatches"]:
            launches = sum(one["us"] for one in dispatch["launches"])
            assert dispatch["us"] == pytest.approx(launches + dispatch["configured_us"])
    assert json.loads(json.dumps(found))["format"] == predict.FORMAT
    html = page.render(found)
    assert "<svg" in html
    assert "http" not in html  # self-contained


def test_what_if_the_memory_were_faster() -> None:
    slow = predict.predict(config.load(["seq_len=256"]))
    fast = predict.predict(config.load(["seq_len=256", "device.dram_gbps=120"]))
    assert fast["decode_tok_s"] > slow["decode_tok_s"]
