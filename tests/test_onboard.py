"""From a published config.json to a model file, or to the name of what is not supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilegate import onboard
from tilegate.config import load
from tilegate.errors import UserError

DATA = Path(__file__).parent / "data"
PUBLISHED: dict[str, dict[str, Any]] = json.loads((DATA / "published_configs.json").read_text())
UNSUPPORTED: dict[str, Any] = json.loads((DATA / "unsupported_configs.json").read_text())


def test_every_model_file_has_its_published_config() -> None:
    assert {onboard.name_of(hub) for hub in PUBLISHED} == {p.stem for p in onboard.MODELS.glob("*")}


@pytest.mark.parametrize("hub", PUBLISHED)
def test_onboarding_reproduces_the_committed_file(hub: str) -> None:
    name = onboard.name_of(hub)
    model = onboard.described(PUBLISHED[hub], name, hub)
    before = (onboard.MODELS / f"{name}.yaml").read_text()
    assert onboard.render(model, before) == before
    assert onboard.render(model).partition("\nwheel:")[0] == before.partition("\nwheel:")[0]


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_supported_is_named(case: str) -> None:
    says, config = UNSUPPORTED[case]["says"], UNSUPPORTED[case]["config"]
    with pytest.raises(UserError) as caught:
        onboard.planned(load([]), onboard.described(config, "candidate", None))
    message = str(caught.value)
    assert says in message and message.startswith("onboard candidate: ") and "\n" not in message


def test_a_model_that_nobody_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Novel-0.2B-Instruct"
    folder.mkdir()
    hub = next(iter(PUBLISHED))
    (folder / "config.json").write_text(json.dumps({**PUBLISHED[hub], "num_hidden_layers": 8}))
    monkeypatch.setattr(onboard, "MODELS", tmp_path)
    monkeypatch.setattr(onboard, "ROOT", tmp_path)
    config = load([f"hf={folder}"])
    onboard.main(config)
    said = capsys.readouterr().out
    assert f"doit deploy model=novel-0.2b weights.path={folder}" in said
    assert "layers: 8" in (tmp_path / "novel-0.2b.yaml").read_text()
    onboard.main(config)
    assert "nothing to write" in capsys.readouterr().out
    text = (tmp_path / "novel-0.2b.yaml").read_text().replace("layers: 8", "layers: 9")
    (tmp_path / "novel-0.2b.yaml").write_text(text)
    with pytest.raises(UserError, match=r"says otherwise .*layers: 8"):
        onboard.main(config)


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "has no config.json"), ("{", "not valid JSON"), ("[]", "not a JSON object")],
)
def test_a_config_that_cannot_be_read(content: str | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=says):
        onboard.fetch(str(tmp_path))
    with pytest.raises(UserError, match="neither ORG/NAME nor a folder"):
        onboard.fetch(str(tmp_path / "absent"))
