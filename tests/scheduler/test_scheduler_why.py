"""Why the work of a pool waits, as a pure function of the scheduler's state."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import get_args

from qreward.errors import RateLimited
from qreward.results import ReasonCode
from qreward.scheduler.outcome import Failure, FailureKind, LastFailure, described
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import Source, make_source
from qreward.scheduler.task import BatchFeed
from qreward.scheduler.why import KEPT, explain, reason_of, said, unservable_error
from qreward.settings.policies import Limits


def pool_of(*sources: Source, waiting: int = 0) -> Pool:
    pool = Pool("'judge-*'", list(sources), ExpectedFinish(), Queue())
    if waiting:
        feed = BatchFeed(pool, 5, None, 0.0)
        feed.left = waiting
        pool.feeds[feed] = None
    return pool


def source(name: str, limits: Limits | None = None) -> Source:
    return make_source(name, Random(0), limits or Limits())


def test_the_reason_of_a_pool_is_that_of_the_endpoint_which_is_expected_to_take_a_task_first() -> None:
    late, soon, held = source("late", Limits(rpm=1)), source("soon", Limits(rpm=1)), source("held")
    for each, at in ((late, 0.0), (soon, -50.0)):
        assert each.requests is not None
        each.requests.take(at)
    held.paused = "paused: new weights"
    found = explain(0.0, pool_of(late, held, soon, waiting=42))
    assert (found.code, [each.endpoint for each in found.endpoints]) == ("rate_limit", ["soon", "late", "held"])
    assert found.text == (
        "42 items wait for judge-*: soon takes the next in 10 s: limit of 1 requests a minute; late takes the next in 60 s: "
        "limit of 1 requests a minute; held is paused: new weights"
    )
    assert found.endpoints[0].ready_in is not None
    assert found.endpoints[2].ready_in is None


def test_a_sentence_names_three_endpoints_and_counts_the_others() -> None:
    sources = [source(f"gpu-{number}") for number in range(64)]
    for each in sources:
        each.paused = "paused"
    found = explain(0.0, pool_of(*sources, waiting=1))
    assert found.text.startswith("1 item waits for judge-*: gpu-0 is paused; gpu-1 is paused; ")
    assert found.text.endswith("; and 61 more endpoints")
    assert len(found.endpoints) == 64


def test_states_that_need_no_server_have_their_codes() -> None:
    def at(code: ReasonCode) -> Source:
        each = source(code)
        if code == "removed":
            each.removed = True
        elif code == "marked_unhealthy":
            each.health.mark_unhealthy()
        elif code == "recovering":
            each.health.eject(0.0, 1.0)
            each.health.sent(1.0, 1)
            each.inflight = 1
        elif code == "quota":
            each.health.eject(0.0, 300.0)
            error = RateLimited("the text of the server", status_code=402)
            each.fault = LastFailure(0.0, FailureKind.QUOTA, str(error), described(Failure(FailureKind.QUOTA, error)))
        return each

    codes: tuple[ReasonCode, ...] = ("ready", "removed", "marked_unhealthy", "recovering", "quota")
    found = {code: reason_of(2.0, at(code)) for code in codes}
    assert {code: reason.code for code, reason in found.items()} == {code: code for code in codes}
    assert "the text of the server" not in found["quota"].text
    assert set(codes) <= set(get_args(ReasonCode))
    assert explain(0.0, pool_of()).code == "no_endpoint"
    assert explain(0.0, pool_of(source("a"), waiting=3)).code == "held_back"


def test_the_sentence_for_errors_is_made_anew_after_a_moment() -> None:
    each = source("a")
    pool = pool_of(each, waiting=2)
    first = said(0.0, pool)
    each.paused = "paused"
    assert said(KEPT / 2, pool) == first
    assert said(KEPT, pool) != first


def test_the_time_left_counts_when_each_endpoint_may_be_used_and_how_fast_it_is() -> None:
    quick, slow = source("quick", Limits(max_concurrency=1, adaptive=False)), source("slow", Limits(max_concurrency=1, adaptive=False))
    pool = pool_of(quick, slow)
    assert pool.done_in(0.0, 10) is None, "nothing is known before the first answer"
    quick.latency.add(1.0)
    assert pool.done_in(0.0, 10) == (11.0, 10.0 + (quick.latency.at(0.95) or 0))
    slow.latency.add(4.0)
    slow.cooldown.opens_at = 2.0
    least, most = pool.done_in(0.0, 10) or (0.0, 0.0)
    assert 8.0 < least < most < 14.0
    quick.paused = slow.paused = "paused"
    assert pool.done_in(0.0, 10) is None


def test_whether_a_pool_serves_is_seen_without_a_look_at_all_its_endpoints() -> None:
    class Sources(list[Source]):
        asked = 0

        def __iter__(self) -> Iterator[Source]:
            self.asked += 1
            return super().__iter__()

    dead, alive = [source(f"dead-{number}") for number in range(9)], source("alive")
    pool = pool_of(*dead, alive)
    for each in dead:
        each.health.mark_unhealthy()
    pool.sources = watched = Sources(pool.sources)
    for _ in range(5):
        assert unservable_error(pool) is None
    assert watched.asked == 1
    alive.health.mark_unhealthy()
    assert "every endpoint" in str(unservable_error(pool))
