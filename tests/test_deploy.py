"""From real weights to a bundle that answers, and what stands in the way of promotion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Checkout, copy_checkout

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"
REHEARSAL = ("weights=synthetic", "model.layers=2", "sequence.context=256")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The default model, deployed once for the tests of this file."""
    made = copy_checkout(tmp_path_factory.mktemp("deploy") / "checkout")
    done = made.doit("deploy")
    assert done.returncode == 0, done.stdout
    if "nothing to do" not in done.stdout:  # a warm cache holds the whole deployment
        for word in ("gate      kernel", "gate      block", "gate      model", "gate      oracle"):
            assert word in done.stdout
        assert f"build/deploy/{MODEL}/run" in done.stdout
    return made


def run(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(bundle / "run"), *words],
        cwd="/",
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_second_deploy_does_nothing_and_says_so(deployed: Checkout) -> None:
    again = deployed.doit("deploy")
    assert again.returncode == 0
    assert again.stdout.startswith("nothing to do: deploy is current")


def test_the_bundle_answers_also_when_it_is_moved(deployed: Checkout, tmp_path: Path) -> None:
    moved = tmp_path / "somewhere else"
    shutil.copytree(deployed.bundle(MODEL), moved)
    answer = run(moved, QUESTION)
    assert "Paris" in answer.stdout, answer.stderr
    assert run(moved, "verify").returncode == 0


def test_times_of_the_emulated_device_are_labelled_predicted(deployed: Checkout) -> None:
    bench = run(deployed.bundle(MODEL), "bench", "--decode-tokens", "2")
    assert bench.returncode == 0
    assert "predicted (emulated NPU2)" in bench.stdout
    assert "TTFT" in bench.stdout and "TPOT" in bench.stdout


def test_bench_and_predict_agree(deployed: Checkout) -> None:
    bench = json.loads(
        run(deployed.bundle(MODEL), "bench", "--json", "--decode-tokens", "2").stdout
    )
    assert deployed.doit("predict").returncode == 0
    written = deployed.root / "build" / "reports" / MODEL / "predict.json"
    predicted = json.loads(written.read_text())
    assert bench["prompt_tokens"] == predicted["seq_len"]
    assert bench["ttft_ms"] == pytest.approx(predicted["ttft_s"] * 1e3, rel=1e-6)
    assert bench["tpot_ms"] == pytest.approx(predicted["decode_ms"], rel=1e-6)


def test_one_changed_byte_is_found_and_named(deployed: Checkout, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(deployed.bundle(MODEL), copy)
    library = copy / "dispatches" / "lm_head" / "dispatch.so"
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)
    verified = run(copy, "verify")
    assert verified.returncode == 1
    assert "changed: dispatches/lm_head/dispatch.so" in verified.stdout


def test_the_manifest_tells_where_everything_came_from(deployed: Checkout) -> None:
    manifest = json.loads((deployed.bundle(MODEL) / "manifest.json").read_text())
    assert manifest["weights"]["kind"] == "real"
    assert {record["verdict"] for record in manifest["gates"]} == {"pass"}
    assert {record["gate"] for record in manifest["gates"]} == {
        *("oracle", "kernel", "block", "model", "runner")
    }
    for record in manifest["gates"]:
        for threshold in record["thresholds"].values():
            assert threshold["source"] and threshold["note"]
    assert {"weights", "oracle", "runner", "gate:model"} <= manifest["provenance"].keys()
    assert str(deployed.root) not in json.dumps(manifest)


@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        ("oracle_eps", "gate:oracle"),
        ("plan_stride", "gate:kernel"),
        ("zero_output", "gate:block"),
        ("head_rows", "gate:model"),
        ("bundle_byte", "gate:runner"),
    ],
)
def test_an_injected_fault_fails_its_gate_and_leaves_the_bundle(
    fault: str, gate: str, deployed: Checkout
) -> None:
    before = (deployed.bundle(MODEL) / "manifest.json").read_bytes()
    failed = deployed.doit("deploy", f"fault={fault}")
    assert failed.returncode == 1, failed.stdout
    assert f"failed: {gate}" in failed.stdout
    assert "nothing was promoted" in failed.stdout
    assert (deployed.bundle(MODEL) / "manifest.json").read_bytes() == before


def test_a_loosened_gate_is_not_promoted(deployed: Checkout) -> None:
    """Policy is part of the provenance: another limit is another record, and fails evaluation."""
    before = (deployed.bundle(MODEL) / "manifest.json").read_bytes()
    done = deployed.doit("deploy", "gate.block.cosine.value=0.5")
    assert done.returncode == 1
    assert "block.cosine: 0.99 -> 0.5" in done.stdout
    assert (deployed.bundle(MODEL) / "manifest.json").read_bytes() == before


def test_a_rehearsal_is_kept_apart_and_refuses_to_talk(checkout: Checkout) -> None:
    done = checkout.doit("deploy", *REHEARSAL)
    assert done.returncode == 0, done.stdout
    assert "THIS IS A REHEARSAL" in done.stdout
    assert not checkout.bundle(MODEL).exists()
    bundle = checkout.bundle(f"{MODEL}.rehearsal")
    refused = run(bundle, QUESTION)
    assert refused.returncode == 2
    assert "--allow-rehearsal" in refused.stderr and refused.stderr.count("\n") == 1
    assert run(bundle, QUESTION, "--allow-rehearsal", "--max-tokens", "4").returncode == 0


def test_no_rehearsal_where_none_is_wanted(checkout: Checkout) -> None:
    done = checkout.doit("deploy", "model=smollm2-360m", "weights.rehearse=false")
    assert done.returncode == 2
    assert "error: no weights for model smollm2-360m" in done.stdout
    assert not (checkout.root / "build" / "deploy").exists()


def test_broken_weights_stop_the_build_with_one_line(checkout: Checkout, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    done = checkout.doit("deploy", f"weights.path={folder}")
    assert done.returncode == 2
    assert done.stdout.startswith("error: weights: model.safetensors") or (
        "model.safetensors" in done.stdout.splitlines()[0]
    )
    assert "Traceback" not in done.stdout


def test_without_a_compiler_there_is_one_clear_line(checkout: Checkout) -> None:
    hidden = "import sys; sys.modules['ziglang'] = None"
    (checkout.root / "sitecustomize.py").write_text(hidden)
    done = checkout.doit(
        "deploy",
        env={"PATH": "/nonexistent", "CXX": "", "PYTHONPATH": str(checkout.root)},
    )
    assert done.returncode == 2
    assert done.stdout.startswith("error: no C++ compiler") and done.stdout.count("\n") == 1
