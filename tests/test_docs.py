"""The documents: every command exists, every link resolves, the manual builds without a network."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from runtime import cli
from tilegate import check
from tilegate.config import load
from tilegate.deployment import resolve
from tilegate.store import default_cache

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "skills").glob("*/SKILL.md"),
    ]
)
START = r"(?:\./doitw|doit|\.venv/bin/[^\s`]+|python3?|build/deploy/[^\s`]+/run)"
BIN = Path(sys.executable).parent
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]{2,}\b|[\[<]")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- commands


def commands() -> Iterator[tuple[str, str]]:
    """(document, command) of every shell block, indented command and inline command."""
    for path in DOCUMENTS:
        text = path.read_text()
        lines = [
            line
            for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
            for line in block.splitlines()
        ]
        lines += re.findall(rf"^    ({START} .*)$", text, re.MULTILINE)
        lines += re.findall(rf"`({START} [^`\n]+)`", text)
        for line in lines:
            command = re.sub(r"\s+#.*", "", line).strip()
            if command:
                yield name_of(path), command


COMMANDS = sorted(set(commands()))


@functools.cache
def task_names() -> frozenset[str]:
    command = [sys.executable, "-m", "doit", "list", "--all", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return frozenset(line.split()[0] for line in done.stdout.splitlines() if line.strip())


def test_there_are_commands_in_every_guide() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/getting-started.md"} <= {d for d, _ in COMMANDS}


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_a_command_of_a_document_exists(document: str, command: str) -> None:
    words = shlex.split(command)
    program, words = words[0], words[1:]
    if program == "./doitw" and words[:1] == ["test"]:
        return  # the rest is pytest's
    if program in ("./doitw", "doit", ".venv/bin/doit"):
        check_doit(words)
    elif program.startswith("build/deploy/"):
        assert program.endswith("/run"), command
        cli._parser(ROOT).parse_args(words)  # raises for an option that it does not have
    elif Path(program).name in ("python", "python3"):
        check_python(words)
    else:
        assert program.startswith(".venv/bin/"), f"nobody checks {command!r}"
        assert (BIN / Path(program).name).exists(), f"{program} is not installed"


def check_doit(words: list[str]) -> None:
    """Overrides compose, options are the command's own, names are tasks."""
    from doit.cmd_base import DodoTaskLoader, DoitCmdBase
    from doit.cmdparse import CmdOption, CmdParse
    from doit.doit_cmd import DoitMain

    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    if not any("..." in word for word in overrides):
        config = load(overrides)
        if any(word.startswith(("tile.", "sequence.")) for word in overrides):
            resolve(config, default_cache())
    rest = [word for word in words if word not in overrides]
    known = {command.get_name(): command for command in DoitMain.DOIT_CMDS}
    command = known[rest.pop(0)] if rest and rest[0] in known else known["run"]
    options = (*DoitCmdBase.base_options, *DodoTaskLoader.cmd_options, *command.cmd_options)
    names = CmdParse([CmdOption(option) for option in options]).parse(rest)[1]
    for name in names:
        assert fnmatch.filter(task_names(), name) or PLACEHOLDER.search(name), f"no task {name}"


def check_python(words: list[str]) -> None:
    """A module or script of ours that has the options given; a check is run, it builds nothing."""
    if words[0] == "-m":
        path = ROOT.joinpath(*words[1].split(".")).with_suffix(".py")
        words = words[1:]
    else:
        path = ROOT / words[0]
    assert path.is_file(), f"{path} is not there"
    if path.stem == "check" and not any(PLACEHOLDER.search(w) for w in words if "[" not in w):
        assert check.main(words[1:]) != 2, words
    source = path.read_text()
    for word in words[1:]:
        if word.startswith("--"):
            assert f'"{word}"' in source, f"{path.name} has no option {word}"


@pytest.mark.parametrize(
    "command",
    ["deploi", "deploy --nonsense", "deploy modle=x", "info gate:nothing", "gate:kernel:gemx*"],
)
def test_a_command_that_does_not_exist_would_be_seen(command: str) -> None:
    with pytest.raises(Exception, match=r"task|option|key"):
        check_doit(command.split())


# ---- links


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_resolve(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        goal = (path.parent / target) if target else path
        assert goal.exists(), f"{name_of(path)}: {target}"
        if anchor:
            assert anchor in anchors(goal), f"{name_of(path)}: {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


def test_layout_table_names_every_room() -> None:
    readme = (ROOT / "README.md").read_text()
    for room in ("conf", "tilegate", "oracle", "kernels", "skills", "runtime", "build", "tests"):
        assert f"`{room}/`" in readme


# ---- the manual


def test_the_manual_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    mkdocs = shutil.which("mkdocs", path=str(BIN))
    assert mkdocs, "mkdocs is not installed; run ./doitw"
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        fetched = re.search(
            r'<(?:script|img)[^>]* src="https?:|<link[^>]*stylesheet[^>]*https?:', text
        )
        assert not fetched, f"{page.name}: {fetched and fetched[0]}"
        assert "<!-- code:" not in text, f"{page.name}: code was not filled in"


def test_pictures_fetch_nothing() -> None:
    pictures = sorted((ROOT / "docs" / "images").glob("*.svg"))
    assert pictures
    for picture in pictures:
        text = picture.read_text()
        ElementTree.fromstring(text)
        assert not re.search(r"url\(.?https?:|<image|<script", text), picture.name
