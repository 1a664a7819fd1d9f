"""The runner, on a bundle of tiny dispatches: what it binds, moves, refuses, and its commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strict_pyxrt import Behaviour, module
from tiny_bundle import (
    BUCKETS,
    CONTEXT,
    DIM,
    HEAD_DIM,
    LAYERS,
    VOCAB,
    reference,
    reseal,
    write_bundle,
)

from runtime import bf16
from runtime.bundle import load
from runtime.chat import Chat
from runtime.emulated import FAULTS
from runtime.errors import BundleError, DeviceError
from runtime.manifest import Rope, parse_manifest, read_manifest, seal, sealed
from runtime.runner import Capture, Runner
from runtime.sampling import Sampler
from runtime.session import open_session
from runtime.weights import read_safetensors, rope_table

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    """A copy to spoil, elsewhere than it was made."""
    return shutil.copytree(pristine, tmp_path / "moved" / "tiny")


def runner_of(root: Path, fault: str | None = None) -> Runner:
    return Runner(root, open_session("emulated", read_manifest(root).device, fault))


def wanted(root: Path, ids: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    rope = rope_table(read_manifest(root).rope, CONTEXT, HEAD_DIM)
    logits, outputs = reference(read_safetensors(root / "weights.safetensors"), rope, ids)
    return logits, outputs


def close(logits: np.ndarray, reference_logits: np.ndarray) -> bool:
    return bool(np.abs(logits - reference_logits).max() < 0.02 * np.abs(reference_logits).max())


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_prefill_gives_the_last_real_tokens_logits_in_every_bucket(
    pristine: Path, length: int
) -> None:
    runner = runner_of(pristine)
    assert runner.bucket(length) == (BUCKETS[0] if length <= BUCKETS[0] else BUCKETS[1])
    for ids in (IDS[:length], IDS[::-1][:length]):  # the second call meets the first one's buffers
        logits = runner.prefill(ids)
        assert logits.shape == (VOCAB,) and close(logits, wanted(pristine, ids)[0])


def test_decode_continues_what_prefill_began_to_the_end_of_the_context(pristine: Path) -> None:
    runner = runner_of(pristine)
    ids = IDS[:3]
    runner.prefill(ids)
    for step in range(CONTEXT - len(ids)):
        ids = [*ids, (step * 5 + 2) % VOCAB]
        assert close(runner.decode(ids[-1]), wanted(pristine, ids)[0]), step
    with pytest.raises(BundleError, match=f"context of {CONTEXT} tokens is full"):
        runner.decode(1)
    assert close(runner.prefill(IDS), wanted(pristine, IDS)[0])


def test_weights_that_may_not_stay_give_the_same_logits_and_times(pristine: Path) -> None:
    resident = runner_of(pristine)
    session = open_session("emulated", read_manifest(pristine).device)
    session.resident_bytes = 0
    sharing = Runner(pristine, session)
    for ids in (IDS[:3], IDS, IDS[2:5]):
        np.testing.assert_array_equal(sharing.prefill(ids), resident.prefill(ids))
        np.testing.assert_array_equal(sharing.decode(1), resident.decode(1))
    spent = (session.now_us(), resident.session.now_us())
    assert spent[0] <= spent[1], "laying weights out again is no time of the device"


def test_capture_reads_any_value_of_any_layer(pristine: Path) -> None:
    runner = runner_of(pristine)
    capture = Capture(frozenset({"x", "mlp_residual", "k_rope", "attention", "logits"}))
    logits = runner.prefill(IDS[:6], capture)
    _, outputs = wanted(pristine, IDS[:6])
    for layer in range(LAYERS):
        assert close(capture.tensors[layer, "mlp_residual"][:6], outputs[layer])
        assert capture.tensors[layer, "k_rope"].shape == (BUCKETS[1], DIM)
        if layer:
            previous = capture.tensors[layer - 1, "mlp_residual"]
            np.testing.assert_array_equal(capture.tensors[layer, "x"], previous)
    assert (None, "logits") in capture.tensors and np.isfinite(logits).all()
    step = Capture(frozenset({"k_rope"}), frozenset({1}))
    runner.decode(2, step)
    assert set(step.tensors) == {(1, "k_rope")} and step.tensors[1, "k_rope"].shape == (1, DIM)


def test_one_block_runs_alone_on_a_given_input(pristine: Path) -> None:
    runner = runner_of(pristine)
    _, outputs = wanted(pristine, IDS)
    capture = runner.block(1, bf16.narrow(outputs[0]), Capture(frozenset({"mlp_residual"})))
    assert close(capture.tensors[1, "mlp_residual"], outputs[1])


def test_generation_stops_at_its_limit_and_at_stop_tokens(pristine: Path) -> None:
    runner = runner_of(pristine)
    tokens = list(runner.generate(IDS[:3], Sampler(), 6))
    ids = IDS[:3]
    for token in tokens:
        assert token == int(np.argmax(wanted(pristine, ids)[0]))
        ids = [*ids, token]
    stop = tokens[2]
    stopped = list(runner.generate(IDS[:3], Sampler(), 6, frozenset({stop})))
    assert stopped == tokens[: tokens.index(stop)]


def test_a_conversation_longer_than_the_bucket_goes_on_from_the_cache(pristine: Path) -> None:
    runner = runner_of(pristine)
    runner.prefill(IDS)
    longer = [*IDS[:6], 7, 7, 1, 2]
    assert close(runner.start(longer), wanted(pristine, longer)[0])
    assert runner.tokens == longer
    with pytest.raises(BundleError, match=r"10 tokens, more than the largest bucket \(4, 8\)"):
        runner_of(pristine).start(longer)


@pytest.mark.parametrize("fault", [*FAULTS])
def test_every_fault_shows_in_the_logits_or_stops_the_run(pristine: Path, fault: str) -> None:
    runner = runner_of(pristine, fault)
    try:
        first = runner.prefill(IDS[:5])
        second = runner.decode(4)
    except DeviceError as error:
        assert "state" in str(error) or "not usable" in str(error)
        return
    ids = IDS[:5]
    good = close(first, wanted(pristine, ids)[0]) and close(second, wanted(pristine, [*ids, 4])[0])
    assert not good


def test_a_stuck_dispatch_is_named_with_its_layer(pristine: Path) -> None:
    with pytest.raises(DeviceError, match=r"prefill_4.project of layer 0 .*ERT_CMD_STATE_TIMEOUT"):
        runner_of(pristine, "stuck").prefill([1])


def test_time_per_token_is_the_sum_of_its_dispatches_and_syncs(pristine: Path) -> None:
    runner = runner_of(pristine)
    runner.prefill(IDS)
    start = runner.session.now_us()
    runner.decode(1)
    dispatches = (2 * LAYERS + 1) * 150.0
    syncs = (3 + 4 * LAYERS + 2) * 2.0  # x, table, position; k and v out and in; two logit parts
    moved = (DIM * 2 * (2 + 4 * LAYERS) + 64 + 64) / 10e3
    assert runner.session.now_us() - start == pytest.approx(dispatches + syncs + moved)


def test_the_same_runner_drives_the_pyxrt_module(
    pristine: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a strict stand-in for pyxrt: what hardware would not forgive fails here."""
    behaviour = Behaviour()
    monkeypatch.setitem(sys.modules, "pyxrt", module(behaviour))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for library in bundle.rglob("dispatch.so"):
        shutil.copy(library, library.with_suffix(".elf"))
    session = open_session("npu2", read_manifest(bundle).device)
    assert session.label == "stand-in for pyxrt, not measured"
    assert close(Runner(bundle, session).prefill(IDS), wanted(bundle, IDS)[0])
    with pytest.raises(BundleError, match=f"another process uses the NPU: pid {os.getpid()}"):
        open_session("npu2", read_manifest(bundle).device)
    behaviour.name = "NPU Phoenix"
    with pytest.raises(BundleError, match="'NPU Phoenix' is not an NPU2"):
        session.device(0)


