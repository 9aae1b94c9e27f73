"""Answers kept in a file: found again, never a failure, never the reason for one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_tools import MODEL, JudgeWire, Sent, always, broken, client_of, in_turn, leftovers, prefers, score

from qreward import QRewardClient
from qreward.errors import InvalidResponse
from qreward.judge import Judge
from qreward.judge.cache import Cache, CacheEntry
from qreward.judge.codec import ModelReply
from qreward.results import BatchInterrupted

ASKED = ("What is 6 x 7?", "42")
Use = Callable[[Judge], Coroutine[Any, Any, Any]]


def cached(path: Path, wire: JudgeWire, use: Use, **settings: Any) -> Any:
    """Run one use of a judge with a cache, in real time, for the cache has a thread."""

    async def run() -> Any:
        async with client_of(wire) as client, Judge(client, **{"model": MODEL, "cache": path, **settings}) as judge:
            outcome = await use(judge)
            assert leftovers(client, judge) == {}
            return outcome

    return asyncio.run(run())


def quick(text: str) -> Any:
    return always(text, seconds=0.0)


def test_what_was_judged_in_one_run_is_not_asked_in_the_next(tmp_path: Path) -> None:
    first, second = JudgeWire(quick(score(7))), JudgeWire(quick(score(1)))
    one = cached(tmp_path / "cache", first, lambda judge: judge.score(*ASKED))
    other = cached(tmp_path / "cache", second, lambda judge: judge.score(*ASKED))
    assert (one.score, one.cached) == (0.7, False)
    assert (other.score, other.cached, other.usage) == (0.7, True, None)
    assert other.votes[0].verdict == one.votes[0].verdict
    assert second.sent == []


def test_it_is_found_at_once_also_before_it_is_written(tmp_path: Path) -> None:
    wire = JudgeWire(quick(score(7)))

    async def use(judge: Judge) -> list[bool]:
        return [(await judge.score(*ASKED)).cached for _ in range(3)]

    assert cached(tmp_path / "cache", wire, use) == [False, True, True]


def test_what_differs_in_anything_that_is_sent_is_asked_and_what_is_made_of_the_answer_may_differ(tmp_path: Path) -> None:
    wire = JudgeWire(quick(score(7)))
    sent: list[dict[str, Any]] = [
        {},
        {"temperature": 1},
        {"scale": (0, 9)},
        {"model": "other"},
        {"prompt": "{prompt} {response}"},
        {"system": "x"},
        {"extra_body": {"k": 1}},
    ]
    for number, settings in enumerate(sent, start=1):
        cached(tmp_path / "cache", wire, lambda judge: judge.score(*ASKED), **settings)
        assert len(wire.sent) == number, settings
    other = cached(tmp_path / "cache", wire, lambda judge: judge.score(*ASKED), range=(-1, 1), reasks=3)
    assert other.score == pytest.approx(0.4)
    assert len(wire.sent) == len(sent)


def test_no_key_and_no_header_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cached(path, JudgeWire(quick(score(7))), lambda judge: judge.score(*ASKED), extra_headers={"x-secret": "hunter22"})
    cached(path, wire := JudgeWire(quick(score(7))), lambda judge: judge.score(*ASKED), extra_headers={"x-secret": "other"})
    assert wire.sent == []
    assert b"hunter22" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_failures_are_never_kept(tmp_path: Path) -> None:
    async def fails(judge: Judge) -> None:
        with pytest.raises(InvalidResponse):
            await judge.score(*ASKED)

    cached(tmp_path / "cache", JudgeWire(quick("?")), fails, reasks=0)
    wire = JudgeWire(in_turn(broken(), score(7), seconds=0.0))
    assert cached(tmp_path / "cache", wire, lambda judge: judge.score(*ASKED)).score == 0.7


def test_each_sample_is_kept_for_itself_and_those_that_settle_it_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    first = JudgeWire(quick(score(7)))
    cached(path, first, lambda judge: judge.score(*ASKED))
    second = JudgeWire(quick(score(7)))
    verdict = cached(path, second, lambda judge: judge.score(*ASKED), samples=3, settle="mean")
    assert len(second.sent) == 2
    assert not verdict.cached
    third = JudgeWire(quick(score(1)))
    assert cached(path, third, lambda judge: judge.score(*ASKED), samples=4).cached
    assert third.sent == []


def test_pairs_are_kept_in_both_orders(tmp_path: Path) -> None:
    wire = JudgeWire(quick(prefers("A")))
    for _ in range(2):
        comparison = cached(tmp_path / "cache", wire, lambda judge: judge.compare("q", "a", "b"))
    assert len(wire.sent) == 2
    assert (comparison.preference, comparison.cached) == ("tie", True)


def items(count: int) -> list[tuple[str, str]]:
    return [("q", f"a{number}") for number in range(count)]


def test_a_batch_asks_only_what_is_not_there_and_keeps_its_order(tmp_path: Path) -> None:
    async def script(sent: Sent) -> str:
        return score(int(sent.text.split("Candidate answer:\n```\na")[1].split("\n")[0]) % 10)

    first, second = JudgeWire(script), JudgeWire(script)
    cached(tmp_path / "cache", first, lambda judge: judge.batch_score(items(150)))
    batch = cached(tmp_path / "cache", second, lambda judge: judge.batch_score([*items(200), ("q",), *items(3)]))
    assert [verdict.score if verdict else None for verdict in batch.values()] == [n % 10 / 10 for n in range(200)] + [None, 0.0, 0.1, 0.2]
    assert len(second.sent) == 50
    assert sum(verdict.cached for verdict in batch.values() if verdict) == 153
    assert (batch.stats.items, batch.stats.ok, batch.stats.failed) == (204, 203, 1)
    assert batch.stats.endpoints["a"].won == 50


def test_an_iterator_and_an_async_iterator_are_looked_up_as_they_come_and_closed(tmp_path: Path) -> None:
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

    wire = JudgeWire(quick(score(7)))
    assert cached(tmp_path / "cache", wire, use) == [100, 100]
    assert closed == ["sync", "async"]
    assert len(wire.sent) == 100


def test_an_input_that_raises_ends_the_batch_after_what_it_gave_before(tmp_path: Path) -> None:
    def faulty() -> Iterator[tuple[str, str]]:
        yield from items(70)
        raise LookupError("no such row")

    async def use(judge: Judge) -> Any:
        with pytest.raises(BatchInterrupted) as caught:
            await judge.batch_score(faulty())
        return caught.value

    error = cached(tmp_path / "cache", JudgeWire(quick(score(7))), use)
    assert isinstance(error.__cause__, LookupError)
    assert error.results.stats.ok == 70


@pytest.mark.parametrize("trouble", ["a folder", "no folder", "no database", "damaged"])
def test_a_file_that_cannot_be_used_is_logged_once_and_judging_goes_on(
    trouble: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache"
    if trouble == "a folder":
        path.mkdir()
    elif trouble == "no folder":
        path = tmp_path / "none" / "cache"
    elif trouble == "no database":
        path.write_bytes(b"these are somebody's notes\n" * 100)
    else:
        cached(path, JudgeWire(quick(score(7))), lambda judge: judge.batch_score(items(500)))
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    wire = JudgeWire(quick(score(7)))

    async def use(judge: Judge) -> int:
        assert (await judge.score(*ASKED)).score == 0.7
        return (await judge.batch_score(items(20))).stats.ok

    with caplog.at_level(logging.WARNING, logger="qreward"):
        assert cached(path, wire, use) == 20
    assert len([record for record in caplog.records if "cache of verdicts" in record.getMessage()]) == 1
    if trouble == "no database":
        assert path.read_bytes().startswith(b"these are somebody's notes")


def kept(cache: Cache, texts: list[str]) -> list[str | None]:
    """What is found of these answers after they were kept and the cache was closed once."""

    async def run() -> list[ModelReply | None]:
        for number, text in enumerate(texts):
            cache.keep(CacheEntry("m", "a", ModelReply(text), bytes([number])))
        await asyncio.to_thread(cache.close)
        return await cache.look([(bytes([number]), "m") for number in range(len(texts))])

    found = asyncio.run(run())
    cache.close()
    return [heard and heard.text for heard in found]


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    texts = [str(number) for number in range(40)]
    assert kept(Cache(tmp_path / "cache", most=10), texts) == [None] * 30 + texts[30:]


def test_any_text_is_kept_as_it_is(tmp_path: Path) -> None:
    texts = ["", "\x00", "né \U0001f600", "\ud800 alone", "x" * 100_000]
    assert kept(Cache(tmp_path / "cache"), texts) == texts


def test_a_score_function_that_refuses_what_is_kept_has_it_asked_anew(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cached(path, JudgeWire(quick(score(7))), lambda judge: judge.score(*ASKED))
    wire = JudgeWire(quick(score(2)))
    verdict = cached(path, wire, lambda judge: judge.score(*ASKED), score=lambda said: None if said.score > 5 else said.score)
    assert (verdict.score, verdict.cached) == (2.0, False)


def test_a_judge_that_was_closed_may_be_used_again(tmp_path: Path) -> None:
    wire = JudgeWire(quick(score(7)))

    async def run() -> list[bool]:
        async with client_of(wire) as client:
            judge = Judge(client, model=MODEL, cache=tmp_path / "cache")
            cached_or_not = []
            for _ in range(2):
                cached_or_not.append((await judge.score(*ASKED)).cached)
                await judge.aclose()
            return cached_or_not

    assert asyncio.run(run()) == [False, True]


def test_a_judge_that_is_not_closed_writes_at_the_end_of_the_process_and_says_nothing(tmp_path: Path) -> None:
    program = """
