"""`run serve` with the public openai client: answers, streams, one at a time, clear errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_bundle import BUCKETS, CONTEXT, write_bundle

from runtime.chat import Chat
from runtime.manifest import read_manifest
from runtime.runner import Runner
from runtime.sampling import Sampler
from runtime.serve import Refused, Service, Turns, server
from runtime.session import open_session

openai = pytest.importorskip("openai")
MESSAGES: Any = [{"role": "user", "content": "a b"}]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture(scope="module")
def service(bundle: Path) -> Service:
    manifest = read_manifest(bundle)
    runner = Runner(bundle, open_session("emulated", manifest.device))
    return Service(runner, Chat(bundle, manifest), manifest, 6)


@pytest.fixture(scope="module")
def port(service: Service) -> Iterator[int]:
    with server(service, 0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_port
        made.shutdown()


@pytest.fixture(scope="module")
def client(port: int) -> Any:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def wanted(bundle: Path, service: Service, limit: int) -> tuple[list[int], str]:
    """Tokens and text as the runner itself gives them."""
    runner = Runner(bundle, open_session("emulated", service.manifest.device))
    ids = service.chat.encode([("user", "a b")])
    tokens = list(runner.generate(ids, Sampler(), limit, service.chat.stop_ids))
    return tokens, "".join(service.chat.stream(tokens))


def test_a_chat_answer_is_the_runners(client: Any, bundle: Path, service: Service) -> None:
    tokens, text = wanted(bundle, service, 4)
    made = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)
    assert made.choices[0].message.content == text and made.choices[0].message.role == "assistant"
    assert made.choices[0].finish_reason == ("length" if len(tokens) == 4 else "stop")
    assert made.usage.completion_tokens == len(tokens)
    assert made.usage.prompt_tokens == len(service.chat.encode([("user", "a b")]))


def test_a_stream_gives_the_same_text_in_pieces(
    client: Any, bundle: Path, service: Service
) -> None:
    text = wanted(bundle, service, 4)[1]
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=4, stream=True, stream_options=options
    )
    chunks = list(stream)
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == text and len([piece for piece in said if piece]) > 1
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "length" and not any(reasons[:-1])
    assert chunks[-1].usage.completion_tokens == 4


def test_plain_completions_of_text_and_of_token_ids(client: Any) -> None:
    by_text = client.completions.create(model="tiny", prompt="a b c", max_tokens=3)
    by_ids = client.completions.create(model="tiny", prompt=[3, 4, 5], max_tokens=3)
    assert by_text.choices[0].text == by_ids.choices[0].text
    stream = client.completions.create(model="tiny", prompt="a b c", max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == by_text.choices[0].text


def test_sampling_is_seeded_and_stop_texts_end_an_answer(client: Any) -> None:
    how: Any = {"model": "tiny", "prompt": "a b c", "max_tokens": 5}
    hot = [client.completions.create(temperature=9.0, seed=s, **how).choices[0].text
           for s in (1, 1, 2, 3, 4)]  # fmt: skip
    assert hot[0] == hot[1] and len(set(hot)) > 1
    whole = client.completions.create(**how).choices[0].text
    word = whole.split()[1]
    cut = client.completions.create(stop=[word], **how).choices[0]
    assert cut.text == whole[: whole.index(word)] and cut.finish_reason == "stop"
    stream = client.completions.create(stop=word, stream=True, **how)
    assert "".join(chunk.choices[0].text for chunk in stream) == cut.text


def test_an_answer_ends_with_the_context(client: Any) -> None:
    made = client.completions.create(model="tiny", prompt=[3] * BUCKETS[-1], max_tokens=999)
    assert made.choices[0].finish_reason == "length"
    assert made.usage.completion_tokens == CONTEXT - BUCKETS[-1] + 1


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": "other"}, "NotFoundError", "is not 'tiny'"),
        ({"messages": []}, "BadRequestError", "at least one message"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "BadRequestError", "wizard"),
        ({"messages": [{"role": "user", "content": "a " * 90}]}, "BadRequestError", "tokens"),
        ({"messages": [{"role": "user", "content": "a " * 9}]}, "BadRequestError", "bucket"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens"),
        ({"temperature": "hot"}, "BadRequestError", "temperature must be"),
        ({"n": 2}, "BadRequestError", "n must be 1"),
        ({"tools": [{"type": "function"}]}, "BadRequestError", "'tools' is not supported"),
        ({"stop": [3]}, "BadRequestError", "stop must be"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_apis_own(
    change: dict[str, Any], error: str, says: str, stream: bool, client: Any
) -> None:
    body: Any = {"model": "tiny", "messages": MESSAGES, "stream": stream, **change}
    with pytest.raises(getattr(openai, error)) as caught:
        client.chat.completions.create(**body)
    assert says in caught.value.body["message"]
    assert caught.value.body["type"] == "invalid_request_error"


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(request)
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(65536), b""))


def test_what_is_no_request_of_the_api(port: int) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert b" 400 " in raw(port, head + b"Content-Length: 1\r\n\r\n{").split(b"\r\n")[0]
    assert b" 413 " in raw(port, head + b"\r\n").split(b"\r\n")[0]
    assert b" 413 " in raw(port, head + b"Content-Length: 99999999\r\n\r\n").split(b"\r\n")[0]
    other = head.replace(b"localhost", b"evil.example")
    assert b" 403 " in raw(port, other + b"Content-Length: 2\r\n\r\n{}").split(b"\r\n")[0]
    assert b" 404 " in raw(port, b"GET /x HTTP/1.0\r\nHost: localhost\r\n\r\n").split(b"\r\n")[0]


def test_requests_at_once_wait_for_their_turn(client: Any) -> None:
    def ask(prompt: str) -> str:
        made = client.completions.create(model="tiny", prompt=prompt, max_tokens=4)
        return str(made.choices[0].text)

    prompts = ["a b", "c d", "e f", "g a", "b c", "d e"]
    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_a_client_that_leaves_does_not_keep_the_next_one_waiting(client: Any) -> None:
    stream = client.completions.create(model="tiny", prompt="a", max_tokens=8, stream=True)
    next(iter(stream))
    stream.close()
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices[0].text


def test_more_than_the_most_may_not_wait() -> None:
    turns = Turns(most=1)
    with turns.turn():
        second = turns.turn()
        waiting = threading.Thread(target=second.__enter__)
        waiting.start()
        while turns.waiting < 1:
            time.sleep(0.001)
        with pytest.raises(Refused, match="busy"), turns.turn():
            pass
    waiting.join(10)
    second.__exit__(None, None, None)
    with turns.turn():
        assert turns.waiting == 0


def test_the_command_serves_until_interrupted(bundle: Path) -> None:
    environment = {**os.environ, "TILEGATE_PYTHON": sys.executable}
    command = [str(bundle / "run"), "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("tiny at http://127.0.0.1:")
        client = openai.OpenAI(base_url=line.split()[-1], api_key="none", max_retries=0)
        assert client.completions.create(model="tiny", prompt="a").choices[0].text
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_a_rehearsal_does_not_serve(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "tiny", "rehearsal")
    done = subprocess.run([str(root / "run"), "serve", "--port", "0"], capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert done.returncode == 2 and "--allow-rehearsal" in done.stderr
    assert json.loads((root / "manifest.json").read_text())["weights"]["kind"] == "rehearsal"
