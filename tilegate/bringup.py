"""`doit bringup device=npu2`: first contact with a real NPU, stage by stage, resumable.

environment, the smallest transfer, a copy, each kernel from the smallest shape, each dispatch, one
block, the model, bench. Every item is judged before the next one starts and remembered with the key
of its binary; a second run goes on where the first one stopped. A failure leaves a report that can
be attached to a bug. Times and errors that a chip gave go to `measured.yaml`, in the schema that
`python -m tilegate.twin` reads; those of a stand-in for pyxrt to `stand-in.yaml`, never there.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import contact, hardware, kernels, measured, npu_doctor, policy
from tilegate.config import Config
from tilegate.contact import Outcome
from tilegate.deployment import Deployment, resolve
from tilegate.dispatch import Dispatch, solo
from tilegate.errors import BrokenTool, GateFailed, UserError
from tilegate.plan import (
    Access,
    Buffer,
    Copy,
    CoreObject,
    Launch,
    Tensor,
    TilePlan,
    X,
    freeze,
)
from tilegate.store import ROOT, Artifact, Store

REPORTS = ROOT / "build" / "reports" / "bringup"
SMALLEST, COPIED = 32, 65536
SEEDS = 3


@dataclass(frozen=True)
class Item:
    """One thing to try: its stage, name, the key of what it depends on, and how."""

    stage: str
    name: str
    key: Callable[[], str]
    act: Callable[[], Outcome]


@dataclass
class Bench:
    """What the items share: the configuration, the session, how binaries come to be."""

    config: Config
    deployment: Deployment
    store: Store
    session: Any
    binary: Callable[[Dispatch], Artifact]


def main(config: Config) -> bool:
    """Run all stages; True when all hold. Raises GateFailed at the first that does not."""
    if config.device.backend != "xrt":
        raise UserError("bringup is for a real NPU: doit bringup device=npu2")
    folder = REPORTS / config.device.target
    found = list(npu_doctor.findings(config.device))
    bad = [one for one in found if one.state == "missing"]
    print(f"environment: {len(found) - len(bad)} of {len(found)} hold")
    if bad:
        for one in bad:
            print(f"  {one.what}: {one.detail} -> {one.fix}")
        write_report(folder, "environment", {"findings": [vars(one) for one in found]})
        return False
    from runtime.xrt import Npu2

    store = Store()
    session = Npu2(poison_always=True)
    deployment = resolve(config, store.cache)

    def binary(dispatch: Dispatch) -> Artifact:
        return make(store, hardware.binary_node(dispatch, config.device))

    try:
        run(items(Bench(config, deployment, store, session, binary)), folder, session.label, found)
    finally:
        session.close()
    return True


def make(store: Store, node: Any) -> Artifact:
    """A node's artifact, with those that it needs."""
    for need in node.needs:
        make(store, need)
    return store.make(node)


