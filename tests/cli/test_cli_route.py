"""``qreward route`` and what ``client.stats()`` says of the moment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from qreward import Endpoint, Limits, QRewardClient
from qreward.cli import main
from qreward.scheduler.limits.rate import MINUTE
from qreward.scheduler.source import Source, make_source, standing
from qreward.scheduler.task import Attempt, Task

CONFIG = """
{"endpoints": [
  {"base_url": "http://127.0.0.1:9/v1", "name": "a", "models": ["judge-*"], "api_key": "sk-hidden", "limits": {"rpm": 600}},
  {"base_url": "http://127.0.0.1:8/v1", "name": "b", "models": ["rm-*"], "weight": 2, "model_names": {"judge-7b": "J7"},
    "limits": {"max_concurrency": 8, "tpm": 9000}},
  {"base_url": "http://127.0.0.1:7/v1", "name": "c", "models": ["fixed"], "limits": {"adaptive": false}}],
 "routes": [{"pattern": "judge-7b", "endpoints": ["b", "a"], "strategy": "weighted_round_robin", "weights": {"a": 3}}]}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "fleet.json"
    path.write_text(CONFIG)
    return str(path)


def test_it_names_the_route_the_reason_and_each_endpoint_without_secrets(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", config, "judge-7b"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "'judge-7b' takes the route 'judge-7b': an exact name goes first; weighted_round_robin among 2",
        "  b  http://127.0.0.1:8/v1, as 'J7', weight 2, concurrency adapts up to 8, tpm 9000",
        "  a  http://127.0.0.1:9/v1, weight 3, concurrency adapts, rpm 600",
        "not used: 'judge-*', which is less specific",
    ]
    assert main(["route", config, "judge-70b"]) == 0
    assert "takes the route 'judge-*': the most specific pattern that matches; expected_finish among 1" in capsys.readouterr().out
    assert main(["route", config, "fixed"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "  c  http://127.0.0.1:7/v1, concurrency fixed at 64"
    assert main(["route", config, "gpt-5"]) == 2
    assert "no route matches the model 'gpt-5'; there are routes for " in capsys.readouterr().err


def busy(source: Source, count: int, now: float = 0.0) -> None:
    for _ in range(count):
        source.sent(now, Attempt(Task(None, None, 5, None, None, 0), source, now))  # type: ignore[arg-type]


def test_an_endpoint_says_what_keeps_it_from_being_asked_and_for_how_long() -> None:
    source = make_source("a", Random(0), Limits(max_concurrency=2, rpm=1))
    assert standing(0.0, source) == ("ready", 0.0, "ready")
    busy(source, 1)
    assert standing(0.0, source) == ("limit of 1 requests a minute", MINUTE, "rate_limit")
    busy(source, 1, now=5.0)
    assert standing(70.0, source) == ("window full", float("inf"), "concurrency_limit")
    source.cooldown.rejected(70.0, 70.0, 7.0)
    assert standing(70.0, source) == ("it turned requests away", 7.0, "cooldown")
    source.health.eject(70.0, 30.0)
    assert standing(71.0, source) == ("out of service after failures", 29.0, "out_of_service")
    source.health.mark_unhealthy()
    assert standing(71.0, source) == ("marked unhealthy", float("inf"), "marked_unhealthy")
    assert source.window.reason == "start"


def test_stats_tell_where_each_endpoint_stands() -> None:
    client = QRewardClient([Endpoint("http://127.0.0.1:9/v1", name="a", limits=Limits(max_concurrency=3, adaptive=False))])
    client.mark_unhealthy("a")
    state = client.stats()["a"].state
    assert state is not None
    assert (state.in_flight, state.window, state.why_window) == (0, 3, "fixed")
    assert (state.obstacle, state.ready_in) == ("marked unhealthy", None)
