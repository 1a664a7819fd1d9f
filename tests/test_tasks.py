"""Tasks under doit, with a toy graph: exit status, progress, parallel runs, clean, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilegate import tasks
from tilegate.errors import UserError
from tilegate.store import ROOT

TOY = """
import os, sys, time
from functools import partial
from pathlib import Path
sys.path.insert(0, {root!r})
from tilegate import tasks
from tilegate.errors import BrokenTool, GateFailed, UserError
from tilegate.store import Node, Store

HOW, HERE = os.environ.get("HOW", "write"), Path(__file__).parent
RECORD = dict(gate="toy", subject="gemm", verdict="fail", metrics=dict(cosine=0.1),
              thresholds=dict(cosine=dict(value=0.99, note="n", source="llms")),
              reasons=["cosine 0.1 is below 0.99"])

def act(how, build):
    build.progress("at work")
    if how == "fail":
        raise GateFailed(RECORD)
    if how == "user":
        raise UserError("weights.path: no such file")
    if how == "tool":
        raise BrokenTool("no compiler")
    if how == "crash":
        raise ValueError("first line\\nlast line")
    if how == "hang":
        print("hanging", file=sys.__stdout__, flush=True)
        time.sleep(30)
    build.notes["summary"] = "where it is, what to run next"
    (build.out / "text").write_text(build.node.name)

def nodes():
    write = partial(act, "write")
    kernels = tuple(Node(f"kernel:k{{i}}", "kernel", f"Kernel {{i}}", {{"i": i}}, (), write)
                    for i in range(3))
    gates = tuple(Node(f"gate:kernel:k{{i}}", "gate", f"Gate {{i}}", {{"i": i, "how": HOW}}, (k,),
                       partial(act, HOW if i == 1 else "write")) for i, k in enumerate(kernels))
    return [*kernels, *gates, Node("deploy", "deploy", "Promote", {{}}, gates, write)]

tasks.quiet_interrupt()
tasks.REPORTS = HERE / "reports"
DOIT_CONFIG = tasks.doit_config(HERE / "state")

def task_all():
    tasks.keep_notes_harmless()
    yield from tasks.graph_tasks(Store(HERE / "cache", HERE / "state"), nodes())
