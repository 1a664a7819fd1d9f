"""Every fault is caught by the earliest gate that can, and named by the right skill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilegate import faults
from tilegate.config import load
from tilegate.errors import UserError
from tilegate.graph import debug_skills, skill_names
from tilegate.store import ROOT

sys.path.insert(0, str(Path(__file__).parent))
from faulty import FAMILIES, overrides

HOME = {
    "rope.scaling": "tiny-llama",
    "qkv_bias": "tiny-qwen2",
    "qk_norm": "tiny-qwen3",
    "untied": "tiny-untied",
}
CAUGHT = [fault for fault in faults.FAULTS.values() if fault.gate]


def ask(reports: Path, *words: str) -> object:
    """One run in a process of its own: libraries of a device stay loaded for a process's life."""
    done = subprocess.run(
        [sys.executable, "tests/faulty.py", str(reports), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("fault", CAUGHT, ids=lambda fault: fault.name)
def test_the_earliest_gate_catches_it_and_the_right_skill_names_it(fault, tmp_path):
    family = HOME.get(fault.needs, "tiny-llama")
    record = ask(tmp_path, family, fault.name)
    assert record["task"].startswith(fault.gate)
    if not fault.skill:
        assert record["reasons"]
        return
    assert record["first_wrong"]["op"] == fault.op
    assert [line.split(":")[0] for line in record["findings"]] == [fault.skill]
    written = json.loads((tmp_path / family / "findings.json").read_text())
    assert written[0]["matched"] and written[0]["evidence"] and written[0]["cause"]
    if fault.gate == "gate:block":
        assert written[0]["layer"] == {"stale_buffer": 2, "reused_buffer": 1}.get(fault.name, 0)
    again = subprocess.run(
        [sys.executable, "-m", "tilegate.diagnose", str(tmp_path / family / "failing")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0 and fault.skill in again.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_no_skill_fires_on_a_healthy_run(family, tmp_path):
    assert ask(tmp_path, "healthy", family) == []


def test_the_table_covers_what_the_device_can_do_and_every_debug_skill():
    from runtime.emulated import FAULTS

    assert {f.name for f in faults.FAULTS.values() if f.kind == "device"} == set(FAULTS)
    named = {f.skill for f in faults.FAULTS.values() if f.skill}
    assert named == {name for name in skill_names() if name.startswith("debug-")}
    assert len(named) >= 14


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fault=stale_bufer"], "did you mean 'stale_buffer'?"),
        (["fault=missing_qkv_bias"], "it needs qkv_bias"),
    ],
)
def test_a_fault_that_has_no_place_is_an_error(words, says):
    with pytest.raises(UserError, match=says.replace("?", r"\?")):
        load(words)


def test_debug_skills_by_pattern():
    assert debug_skills(["debug-r*"]) == (
        "debug-reused-buffer",
        "debug-rope-frequency",
        "debug-rope-pairing",
    )
    with pytest.raises(UserError, match="did you mean 'debug-lm-head'"):
        debug_skills(["debug-lm-hed"])


def test_overrides_of_each_family_load():
    for family in FAMILIES:
        assert load(overrides(family)).model.name == family
