"""The rules of the house: who may import whom, how long a file may be, where numbers live."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("tilegate", "oracle", "runtime", "skills", "kernels")
BUDGETED = (*ROOMS, "dodo.py")
MOST_LINES, MOST_FUNCTION, MOST_DODO = 400, 60, 150
WINDOW = 6  # lines; a block as long as this stands in one room only

# The only modules that may know a tool or, of the spine, another room.
KNOWS_HYDRA = {"tilegate/config.py", "tilegate/sweep.py", "dodo.py"}
KNOWS_DOIT = {"tilegate/tasks.py", "dodo.py"}
SPINE_READS = {
    "tilegate/bringup.py": {"runtime"},  # first contact with a real NPU: its session
    "tilegate/contact.py": {"runtime"},  # the same against the emulated one
    "tilegate/postmortem.py": {"runtime"},  # values of a failure as the bundle holds them
    "tilegate/audit.py": {"runtime"},  # checks the seal and the files against it
    "tilegate/bundle.py": {"runtime"},  # seals the manifest in the runtime's own format
    "tilegate/onboard.py": {"oracle"},  # reads a published config.json
    "tilegate/promote.py": {"runtime"},  # checks the seal
    "tilegate/real.py": {"oracle"},  # golden values as operands of the kernel gates
    "tilegate/diagnose.py": {"oracle"},  # golden values for the debug skills
}
RUNTIME_MAY = {"numpy", "tokenizers", "pyxrt"}
KERNEL_MAY = {"tilegate.plan"}


# ---- what there is


@functools.cache
def tracked() -> tuple[str, ...]:
    """Files that git knows or would add, relative to the root."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"git is needed to list the files: {done.stderr}"
    return tuple(name for name in done.stdout.split("\n") if name and (ROOT / name).is_file())


def sources(*places: str, suffixes: tuple[str, ...] = (".py",)) -> list[str]:
    return [
        name for name in tracked() if name.split("/")[0] in places and Path(name).suffix in suffixes
    ]


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(), name)


def imports(name: str, *, top: bool = False) -> Iterator[str]:
    """Dotted names of the modules that a file imports; with `top`, at module level only.

    `from a import b` counts as both `a` and `a.b`, since b may be a module.
    """
    nodes = _top(tree(name).body) if top else ast.walk(tree(name))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import; what only a type checker reads is left out."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from _top(node.orelse)
        else:
            yield node


def packages(name: str, **how: bool) -> set[str]:
    return {module.split(".")[0] for module in imports(name, **how)}


# ---- imports go one way


def test_only_the_door_knows_hydra() -> None:
    for name in sources(*BUDGETED):
        if name not in KNOWS_HYDRA:
            assert not packages(name) & {"hydra", "omegaconf"}, name


def test_only_tasks_and_dodo_know_doit() -> None:
    for name in sources(*BUDGETED):
        if name not in KNOWS_DOIT:
            assert "doit" not in packages(name), name


def test_a_kernel_contract_imports_the_plan_and_nothing_else_of_ours() -> None:
    found = sources("kernels")
    assert found
    for name in found:
        ours = {m for m in imports(name) if m.split(".")[0] in (*ROOMS, "tests", "benchmarks")}
        of_plan = {m for m in ours if m.startswith("tilegate.plan")}
        assert ours == of_plan, f"{name}: {sorted(ours - of_plan)}"
        foreign = packages(name, top=True) - set(sys.stdlib_module_names) - {"tilegate"}
        assert not foreign, f"{name} needs {foreign} to be listed"


def test_the_oracle_imports_no_other_room() -> None:
    for name in sources("oracle"):
        assert not packages(name) & {*ROOMS, "tests"} - {"oracle"}, name


def test_the_runtime_runs_on_numpy_and_a_tokenizer_alone() -> None:
    allowed = RUNTIME_MAY | set(sys.stdlib_module_names)
    for name in sources("runtime"):
        own = {"runtime"} if name == "runtime/run" else set()
        assert packages(name) <= allowed | own, f"{name}: {packages(name) - allowed}"


