"""One line of a report on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "optional"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, and the fix where there is one. `optional`: only some uses need it."""

    what: str
    state: State
    detail: str
    fix: str = ""
