"""Answers kept in a file: found again, never a failure, never the reason for one, and only those of the weights that answer now."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from judge_tools import (
    MODEL,
    QUESTION,
    JudgeBackend,
    Sent,
    always,
    answer,
    broken,
    client_of,
    endpoint,
    in_turn,
    leftovers,
    number_of,
    prefers,
    score,
)

from qreward import QRewardClient
from qreward.codecs.base import WireRequest
from qreward.errors import InvalidResponse
from qreward.judge import Judge
from qreward.judge.cache import Cache, CacheEntry
from qreward.judge.calls import JUDGE, fingerprint_of
from qreward.judge.parsing import ModelReply
from qreward.results import BatchInterrupted
from qreward.scheduler.outcome import Answer


def cached(path: Path, backend: JudgeBackend, use: Callable[[Judge], Coroutine[Any, Any, Any]], *endpoints: Any, **settings: Any) -> Any:
    """Run one use of a judge with a cache, in real time, for the cache has a thread."""

    async def run() -> Any:
        async with client_of(backend, *endpoints) as client, Judge(client, **{"model": MODEL, "cache": path, **settings}) as judge:
            outcome = await use(judge)
            assert leftovers(client, judge) == {}
            return outcome

    return asyncio.run(run())


def judged(path: Path, backend: JudgeBackend, **settings: Any) -> Any:
    return cached(path, backend, lambda judge: judge.score(*QUESTION), **settings)


def quick(text: str) -> JudgeBackend:
    return JudgeBackend(always(text, seconds=0.0))


def items(count: int) -> list[tuple[str, str]]:
    return [("q", f"a{number}") for number in range(count)]


def test_what_was_judged_is_found_at_once_and_in_the_next_run(tmp_path: Path) -> None:
    async def twice(judge: Judge) -> Any:
        return await judge.score(*QUESTION), await judge.score(*QUESTION)

    one, at_once = cached(tmp_path / "cache", quick(score(7)), twice)
    other = judged(tmp_path / "cache", backend := quick(score(1)))
    assert [(each.score, each.cached) for each in (one, at_once, other)] == [(0.7, False), (0.7, True), (0.7, True)]
    assert other.usage is None
    assert other.votes[0].verdict == one.votes[0].verdict
    assert backend.sent == []


def test_what_differs_in_anything_that_is_sent_is_asked_and_what_is_made_of_the_answer_may_differ(tmp_path: Path) -> None:
    backend, path = quick(score(7)), tmp_path / "cache"
    sent: list[dict[str, Any]] = [
        {},
        {"temperature": 1},
        {"scale": (0, 9)},
        {"model": "other"},
        {"prompt": "{prompt} {response}"},
        {"system": "x"},
        {"extra_body": {"k": 1}},
        {"finish_reasons": ["length"]},  # it may have kept answers that are not whole for other judges
    ]
    for number, settings in enumerate(sent, start=1):
        judged(path, backend, **settings)
        assert len(backend.sent) == number, settings
    assert judged(path, backend, range=(-1, 1), reasks=3).score == pytest.approx(0.4)
    assert judged(path, backend, extra_headers={"x-secret": "hunter22"}).cached
    assert b"hunter22" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert len(backend.sent) == len(sent)
    verdict = judged(path, quick(score(2)), score=lambda said: None if said.score > 5 else said.score)  # it refuses what is kept
    assert (verdict.score, verdict.cached) == (2.0, False)


def test_failures_are_never_kept(tmp_path: Path) -> None:
    with pytest.raises(InvalidResponse):
        judged(tmp_path / "cache", quick("?"), reasks=0)
    assert judged(tmp_path / "cache", JudgeBackend(in_turn(broken(), score(7), seconds=0.0))).score == 0.7


def test_each_sample_is_kept_for_itself(tmp_path: Path) -> None:
    judged(tmp_path / "cache", quick(score(7)))
    verdict = judged(tmp_path / "cache", second := quick(score(7)), samples=3, settle="mean")
    assert (len(second.sent), verdict.cached) == (2, False)
    assert judged(tmp_path / "cache", third := quick(score(1)), samples=3).cached
    assert third.sent == []


def test_pairs_are_kept_in_both_orders(tmp_path: Path) -> None:
    backend = quick(prefers("A"))
    for _ in range(2):
        comparison = cached(tmp_path / "cache", backend, lambda judge: judge.compare("q", "a", "b"))
    assert (len(backend.sent), comparison.preference, comparison.cached) == (2, "tie", True)


def test_a_batch_asks_only_what_is_not_there_and_keeps_its_order(tmp_path: Path) -> None:
    async def script(sent: Sent) -> str:
        return score(number_of(sent) % 10)

    first, second = JudgeBackend(script), JudgeBackend(script)
    cached(tmp_path / "cache", first, lambda judge: judge.batch_score(items(150)))
    batch = cached(tmp_path / "cache", second, lambda judge: judge.batch_score([*items(200), ("q",), *items(3)]))  # type: ignore[list-item]
    assert [verdict.score if verdict else None for verdict in batch.values()] == [n % 10 / 10 for n in range(200)] + [None, 0.0, 0.1, 0.2]
    assert len(second.sent) == batch.stats.endpoints["a"].won == 50
    assert sum(verdict.cached for verdict in batch.values() if verdict) == 153
    assert (batch.stats.items, batch.stats.ok, batch.stats.failed) == (204, 203, 1)


def test_iterators_are_looked_up_as_they_come_and_closed_and_one_that_raises_ends_the_batch(tmp_path: Path) -> None:
    closed = []

    def given() -> Iterator[tuple[str, str]]:
        try:
            yield from items(100)
        finally:
            closed.append("sync")

    async def given_async() -> AsyncIterator[tuple[str, str]]:
        try:
            for item in items(100):
                yield item
        finally:
            closed.append("async")

    async def use(judge: Judge) -> list[int]:
        return [(await judge.batch_score(each)).stats.ok for each in (given(), given_async())]

    def faulty() -> Iterator[tuple[str, str]]:
        yield from items(170)
        raise LookupError("no such row")

    backend = quick(score(7))
    assert cached(tmp_path / "cache", backend, use) == [100, 100]
    assert (closed, len(backend.sent)) == (["sync", "async"], 100)
    with pytest.raises(BatchInterrupted) as caught:
        cached(tmp_path / "cache", backend, lambda judge: judge.batch_score(faulty()))
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.results is not None
    assert caught.value.results.stats.ok == 170


def execute(path: Path, *statements: str) -> list[Any]:
    """Run statements on a database, and return the rows of the last one."""
    with closing(sqlite3.connect(path)) as file, file:
        return [file.execute(statement).fetchall() for statement in statements][-1]


def damaged(path: Path) -> None:
    cached(path, quick(score(7)), lambda judge: judge.batch_score(items(500)))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))


UNUSABLE: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "in no folder": lambda path: path.parent.rmdir(),
    "notes": lambda path: path.write_bytes(b"these are somebody's notes\n" * 100),
    "damaged": damaged,
}
OF_OTHERS = {
    "of a later format": ("PRAGMA user_version=3", []),
    "of another program": ("CREATE TABLE answers (question TEXT)", [("answers",)]),
    "with other tables": ("CREATE TABLE notes (text TEXT)", [("notes",)]),
}


def test_a_file_that_cannot_be_used_is_logged_once_left_as_it_is_and_judging_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(judge: Judge) -> int:
        assert (await judge.score(*QUESTION)).score == 0.7
        return (await judge.batch_score(items(20))).stats.ok

    for name in (*UNUSABLE, *OF_OTHERS):
        path = tmp_path / name / "cache"
        path.parent.mkdir()
        statement, tables = OF_OTHERS.get(name, ("", []))
        if statement:
            execute(path, statement)
        else:
            UNUSABLE[name](path)
        before = path.read_bytes() if path.is_file() and not statement else None
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="qreward"):
            assert cached(path, quick(score(7)), use) == 20, name
        (message,) = [record.getMessage() for record in caplog.records if "cache of verdicts" in record.getMessage()]
        assert ("give another path" in message) == bool(statement), message
        assert before is None or path.read_bytes() == before, name
        assert not statement or execute(path, "SELECT name FROM sqlite_master") == tables, name


def test_a_file_that_another_process_keeps_locked_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qreward.judge.cache.PATIENCE", 0.2)
    path = tmp_path / "cache"
    judged(path, quick(score(7)))

    async def use(judge: Judge) -> int:
        began = asyncio.get_running_loop().time()
        verdicts = await asyncio.gather(*(judge.score(*item) for item in items(10)))
        assert asyncio.get_running_loop().time() - began < 10 * 0.2
        return len(verdicts)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert cached(path, quick(score(7)), use) == 10
    assert execute(path, "SELECT count(*) FROM answers") == [(1,)]


def entry(number: int, text: str) -> CacheEntry:
    return CacheEntry("m", "a", ModelReply(text), bytes([number]))


def texts_in(cache: Cache, *keys: tuple[bytes, str]) -> list[str | None]:
    """The texts that are found after the cache was closed once."""

    async def run() -> Mapping[bytes, ModelReply]:
        await asyncio.to_thread(cache.close)
        return await cache.look_up(keys)

    found = asyncio.run(run())
    cache.close()
    return [found[key].text if key in found else None for key, _ in keys]


def test_any_text_is_kept_as_it_is_and_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    odd = ["", "\x00", "né \U0001f600", "\ud800 alone", "x" * 100_000]
    numbers = [str(number) for number in range(40)]
    for texts, most, wanted in ((odd, 100, odd), (numbers, 10, [None] * 30 + numbers[30:])):
        cache = Cache(tmp_path / str(most), most=most)
        for number, text in enumerate(texts):
            cache.keep(entry(number, text))
        assert texts_in(cache, *((bytes([number]), "m") for number in range(len(texts)))) == wanted


def test_a_judge_that_was_closed_may_be_used_again_and_one_that_is_not_used_makes_no_file(tmp_path: Path) -> None:
    async def run() -> list[bool]:
        async with client_of(quick(score(7))) as client:
            judge = Judge(client, model=MODEL, cache=tmp_path / "cache")
            cached_or_not = []
            for _ in range(2):
                cached_or_not.append((await judge.score(*QUESTION)).cached)
                await judge.aclose()
            return cached_or_not

    Judge(QRewardClient(["http://a/v1"]), model=MODEL, cache=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []
    assert asyncio.run(run()) == [False, True]


UNCLOSED = """
import asyncio, sys
sys.path.append("..")
from judge_tools import *
async def main():
    async with client_of(JudgeBackend(always(score(7), seconds=0.0))) as client:
        await Judge(client, model=MODEL, cache=sys.argv[1]).score("q", "a")
