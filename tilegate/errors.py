"""The three ways in which something does not end well: usage, gate, tool."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class UserError(Exception):
    """Bad input: one line that names the value, the rule it breaks and the nearest valid choice.

    Exit status 2.
    """


class BrokenTool(Exception):
    """A tool we rely on is missing or failed (compiler, disk, network). Exit status 2."""


class GateFailed(Exception):
    """A gate compared and found the candidate wanting. Exit status 1; carries the record."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(f"gate {record.get('gate', '?')} failed")
        self.record = dict(record)


def nearest(value: str, choices: Iterable[str]) -> str:
    """The hint that ends an error line: the nearest valid name, else all of them."""
    known = sorted(choices)
    close = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