def test_bad_tokens_are_refused(pristine: Path) -> None:
    runner = runner_of(pristine)
    with pytest.raises(BundleError, match="prompt is empty"):
        runner.prefill([])
    with pytest.raises(BundleError, match=f"token {VOCAB} is outside the vocabulary of {VOCAB}"):
        runner.prefill([1, VOCAB])
    with pytest.raises(BundleError, match="outside"):
        runner.prefill([-1])


def test_python_overhead_per_dispatch_is_small(pristine: Path) -> None:
    runner = runner_of(pristine)
    runner.prefill(IDS)
    begun = time.perf_counter()
    for _ in range(10):
        runner.decode(1)
    assert (time.perf_counter() - begun) / 10 / (2 * LAYERS + 1) < 1e-3


# Parts


def test_the_sampler_is_greedy_at_zero_seeded_and_bounded_by_top_p() -> None:
    logits = np.array([0.0, 3.0, 2.9, -5.0], np.float32)
    assert Sampler()(logits) == 1
    draws = [Sampler(1.0, 1.0, seed)(logits) for seed in range(200)]
    assert draws == [Sampler(1.0, 1.0, seed)(logits) for seed in range(200)]
    assert {1, 2} <= set(draws)
    assert {Sampler(1.0, 0.4, seed)(logits) for seed in range(50)} == {1}
    assert {Sampler(1.0, 0.9, seed)(logits) for seed in range(50)} == {1, 2}
    assert {Sampler(1e-3, 0.0, seed)(logits) for seed in range(5)} == {1}


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
)
def test_rope_rows_equal_those_of_transformers(scaling: dict[str, Any] | None) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    head_dim, theta, positions = 64, 500000.0, [0, 1, 7, 1000, 8191, 9000]
    parameters = {"rope_theta": theta, "rope_type": "default"}
    if scaling:
        kind = scaling.get("rope_type", scaling.get("type"))
        parameters |= {**scaling, "rope_type": kind}
    import torch

    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        rope_parameters=parameters,
        max_position_embeddings=131072,
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([positions]))
    half = head_dim // 2
    theirs = torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=1).numpy()
    ours = bf16.widen(rope_table(Rope(theta, scaling), 9001, head_dim)[positions])
    assert np.abs(ours - theirs).max() < 2**-8


