"""Phase 7, first half: is a bundle what the committed sources make of its configuration?

Nothing that the bundle says of itself is taken for granted. The deployment is planned anew from its
configuration, its documents are written anew, its dispatches are lowered and linked anew, and its
gate records are held against the committed policy. What remains to be run is `tilegate.evaluate`'s.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from runtime.bundle import differences
from runtime.manifest import MANIFEST, parse_manifest, sealed
from tilegate import bundle, graph, kernels, policy, schema
from tilegate.config import Config, load, plain
from tilegate.deployment import Deployment
from tilegate.digests import digest
from tilegate.dispatch import Dispatch, dispatch_node
from tilegate.errors import UserError
from tilegate.store import Build, Node, Store

SECTIONS = ("model", "device", "prefill", "decode", "lm_head", "rope")
TENSORS = ("block", "model", "oracle")  # gates whose two sides never are the same bytes
MORE = ("cosine", "steps", "published_scale", "too_good")  # thresholds that are strict when high
BLOCK = {"cosine": "cosine", "mean_rel_l1": "mean_rel_l1", "row_rel_l1": "row_rel_l1"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and how it was found."""

    name: str
    verdict: Literal["pass", "warn", "fail"]
    detail: str = ""


def audit(folder: Path, store: Store, weights_path: str | None = None) -> list[Check]:
    """Every check of the bundle in `folder`; a failed one ends what depends on it."""
    checks = [*_seal(folder)]
    if any(check.verdict == "fail" for check in checks):
        return checks
    manifest = json.loads((folder / MANIFEST).read_text())
    try:
        config = config_of(manifest, weights_path)
        nodes = graph.nodes(config, store)
        deployment = graph.deployment(config, store)
    except (UserError, KeyError, TypeError, ValueError) as error:
        return [*checks, Check("configuration", "fail", f"it cannot be planned: {error}")]
    checks += _configuration(config, manifest)
    checks += _records(manifest, nodes, config)
    checks += _documents(folder, manifest, deployment, config)
    checks += _runtime(folder)
    checks += _libraries(folder, deployment, store)
    return checks


def _verdict(name: str, wrong: list[str], kind: Literal["warn", "fail"] = "fail") -> Check:
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return Check(name, kind, wrong[0] + more) if wrong else Check(name, "pass")


def _seal(folder: Path) -> Iterator[Check]:
    data = (folder / MANIFEST).read_bytes() if (folder / MANIFEST).is_file() else b""
    if not sealed(data):
        yield Check("seal", "fail", f"{MANIFEST} is missing, altered or not sealed")
        return
    yield Check("seal", "pass")
    try:
        manifest = parse_manifest(json.loads(data))
    except Exception as error:  # whatever an edited manifest makes of itself
        yield Check("manifest", "fail", str(error))
        return
    yield _verdict("files", list(differences(folder, manifest)))


def config_of(manifest: Mapping[str, Any], weights_path: str | None) -> Config:
    """The bundle's configuration, completed by what no deployment depends on."""
    document = {**plain(load([])), **manifest["config"]}
    if document["weights"]["path"]:
        document["weights"] = {**document["weights"], "path": weights_path}
    return schema.build(Config, document, "")


def rules_of(config: Config) -> policy.Policy:
    """The policy to judge by: the committed one, or the bundle's own where it is only stricter."""
    ours, committed = policy.load(config.gate), policy.committed()
    if ours.prompts != committed.prompts or ours.tiers.keys() != committed.tiers.keys():
        return committed
    pairs = [
        (key, value.value, theirs[key].value)
        for group, others in ((ours.tiers, committed.tiers), (ours.sections, committed.sections))
        for name, values in group.items()
        for theirs in (others[name],)
        for key, value in values.items()
    ]
    stricter = all(b <= a if key.startswith(MORE) else a <= b for key, a, b in pairs)
    return ours if stricter else committed


