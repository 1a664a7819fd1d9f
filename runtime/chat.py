"""Text to token ids and back: the tokenizer of a bundle and its chat template as data.

chat.json holds the template already rendered, so that no template engine is needed::

    {"bos": "<text>", "default_system": "<text>" | null, "generation": "<prefix>",
     "turns": {"system": ["<prefix>", "<suffix>"], "user": [...], "assistant": [...]},
     "stop_ids": [2]}                      or {"raw": true, "stop_ids": [...]} without a template
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import BundleError
from .manifest import Manifest, Reader

Message = tuple[str, str]
"""(role, text); roles are system, user and assistant."""

CHAT = "chat.json"
UNFINISHED = "\ufffd"
"""What a tokenizer gives for the first bytes of a character whose others are still to come."""


class Chat:
    """The tokenizer and template of the bundle in `root`. Raises BundleError."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        if manifest.tokenizer is None:
            raise BundleError(
                "this bundle has no tokenizer; it runs on token ids (`run bench`) only"
            )
        path = root / CHAT
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise BundleError(f"broken bundle: {path}: {error}") from None
        reader = Reader(data, str(path))
        self.raw = reader.get("raw", bool, False)
        self.stop_ids = frozenset((*manifest.eos_ids, *reader.get("stop_ids", list, [])))
        self._bos = reader.get("bos", str, "")
        self._system = reader.get("default_system", str, None)
        self._generation = "" if self.raw else reader.get("generation", str)
        self._turns: dict[str, Any] = {} if self.raw else reader.get("turns", dict)
        self._tokenizer = _tokenizer(root / manifest.tokenizer)

    def text(self, messages: Sequence[Message]) -> str:
        """The conversation as the model was trained to see it, ready for its answer."""
        if self._system is not None and not any(role == "system" for role, _ in messages):
            messages = [("system", self._system), *messages]
        parts = [self._bos]
        for role, content in messages:
            if role not in self._turns:
                raise BundleError(f"the chat template of this model has no {role!r} turn")
            prefix, suffix = self._turns[role]
            parts.append(f"{prefix}{content}{suffix}")
        return "".join((*parts, self._generation))

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation; the template brings all special tokens."""
        ids = self._tokenizer.encode(self.text(messages), add_special_tokens=False).ids
        return [int(token) for token in ids]

    def encode_raw(self, text: str) -> list[int]:
        """Token ids of plain text, with the special tokens that the tokenizer itself adds."""
        return [int(token) for token in self._tokenizer.encode(text).ids]

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of tokens as they come, in whole characters."""
        ids: list[int] = []
        given = ""
        for token in tokens:
            ids.append(token)
            text = self._tokenizer.decode(ids)
            if not text.endswith(UNFINISHED):
                yield text[len(given) :]
                given = text
        yield self._tokenizer.decode(ids)[len(given) :]


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise BundleError(f"broken bundle: {path}: {error}") from None