import asyncio, sys
sys.path.append("..")
from judge_tools import *
async def main():
    async with client_of(JudgeWire(always(score(7), seconds=0.0))) as client:
        await Judge(client, model=MODEL, cache=sys.argv[1]).score("q", "a")
asyncio.run(main())
"""
    path = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(path)], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (1,)
    file.close()


def test_a_judge_of_a_client_without_loop_needs_no_file_until_it_is_used(tmp_path: Path) -> None:
    Judge(QRewardClient(["http://a/v1"]), model=MODEL, cache=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


WRITER = Path(__file__).parent / "cache_writer.py"


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-W", "error", str(WRITER), str(path), name, str(count)], stdout=subprocess.PIPE, text=True)


def whole(path: Path, name: str, count: int) -> int:
    """How many of the answers of a writer can be read, each of which must be whole."""
    cache = Cache(path)
    keys = [f"{name}-{number}" for number in range(count)]
    found = asyncio.run(cache.look([(key.encode(), "m") for key in keys]))
    cache.close()
    assert all(heard is None or heard.text == f"{key} " * 50 for key, heard in zip(keys, found, strict=True))
    return sum(heard is not None for heard in found)


def test_processes_that_write_at_the_same_time_lose_nothing_though_one_of_them_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with writer(path, "dead", 1_000_000) as dead:
        others = [writer(path, name, 200) for name in ("a", "b")]
        assert dead.stdout is not None
        while not whole(path, "dead", 50):
            assert dead.stdout.readline()
        os.kill(dead.pid, signal.SIGKILL)
    for process in others:
        process.communicate()
        assert process.returncode == 0
    assert whole(path, "dead", 1000) > 0
    assert [whole(path, name, 200) for name in ("a", "b")] == [200, 200]
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()
