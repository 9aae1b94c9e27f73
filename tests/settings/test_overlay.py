"""Limits that an operator keeps: they stand in a file beside the configuration, and are read after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qreward import ConfigError, ConfigWatcher, QRewardClient
from qreward.settings.client import keep_limits, load_config

CONFIG = {
    "endpoints": [
        {"base_url": "http://gpu-0:8000/v1", "name": "gpu-0", "limits": {"max_concurrency": 16, "rpm": 60}},
        {"base_url": "http://gpu-1:8000/v1", "api_key": "${GPU_KEY}"},
    ]
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPU_KEY", "planted-secret")
    path = tmp_path / "qreward.json"
    path.write_text(json.dumps(CONFIG))
    return path


def limits_of(file: Path) -> dict[str, tuple[int | None, float | None]]:
    return {each.name: (each.limits.max_concurrency, each.limits.rpm) for each in load_config(file).endpoints}


def test_kept_limits_replace_those_of_the_file_and_no_others(file: Path) -> None:
    assert keep_limits(file, "gpu-0", {"max_concurrency": 4}, "too hot") == Path(f"{file}.overlay.json")
    keep_limits(str(file), "gpu-0", {"rpm": None}, "no meter")
    keep_limits(file, "gpu-1:8000", {"max_concurrency": 2}, "")
    assert limits_of(file) == {"gpu-0": (4, None), "gpu-1:8000": (2, None)}
    written = Path(f"{file}.overlay.json").read_text()
    assert json.loads(written)["reasons"] == {"gpu-0": "no meter", "gpu-1:8000": ""}
    assert "planted-secret" not in written
    assert json.loads(file.read_text()) == CONFIG


def test_what_cannot_be_kept_or_read_is_an_error_that_names_the_place(file: Path) -> None:
    with pytest.raises(ConfigError, match="there is no endpoint 'gpu-9'"):
        keep_limits(file, "gpu-9", {"rpm": 1}, "")
    with pytest.raises(ConfigError, match=r"overlay\.json: 'gpu-0': max_concurrency"):
        keep_limits(file, "gpu-0", {"max_concurrency": 0}, "")
    overlay = Path(f"{file}.overlay.json")
    assert not overlay.exists(), "a refused limit is not written"
    for text in ("{", "[]", '{"limits": {"gpu-0": 3}}', '{"limits": {"gpu-0": {"rmp": 3}}}'):
        overlay.write_text(text)
        with pytest.raises(ConfigError, match=r"overlay\.json"):
            load_config(file)
    overlay.write_text('{"limits": {"gone": {"rpm": 3}}}')
    assert limits_of(file)["gpu-0"] == (16, 60), "an endpoint that the file no longer has is left out"


def test_a_watcher_of_the_file_applies_what_is_kept(file: Path) -> None:
    client = QRewardClient.from_config(file)
    watcher = ConfigWatcher(client, file=file)
    watcher.poll_once()
    keep_limits(file, "gpu-0", {"max_concurrency": 4}, "")
    assert watcher.poll_once()
    assert client.config.endpoints[0].limits.max_concurrency == 4
