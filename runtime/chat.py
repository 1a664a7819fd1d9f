"""Text to token ids and back: the tokenizer of a bundle and its chat template as data.

chat.json holds the template already rendered, so that no template engine is needed::

    {"format": "tilegate-chat-1", "kind": "turns", "eos_ids": [2], "trim": false,
     "begin": "<text>", "no_system": "<text unless the first turn is a system turn>",
     "roles": {"system": {"prefix": "<text>", "suffix": "<text>"}, "user": ..., "assistant": ...},
     "generation": "<text that opens the answer>"}

or `"kind": "raw"` for a model without such a template. `trim`: contents are stripped first.
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
FORMAT = "tilegate-chat-1"
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
        kind, version = reader.get("kind", str), reader.get("format", str)
        if version != FORMAT or kind not in ("turns", "raw"):
            raise BundleError(f"{path}: {version!r}, {kind!r} is not a template that is known here")
        self.raw = kind == "raw"
        self.stop_ids = frozenset((*manifest.eos_ids, *reader.get("eos_ids", list)))
        if not self.raw:
            self._trim = reader.get("trim", bool)
            self._roles = reader.get("roles", dict)
            self._begin, self._no_system, self._generation = (
                reader.get(key, str) for key in ("begin", "no_system", "generation")
            )
        self._tokenizer = _tokenizer(root / manifest.tokenizer)

    def text(self, messages: Sequence[Message]) -> str:
        """The conversation as the model was trained to see it, ready for its answer."""
        has_system = bool(messages) and messages[0][0] == "system"
        parts = [self._begin, "" if has_system else self._no_system]
        for role, content in messages:
            if role not in self._roles:
                raise BundleError(f"the chat template of this model has no {role!r} turn")
            around = self._roles[role]
            said = content.strip() if self._trim else content
            parts.append(f"{around['prefix']}{said}{around['suffix']}")
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
