"""Token ids of the prompts that gates use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

DRAWN = 24  # tokens of a prompt when there is no tokenizer


def token_ids(packed: Path, prompts: Sequence[str], vocab: int) -> list[list[int]]:
    """Token ids of each prompt as a chat; seeded ids when no tokenizer is at hand."""
    if not (packed / "tokenizer.json").is_file():
        drawn = np.random.default_rng(0)
        return [drawn.integers(0, vocab, DRAWN).tolist() for _ in prompts]
    from tokenizers import Tokenizer

    from oracle.chat import assemble

    chat = json.loads((packed / "chat.json").read_text())
    tokenizer = Tokenizer.from_file(str(packed / "tokenizer.json"))
    if chat["kind"] == "raw":
        prefix = list(chat["raw_prefix_ids"])
        return [prefix + tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    texts = [assemble(chat, [{"role": "user", "content": prompt}]) for prompt in prompts]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