def _configuration(config: Config, manifest: Mapping[str, Any]) -> Iterator[Check]:
    fault = config.fault
    yield _verdict("no fault", [f"fault={fault} was planted"] if fault else [])
    ours, committed = policy.load(config.gate), policy.committed()
    wrong = [*ours.changed_from(committed)]
    if ours.digest != committed.digest and not wrong:
        wrong = ["its digest differs: notes or sources were edited"]
    tight = rules_of(config).digest == ours.digest
    yield _verdict("policy is the committed one", wrong, "warn" if wrong and tight else "fail")
    told = sorted(manifest["policy_changes"])
    yield _verdict(
        "policy changes are told",
        [] if told == sorted(ours.changed_from(committed)) else ["they are not"],
    )
    chosen = config.choices["model"]
    known = plain(load([f"model={chosen}"]).model)
    changed = [
        f"model.{key}: {known[key]} -> {value}"
        for key, value in plain(config.model).items()
        if value != known[key]
    ]
    yield _verdict("model as published", changed, "warn")


def _records(manifest: Mapping[str, Any], nodes: list[Node], config: Config) -> Iterator[Check]:
    """No gate is missing, each saw what it should have, and its numbers hold."""
    records = manifest["gates"]
    got = Counter(record["task"] for record in records)
    want = expected_records(nodes, config)
    wrong = [
        f"{task}: {got.get(task, 0)} records, want {count}"
        for task, count in want.items()
        if got.get(task, 0) != count
    ]
    wrong += [f"{task} is no gate of this deployment" for task in got if task not in want]
    yield _verdict("no gate was skipped", wrong)
    rules = rules_of(config)
    yield _verdict("records", [why for record in records for why in _record(record, rules)])