def test_an_unknown_rope_scaling_is_refused() -> None:
    with pytest.raises(BundleError, match="'yarn' is not one of"):
        rope_table(Rope(1e4, {"type": "yarn"}), 4, 64)
    with pytest.raises(BundleError, match="'linear' lacks 'factor'"):
        rope_table(Rope(1e4, {"type": "linear"}), 4, 64)


def test_broken_weights_are_refused(bundle: Path) -> None:
    path = bundle / "weights.safetensors"
    data = path.read_bytes()
    for broken in (data[:-1], data + b"\0", data[:100], b"", b"\xff" * 64):
        path.write_bytes(broken)
        with pytest.raises(BundleError, match="not a sound safetensors file"):
            read_safetensors(path)


def test_a_manifest_key_that_is_missing_or_wrong_is_named(pristine: Path) -> None:
    good = json.loads((pristine / "manifest.json").read_text())
    for key, value, text in (
        ("format", "tilegate-bundle-0", "reads 'tilegate-bundle-1' only"),
        ("model", {"name": "m"}, "model: the key 'layers' is missing"),
        ("weights", {"kind": "fake"}, "neither real nor rehearsal"),
        ("prefill", {"buckets": [], "dispatches": {}}, "buckets"),
        ("decode", {"dispatches": ["d"], "context": 2}, "bucket 8 exceeds the context of 2"),
        ("lm_head", [], "at least one dispatch"),
        ("rope", {"theta": "big"}, "'theta' must be float"),
    ):
        with pytest.raises(BundleError, match=text):
            parse_manifest({**good, key: value})


def test_the_seal_covers_every_byte_of_the_manifest() -> None:
    data = seal({"b": 1, "a": [1, 2]})
    assert sealed(data) and not sealed(data.replace(b"1", b"3", 1))
    assert not sealed(data + b" ") and not sealed(b"{}") and not sealed(b"[]") and not sealed(b"")


def test_a_value_that_nothing_puts_out_is_named(bundle: Path) -> None:
    path = bundle / "dispatches" / "decode.attend" / "dispatch.json"
    document = json.loads(path.read_text())
    document["arguments"][1]["value"] = "q_norm"
    path.write_text(json.dumps(document))
    reseal(bundle, json.loads((bundle / "manifest.json").read_text()))
    with pytest.raises(
        BundleError, match=r"decode.attend: argument 'q_rope': no earlier .*'q_norm'"
    ):
        runner_of(bundle)


# The command line


def run(root: Path, *arguments: str, stdin: str = "", **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, str(root / "run"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, **environment},
        timeout=60,
    )


