"""Kill a deployment at random moments, again and again; then see that nothing was lost or altered.

    python benchmarks/kills.py --kills 200 [--seed 0] [--folder DIR]

A small model (whole graph, synthetic weights) is deployed in a checkout and cache of its own. Each
run is ended by SIGKILL, process group and all, after a random time; after each kill every bundle in
sight must be whole. When a run gets through, part of the cache is taken away, so that there is
work again. At the end one run goes through, and its bundle must equal, byte for byte, that of a
clean build in another folder. Exit status 0 only then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from runtime.manifest import sealed  # noqa: E402

TINY = (
    *("weights=synthetic", "model.name=tiny", "model.wheel=null", "model.hub=null"),
    *("model.layers=2", "model.dim=128", "model.heads=2", "model.kv_heads=1"),
    *("model.head_dim=64", "model.hidden=256", "model.vocab=512"),
    *("sequence.buckets=[256]", "sequence.context=512"),
)
LOST_SHARE = 0.3


@dataclass
class Place:
    """A checkout with a cache of its own."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "checkout"

    @property
    def bundle(self) -> Path:
        return self.root / "build" / "deploy" / "tiny.rehearsal"

    def copy_sources(self) -> None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "doit", *words, "deploy", *TINY],
            cwd=self.root,
            env={**os.environ, "TILEGATE_CACHE": str(self.folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def finish(self) -> str:
        """Run to the end; what it printed. Raises RuntimeError when it fails."""
        run = self.start()
        text = run.communicate()[0].decode()
        if run.returncode:
            raise RuntimeError(f"exit status {run.returncode}:\n{text}")
        return text

    def lose(self, drawn: random.Random) -> None:
        """Take part of the cache away."""
        for artifact in sorted((self.folder / "cache").glob("*/[0-9a-f]*/manifest.json")):
            if drawn.random() < LOST_SHARE:
                shutil.rmtree(artifact.parent)


def broken(deploy: Path) -> list[str]:
    """What is wrong with the bundles that a person sees in build/deploy."""
    found = []
    for bundle in sorted(deploy.glob("[!.]*")):
        data = (bundle / "manifest.json").read_bytes() if bundle.is_dir() else b""
        if not sealed(data):
            found.append(f"{bundle.name}: no sealed manifest")
            continue
        for name, want in json.loads(data)["files"].items():
            path = bundle / name
            have = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
            if have != want:
                found.append(f"{bundle.name}/{name}: {have[:12]}, want {want[:12]}")
    return found


def end_group(group: int) -> None:
    """Kill a process group and wait until the last of it is gone (or a zombie of another's)."""
    os.killpg(group, signal.SIGKILL)
    for _ in range(100):
        time.sleep(0.02)
        states = [_stat(p) for p in Path("/proc").glob("[0-9]*/stat")]
        if not any(member == group and state != "Z" for member, state in states):
            return


def _stat(path: Path) -> tuple[int, str]:
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0, "Z"
    return int(fields[2]), fields[0]


def kill_often(place: Place, kills: int, longest: float, drawn: random.Random) -> tuple[int, int]:
    """Kill that many runs. Returns how many got through before, and bundles seen whole."""
    through = whole = done = 0
    while done < kills:
        run = place.start(*drawn.choice([(), ("-n", "2")]))
        time.sleep(drawn.uniform(0, longest))
        ended = run.poll()
        if ended is None:
            end_group(run.pid)
            done += 1
        text = run.communicate()[0].decode()
        if ended not in (None, 0):
            raise RuntimeError(f"exit status {ended} after a kill:\n{text}")
        wrong = broken(place.root / "build" / "deploy")
        if wrong:
            raise RuntimeError(f"half a bundle is visible after kill {done}: {wrong}")
        whole += place.bundle.exists()
        if ended == 0:
            through += 1
            place.lose(drawn)
        print(f"\rkills {done}/{kills}, runs through {through}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return through, whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds until a kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--reference", type=Path, help="a bundle of a clean build made elsewhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kills-") as folder:
        place, clean = Place(Path(folder) / "killed"), Place(Path(folder) / "clean")
        place.copy_sources()
        reference = options.reference
        if reference is None:
            clean.copy_sources()
            clean.finish()
            reference = clean.bundle
        drawn = random.Random(options.seed)
        through, whole = kill_often(place, options.kills, options.longest, drawn)
        place.finish()
        one, two = (b / "manifest.json" for b in (place.bundle, reference))
        same = one.read_bytes() == two.read_bytes() and not broken(place.bundle.parent)
        litter = [p for p in (Path(folder) / "killed" / "cache").glob("*/.*.tmp")]
    print(
        f"{options.kills} kills, {through} runs through, {whole} times a whole bundle stood; "
        f"{len(litter)} temporary folders left; "
        f"bundle {'equals' if same else 'DIFFERS from'} that of a clean build"
    )
    return 0 if same and not litter else 1


if __name__ == "__main__":
    sys.exit(main())
