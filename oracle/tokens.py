"""Tokenizer files of a packed folder: tokenizer.json copied or built from GGUF, and chat.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oracle.chat import reduce_template
from oracle.errors import WeightError
from oracle.spec import ModelSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

CONTROL, USER_DEFINED = 3, 4  # GGUF token types
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TokenizerFacts:
    """What goes with tokenizer.json: special ids and the chat template, as published."""

    template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]


def write_tokenizer(spec: ModelSpec, where: Path | None, out_dir: Path) -> dict[str, Any] | None:
    """Write tokenizer.json and chat.json into `out_dir`; None when there is no tokenizer.

    Returns file, vocabulary size, bos and eos ids; WeightError when it does not fit the model.
    """
    if where is None:
        return None
    target = out_dir / "tokenizer.json"
    if where.is_dir():
        shutil.copyfile(where / "tokenizer.json", target)
        facts = _folder_facts(where)
    else:
        facts = _from_gguf(where, target)
    tokenizer = _load(target)
    size = tokenizer.get_vocab_size()
    if size > spec.vocab:
        raise WeightError(f"the tokenizer has {size} tokens, model {spec.name} only {spec.vocab}")
    chat = reduce_template(tokenizer, facts.template, facts.bos_id, facts.eos_ids)
    (out_dir / "chat.json").write_text(json.dumps(chat, indent=1, ensure_ascii=False) + "\n")
    ids = {"bos_id": facts.bos_id, "eos_ids": list(facts.eos_ids)}
    return {"file": target.name, "tokens": size, "chat": chat["kind"], **ids}


def _load(path: Path) -> Tokenizer:
    """A tokenizer that gives back what it encoded; WeightError when it does not."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise WeightError(f"{path.name}: not a valid tokenizer: {error}") from error
    text = "The year 1984, naïve façade: x = [1, 2]\n  done."
    if tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) != text:
        raise WeightError(f"{path.name}: decoding an encoded text gives another text")
    return tokenizer


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _folder_facts(folder: Path) -> TokenizerFacts:
    config = _read(folder / "tokenizer_config.json")
    tokenizer = _load(folder / "tokenizer.json")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((t["template"] for t in template if t["name"] == "default"), None)
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text()

    def token_id(key: str) -> int | None:
        token = config.get(key)
        text = token.get("content") if isinstance(token, Mapping) else token
        found = tokenizer.token_to_id(text) if isinstance(text, str) else None
        return None if found is None else int(found)

    ends = [token_id("eos_token")]
    for file in ("generation_config.json", "config.json"):
        eos = _read(folder / file).get("eos_token_id")
        ends += eos if isinstance(eos, list) else [eos]
    unique = tuple(dict.fromkeys(end for end in ends if end is not None))
    return TokenizerFacts(template, token_id("bos_token"), unique)


def _from_gguf(path: Path, target: Path) -> TokenizerFacts:
    from oracle.ggufmap import tokenizer_fields

    fields = tokenizer_fields(path)
    if fields.get("model") != "gpt2":
        raise WeightError(
            f"{path.name}: tokenizer model {fields.get('model')!r}; supported: gpt2 (byte BPE)"
        )
    _build_bpe(fields, path.name).save(str(target))
    ends = [fields.get("eos_token_id"), fields.get("eot_token_id")]
    unique = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
    return TokenizerFacts(fields.get("chat_template"), fields.get("bos_token_id"), unique)


def _build_bpe(fields: Mapping[str, Any], file: str) -> Tokenizer:
    """Byte-level BPE with the splitting rule that `tokenizer.ggml.pre` names."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

    tokens: list[str] = fields["tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    kind = fields.get("pre")
    bpe = models.BPE(vocab, merges, ignore_merges=kind == "llama-bpe")
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = _splitting(kind, file)
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    byte_level = ByteLevel(trim_offsets=True)
    tokenizer.post_processor = byte_level
    bos = fields.get("bos_token_id")
    if fields.get("add_bos_token", kind == "llama-bpe") and bos is not None:
        begin = TemplateProcessing(
            single=f"{tokens[bos]} $A",
            pair=f"{tokens[bos]} $A {tokens[bos]} $B",
            special_tokens=[(tokens[bos], bos)],
        )
        tokenizer.post_processor = Sequence([byte_level, begin])
    for token, token_type in zip(tokens, fields["token_type"], strict=True):
        if token_type == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif token_type == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def _splitting(kind: Any, file: str) -> PreTokenizer:
    """How text is cut into words before merging."""
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as pre

    if kind == "smollm":
        words = pre.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre.Sequence([pre.Digits(individual_digits=True), words])
    if kind not in ("llama-bpe", "qwen2"):
        raise WeightError(f"{file}: splitting rule {kind!r}; supported: smollm, llama-bpe, qwen2")
    pattern = Regex(WORDS % ("{1,3}" if kind == "llama-bpe" else ""))
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre.Sequence([pre.Split(pattern, "isolated"), plain])
