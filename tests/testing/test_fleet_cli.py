"""``qreward fleet``: lines of JSON, and an end by signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fleet_tools import user

from qreward.cli import main
from qreward.errors import ConfigError
from qreward.testing import echo_of

PAGE = f"qreward fleet: see {ConfigError('').help_url}\n"
SPEC = {"endpoints": [{"name": "a", "models": ["judge-*"], "api_key": "hush-hush"}, {"name": "b"}]}


@contextmanager
def running(spec: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-m", "qreward", "fleet", str(spec)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_serves_until_a_signal_and_then_says_what_it_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "fleet.json"
    spec.write_text(json.dumps(SPEC))
    for end in (signal.SIGINT, signal.SIGTERM):
        with running(spec) as process:
            assert process.stdout is not None
            ready = {each["name"]: each for each in json.loads(process.stdout.readline())["endpoints"]}
            assert ready["a"]["models"] == ["judge-*"]
            body = json.dumps({"model": "m", "messages": user("hi")}).encode()
            with urllib.request.urlopen(ready["b"]["base_url"] + "/chat/completions", body, timeout=30) as response:
                assert json.load(response)["choices"][0]["message"]["content"] == echo_of(user("hi"))
            port = int(ready["a"]["base_url"].rsplit(":", 1)[1].removesuffix("/v1"))
            complaint = complaint_about({"name": "a", "port": port}, tmp_path, capsys)
            assert complaint.startswith(f": endpoint 'a' cannot listen on port {port}: ")
            assert complaint.endswith(f"; set another port, or 0 for any\n{PAGE}")
            process.send_signal(end)
            out, err = process.communicate(timeout=30)
            seen = {each["name"]: each for each in json.loads(out)["seen"]}
            assert (process.returncode, seen["a"]["requests"], seen["b"]["answered"]) == (0, 0, 1)
            assert err == "Ctrl-C ends it.\n"
            assert "hush" not in out + err


def complaint_about(endpoint: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says of a spec with this endpoint, after the name of the file; its status must be 2."""
    spec = folder / "wrong.json"
    spec.write_text(json.dumps({"endpoints": [endpoint]}))
    assert main(["fleet", str(spec)]) == 2
    return capsys.readouterr().err.removeprefix(f"qreward fleet: {spec}")


def test_a_bad_spec_and_a_responder_that_is_not_there_are_told_with_their_page_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    misspelt = ": endpoints.0 ('a'): unknown setting 'max_concurency'; did you mean 'max_concurrency'?\n" + PAGE
    assert complaint_about({"name": "a", "max_concurency": 1}, tmp_path, capsys) == misspelt
    missing = ": endpoint 'a': responder 'json:dumb': 'json' has no 'dumb'; did you mean 'dump'?\n" + PAGE
    assert complaint_about({"name": "a", "responder": "json:dumb"}, tmp_path, capsys) == missing
