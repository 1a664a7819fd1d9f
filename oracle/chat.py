"""A chat template reduced to data: fixed text around each turn, proven by rendering.

chat.json, `kind` = "turns": text = begin + (no_system unless the first turn is a system turn)
+ prefix + content + suffix of every turn + generation. `trim`: contents are stripped first.
`kind` = "raw": there is no template, or it does more than this; `reason` says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = "tilegate-chat-1"
# Templates that print today's date get this one: a bundle's text must not change over night.
FIXED = {"date_string": "26 Jul 2024"}
Turn = Mapping[str, str]


class _Irreducible(Exception):
    """The template does more than surround turns with fixed text."""


def reduce_template(
    tokenizer: Tokenizer, template: str | None, bos_id: int | None, eos_ids: Sequence[int]
) -> dict[str, Any]:
    """The content of chat.json."""
    plain = tokenizer.encode("a").ids
    adds_bos = bool(plain) and plain[0] == bos_id
    chat: dict[str, Any] = {
        "format": FORMAT,
        "bos_id": bos_id,
        "eos_ids": list(eos_ids),
        "raw_prefix_ids": [bos_id] if adds_bos else [],
    }
    if not template:
        return chat | {"kind": "raw", "reason": "the source has no chat template"}
    try:
        return chat | {"kind": "turns"} | _reduce(_Renderer(tokenizer, template, bos_id, eos_ids))
    except _Irreducible as error:
        return chat | {"kind": "raw", "reason": str(error)}


def assemble(chat: Mapping[str, Any], turns: Sequence[Turn]) -> str:
    """The text of a conversation, with the opening of the assistant's next turn."""
    has_system = bool(turns) and turns[0]["role"] == "system"
    text = chat["begin"] + ("" if has_system else chat["no_system"])
    for turn in turns:
        role = chat["roles"][turn["role"]]
        content = turn["content"].strip() if chat["trim"] else turn["content"]
        text += role["prefix"] + content + role["suffix"]
    return str(text + chat["generation"])


class _Renderer:
    """The reference: the template as transformers renders it."""

    def __init__(
        self, tokenizer: Tokenizer, template: str, bos_id: int | None, eos_ids: Sequence[int]
    ) -> None:
        from transformers import PreTrainedTokenizerFast

        def text(index: int | None) -> str | None:
            return None if index is None else tokenizer.id_to_token(index)

        self.begin = text(bos_id) or ""
        self._fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            chat_template=template,
            bos_token=text(bos_id),
            eos_token=text(eos_ids[0] if eos_ids else None),
        )

    def __call__(self, *turns: tuple[str, str], open_next: bool = False) -> str:
        talk = [{"role": role, "content": content} for role, content in turns]
        try:
            return str(
                self._fast.apply_chat_template(
                    talk, tokenize=False, add_generation_prompt=open_next, **FIXED
                )
            )
        except Exception as error:  # templates raise what they like
            raise _Irreducible(f"the template does not render {talk}: {error}") from error


def _between(text: str, *marks: str) -> list[str]:
    """The pieces of `text` around the marks, in order."""
    pieces = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            raise _Irreducible("the template changes or drops the content of a turn")
        pieces.append(before)
    return [*pieces, text]


def _cut(text: str, head: str = "", tail: str = "") -> str:
    if not (text.startswith(head) and text.endswith(tail) and len(text) >= len(head) + len(tail)):
        raise _Irreducible("the text around a turn depends on its neighbours")
    return text[len(head) : len(text) - len(tail)]


def _reduce(render: _Renderer) -> dict[str, Any]:
    a, b, c = "SentinelAlpha", "SentinelBeta", "SentinelGamma"
    user, helper = ("user", a), ("assistant", b)
    pre, user_suffix = _between(render(user), a)
    generation = _cut(render(user, open_next=True), head=pre + a + user_suffix)
    long = render(user, helper, ("user", c), open_next=True)
    _, to_helper, to_user, _ = _between(long, a, b, c)
    helper_suffix = _between(render(user, helper), a, b)[-1]
    helper_prefix = _cut(to_helper, head=user_suffix)
    user_prefix = _cut(to_user, head=helper_suffix)
    # Some models open every turn with the token that others open the text with.
    opens = pre.startswith(render.begin) and not user_prefix.startswith(render.begin)
    begin = render.begin if render.begin and opens else ""
    no_system = _cut(pre, head=begin, tail=user_prefix)
    before_system, to_first, _ = _between(render(("system", c), user), c, a)
    chat = {
        "trim": a == _between(render(("user", f" {a} ")), pre)[-1].removesuffix(user_suffix),
        "begin": begin,
        "no_system": no_system,
        "roles": {
            "system": {
                "prefix": _cut(before_system, head=begin),
                "suffix": _cut(to_first, tail=user_prefix),
            },
            "user": {"prefix": user_prefix, "suffix": user_suffix},
            "assistant": {"prefix": helper_prefix, "suffix": helper_suffix},
        },
        "generation": generation,
    }
    _prove(render, chat)
    return chat


def _prove(render: _Renderer, chat: Mapping[str, Any]) -> None:
    """Assembled and rendered text agree on conversations that end with a user's turn."""
    system, ask = ("system", "Be brief. "), ("user", " What is 2 + 2?\n")
    answer, more = ("assistant", "It is 4."), ("user", "And\n\n3 + 3?")
    talks = [(ask,), (system, ask), (ask, answer, more), (system, ask, answer, more, answer, ask)]
    for talk in talks:
        turns = [{"role": role, "content": content} for role, content in talk]
        if assemble(chat, turns) != render(*talk, open_next=True):
            raise _Irreducible(f"{len(talk)} turns render differently from their parts")
