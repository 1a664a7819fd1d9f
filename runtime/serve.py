"""`run serve`: the bundle behind the OpenAI HTTP API, on this machine only.

`GET /v1/models`, `POST /v1/chat/completions` and `POST /v1/completions`, with `stream` or without.
One request runs at a time; others wait in the order in which they came, up to MAX_WAITING of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .chat import Chat, Message
from .errors import BundleError, DeviceError
from .manifest import Manifest
from .runner import Runner
from .sampling import Sampler

HOST = "127.0.0.1"
MAX_WAITING = 32
MAX_BODY = 1 << 20
SOCKET_SECONDS = 60
LOCAL = ("127.0.0.1", "localhost", "[::1]")
UNSUPPORTED = ("tools", "functions", "logprobs", "top_logprobs", "logit_bias", "echo", "suffix",
               "response_format", "frequency_penalty", "presence_penalty")  # fmt: skip


class Refused(Exception):
    """A request that is not served: HTTP status and one line, in the API's own form."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def document(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": None, "code": self.code}
        return {"error": error}


class Turns:
    """Lets one thread work at a time, in the order of arrival."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._changed = threading.Condition()
        self._most = most
        self._next = self._now = 0

    @property
    def waiting(self) -> int:
        return max(0, self._next - self._now - 1)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        with self._changed:
            if self.waiting >= self._most:
                raise Refused(503, f"busy: {self._most} requests are waiting", "busy")
            mine, self._next = self._next, self._next + 1
            self._changed.wait_for(lambda: self._now == mine)
        try:
            yield
        finally:
            with self._changed:
                self._now += 1
                self._changed.notify_all()


@dataclass(frozen=True)
class Request:
    """What a body asks for, checked."""

    ids: list[int]
    limit: int
    sampler: Sampler
    stops: tuple[str, ...]
    stream: bool
    usage: bool


@dataclass
class Answer:
    """An answer as it grows; `reason` is set when it has ended."""

    reason: str = "stop"
    tokens: int = 0
    pieces: list[str] = field(default_factory=list)


class Service:
    """The model behind the API."""

    def __init__(self, runner: Runner, chat: Chat, manifest: Manifest, default_limit: int) -> None:
        self.runner, self.chat, self.manifest = runner, chat, manifest
        self.default_limit = default_limit
        self.turns = Turns()

    def request(self, body: Mapping[str, Any], talk: bool) -> Request:
        """Check a body. Raises Refused with the first thing that is wrong."""
        for key in UNSUPPORTED:
            if body.get(key):
                raise Refused(400, f"{key!r} is not supported", "unsupported_parameter")
        name = self.manifest.model.name
        if _field(body, "model", str, name) != name:
            raise Refused(404, f"model {body['model']!r} is not {name!r}", "model_not_found")
        if _field(body, "n", int, 1) != 1:
            raise Refused(400, "n must be 1")
        limit = _field(body, "max_tokens", int, self.default_limit)
        limit = _field(body, "max_completion_tokens", int, limit)
        temperature = _field(body, "temperature", float, 0.0)
        top_p = _field(body, "top_p", float, 1.0)
        if limit < 1 or not 0 <= temperature <= 100 or not 0 < top_p <= 1:
            raise Refused(400, "max_tokens from 1, temperature from 0, top_p in (0, 1] are wanted")
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        if not isinstance(stops, list) or any(not isinstance(s, str) or not s for s in stops):
            raise Refused(400, "stop must be a string or a list of strings")
        options = _field(body, "stream_options", dict, {})
        ids = self._talk(body) if talk else self._text(body)
        most = self.manifest.context - 1
        if len(ids) > most:
            what = f"the prompt has {len(ids)} tokens, the most are {most}"
            raise Refused(400, what, "context_length_exceeded")
        sampler = Sampler(temperature, top_p, _field(body, "seed", int, 0))
        stream = _field(body, "stream", bool, False)
        usage = _field(options, "include_usage", bool, False)
        return Request(ids, limit, sampler, tuple(stops), stream, usage)

    def _talk(self, body: Mapping[str, Any]) -> list[int]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "messages must be a list with at least one message")
        if self.chat.raw:
            raise Refused(400, "this model has no chat template; use /v1/completions")
        try:
            return self.chat.encode([_message(message) for message in messages])
        except BundleError as error:
            raise Refused(400, str(error)) from None

    def _text(self, body: Mapping[str, Any]) -> list[int]:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str) and prompt:
            return self.chat.encode_raw(prompt)
        vocab = self.manifest.model.vocab
        if isinstance(prompt, list) and prompt and all(type(t) is int for t in prompt):
            if all(0 <= token < vocab for token in prompt):
                return list(prompt)
            raise Refused(400, f"prompt: a token is outside 0..{vocab - 1}")
        raise Refused(400, "prompt must be one text or one list of token ids")

    def generate(self, request: Request, answer: Answer) -> Iterator[str]:
        """The answer's text in pieces; `answer` ends with its reason and token count."""
        stops = self.chat.stop_ids

        def tokens() -> Iterator[int]:
            stream = self.runner.generate(request.ids, request.sampler, request.limit, stops)
            try:
                for token in stream:
                    answer.tokens += 1
                    yield token
            except BundleError:  # the context is full
                if not answer.tokens:
                    raise
                answer.reason = "length"
            if answer.tokens == request.limit:
                answer.reason = "length"

        yield from _until(self.chat.stream(tokens()), request.stops, answer)


