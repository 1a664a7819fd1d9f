"""Nothing to do: how long a `doit deploy` takes beside Snakemake and DVC on equal graphs.

    python -m venv PEERS && PEERS/bin/pip install -r benchmarks/requirements-peers.txt
    python benchmarks/noop.py --peers PEERS [--runs 5] [overrides]

The graph of the deployment (same tasks, same dependencies, one output file each) is written as a
Snakefile and as a dvc.yaml in a temporary folder and built once with `touch`-like rules. Then each
tool is asked to build again, in turns, and has nothing to do. All times are wall time on this
machine in this run; medians are compared. Exit status 1 when ours is over a third of Snakemake's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tilegate.config import load  # noqa: E402
from tilegate.graph import nodes  # noqa: E402
from tilegate.store import Store  # noqa: E402

SHARE = 1 / 3
Graph = dict[str, list[str]]


def graph(overrides: Sequence[str]) -> Graph:
    """{task: tasks it needs} of a deployment, names fit for files."""
    names = {}
    found: Graph = {}
    for number, node in enumerate(nodes(load(overrides), Store())):
        names[node.name] = f"t{number:03}_" + re.sub(r"\W", "_", node.name)[:40]
        found[names[node.name]] = [names[need.name] for need in node.needs]
    return found


def write_snakefile(tasks: Graph, folder: Path) -> None:
    last = list(tasks)[-1]
    rules = [f'rule all:\n    input: "{last}.out"\n']
    for name, needs in tasks.items():
        inputs = ", ".join(f'"{need}.out"' for need in needs) or '"source.txt"'
        rules.append(
            f'rule {name}:\n    input: {inputs}\n    output: "{name}.out"\n'
            f'    shell: "echo {name} > {{output}}"\n'
        )
    (folder / "Snakefile").write_text("\n".join(rules))
    (folder / "source.txt").write_text("source\n")


def write_dvc(tasks: Graph, folder: Path) -> None:
    stages = {
        name: {
            "cmd": f"echo {name} > {name}.out",
            "deps": [f"{need}.out" for need in needs] or ["source.txt"],
            "outs": [f"{name}.out"],
        }
        for name, needs in tasks.items()
    }
    (folder / "dvc.yaml").write_text(json.dumps({"stages": stages}, indent=1))  # JSON is YAML
    (folder / "source.txt").write_text("source\n")


def run(command: Sequence[str], folder: Path) -> float:
    """Seconds of one run. Raises RuntimeError with the output of a run that fails."""
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "DVC_TEST": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as people have it, for all three
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, required=True, help="an environment with both")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    tasks = graph(options.overrides)
    with tempfile.TemporaryDirectory(prefix="noop-") as place:
        snake, dvc = Path(place) / "snakemake", Path(place) / "dvc"
        for folder in (snake, dvc):
            folder.mkdir()
        write_snakefile(tasks, snake)
        write_dvc(tasks, dvc)
        programs = options.peers / "bin"
        run([str(programs / "dvc"), "init", "--no-scm", "-q"], dvc)
        commands = {
            "tilegate": ([sys.executable, "-m", "doit", "deploy", *options.overrides], ROOT),
            "snakemake": ([str(programs / "snakemake"), "--cores", "1", "-q"], snake),
            "dvc": ([str(programs / "dvc"), "repro", "-q"], dvc),
        }
        for name, (command, folder) in commands.items():
            print(f"{name}: building once", file=sys.stderr)
            run(command, folder)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.runs):
            for name, (command, folder) in commands.items():
                times[name].append(run(command, folder))
    print(f"nothing to do, {len(tasks)} tasks each, {options.runs} runs in turns, seconds:")
    medians = {name: statistics.median(seen) for name, seen in times.items()}
    for name, seen in times.items():
        share = medians["tilegate"] / medians[name]
        print(
            f"{name:10} median {medians[name]:6.2f}  least {min(seen):6.2f}  ours/this {share:.2f}"
        )
    return 0 if medians["tilegate"] <= SHARE * medians["snakemake"] else 1


if __name__ == "__main__":
    sys.exit(main())
