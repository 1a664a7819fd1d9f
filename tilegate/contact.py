"""What a bringup does with a device: run one dispatch, judge it, compare whole models."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import gate, policy
from tilegate.config import Config
from tilegate.dispatch import Dispatch, dispatch_node
from tilegate.errors import GateFailed, UserError
from tilegate.store import ROOT, Store

DEADLINE_MS = 30_000
TOKENS = 32
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


def judged(
    name: str,
    got: Mapping[str, Any],
    wanted: Mapping[str, Any],
    tier: policy.Tolerance,
    reports: Path,
) -> float:
    """The worst mean_rel_l1 of the outputs. Raises GateFailed, with the tensors kept."""
    worst = 0.0
    for output, reference in wanted.items():
        ref = rounded({"y": reference})["y"].reshape(got[output].shape)
        record = gate.compare_tensors("bringup", name, got[output], ref, tier, ref.size)
        worst = max(worst, float(record.metrics.get("mean_rel_l1", 0.0)))
        if not record.passed:
            keep(reports, name, {"candidate": got[output], "reference": ref})
            raise GateFailed(record.to_json())
    return worst


def keep(reports: Path, name: str, tensors: Mapping[str, Any]) -> None:
    """The tensors of a failure, as a file that its report names."""
    import numpy as np

    path = reports / "tensors" / f"{file_name(name)}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **tensors)


def like_the_emulated(
    config: Config, store: Store, dispatch: Dispatch, program: Program, reports: Path
) -> None:
    """Outputs of a dispatch against those of the emulated device, whole and row by row."""
    import numpy as np

    random = np.random.default_rng(0)
    operands = rounded({a.name: _drawn(a, random) for a in dispatch.arguments if a.role == "in"})
    wanted = _emulated(store, dispatch, operands)
    got = program(operands)
    rules = policy.load(config.gate)
    for argument in dispatch.arguments:
        if argument.role != "out" or argument.kind == "intermediate":
            continue
        one, other = (side[argument.name].reshape(-1, argument.shape[-1]) for side in (got, wanted))
        subject = f"{dispatch.name} {argument.name}"
        record = gate.compare_block(
            "bringup", subject, one, other, rules, config.model.head_dim, other.size
        )
        if not record.passed:
            keep(reports, f"dispatch:{dispatch.name}", {"candidate": one, "reference": other})
            raise GateFailed(record.to_json())


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
    rules = policy.load(config.gate)

    def key() -> str:
        try:
            return str(json.loads((bundle / "manifest.json").read_text())["digest"])
        except (OSError, ValueError, KeyError):
            return ""

    def block() -> Outcome:
        one, other = (_block(bundle, side) for side in (session, _twin(bundle)))
        record = gate.compare_block(
            "bringup", "block 0", one, other, rules, config.model.head_dim, other.size
        )
        return _held(record, ": layer 0 as on the emulated device")

    def tokens() -> Outcome:
        ids = [_generate(bundle, one)[0] for one in (session, _twin(bundle))]
        record = gate.compare_exact("bringup", "model", ids[0], ids[1], rules)
        return _held(record, f": {TOKENS} tokens as on the emulated device")

    def bench() -> Outcome:
        with unpoisoned(session):
            _, marks = _generate(bundle, session, rounds=2)
        ttft, rest = marks[1] - marks[0], (marks[-1] - marks[1]) / max(1, len(marks) - 2)
        text = f": TTFT {ttft / 1e3:.1f} ms, TPOT {rest / 1e3:.1f} ms ({session.label})"
        return Outcome(text, [])

    yield item("block", "block:0", key, block)
    yield item("model", f"model:{TOKENS} tokens", key, tokens)
    yield item("bench", "bench", key, bench)


def _held(record: gate.Record, text: str) -> Outcome:
    if not record.passed:
        raise GateFailed(record.to_json())
    return Outcome(text, [])


def _twin(bundle: Path) -> Any:
    from runtime.emulated import EmulatedNpu2
    from runtime.manifest import read_manifest

    return EmulatedNpu2(read_manifest(_there(bundle)).device)


def _there(bundle: Path) -> Path:
    if not (bundle / "manifest.json").is_file():
        raise UserError(f"no bundle at {bundle}; doit deploy device=npu2 makes it")
    return bundle


def _block(bundle: Path, session: Any) -> Any:
    """Output f32 [bucket, dim] of layer 0 for drawn inputs."""
    import numpy as np

    from runtime.bf16 import narrow
    from runtime.binding import BLOCK_OUT
    from runtime.runner import Capture, Runner

    runner = Runner(_there(bundle), session)
    bucket = min(runner.bundle.manifest.prefill)
    drawn = np.random.default_rng(0).standard_normal((bucket, runner.bundle.manifest.model.dim))
    capture = Capture(frozenset({BLOCK_OUT}), frozenset({0}))
    runner.block(0, narrow(drawn.astype(np.float32)), capture)
    return capture.tensors[0, BLOCK_OUT]


def _generate(bundle: Path, session: Any, rounds: int = 1) -> tuple[list[int], list[float]]:
    """Greedy tokens of the last round, and the session's clock before the first and after each."""
    from runtime.runner import Runner
    from runtime.sampling import Sampler

    runner = Runner(_there(bundle), session)
    vocabulary, room = runner.bundle.manifest.model.vocab, runner.bundle.manifest.context
    prompt = [token % vocabulary for token in PROMPT]
    for _ in range(rounds):
        ids, marks = [], [session.now_us()]
        for token in runner.generate(prompt, Sampler(), min(TOKENS, room - len(prompt))):
            ids.append(token)
            marks.append(session.now_us())
    return ids, marks


def kernel_log() -> list[str]:
    """The last lines of the kernel's log about the driver, where this user may read it."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if "amdxdna" in line][-40:]


def file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)
