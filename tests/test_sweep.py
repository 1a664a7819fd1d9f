"""Sweeps: every point has a verdict, the rest is ranked, nothing finished is done again."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import TINY, Checkout, copy_checkout

TILES = ("tile.prefill.gate_up.tile_n=64,96,128", "tile.prefill.gate_up.tile_m=32,64,128")
PREDICTED = ("sweep.gates=none",)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return copy_checkout(tmp_path_factory.mktemp("sweep") / "checkout")


def command(house: Checkout, *words: str) -> tuple[list[str], dict[str, str]]:
    return (
        [sys.executable, "dodo.py", "-m", *words],
        {**os.environ, "TILEGATE_CACHE": str(house.cache)},
    )


def sweep(house: Checkout, *words: str) -> subprocess.CompletedProcess[str]:
    line, environment = command(house, *words)
    return subprocess.run(
        line, cwd=house.root, env=environment, capture_output=True, text=True, timeout=600
    )


def folder(house: Checkout, done: subprocess.CompletedProcess[str]) -> Path:
    found = re.search(r"results in (\S+)", done.stdout)
    assert found, done.stdout + done.stderr
    return house.root / found[1]


def rows(place: Path) -> list[dict[str, str]]:
    with (place / "points.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_predicted_points_are_ranked_and_illegal_ones_pruned(house: Checkout) -> None:
    done = sweep(house, *TILES, *PREDICTED, "save=best")
    assert done.returncode == 0, done.stdout + done.stderr
    place = folder(house, done)
    table = rows(place)
    assert len(table) == 9
    held = [float(row["ttft_ms"]) for row in table if row["verdict"] == "ok"]
    assert held == sorted(held) and len(held) == 8
    pruned = [row["reason"] for row in table if row["verdict"] == "pruned"]
    assert len(pruned) == 1
    assert all("R-L1" in reason or "M-tiling" in reason for reason in pruned)
    assert all((place / row["config"]).is_file() for row in table)
    saved = yaml.safe_load((house.root / "conf" / "tile" / "best.yaml").read_text())
    assert saved["prefill"]["gate_up"]["tile_n"] == int(table[0]["tile.prefill.gate_up.tile_n"])
    (house.root / "conf" / "tile" / "best.yaml").unlink()


def test_the_page_is_self_contained(house: Checkout) -> None:
    page = (folder(house, sweep(house, *TILES, *PREDICTED)) / "index.html").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert len(data["rows"]) == 9 and len(data["axes"]) == 2
    for word in ("pareto", "parallel", "table"):
        assert f'id="{word}"' in page


def test_a_killed_sweep_goes_on_and_repeats_nothing(house: Checkout) -> None:
    words = ("tile.prefill.down.tile_n=32,48,64,96,144,192", "tile.prefill.o.tile_m=16,32,64")
    line, environment = command(house, *words, *PREDICTED)
    reports = house.root / "build" / "reports"
    there = set(reports.glob("sweep-*"))
    with subprocess.Popen(
        line, cwd=house.root, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as run:
        place: Path | None = None
        while run.poll() is None and not (place and len(list(place.glob("points/*.json"))) >= 3):
            place = place or next((p for p in reports.glob("sweep-*") if p not in there), None)
            time.sleep(0.01)
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert place is not None
    before = {path.name: path.read_text() for path in place.glob("points/[0-9a-f]*.json")}
    assert len(before) >= 3
    again = sweep(house, *words, *PREDICTED)
    assert again.returncode == 0 and folder(house, again) == place
    assert f"{len(before)} known from before" in again.stdout
    assert before.items() <= {p.name: p.read_text() for p in place.glob("points/*.json")}.items()
    assert "18 known from before" in sweep(house, *words, *PREDICTED).stdout


def test_a_failed_gate_is_a_result_and_fail_fast_stops(house: Checkout) -> None:
    words = (*TINY, "fault=zero_output,null", "sweep.gates=block", "sweep.objective=error")
    done = sweep(house, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    table = rows(folder(house, done))
    assert [row["verdict"] for row in table] == ["ok", "failed"]
    assert float(table[0]["objective"]) > 0
    assert table[1]["reason"].startswith("block gate, ")
    assert done.stdout.index("failed: ") < done.stdout.index("[2/2]")  # told when it occurs
    assert not (house.root / "build" / "deploy").exists()
    fast = sweep(house, *words, "--fail-fast")
    assert fast.returncode == 1 and "[1/2]" in fast.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tile.prefill.gate_up.tile_q=1,2",), "did you mean"),
        (("--fast",), "--fail-fast"),
        (("save=../x", "tile.prefill.gate_up.tile_n=64,96"), "a file name of letters"),
        (("sweep.objective=speed", "tile.prefill.gate_up.tile_n=64,96"), "'speed' is not valid"),
    ],
)
def test_usage_errors_are_one_line(house: Checkout, words: tuple[str, ...], says: str) -> None:
    done = sweep(house, *PREDICTED, *words)
    assert done.returncode == 2 and says in done.stderr
    assert len(done.stderr.splitlines()) == 1
