"""The command line of a bundle: answer, converse, bench, verify.

Exit status: 0 done; 1 the bundle is not as it was promoted (verify); 2 an error, in one line;
130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .bundle import check_structure, differences
from .errors import BundleError, DeviceError
from .manifest import BUNDLE_FORMAT, Manifest, read_manifest
from .session import DEVICES, open_session

if TYPE_CHECKING:
    from .chat import Chat, Message
    from .runner import Runner

MAX_TOKENS = 256
USAGE = """run "prompt"            answer one prompt (`-` reads it from standard input)
       run --chat              converse
       run --ids FILE          continue token ids (a JSON list); needs no tokenizer
       run serve               OpenAI-compatible API on this machine, at --port
       run bench               time to first token and per output token
       run verify              compare every file with the manifest"""


def main(root: Path, arguments: Sequence[str]) -> int:
    """Run one command on the bundle in `root`; the exit status."""
    try:
        options = _parser(root).parse_args(arguments)
        return _command(root, options)
    except (BundleError, DeviceError, RuntimeError, IndexError, MemoryError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"run: {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


def _command(root: Path, options: argparse.Namespace) -> int:
    words: list[str] = options.prompt
    if words == ["verify"]:
        return _verify(root)
    manifest = read_manifest(root)
    check_structure(root, manifest)
    if words == ["bench"]:
        return _bench(root, manifest, options)
    serve = words == ["serve"]
    if len(words) > 1:
        raise BundleError(f'quote the prompt: run "{" ".join(words)}"')
    if not words and not options.chat and not options.ids:
        raise BundleError("a prompt is needed; `run --help` shows the commands")
    prompt = words[0] if words else ""
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt.strip() and not options.chat and not options.ids:
        raise BundleError("the prompt is empty")
    if manifest.rehearsal and not options.allow_rehearsal:
        raise BundleError(
            f"{manifest.model.name} is a rehearsal with synthetic weights, so its text means "
            "nothing; add --allow-rehearsal to generate it all the same"
        )
    if serve:
        return _serve(root, manifest, options)
    if options.ids:
        return _continue(root, manifest, options)
    return _converse(root, manifest, options, prompt)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise BundleError(f"{message}; `run --help` shows the options")


def _parser(root: Path) -> argparse.ArgumentParser:
    parser = _Parser(prog="run", usage=USAGE, allow_abbrev=False)
    parser.add_argument("prompt", nargs="*", help=argparse.SUPPRESS)
    add = parser.add_argument
    add("--chat", action="store_true", help="converse; an empty line or Ctrl-D ends it")
    add("--ids", metavar="FILE", help="token ids instead of a prompt")
    add("--system", metavar="TEXT", help="system message, where the model has one")
    add("--raw", action="store_true", help="the prompt as it is, without chat template")
    add(
        "--max-tokens",
        type=_at_least(1),
        default=MAX_TOKENS,
        metavar="N",
        help="default %(default)s",
    )
    add("--temperature", type=_between(0, 100), default=0.0, metavar="T", help="default 0: greedy")
    add("--top-p", type=_between(0, 1), default=1.0, metavar="P", help="default %(default)s")
    add(
        "--seed", type=_at_least(0), default=0, metavar="N", help="of sampling, default %(default)s"
    )
    add("--json", action="store_true", help="one JSON document instead of text")
    add("--device", choices=DEVICES, default="emulated", help="default %(default)s")
    add("--allow-rehearsal", action="store_true", help="generate with synthetic weights")
    add(
        "--prompt-tokens",
        type=_at_least(1),
        metavar="N",
        help="bench: default the smallest bucket that leaves room",
    )
    add("--decode-tokens", type=_at_least(1), default=16, metavar="N", help="bench: default 16")
    add("--port", type=_at_least(0), default=8080, metavar="N", help="serve: default 8080, 0: any")
    add("--version", action="version", version=_version(root))
    return parser


def _version(root: Path) -> str:
    try:
        manifest = read_manifest(root)
    except BundleError as error:
        return f"{BUNDLE_FORMAT} ({error})"
    return f"{manifest.model.name} ({manifest.weights_kind} weights), {BUNDLE_FORMAT}"


def _at_least(low: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        if not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return int(text)

    return integer


def _between(low: float, high: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return value

    return number


def _need(*packages: str) -> None:
    """Raises BundleError when this Python lacks one of the packages."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise BundleError(
                f"{sys.executable} cannot import {package} ({error}): "
                f"`pip install {' '.join(packages)}`, or name another Python in TILEGATE_PYTHON"
            ) from None