def expected_records(nodes: list[Node], config: Config) -> dict[str, int]:
    """How many comparisons each gate of the chain makes."""
    first = next(e for e in config.chain.skills if e.skill == "phase-0-oracle")
    prompts = len(policy.load(config.gate).prompts[first.parameters.get("prompts", "quick")])
    layers = len({0, config.model.layers // 2, config.model.layers - 1})
    fixed = {
        "gate:oracle": prompts,
        "gate:block": 2 * prompts * layers,
        "gate:model": prompts,
        "gate:runner": prompts + 2,
    }
    found = {}
    for node in nodes:
        if node.name.startswith("gate:kernel:"):
            found[node.name] = 1 + len(node.inputs["uses"])
        elif node.name in fixed:
            found[node.name] = fixed[node.name]
    return found


def _record(record: Mapping[str, Any], rules: policy.Policy) -> Iterator[str]:
    """What is wrong with one record."""
    where = f"{record['task']} {record['subject']}"
    counts, metrics = record["counts"], record["metrics"]
    if record["verdict"] != "pass" or record["reasons"]:
        yield f"{where}: verdict {record['verdict']}, {record['reasons']}"
    if not (0 < counts["expected"] <= counts["compared"]):
        yield f"{where}: {counts['compared']} compared, want {counts['expected']}"
    if record["policy"] not in _digests(rules, record["gate"]):
        yield f"{where}: judged by another policy"
    if record["gate"] in TENSORS and record["candidate"] == record["reference"]:
        yield f"{where}: candidate and reference are the same bytes"
    if record["gate"] == "model" and counts["compared"] < rules.sections["model"]["steps"].value:
        yield f"{where}: fewer tokens than the policy asks for"
    limits = _limits(record, rules)
    if limits is None:
        yield f"{where}: thresholds are not those of the committed policy"
        return
    for key, (limit, least) in limits.items():
        value = metrics.get(key)
        if not isinstance(value, int | float) or not (value >= limit if least else value <= limit):
            yield f"{where}: {key} {value} does not hold {limit:g}"


def _digests(rules: policy.Policy, gate: str) -> set[str]:
    """The digests by which a record may name the part of the policy that judged it."""
    if gate == "runner":
        return {"exact"}  # equality knows no thresholds
    parts = [*rules.tiers.values(), *rules.sections.values()]
    return {rules.digest, *(digest(part) for part in parts)}


def _limits(
    record: Mapping[str, Any], rules: policy.Policy
) -> dict[str, tuple[float, bool]] | None:
    """{metric: (limit, is it a least one)}, if the record was held to the committed policy."""
    shown, gate = record["thresholds"], record["gate"]
    if gate == "kernel":
        words = str(record["task"]).split(":", 2)[2]
        op, method = words.split(".")[0], words.rsplit(".", 1)[-1]
        inputs: Literal["random", "real"] = (
            "real" if record["subject"].endswith("real") else "random"
        )
        tolerance = rules.tier(kernels.tier(op, {"method": method}), inputs)
        if shown != {key: asdict(value) for key, value in tolerance.thresholds.items()}:
            return None
        limits = {"mean_rel_l1": (tolerance["mean_rel_l1"], False)}
        return limits | {"outside_share": (_share(tolerance, inputs), False)}
    if gate == "block":
        section = rules.sections["block"]
        least = [section["cosine_head_dim_64"], section["cosine_head_dim_128"]]
        if any(shown[k] != asdict(section[v]) for k, v in BLOCK.items()) or shown[
            "cosine_min"
        ] not in [asdict(limit) for limit in least]:
            return None
        highs = {k: (section[k].value, False) for k in ("mean_rel_l1", "row_rel_l1")}
        low = (float(shown["cosine_min"]["value"]), True)
        return {**highs, "cosine": (section["cosine"].value, True), "cosine_min": low}
    if gate in ("model", "oracle"):
        section = rules.sections[gate]
        if shown != {key: asdict(value) for key, value in section.items()}:
            return None
        return {"max_abs": (section["max_abs"].value, False)} if gate == "oracle" else {}
    return {} if not shown else None


def _share(tolerance: policy.Tolerance, inputs: str) -> float:
    return tolerance["outside_share"] if inputs == "real" else 0.0


def _documents(
    folder: Path, manifest: Mapping[str, Any], deployment: Deployment, config: Config
) -> Iterator[Check]:
    """Argument tables, predicted times and the manifest's own sections, written anew."""
    wrong, listed = [], set()
    for dispatch in deployment.dispatches:
        place = folder / "dispatches" / dispatch.name / "dispatch.json"
        listed.add(dispatch.name)
        want = json.loads(json.dumps(bundle.predicted(dispatch, config)))
        have = json.loads(place.read_text()) if place.is_file() else None
        if have != want:
            key = next((k for k in want if not have or have.get(k) != want[k]), "a key too many")
            wrong.append(f"{dispatch.name}: {key} is not what the plan gives")
    extra = {path.name for path in (folder / "dispatches").iterdir()} - listed
    wrong += [f"{name} is no dispatch of this deployment" for name in sorted(extra)]
    yield _verdict("dispatch tables and predicted times", wrong)
    record = {**manifest["weights"], "tokenizer": manifest["tokenizer"]}
    made = json.loads(bundle.manifest(deployment, folder, record, {}))
    wrong = [f"{key} differs" for key in SECTIONS if made[key] != manifest[key]]
    yield _verdict("manifest sections", wrong)


def _runtime(folder: Path) -> Iterator[Check]:
    wrong = []
    for path in bundle.runtime_files():
        name = bundle.EXECUTABLE if path.name == bundle.EXECUTABLE else f"runtime/{path.name}"
        place = folder / name
        if not place.is_file() or place.read_bytes() != path.read_bytes():
            wrong.append(f"{name} is not the committed runner's")
    known = {path.name for path in bundle.runtime_files()}
    wrong += [
        f"runtime/{path.name} is no part of the runner"
        for path in sorted((folder / "runtime").iterdir())
        if path.name not in known and path.name != "__pycache__"
    ]
    yield _verdict("runner", wrong)


def _libraries(folder: Path, deployment: Deployment, store: Store) -> Iterator[Check]:
    """Every dispatch lowered and linked anew, byte for byte."""
    wrong = []
    for dispatch in deployment.dispatches:
        place = folder / "dispatches" / dispatch.name / "dispatch.so"
        have = hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else ""
        if have != _linked(dispatch, store):
            wrong.append(f"{dispatch.name}/dispatch.so is not what its sources give")
    yield _verdict("dispatches rebuilt", wrong)


def _linked(dispatch: Dispatch, store: Store) -> str:
    node = dispatch_node(dispatch)
    needs = {need.name: store.make(need) for need in node.needs}
    with tempfile.TemporaryDirectory(prefix="tilegate-audit-") as place:
        node.build(Build(node, Path(place), needs, lambda text: None))
        return hashlib.sha256((Path(place) / "dispatch.so").read_bytes()).hexdigest()