"""

PARALLEL = [[], ["-n", "2"], ["-n", "2", "-P", "thread"]]


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "dodo.py").write_text(TOY.format(root=str(ROOT)))
    return tmp_path


def doit(folder: Path, *words: str, how: str = "write") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "doit", *words],
        cwd=folder,
        env={**os.environ, "HOW": how},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("parallel", PARALLEL)
def test_second_run_does_nothing_and_says_so(toy: Path, parallel: list[str]) -> None:
    first = doit(toy, *parallel)
    assert first.returncode == 0 and not first.stderr
    assert "[7/7] deploy  built" in first.stdout
    assert first.stdout.rstrip().splitlines()[-1].startswith("done: 7 built, 0 up to date")
    assert "where it is, what to run next" in first.stdout
    second = doit(toy, *parallel)
    assert second.stdout == "nothing to do: deploy is current, 7 tasks up to date\n"
    assert second.returncode == 0


def test_only_what_a_change_touches_is_built(toy: Path) -> None:
    doit(toy)
    path = next((toy / "cache" / "kernel").glob("*/text"))
    path.write_text("altered")
    again = doit(toy)
    assert "done: 1 built, 6 up to date" in again.stdout  # same bytes again: nothing follows


@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize(
    ("how", "status", "says"),
    [
        ("fail", 1, "cosine 0.1 is below 0.99"),
        ("user", 2, "error: weights.path: no such file"),
        ("tool", 2, "error: no compiler"),
        ("crash", 2, "error: gate:kernel:k1: ValueError: last line (trace: "),
    ],
)
def test_endings(toy: Path, parallel: list[str], how: str, status: int, says: str) -> None:
    doit(toy)
    run = doit(toy, *parallel, how=how)
    assert run.returncode == status
    assert says in run.stdout and "Traceback" not in run.stdout + run.stderr
    assert "failed: gate:kernel:k1" in run.stdout and "nothing was promoted" in run.stdout
    if how == "fail":
        record = json.loads((toy / "reports" / "failed" / "gate-kernel-k1.json").read_text())
        assert record["metrics"] == {"cosine": 0.1}
    if how == "crash":
        (trace,) = (toy / "reports" / "errors").iterdir()
        assert "Traceback" in trace.read_text()
    assert doit(toy, how=how).returncode == status  # a failed gate is not remembered as done
    assert doit(toy).stdout.startswith("nothing to do")


def test_list_is_a_table_of_contents(toy: Path) -> None:
    names = [line.split()[0] for line in doit(toy, "list", "--all").stdout.splitlines()]
    assert names[:2] == ["kernel", "kernel:k0"] and names[-1] == "deploy"
    assert "Gates: each compares" in doit(toy, "list").stdout


def test_info_says_why(toy: Path) -> None:
    assert "never built" in doit(toy, "info", "kernel:k0").stdout
    doit(toy)
    assert "up-to-date" in doit(toy, "info", "gate:kernel:k1").stdout
    said = doit(toy, "info", "gate:kernel:k1", how="x").stdout
    assert "changed since last built; how: write -> x" in said


def test_clean_and_forget(toy: Path) -> None:
    doit(toy)
    assert "would remove" in doit(toy, "clean", "-n", "deploy").stdout
    assert doit(toy).stdout.startswith("nothing to do")
    doit(toy, "forget")
    assert doit(toy).stdout.startswith("nothing to do")  # the artifacts are the truth
    doit(toy, "clean", "deploy")
    assert "done: 1 built" in doit(toy).stdout
    doit(toy, "clean")
    assert not [path for path in (toy / "cache").rglob("*") if path.is_file()]
    assert doit(toy).returncode == 0


@pytest.mark.parametrize("damage", ["", "{bad", "[1]", '{"deploy": 3}'])
def test_damaged_database_is_set_aside(toy: Path, damage: str) -> None:
    doit(toy)
    (toy / "state" / "doit.json").write_text(damage)
    run = doit(toy)
    assert run.returncode == 0 and run.stdout.startswith("nothing to do")
    assert "is set aside; nothing is lost" in run.stderr and len(run.stderr.splitlines()) == 1


def test_state_that_cannot_be_written_is_no_obstacle(toy: Path) -> None:
    (toy / "state").write_text("a file where a folder should be")
    assert doit(toy).returncode == 0
    assert doit(toy).stdout.startswith("nothing to do")


def test_cache_that_cannot_be_written_is_one_line(toy: Path) -> None:
    (toy / "cache").write_text("")
    run = doit(toy)
    assert run.returncode == 2 and "cannot write" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr


@pytest.mark.parametrize("parallel", PARALLEL)
def test_ctrl_c_is_one_line_and_loses_nothing(toy: Path, parallel: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "doit", *parallel],
        cwd=toy,
        env={**os.environ, "HOW": "hang"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdout and run.stderr
        while "hanging" not in run.stdout.readline():
            assert run.poll() is None
        os.killpg(run.pid, signal.SIGINT)
        errors = run.stderr.read()
        run.wait(timeout=20)
    assert run.returncode != 0
    assert "interrupted: what is finished is kept" in errors and "Traceback" not in errors
    time.sleep(0.1)
    after = doit(toy)
    assert after.returncode == 0 and "up to date" in after.stdout
    assert not list((toy / "cache").glob("*/.*"))


def test_two_runs_at_once_share_the_cache(toy: Path) -> None:
    words = [sys.executable, "-m", "doit"]
    runs = [subprocess.Popen(words, cwd=toy, stdout=subprocess.PIPE) for _ in range(2)]
    assert [run.wait(timeout=60) for run in runs] == [0, 0]
    for run in runs:
        assert run.stdout
        run.stdout.close()
    assert doit(toy).stdout.startswith("nothing to do")


def test_actions_survive_spawn(toy: Path) -> None:
    import pickle

    from tilegate.store import Node, Store

    node = Node("a", "thing", "", {"x": 1}, (), print)  # type: ignore[arg-type]
    action = pickle.loads(pickle.dumps(tasks.Make(Store(toy / "c", toy / "s"), node)))
    assert action.node.inputs == {"x": 1} and action.store.cache == toy / "c"


def test_selected_tasks_of_a_command_line() -> None:
    assert tasks.selected(["-n", "2", "deploy", "model=x"]) == ("run", ["deploy"])
    assert tasks.selected(["list", "--all"]) == ("list", [])
    assert tasks.selected(["model=x"]) == ("run", [])
    with pytest.raises(UserError, match="did you mean 'deploy'"):
        tasks.check_names(["deplyo"], ["deploy", "gate"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["deploy", "modle=x"], "did you mean 'model'?"),
        (["deplyo"], "no task 'deplyo'; did you mean 'deploy'?"),
        (["deploy", "tile.prefill.qkv.tile_n=64,128"], "several values"),
    ],
)
def test_usage_errors_of_the_house(words: list[str], says: str) -> None:
    run = doit(ROOT, *words)
    assert run.returncode == 2 and says in run.stderr
    assert len(run.stderr.splitlines()) == 1 and not run.stdout


def test_commands_that_build_nothing() -> None:
    shown = doit(ROOT, "conf", "model=qwen3-0.6b")
    assert shown.returncode == 0 and "*qwen3-0.6b" in shown.stdout
    report = doit(ROOT, "doctor")
    assert "device emulated" in report.stdout and report.returncode in (0, 1)