def test_the_spine_sees_other_rooms_only_where_it_must() -> None:
    for name in sources("tilegate"):
        seen = packages(name) & {"oracle", "runtime", "skills", "kernels", "tests"}
        assert seen <= SPINE_READS.get(name, set()), f"{name} imports {sorted(seen)}"


def test_only_gates_see_both_oracle_and_runtime() -> None:
    for name in sources(*BUDGETED):
        if not name.startswith("skills/"):
            assert not {"oracle", "runtime"} <= packages(name), name


def test_skills_import_heavy_packages_and_other_rooms_only_in_actions() -> None:
    late = {"torch", "transformers", "numpy", "ml_dtypes", "oracle", "runtime", "tokenizers"}
    for name in sources("skills"):
        assert not packages(name, top=True) & late, name


def test_listing_tasks_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['doit', 'list']; import runpy\n"
        "runpy.run_path('dodo.py', run_name='dodo')\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'torch', 'transformers', 'numpy', 'tokenizers', 'ml_dtypes'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


# ---- budgets


def test_dodo_is_wiring_only() -> None:
    assert len((ROOT / "dodo.py").read_text().splitlines()) < MOST_DODO


def test_files_are_short() -> None:
    suffixes = (".py", ".cc", ".hpp")
    long = {
        name: count
        for name in sources(*BUDGETED, suffixes=suffixes)
        if (count := len((ROOT / name).read_text().splitlines())) > MOST_LINES
    }
    assert not long


def test_functions_are_short() -> None:
    long = {}
    for name in sources(*BUDGETED):
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or 0) - node.lineno + 1
                if count > MOST_FUNCTION:
                    long[f"{name}:{node.name}"] = count
    assert not long


def blocks(text: str) -> Iterator[tuple[str, ...]]:
    """Every window of WINDOW lines, without blanks, comments, imports and lone brackets."""
    skip = re.compile(r"#|import |from .* import|[])}]+,?$")
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in _without_imports(lines) if line and not skip.match(line)]
    yield from zip(*(kept[i:] for i in range(WINDOW)), strict=False)


def _without_imports(lines: list[str]) -> Iterator[str]:
    """Lines outside of parenthesised imports."""
    inside = False
    for line in lines:
        if line.startswith("from ") and line.endswith("("):
            inside = True
        if not inside:
            yield line
        elif line.startswith(")"):
            inside = False


def test_no_block_stands_in_two_rooms() -> None:
    where = defaultdict(set)
    for name in sources(*ROOMS, "benchmarks", "docs", "dodo.py"):
        for block in blocks((ROOT / name).read_text()):
            where[block].add(name)
    shared = {
        " | ".join(sorted(names)): block
        for block, names in where.items()
        if len({name.split("/")[0] for name in names}) > 1
    }
    assert not shared


def test_a_block_in_two_rooms_would_be_seen() -> None:
    text = "\n".join(f"value_{i} = {i}" for i in range(WINDOW))
    assert list(blocks(f"import os\n\n# why\n{text}\n")) == list(blocks(text))


# ---- names, numbers and places


def models() -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))


def test_no_model_has_a_name_in_code() -> None:
    names = {*models(), *(name.replace("-", "_") for name in models())}
    word = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, sorted(names)))})(?![\w-])", re.I)
    for name in sources(*BUDGETED, "benchmarks", suffixes=(".py", ".cc", ".hpp")):
        for number, line in enumerate(code_lines(name), 1):
            found = word.search(line)
            assert not found, f"{name}:{number}: {found and found[0]}"


