"""How judges are made, closed, pickled and forked, and their blocking view."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from judge_tools import MODEL, JudgeBackend, Sent, client_of
from pydantic import BaseModel, Field

from qreward import QRewardClient, SyncQRewardClient
from qreward.errors import ClientClosed, ConfigError
from qreward.judge import Judge, JudgeConfig, RewardModelScorer, ScoreVerdict, SyncJudge, make_scorer
from qreward.testing import FakeEndpoint, FakeFleet

JUDGES = [FakeEndpoint("a", responder="judge")]
RIGHT = ("What is 6 x 7?", "42")


class Endless(BaseModel):
    words: dict[str, Any]


class Limited(BaseModel):
    points: int = Field(ge=1, le=5)


def some_client() -> QRewardClient:
    return QRewardClient(["http://a.example/v1"])


async def used(config: Any, said: str) -> tuple[list[float], list[Sent]]:
    """The score of an item by a judge with these settings, if it has one, and what was sent."""

    async def script(_sent: Sent) -> str:
        return said

    backend = JudgeBackend(script)
    async with client_of(backend) as client:
        batch = await Judge.from_config(client, config).batch_score([("p", "r", "f")])
    return [verdict.score for verdict in batch.values() if verdict], backend.sent


async def test_settings_make_a_judge_with_all_that_they_say() -> None:
    settings: dict[str, Any] = {
        "model": ["a", "b"],
        "prompt": "{prompt}: {response} / {reference}",
        "system": "Be strict.",
        "verdict": "yes_no",
        "range": (-1, 1),
        "samples": 2,
        "settle": "mean",
        "reasks": 4,
        "response_format": "none",
        "params": {"temperature": 0.5, "seed": 3},
    }
    for config in (JudgeConfig(**settings), settings):
        scores, sent = await used(config, '{"verdict": "no"}')
        assert scores == [-1.0]
        assert [(each.model, each.params) for each in sent] == [
            (model, {"temperature": 0.5, "seed": seed}) for model in ("a", "b") for seed in (3, 4)
        ]
        assert sent[0].messages == [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "p: r / f"}]
    scores, sent = await used({**settings, "samples": 1, "model": MODEL}, "?")
    assert (scores, len(sent)) == ([], 5)
    with pytest.raises(ConfigError, match="samples"):
        Judge.from_config(some_client(), {"model": "judge-7b", "sampels": 2})


async def test_a_verdict_is_named_by_its_place_and_its_own_scale_counts_where_no_other_is_set() -> None:
    for settings, score in (({}, 0.25), ({"scale": (1, 3)}, 0.5)):
        assert (await used({"model": "m", "verdict": f"{__name__}:Limited", **settings}, '{"points": 2}'))[0] == [score]
    for wrong in ("nowhere.at_all:Limited", f"{__name__}:Missing", "json:loads", "graded", f"{__name__}:Endless"):
        with pytest.raises(ConfigError):
            Judge.from_config(some_client(), {"model": "m", "verdict": wrong})


def test_a_verdict_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "verdicts_here.py").write_text("from pydantic import BaseModel\nclass Mine(BaseModel):\n    score: float\n")
    assert Judge.from_config(some_client(), {"model": "m", "verdict": "verdicts_here:Mine"})._given["verdict"].__name__ == "Mine"
    for name, said in {"verdicts_here:Mime": "did you mean 'Mine'?", "yesno": "did you mean 'yes_no'?"}.items():
        with pytest.raises(ConfigError, match=re.escape(said)):
            Judge.from_config(some_client(), {"model": "m", "verdict": name})


def test_a_scorer_is_made_of_settings_or_of_a_name_and_a_judge_over_a_client_that_awaits() -> None:
    assert isinstance(make_scorer(some_client(), JudgeConfig(model="m")), Judge)  # type: ignore[arg-type]
    assert isinstance(make_scorer(some_client(), "rm-7b"), RewardModelScorer)
    for wrong in (None, "", 7):
        with pytest.raises(ConfigError):
            make_scorer(some_client(), wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="SyncJudge"):
        Judge(SyncQRewardClient(["http://a.example/v1"]), model="m")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="client must be a QRewardClient, or for SyncJudge a SyncQRewardClient, not a str"):
        SyncJudge("http://a.example/v1", model="m")  # type: ignore[arg-type]


async def test_closing_a_scorer_closes_its_client_only_if_it_owns_that() -> None:
    by_name, by_settings = partial(make_scorer, scorer="rm-7b"), partial(make_scorer, scorer=JudgeConfig(model="m"))  # type: ignore[arg-type]
    for make, (given, owned) in product(
        (partial(Judge, model="m"), partial(RewardModelScorer, model="m"), by_name, by_settings),
        (({"owns_client": True}, True), ({"owns_client": False}, False), ({}, None)),
    ):
        client = some_client()
        await make(client, **given).aclose()  # type: ignore[operator]
        closes = make in (by_name, by_settings) if owned is None else owned
        assert client._runtime.engine.closed is closes, (make, given)
        await client.aclose()


def worth(verdict: ScoreVerdict) -> float:
    return verdict.score * 100


def test_judges_and_reward_models_pickle_by_their_settings(tmp_path: Path) -> None:
    settings = {"scale": (0, 1), "score": worth, "samples": 2, "settle": "mean", "cache": tmp_path / "cache", "seed": 5}

    async def run() -> None:
        async with FakeFleet(JUDGES) as fleet:
            client = QRewardClient(fleet.endpoints)
            judge = Judge(client, model=("m", "n"), owns_client=True, **settings)  # type: ignore[arg-type]
            first = await judge.score(*RIGHT, reference="42")
            revived = pickle.loads(pickle.dumps(judge))
            await judge.aclose()  # its answers are in the file then
            again = await revived.score(*RIGHT, reference="42")
            assert (first.score, again.score, again.cached) == (100.0, 100.0, True)
            config: Any = make_scorer(client, JudgeConfig(model="m", verdict="yes_no", samples=3, params={"temperature": 0}))  # type: ignore[arg-type]
            assert pickle.loads(pickle.dumps(config))._config == config._config
            scorer = pickle.loads(pickle.dumps(RewardModelScorer(client, "rm", range=(0, 1), owns_client=True, user="u")))
            assert (scorer._model, scorer._range, scorer._owns_client, scorer._params) == ("rm", (0.0, 1.0), True, {"user": "u"})
            await revived.aclose()
            await scorer.aclose()

    asyncio.run(run())


def test_no_secret_is_in_the_words_about_a_judge() -> None:
    judge = Judge(some_client(), model="m", extra_headers={"x-key": "hunter22"})
    config = JudgeConfig(model="m", params={"extra_headers": {"x-key": "hunter22"}})  # type: ignore[arg-type]
    for shown in (repr(judge), str(judge), repr(config), repr(judge._config), repr(make_scorer(some_client(), config))):
        assert "hunter22" not in shown


def first_is_better(messages: list[Any]) -> str:
    text = messages[-1]["content"]
    return '{"preferred": "A"}' if text.index("good") < text.index("bad") else '{"preferred": "B"}'


def test_a_blocking_judge_judges_one_many_and_pairs_over_either_client() -> None:
    fleet = FakeFleet([FakeEndpoint("a", responder="judge"), FakeEndpoint("p", models=["pairs"], responder=f"{__name__}:first_is_better")])
    with fleet, SyncQRewardClient(fleet.endpoints) as client, SyncJudge(client, model="m", scale=(0, 1)) as judge:
        assert judge.score(*RIGHT, reference="42").score == 1.0
        told: list[Any] = []
        batch = judge.batch_score([(*RIGHT, "42"), (*RIGHT, "43")], on_result=told.append)
        assert [verdict.score for verdict in batch.values() if verdict] == [1.0, 0.0]
        assert len(told) == 2
        pairs = SyncJudge(client, model="pairs")
        assert pairs.compare("q", "good", "bad").preference == "first"
        assert [each.preference for each in pairs.batch_compare([("q", "bad", "good")]).values() if each] == ["second"]
        made = SyncJudge.from_config(QRewardClient(fleet.endpoints), {"model": "m", "scale": (0, 1)}, owns_client=True)
        with pickle.loads(pickle.dumps(made)) as revived:
            assert repr(revived) == repr(made) == "<SyncJudge m>"
            assert revived.score(*RIGHT, reference="42").score == 1.0
        made.close()
        with pytest.raises(ClientClosed):
            made.score(*RIGHT)


FORKING = """
import asyncio, os, sys
from qreward import QRewardClient
from qreward.judge import Judge, SyncJudge