def _until(pieces: Iterator[str], stops: tuple[str, ...], answer: Answer) -> Iterator[str]:
    """Text up to the first of `stops`; what may be the start of one is held back."""
    held = ""
    longest = max(map(len, stops), default=0)
    for piece in pieces:
        held += piece
        found = [at for at in map(held.find, stops) if at >= 0]
        if found:
            answer.reason = "stop"
            if min(found):
                yield held[: min(found)]
            return
        safe = len(held) - max(0, longest - 1)
        if safe > 0:
            yield held[:safe]
            held = held[safe:]
    if held:
        yield held


def _field(body: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = body.get(key)
    if value is None:
        return default
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise Refused(400, f"{key} must be of type {kind.__name__}, not {json.dumps(value)[:40]}")
    return value


def _message(message: Any) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        content = "".join(part["text"] for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise Refused(400, "a message needs a role and a text as content")
    return role, content


class Handler(BaseHTTPRequestHandler):
    """One connection. `service` is set by `server`."""

    service: Service
    protocol_version = "HTTP/1.1"
    server_version = "tilegate"
    timeout = SOCKET_SECONDS

    def do_GET(self) -> None:
        self._guarded(self._get)

    def do_POST(self) -> None:
        self._guarded(self._post)

    def log_message(self, format: str, *values: Any) -> None:
        print(f"{self.log_date_time_string()} {format % values}", file=sys.stderr)

    def _guarded(self, act: Any) -> None:
        """Run a handler; what it raises before the answer began becomes the API's error."""
        try:
            self._check_host()
            act()
        except Refused as error:
            self._send(error.status, error.document())
        except BundleError as error:  # a prompt that fits no bucket
            self._send(400, Refused(400, str(error), "context_length_exceeded").document())
        except (DeviceError, RuntimeError, MemoryError) as error:
            self._send(500, Refused(500, " ".join(str(error).split())).document())
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the client left: nobody waits for an answer

    def _check_host(self) -> None:
        """A web page elsewhere must not reach this server by a name that points here."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in LOCAL:
            self.close_connection = True
            raise Refused(403, f"host {host!r} is not this machine")

    def _get(self) -> None:
        name = self.service.manifest.model.name
        about = {"id": name, "object": "model", "created": 0, "owned_by": "tilegate"}
        if self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [about]})
        elif self.path == f"/v1/models/{name}":
            self._send(200, about)
        else:
            raise Refused(404, f"no such path: {self.path}")

    def _post(self) -> None:
        talk = self.path == "/v1/chat/completions"
        body = self._body()
        if not talk and self.path != "/v1/completions":
            raise Refused(404, f"no such path: {self.path}")
        request = self.service.request(body, talk)
        frame = Frame(talk, self.service.manifest.model.name)
        answer = Answer()
        with self.service.turns.turn():
            pieces = self.service.generate(request, answer)
            if request.stream:
                self._stream(pieces, frame, request, answer)
                return
            text = "".join(pieces)
        usage = _usage(request, answer)
        self._send(200, frame.whole(text, answer.reason, usage))

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            raise Refused(413, f"a body of at most {MAX_BODY} bytes and its length are wanted")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body is not a JSON object")
        return body

    def _stream(
        self, pieces: Iterator[str], frame: Frame, request: Request, answer: Answer
    ) -> None:
        """Server-sent events; an error on the way is an event, since the status is out."""
        first = next(pieces, "")  # errors before the first token still have a status of their own
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in frame.opening():
                self._event(event)
            for piece in itertools.chain([first], pieces):
                self._event(frame.piece(piece))
            self._event(frame.piece(None, answer.reason))
            if request.usage:
                self._event({**frame.head(True), "choices": [], "usage": _usage(request, answer)})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BundleError, DeviceError, RuntimeError) as error:
            self._event(Refused(500, " ".join(str(error).split())).document())

    def _event(self, document: Mapping[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def _send(self, status: int, document: Mapping[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _usage(request: Request, answer: Answer) -> dict[str, int]:
    prompt, said = len(request.ids), answer.tokens
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


class Frame:
    """The documents around an answer's text: of a chat, or of a plain completion."""

    def __init__(self, talk: bool, model: str) -> None:
        self._talk, self._model = talk, model
        self._id = f"{'chatcmpl' if talk else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def head(self, stream: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self._talk:
            kind = "chat.completion.chunk" if stream else "chat.completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def whole(self, text: str, reason: str, usage: Mapping[str, int]) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if self._talk else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return {**self.head(False), "choices": [choice], "usage": usage}

    def opening(self) -> Iterator[dict[str, Any]]:
        if self._talk:
            delta = {"role": "assistant", "content": ""}
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            yield {**self.head(True), "choices": [choice]}

    def piece(self, text: str | None, reason: str | None = None) -> dict[str, Any]:
        said: dict[str, Any] = {"text": text or ""}
        if self._talk:
            said = {"delta": {} if text is None else {"content": text}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return {**self.head(True), "choices": [choice]}


def server(service: Service, port: int) -> ThreadingHTTPServer:
    """A server on the loopback address; port 0 takes a free one. Raises BundleError."""
    handler = type("BoundHandler", (Handler,), {"service": service})
    try:
        made = ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        raise BundleError(f"port {port} on {HOST}: {error.strerror}") from None
    made.daemon_threads = True
    return made