def code_lines(name: str) -> list[str]:
    """The lines of a file with comments and docstrings blanked: examples there may name a model."""
    text = (ROOT / name).read_text()
    if not name.endswith(".py"):
        return re.sub(r"//[^\n]*", "", text).splitlines()
    lines = [re.sub(r"#.*", "", line) for line in text.splitlines()]
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            doc = node.body[0]
            for number in range(doc.lineno - 1, doc.end_lineno or doc.lineno):
                lines[number] = ""
    return lines


def test_no_machine_path_and_no_registry_host_is_in_the_repository() -> None:
    bad = re.compile(
        r"/(?:home|Users|work|root)/[\w.-]+|/tmp/[\w.-]+/[\w.-]+|"
        r"files\.pythonhosted|pypi\.org/simple|proxy\.golang|index-url\s*=?\s*http"
    )
    this = Path(__file__).relative_to(ROOT).as_posix()
    for name in tracked():
        if name == this or Path(name).suffix in {".png", ".safetensors"}:
            continue
        found = bad.search((ROOT / name).read_text())
        assert not found, f"{name}: {found and found[0]}"


# ---- skills: words in SKILL.md, numbers in conf/gate, code in skill.py

SKILLS = sorted(path.name for path in (ROOT / "skills").iterdir() if path.is_dir())


@functools.cache
def task_names() -> tuple[str, ...]:
    """Every task of the default deployment."""
    command = [sys.executable, "-m", "doit", "list", "--all", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(line.split()[0] for line in done.stdout.splitlines() if line.strip())


@pytest.mark.parametrize("skill", SKILLS)
def test_a_skill_has_front_matter(skill: str) -> None:
    text = (ROOT / "skills" / skill / "SKILL.md").read_text()
    _, front, body = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["name"] == skill
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", skill)
    assert 0 < len(fields["description"]) <= 1024
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata"}
    assert body.strip()


@pytest.mark.parametrize("skill", SKILLS)
def test_a_skill_types_no_threshold(skill: str) -> None:
    text = (ROOT / "skills" / skill / "SKILL.md").read_text()
    found = re.search(r"(?<![\w.])\d+\.\d|\d[eE]-\d|\d ?%|[<>≤≥] ?=? ?\d", text)
    assert not found, f"{found and found[0]}: numbers live in conf/gate"


@pytest.mark.parametrize("skill", SKILLS)
def test_a_skill_names_only_what_exists(skill: str) -> None:
    text = (ROOT / "skills" / skill / "SKILL.md").read_text()
    for path in re.findall(
        r"(?<![\w/.])((?:conf|tilegate|oracle|kernels|skills|runtime|docs|tests|benchmarks)/[\w./*-]*\w)",
        text,
    ):
        assert list(ROOT.glob(path)), f"{path} does not exist"
    for task in re.findall(r"(?:doit|doitw)(?: run)? ((?:[a-z-]+)(?::[\w*-]+)*)", text):
        known = task_names()
        assert (
            task in known
            or any(Path(name).match(task) for name in known)
            or task
            in {
                "list",
                "info",
                "clean",
                "forget",
                "conf",
                "doctor",
            }
        ), f"doit {task} is no task"
    for symbol in re.findall(r"`((?:tilegate|oracle|runtime)(?:\.\w+)+)`", text):
        assert defined(symbol), f"{symbol} is not defined"


def defined(symbol: str) -> bool:
    """Whether a dotted name is a module of ours or something a module defines at its top."""
    parts = symbol.split(".")
    if (ROOT.joinpath(*parts)).with_suffix(".py").is_file():
        return True
    module = ROOT.joinpath(*parts[:-1]).with_suffix(".py")
    if not module.is_file():
        return False
    names = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return parts[-1] in names


def test_every_number_of_the_gates_has_a_note_and_a_source() -> None:
    """The policy refuses to load otherwise; this reads the files without that code."""
    for path in sorted((ROOT / "conf" / "gate").glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        text = json.dumps(document)
        assert text.count('"value"') == text.count('"note"') == text.count('"source"'), path