client = QRewardClient([sys.argv[1]])
judge = Judge(client, model="m", scale=(0, 1), cache=sys.argv[2], samples=2)
blocking = SyncJudge(client, model="m", scale=(0, 1))

async def judged(word):
    batch = await judge.batch_score([(word, str(number), str(number)) for number in range(20)])
    assert batch.values() and not batch.errors, batch.errors
    return len(batch)

def in_child():
    asyncio.events._set_running_loop(None)  # as multiprocessing does; the parent's loop is not ours
    done = asyncio.run(judged("child"))
    assert blocking.score("q", "1", reference="1").score == 1.0
    asyncio.run(judge.aclose())
    print("child", done, flush=True)
    os._exit(0)

async def parent():
    under_way = asyncio.ensure_future(judged("parent"))
    await asyncio.sleep(0.02)
    child = os.fork()
    if not child:
        in_child()
    done = await under_way
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0, status
    print("parent", done, flush=True)
    await judge.aclose()
    await client.aclose()

assert blocking.score("q", "1", reference="1").score == 1.0
asyncio.run(parent())
"""


def test_a_judge_with_work_under_way_survives_a_fork_on_both_sides(tmp_path: Path) -> None:
    with FakeFleet([FakeEndpoint("a", responder="judge", latency={"base": 0.05})]) as fleet:
        command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", FORKING]
        done = subprocess.run(
            [*command, str(fleet.endpoints[0].base_url), str(tmp_path / "cache")], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split("\n")) == ["", "child 20", "parent 20"]