def failed(result: Any, text: str, status: int = 2) -> bool:
    """One line on standard error with `text`, the exit status, and no traceback."""
    lines = result.stderr.strip().splitlines()
    assert result.returncode == status, result
    assert len(lines) == 1 and text in lines[0], result.stderr
    return True


def test_run_answers_and_json_has_the_same_text(bundle: Path) -> None:
    text = run(bundle, "a b", "--max-tokens", "5")
    assert text.returncode == 0 and text.stderr == ""
    document = json.loads(run(bundle, "a b", "--max-tokens", "5", "--json").stdout)
    assert document["text"].strip() == text.stdout.strip()
    assert document["prompt_ids"] == [1, 3, 4, 2]
    assert document["timing"] == "predicted (emulated NPU2)"
    assert document["ttft_ms"] > 0
    piped = run(bundle, "-", "--max-tokens", "5", stdin="a b")
    assert piped.stdout == text.stdout
    raw = json.loads(run(bundle, "a b", "--raw", "--json", "--max-tokens", "2").stdout)
    assert raw["prompt_ids"] == [3, 4]


def test_chat_keeps_its_history(bundle: Path) -> None:
    result = run(bundle, "--chat", "--max-tokens", "1", "--json", stdin="a\nb\n\n")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first["prompt_ids"] == [1, 3, 2]
    assert second["prompt_ids"][:3] == first["prompt_ids"] and second["prompt_ids"][-3:] == [
        1,
        4,
        2,
    ]


def test_bench_labels_what_it_prints(bundle: Path) -> None:
    text = run(bundle, "bench", "--prompt-tokens", "8", "--decode-tokens", "3").stdout
    assert "predicted (emulated NPU2)" in text and "TTFT" in text and "TPOT" in text
    assert "wall time of emulation on this host" in text
    document = json.loads(run(bundle, "bench", "--json").stdout)
    assert document["prompt_tokens"] == 4 and document["tokens_per_s"] > 0
    assert document["tokens_per_s"] == pytest.approx(1e3 / document["tpot_ms"])


def test_verify_names_what_changed_is_missing_or_extra(bundle: Path) -> None:
    for _ in range(2):  # a run leaves the bundle as it was
        assert run(bundle, "verify").returncode == 0
        run(bundle, "a", "--max-tokens", "1")
    weights = bundle / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    (bundle / "chat.json").unlink()
    (bundle / "runtime" / "more.py").write_text("")
    (bundle / "python.hint").write_text("/nowhere/python")
    result = run(bundle, "verify")
    assert failed(result, "3 of the bundle's files", 1)
    assert result.stdout.splitlines() == [
        "missing: chat.json",
        "changed: weights.safetensors",
        "extra:   runtime/more.py",
    ]


def test_verify_sees_a_changed_byte_of_the_manifest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    path.write_text(path.read_text().replace('"tiny"', '"tinx"'))
    result = run(bundle, "verify")
    assert result.returncode == 1 and result.stdout.splitlines() == ["changed: manifest.json"]


def test_bad_calls_are_one_line(bundle: Path) -> None:
    assert failed(run(bundle), "a prompt is needed")
    assert failed(run(bundle, " "), "the prompt is empty")
    assert failed(run(bundle, "-"), "the prompt is empty")
    assert failed(run(bundle, "a", "b"), 'quote the prompt: run "a b"')
    assert failed(run(bundle, "a b c d e f g"), "9 tokens, more than the largest bucket (4, 8)")
    assert failed(run(bundle, "a", "--max-tokens", "0"), "'0' is not a whole number of at least 1")
    assert failed(run(bundle, "a", "--temperature", "hot"), "'hot' is not a number from 0 to 100")
    assert failed(run(bundle, "a", "--top-p", "nan"), "'nan' is not a number from 0 to 1")
    assert failed(run(bundle, "a", "--colour"), "--colour")
    assert failed(run(bundle, "a", "--device", "gpu"), "gpu")
    assert failed(run(bundle, "bench", "--prompt-tokens", "9"), "largest bucket (4, 8)")
    assert failed(run(bundle, "bench", "--decode-tokens", "99"), "exceed the context of 24")
    assert failed(run(bundle, "a", "--system", "b"), "no 'system' turn")


