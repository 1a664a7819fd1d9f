"""`doit bringup device=npu2`: first contact with a real NPU, stage by stage, resumable.

environment, the smallest transfer (in the place of an empty dispatch: docs/verification.md says
why), a copy, each kernel from the smallest shape, each dispatch, one block, the model, bench. Every
item is judged before the next one starts and remembered with the key of its binary; a second run
goes on where the first one stopped. A failure leaves a report that can be attached to a bug, with
its tensors and what the debug skills found in them. Times and errors that a chip gave go to
`measured.yaml`, in the schema that `python -m tilegate.twin` reads; those of a stand-in for pyxrt
to `stand-in.yaml`, never there.
"""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegate import contact, hardware, kernels, measured, npu_doctor, policy, postmortem
from tilegate.config import Config, load, overrides_of
from tilegate.contact import Outcome
from tilegate.deployment import Deployment, resolve
from tilegate.diagnose import Case
from tilegate.dispatch import Dispatch, solo
from tilegate.errors import BrokenTool, GateFailed, UserError, nearest
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


def main(config: Config, only: str = "") -> bool:
    """Run all stages, or one item; True when all hold. Raises GateFailed at the first that does
    not."""
    if config.device.backend != "xrt":
        raise UserError("bringup is for a real NPU: doit bringup device=npu2")
    if config.device.target != "npu2":
        raise UserError(f"device {config.device.target}: plans and emission only, no runner for it")
    folder = REPORTS / config.device.target
    found = list(npu_doctor.findings(config.device))
    bad = [one for one in found if one.state == "missing"]
    print(f"environment: {len(found) - len(bad)} of {len(found)} hold")
    if bad:
        for one in bad:
            print(f"  {one.what}: {one.detail} -> {one.fix}")
        details = {
            "stage": "environment",
            **versions(),
            "environment": [vars(one) for one in found],
        }
        details["reproduce"] = "doit doctor device=npu2"
        write_report(folder, "environment", details)
        return False
    from runtime.xrt import Npu2

    store = Store()
    session = Npu2(poison_always=True)
    deployment = resolve(config, store.cache)

    def binary(dispatch: Dispatch) -> Artifact:
        return make(store, hardware.binary_node(dispatch, config.device))

    try:
        every = items(Bench(config, deployment, store, session, binary))
        run(chosen(every, only), folder, session.label, found, again=bool(only))
    finally:
        session.close()
    return True


def chosen(found: Iterator[Item], only: str) -> Iterator[Item]:
    """The items, or the one of a name. Raises UserError when none has it."""
    if not only:
        yield from found
        return
    names = []
    for item in found:
        names.append(item.name)
        if item.name == only:
            yield item
            return
    raise UserError(f"no item {only!r}; {nearest(only, names)}")


def versions() -> dict[str, Any]:
    """Of what runs here; those of driver, XRT and toolchain are in the environment's findings."""
    import numpy as np

    return {
        "versions": {
            "tilegate": contact.commit(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "kernel": platform.release(),
            **dict(hardware.tools().versions),
        }
    }


def make(store: Store, node: Any) -> Artifact:
    """A node's artifact, with those that it needs."""
    for need in node.needs:
        make(store, need)
    return store.make(node)


def run(
    found: Iterator[Item],
    folder: Path,
    label: str,
    environment: Sequence[Any] = (),
    again: bool = False,
) -> list[str]:
    """Try the items in order, but for those that already hold (unless `again`); the names of those
    tried.

    Raises GateFailed with the record of the first that fails, or what building its binary raised,
    after writing its report.
    """
    state = _read(folder / "state.json")
    tried = []
    for item in found:
        try:
            key = item.key()  # builds its binary
            if not again and state.get(item.name) == [key, label]:
                print(f"{item.stage}: {item.name} held before")
                continue
            tried.append(item.name)
            outcome = item.act()
        except GateFailed as error:
            cases = error.cases if isinstance(error, postmortem.Failed) else ()
            fail(folder, item, label, error.record, environment, cases)
            raise
        except Exception as error:
            record = postmortem.record_of(item.name, error)
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
    import yaml

    real = label.startswith("measured")
    path = folder / ("measured.yaml" if real else "stand-in.yaml")
    if not path.exists():
        path.write_text(f"# {label}; see docs/verification.md\nrecords:\n")
    entry = dict(row) if real else {**row, "timing": False, "role": "anomaly"}
    with path.open("a") as stream:
        # No JSON: YAML takes its 1e-06 for a text.
        line = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=sys.maxsize)
        stream.write(f"- {line}")