def run(
    found: Iterator[Item], folder: Path, label: str, environment: Sequence[Any] = ()
) -> list[str]:
    """Try the items in order, but for those that already hold; the names of those tried.

    Raises GateFailed with the record of the first that fails, or what building its binary raised,
    after writing its report.
    """
    state = _read(folder / "state.json")
    tried = []
    for item in found:
        try:
            key = item.key()  # builds its binary
            if state.get(item.name) == [key, label]:
                print(f"{item.stage}: {item.name} held before")
                continue
            tried.append(item.name)
            outcome = item.act()
        except GateFailed as error:
            fail(folder, item, label, error.record, environment)
            raise
        except Exception as error:
            record: dict[str, Any] = {"gate": item.stage, "subject": item.name, "verdict": "fail"}
            record["reasons"] = [f"{type(error).__name__}: {error}"]
            fail(folder, item, label, record, environment)
            if isinstance(error, UserError | BrokenTool):
                raise
            raise GateFailed(record) from error
        state[item.name] = [key, label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text(json.dumps(state, indent=1))
        for row in outcome.rows:
            append(folder, label, row)
        print(f"{item.stage}: {item.name} holds{outcome.text}")
    return tried


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # only slower: everything is tried again
    return found if isinstance(found, dict) else {}


def append(folder: Path, label: str, row: Mapping[str, Any]) -> None:
    """A row for the twin: into `measured.yaml` only where a chip was timed."""
    real = label.startswith("measured")
    path = folder / ("measured.yaml" if real else "stand-in.yaml")
    if not path.exists():
        path.write_text(f"# {label}; see docs/verification.md\nrecords:\n")
    entry = dict(row) if real else {**row, "timing": False, "role": "anomaly"}
    with path.open("a") as stream:
        stream.write(f"- {json.dumps(entry)}\n")


def fail(
    folder: Path, item: Item, label: str, record: Mapping[str, Any], environment: Sequence[Any]
) -> None:
    """The report of a failed item."""
    details = {
        "stage": item.stage,
        "item": item.name,
        "clock": label,
        "record": dict(record),
        "tensors": str(folder / "tensors" / f"{contact.file_name(item.name)}.npz"),
        "reproduce": "doit bringup device=npu2 (what held before is not tried again)",
        "findings": [vars(one) for one in environment],
        "kernel_log": contact.kernel_log(),
    }
    write_report(folder, item.name, details)


def write_report(folder: Path, name: str, details: Mapping[str, Any]) -> None:
    """`failed-<name>.json`, with the time of day."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"failed-{contact.file_name(name)}.json"
    stamped = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **details}
    path.write_text(json.dumps(stamped, indent=1, default=str))
    print(f"report: {path}")


def items(bench: Bench) -> Iterator[Item]:
    """Everything to try, the smallest first."""
    cols = bench.config.device.cols
    for stage, size, over in (("smallest", SMALLEST, 1), ("copy", COPIED, cols)):
        yield _kernel(bench, stage, transfer(size, over), f"{stage}-{size}", None)
    for plan in sorted(bench.deployment.kernels(), key=_size):
        label = "-".join(str(value) for _, value in plan.shape)
        yield _kernel(bench, "kernel", plan, f"{plan.op}-{label}", plan.op)
    for dispatch in bench.deployment.dispatches:
        yield _dispatch(bench, dispatch)
    yield from contact.whole(bench.config, bench.session, Item)


def _size(plan: TilePlan) -> int:
    return sum(tensor.bytes for tensor in plan.tensors)


def transfer(count: int, cols: int) -> TilePlan:
    """x -> y through the cores of one row, without any core function: the least a launch can do."""
    share = count // cols
    x, y = Tensor("x", "in", (count,)), Tensor("y", "out", (count,))
    place = X * share
    body = (
        Copy(Access("x", place, (1,)), Access("part", strides=(1,)), (share,), ("x",)),
        Copy(Access("part", strides=(1,)), Access("y", place, (1,)), (share,), ("x",)),
    )
    core = CoreObject("add.cc", (("TILE", 64),), ())
    launch = Launch("transfer", (x, y), (Buffer("part", 1, (share,)),), cols, 1, body, core)
    return TilePlan("add", freeze({"N": count}), freeze({"cols": cols}), (x, y), (launch,))


def _kernel(bench: Bench, stage: str, plan: TilePlan, name: str, op: str | None) -> Item:
    dispatch = solo(plan, name)

    def act() -> Outcome:
        import numpy as np

        shape = dict(plan.shape)
        contract = kernels.contract(plan.op)
        rules = policy.load(bench.config.gate)
        tier = rules.tier(kernels.tier(plan.op, dict(plan.tile)))
        program = contact.Program(bench.session, bench.binary(dispatch).path, dispatch)
        worst = 0.0
        for seed in range(SEEDS):
            random = np.random.default_rng(seed)
            operands = (
                contract.inputs(shape, random)
                if op
                else {"x": random.standard_normal(plan.tensors[0].elements, dtype=np.float32)}
            )
            rounded = contact.rounded(operands)
            wanted = contract.reference(shape, rounded) if op else {"y": rounded["x"]}
            got = program(rounded)
            worst = max(worst, contact.judged(name, got, wanted, tier, REPORTS))
        us = statistics.median(program.time() for _ in range(10))
        rows = [] if op is None else measured.rows(plan, us, worst, bench.session.label)
        return Outcome(f": {us:.1f} us, mean_rel_l1 {worst:.2e} ({bench.session.label})", rows)

    return Item(stage, f"{stage}:{name}", lambda: bench.binary(dispatch).key, act)


def _dispatch(bench: Bench, dispatch: Dispatch) -> Item:
    def act() -> Outcome:
        program = contact.Program(bench.session, bench.binary(dispatch).path, dispatch)
        contact.like_the_emulated(bench.config, bench.store, dispatch, program, REPORTS)
        us = statistics.median(program.time() for _ in range(10))
        return Outcome(f": {us:.1f} us ({bench.session.label})", [])

    return Item("dispatch", f"dispatch:{dispatch.name}", lambda: bench.binary(dispatch).key, act)