def test_an_answer_cut_short_by_the_context_says_so(bundle: Path) -> None:
    path = bundle / "manifest.json"
    document = json.loads(path.read_text())
    document["tokenizer"]["eos_ids"] = []
    reseal(bundle, document)
    result = run(bundle, "a", "--max-tokens", "99")
    assert failed(result, "cut short: the context of 24 tokens is full") and result.stdout.strip()


def test_a_broken_bundle_is_one_line(bundle: Path) -> None:
    (bundle / "tokenizer.json").write_text("{}")
    assert failed(run(bundle, "a"), "tokenizer.json has 2 bytes")
    (bundle / "tokenizer.json").unlink()
    assert failed(run(bundle, "a"), "tokenizer.json is missing")
    (bundle / "manifest.json").write_text("{")
    assert failed(run(bundle, "a"), "manifest.json cannot be read")
    (bundle / "manifest.json").unlink()
    assert failed(run(bundle, "a"), "not a whole bundle")


def test_a_rehearsal_refuses_text_unless_asked(pristine: Path, bundle: Path) -> None:
    document = json.loads((bundle / "manifest.json").read_text())
    reseal(bundle, {**document, "weights": {"kind": "rehearsal"}})
    assert failed(run(bundle, "a"), "--allow-rehearsal")
    assert run(bundle, "a", "--allow-rehearsal", "--max-tokens", "2").returncode == 0
    assert run(bundle, "bench").returncode == 0
    assert "rehearsal" in run(bundle, "--version").stdout


def test_without_packages_the_hint_is_used_or_the_fix_is_said(bundle: Path, tmp_path: Path) -> None:
    bare = [sys._base_executable, "-S", str(bundle / "run")]  # type: ignore[attr-defined]

    def bare_run(*arguments: str) -> Any:
        return subprocess.run([*bare, *arguments], capture_output=True, text=True, timeout=60)

    assert failed(bare_run("a"), "pip install numpy tokenizers")
    assert bare_run("verify").returncode == 0
    (bundle / "python.hint").write_text(sys.executable + "\n")
    assert bare_run("a", "--max-tokens", "1").returncode == 0
    linked = tmp_path / "link"
    linked.symlink_to(bundle / "run")
    assert subprocess.run([sys.executable, str(linked), "verify"], check=False).returncode == 0


def test_ctrl_c_ends_quietly(bundle: Path) -> None:
    command = [sys.executable, str(bundle / "run"), "--chat", "--max-tokens", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write("a\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == ""


def test_the_runtime_imports_numpy_and_tokenizers_alone(bundle: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom runtime import cli\nimport runtime.xrt\n"
        "heavy = {'torch', 'transformers', 'ml_dtypes', 'jinja2', 'tilegate', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert cli.main(Path(sys.argv[1]), ['a', '--max-tokens', '1']) == 0\n"
        "heavy -= {'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-B", "-c", script, str(bundle)], check=True, cwd="/")


def test_loading_needs_every_dispatch(bundle: Path) -> None:
    shutil.rmtree(bundle / "dispatches" / "lm_head")
    with pytest.raises(BundleError, match=r"dispatches/lm_head/dispatch.*missing"):
        load(bundle)


def test_a_conversation_reads_as_the_template_says(bundle: Path) -> None:
    roles = {
        role: {"prefix": f"<{role}>", "suffix": "|"} for role in ("system", "user", "assistant")
    }
    data = {
        "format": "tilegate-chat-1",
        "kind": "turns",
        "eos_ids": [7],
        "trim": True,
        "begin": "^",
        "no_system": "<system>default|",
        "roles": roles,
        "generation": "<assistant>",
    }
    (bundle / "chat.json").write_text(json.dumps(data))
    chat = Chat(bundle, read_manifest(bundle))
    assert chat.text([("user", " a ")]) == "^<system>default|<user>a|<assistant>"
    assert chat.text([("system", "s"), ("user", "a")]) == "^<system>s|<user>a|<assistant>"
    assert chat.stop_ids == {0, 7}
    (bundle / "chat.json").write_text(json.dumps({**data, "kind": "raw"}))
    assert Chat(bundle, read_manifest(bundle)).raw
    (bundle / "chat.json").write_text(json.dumps({**data, "format": "other"}))
    with pytest.raises(BundleError, match="'other', 'turns' is not a template"):
        Chat(bundle, read_manifest(bundle))