def fail(
    folder: Path,
    item: Item,
    label: str,
    record: Mapping[str, Any],
    environment: Sequence[Any],
    cases: Sequence[Case] = (),
) -> None:
    """The report of a failed item: the debug skills have looked at its tensors."""
    words = [item.name, *(overrides_of(sys.argv[1:]) or ("device=npu2",))]
    details = {
        "stage": item.stage,
        "item": item.name,
        "clock": label,
        "record": dict(record),
        **postmortem.looked_at(cases, folder / "tensors" / contact.file_name(item.name)),
        "reproduce": f"python -m tilegate.bringup {shlex.join(words)}",
        **versions(),
        "environment": [vars(one) for one in environment],
        "kernel_log": contact.kernel_log(),
    }
    write_report(folder, item.name, details)
    for line in details["causes"]:
        print(f"  {line}")


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
    labels: set[str] = set()
    for plan in sorted(bench.deployment.kernels(), key=_size):
        label = "-".join([plan.op, *(str(value) for _, value in plan.shape)])
        while label in labels:  # one shape in two tiles
            label += "+"
        labels.add(label)
        yield _kernel(bench, "kernel", plan, label, plan.op)
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
            got = contact.run_or_keep(bench.config, program, rounded, name)
            off = contact.judged(bench.config, dispatch, rounded, got, wanted, tier)
            if op is None and off:
                reasons = [f"a transfer changed its data: mean_rel_l1 {off:.3g}"]
                raise GateFailed({"gate": "bringup", "subject": name, "reasons": reasons})
            worst = max(worst, off)
        us = statistics.median(program.time() for _ in range(10))
        rows = measured.rows(plan, us, worst, bench.session.label)
        return Outcome(f": {us:.1f} us, mean_rel_l1 {worst:.2e} ({bench.session.label})", rows)

    return Item(stage, f"{stage}:{name}", lambda: bench.binary(dispatch).key, act)


def _dispatch(bench: Bench, dispatch: Dispatch) -> Item:
    def act() -> Outcome:
        program = contact.Program(bench.session, bench.binary(dispatch).path, dispatch)
        off = contact.like_the_emulated(bench.config, bench.store, dispatch, program)
        us = statistics.median(program.time() for _ in range(10))
        label, model = bench.session.label, bench.config.model.name
        times = {"latency_us": us, "mean_rel_l1_to_emulated": off}
        name, launches = f"{model}.{dispatch.name}", sum(1 for _ in dispatch.launches())
        row = measured.unfitted(name, "dispatch", {"launches": launches}, times, label)
        return Outcome(f": {us:.1f} us ({label})", [row])

    return Item("dispatch", f"dispatch:{dispatch.name}", lambda: bench.binary(dispatch).key, act)


def script(argv: Sequence[str]) -> int:
    """`python -m tilegate.bringup ITEM [overrides]`: one item again, as reports name it."""
    names = [word for word in argv if word not in overrides_of(argv)]
    if len(names) != 1:
        print("usage: python -m tilegate.bringup ITEM [device=npu2 model=...]")
        return 2
    try:
        return 0 if main(load(overrides_of(argv)), names[0]) else 1
    except GateFailed as error:
        print("; ".join(error.record.get("reasons", ())) or error)
        return 1
    except (UserError, BrokenTool) as error:
        print(error)
        return 2


if __name__ == "__main__":
    sys.exit(script(sys.argv[1:]))
