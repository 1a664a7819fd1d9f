"""What a bringup does with a device: run one dispatch, judge it, compare whole models."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilegate import gate, measured, policy, postmortem
from tilegate.config import Config
from tilegate.diagnose import Case
from tilegate.dispatch import Dispatch, dispatch_node
from tilegate.errors import UserError
from tilegate.store import ROOT, Store

DEADLINE_MS = 30_000
TOKENS = 32
BLOCK_OUT = postmortem.OUTPUT
PROMPT = (1, 2, 3, 5, 8, 13)


@dataclass(frozen=True)
class Outcome:
    """What an item found: a text for people, rows for the twin."""

    text: str
    rows: Sequence[Mapping[str, Any]]


class Program:
    """One dispatch on a session: FP32 arrays in, FP32 arrays out."""

    def __init__(self, session: Any, folder: Path, dispatch: Dispatch) -> None:
        self.session = session
        self.dispatch = dispatch
        device = session.device(0)
        program = session.elf(str(folder / session.program))
        self._context = session.hw_context(device, program)
        kernel = session.ext.kernel(self._context, f"main:{dispatch.name}")
        self._bos = [session.ext.bo(device, a.bytes) for a in dispatch.arguments]
        self._run = session.run(kernel)
        for index, bo in enumerate(self._bos):
            self._run.set_arg(index, bo)

    def __call__(self, operands: Mapping[str, Any]) -> dict[str, Any]:
        """Raises RuntimeError with the state when the command does not complete."""
        import ml_dtypes
        import numpy as np

        dtypes = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "i32": np.int32}
        directions = self.session.xclBOSyncDirection
        for argument, bo in zip(self.dispatch.arguments, self._bos, strict=True):
            if argument.name in operands:
                value = np.ascontiguousarray(operands[argument.name]).astype(dtypes[argument.dtype])
                bo.write(value.reshape(-1).view(np.uint8), 0)
                bo.sync(directions.XCL_BO_SYNC_BO_TO_DEVICE)
        self._go()
        return self.left()

    def left(self) -> dict[str, Any]:
        """What the device's outputs hold now, also after a command that failed."""
        import ml_dtypes
        import numpy as np

        dtypes = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "i32": np.int32}
        directions = self.session.xclBOSyncDirection
        results = {}
        for argument, bo in zip(self.dispatch.arguments, self._bos, strict=True):
            if argument.role == "out":
                bo.sync(directions.XCL_BO_SYNC_BO_FROM_DEVICE)
                raw = np.frombuffer(
                    bo.map(), dtypes[argument.dtype], argument.bytes // _width(argument)
                )
                results[argument.name] = raw.astype(np.float32).reshape(argument.shape)
        return results

    def time(self) -> float:
        """Microseconds of one more run on the session's clock, without poison and its check."""
        with unpoisoned(self.session):
            begun = self.session.now_us()
            self._go()
            return float(self.session.now_us() - begun)

    def _go(self) -> None:
        self._run.start()
        state = self._run.wait(DEADLINE_MS)
        if state != self.session.ert_cmd_state.ERT_CMD_STATE_COMPLETED:
            name = getattr(state, "name", state)
            raise RuntimeError(f"{self.dispatch.name} ended in state {name}")


@contextlib.contextmanager
def unpoisoned(session: Any) -> Iterator[None]:
    """Within, a session does not poison what it has seen written: for times."""
    before = getattr(session, "poison_always", False)
    session.poison_always = False
    try:
        yield
    finally:
        session.poison_always = before


def _width(argument: Any) -> int:
    return 2 if argument.dtype == "bf16" else 4