@dataclass
class Clock:
    """When tokens came, in microseconds of the session's clock."""

    now_us: Callable[[], float]
    marks: list[float] = field(default_factory=list)

    def through(self, tokens: Iterator[int]) -> Iterator[int]:
        """The tokens, noting when each was there."""
        self.marks = [self.now_us()]
        for token in tokens:
            self.marks.append(self.now_us())
            yield token

    def report(self) -> dict[str, float | None]:
        """TTFT and TPOT in milliseconds, tokens/s of decode; None for what did not happen."""
        marks = self.marks
        first = (marks[1] - marks[0]) / 1e3 if len(marks) > 1 else None
        each = (marks[-1] - marks[1]) / (len(marks) - 2) / 1e3 if len(marks) > 2 else None
        rate = 1e3 / each if each else None
        return {"ttft_ms": first, "tpot_ms": each, "tokens_per_s": rate}


def _converse(root: Path, manifest: Manifest, options: argparse.Namespace, prompt: str) -> int:
    """Answer one prompt, or with --chat one after the other."""
    _need("numpy", "tokenizers")
    from .chat import Chat
    from .runner import Runner

    chat = Chat(root, manifest)
    if chat.raw and options.chat:
        raise BundleError("this model has no chat template; give one prompt instead")
    runner = Runner(root, open_session(options.device, manifest.device))
    history: list[Message] = [("system", options.system)] if options.system else []
    if not options.chat:
        return _answer(runner, chat, options, [*history, ("user", prompt)])[0]
    for line in _lines(prompt):
        history.append(("user", line))
        status, text = _answer(runner, chat, options, history)
        if status:
            return status
        history.append(("assistant", text))
    return 0


def _continue(root: Path, manifest: Manifest, options: argparse.Namespace) -> int:
    """The tokens that follow given ones, as ids."""
    _need("numpy")
    from .runner import Runner
    from .sampling import Sampler

    try:
        ids = json.loads(Path(options.ids).read_bytes())
    except (OSError, ValueError) as error:
        raise BundleError(f"--ids {options.ids}: {error}") from None
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise BundleError(f"--ids {options.ids}: a JSON list of integers is wanted")
    runner = Runner(root, open_session(options.device, manifest.device))
    sampler = Sampler(options.temperature, options.top_p, options.seed)
    clock = Clock(runner.session.now_us)
    stops = frozenset(manifest.eos_ids)
    tokens = list(clock.through(runner.generate(ids, sampler, options.max_tokens, stops)))
    if options.json:
        print(json.dumps(_document(runner, ids, tokens, "", clock, options, "")))
    else:
        print(" ".join(map(str, tokens)))
    return 0


def _serve(root: Path, manifest: Manifest, options: argparse.Namespace) -> int:
    """Answer HTTP requests until interrupted."""
    _need("numpy", "tokenizers")
    from .chat import Chat
    from .runner import Runner
    from .serve import HOST, Service, server

    chat = Chat(root, manifest)
    runner = Runner(root, open_session(options.device, manifest.device))
    with server(Service(runner, chat, manifest, options.max_tokens), options.port) as made:
        print(f"{manifest.model.name} at http://{HOST}:{made.server_port}/v1", flush=True)
        made.serve_forever()
    return 0


def _lines(first: str) -> Iterator[str]:
    """What a person says, until an empty line or the end of input."""
    if first.strip():
        yield first
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if not line:
            return
        yield line