asyncio.run(main())
"""
CLOSED_AT_EXIT = """
import atexit, sys
from qreward import SyncQRewardClient
from qreward.judge import SyncJudge
client = SyncQRewardClient(["http://gpu-0.example/v1"])
judge = SyncJudge(client, model="m", cache=sys.argv[1])
atexit.register(client.close)
atexit.register(judge.close)
"""
WRITER = """
import asyncio, sys
from qreward.judge.cache import Cache, CacheEntry
from qreward.judge.parsing import ModelReply
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
async def main():
    cache = Cache(path)
    for number in range(count):
        cache.keep(CacheEntry("m", name, ModelReply(f"{name}-{number} " * 50), f"{name}-{number}".encode()))
        if number % 50 == 49:
            await asyncio.sleep(0.001)
            print(number + 1, flush=True)
    await asyncio.to_thread(cache.close)
asyncio.run(main())
"""


def process(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_judge_that_is_not_closed_writes_at_the_end_of_the_process_and_says_nothing(tmp_path: Path) -> None:
    done = process(UNCLOSED, tmp_path / "cache")
    assert (*done.communicate(), done.returncode) == ("", "", 0)
    assert execute(tmp_path / "cache", "SELECT count(*) FROM answers") == [(1,)]


def test_a_blocking_judge_can_be_closed_by_an_exit_handler_of_the_program(tmp_path: Path) -> None:
    done = process(CLOSED_AT_EXIT, tmp_path / "cache")
    assert (*done.communicate(), done.returncode) == ("", "", 0)


def whole(path: Path, name: str, count: int) -> int:
    """How many of the answers of a writer can be read, each of which must be whole."""
    keys = [f"{name}-{number}" for number in range(count)]
    found = texts_in(Cache(path), *((key.encode(), "m") for key in keys))
    assert all(text is None or text == f"{key} " * 50 for key, text in zip(keys, found, strict=True))
    return sum(text is not None for text in found)


def test_processes_that_write_at_the_same_time_lose_nothing_though_one_of_them_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with process(WRITER, path, "dead", 1_000_000) as dead:
        others = [process(WRITER, path, name, 200) for name in ("a", "b")]
        assert dead.stdout is not None
        while not whole(path, "dead", 50):
            assert dead.stdout.readline()
        os.kill(dead.pid, signal.SIGKILL)
    for other in others:
        other.communicate()
        assert other.returncode == 0
    assert whole(path, "dead", 1000) > 0
    assert [whole(path, name, 200) for name in ("a", "b")] == [200, 200]
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


def by(said: float | str, **members: Any) -> Any:
    """An answer of a server that says something of itself."""
    document = json.loads(answer(said if isinstance(said, str) else score(said))) | members
    return Answer(JUDGE.decode(json.dumps(document).encode(), WireRequest(JUDGE, MODEL, [], {}, None)), 10, 5)


class Fleet:
    """One endpoint; what it answers may be changed. Calling it scores items one after the other, in a run of its own."""

    def __init__(self, path: Path, now: Any) -> None:
        self.path, self.now = path, now

    async def _answer(self, _sent: Sent) -> Any:
        return self.now

    def __call__(self, *numbers: int, **settings: Any) -> list[tuple[float, bool]]:
        async def use(judge: Judge) -> list[tuple[float, bool]]:
            verdicts = [await judge.score("q", f"answer {number}") for number in numbers]
            return [(verdict.score, verdict.cached) for verdict in verdicts]

        found: list[tuple[float, bool]] = cached(self.path, JudgeBackend(self._answer), use, endpoint("a", slots=8), **settings)
        return found


def test_what_other_weights_answered_is_not_given_back_once_the_new_ones_are_seen(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"system_fingerprint": "fp_1"}, {"system_fingerprint": "fp_2"}),
        ({"model": "judge-v1"}, {"model": "judge-v2"}),
        ({"metadata": {"weight_version": "100"}}, {"metadata": {"weight_version": "200"}}),
        ({}, {"system_fingerprint": "fp_1"}),
    ]
    for number, (old, new) in enumerate(cases):
        run = Fleet(tmp_path / f"cache {number}", by(7, **old))
        assert run(1, 2) == [(0.7, False), (0.7, False)]
        run.now = by(2, **new)
        assert run(3, 1, 2, 1) == [(0.2, False)] * 3 + [(0.2, True)], (old, new)
        assert run(1, 2, 3) == [(0.2, True)] * 3, "in the next run as well"
        run.now = by(7, **old)
        assert run(4, 1, 3) == [(0.7, False), (0.7, True), (0.7, False)], "weights that come back have their answers back"


def test_an_unreadable_answer_shows_new_weights_as_well_and_a_namespace_finds_only_its_own(tmp_path: Path) -> None:
    run = Fleet(tmp_path / "cache", by(7, system_fingerprint="fp_1"))
    run(1)
    run.now = by("?", system_fingerprint="fp_2")
    with pytest.raises(InvalidResponse):
        run(2, reasks=0)
    run.now = by(2, system_fingerprint="fp_2")
    assert run(1) == [(0.2, False)]
    run.now = by(4, system_fingerprint="fp_2")
    assert [*run(1, 1, cache_namespace="step 200"), *run(1)] == [(0.4, False), (0.4, True), (0.2, True)]


def test_endpoints_that_differ_for_good_keep_all_of_their_answers(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")

    def sees(name: str, fingerprint: str, key: bytes | None = None) -> list[str | None]:
        cache.keep(CacheEntry("m", name, ModelReply(f"by {name} {fingerprint}", fingerprint=fingerprint), key))
        return texts_in(cache, (b"a", "m"), (b"b", "m"))

    sees("a", "1", b"a")
    assert sees("b", "2", b"b") == [None, "by b 2"]
    assert sees("a", "1") == sees("b", "2") == ["by a 1", "by b 2"]
    assert sees("a", "3") == [None, None], "new weights on one of them: what the other has is not known before it answers"
    assert sees("b", "2") == [None, "by b 2"]
    assert sees("c", "4") == [None, None], "one more endpoint, or one in the place of b"
    cache.keep(CacheEntry("n", "a", ModelReply("two", fingerprint="2"), b"n"))
    cache.keep(CacheEntry("m", "a", ModelReply("one", fingerprint="4"), b"m"))
    assert texts_in(cache, (b"m", "m"), (b"n", "n")) == ["one", "two"], "models have weights of their own"


def test_what_servers_say_oddly_of_themselves_is_no_obstacle() -> None:
    odd: list[Any] = [None, 1, 1.5, [], {}, {"weight_version": None}, {"weight_version": {"x": 1}}, "\ud800"]
    texts = [fingerprint_of(one, other, third) for one in odd for other in odd for third in odd]
    assert all(text.encode() for text in texts)


def test_a_closed_judge_has_no_thread_and_can_be_used_again(tmp_path: Path) -> None:
    def threads() -> int:
        return sum("judge-cache" in thread.name for thread in threading.enumerate())

    async def run() -> None:
        async with client_of(JudgeBackend(always(score(5)))) as client:
            judge = Judge(client, model=MODEL, cache=tmp_path / "answers.db")
            for cached_answers in (False, True):
                assert (await judge.score(*QUESTION)).cached is cached_answers
                assert threads() == 1
                await judge.aclose()
                assert threads() == 0

    asyncio.run(run())
