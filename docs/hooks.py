"""Code and configuration in the manual come from the files themselves.

A line `<!-- code: FILE [NAME ...] -->` becomes a block with the file, or with what it defines under
these names (functions, classes, assignments), in that order.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"^<!-- code: (\S+)((?: \w+)*) -->$", re.MULTILINE)
LANGUAGES = {".py": "python", ".cc": "cpp", ".yaml": "yaml"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls it with each page."""
    return LINE.sub(lambda found: block(found[1], found[2].split()), markdown)


def block(name: str, wanted: list[str]) -> str:
    """A fenced block. Raises KeyError for a name that the file does not define."""
    text = (ROOT / name).read_text().strip()
    if wanted:
        parts = definitions(text)
        text = "\n\n\n".join(parts[part] for part in wanted)
    return f'```{LANGUAGES[Path(name).suffix]} title="{name}"\n{text}\n```'


def definitions(text: str) -> dict[str, str]:
    """The source of everything that a module defines at its top level, by name."""
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        names = [getattr(node, "name", None)]
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for name in filter(None, names):
            found[name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found
