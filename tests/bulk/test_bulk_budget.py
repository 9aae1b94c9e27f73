"""The spending limit: whatever requests cost, no limit is passed, and nearly all of it is used."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import MODEL, Backend, Folder, Sent, broken, completion, endpoint, line, lines, overloaded, unreachable
from hypothesis import given
from hypothesis import strategies as st
from scale import seeds

from qreward.bulk.budget import MEDIA_TOKENS, MESSAGE_TOKENS, NOTHING, SpendingLimit, Spent, highest, is_free, spent_by, upper_bound
from qreward.bulk.inputs import Line
from qreward.bulk.requests import BulkSettings, RequestReader
from qreward.bulk.run import BulkRun
from qreward.errors import ConfigError
from qreward.results import AttemptRecord, Usage


def call_of(fields: dict[str, Any]) -> Any:
    line = Line("in:1", 0, json.dumps(fields).encode())
    RequestReader(BulkSettings(model=MODEL)).read(line)
    return line.content


def most(fields: dict[str, Any]) -> int:
    return upper_bound(call_of(fields), None).tokens


def passed(url: str, **body: Any) -> dict[str, Any]:
    return {"url": url, "body": {"model": "m", **body}}


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 500), st.floats(0, 3), st.floats(0, 1)), max_size=60),
    st.none() | st.integers(1, 5000),
    st.none() | st.floats(0.01, 20),
)
def test_no_limit_is_ever_passed(steps: Any, max_tokens: int | None, max_cost: float | None) -> None:
    budget = SpendingLimit(max_cost, max_tokens)
    held: list[Any] = []
    paid = NOTHING
    for reserves, tokens, cost, share in steps:
        if reserves or not held:
            reserved = Spent(tokens + 1, cost)
            spent, now = budget.spent, sum(held, NOTHING)
            fits = budget.reserve(reserved)
            if fits:
                held.append(reserved)
            else:
                too_many = max_tokens is not None and spent.tokens + now.tokens + reserved.tokens > max_tokens
                assert too_many or (max_cost is not None and spent.cost + now.cost + cost > max_cost - 1e-9)
        else:
            reserved = held.pop(0)
            real = Spent(int(share * reserved.tokens), share * reserved.cost)
            budget.settle(reserved, real)
            paid += real
        assert budget.spent == paid
        assert budget.is_idle == (not held)
        assert max_tokens is None or budget.spent.tokens + sum(each.tokens for each in held) <= max_tokens
        assert max_cost is None or budget.spent.cost + sum(each.cost for each in held) <= max_cost + 1e-9


def test_a_limit_may_be_reached() -> None:
    for limits in ({"max_cost": 3.0}, {"max_tokens": 30}):
        budget = SpendingLimit(**limits)  # type: ignore[arg-type]
        assert [budget.reserve(Spent(10, 1.0)) for _ in range(4)] == [True, True, True, False], limits


def test_the_highest_price_is_that_of_prompts_and_of_completions_for_themselves() -> None:
    prices = {"a": (1.0, 100.0), "b": (2.0, 1.0), "c": (9.0, 900.0)}
    assert highest(prices, ["a", "b", "free"]) == (2.0, 100.0)
    assert highest(prices, ["free"]) is None
    cost = upper_bound(call_of(line(0, "x" * 100, max_tokens=1000)), highest(prices, ["a", "b"])).cost
    assert cost >= 1000 * 100 / 1e6


def test_the_most_tokens_of_a_request_cover_its_texts_and_all_of_its_output() -> None:
    assert most(line(0, "ä" * 500, max_tokens=7)) >= 1000 + 7
    assert most(line(0, "x", max_tokens=1010)) == most(line(0, "x", max_tokens=10)) + 1000, "and no more than all of it"
    assert most(line(0, "x", max_tokens=100, n=4)) >= 400
    assert most(passed("/v1/completions", prompt="x", max_tokens=100, best_of=4)) >= 400
    assert most(line(0, "x", max_completion_tokens=9)) >= 9
    assert most(line(0, "x", max_tokens=5, max_completion_tokens=900)) >= 900
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 300}}]
    assert most(line(0, "x", max_tokens=1, tools=tools)) >= 300
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
    assert most(line(0, parts, max_tokens=1)) >= MEDIA_TOKENS  # type: ignore[arg-type]
    assert most(line(0, "x" * 1000, max_tokens=7)) < 1200


def test_a_query_counts_with_each_of_its_documents() -> None:
    score = most(passed("/v1/score", text_1="q" * 100, text_2=["d" * 10] * 20))
    assert 20 * (110 + MESSAGE_TOKENS) <= score <= 20 * 140
    rerank = most(passed("/v1/rerank", query="q" * 100, documents=["d" * 10] * 20, top_n=3))
    assert rerank >= 20 * 110
    assert 12 <= most(passed("/v1/embeddings", input=["text"] * 3)) < 100
    assert most(passed("/v1/rerank", query="q" * 100, documents=[])) >= 100


def test_a_request_whose_output_has_no_limit_is_refused() -> None:
    for fields in (line(0), passed("/v1/completions", prompt="x"), passed("/v1/responses", input="x")):
        with pytest.raises(ConfigError, match="sets no max_tokens, so its cost has no limit"):
            most(fields)
    wrong: dict[str, Any] = {"max_tokens": "many", "max_completion_tokens": "500", "n": "10", "best_of": 2.0}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=f"{name} is {value!r}, so its cost has no limit; set {name} to an integer"):
            most(passed("/v1/completions", **{"prompt": "x", "max_tokens": 5, name: value}))
    assert most(passed("/v1/responses", input="x", max_output_tokens=50)) >= 50
    assert most(passed("/v1/completions", prompt=["x", "y"], max_tokens=50)) >= 100


def test_what_an_answer_cost_is_known_from_its_usage_only() -> None:
    assert spent_by(None, (1.0, 1.0)) is spent_by(Usage(None, 3), (1.0, 1.0)) is None
    assert spent_by(Usage(10, None), (1e6, 1.0)) == Spent(10, 10.0)
    assert spent_by(Usage(10, 4), None) == Spent(14, 0.0)
    assert Spent(10, 0.5) * 3 + Spent(2, 1.0) - Spent(30, 1.5) == Spent(2, 1.0)


class Meter(Backend):
    """Counts what its requests cost: each that it answers or breaks off, at the price of its endpoint.

    Answers have at most ``max_tokens`` tokens; one in ten fails after it was worked on, one in ten is turned away.
    """

    def __init__(self, prices: dict[str, tuple[float, float]], seed: int) -> None:
        super().__init__(self._answer)
        self._prices, self._dice = prices, random.Random(seed)
        self.cost, self.tokens = 0.0, 0

    async def _answer(self, sent: Sent) -> Any:
        dice = self._dice
        fate, output = dice.random(), dice.randrange(sent.body["max_tokens"] // 2, sent.body["max_tokens"] + 1)
        if fate < 0.1:
            return overloaded()
        prompt = len(sent.text) // 2
        price = self._prices[sent.endpoint]
        self.cost += (prompt * price[0] + output * price[1]) / 1e6  # also if nobody waits for the answer
        self.tokens += prompt + output
        await asyncio.sleep(dice.uniform(0.5, 2))
        return broken() if fate < 0.2 else completion("yes", prompt, output)


class Kill:
    """Kills a run after some seconds, as ``kill -9`` does: what is in flight was sent, and the journal stays as it is then."""

    def __init__(self, folder: Folder, seconds: float) -> None:
        self._folder, self._seconds, self._journal = folder, seconds, b""

    def __call__(self, run: BulkRun) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._seconds, self._now, run)

    def _now(self, run: BulkRun) -> None:
        self._journal = self._folder.journal.read_bytes()
        run.stop_now()

    def leave(self) -> None:
        """Undo what the run did after it was killed."""
        if self._journal:
            self._folder.journal.write_bytes(self._journal)


async def test_the_limits_hold_over_all_runs_on_a_journal_however_often_they_are_killed(tmp_path: Path) -> None:
    prices = {"a": (1.0, 10.0), "b": (3.0, 8.0)}
    limits: list[dict[str, Any]] = [{"max_cost": 1.0}, {"max_tokens": 110_000}]
    for seed in seeds(4):
        dice, limit = random.Random(seed), limits[seed % 2]
        path = tmp_path / str(seed)
        path.mkdir()
        folder, backend, killed = Folder(path, lines(4000, max_tokens=100)), Meter(prices, seed), 0
        endpoints = [endpoint(name, slots=8, price=price) for name, price in prices.items()]
        while True:
            first_run = {} if killed else {"sample": 100}  # without a limit; the others count what it has spent
            kill = Kill(folder, dice.uniform(0.2, 40))
            report = await folder.run(backend, *endpoints, on_start=kill, retry_failed=dice.random() < 0.5, **(first_run or limit))
            kill.leave()
            killed += 1
            assert report.cost is not None, seed
            assert report.cost_before is not None, seed
            if "could pass max_cost" in str(report.reason):
                break
        used, most = {
            "max_cost": (report.cost_before + report.cost, 1.0),
            "max_tokens": (report.tokens_before + report.tokens, 110_000),
        }[next(iter(limit))]
        true = backend.cost if "max_cost" in limit else backend.tokens
        assert killed > 3, seed
        assert true <= most, (seed, true)
        if "max_cost" in limit:
            assert 0.97 <= used <= most, (seed, used)
            assert used >= true, (seed, used, true)
        again = await folder.run(backend, *endpoints, **limit)
        assert (again.exit_code, again.sent) == (75, 0), seed
        assert f"earlier runs  {again.tokens_before} tokens, ${again.cost_before:.4f}" in str(again), seed


async def test_lines_that_a_run_without_limit_had_in_flight_count_before_another_is_sent(tmp_path: Path) -> None:
    rows, one = lines(20, max_tokens=100), most(line(0, max_tokens=100))
    for number, source in enumerate((None, iter(rows))):  # a file, and what can be read once
        path = tmp_path / str(number)
        path.mkdir()
        folder, backend, options = Folder(path, rows), Backend(seconds=10.0), {"client": {"retry": {"attempts": 1}}}
        first: dict[str, Any] = {} if source is None else {"source": rows}
        kill = Kill(folder, 5.0)
        await folder.run(backend, endpoint(slots=4), on_start=kill, **options, **first)
        kill.leave()
        again: dict[str, Any] = {} if source is None else {"source": source}
        report = await folder.run(backend, endpoint(slots=4), max_tokens=4 * one + 15, **options, **again)
        assert (report.sent, report.exit_code) == (0, 75), number
        report = await folder.run(backend, endpoint(slots=4), max_tokens=30 * one, **options, **first)
        assert report.tokens_before >= 4 * one, number
        assert (report.done, report.exit_code) == (20, 0), number


def test_an_unsuitable_answer_was_paid_and_an_unsuitable_refusal_was_not() -> None:
    found = {
        (outcome, status): is_free(AttemptRecord("a", outcome, 1.0, status))
        for outcome, status in (("unsuitable", 200), ("unsuitable", 404), ("overloaded", 429), ("transient", 500), ("refused", 400))
    }
    assert [key for key, free in found.items() if free] == [("unsuitable", 404), ("overloaded", 429)]


async def test_attempts_that_time_out_count_in_full(tmp_path: Path) -> None:
    async def script(_sent: Sent) -> Any:
        await asyncio.sleep(50)

    rows = lines(50, max_tokens=100)
    folder, backend = Folder(tmp_path, rows), Backend(script)
    client = {"retry": {"attempts": 2}}
    report = await folder.run(backend, endpoint(slots=4), client=client, timeout=10, max_tokens=2000)
    one = most(rows[0])
    assert len(backend.sent) * one <= 2000 + one
    assert report.exit_code == 75


async def test_an_attempt_of_a_line_that_is_left_to_the_next_run_counts_in_full_in_every_run(tmp_path: Path) -> None:
    async def script(_sent: Sent) -> Any:
        await asyncio.sleep(40)  # the timeout cuts the second attempt off before the server would reject it too
        return unreachable()

    row = line(0, max_tokens=100)
    folder, backend, one = Folder(tmp_path, [row]), Backend(script), most(row)
    options: dict[str, Any] = {"timeout": 60, "max_tokens": 7 * one}  # three attempts are reserved for a line
    for run in range(4):
        report = await folder.run(backend, client={"retry": {"attempts": 3}}, **options)
        assert (report.done, report.exit_code, report.tokens_before) == (0, 75, run * one), str(report)
    report = await folder.run(backend, client={"retry": {"attempts": 4}}, **options)
    assert (len(backend.sent), report.sent) == (8, 0), "another attempt could pass the limit"


async def test_with_a_limit_a_line_without_max_tokens_fails_and_params_can_set_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path, [line(0, max_tokens=5), line(1)])
    report = await folder.run(Backend(), max_tokens=100_000)
    assert (report.done, report.failed) == (2, 1)
    folder.journal.unlink()
    report = await folder.run(Backend(), max_tokens=100_000, params={"max_tokens": 9})
    assert (report.done, report.failed) == (2, 0)


async def test_a_line_that_alone_would_pass_the_limit_stops_the_run_before_it_is_sent(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(5, max_tokens=1000)), Backend()
    report = await folder.run(backend, max_tokens=100)
    assert (report.exit_code, report.sent, backend.sent) == (75, 0, [])