def rounded(operands: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 operands at values that bf16 holds; integers as they are."""
    import ml_dtypes
    import numpy as np

    return {
        name: value
        if np.issubdtype(np.asarray(value).dtype, np.integer)
        else np.asarray(value).astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, value in operands.items()
    }


def run_or_keep(
    config: Config, program: Program, operands: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """The program's results. Raises postmortem.Failed, with what the device left, when it fails."""
    try:
        return program(operands)
    except Exception as error:
        held = dict(operands)
        with contextlib.suppress(Exception):  # a device that is gone leaves the operands alone
            held |= program.left()
        cases = postmortem.of_launches(config, program.dispatch, held, policy.load(config.gate))
        kept = postmortem.first_wrong(cases, cases[-1])
        raise postmortem.Failed(postmortem.record_of(name, error), kept) from error


def judged(
    config: Config,
    dispatch: Dispatch,
    operands: Mapping[str, Any],
    got: Mapping[str, Any],
    wanted: Mapping[str, Any],
    tier: policy.Tolerance,
) -> float:
    """The worst mean_rel_l1 of the outputs. Raises postmortem.Failed, with the launch at fault."""
    worst = 0.0
    for output, reference in wanted.items():
        ref = rounded({"y": reference})["y"].reshape(got[output].shape)
        name = dispatch.name
        record = gate.compare_tensors("bringup", name, got[output], ref, tier, ref.size)
        worst = max(worst, float(record.metrics.get("mean_rel_l1", 0.0)))
        if not record.passed:
            case = Case(
                "bringup", output, "", None, dispatch.phase, got[output], ref, operands=operands
            )
            held = {**operands, **got}
            rules = policy.load(config.gate)
            made = postmortem.of_launches(config, dispatch, held, rules)
            raise postmortem.Failed(record.to_json(), postmortem.first_wrong(made, case))
    return worst


def like_the_emulated(config: Config, store: Store, dispatch: Dispatch, program: Program) -> float:
    """Outputs of a dispatch against those of the emulated device, whole and row by row, and each
    launch by itself: a residual hides what is wrong before it. The worst mean_rel_l1 of outputs.

    Raises postmortem.Failed with the first launch whose result does not follow from its operands.
    """
    import numpy as np

    random = np.random.default_rng(0)
    operands = rounded({a.name: _drawn(a, random) for a in dispatch.arguments if a.role == "in"})
    wanted = _emulated(store, dispatch, operands)
    got = run_or_keep(config, program, operands, dispatch.name)
    rules = policy.load(config.gate)
    made = postmortem.of_launches(config, dispatch, {**operands, **got}, rules)
    worst = 0.0
    for argument in dispatch.arguments:
        if argument.role != "out" or argument.kind == "intermediate":
            continue
        one, other = (side[argument.name].reshape(-1, argument.shape[-1]) for side in (got, wanted))
        subject = f"{dispatch.name} {argument.name}"
        record = gate.compare_block(
            "bringup", subject, one, other, rules, config.model.head_dim, other.size
        )
        if not record.passed:
            last = Case("bringup", argument.name, "", None, dispatch.phase, one, other)
            raise postmortem.Failed(record.to_json(), postmortem.first_wrong(made, last))
        worst = max(worst, float(record.metrics["mean_rel_l1"]))
    postmortem.each_follows(dispatch.name, made)
    return worst


def _drawn(argument: Any, random: Any) -> Any:
    import numpy as np

    if argument.dtype == "i32":
        return np.full(argument.shape, 100, np.int32)
    scale = argument.shape[-1] ** -0.5 if argument.kind == "static" else 1.0
    return random.standard_normal(argument.shape).astype(np.float32) * np.float32(scale)


def _emulated(store: Store, dispatch: Dispatch, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The same dispatch on the emulated device."""
    from runtime.emulated import EmulatedNpu2
    from runtime.manifest import Timing

    still = Timing(sync_us=0.0, sync_gbps=1.0)
    node = dispatch_node(dispatch)
    for need in node.needs:
        store.make(need)
    return Program(EmulatedNpu2(still), store.make(node).path, dispatch)(operands)


def whole(
    config: Config, session: Any, item: Callable[..., Any], deploy: Path | None = None
) -> Iterator[Any]:
    """The promoted bundle: one block and 32 greedy tokens as the emulated device, then times."""
    bundle = (deploy or ROOT / "build" / "deploy") / config.model.name

    def key() -> str:
        try:
            return str(json.loads((bundle / "manifest.json").read_text())["digest"])
        except (OSError, ValueError, KeyError):
            return ""

    def bench() -> Outcome:
        with unpoisoned(session):
            marks = _generate(bundle, session, Generated(), rounds=2).marks
        ttft, rest = marks[1] - marks[0], (marks[-1] - marks[1]) / max(1, len(marks) - 2)
        text = f": TTFT {ttft / 1e3:.1f} ms, TPOT {rest / 1e3:.1f} ms ({session.label})"
        times = {"ttft_s": ttft / 1e6, "decode_tok_s": 1e6 / rest if rest else None}
        row = measured.unfitted(config.model.name, "model", {}, times, session.label)
        return Outcome(text, [row])

    yield item("block", "block:0", key, lambda: _compare_block(config, bundle, session))
    name = f"model:{TOKENS} tokens"
    yield item("model", name, key, lambda: _compare_tokens(config, bundle, session))
    yield item("bench", "bench", key, bench)


def _compare_block(config: Config, bundle: Path, session: Any) -> Outcome:
    """One layer against the emulated device, and launch by launch."""
    rules = policy.load(config.gate)
    one, other = (_block(bundle, side) for side in (session, _twin(bundle)))
    for phase, seen in one.items():
        pair = seen[BLOCK_OUT], other[phase][BLOCK_OUT]
        subject = f"block 0, {phase}"
        record = gate.compare_block(
            "bringup", subject, *pair, rules, config.model.head_dim, pair[1].size
        )
        made = (
            postmortem.of_layer(config, bundle, 0, seen, rules)
            if phase == "prefill"
            else postmortem.of_decode(config, bundle, 0, one["prefill"], seen, rules)
        )
        if not record.passed:
            last = Case("bringup", BLOCK_OUT, "", 0, phase, *pair, values=seen)
            raise postmortem.Failed(record.to_json(), postmortem.first_wrong(made, last))
        postmortem.each_follows(subject, made)
    return Outcome(": layer 0 as on the emulated device", [])


def _compare_tokens(config: Config, bundle: Path, session: Any) -> Outcome:
    """Greedy tokens against the emulated device's; a failure keeps both sides' logits."""
    rules = policy.load(config.gate)
    sides, both = (session, _twin(bundle)), (Generated(), Generated())
    told: dict[str, Any] = {}
    try:
        for side, made, which in zip(sides[::-1], both, ("emulated_", ""), strict=True):
            try:
                _generate(bundle, side, made)
            finally:
                told |= made.kept(which)
        one, other = both[1].ids, both[0].ids
        record = gate.compare_exact("bringup", "model", one, other, rules).to_json()
    except UserError:
        raise
    except Exception as error:
        record = postmortem.record_of("model", error)
    if record["verdict"] != "pass":
        cases = postmortem.of_model(config, bundle, sides, both[0].prompt, told, rules)
        raise postmortem.Failed(record, cases)
    return Outcome(f": {TOKENS} tokens as on the emulated device", [])


def _twin(bundle: Path) -> Any:
    from runtime.emulated import EmulatedNpu2
    from runtime.manifest import read_manifest

    return EmulatedNpu2(read_manifest(_there(bundle)).device)


def _there(bundle: Path) -> Path:
    if not (bundle / "manifest.json").is_file():
        raise UserError(f"no bundle at {bundle}; doit deploy device=npu2 makes it")
    return bundle


def _block(bundle: Path, session: Any) -> dict[str, dict[str, Any]]:
    """All values of layer 0's prefill of a drawn input, and of a decode of one of its tokens."""
    import numpy as np

    from runtime.bf16 import narrow
    from runtime.runner import Capture, Runner

    runner = Runner(_there(bundle), session)
    bucket = min(runner.bundle.manifest.prefill)
    drawn = np.random.default_rng(0).standard_normal((bucket, runner.bundle.manifest.model.dim))
    x = narrow(drawn.astype(np.float32))
    values, layers = postmortem.values_of(bundle) | {BLOCK_OUT}, frozenset({0})
    prefill = runner.block(0, x, Capture(values, layers))
    at = postmortem.decoded_at(runner.bundle.manifest)
    decode = runner.decode_block(0, x[at], at, Capture(values, layers))
    return {
        phase: {name: tensor for (_, name), tensor in capture.tensors.items()}
        for phase, capture in (("prefill", prefill), ("decode", decode))
    }


@dataclass
class Generated:
    """Greedy tokens and logits of a generation; the clock before the first token and after each."""

    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logits: list[Any] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)

    def kept(self, whose: str) -> dict[str, Any]:
        """Tokens and logits, as far as it came, for the tensors of a failure."""
        import numpy as np

        logits = np.array(self.logits, np.float32)
        return {f"{whose}tokens": np.array(self.ids, np.int64), f"{whose}logits": logits}


def _generate(bundle: Path, session: Any, made: Generated, rounds: int = 1) -> Generated:
    """The last of some rounds; `made` is filled on the way: a failure leaves what it had."""
    from runtime.runner import Runner
    from runtime.sampling import Sampler

    runner = Runner(_there(bundle), session)
    vocabulary, room = runner.bundle.manifest.model.vocab, runner.bundle.manifest.context
    made.prompt[:] = [token % vocabulary for token in PROMPT]
    sampler = Sampler()

    def pick(logits: Any) -> int:
        made.logits.append(logits)
        return sampler(logits)

    for _ in range(rounds):
        made.ids.clear()
        made.logits.clear()
        made.marks[:] = [session.now_us()]
        for token in runner.generate(made.prompt, pick, min(TOKENS, room - len(made.prompt))):
            made.ids.append(token)
            made.marks.append(session.now_us())
    return made


def kernel_log() -> list[str]:
    """The last lines of the kernel's log about the driver, where this user may read it."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if "amdxdna" in line][-40:]


def commit() -> str:
    """This repository's commit, with a mark when files differ from it; empty without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)