def _answer(
    runner: Runner, chat: Chat, options: argparse.Namespace, messages: list[Message]
) -> tuple[int, str]:
    """Stream (or with --json collect) one answer: exit status and text."""
    from .sampling import Sampler

    raw = options.raw or chat.raw
    ids = chat.encode_raw(messages[-1][1]) if raw else chat.encode(messages)
    sampler = Sampler(options.temperature, options.top_p, options.seed)
    clock = Clock(runner.session.now_us)
    tokens: list[int] = []
    pieces: list[str] = []
    error = ""
    try:
        stream = clock.through(runner.generate(ids, sampler, options.max_tokens, chat.stop_ids))
        for piece in chat.stream(_noting(stream, tokens)):
            pieces.append(piece)
            if not options.json:
                print(piece, end="", flush=True)
    except BundleError as full:
        if not tokens:
            raise
        error = str(full)
    text = "".join(pieces)
    if options.json:
        print(json.dumps(_document(runner, ids, tokens, text, clock, options, error)))
    else:
        print()
    if error:
        print(f"run: the answer is cut short: {error}", file=sys.stderr)
    return (2 if error else 0), text


def _noting(tokens: Iterator[int], seen: list[int]) -> Iterator[int]:
    for token in tokens:
        seen.append(token)
        yield token


def _document(
    runner: Runner,
    ids: list[int],
    tokens: list[int],
    text: str,
    clock: Clock,
    options: argparse.Namespace,
    error: str,
) -> dict[str, Any]:
    stop = "context" if error else "length" if len(tokens) == options.max_tokens else "stop"
    return {
        "text": text,
        "ids": tokens,
        "prompt_ids": ids,
        "stop": stop,
        "timing": runner.session.label,
        **clock.report(),
    }


def _bench(root: Path, manifest: Manifest, options: argparse.Namespace) -> int:
    """Times of one prompt and its continuation, on the session's clock."""
    _need("numpy")
    from .runner import Runner

    fitting = min(min(manifest.prefill), manifest.context - options.decode_tokens)
    count = options.prompt_tokens or max(1, fitting)
    session = open_session(options.device, manifest.device)
    begun = time.perf_counter()
    runner = Runner(root, session)
    loaded = time.perf_counter()
    room = manifest.context - count
    if count <= max(manifest.prefill) and room < options.decode_tokens:
        wanted = f"{count} and {options.decode_tokens} tokens"
        raise BundleError(f"{wanted} exceed the context of {manifest.context}")
    ids = [(7 * index + 1) % manifest.model.vocab for index in range(count)]
    clock = Clock(session.now_us)
    greedy = _first_best()
    for _ in clock.through(runner.generate(ids, greedy, options.decode_tokens + 1)):
        pass
    report = {
        "model": manifest.model.name,
        "weights": manifest.weights_kind,
        "timing": session.label,
        "prompt_tokens": count,
        "decode_tokens": options.decode_tokens,
        **clock.report(),
        "host_wall_s": {"load": loaded - begun, "generate": time.perf_counter() - loaded},
    }
    if options.json:
        print(json.dumps(report))
    else:
        _print_bench(report, options.device)
    return 0


def _first_best() -> Callable[[Any], int]:
    from .sampling import Sampler

    return Sampler()


def _print_bench(report: dict[str, Any], device: str) -> None:
    wall = report["host_wall_s"]
    what = "emulation on this host" if device == "emulated" else "this host"
    print(f"{report['model']} ({report['weights']} weights), {report['timing']}")
    print(f"  TTFT  {report['ttft_ms']:9.2f} ms   prompt of {report['prompt_tokens']} tokens")
    print(
        f"  TPOT  {report['tpot_ms']:9.2f} ms   {report['tokens_per_s']:.1f} tokens/s "
        f"over {report['decode_tokens']} tokens"
    )
    print(f"  wall time of {what}: load {wall['load']:.2f} s, run {wall['generate']:.2f} s")


def _verify(root: Path) -> int:
    manifest = read_manifest(root)
    lines = list(differences(root, manifest))
    for line in lines:
        print(line)
    if lines:
        print(f"run: {len(lines)} of the bundle's files are not as promoted", file=sys.stderr)
        return 1
    gates = manifest.raw.get("gates", [])
    print(f"{len(manifest.files) + 1} files are as promoted; {len(gates)} gate records")
    return 0
