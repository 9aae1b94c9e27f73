"""Whose answers the cache gives back: those of the weights that answer now, of the same namespace, and of a file it can read."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from judge_tools import MODEL, JudgeWire, Sent, answer, client_of, endpoint, score

from qreward.codecs.base import WireRequest
from qreward.judge import Judge
from qreward.judge.cache import Cache, CacheEntry
from qreward.judge.codec import JUDGE, ModelReply, fingerprint_of
from qreward.scheduler.outcome import Answer


def item(number: int) -> tuple[str, str]:
    return "q", f"answer {number}"


def by(number: float, **members: Any) -> Any:
    """An answer of a server that says something of itself."""
    document = json.loads(answer(score(number))) | members
    return Answer(JUDGE.decode(json.dumps(document).encode(), WireRequest(JUDGE, MODEL, [], {}, None)), 10, 5)


class Fleet:
    """Endpoints by name; what each says of itself, and scores, may be changed."""

    def __init__(self, **endpoints: Any) -> None:
        self.answers = endpoints
        self.wire = JudgeWire(self._answer)

    async def _answer(self, sent: Sent) -> Any:
        return self.answers[sent.endpoint]

    @property
    def sent(self) -> int:
        return len(self.wire.sent)


def run(path: Path, fleet: Fleet, *numbers: int, **settings: Any) -> list[tuple[float, bool]]:
    """Score these items one after the other in a run of its own: the scores, and which were cached."""

    async def use() -> list[tuple[float, bool]]:
        client = client_of(fleet.wire, *(endpoint(name, slots=8) for name in fleet.answers))
        async with client, Judge(client, **{"model": MODEL, "cache": path, **settings}) as judge:
            verdicts = [await judge.score(*item(number)) for number in numbers]
        return [(verdict.score, verdict.cached) for verdict in verdicts]

    return asyncio.run(use())


def test_what_other_weights_answered_is_not_given_back_once_the_new_ones_are_seen(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"system_fingerprint": "fp_1"}, {"system_fingerprint": "fp_2"}),
        ({"model": "judge-v1"}, {"model": "judge-v2"}),
        ({"metadata": {"weight_version": "100"}}, {"metadata": {"weight_version": "200"}}),
        ({}, {"system_fingerprint": "fp_1"}),
    ]
    for number, (old, new) in enumerate(cases):
        path, fleet = tmp_path / f"cache {number}", Fleet(a=by(7, **old))
        assert run(path, fleet, 1, 2) == [(0.7, False), (0.7, False)]
        fleet.answers["a"] = by(2, **new)
        assert run(path, fleet, 3, 1, 2, 1) == [(0.2, False)] * 3 + [(0.2, True)], (old, new)
        assert run(path, fleet, 1, 2, 3) == [(0.2, True)] * 3, "in the next run as well"


def test_weights_that_come_back_have_their_answers_back(tmp_path: Path) -> None:
    one, two = by(7, system_fingerprint="fp_1"), by(2, system_fingerprint="fp_2")
    fleet = Fleet(a=one)
    run(tmp_path / "cache", fleet, 1)
    fleet.answers["a"] = two
    run(tmp_path / "cache", fleet, 2)
    fleet.answers["a"] = one
    assert run(tmp_path / "cache", fleet, 3, 1, 2) == [(0.7, False), (0.7, True), (0.7, False)]


def test_an_answer_that_could_not_be_read_shows_the_new_weights_as_well(tmp_path: Path) -> None:
    fleet = Fleet(a=by(7, system_fingerprint="fp_1"))
    run(tmp_path / "cache", fleet, 1)
    unread = json.loads(answer("?")) | {"system_fingerprint": "fp_2"}
    fleet.answers["a"] = Answer(JUDGE.decode(json.dumps(unread).encode(), WireRequest(JUDGE, MODEL, [], {}, None)), 10, 5)
    with pytest.raises(Exception, match="no verdict could be read"):
        run(tmp_path / "cache", fleet, 2, reasks=0)
    fleet.answers["a"] = by(2, system_fingerprint="fp_2")
    assert run(tmp_path / "cache", fleet, 1) == [(0.2, False)]


def test_endpoints_that_differ_for_good_keep_all_of_their_answers(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")

    async def kept() -> list[str | None]:
        await asyncio.to_thread(cache.close)
        return [None if heard is None else heard.text for heard in await cache.look([(b"a", "m"), (b"b", "m")])]

    def sees(name: str, fingerprint: str, key: bytes | None = None) -> None:
        cache.keep(CacheEntry("m", name, ModelReply(f"by {name} {fingerprint}", fingerprint=fingerprint), key))

    async def test() -> None:
        sees("a", "1", b"a")
        sees("b", "2", b"b")
        sees("a", "1")
        assert await kept() == ["by a 1", "by b 2"]
        sees("b", "2")
        assert await kept() == ["by a 1", "by b 2"]
        sees("a", "3")  # new weights on one of them: what the other has is not known before it answers
        assert await kept() == [None, None]
        sees("b", "2")
        assert await kept() == [None, "by b 2"]
        sees("c", "4")  # one more endpoint, or one in the place of b
        assert await kept() == [None, None]

    asyncio.run(test())
    cache.close()


def test_models_of_one_judge_have_weights_of_their_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")

    async def test() -> list[ModelReply | None]:
        cache.keep(CacheEntry("m", "a", ModelReply("one", fingerprint="1"), b"m"))
        cache.keep(CacheEntry("n", "a", ModelReply("two", fingerprint="2"), b"n"))
        return await cache.look([(b"m", "m"), (b"n", "n")])

    assert [heard and heard.text for heard in asyncio.run(test())] == ["one", "two"]
    cache.close()


def test_a_namespace_finds_only_its_own(tmp_path: Path) -> None:
    path, fleet = tmp_path / "cache", Fleet(a=by(7))
    run(path, fleet, 1)
    fleet.answers["a"] = by(2)
    assert run(path, fleet, 1, cache_namespace="step 200") == [(0.2, False)]
    assert run(path, fleet, 1, cache_namespace="step 200") == [(0.2, True)]
    assert run(path, fleet, 1) == [(0.7, True)]


def test_what_servers_say_oddly_of_themselves_is_no_obstacle() -> None:
    odd = [None, 1, 1.5, [], {}, {"weight_version": None}, {"weight_version": {"x": 1}}, "\ud800"]
    texts = [fingerprint_of(one, other, third) for one in odd for other in odd for third in odd]
    assert all(text.encode() for text in texts)


def old_file(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE answers (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, text BLOB NOT NULL, finished INTEGER)")
        file.execute("INSERT INTO answers (key, text, finished) VALUES (?, ?, 1)", (b"k" * 16, b"Score: 1"))
    file.close()


def test_a_file_of_the_earlier_format_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    old_file(path)
    fleet = Fleet(a=by(7))
    assert run(path, fleet, 1, 1) == [(0.7, False), (0.7, True)]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (1,)
        assert file.execute("PRAGMA user_version").fetchone() == (2,)
    file.close()


@pytest.mark.parametrize("statements", [["PRAGMA user_version=3"], ["CREATE TABLE answers (question TEXT)"]])
def test_a_file_of_a_later_format_or_of_another_program_is_logged_and_left_as_it_is(
    statements: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache"
    with sqlite3.connect(path) as file:
        for statement in statements:
            file.execute(statement)
    file.close()
    with caplog.at_level(logging.WARNING, logger="qreward"):
        assert run(path, Fleet(a=by(7)), 1, 1) == [(0.7, False), (0.7, False)]
    assert "give another path" in caplog.text
    with sqlite3.connect(path) as file:
        tables = file.execute("SELECT sql FROM sqlite_master").fetchall()
    file.close()
    assert tables == [(statement,) for statement in statements if statement.startswith("CREATE")]
