"""The terminal pictures of README and manual, from the output of real runs.

    python docs/pictures.py [--downloads DIR]

Runs each command of SCENES in a terminal of its own, in a clean copy of this checkout with an empty
cache, and writes docs/images/<scene>.svg. `--downloads` names a folder with fetched weights (the
`downloads` of another cache). Of long output the middle is left out, and the picture says so.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = Path(__file__).resolve().parent / "images"
COLUMNS, ROWS = 104, 40
RUN = "build/deploy/smollm2-135m/run"
SCENES = {
    "deploy": ("./doitw deploy", "./doitw deploy"),
    "run": (f'{RUN} "What is the capital of France?"', f"{RUN} bench", f"{RUN} verify"),
    "gate": ("./doitw gate:block +fault=kv_position_off_by_one",),
    "errors": (
        "./doitw deploy model=smollm2-135",
        "./doitw deploy sequence.context=9000",
        "./doitw deploy tile.decode.o.herd_m=5",
    ),
}
HEAD, TAIL = 7, 24  # lines kept of long output


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--downloads", type=Path, metavar="DIR")
    options = parser.parse_args(argv)
    stamp = ROOT / ".venv" / ".requirements.lock"
    if not stamp.is_file() or stamp.read_bytes() != (ROOT / "requirements.lock").read_bytes():
        print("the packages are not those of requirements.lock; run ./doitw first")
        return 2
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tilegate-pictures-") as place:
        checkout = Path(place, "tilegate")
        copy_checkout(checkout)
        cache = checkout / "build" / "cache"
        if options.downloads:
            shutil.copytree(options.downloads, cache / "downloads")
        for scene, commands in SCENES.items():
            text = Text()
            for command in commands:
                lines, status = in_terminal(command, checkout)
                text.append(f"$ {command}\n", style="bold green")
                text.append_text(Text.from_ansi("\n".join(shorten(lines))))
                text.append(f"\n[exit status {status}]\n\n" if status else "\n\n", style="dim")
            save(scene, text)
    return 0


def copy_checkout(target: Path) -> None:
    """The files that git knows or would add, and the installed packages."""
    command = ["git", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / ".venv").symlink_to((ROOT / ".venv").resolve())


def in_terminal(command: str, folder: Path) -> tuple[list[str], int]:
    """The lines that a command leaves on a terminal, and its exit status."""
    leader, follower = pty.openpty()
    size = ROWS.to_bytes(2, sys.byteorder) + COLUMNS.to_bytes(2, sys.byteorder) + bytes(4)
    fcntl.ioctl(follower, termios.TIOCSWINSZ, size)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TILEGATE_")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    child = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    data = b""
    try:
        while piece := os.read(leader, 1 << 16):
            data += piece
    except OSError:
        pass  # how a terminal ends
    os.close(leader)
    text = data.decode().replace("\r\n", "\n")
    lines = [re.split(r"\r(?:\x1b\[K)?", line)[-1] for line in text.rstrip("\n").split("\n")]
    return [line for line in lines if line != "\x1b[K"], child.wait()


def shorten(lines: list[str]) -> list[str]:
    if len(lines) <= HEAD + TAIL + 1:
        return lines
    left_out = len(lines) - HEAD - TAIL
    return [*lines[:HEAD], f"\x1b[2m      ... {left_out} lines more ...\x1b[0m", *lines[-TAIL:]]


def save(scene: str, text: Text) -> None:
    """The picture, with the reader's own monospace font: nothing is fetched to show it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=False)
    form = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(
        title="tilegate", theme=MONOKAI, code_format=form, unique_id=scene, font_aspect_ratio=0.61
    )
    (IMAGES / f"{scene}.svg").write_text(svg)
    print(IMAGES / f"{scene}.svg")


if __name__ == "__main__":
    sys.exit(main())
